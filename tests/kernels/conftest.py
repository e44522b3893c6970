"""A C compiler; operators that a test declares are unknown after it."""

import pytest

from accord.contract.registry import unregister, user_contracts
from c_library import build

__all__ = ["build"]


@pytest.fixture(autouse=True)
def _forget():
    yield
    for c in user_contracts():
        if c.semantic.domain == "shop":
            unregister("shop", c.semantic.name)
