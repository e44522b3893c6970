"""Node → backend and kernel, with the reason."""
