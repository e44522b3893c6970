"""Fixtures."""

from c_library import build

__all__ = ["build"]
