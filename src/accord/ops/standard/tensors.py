"""Selection by a condition, normalisation by the batch's own statistics, causal convolution, values that are there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.facts import SequenceFact, TensorFact
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, activate, cast, dims, flat, half, size, wants

__all__ = [
    "batch_normalization",
    "causal_conv_with_state",
    "compress",
    "optional_get_element",
    "optional_has_element",
]

_LAST = (1 << 63) - 1


@expands("Compress")
def compress(b: Builder, n: Inference) -> Outputs:
    """The positions where the condition holds, then a gather."""
    x, condition = required(n, 0), required(n, 1)
    axis = n.attr("axis")
    if axis is None and b.fact(x).rank is None:
        return None
    positions = b("Reshape", b("NonZero", condition), b.ints(-1))
    return [b("Gather", flat(b, x), positions, axis=0) if axis is None else b("Gather", x, positions, axis=axis)]


@expands("BatchNormalization")
def batch_normalization(b: Builder, n: Inference) -> Outputs:
    """In training: normalisation by the batch's mean and variance, which then update the running ones."""
    x = required(n, 0)
    rank, dtype = b.fact(x).rank, b.fact(x).dtype
    if not n.attr("training_mode", 0) or rank is None or rank < 2 or dtype is None:
        return None
    axes = b.ints(0, *range(2, rank))
    wide = cast(b, x, ir.DataType.FLOAT) if half(dtype) else x

    def spread(v: ir.Value) -> ir.Value:
        """One value a channel along the input's axes."""
        single = cast(b, v, b.fact(wide).dtype or dtype)
        return single if rank == 2 else b("Unsqueeze", single, b.ints(*range(1, rank - 1)))

    mean = b("ReduceMean", wide, axes)
    centred = b("Sub", wide, mean)
    variance = b("ReduceMean", b("Mul", centred, centred), axes)
    root = b("Sqrt", b("Add", variance, b.scalar(float(n.attr("epsilon", 1e-5)), variance)))
    normal = b("Div", centred, root)
    y = cast(b, b("Add", b("Mul", normal, spread(required(n, 1))), spread(required(n, 2))), dtype)
    momentum = float(n.attr("momentum", 0.9))
    running: list[ir.Value | None] = []
    for i, now in ((3, mean), (4, variance)):
        old = required(n, i)
        kind = b.fact(old).dtype
        if kind is None:
            return None
        single = cast(b, b("Reshape", now, b.ints(-1)), kind)
        kept, added = b.scalar(momentum, old), b.scalar(1 - momentum, old)
        running.append(b("Add", b("Mul", old, kept), b("Mul", single, added)) if wants(n, i - 2) else None)
    return [y, *running]


@expands("CausalConvWithState")
def causal_conv_with_state(b: Builder, n: Inference) -> Outputs:
    """A depthwise convolution over the last inputs of the call before and the new ones."""
    weight = n.tensor(1).shape
    if weight is None or len(weight) != 3 or not isinstance(weight[0], int) or not isinstance(weight[2], int):
        return None
    channels, kernel = weight[0], weight[2]
    x, past = required(n, 0), given(n, 3)
    if past is None:
        past = b("Expand", b.scalar(0.0, x), dims(b, size(b, x, 0), channels, kernel - 1))
    joined = b("Concat", past, x, axis=2)
    y = b("Conv", joined, required(n, 1), given(n, 2), group=channels, kernel_shape=[kernel])
    activated = activate(b, y, n.attr("activation", "none"))
    if activated is None:
        return None
    present = None
    if wants(n, 1):
        begin = b("Sub", size(b, joined, 2), b.ints(kernel - 1))
        present = b("Slice", joined, begin, b.ints(_LAST), b.ints(2))
    return [activated, present]


@expands("OptionalHasElement")
def optional_has_element(b: Builder, n: Inference) -> Outputs:
    """What is no optional is there."""
    if not n.has(0):
        return [b.const(np.array(False))]
    return [b.const(np.array(True))] if isinstance(n.inputs[0], (TensorFact, SequenceFact)) else None


@expands("OptionalGetElement")
def optional_get_element(b: Builder, n: Inference) -> Outputs:
    """What is no optional is its own element."""
    return [b("Identity", required(n, 0))] if isinstance(n.inputs[0], (TensorFact, SequenceFact)) else None
