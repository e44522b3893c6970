"""The tutorial's code and commands, run in order in an empty folder."""

from __future__ import annotations

import shutil

import pytest
from pages import ROOT, run_page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="the tutorial has a kernel in C")
def test_the_tutorial_works(tmp_path):
    assert run_page(ROOT / "docs" / "tutorial.md", tmp_path, tmp_path / "cache") > 10
