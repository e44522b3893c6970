"""Fixtures."""

from c_library import build

__all__ = ["build"]


@pytest.fixture(autouse=True)
def _forget():
    yield
    for c in user_contracts():
        if c.semantic.domain == "shop":
            unregister("shop", c.semantic.name)
