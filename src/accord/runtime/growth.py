"""Growth: how large the result of a step is whose size only its inputs' content tells.

A system that overcommits memory grants any size and kills the process once the memory is written to. So the size is
computed, and refused, before a kernel runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from accord.errors import ExecutionError
from accord.model.limits import physical_memory

__all__ = ["HOST_SCRATCH", "refuse_growth"]

#: Bytes for each element of a result that a kernel in Python takes while it computes: it works in a wider dtype, and
#: copies now and then.
HOST_SCRATCH = 16


def refuse_growth(op: str, arguments: Sequence[Any]) -> None:
    """Check the size of a result before it is computed.

    Args:
        op: The operator; only those that can make much of little are looked at.
        arguments: Its inputs.

    Raises:
        ExecutionError: the result does not fit into memory.
    """
    rule = _RESULT_SIZE.get(op)
    if rule is None:
        return
    try:
        count = rule(*arguments)
    except (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError):  # the kernel's error says more
        return
    if count * HOST_SCRATCH > physical_memory():
        raise ExecutionError(
            "the result needs more memory than there is",
            expected=f"at most {physical_memory():,} bytes",
            found=f"{count:,} elements",
            remedy="Check the values that the size is computed from.",
        )


def _product(sizes: Any) -> int:
    return math.prod(int(s) for s in np.asarray(sizes).reshape(-1))


def _expand(x: Any, shape: Any) -> int:
    given, wanted = np.shape(x)[::-1], [int(s) for s in np.asarray(shape).reshape(-1)][::-1]
    pairs = (
        (given[i] if i < len(given) else 1, wanted[i] if i < len(wanted) else 1)
        for i in range(max(len(given), len(wanted)))
    )
    return math.prod(max(a, b) for a, b in pairs)


def _range(start: Any, limit: Any, delta: Any) -> int:
    first, last, step = (np.asarray(v).reshape(()).item() for v in (start, limit, delta))
    return max(0, math.ceil(float((last - first) / step)))


def _resize(x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> int:
    given: Any = sizes if sizes is not None and np.size(sizes) else scales
    factors = [float(v) for v in np.asarray(given).reshape(-1)]
    if given is sizes and len(factors) == np.ndim(x):
        return _product(sizes)
    if given is sizes:  # of some axes only
        return int(np.size(x) * math.prod(max(f, 1.0) for f in factors))
    return int(np.size(x) * math.prod(factors))


def _pad(x: Any, pads: Any, value: Any = None, axes: Any = None) -> int:
    added = [int(p) for p in np.asarray(pads).reshape(-1)]
    half, shape = len(added) // 2, list(np.shape(x))
    where = range(len(shape)) if axes is None else [int(a) for a in np.asarray(axes).reshape(-1)]
    for i, axis in zip(range(half), where, strict=False):
        shape[axis] += added[i] + added[half + i]
    return math.prod(max(s, 0) for s in shape)


def _dft(x: Any, length: Any = None, axis: Any = None) -> int:
    return int(np.size(x)) * (1 if length is None else int(np.asarray(length).reshape(())))


#: Number of elements of the result, from the inputs.
_RESULT_SIZE: Mapping[str, Callable[..., int]] = {
    "Expand": _expand,
    "Tile": lambda x, repeats: np.size(x) * _product(repeats),
    "ConstantOfShape": _product,
    "Range": _range,
    "OneHot": lambda indices, depth, values: np.size(indices) * _product(depth),
    "Resize": _resize,
    "Pad": _pad,
    "MaxUnpool": lambda x, indices, shape=None: _product(shape),
    "Col2Im": lambda x, image, block: np.size(x) * _product(image),
    "CenterCropPad": lambda x, shape: np.size(x) * _product(shape),
    "AffineGrid": lambda theta, size: _product(size) * 3,
    "DFT": _dft,
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), _product),
    "MelWeightMatrix": lambda bins, length, *rest: _product(bins) * (_product(length) // 2 + 1),
}
