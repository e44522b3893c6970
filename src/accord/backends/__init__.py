"""Backends: where kernels come from and where they run. Each is found through the entry point ``accord.backends``."""
