"""Compare the outputs of a run with expected values, as the conformance runner of the ONNX project does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from accord.backends.reference.tensors import BFLOAT16, EXTENSION_FLOATS, LOW_BIT_INTEGERS, Array, DType

__all__ = ["assert_outputs_match", "assert_same_distribution", "judge"]

#: Two samples of one distribution differ more than this, times sqrt(2 / n), once in 10,000 comparisons.
#: (Kolmogorov and Smirnov's two-sample statistic; sqrt(-ln(p / 2) / 2) for p = 1e-4.)
_KS_LIMIT = 2.225

#: Least relative tolerance by type: two units in the last place. The ONNX runner grants it to bfloat16; float16
#: needs it as well, because cases whose values were computed with sums rounded to float16 differ by as much from
#: a result that is exact but for its last rounding.
_LEAST_RTOL: dict[DType, float] = {BFLOAT16: 2.0**-6, np.dtype(np.float16): 2.0**-9}


def assert_outputs_match(
    expected: Sequence[Any], actual: Sequence[Any], rtol: float = 1e-3, atol: float = 1e-7
) -> None:
    """Raise unless two lists of values agree.

    Tensors must have the same shape and dtype; floating-point elements agree within
    ``atol + rtol * abs(expected)``, NaN with NaN; strings, booleans and integers are compared exactly (integers
    with the same tolerance). Sequences and maps are compared element by element. The rules are those of
    ``onnx.backend.test.runner``, but for the least relative tolerances: 2⁻⁶ for bfloat16 as there, and 2⁻⁹ for
    float16, two units in the last place of either.

    Args:
        expected: The values that are right: arrays, lists, maps, or None for an empty optional.
        actual: The values to judge, in the same order.
        rtol: Relative tolerance.
        atol: Absolute tolerance.

    Raises:
        AssertionError: They differ; the message says at which output, and how.
    """
    if len(expected) != len(actual):
        raise AssertionError(f"{len(actual)} outputs where {len(expected)} are expected")
    for index, (want, have) in enumerate(zip(expected, actual, strict=True)):
        _assert_value(want, have, rtol, atol, f"output {index}")


def _assert_value(want: Any, have: Any, rtol: float, atol: float, where: str) -> None:
    if isinstance(want, (list, tuple)):
        if not isinstance(have, (list, tuple)):
            raise AssertionError(f"{where}: a sequence is expected, found {type(have).__name__}")
        if len(want) != len(have):
            raise AssertionError(f"{where}: a sequence of {len(want)} is expected, found {len(have)}")
        for index, (left, right) in enumerate(zip(want, have, strict=True)):
            _assert_value(left, right, rtol, atol, f"{where}[{index}]")
    elif isinstance(want, dict):
        if not isinstance(have, dict) or set(want) != set(have):
            raise AssertionError(f"{where}: a map with keys {sorted(want)} is expected, found {have!r}")
        for key, value in want.items():
            _assert_value(value, have[key], rtol, atol, f"{where}[{key!r}]")
    elif want is None or have is None:
        if want is not have:
            raise AssertionError(f"{where}: {want!r} is expected, found {have!r}")
    else:
        _assert_tensor(np.asarray(want), np.asarray(have), rtol, atol, where)


def _assert_tensor(want: Array, have: Array, rtol: float, atol: float, where: str) -> None:
    if want.shape != have.shape:
        raise AssertionError(f"{where}: shape {list(want.shape)} is expected, found {list(have.shape)}")
    if want.dtype.kind in "OUST":
        np.testing.assert_array_equal(have.astype(object), want.astype(object), err_msg=where)
        return
    if want.dtype != have.dtype:
        raise AssertionError(f"{where}: dtype {want.dtype} is expected, found {have.dtype}")
    rtol = max(rtol, _LEAST_RTOL.get(want.dtype, 0.0))
    if want.dtype in EXTENSION_FLOATS or want.dtype in LOW_BIT_INTEGERS:
        want, have = want.astype(np.float32), have.astype(np.float32)
    np.testing.assert_allclose(have, want, rtol=rtol, atol=atol, err_msg=where)


def assert_same_distribution(expected: Sequence[Any], actual: Sequence[Any]) -> None:
    """Raise unless two lists of tensors agree in shapes and dtypes, and seem drawn from the same distributions.

    The elements of a tensor count as independent samples of one distribution.

    Args:
        expected: Tensors drawn by whoever is right.
        actual: The tensors to judge, in the same order.

    Raises:
        AssertionError: A shape or dtype differs, or the cumulative distributions by Kolmogorov and Smirnov's
            statistic by more than once in 10,000 comparisons of equal ones.
    """
    if len(expected) != len(actual):
        raise AssertionError(f"{len(actual)} outputs where {len(expected)} are expected")
    for i, (want, have) in enumerate(zip(expected, actual, strict=True)):
        left, right = np.asarray(want), np.asarray(have)
        if (left.shape, left.dtype) != (right.shape, right.dtype):
            raise AssertionError(
                f"output {i}: {left.dtype}{list(left.shape)} is expected, found {right.dtype}{list(right.shape)}"
            )
        if not left.size:
            continue
        a, b = np.sort(left, axis=None).astype(np.float64), np.sort(right, axis=None).astype(np.float64)
        points = np.union1d(a, b)
        gap = np.abs(
            np.searchsorted(a, points, side="right") / a.size - np.searchsorted(b, points, side="right") / b.size
        ).max()
        if gap > _KS_LIMIT * np.sqrt(2 / left.size):
            raise AssertionError(f"output {i}: another distribution (the cumulative ones differ by {gap:.2f})")


def judge(expected: Sequence[Any], actual: Sequence[Any], rtol: float, atol: float, *, random: bool) -> bool:
    """Compare by value, else by distribution where that is allowed.

    Args:
        expected: The values that are right.
        actual: The values to judge.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        random: Whether random operators made them, without a state that both sides share.

    Returns:
        True if the values differ and only their distributions agree.

    Raises:
        AssertionError: They differ.
    """
    try:
        assert_outputs_match(expected, actual, rtol, atol)
    except AssertionError:
        if not random:
            raise
        assert_same_distribution(expected, actual)
        return True
    return False
