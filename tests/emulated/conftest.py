"""Tests of the CUDA backend on an emulated GPU, in a process that interprets Triton.

``tests/backends/test_cuda_backend.py`` starts it; alone: ``TRITON_INTERPRET=1 pytest -n 0 tests/emulated``.
With ``ACCORD_TEST_GPU=1`` those that compare values run on a GPU that is there: ``scripts/gpu.py --only graphs``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from c_library import forget_shop

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))

__all__ = ["forget_shop"]

#: These run on a GPU as well. The others are about what the emulated one knows of memory, order, and failures.
VALUES = ("families", "late", "long_rows", "operators", "random_graphs", "recurrent")
REAL = os.environ.get("ACCORD_TEST_GPU") == "1"

if REAL:
    collect_ignore = [p.name for p in Path(__file__).parent.glob("test_*.py") if p.stem[5:] not in VALUES]
elif os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*.py"]


class RealDevice:
    """A GPU that is there."""

    @property
    def started(self) -> NoReturn:
        pytest.skip("only the emulated GPU counts the kernels that it starts")


@pytest.fixture(autouse=True)
def _forget(forget_shop):
    yield


@pytest.fixture
def gpu(monkeypatch):
    if REAL:
        return RealDevice()
    from emulated_gpu import install

    return install(monkeypatch.setattr)


@pytest.fixture
def quick_tuning(tmp_path, monkeypatch):
    """Nothing is known of any choice, and measuring one takes few launches."""
    from accord.backends.cuda import backend, choices, tuner

    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))
    monkeypatch.setattr(tuner, "_LAUNCHES", (1, 2))
    monkeypatch.setattr(tuner, "_TURNS", 2)
    monkeypatch.setattr(choices, "_OUTCOMES", choices.OrderedDict())
    backend.__dict__.pop("_tuner", None)
    yield
    if "_tuner" in backend.__dict__:
        backend._tuner.stop()
        backend.__dict__.pop("_tuner")
