"""The CUDA backend without a GPU: on an emulated one, and what it says where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import accord
from accord.errors import BackendError
from builders import model, node

TESTS = Path(__file__).parents[1]


def test_backend_on_an_emulated_gpu():
    pytest.importorskip("triton", reason="Triton is not installed (190 MB; pip install 'accord[cuda]')")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(TESTS / "emulated")]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:]


def test_without_a_gpu_the_error_says_what_is_missing():
    from accord.backends.cuda import backend

    if backend.lacking() is None:
        pytest.skip("this machine has a GPU")
    proto = model([node("Exp", ["x"], ["y"])], {"x": (np.float32, ["n"])}, ["y"])
    with pytest.raises(BackendError, match=r"cuda-bindings|driver") as caught:
        accord.load(proto, device="cuda")
    assert caught.value.remedy
    assert "CUDAExecutionProvider" not in accord.get_available_providers()
