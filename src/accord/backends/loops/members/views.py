"""Movements of data inside a group: which element is meant, and no work. Alone they are in :mod:`.movements`."""

from __future__ import annotations

from collections.abc import Callable

from accord.backends.loops.group import MEMBERS, VIEWS, Group, Member, Term
from accord.backends.loops.space import Run, cut
from accord.backends.loops.table import known
from accord.backends.view import NodeView
from accord.ir.dims import Shape
from accord.ir.reason import Reason
from accord.ir.strides import axis_groups

__all__ = ["expand", "reshape", "transpose"]


def _view(*names: str) -> Callable[[Member], Member]:
    """Register the decorated function as how views become part of a group."""

    def register(function: Member) -> Member:
        for name in names:
            MEMBERS["", name] = function
            VIEWS.add(("", name))
        return function

    return register


@_view("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
def reshape(group: Group, view: NodeView) -> Reason | None:
    """Axes cut and joined."""
    x = group.term(view, 0)
    found = known(view.output(), "the output")
    if isinstance(x, Reason) or isinstance(found, Reason):
        return x if isinstance(x, Reason) else found if isinstance(found, Reason) else None
    axes = _reshaped(x, found[0])
    if axes is None:
        return Reason("it is not known which axes are cut or joined")
    return group.define(view, 0, x.expr, axes)


def _reshaped(x: Term, target: Shape) -> list[Run] | None:
    shape = x.shape
    pairs = axis_groups(shape, target)
    if pairs is None:
        return None
    axes: list[Run] = [()] * len(target)
    for own, others in pairs:
        parts = cut([a for i in own for a in x.axes[i]], [target[i] for i in others])
        if parts is None:
            return None
        for i, run in zip(others, parts, strict=True):
            axes[i] = run
    return axes


@_view("Transpose")
def transpose(group: Group, view: NodeView) -> Reason | None:
    """Axes in another order."""
    x = group.term(view, 0)
    if isinstance(x, Reason):
        return x
    order = view.attr("perm", tuple(range(len(x.axes)))[::-1])
    return group.define(view, 0, x.expr, [x.axes[int(p)] for p in order])


@_view("Expand")
def expand(group: Group, view: NodeView) -> Reason | None:
    """Elements repeated along axes of size 1."""
    x = group.term(view, 0)
    found = known(view.output(), "the output")
    if isinstance(x, Reason) or isinstance(found, Reason):
        return x if isinstance(x, Reason) else found if isinstance(found, Reason) else None
    axes = group.broadcast(found[0], [x])
    return axes if isinstance(axes, Reason) else group.define(view, 0, x.expr, axes)
