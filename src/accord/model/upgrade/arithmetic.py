"""Elementwise operators before 7 (broadcasting by attribute, ``consumed_inputs``), Clip, PRelu, Selu and Gemm."""

from __future__ import annotations

import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, has_attribute, rank_vector, rebuild, reshape, scalar_like

__all__: list[str] = []

#: float32's largest value: the default that Clip-6 writes down for "no bound".
_FLOAT_MAX = 3.4028234663852886e38


@expands(
    *("Abs", "Ceil", "Elu", "Exp", "Floor", "HardSigmoid", "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean"),
    *("Min", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Sum", "Tanh"),
    before=6,
)
def drop_consumed_inputs(b: Builder, n: Inference) -> Outputs:
    """``consumed_inputs`` was a hint for an executor's memory and never changed a result."""
    return rebuild(b, n, drop=("consumed_inputs",)) if has_attribute(n, "consumed_inputs") else None


@expands("Selu", before=6)
def selu(b: Builder, n: Inference) -> Outputs:
    """The default constants were rounded to five digits."""
    return rebuild(b, n, drop=("consumed_inputs",), alpha=n.attr("alpha", 1.6732), gamma=n.attr("gamma", 1.0507))


@expands("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", before=7)
def broadcast_by_attribute(b: Builder, n: Inference) -> Outputs:
    """``axis`` named the axis of A where the shape of B begins; without it the last axes match, as today."""
    if not has_attribute(n, "broadcast", "axis", "consumed_inputs"):
        return None
    left, right = required(n, 0), required(n, 1)
    axis = n.attr("axis")
    if n.attr("broadcast", 0) and axis is not None:
        right = _align(b, left, right, axis)
    return [b(n.node.op_type, left, right)]


def _align(b: Builder, a: ir.Value, c: ir.Value, axis: int) -> ir.Value:
    """``c`` with as many trailing axes of size 1 as move its first axis to ``axis`` of ``a``."""
    rank, own = b.fact(a).rank, b.fact(c).rank
    if rank is None or own is None:
        first = b.ints(axis) if axis >= 0 else b("Add", rank_vector(b, a), b.ints(axis))
        return _with_ones(b, c, b("Sub", b("Sub", rank_vector(b, a), first), rank_vector(b, c)))
    # Below 0 where one element stands for all of A, or where axis -1 says that the last axes match.
    trailing = rank - (axis if axis >= 0 else axis + rank) - own
    return b("Unsqueeze", c, b.ints(*range(own, own + trailing))) if trailing > 0 else c


def _with_ones(b: Builder, x: ir.Value, count: ir.Value) -> ir.Value:
    """``x`` with ``count`` more axes of size 1 at the end, ``count`` of shape [1]; none where it is below 0."""
    ones = b("Expand", b.ints(1), b("Max", count, b.ints(0)))
    return reshape(b, x, b("Concat", b("Shape", x), ones, axis=0))


@expands("PRelu", before=7)
def prelu(b: Builder, n: Inference) -> Outputs:
    """A vector of slopes belonged to the channels, axis 1; today it would belong to the last axis."""
    x, slope = required(n, 0), required(n, 1)
    rank, own = b.fact(x).rank, b.fact(slope).rank
    if own == 1 and rank is not None:
        if rank > 2 and b.fact(slope).shape != (1,):
            slope = b("Unsqueeze", slope, b.ints(*range(1, rank - 1)))
    elif own is None or own == 1:
        is_vector = b("Equal", rank_vector(b, slope), b.ints(1))
        slope = _with_ones(b, slope, b("Where", is_vector, b("Sub", rank_vector(b, x), b.ints(2)), b.ints(0)))
    elif not has_attribute(n, "consumed_inputs"):
        return None
    return [b("PRelu", x, slope)]


@expands("Clip", before=11)
def clip(b: Builder, n: Inference) -> Outputs:
    """The bounds were attributes."""
    x = required(n, 0)
    low, high = n.attr("min"), n.attr("max")
    if low is not None and low <= -_FLOAT_MAX and b.fact(x).dtype == ir.DataType.FLOAT:
        low = None
    if high is not None and high >= _FLOAT_MAX and b.fact(x).dtype == ir.DataType.FLOAT:
        high = None
    return [b("Clip", x, *(None if v is None else scalar_like(b, v, x) for v in (low, high)))]


@expands("Gemm", before=7)
def gemm(b: Builder, n: Inference) -> Outputs:
    """``broadcast`` had to allow what is always allowed today."""
    if not has_attribute(n, "broadcast"):
        return None
    return rebuild(b, n, required(n, 0), required(n, 1), given(n, 2), drop=("broadcast",))
