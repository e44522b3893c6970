"""Pools."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from accord.backends.cpu.families.windows import (
    PoolProblem,
    columns_of,
    counted_of,
    pool_of,
    pooling_of,
    unpooled_of,
)
from accord.backends.cpu.pools import Pooling
from accord.backends.cuda.code import CudaLaunch, hints_of
from accord.backends.cuda.families.table import any_strides, arranges, looped, selects
from accord.backends.cuda.windows import WindowKernel, pool_kernel, window_geometry
from accord.backends.images import channels_last_arrangement
from accord.backends.loops.group import Group
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output, pointwise, program_phase
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.expr.lang import FLOATS, Expr, call, const, operand
from accord.expr.primitives import eq, ge, idiv, irem, select
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = ["col2im", "lrn", "max_unpool", "pool", "window_phase"]


@arranges("MaxPool", "AveragePool", "LpPool")
def arrange_pool(view: NodeView) -> Arrangement:
    """Channels-last."""
    return channels_last_arrangement(view)


@selects("MaxPool", "AveragePool", "LpPool", epilogue=True)
def pool(view: NodeView) -> Kernel | Reason:
    """Pools over one to three spatial axes; any strides."""
    p = pool_of(view)
    if isinstance(p, Reason):
        return p
    try:
        made, dims = pool_kernel(
            p.shape[0],
            p.shape[1],
            p.axes,
            (p.dtype, view.access(0)),
            view.output_access(),
            _in_own_type(view, p),
            p.epilogue,
            counted=counted_of(view, p.axes),
            indices=p.indices,
            column_major=bool(view.attr("storage_order", 0)),
        )
    except CompileError as error:
        return Reason(error.message)
    phase = window_phase(made, dims, p.operands, D.product(p.shape))
    return NativeKernel(f"{view.node.op_type} {p.dtype}", (phase,), (0,), flops=p.flops)


def _in_own_type(view: NodeView, p: PoolProblem) -> Pooling:
    """Maxima in the type of the elements, of which twice as many are compared at once as of a wider one."""
    found = pooling_of(view, p.dtype, p.dtype) if p.pooling.join == "max" and p.dtype == "f16" else p.pooling
    return p.pooling if isinstance(found, Reason) else found


def window_phase(
    kernel: WindowKernel,
    dims: Sequence[DimLike],
    operands: tuple[int, ...],
    reach: DimLike,
    places: Sequence[DimLike] = (),
) -> Phase:
    """The phase of a window.

    Args:
        kernel: What is computed.
        dims: Its integer parameters.
        operands: Which of the kernel's operands it gets.
        reach: Elements of its largest operand.
        places: Bytes from the start of the workspace to each table, which stand behind the first operand.
    """
    return Phase(kernel, operands, (*dims, *places, reach), functools.partial(_start, kernel, hints_of(dims)))


def _start(kernel: WindowKernel, hints: tuple[str, ...], sizes: Sequence[int]) -> CudaLaunch:
    count, reach = len(hints), sizes[-1]
    numbers, places = tuple(sizes[:count]), tuple(sizes[count:-1])
    programs, constants = window_geometry(kernel, numbers, reach)
    rest = len(kernel.pointers) - 1 - len(places)
    shifts = (0, *places, *(0,) * rest) if places else ()
    wide = bool(constants["WIDE"])
    return CudaLaunch(numbers, programs, (programs, 1, 1), tuple(constants.items()), hints, wide, shifts=shifts)


@looped("Col2Im")
def col2im(group: Group, view: NodeView) -> Reason | None:
    """Sums of the columns that hold a pixel, which looks them up."""
    found, asked = known(view.tensor(0), "the input"), columns_of(view)
    out = view.output().shape
    if isinstance(found, Reason):
        return found
    if isinstance(asked, Reason):
        return asked
    assert out is not None
    own = view.access(0)
    pixels = [group.axis(d) for d in out]
    taps = [group.axis(a.kernel) for a in asked]
    lookups, inside = [], own.strides[2]
    for axis, pixel, tap in reversed([*zip(asked, pixels[2:], taps, strict=True)]):
        behind = group.index(pixel) + group.size(axis.pad) - group.index(tap) * axis.dilation
        column = idiv(behind, axis.stride)
        column = select(eq(column * axis.stride, behind) & ge(behind, 0), column, -1)
        lookups.append(Lookup(column, inside, axis.out, "skip"))
        inside = inside * axis.out
    block = math.prod(a.kernel for a in asked)
    rows = contiguous(tuple(a.kernel for a in asked))
    access = Access(
        (own.strides[0], own.strides[1] * block, *(0,) * len(taps), *(own.strides[1] * r for r in rows)), own.offset
    )
    value = group.look_up(view, 0, [*pixels, *taps], access, lookups)
    total = group.reduce("add", (value,), taps)[0] if any(taps) else value
    return group.define(view, 0, total, pixels)


@looped("LRN")
def lrn(group: Group, view: NodeView) -> Reason | None:
    """Each element by a power of the mean square over neighbouring channels."""
    found, size = known(view.tensor(0), "the input"), int(view.attr("size"))
    if isinstance(found, Reason):
        return found
    shape, dtype = found
    if dtype not in FLOATS or len(shape) < 3 or size < 1:
        return Reason("only images of floats, and a window of channels")
    own, axes, window = view.access(0), [group.axis(d) for d in shape], group.axis(size)
    channel = group.index(axes[1]) - (size - 1) // 2
    place = Lookup(channel + group.index(window) if window else channel, own.strides[1], shape[1], "skip")
    rest = Access((own.strides[0], 0, *own.strides[2:]), own.offset)
    near = group.look_up(view, 0, axes, rest, [place])
    total = group.reduce("add", (near * near,), [window])[0] if window else near * near
    x = group.look_up(view, 0, axes, own, ())
    alpha, beta, bias = (float(view.attr(n, d)) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    mean = total * const(alpha / size, total.dtype) + const(bias, total.dtype)
    return group.define(view, 0, x / call("pow", mean, const(beta, mean.dtype)), axes)


arranges("MaxUnpool")(any_strides)


@selects("MaxUnpool")
def max_unpool(view: NodeView) -> Kernel | Reason:
    """Zeros, then each element where its index says."""
    asked = unpooled_of(view)
    if isinstance(asked, Reason):
        return asked
    (x, dtype), whole, out = asked
    target, still = view.output_access(), (0,) * len(x)
    fill = pointwise(out, [], [(dtype, target)], [const(0, dtype)], (2,))
    total = D.product(whole)
    number = operand(0, "i64")
    values = [Operand("i64", view.access(1))]
    places: list[Expr] = []
    rest = number
    for size in reversed(whole[1:]):
        values.append(Operand("i64", Access(still, size), memory=False))
        along = operand(len(values) - 1, "i64")
        places.append(irem(rest, along))
        rest = idiv(rest, along)
    places = [rest, *reversed(places)]
    # looking it up in the whole image refuses an index outside
    values.append(Operand(dtype, view.access(0), lookups=(Lookup(number, 0, total),)))
    lookups = tuple(Lookup(p, s, d, "skip") for p, s, d in zip(places, target.strides, out, strict=True))
    stored = Output(operand(len(values) - 1, dtype), Access(still, target.offset), lookups)
    program = LoopProgram(x, frozenset(), tuple(values), (), (stored,))
    return NativeKernel(f"MaxUnpool {dtype}", (fill, program_phase(program, (1, 0), (2,))), (0, 1))
