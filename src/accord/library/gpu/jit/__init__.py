"""Triton functions; each file is imported when a kernel in it is first compiled or run."""
