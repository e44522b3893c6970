"""Every element type that a schema allows: it is accepted, and floats are rounded once, from float64's result."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from reference_harness import run

from accord.backends.reference.control import CONTROL
from accord.backends.reference.kernels import ReferenceKernel
from accord.backends.reference.registry import schema_of
from accord.backends.reference.tensors import is_float, narrow, numpy_dtype
from accord.cli.suites import is_random, load_suite

_DTYPES = {
    f"tensor({name.lower()})": numpy_dtype(value)
    for name, value in TensorProto.DataType.items()
    if value not in (TensorProto.UNDEFINED, TensorProto.STRING)
}
#: Their attributes or bytes fix what the input may hold.
_FIXED = {"Cast", "CastLike", "BitCast", "ImageDecoder"}
#: The type decides on more than the last rounding: where probabilities are rounded, what the precision of a transform
#: is, which side of a threshold is reached.
_STEPWISE = {"Attention", "DFT", "TreeEnsemble"}


def _cases() -> dict[str, list[tuple[onnx.NodeProto, int, list[Any]]]]:
    """Nodes of the conformance cases of one node, with their versions and inputs, by operator."""
    found = defaultdict(list)
    for case in load_suite("node", "^(?!.*_expanded)"):
        model = case.model()
        node = model.graph.node[0]
        if len(model.graph.node) > 1 or node.op_type in _FIXED or (node.domain, node.op_type) in CONTROL:
            continue
        inputs, _ = next(iter(case.data(model)))
        feeds = dict(zip([value.name for value in model.graph.input], inputs, strict=False))
        version = {o.domain: o.version for o in model.opset_import}[node.domain]
        if not is_random(model):
            found[node.op_type].append((node, version, [feeds.get(name) for name in node.input]))
    return found


_CASES = _cases()


def _converted(value: Any, dtype: np.dtype[Any]) -> Any:
    """The tensor in another type; of numbers that the type lacks, ones near by."""
    wide = value.astype(np.float64)
    if not is_float(dtype) and dtype.kind != "c":
        wide = np.clip(np.nan_to_num(wide), -100, 100)
    if dtype.kind == "u" or "uint" in str(dtype):
        wide = np.abs(wide)
    with np.errstate(all="ignore"):
        return wide != 0 if dtype.kind == "b" else wide.astype(dtype)


@pytest.mark.parametrize("op", sorted(_CASES))
def test_types(op: str) -> None:
    for node, version, values in _CASES[op]:
        schema: Any = schema_of(node.domain, op, version)
        allowed = {c.type_param_str: [t for t in c.allowed_type_strs if t in _DTYPES] for c in schema.type_constraints}
        formals = [schema.inputs[min(i, len(schema.inputs) - 1)].type_str for i in range(len(values))]
        for variable, types in allowed.items():
            places = [
                i
                for i, (name, value) in enumerate(zip(formals, values, strict=True))
                if name == variable and isinstance(value, np.ndarray) and value.dtype.kind != "O"
            ]
            for dtype in [_DTYPES[t] for t in types] if places else []:
                inputs = [_converted(v, dtype) if i in places else v for i, v in enumerate(values)]
                results = ReferenceKernel(node, version).run(inputs)
                if is_float(dtype) and "tensor(double)" in types and op not in _STEPWISE:
                    wide = [v.astype(np.float64) if i in places else v for i, v in enumerate(inputs)]
                    _assert_rounded(results, ReferenceKernel(node, version).run(wide), f"{node.name or op} {dtype}")


def _assert_rounded(results: Any, wide: Any, where: str) -> None:
    for have, want in zip(results, wide, strict=True):
        if not isinstance(have, np.ndarray) or have.dtype.kind == "O":
            continue
        assert have.shape == want.shape, where
        if not is_float(have.dtype):
            np.testing.assert_array_equal(have, want, err_msg=where)
            continue
        last = float(ml_dtypes.finfo(have.dtype).eps)
        with np.errstate(all="ignore"):
            rounded = narrow(want, have.dtype).astype(np.float64)
        np.testing.assert_allclose(have.astype(np.float64), rounded, rtol=2 * last, atol=1e-30, err_msg=where)


# --- one rounding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "to", "bits"),
    [
        (np.float64, TensorProto.FLOAT16, 11),
        (np.float64, TensorProto.BFLOAT16, 8),
        (np.float64, TensorProto.FLOAT8E5M2, 3),
        (np.int64, TensorProto.BFLOAT16, 8),
    ],
)
def test_cast_rounds_once(source: Any, to: int, bits: int) -> None:
    # Just beside the middle of two neighbours, closer than float32 can tell from the middle itself.
    high = np.array([2.0**13, -(2.0**13)])
    gap = high * 2.0 ** (1 - bits)
    middle = high + gap / 2
    tiny = np.array([2.0**-30, -(2.0**-30)])
    scale = 2.0**30 if source is np.int64 else 1.0
    for offset, want in ((tiny, high + gap), (-tiny, high), (0 * tiny, high)):
        got = run("Cast", [((middle + offset) * scale).astype(source)], to=to).astype(np.float64)
        assert got.tolist() == (want * scale).tolist()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_narrowing_agrees_with_exact_neighbours(dtype: Any) -> None:
    dtype = np.dtype(dtype)
    x = np.random.default_rng(0).standard_normal(2000) * 2.0 ** np.arange(2000).clip(0, 12)
    got = narrow(x, dtype).astype(np.float64)
    # No other value of the type is nearer.
    every = np.arange(2**16 if dtype.itemsize == 2 else 2**8, dtype=np.uint16).astype(f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):  # some patterns are signalling NaNs
        values = every.astype(np.float64)
    finite = values[np.isfinite(values)]
    for value, found in zip(x, got, strict=True):
        if np.isfinite(found):
            assert abs(found - value) == np.abs(finite - value).min()
    special = np.array([np.nan, np.inf, -np.inf, -0.0])
    kept = narrow(special, dtype).astype(np.float64)
    assert np.isnan(kept[0])
    assert np.signbit(kept[3])


# --- types that few operators share --------------------------------------------------------------------------


def test_complex_numbers_are_resampled() -> None:
    x = np.array([[[[1 + 2j, 3 - 4j]]]], np.complex64)
    resized = run("Resize", [x, None, None, np.array([1, 1, 1, 4])], mode="linear")
    assert resized.dtype == np.complex64
    np.testing.assert_allclose(resized[0, 0, 0], [1 + 2j, 1.5 + 0.5j, 2.5 - 2.5j, 3 - 4j])
    grid = np.array([[[[0, 0]]]], np.float32)
    np.testing.assert_allclose(run("GridSample", [x, grid]).item(), 2 - 1j)


def test_an_integer_mask_is_added_to_the_scores() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 3, 4)).astype(np.float32) for _ in range(3))
    mask = np.array([[0, -1, 2]] * 3, np.int32)
    want = run("Attention", [q, k, v, mask.astype(np.float32)], opset=24)
    np.testing.assert_array_equal(run("Attention", [q, k, v, mask], opset=24), want)


def test_bilinear_is_what_the_first_upsample_calls_linear() -> None:
    x = np.array([[[[1, 2]]]], np.float32)
    got = run("Upsample", [x], opset=1, mode="bilinear", height_scale=1.0, width_scale=2.0)
    assert got.tolist() == [[[[1, 1.5, 2, 2]]]]
