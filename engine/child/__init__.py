"""The engine in a process of its own: what its parent sees, and what it does itself."""
