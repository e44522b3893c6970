"""A C compiler; operators that a test declares are unknown after it."""

import pytest

from c_library import build, forget_shop

__all__ = ["build", "forget_shop"]


@pytest.fixture(autouse=True)
def _forget(forget_shop):
    yield
