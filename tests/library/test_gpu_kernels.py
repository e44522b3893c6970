"""The library's kernels for GPUs beside their definitions: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from accord import library
from accord.contract.choose import attributes_of
from accord.contract.dtypes import ONNX_TYPES
from accord.kernels.architectures import ARCHITECTURES, compile_report
from accord.kernels.bound import bind_kernel, named_sizes, workspace_bytes
from accord.kernels.device import visible
from accord.kernels.triton import OPTIONS, function_of, parameters_of, varied
from library_cases_on_gpu import CALLS, CLOSE, DTYPES, agree, calls, wanted

pytest.importorskip("triton", reason="Triton is not installed (pip install 'accord[cuda]')")
pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'accord[cuda]')")

SEVERAL = [
    (name, k)
    for name in CALLS
    for k in ("triton", "cuda")
    if k == "triton" or name in ("channel_shuffle", "layer_norm")
]


OLDEST, *_, NEWEST = ARCHITECTURES

#: Without a GPU: what the interpreter is slow at, and types whose arithmetic is that of float32.
slow = pytest.mark.slow


def cases():
    for name, kernel in SEVERAL:
        for dtype in CALLS[name][0]:
            quick = visible() or (dtype == CALLS[name][0][0] and not name.startswith("ctc"))
            yield pytest.param(name, kernel, dtype, marks=() if quick else slow)


def types_of(contract, dtype):
    return {v: ONNX_TYPES["int8" if v == "Q" else dtype] for v in contract.semantic.types}


@pytest.mark.parametrize(("name", "kernel", "dtype"), list(cases()))
def test_kernel_agrees_with_the_definition(name, kernel, dtype):
    if kernel == "cuda" and not visible():
        pytest.skip("CUDA C++ runs on a GPU only, and there is none")
    agrees(name, getattr(library, name).contract.kernel(kernel), dtype)


#: What a measurement may prefer.
WAYS = [
    ("layer_norm", {"WALK": 2, "STREAM": True}),
    ("layer_norm", {"WALK": 3, "STAGES": 4, "ROWS": 2, "num_warps": 2}),
    ("rms_norm", {"WALK": 2, "AGAIN": True, "STREAM": True}),
    *[(name, {"AGAIN": again}) for name in ("layer_norm", "rms_norm") for again in (False, True)],
    ("group_norm", {"STREAM": True}),
    ("qkv_attention", {"projection.BLOCK_M": 32, "attention_of_rows.BLOCK_Q": 16}),
    ("resize_bilinear", {"TIMES": 3}),
    *[(name, {"WIDE": True}) for name in ("conv2d", "deform_conv2d", "pixel_shuffle", "pixel_unshuffle")],
    ("deform_conv2d", {"BLOCK_P": 32, "BLOCK_M": 32}),
]


@pytest.mark.parametrize(("name", "changes"), WAYS)
def test_kernel_agrees_when_started_in_another_way(name, changes):
    agrees(name, varied(getattr(library, name).contract.kernel("triton"), "varied", changes), "float16")


MEASURED = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "gpu_ways.py"))["WAYS"]


@pytest.mark.parametrize("name", MEASURED)
def test_ways_that_are_measured_change_what_there_is(name):
    changeable = {"architecture", *OPTIONS}
    for code in getattr(library, name).contract.kernel("triton").code:
        own = str(code.kernel).partition(":")[2]
        constants = [p.name for p in parameters_of(function_of(code, name)) if p.is_constexpr]
        changeable |= {*constants, *(f"{own}.{n}" for n in (*constants, *OPTIONS))}
    assert {n for changes in MEASURED[name].values() for n in changes} <= changeable


def agrees(name, declared, dtype):
    operator = getattr(library, name)
    contract = operator.contract
    types = types_of(contract, dtype)
    bound = bind_kernel(contract, declared, types)
    for inputs, attributes in calls(name, dtype):
        expected = wanted(operator, inputs, attributes)
        outputs = [np.full(e.shape, 77, e.dtype) for e in expected]
        everything = attributes_of(contract, attributes)
        sizes = named_sizes(contract, inputs, everything, outputs)
        if name == "layer_norm" and declared.kind == "cuda" and sizes["D"] > 16384:
            continue
        scratch = workspace_bytes(contract, declared, sizes)
        workspace = np.full(scratch, 0xA5, np.uint8) if scratch else None
        kept = [None if x is None else x.copy() for x in inputs]
        bound(inputs, outputs, everything, workspace)
        for out, exact in zip(outputs, expected, strict=True):
            agree(out, exact, CLOSE[dtype], f"{name} {attributes} {[getattr(x, 'shape', None) for x in inputs]}")
        for x, before in zip(inputs, kept, strict=True):
            assert x is None or x.tobytes() == before.tobytes(), "an input was changed"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kernel"), SEVERAL)
def test_kernel_compiles_for_every_architecture(name, kernel):
    contract = getattr(library, name).contract
    report = compile_report(contract, contract.kernel(kernel))
    assert not [c for c in report if c.faults]


@pytest.mark.parametrize(("name", "kernel"), SEVERAL)
def test_kernel_compiles_for_the_oldest_and_the_newest_architecture(name, kernel):
    """In one type, for one call; the test of all of them is slow."""
    contract = getattr(library, name).contract
    declared, types = contract.kernel(kernel), types_of(contract, CALLS[name][0][0])
    samples = [s for code in declared.code for s in code.samples][:1] or [{}]
    report = compile_report(contract, declared, [OLDEST, NEWEST], samples, types)
    assert {c.architecture for c in report} == {OLDEST, NEWEST}
    assert not [c for c in report if c.faults]


def test_every_type_of_a_case_is_known():
    assert set(DTYPES) >= {t for types, _ in CALLS.values() for t in types}
    assert DTYPES["bfloat16"] is ml_dtypes.bfloat16
