"""Whether outputs are what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from accord.contract.contract import Contract, NanPolicy, Tolerance
from accord.contract.registry import TOLERANCE
from accord.workbench.buffers import FILLS, dtype_named, info, is_float, unit
from accord.workbench.cases import Case, dtype_of
from accord.workbench.oracle import Expected

__all__ = ["Mismatch", "compare", "same_bits", "tolerance_of"]

Array: TypeAlias = "np.ndarray[Any, Any]"

_INFINITE = ("inf", "masked")
#: A result is called imprecise and not wrong if fewer elements than this share are wrong (or its type is coarse), and
#: most of those by less than this share of their value.
_FEW, _LITTLE = 0.5, 0.05
#: More elements than this are not equal by chance.
_SEVERAL = 3


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An output that is not what it should be.

    Attributes:
        kind: "type", "shape", "nan" (NaN where a number should be, or the reverse), "unwritten", "constant" (all
            elements equal where they should not be), "value".
        output: Its name.
        expected: For people.
        found: For people.
        close: Few elements are wrong, and those by little.
    """

    kind: str
    output: str
    expected: str
    found: str
    close: bool = False


def tolerance_of(contract: Contract, dtype: str) -> Tolerance:
    """Declared for a dtype; integers are exact."""
    return contract.semantic.tolerance.get(dtype, TOLERANCE.get(dtype, Tolerance(0.0, 0.0)))


def same_bits(a: Array | None, b: Array | None) -> bool:
    """Whether two arrays are equal, bit for bit."""
    return a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def compare(
    contract: Contract, case: Case, outputs: Sequence[Array | None], expected: Sequence[Expected]
) -> list[Mismatch]:
    """Each output that is not what it should be.

    Args:
        contract: Of the operator.
        case: The call.
        outputs: What the kernel gave.
        expected: What it should be.
    """
    found = []
    for p, a, e in zip(contract.semantic.outputs, outputs, expected, strict=False):
        dtype = dtype_of(p, case)
        if a is None:
            continue
        if a.dtype != dtype_named(dtype):
            found.append(Mismatch("type", p.name, dtype, a.dtype.name))
        elif a.shape != e.own.shape:
            found.append(Mismatch("shape", p.name, str(list(e.own.shape)), str(list(a.shape))))
        elif a.size:
            mismatch = _values(contract, case, p.name, a, e)
            if mismatch is not None:
                found.append(mismatch)
    return found


def _values(contract: Contract, case: Case, name: str, a: Array, e: Expected) -> Mismatch | None:
    if e.slack is None:
        wrong = a != e.own
        for other in e.choices:
            wrong &= a != other
        return _mismatch("value", name, a, e.own, wrong, None, case) if wrong.any() else None
    tolerance = tolerance_of(contract, a.dtype.name)
    undefined = _undefined(contract, case, e.value)
    actual = a.astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = e.value.astype(a.dtype).astype(np.float64)
    undefined |= np.isnan(rounded) & ~np.isnan(e.value)  # past the largest number of a type without infinity
    lost = (np.isnan(actual) != np.isnan(rounded)) & ~undefined
    if lost.any():
        return _mismatch("nan", name, a, rounded, lost, None, case)
    with np.errstate(all="ignore"):
        exact = not (tolerance.rtol or tolerance.atol)
        spacing = np.abs(np.spacing(np.abs(e.value).astype(a.dtype)).astype(np.float64)) if not exact else 0.0
        # numbers below the normal ones may be flushed
        spacing = spacing if exact else spacing + float(info(a.dtype.name).smallest_normal)
        allowed = tolerance.atol + tolerance.rtol * np.abs(e.value) + (0.0 if exact else e.slack) + spacing
        error = np.abs(actual - (rounded if exact else e.value))
        far = ~(error <= allowed)
        big = float(info(a.dtype.name).max)
        over = np.abs(e.value) > 0.9 * big
        near = (np.sign(actual) == np.sign(e.value)) & (np.abs(actual) >= 0.9 * big)
        far = np.where(over | np.isinf(rounded), ~near & far, far)
        wrong = far & ~np.isnan(rounded) & ~undefined
        ratio = np.where(wrong, error / allowed, 0.0)
        little = error < _LITTLE * np.maximum(np.abs(e.value), _typical(e.value))
        coarse = unit(a.dtype.name) >= unit("float16")
        close = bool(wrong.any() and (coarse or wrong.mean() < _FEW) and little[wrong].mean() > _FEW)
        same = wrong.any() and _constant(actual) and not _constant(e.value)
    kind = "constant" if same else "value"
    return _mismatch(kind, name, a, e.value, wrong, ratio, case, close=close) if wrong.any() else None


def _constant(x: Array) -> bool:
    return x.size > _SEVERAL and bool((x == x.reshape(-1)[0]).all())


def _undefined(contract: Contract, case: Case, expected: Array) -> Array:
    """Where the reference is NaN though no NaN went in: over nothing, or of infinities."""
    if case.values == "nan" and contract.semantic.nan is not NanPolicy.UNDEFINED:
        return np.zeros(expected.shape, bool)
    empty = 0 in case.sizes.values() or 0 in case.lead or any(0 in s for s in case.shapes.values())
    # infinity times nothing, or less infinity: what is left of it depends on the order of the operations
    return ~np.isfinite(expected) if empty or case.values in _INFINITE else np.zeros(expected.shape, bool)


def _typical(x: Array) -> float:
    finite = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0


def _mismatch(
    kind: str,
    name: str,
    a: Array,
    expected: Array,
    wrong: Array,
    ratio: Array | None,
    case: Case,
    *,
    close: bool = False,
) -> Mismatch:
    worst = int(np.argmax(ratio if ratio is not None and np.isfinite(ratio).all() else wrong))
    index = tuple(map(int, np.unravel_index(worst, wrong.shape)))
    bits = np.frombuffer(a.tobytes(), np.uint8).reshape(a.size, a.dtype.itemsize)
    poison = (bits == FILLS[case.fill]).all(-1).reshape(wrong.shape)
    if a.dtype.itemsize > 1 and (poison & wrong).any():
        kind = "unwritten"
        worst = int(np.argmax(poison & wrong))
        index = tuple(map(int, np.unravel_index(worst, wrong.shape)))
    at = f"{name}{list(index)}" if index else name
    return Mismatch(
        kind,
        name,
        f"{at} = {_number(expected[index])}",
        f"{_number(a[index])}" + (f" ({int(wrong.sum())} of {wrong.size} elements)" if wrong.size > 1 else ""),
        close,
    )


def _number(x: Any) -> str:
    return f"{float(x):.7g}" if is_float(x.dtype) else str(x)
