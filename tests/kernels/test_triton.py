"""Triton kernels without a GPU: compiled for every architecture, run in the interpreter."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accord
from accord.contract.code import TritonCode
from accord.errors import ContractError
from accord.kernels.architectures import ARCHITECTURES, compile_report
from accord.kernels.bound import KernelError, bind_kernel
from accord.kernels.launch import Memory
from accord.kernels.signature import REFUSED

pytest.importorskip("triton", reason="Triton is not installed (pip install 'accord[cuda]')")

import gpu_kernels as kernels

Tensor = accord.Tensor
F = np.float32
TYPES = {"float32": F, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def block(known):
    return {"BLOCK": 1 << max(0, known["D"] - 1).bit_length()}


def declare_scale(**clauses):
    @accord.operator("shop::Scale")
    def scale(
        x: Tensor["T", "N", "D"], w: Tensor["T", "D"] | None = None, *, alpha: float = 0.5
    ) -> Tensor["T", "N", "D"]:
        z = x.astype(np.float64) * alpha
        return (z if w is None else z * w.astype(np.float64)).astype(x.dtype)

    scale.types(T=list(TYPES)).execution(**{"layouts": ("contiguous", "strided"), **clauses})
    return scale.triton(TritonCode(kernels.scaled_rows, lambda k: (k["N"],), block))


def vector_operator(code, name="Vector", workspace=""):
    @accord.operator(f"shop::{name}")
    def vector(x: Tensor["float32", "D"]) -> Tensor["float32", "D"]:
        return x * 3 + 1

    codes = code if isinstance(code, tuple) else (code,)
    return vector.execution(workspace=workspace).triton(*codes)


def bound(operator, types=None):
    c = operator.contract
    return bind_kernel(c, c.kernels[0], {v: f"tensor({t})" for v, t in (types or {}).items()})


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 5),
    d=st.integers(1, 70),
    dtype=st.sampled_from(sorted(TYPES)),
    steps=st.tuples(st.sampled_from([-2, -1, 1, 2, 3]), st.sampled_from([-1, 1, 2])),
    weighted=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_interpreter_agrees_with_the_reference(n, d, dtype, steps, weighted, seed):
    operator = declare_scale()
    try:
        rng = np.random.default_rng(seed)
        grown = rng.standard_normal((n * abs(steps[0]), d * abs(steps[1]))).astype(TYPES[dtype])
        x = grown[:: steps[0], :: steps[1]]
        w = rng.standard_normal(d).astype(TYPES[dtype]) if weighted else None
        y = np.full((n, d), np.nan, TYPES[dtype])
        before = x.copy()
        bound(operator, {"T": dtype.replace("float32", "float")})([x, w], [y], {"alpha": 0.25})
        expected = operator(x, w, alpha=0.25)
        np.testing.assert_allclose(y.astype(F), expected.astype(F), rtol=1e-6 if dtype == "float32" else 1e-2)
        np.testing.assert_array_equal(x, before)
    finally:
        operator.unregister()


def test_launches_hand_over_a_workspace():
    first = TritonCode(kernels.through_workspace, lambda k: (1,), block)
    second = TritonCode(kernels.from_workspace, lambda k: (1,), block)
    operator = vector_operator((first, second), workspace="4 * D")
    x, y, scratch = np.arange(37, dtype=F), np.zeros(37, F), np.zeros(4 * 37, np.uint8)
    bound(operator)([x], [y], {}, scratch)
    np.testing.assert_array_equal(y, operator(x))


def test_an_empty_grid_starts_nothing():
    operator = vector_operator(TritonCode(kernels.unaligned_block, lambda k: (0,), {"BLOCK": 16}))
    y = np.full(3, 7, F)
    bound(operator)([np.zeros(3, F)], [y], {})
    assert (y == 7).all()


def test_what_is_not_accepted_is_refused():
    call = bound(declare_scale(layouts=("contiguous",), alignment=16), {"T": "float"})
    x, y = np.zeros((4, 8), F), np.zeros((4, 8), F)
    call([x], [y], {"alpha": 1.0})
    with pytest.raises(KernelError, match="contiguous memory only") as refused:
        call([np.zeros((8, 4), F).T], [y], {"alpha": 1.0})
    assert refused.value.status == REFUSED
    shifted = np.zeros(33 + 4, F)
    start = (-shifted.ctypes.data // 4) % 4 + 1
    with pytest.raises(KernelError, match="aligned to 16 bytes"):
        call([shifted[start : start + 32].reshape(4, 8)], [y], {"alpha": 1.0})


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr("accord.kernels.device.visible", lambda: False)


def test_a_failure_in_the_interpreter_names_kernel_and_line(without_gpu):
    operator = vector_operator(TritonCode(kernels.unaligned_block, lambda k: (1,), {"BLOCK": 12}))
    with pytest.raises(KernelError, match=r"unaligned_block.*power of 2.*gpu_kernels.py:\d+"):
        bound(operator)([np.zeros(5, F)], [np.zeros(5, F)], {})


def test_a_crash_in_the_interpreter_is_an_error_and_the_next_call_works(without_gpu):
    wild = vector_operator(TritonCode(kernels.writes_outside, lambda k: (1,), {"BLOCK": 16}), "Wild")
    with pytest.raises(KernelError, match="process that interprets the kernel ended"):
        bound(wild)([np.zeros(9, F)], [np.zeros(9, F)], {})
    fine = vector_operator(TritonCode(kernels.unaligned_block, lambda k: (1,), {"BLOCK": 16}), "Fine")
    y = np.zeros(9, F)
    bound(fine)([np.arange(9, dtype=F)], [y], {})
    np.testing.assert_array_equal(y, np.arange(9))


def test_in_a_process_that_interprets_nothing_is_copied():
    """Not to a GPU either, where there is one."""
    program = """
import numpy as np
import test_triton as t
from accord.kernels import device
from accord.kernels.triton import interpreting
assert interpreting()
device.visible = lambda: True
y = np.zeros((3, 5), t.F)
x = np.arange(15, dtype=t.F).reshape(3, 5)
x.flags.writeable = False
t.bound(t.declare_scale(), {"T": "float"})([x, None], [y], {"alpha": 2.0})
np.testing.assert_array_equal(y, 2 * x)
print("done")
"""
    path = os.pathsep.join([str(Path(__file__).parent), *(p for p in sys.path if p)])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "done", result.stderr


def test_every_architecture_compiles_with_what_it_takes():
    c = declare_scale().contract
    report = compile_report(c, c.kernels[0])
    assert {r.architecture for r in report} == set(ARCHITECTURES)
    assert {r.types["T"] for r in report} == set(TYPES)
    for r in report:
        assert not r.faults and not r.remarks
        assert 8 <= r.registers <= 64 and r.threads == 128 and r.spills == 0 and r.blocks >= 8


def test_what_the_driver_is_given(monkeypatch):
    """Without a GPU as well: each launch in turn, constants left out, pointers that Triton adds at the end."""
    started = []
    monkeypatch.setattr("accord.kernels.device.architecture", lambda: 90)
    monkeypatch.setattr("accord.kernels.triton.launch", lambda *given: started.append(given))
    first = TritonCode(kernels.through_workspace, lambda k: (1,), block)
    second = TritonCode(kernels.from_workspace, lambda k: (2,), block, warps=2)
    operator = vector_operator((first, second), workspace="4 * D")
    x, y, scratch = (Memory(n, (37,), (1,), "float32") for n in (4096, 8192, 12288))
    bound(operator).prepared([x], [y], {}, scratch, stream=7)()
    for call, pointers, grid, threads in zip(started, ((4096, 12288), (12288, 8192)), (1, 2), (128, 64), strict=True):
        assert call[0][:4] == b"\x7fELF" and call[1] in ("through_workspace", "from_workspace")
        assert call[2:5] == (7, (grid, 1, 1), (threads, 1, 1))
        assert call[6][:3] == [("p", pointers[0]), ("p", pointers[1]), ("i", 37)]
        assert all(a == ("p", 0) for a in call[6][3:])


def test_shared_memory_just_over_the_limit_is_found():
    # the operand and its transposed copy need as many bytes as a square has
    code = TritonCode(kernels.product, lambda k: (1,), {"B": 256}, warps=8)
    c = vector_operator(code).contract
    report = {r.architecture: r for r in compile_report(c, c.kernels[0])}
    over = report["sm_86"]
    assert over.shared > ARCHITECTURES["sm_86"].shared
    assert any("shared memory" in f and "101376 of sm_86" in f for f in over.faults), over


def test_spilled_registers_are_remarked():
    code = TritonCode(kernels.everything_at_once, lambda k: (1,), {"BLOCK": 2048, "maxnreg": 32}, warps=1)
    c = vector_operator(code).contract
    r, *_ = compile_report(c, c.kernels[0], ["sm_80"])
    assert r.spills > 0 and any(f"spills {r.spills} bytes" in m for m in r.remarks)
    assert not r.faults, "it runs, if slowly"


def test_a_compile_error_has_the_authors_line():
    c = vector_operator(TritonCode(kernels.misspelt, lambda k: (1,), block)).contract
    r, *_ = compile_report(c, c.kernels[0], ["sm_90"])
    text = Path(kernels.__file__).read_text().splitlines()
    line = next(i for i, t in enumerate(text, 1) if "v * factor" in t)
    assert "factor is not defined" in r.faults[0] and f"gpu_kernels.py:{line}" in r.faults[0], r.faults


def test_a_parameter_without_a_value_is_named():
    c = vector_operator(TritonCode(kernels.wants_more, lambda k: (1,))).contract
    r, *_ = compile_report(c, c.kernels[0], ["sm_90"])
    assert "'temperature' has no value" in r.faults[0]


@pytest.mark.parametrize("wrong", ["gpu_kernels:nothing", "no_such_module:kernel", "gpu_kernels:triton"])
def test_a_kernel_that_is_not_there(wrong):
    operator = vector_operator(TritonCode(wrong, lambda k: (1,)))
    with pytest.raises(ContractError, match=r"cannot be imported|decorated with triton.jit"):
        bound(operator)([np.zeros(3, F)], [np.zeros(3, F)], {})


def test_a_kernel_may_be_named_where_it_is():
    operator = vector_operator(TritonCode("gpu_kernels:unaligned_block", lambda k: (1,), {"BLOCK": 16}))
    y = np.zeros(9, F)
    bound(operator)([np.arange(9, dtype=F)], [y], {})
    np.testing.assert_array_equal(y, np.arange(9))


@pytest.mark.parametrize("grid", [lambda k: (1, 1 << 16), lambda k: (-1,), lambda k: (k["missing"],), lambda k: ()])
def test_a_grid_that_no_gpu_has(grid):
    operator = vector_operator(TritonCode(kernels.unaligned_block, grid, {"BLOCK": 16}))
    with pytest.raises(ContractError, match="grid"):
        bound(operator)([np.zeros(3, F)], [np.zeros(3, F)], {})
