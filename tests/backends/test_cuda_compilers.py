"""Kernels that processes compile side by side; no GPU is needed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed (190 MB; pip install 'accord[cuda]')")

from accord.backends.cuda import code, compilers
from accord.backends.cuda.code import Variant, WrittenText
from accord.errors import CompileError


def variant(name, line="tl.store(y + i, tl.load(x + i) * FACTOR)", factor=2):
    text = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def {name}(x, y, n, FACTOR: tl.constexpr):\n    i = tl.arange(0, 128)\n    {line}\n"
    )
    return Variant(WrittenText(name, ("f32", "f32"), False, text), (("FACTOR", factor),), ("",), False, True, 4, 1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "accord"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(code, "_FOUND", {})


def here(_variant, _target):
    raise AssertionError("compiled in this process")


def test_they_compile_what_this_process_would(monkeypatch):
    wanted = [variant(f"scale{k}", factor=k) for k in range(2, 7)]
    expected = [code.compile_variant(v, 90) for v in wanted[:1]]
    monkeypatch.setattr(code, "compile_variant", here)
    compilers.compile_all(wanted, 90)
    found = [code.find_binary(v, 90) for v in wanted]
    assert [b.name for b in found] == [v.kernel.symbol for v in wanted]
    assert found[0] == expected[0]
    code._FOUND.clear()
    assert [code.find_binary(v, 90) for v in wanted] == found  # what they made is on disk too


def test_without_a_cache_it_comes_through_the_channel(monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", "off")
    monkeypatch.setattr(code, "compile_variant", here)
    wanted = [variant(f"lone{k}") for k in range(3)]
    compilers.compile_all(wanted, 80)
    assert all(code.find_binary(v, 80).cubin[:4] == b"\x7fELF" for v in wanted)


def test_what_does_not_compile_is_said():
    wanted = [variant("fine"), variant("wrong", "tl.store(y + i, nothing)"), variant("good", factor=3)]
    with pytest.raises(CompileError, match="'wrong' does not compile") as caught:
        compilers.compile_all(wanted, 90)
    assert "nothing" in str(caught.value)
    assert compilers._SHARED == []


def test_a_process_that_is_killed_is_done_without(monkeypatch):
    compile_one = compilers.Worker.compile
    killed = []

    def interrupted(self, one, target):
        if len(killed) < 2:
            for folder in Path("/proc").iterdir():
                if folder.name.isdigit() and _parent(folder) == shared._process.pid:
                    killed.append(folder.name)
                    os.kill(int(folder.name), signal.SIGKILL)
        return compile_one(self, one, target)

    monkeypatch.setattr(compilers.Worker, "compile", interrupted)
    wanted = [variant(f"hit{k}") for k in range(4)]
    with compilers.compilers() as shared:
        compilers.serve_all(shared, wanted, 90)
    assert all(code.find_binary(v, 90) for v in wanted)


def _parent(folder):
    try:
        return int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return -1


def test_they_end_when_nobody_needs_them():
    with compilers.compilers() as outer:
        with compilers.compilers() as inner:
            assert inner is outer
            worker = inner.worker()
            assert worker.compile(variant("last"), 90).name == "last"
        assert outer._process.poll() is None
    assert outer._process.poll() is not None
    worker.close()
