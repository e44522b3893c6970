"""Pools."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from accord.backends.cpu.families.windows import PoolProblem, counted_of, pool_of, pooling_of
from accord.backends.cpu.pools import Pooling
from accord.backends.cuda.code import CudaLaunch, hints_of
from accord.backends.cuda.families.table import arranges, selects
from accord.backends.cuda.windows import WindowKernel, pool_kernel, window_geometry
from accord.backends.images import channels_last_arrangement
from accord.backends.protocol import Arrangement, Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import Reason

__all__ = ["pool", "window_phase"]


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
