"""Window functions and the mel scale, element by element."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from accord.backends.waves import cos_turns
from accord.expr.lang import Expr, call, const
from accord.expr.primitives import eq, ge, gt, le, lt, max_, select
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = [
    "WINDOWS",
    "Transform",
    "dft_is_known",
    "dft_of",
    "mel_edge",
    "mel_weight",
    "size_in",
    "stft_is_known",
    "stft_of",
    "window_value",
]

#: Name → coefficients of the cosine terms.
WINDOWS: dict[str, tuple[float, ...]] = {
    "HannWindow": (0.5, 0.5),
    "HammingWindow": (25 / 46, 21 / 46),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


def window_value(view: NodeView, index: Expr, size: Expr) -> Expr:
    """Element ``index`` of a window of ``size``: a sum of cosines over one period, with or without its end; f64."""
    coefficients = WINDOWS[view.node.op_type]
    turns = index / (size if view.attr("periodic", 1) else max_(1.0, size - 1.0))
    terms = [cos_turns(turns * float(k)) * ((-1) ** k * c) for k, c in enumerate(coefficients) if k]
    total = functools.reduce(lambda x, y: x + y, terms, const(coefficients[0], "f64"))
    return select(eq(size, 1.0), 1.0, total)


def mel_edge(index: Expr, bins: Expr, length: Expr, rate: Expr, lower: Expr, upper: Expr) -> Expr:
    """Edge of a filter of the mel scale in bins of the spectrum, from its number and the operator's inputs; f64."""

    def mel(frequency: Expr) -> Expr:
        return call("log", frequency / 700.0 + 1.0) * (2595 / math.log(10))

    low, high = mel(lower), mel(upper)
    at = low + index * (high - low) / (bins + 2.0)
    frequency = (call("pow", const(10.0, "f64"), at / 2595.0) - 1.0) * 700.0
    return call("floor", (length + 1.0) * frequency / rate)


def mel_weight(k: Expr, left: Expr, centre: Expr, right: Expr) -> Expr:
    """An element from the bin of its row and the left, middle and right edge of its column's filter; f64."""
    alone = select(eq(k, centre) & le(centre, left), const(1.0, "f64"), 0.0)
    inside = gt(centre, left) & ge(k, left) & le(k, centre)
    rising = select(inside, (k - left) / (centre - left), alone)
    return select(gt(right, centre) & ge(k, centre) & lt(k, right), (right - k) / (right - centre), rising)


# transforms


def size_in(view: NodeView, index: int) -> DimLike | None:
    """The size that scalar input ``index`` holds; None if it is only known at run time."""
    elements = view.tensor(index).elements()
    return elements[0] if elements is not None and len(elements) == 1 else None


@record
class Transform:
    """What DFT and STFT have in common.

    Attributes:
        view: The node.
        length: Of the transform.
        along: Elements along the input's axis.
        bins: Elements along the output's axis.
        batch: Batch axes.
        x: The input over the batch axes, the transform's axis and the parts.
        out: The output, as ``x``.
        parts: 1 for real input, 2 for complex.
        window: The window, if there is one.
        table_input: An input that is not read otherwise: a table takes its place.
    """

    view: NodeView
    length: DimLike
    along: DimLike
    bins: DimLike
    batch: Shape
    x: Access
    out: Access
    parts: int
    window: Access | None
    table_input: int | None


def dft_is_known(view: NodeView) -> bool:
    """Whether axis and length of a DFT are known."""
    axis = size_in(view, 2) if view.has(2) else -2
    return isinstance(axis, int) and (not view.has(1) or size_in(view, 1) is not None)


def dft_of(view: NodeView) -> Transform | Reason:
    """What a DFT asks for: a transform along one axis, forward or inverse, one- or two-sided."""
    x, out = view.tensor(0).shape, view.output().shape
    if x is None or len(x) < 2:
        return Reason("the rank of the input is not known")
    axis = size_in(view, 2) if view.has(2) else -2
    length = size_in(view, 1) if view.has(1) else 0
    if not isinstance(axis, int) or length is None:
        return Reason("axis or length are only known at run time")
    if out is None or not isinstance(x[-1], int):
        return Reason("it is not known whether the input is complex")
    at = view.axis(axis, len(x))
    onesided, inverse = bool(view.attr("onesided", 0)), bool(view.attr("inverse", 0))
    if not view.has(1):
        length = (x[at] - 1) * 2 if onesided and inverse else x[at]
    if at == len(x) - 1 or (onesided and x[-1] != (2 if inverse else 1)):
        return Reason("a one-sided transform goes from real numbers to complex ones, its inverse back")
    others = [a for a in range(len(x) - 1) if a != at]
    order = [*others, at, len(x) - 1]

    def ordered(access: Access) -> Access:
        return Access(tuple(access.strides[a] for a in order), access.offset)

    free = [i for i in (1, 2) if view.has(i)]
    batch = tuple(x[a] for a in others)
    accesses = ordered(view.access(0)), ordered(view.output_access())
    table = free[0] if free else None
    return Transform(view, length, x[at], out[at], batch, *accesses, x[-1], None, table)


def stft_is_known(view: NodeView) -> bool:
    """Whether step and length of the frames of an STFT are known."""
    return size_in(view, 1) is not None and (not view.has(3) or size_in(view, 3) is not None)


def stft_of(view: NodeView) -> Transform | Reason:
    """What an STFT asks for: transforms of windowed frames; the input is walked with one more axis, the frames."""
    x, out = view.tensor(0).shape, view.output().shape
    step = size_in(view, 1)
    length = size_in(view, 3) if view.has(3) else 0
    if step is None or length is None:
        return Reason("step or length of the frames are only known at run time")
    if x is None or out is None or len(x) != 3 or not isinstance(x[2], int):
        return Reason("the input's rank, or whether it is complex, is not known")
    if view.has(2):
        window = view.tensor(2).shape
        if window is None:
            return Reason("the length of the window is not known")
        length = window[0] if length == 0 or isinstance(window[0], int) else length
    elif not view.has(3):
        length = x[1]
    if view.attr("onesided", 1) and x[2] != 1:
        return Reason("a one-sided transform needs a real signal")
    own = view.access(0)
    batch, along, part = own.strides
    frames = Access((batch, along * step, along, part), own.offset)
    shape = (x[0], out[1])
    window_access = view.access(2) if view.has(2) else None
    return Transform(view, length, length, out[2], shape, frames, view.output_access(), x[2], window_access, 1)
