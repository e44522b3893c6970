"""Reductions over axes: sums and their kin, extremes and where they are, running sums, global pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accord.backends.loops.group import Group, Term
from accord.backends.loops.groups import member, select_alone
from accord.backends.loops.program import LoopProgram, Operand, Output, pointwise, program_phase
from accord.backends.loops.space import Run
from accord.backends.loops.table import LOOPS
from accord.backends.loops.values import Reduction, Result
from accord.backends.protocol import Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, Expr, call, cast, const, operand
from accord.expr.onnx_quantize import data_range, quantized
from accord.expr.primitives import eq, select
from accord.ir import dims as D
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = [
    "arg_extreme",
    "cumulative",
    "dynamic_quantize",
    "dynamic_quantize_alone",
    "global_pool",
    "mean_of",
    "reduction",
]

#: Elements from which on the range of data is found in parts, and their number.
_LARGE = 65536
_PARTS = 16

#: Operator → (combination, expression before, expression after).
_KINDS = {
    "ReduceL1": ("add", "abs", ""),
    "ReduceL2": ("add", "square", "sqrt"),
    "ReduceLogSum": ("add", "", "log"),
    "ReduceLogSumExp": ("add", "exp", "log"),
    "ReduceMax": ("max", "", ""),
    "ReduceMean": ("add", "", "mean"),
    "ReduceMin": ("min", "", ""),
    "ReduceProd": ("mul", "", ""),
    "ReduceSum": ("add", "", ""),
    "ReduceSumSquare": ("add", "square", ""),
}
_BEFORE: dict[str, Callable[[Expr], Expr]] = {
    "": lambda x: x,
    "abs": lambda x: call("abs", x),
    "exp": lambda x: call("exp", x),
    "square": lambda x: x * x,
}


def mean_of(group: Group, total: Expr, runs: Sequence[Run]) -> Expr:
    """``total`` divided by the number of elements of ``runs``."""
    count = group.size(D.product(a.extent for run in runs for a in run))
    if total.dtype in FLOATS:
        return total / cast(count, total.dtype)
    return call("idiv", total, cast(count, total.dtype))


def _axes(view: NodeView, rank: int) -> list[int] | Reason:
    """Reduced axes of a Reduce operator; none where nothing is reduced."""
    axes: Sequence[int] | None = view.attr("axes")
    if view.has(1):
        elements = view.tensor(1).elements()
        if elements is None or not D.is_known(elements):
            return Reason("the axes are only known at run time")
        axes = elements
    if not axes:
        return [] if view.attr("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({view.axis(int(a), rank) for a in axes})


@member(*_KINDS)
def reduction(group: Group, view: NodeView) -> Reason | None:
    """A Reduce operator."""
    x = group.term(view, 0)
    if isinstance(x, Reason):
        return x
    axes = _axes(view, len(x.axes))
    if isinstance(axes, Reason):
        return axes
    combine, before, after = _KINDS[view.node.op_type]
    value = x.expr
    if value.dtype == "bool":
        if combine not in ("max", "min"):
            return Reason("bool has no arithmetic")
        combine = "or" if combine == "max" else "and"
    if (after in ("log", "sqrt") or before == "exp") and value.dtype not in FLOATS:
        value = cast(value, "f64")
    runs = [x.axes[a] for a in axes]
    result = _reduced(group, value, combine, before, after, runs)
    return group.define(view, 0, result, _left(x, axes, bool(view.attr("keepdims", 1))))


def _reduced(group: Group, x: Expr, combine: str, before: str, after: str, runs: Sequence[Run]) -> Expr:
    """A reduction; of an element alone where there are no axes."""

    def total(kind: str, value: Expr) -> Expr:
        return group.reduce(kind, (value,), runs)[0] if any(runs) else value

    if before == "exp":  # shifted by the maximum, unless that is no number that can be subtracted
        peak = total("max", x)
        shift = select(eq(peak - peak, 0.0), peak, 0.0)
        return call("log", total("add", call("exp", x - shift))) + shift
    result = total(combine, _BEFORE[before](x))
    if after == "mean":
        return mean_of(group, result, runs)
    return call(after, result) if after else result


def _left(x: Term, axes: Sequence[int], keep: bool) -> list[Run]:
    """The axes of a result of row space."""
    if keep:
        return [() if a in axes else run for a, run in enumerate(x.axes)]
    return [run for a, run in enumerate(x.axes) if a not in axes]


@member("ArgMax", "ArgMin")
def arg_extreme(group: Group, view: NodeView) -> Reason | None:
    """Where the first or last extreme element along an axis is."""
    x = group.term(view, 0)
    if isinstance(x, Reason):
        return x
    axis = view.axis(int(view.attr("axis", 0)), len(x.axes))
    place = "last" if view.attr("select_last_index", 0) else "first"
    run = x.axes[axis]
    where: Expr = const(0, "i64")
    if run:
        kind = f"{place}_{view.node.op_type[3:].lower()}"
        where = group.reduce(kind, (x.expr, group.index(run)), [run])[1]
    return group.define(view, 0, where, _left(x, [axis], bool(view.attr("keepdims", 1))))


@member("CumSum", "CumProd")
def cumulative(group: Group, view: NodeView) -> Reason | None:
    """A running sum or product along an axis; that of f32 and narrower is taken in f64."""
    x = group.term(view, 0)
    elements = view.tensor(1).elements()
    if isinstance(x, Reason):
        return x
    if elements is None or not D.is_known(elements) or len(elements) != 1:
        return Reason("the axis is only known at run time")
    axis = view.axis(int(elements[0]), len(x.axes))
    if x.dtype == "bool":
        return Reason("bool has no arithmetic")
    kind = "add" if view.node.op_type == "CumSum" else "mul"
    exclusive = bool(view.attr("exclusive", 0))
    run = x.axes[axis]
    if not run:
        single = const(0 if kind == "add" else 1, x.expr.dtype) if exclusive else x.expr
        return group.define(view, 0, single, x.axes)
    running = ("exclusive" if exclusive else "inclusive") + ("_back" if view.attr("reverse", 0) else "")
    value = cast(x.expr, "f64") if x.expr.dtype in FLOATS else x.expr
    return group.define(view, 0, group.reduce(kind, (value,), [run], running)[0], x.axes)


@member("DynamicQuantizeLinear")
def dynamic_quantize(group: Group, view: NodeView) -> Reason | None:
    """The range of the data and 0, divided into 255 steps."""
    x = group.term(view, 0)
    if isinstance(x, Reason):
        return x
    if x.dtype != "f32":
        return Reason("only f32 is quantised by its range")
    runs = [run for run in x.axes if run]
    value = cast(x.expr, "f32")
    high, low = (group.reduce(kind, (value,), runs)[0] if runs else value for kind in ("max", "min"))
    scale, zero = data_range(low, high)
    results: tuple[tuple[Expr, Sequence[Run]], ...] = (
        (quantized(value / scale, zero, "u8"), x.axes),
        (scale, ()),
        (zero, ()),
    )
    for j, (result, axes) in enumerate(results):
        refused = group.define(view, j, result, axes) if view.node.outputs[j].name else None
        if refused is not None:
            return refused
    return None


@LOOPS.selects("DynamicQuantizeLinear")
def dynamic_quantize_alone(view: NodeView) -> Kernel | Reason:
    """Large data in phases whose tasks threads share: the ranges of parts, the range of all, the codes."""
    whole = select_alone(view)
    shape = view.tensor(0).shape or ()
    size, access = D.known_product(shape), None if isinstance(whole, Reason) else view.access(0)
    known = math.prod(d for d in shape if isinstance(d, int))
    if access is None or (size is not None and size <= _LARGE) or known % _PARTS:
        return whole
    if access.strides != contiguous(shape) or not all(o.name for o in view.node.outputs):
        return whole
    length = D.product(d for d in shape if not isinstance(d, int)) * (known // _PARTS)
    x, *extremes = (operand(i, "f32") for i in range(3))
    kinds = ("max", "min")
    ranges = program_phase(
        LoopProgram(
            (_PARTS, length),
            frozenset({1}),
            (Operand("f32", Access((length, 1), access.offset)), Result(0), Result(1)),
            tuple(Reduction(kind, (x,)) for kind in kinds),
            tuple(Output(e, Access((1, 0), i * _PARTS)) for i, e in enumerate(extremes)),
        ),
        (0,),
        (4, 4),
    )
    of_part, of_all = ([operand(i + k, "f32") for i in range(2)] for k in (0, 2))
    scale, zero = data_range(of_all[1], of_all[0])
    places = [view.output_access(j) for j in (1, 2)]
    joined = program_phase(
        LoopProgram(
            (_PARTS,),
            frozenset({0}),
            (*(Operand("f32", Access((1,), i * _PARTS)) for i in range(2)), Result(0), Result(1)),
            tuple(Reduction(kind, (e,)) for kind, e in zip(kinds, of_part, strict=True)),
            tuple(Output(e, Access((0,), p.offset)) for e, p in zip((scale, zero), places, strict=True)),
        ),
        (4, 4),
        (2, 3),
    )
    still = [(t, Access((0,) * len(shape), p.offset)) for t, p in zip(("f32", "u8"), places, strict=True)]
    code = quantized(x / operand(1, "f32"), operand(2, "u8"), "u8")
    codes = pointwise(shape, [("f32", access), *still], [("u8", view.output_access(0))], [code], (0, 2, 3, 1))
    return NativeKernel(
        "dynamic quantize u8", (ranges, joined, codes), (0,), workspace=8 * _PARTS, flops=3 * D.product(shape)
    )


@member("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(group: Group, view: NodeView) -> Reason | None:
    """A reduction over all spatial axes."""
    x = group.term(view, 0)
    if isinstance(x, Reason):
        return x
    if x.dtype not in FLOATS or len(x.axes) < 3:
        return Reason("only floating-point images")
    axes = range(2, len(x.axes))
    runs = [x.axes[a] for a in axes]
    op = view.node.op_type
    if op == "GlobalLpPool":
        result = _p_norm(group, x.expr, float(view.attr("p", 2)), runs)
    else:
        result = _reduced(
            group, x.expr, "max" if op == "GlobalMaxPool" else "add", "", "" if op == "GlobalMaxPool" else "mean", runs
        )
    return group.define(view, 0, result, _left(x, axes, True))


def _p_norm(group: Group, x: Expr, p: float, runs: Sequence[Run]) -> Expr:
    if p == 1:
        return _reduced(group, x, "add", "abs", "", runs)
    if p == 2:
        return _reduced(group, x, "add", "square", "sqrt", runs)
    power = call("pow", call("abs", x), const(p, x.dtype))
    return call("pow", _reduced(group, power, "add", "", "", runs), const(1 / p, x.dtype))
