"""Failures on a GPU that is there: a kernel that writes outside its memory, no memory, and memory given back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import accord
from accord.errors import ExecutionError
from accord.kernels.device import visible
from builders import model, node

pytestmark = pytest.mark.skipif(not visible(), reason="there is no GPU")
F = np.float32

#: A user's kernel that writes far outside where a value is large; ``{before}`` runs are right.
ILLEGAL = """
import sys
sys.path[:0] = {paths!r}
import numpy as np
import accord
from accord.contract.code import TritonCode
from accord.errors import DeviceLostError
from builders import model, node
import gpu_kernels as kernels
F = np.float32
for name, kernel in (("Outside", kernels.far_where_large), ("Thrice", kernels.thrice)):
    def reference(x):
        return x
    reference.__annotations__ = {{"x": accord.Tensor["float32", "N"], "return": accord.Tensor["float32", "N"]}}
    accord.operator("shop::" + name)(reference).triton(TritonCode(kernel, lambda k: (k["N"],)))
nodes = [
    node("Exp", ["x"], ["e"], name="first"),
    node("Outside", ["e"], ["t"], domain="shop", name="suspect"),
    node("Thrice", ["t"], ["u"], domain="shop", name="innocent"),
    node("Softmax", ["u"], ["y"], name="last"),
]
m = accord.load(model(nodes, {{"x": (F, ["n"])}}, ["y"], domains={{"shop": 1}}), device="cuda")
simple = model([node("Add", ["x", "x"], ["y"])], {{"x": (F, ["n"])}}, ["y"])
other = accord.load(simple, device="cuda")
good, bad = np.zeros(64, F), np.full(64, 80, F)
assert other(np.ones(4, F))[0].tolist() == [2] * 4
for _ in range({before}):
    m(good)
lost = []
for run in (lambda: m(bad), lambda: other(good), lambda: m(good), lambda: accord.load(simple, device="cuda")(good)):
    try:
        run()
    except DeviceLostError as error:
        lost.append(str(error))
assert len(lost) == 4, lost
print(lost[0])
"""


def lost(before, **environment):
    tests = Path(__file__).parents[1]
    code = ILLEGAL.format(paths=[str(tests), str(tests / "kernels")], before=before)
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(("before", "blocking"), [(0, "0"), (5, "1")])
def test_the_kernel_that_failed_is_named_where_it_is_known(before, blocking):
    said = lost(before, ACCORD_CUDA_BLOCKING=blocking)
    assert "illegal address in kernel 'shop::Outside (triton)' of node 'suspect'" in said
    assert "innocent" not in said


def test_else_all_that_were_running_are_named():
    said = lost(5)
    assert all(f"'{name}'" in said for name in ("suspect", "innocent", "first", "last"))


def wide(columns=65536):
    """Its widest tensor has so many columns."""
    nodes = [
        node("Exp", ["x"], ["small"]),
        node("MatMul", ["small", "w"], ["wide"]),
        node("Softmax", ["wide"], ["p"]),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    w = np.full((4, columns), 1e-3, F)
    proto = model(nodes, {"x": (F, ["n", 4])}, ["y"], {"w": w, "v": np.ascontiguousarray(w.T)})
    return accord.load(proto, device="cuda")


def free():
    from accord.backends.cuda.driver import device

    gpu = device()
    gpu.enter()
    return gpu.call("cuMemGetInfo")


def test_a_run_without_enough_memory_names_the_largest_tensors_and_the_session_lives_on():
    m = wide()
    first = m(np.zeros((4, 4), F))[0]
    rows = int(free()[1]) // (4 * 65536) + 1
    with pytest.raises(ExecutionError, match=rf"not enough memory.*free; the largest.*'wide' float32\[{rows}, 65536\]"):
        m(np.zeros((rows, 4), F))
    np.testing.assert_array_equal(m(np.zeros((4, 4), F))[0], first)


def test_trim_gives_memory_back():
    m = wide()
    m(np.zeros((4000, 4), F))
    before = int(free()[0])
    freed = m.trim()
    assert freed >= 4000 * 65536 * 4
    assert int(free()[0]) - before >= freed - (8 << 20)
