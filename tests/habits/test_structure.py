"""Habits that are held by tests: import direction, file length, start-up time, packaging."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "accord"

#: Rooms from the lowest to the highest (docs/layout.md); a room imports from those before it and from itself.
ROOMS = [
    ["errors", "record", "cores", "storage"],
    ["ir"],
    ["contract"],
    ["ops"],
    ["model"],
    ["expr"],
    ["kernels"],
    ["passes"],
    ["backends"],
    ["placement"],
    ["plan"],
    ["runtime"],
    ["profile"],
    ["workbench"],
    ["onnx_backend", "demo"],
    ["cli"],
    ["__main__"],
]
RANK = {room: i for i, rooms in enumerate(ROOMS) for room in rooms}

FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Rooms of Accord that a file imports when it is imported: not inside functions, not for type checkers only."""
    found: set[str] = set()

    def visit(nodes) -> None:
        for n in nodes:
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test):
                visit(n.orelse)
                continue
            if isinstance(n, ast.Import):
                found.update(a.name.split(".")[1] for a in n.names if a.name.startswith("accord."))
            elif isinstance(n, ast.ImportFrom) and n.module and n.level == 0:
                parts = n.module.split(".")
                if parts[0] == "accord":
                    found.update([parts[1]] if len(parts) > 1 else [a.name for a in n.names])
            visit(ast.iter_child_nodes(n))

    visit(ast.parse(path.read_text()).body)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    room = room_of(path)
    if room == "__init__":
        assert not imports_of(path), "the package imports nothing before it is needed"
        return
    upwards = {r for r in imports_of(path) if RANK.get(r, -1) > RANK[room]}
    assert not upwards, f"{room} must not import {', '.join(sorted(upwards))} (docs/layout.md)"


def test_every_room_is_listed():
    rooms = {room_of(p) for p in FILES} - {"__init__"}
    assert rooms == set(RANK)
    layout = (ROOT / "docs" / "layout.md").read_text()
    assert not [r for r in rooms if f"`{r}" not in layout]


@pytest.mark.parametrize("folder", ["src", "tests", "scripts", "benchmarks"])
def test_no_file_is_longer_than_600_lines(folder):
    long = [
        f"{p.relative_to(ROOT)}: {n}"
        for p in sorted((ROOT / folder).rglob("*.py"))
        if (n := len(p.read_text().splitlines())) > 600
    ]
    assert not long


def test_importing_accord_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys, time; t = time.perf_counter(); import accord; d = time.perf_counter() - t;"
        "print(d); print([m for m in ('numpy', 'onnx', 'onnx_ir', 'llvmlite', 'rich', 'click') if m in sys.modules])"
    )
    seconds, heavy = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert float(seconds) < 0.3
    assert heavy == "[]"


def test_the_public_names_are_these():
    import accord

    assert set(accord.__all__) == {
        "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "Model",
        "ModelMetadata", "NodeArg", "Operator", "OrtValue", "RunOptions", "SessionOptions", "Tensor", "__version__",
        "errors", "get_all_providers", "get_available_providers", "get_device", "load", "operator",
        "set_default_logger_severity", "tune",
    }  # fmt: skip
    for name in accord.__all__:
        assert getattr(accord, name) is not None
        assert name == "__version__" or getattr(accord, name).__doc__, f"{name} has no docstring"


def test_the_changelog_names_the_version_in_force():
    import accord

    text = (ROOT / "CHANGELOG.md").read_text()
    assert "## Unreleased" in text or f"## {accord.__version__}" in text


def test_no_path_of_a_machine_is_written_down():
    words = ["/work" + "/", "/ho" + "me/", "/ro" + "ot/"]
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in tracked.decode().split("\0"):
        path = ROOT / name
        if (
            path.suffix in {".py", ".md", ".toml", ".json", ".yml", ""}
            and path.is_file()
            and path.stat().st_size < 1 << 20
        ):
            text = path.read_text(errors="ignore")
            assert not [w for w in words if w in text], name
