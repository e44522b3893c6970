"""Fixtures for tests of users' kernels, which conftest files import: a C compiler, and forgetting what was declared."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from accord.contract.registry import unregister, user_contracts


@pytest.fixture
def forget_shop():
    """Operators of domain "shop" that a test declares are unknown after it."""
    yield
    for c in user_contracts():
        if c.semantic.domain == "shop":
            unregister("shop", c.semantic.name)


COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """From C text to the path of a shared library."""
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("libraries")

    def make(name: str, source: str) -> Path:
        text = folder / f"{name}.c"
        text.write_text(source)
        library = folder / f"{name}.so"
        subprocess.run([COMPILER, "-O2", "-fPIC", "-shared", "-o", library, text, "-lm"], check=True)
        return library

    return make
