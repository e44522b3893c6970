"""Makes the table importable, and fetches the model files before the first test that needs them.

Without the files those tests fail: that a model was not tested must not look like success.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def fetched() -> None:
    """The model files are in the cache."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "fetch_models"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(f"scripts/fetch_models failed:\n{done.stdout}{done.stderr}", pytrace=False)


@pytest.fixture(autouse=True)
def _fetch_first(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("network"):
        request.getfixturevalue("fetched")
