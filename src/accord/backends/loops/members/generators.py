"""Operators whose elements follow from where they are: triangles, diagonals, ranges, one-hot codes."""

from __future__ import annotations

from accord.backends.loops.group import Group, wide
from accord.backends.loops.groups import member
from accord.backends.loops.table import known
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, Expr, cast, const
from accord.expr.primitives import eq, ge, le, lt, select
from accord.ir.reason import Reason

__all__ = ["eye_like", "one_hot", "range_", "trilu"]


@member("Trilu")
def trilu(group: Group, view: NodeView) -> Reason | None:
    """The upper or lower triangle of matrices, zero elsewhere."""
    x = group.term(view, 0)
    if isinstance(x, Reason):
        return x
    if len(x.axes) < 2:
        return Reason("a tensor without matrices")
    offset: Expr = const(0, "i64")
    if view.has(1):
        k = group.term(view, 1)
        if isinstance(k, Reason) or any(k.axes):
            return k if isinstance(k, Reason) else Reason("k is no single value")
        offset = k.expr
    diagonal = group.index(x.axes[-1]) - group.index(x.axes[-2])
    keep = ge(diagonal, offset) if view.attr("upper", 1) else le(diagonal, offset)
    return group.define(view, 0, select(keep, x.expr, const(0, x.expr.dtype)), x.axes)


@member("EyeLike")
def eye_like(group: Group, view: NodeView) -> Reason | None:
    """Ones on a diagonal."""
    found = known(view.output(), "the output")
    if isinstance(found, Reason):
        return found
    shape, dtype = found
    axes = [group.axis(d) for d in shape]
    diagonal = group.index(axes[1]) - group.index(axes[0])
    one, zero = const(1, wide(dtype)), const(0, wide(dtype))
    return group.define(view, 0, select(eq(diagonal, int(view.attr("k", 0))), one, zero), axes)


@member("Range")
def range_(group: Group, view: NodeView) -> Reason | None:
    """Numbers at equal distances: the start and a multiple of the step."""
    found = known(view.output(), "the output")
    start, step = group.term(view, 0), group.term(view, 2)
    for t in (found, start, step):
        if isinstance(t, Reason):
            return t
    assert not isinstance(found, Reason) and not isinstance(start, Reason) and not isinstance(step, Reason)
    if any(start.axes) or any(step.axes):
        return Reason("start and step are no single values")
    run = group.axis(found[0][0])
    return group.define(view, 0, start.expr + cast(group.index(run), start.expr.dtype) * step.expr, [run])


@member("OneHot")
def one_hot(group: Group, view: NodeView) -> Reason | None:
    """A new axis that is "on" at each index and "off" elsewhere."""
    found = known(view.output(), "the output")
    index = group.term(view, 0)
    off, on = group.element(view, 2, 0), group.element(view, 2, 1)
    for t in (found, index, off, on):
        if isinstance(t, Reason):
            return t
    assert not isinstance(found, Reason) and not isinstance(index, Reason)
    assert not isinstance(off, Reason) and not isinstance(on, Reason)
    shape = found[0]
    axis = view.axis(int(view.attr("axis", -1)), len(shape))
    run = group.axis(shape[axis])
    depth = group.size(shape[axis])
    chosen = index.expr
    if chosen.dtype in FLOATS:
        chosen = cast(chosen, "i64")
    elif chosen.dtype == "u64":
        chosen = select(lt(chosen, (1 << 63) - 1), chosen, const((1 << 63) - 1, "u64"))
    chosen = cast(chosen, "i64")
    chosen = select(lt(chosen, 0), chosen + depth, chosen)
    axes = [*index.axes[:axis], run, *index.axes[axis:]]
    return group.define(view, 0, select(eq(chosen, group.index(run)), on.expr, off.expr), axes)
