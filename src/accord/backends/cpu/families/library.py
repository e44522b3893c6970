"""Operators of domain ``accord`` whose kernels are no compositions: sparse products, CTC."""

from __future__ import annotations

import functools

from accord.backends.cpu.blocksparse import BlockSparseCode, block_launch, block_tile
from accord.backends.cpu.ctc import CtcCode, ctc_launch, ctc_workspace
from accord.backends.cpu.families.table import selects
from accord.backends.loops.table import known
from accord.backends.protocol import Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS
from accord.ir import dims as D
from accord.ir.reason import Reason

__all__ = ["ctc_forward", "sparse_matmul"]

DOMAIN = "accord"


@selects("SparseMatMul", "BlockSparseMatMul", domain=DOMAIN)
def sparse_matmul(view: NodeView) -> Kernel | Reason:
    """CSR is a matrix of blocks of one element."""
    found = known(view.tensor(0), "the elements")
    starts, dense, out = view.tensor(2).shape, view.tensor(3).shape, view.output().shape
    if isinstance(found, Reason):
        return found
    shape, dtype = found
    if starts is None or dense is None or out is None:
        return Reason("a rank is only known at run time")
    high, across = shape[1:] if len(shape) == 3 else (1, 1)
    if not isinstance(high, int) or not isinstance(across, int):
        return Reason("the size of blocks is only known at run time")
    code = BlockSparseCode(dtype, high, *block_tile(dtype, high, dense[1]), across == 1)
    dims = (dense[1], dense[0], across, shape[0], starts[0] - 1, out[0])
    phase = Phase(code, (0, 1, 2, 3, 4), dims, functools.partial(block_launch, code))
    flops = 2 * D.product((*shape, dense[1]))
    return NativeKernel(f"block sparse {high}x{across} {dtype}", (phase,), (0, 1, 2, 3), flops=flops)


@selects("CTCForward", domain=DOMAIN)
def ctc_forward(view: NodeView) -> Kernel | Reason:
    """A task is one entry of the batch."""
    found = known(view.tensor(0), "the log-probabilities")
    targets = view.tensor(1).shape
    if isinstance(found, Reason):
        return found
    shape, dtype = found
    if targets is None or dtype not in FLOATS:
        return Reason("only floats, and targets of a known rank")
    code = CtcCode(dtype)
    phase = Phase(code, (0, 1, 2, 3, 4, 5), (*shape, targets[1], int(view.attr("blank", 0))), ctc_launch)
    return NativeKernel(f"CTC forward {dtype}", (phase,), (0, 1, 2, 3), workspace=ctc_workspace(targets[1]))
