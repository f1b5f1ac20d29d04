"""Engines behind URLs: any OpenAI-compatible server, one or several, as one ``Engine``. Imports no torch."""
