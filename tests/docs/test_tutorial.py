"""The tutorial's code and commands, run in order in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def alike(text: str) -> str:
    """Without what differs from run to run: numbers, units of time, spaces."""
    return " ".join(re.sub(r"\d[\d.,]*", "#", text).split())


def commands(block: str):
    """Each command of a console block with the lines that must be among what it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, [line for line in printed.splitlines() if line.strip()]


def run(command: str, folder: Path, wanted: list[str], status: int) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)]),
        "ACCORD_CACHE": str(folder / "cache"),
        "COLUMNS": "160",
    }
    words = command.replace("accord ", f"{sys.executable} -m accord ", 1) if command.startswith("accord ") else command
    words = words.replace("python ", f"{sys.executable} ", 1) if command.startswith("python ") else words
    done = subprocess.run(
        words, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    printed = alike(done.stdout)
    missing = [line for line in wanted if alike(line) not in printed]
    assert not missing, f"{command} does not print\n{missing}\nbut\n{done.stdout}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="the tutorial has a kernel in C")
def test_the_tutorial_works(tmp_path):
    ran = 0
    for kind, details, block in BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text()):
        words = dict(w.partition("=")[::2] for w in details.split())
        if "file" in words:
            (tmp_path / words["file"]).write_text(block)
        elif "append" in words:
            with (tmp_path / words["append"]).open("a") as file:
                file.write(block)
        elif kind == "console":
            for command, wanted in commands(block):
                run(command, tmp_path, wanted, int(words.get("exit", 0)))
                ran += 1
    assert ran > 10
