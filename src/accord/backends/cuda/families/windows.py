"""Pools."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from accord.backends.cpu.families.windows import counted_of, pooling_of
from accord.backends.cpu.images import accumulator
from accord.backends.cuda.code import CudaLaunch, hints_of
from accord.backends.cuda.families.table import arranges, selects
from accord.backends.cuda.windows import WindowKernel, pool_kernel, window_geometry
from accord.backends.images import channels_last_arrangement, window_axes
from accord.backends.loops.table import known, output_operands
from accord.backends.protocol import Arrangement, Kernel, NativeKernel, Phase
from accord.backends.root import epilogue_of
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
    found = known(view.tensor(0), "the input")
    if isinstance(found, Reason):
        return found
    x, dtype = found
    out = view.output().shape
    kernel = [int(k) for k in view.attr("kernel_shape")]
    rank = len(kernel)
    if out is None or not 1 <= rank <= 3 or dtype == "bool":
        return Reason("only numbers over one to three spatial axes")
    axes = window_axes(view, x[2:], out[2:], kernel)
    pooling = pooling_of(view, accumulator(dtype), dtype)
    if isinstance(pooling, Reason):
        return pooling
    epilogue = epilogue_of(view)
    numbers = output_operands(view.node, 1 + len(epilogue.extras))
    wanted = len(numbers) > 1 and numbers[1] >= 0
    if numbers[0] < 0:
        return Reason("only the indices are wanted")
    try:
        made, dims = pool_kernel(
            x[0],
            x[1],
            axes,
            (dtype, view.access(0)),
            view.output_access(),
            pooling,
            epilogue,
            counted=counted_of(view, axes),
            indices=view.output_access(1) if wanted else None,
            column_major=bool(view.attr("storage_order", 0)),
        )
    except CompileError as error:
        return Reason(error.message)
    operands = tuple(range(1 + len(epilogue.extras) + 1 + wanted))
    phase = window_phase(made, dims, operands, D.product(x))
    return NativeKernel(f"{view.node.op_type} {dtype}", (phase,), (0,), flops=D.product((*out, *kernel)))


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
