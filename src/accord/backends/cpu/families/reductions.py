"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accord.backends.cpu.families.table import known, selects
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.cpu.reduce import reduce_phase
from accord.backends.protocol import Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, Expr, call, cast, const, operand
from accord.ir import dims as D
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = ["global_pool", "reduction"]

#: Operator → (combination, expression before, expression after).
_KINDS = {
    "ReduceSum": ("add", "id", "id"),
    "ReduceMean": ("add", "id", "mean"),
    "ReduceMax": ("max", "id", "id"),
    "ReduceMin": ("min", "id", "id"),
    "ReduceProd": ("mul", "id", "id"),
    "ReduceSumSquare": ("add", "square", "id"),
    "ReduceL1": ("add", "abs", "id"),
    "ReduceL2": ("add", "square", "sqrt"),
    "ReduceLogSum": ("add", "id", "log"),
}


def _accumulator(dtype: str) -> str:
    if dtype in ("f16", "bf16"):
        return "f32"
    return dtype


def _start(combine: str, dtype: str) -> float | int | bool:
    if combine in ("add", "mul"):
        return 0 if combine == "add" else 1
    if dtype == "bool":
        return combine == "min"
    if dtype in FLOATS:
        return -math.inf if combine == "max" else math.inf
    n = int(dtype[1:])
    low, high = (0, 2**n - 1) if dtype[0] == "u" else (-(2 ** (n - 1)), 2 ** (n - 1) - 1)
    return low if combine == "max" else high


def _before(kind: str, x: Expr) -> Expr:
    if kind == "square":
        return call("mul", x, x)
    return call("abs", x) if kind == "abs" else x


def _after(kind: str, total: Expr, count: Expr) -> Expr | None:
    if kind == "id":
        return total
    if kind == "mean":
        return call("div" if total.dtype in FLOATS else "idiv", total, count)
    if total.dtype not in FLOATS:
        return None
    return call(kind, total)


@selects(*_KINDS)
def reduction(view: NodeView) -> Kernel | Reason:
    """The kernel of a Reduce operator."""
    x = known(view.tensor(0), "the input")
    out = known(view.output(), "the output")
    if isinstance(x, Reason):
        return x
    if isinstance(out, Reason):
        return out
    shape, dtype = x
    axes: Sequence[int] | None = view.attr("axes")
    reads = (0,)
    if view.has(1):
        elements = view.tensor(1).elements()
        if elements is None or not D.is_known(elements):
            return Reason("the axes are only known at run time")
        axes = elements
    if not axes:
        if view.attr("noop_with_empty_axes", 0):
            return _unreduced(view, shape, dtype, out[1])
        axes = range(len(shape))
    normal = sorted({view.axis(int(a), len(shape)) for a in axes})
    combine, before, after = _KINDS[view.node.op_type]
    if dtype == "bool":
        if combine not in ("max", "min"):
            return Reason("bool has no arithmetic")
        combine = "or" if combine == "max" else "and"
    acc = _accumulator(dtype)
    final = _after(after, operand(0, acc), operand(1, acc))
    if final is None:
        return Reason(f"{view.node.op_type} of {dtype} has no generated kernel")
    phase = reduce_phase(
        shape,
        normal,
        (dtype, acc, out[1]),
        combine,
        _start({"or": "max", "and": "min"}.get(combine, combine), acc),
        _before(before, cast(operand(0, dtype), acc)),
        cast(final, out[1]),
        (0, 1),
    )
    return NativeKernel(f"reduce {view.node.op_type} {dtype}", (phase,), reads, flops=D.product(shape))


def _unreduced(view: NodeView, shape: D.Shape, dtype: str, out: str) -> Kernel | Reason:
    """No axes: each element is reduced alone."""
    _, before, after = _KINDS[view.node.op_type]
    acc = _accumulator(dtype)
    final = _after(after, _before(before, cast(operand(0, dtype), acc)), const(1, acc))
    if final is None:
        return Reason(f"{view.node.op_type} of {dtype} has no generated kernel")
    access = Access(contiguous(shape))
    phase = pointwise_phase(shape, [(dtype, access)], [(out, access)], [cast(final, out)], (0, 1))
    return NativeKernel(f"pointwise {view.node.op_type} {dtype}", (phase,), (0,), in_place=((0, 0),))


@selects("GlobalAveragePool", "GlobalMaxPool")
def global_pool(view: NodeView) -> Kernel | Reason:
    """A reduction over all spatial axes."""
    x = known(view.tensor(0), "the input")
    if isinstance(x, Reason):
        return x
    shape, dtype = x
    if dtype not in FLOATS or len(shape) < 3:
        return Reason("only floating-point images")
    acc = _accumulator(dtype)
    mean = view.node.op_type == "GlobalAveragePool"
    combine = "add" if mean else "max"
    total = operand(0, acc)
    final = call("div", total, operand(1, acc)) if mean else total
    phase = reduce_phase(
        shape,
        range(2, len(shape)),
        (dtype, acc, dtype),
        combine,
        _start(combine, acc),
        cast(operand(0, dtype), acc),
        cast(final, dtype),
        (0, 1),
    )
    return NativeKernel(f"reduce {view.node.op_type} {dtype}", (phase,), (0,), flops=D.product(shape))
