"""The library's Gluon texts on NumPy, beside the definitions of their operators."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (190 MB; pip install 'accord[cuda]')")

from gluon_harness import run_gluon
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accord import library
from accord.contract.choose import attributes_of
from accord.contract.dtypes import ONNX_TYPES
from accord.kernels import interpreter
from accord.kernels.architectures import compile_report
from accord.kernels.bound import named_sizes, workspace_bytes
from accord.kernels.launch import launches, memory_of
from accord.kernels.triton import function_of, kernel_arguments, varied
from library_cases_on_gpu import CLOSE, DTYPES, agree, wanted


def run(operator, inputs, attributes, dtype, seed, **changes):
    """What a GPU of architecture 90 computes; its Triton functions are interpreted."""
    contract = operator.contract
    declared = varied(contract.kernel("triton"), "varied", changes)
    types = {v: ONNX_TYPES["int8" if v == "Q" else dtype] for v in contract.semantic.types}
    everything = attributes_of(contract, attributes)
    expected = wanted(operator, inputs, attributes)
    outputs = [np.full(e.shape, 77, e.dtype) for e in expected]
    count = workspace_bytes(contract, declared, named_sizes(contract, inputs, everything, outputs))
    workspace = np.full(count, 0xA5, np.uint8)
    memories = [memory_of(a) for a in (*inputs, *outputs)]
    arrays = {m.address: a for m, a in zip(memories, (*inputs, *outputs), strict=True) if m is not None and a.size}
    arrays[memory_of(workspace).address] = workspace
    calls = launches(
        contract, declared.code, types, 90, memories[: len(inputs)], memories[len(inputs) :], everything,
        memory_of(workspace),
    )  # fmt: skip
    started = []
    for call in calls:
        function = function_of(call.code, contract.semantic.name)
        arguments = kernel_arguments(function.arg_names, call, contract.semantic.name)
        if function.is_gluon():
            module = inspect.getmodule(function.fn)
            plain = {n: arrays[v.address].reshape(-1) if hasattr(v, "address") else v for n, v in arguments.items()}
            run_gluon(function.fn.__name__, inspect.getsource(module), plain, call.grid, seed)
        else:
            interpreter.interpret_elsewhere([(function, arguments, call.grid)], [*inputs, *outputs, workspace], "")
        started.append(function.is_gluon())
    assert any(started), "no text for warp groups was started"
    for out, exact in zip(outputs, expected, strict=True):
        agree(out, exact, CLOSE[dtype], f"{attributes} {[getattr(x, 'shape', None) for x in inputs]}")


@given(
    dtype=st.sampled_from(["float16", "bfloat16"]), images=st.integers(1, 2),
    size=st.tuples(st.integers(3, 9), st.integers(3, 12)), own=st.sampled_from([5, 24, 64, 70]),
    parts=st.sampled_from([(1, 1, 1), (3, 1, 1), (1, 2, 1), (2, 1, 2), (1, 2, 3)]),
    kernel=st.sampled_from([(3, 3), (1, 1), (2, 3)]),
    stride=st.integers(1, 2), padding=st.integers(0, 2), dilation=st.integers(1, 2), masked=st.booleans(),
    biased=st.booleans(), codes=st.booleans(), halves=st.booleans(), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_deformable_convolution(
    dtype, images, size, own, parts, kernel, stride, padding, dilation, masked, biased, codes, halves, seed
):
    """Groups of channels and of offsets in any numbers, as long as both are of whole blocks."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape, scale=1.0: (rng.standard_normal(shape) * scale).astype(DTYPES[dtype])  # noqa: E731
    blocks, groups, alike = parts
    c, m = 64 * blocks * groups * alike, own * groups
    oh, ow = ((n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(size, kernel, strict=True))
    if min(oh, ow) < 1:
        return
    taps = kernel[0] * kernel[1]
    x, weight = draw(images, c, *size), draw(m, c // groups, *kernel, scale=(c // groups * taps) ** -0.5)
    mask = draw(images, alike * taps, oh, ow) if masked else None
    bias = draw(m) if biased else None
    shape = (images, 2 * alike * taps, oh, ow)
    attributes = {
        "stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "offset_groups": alike
    }  # fmt: skip
    if codes:
        offsets = [rng.integers(-128, 128, shape).astype(np.int8), np.array([0.03125], np.float32)]
        operator = library.quantized_deform_conv2d
    else:
        offset = draw(*shape, scale=3)
        offset[0, 0, 0, 0] = 6e4
        offsets, operator = [offset], library.deform_conv2d
    run(operator, [x, weight, *offsets, mask, bias], attributes, dtype, seed, HALVES=halves)


@pytest.mark.parametrize("operator", [library.deform_conv2d, library.quantized_deform_conv2d])
def test_it_compiles(operator):
    """Everything stays in registers, and products run beside what follows them."""
    contract = operator.contract
    types = {v: ONNX_TYPES["int8" if v == "Q" else "float16"] for v in contract.semantic.types}
    sample = {"N": 8, "C": 256, "H": 64, "W": 64, "M": 256, "KH": 3, "KW": 3, "padding": 1}
    report = compile_report(contract, contract.kernel("triton"), ["sm_90"], [sample], types)
    assert [c.entry for c in report][1:] == ["deform_conv2d"]
    assert not [c for c in report if c.faults or c.spills]
