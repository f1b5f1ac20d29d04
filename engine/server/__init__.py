"""The engine on a port: the OpenAI-compatible API, health, metrics and a chat page. Only this package needs FastAPI."""
