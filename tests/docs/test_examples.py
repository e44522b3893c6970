"""The examples run, and what their page shows is what they and the checker print."""

from __future__ import annotations

import pytest
from pages import ROOT, run_page

EXAMPLES = ROOT / "examples"


def test_each_example_prints_what_its_page_shows(tmp_path):
    assert run_page(EXAMPLES / "README.md", ROOT, tmp_path, only="python ") == len(list(EXAMPLES.glob("*.py")))


@pytest.mark.slow
def test_the_checker_says_what_the_page_shows(tmp_path):
    assert run_page(EXAMPLES / "README.md", ROOT, tmp_path, only="accord ") > 5
