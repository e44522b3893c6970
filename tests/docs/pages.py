"""Pages whose code and commands are run: files are written, commands must print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def alike(text: str) -> str:
    """Without what differs from run to run: numbers and spaces."""
    return " ".join(re.sub(r"[+-]?\d[\d.,]*(e[+-]?\d+)?", "#", text).split())


def _commands(block: str):
    """Each command of a console block with the lines that must be among what it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, [line for line in printed.splitlines() if line.strip()]


def _run(command: str, folder: Path, cache: Path, wanted: list[str], status: int) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder)]),
        "ACCORD_CACHE": str(cache),
        "COLUMNS": "160",
    }
    words = re.sub(r"^accord ", "python -m accord ", command)
    words = re.sub(r"^python ", f"{sys.executable} ", words)
    done = subprocess.run(
        words, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    printed = alike(done.stdout)
    missing = [line for line in wanted if alike(line) not in printed]
    assert not missing, f"{command} does not print\n{missing}\nbut\n{done.stdout}"


def run_page(page: Path, folder: Path, cache: Path, only: str = "") -> int:
    """Run a page in a folder; returns the number of commands.

    Args:
        page: In Markdown. A block "file=NAME" is written, "append=NAME" added to a file; the lines "$ COMMAND" of a
            "console" block are run, and end with status 0 or that of "exit=STATUS".
        folder: Where.
        cache: For what is compiled.
        only: Start of the commands that are run.
    """
    ran = 0
    for kind, details, block in _BLOCK.findall(page.read_text()):
        words = dict(w.partition("=")[::2] for w in details.split())
        if "file" in words:
            (folder / words["file"]).write_text(block)
        elif "append" in words:
            with (folder / words["append"]).open("a") as file:
                file.write(block)
        elif kind == "console":
            for command, wanted in _commands(block):
                if command.startswith(only):
                    _run(command, folder, cache, wanted, int(words.get("exit", 0)))
                    ran += 1
    return ran
