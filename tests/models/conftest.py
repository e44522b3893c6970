"""Fetches the model files before the first test that needs them; without them the tests fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_models"


@pytest.fixture(scope="session")
def fetched() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"scripts/fetch_models failed:\n{done.stdout}{done.stderr}", pytrace=False)


@pytest.fixture(autouse=True)
def _fetch_first(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("network"):
        request.getfixturevalue("fetched")
