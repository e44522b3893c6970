"""RNN, GRU and LSTM: one product for the inputs of all steps, then the time loop."""

from __future__ import annotations

import functools

from accord.backends.cuda.code import hints_of
from accord.backends.cuda.contraction import Factor, contraction_kernel
from accord.backends.cuda.families.contractions import whole_phase
from accord.backends.cuda.families.table import any_strides, arranges, selects
from accord.backends.cuda.recurrence import STRIDES, RecurrenceKernel, recurrence_launch
from accord.backends.gates import CELLS, activations_of, hidden_of
from accord.backends.loops.table import known, output_operands
from accord.backends.protocol import Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.expr.lang import FLOATS, bits, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = ["recurrent"]

_INPUTS = {"r": 2, "bias": 3, "lengths": 4, "h0": 5, "c0": 6, "peepholes": 7}
_OUTPUTS = ("y", "y_h", "y_c")

arranges(*CELLS)(any_strides)


@selects(*CELLS)
def recurrent(view: NodeView) -> Kernel | Reason:
    """The kernel of a recurrent layer; an entry's states are those of one program."""
    kind, op = CELLS[view.node.op_type], view.node.op_type
    reads = [i for i in range(8) if view.has(i)]
    found = {}
    for i in reads:
        one = known(view.tensor(i), f"input {i}")
        if isinstance(one, Reason):
            return one
        found[i] = one
    shape, stored = found[0]
    if stored not in FLOATS:
        return Reason("only floating-point layers")
    directions = 2 if view.attr("direction", "forward") == "bidirectional" else 1
    made = activations_of(view, kind, directions)
    if made is None:
        return Reason("an activation is missing or unknown")
    dtype = "f64" if stored == "f64" else "f32"
    flag, size = bool(kind.flag and view.attr(kind.flag, 0)), len(kind.defaults)
    cells = [
        kind.make(dtype, made[d * size : (d + 1) * size], view.has(kind.constants), flag) for d in range(directions)
    ]
    hidden, batch_first = hidden_of(view, kind.gates), bool(view.attr("layout", 0))
    batch, steps = (shape[0], shape[1]) if batch_first else (shape[1], shape[0])
    features, gates = shape[2], kind.gates * hidden
    numbers = dict(zip(_OUTPUTS, output_operands(view.node, len(reads)), strict=False))
    scratch = len(reads) + sum(n >= 0 for n in numbers.values())
    operands = {n: reads.index(i) for n, i in _INPUTS.items() if view.has(i)}
    operands |= {n: k for n, k in numbers.items() if k >= 0}
    accesses = {n: _ordered(view.access(i), n, batch_first) for n, i in _INPUTS.items() if view.has(i)}
    accesses |= {n: _ordered(view.output_access(k), n, batch_first) for k, n in enumerate(_OUTPUTS) if n in operands}
    x, w = view.access(0), view.access(1)
    rows = (x.strides[1], x.strides[0]) if batch_first else x.strides[:2]
    whole = (directions, steps, batch, gates)
    try:
        product, dims = contraction_kernel(
            (directions,),
            (steps, batch),
            (gates,),
            (features,),
            Factor(stored, Access((0, *rows, x.strides[2]), x.offset)),
            Factor(stored, Access((w.strides[0], w.strides[2], w.strides[1]), w.offset)),
            Access(contiguous(whole)),
            operand(0, dtype),
        )
    except CompileError as error:
        return Reason(error.message)
    phases = [whole_phase(product, dims, (0, 1, scratch))]
    given = tuple(n for n in STRIDES if n in operands)
    index = found[4][1] if 4 in found else "i32"
    room: DimLike = 0
    for first, count in [(0, directions)] if len(set(cells)) == 1 else [(0, 1), (1, 1)]:
        kernel = RecurrenceKernel(cells[first], stored, dtype, index, given)
        backwards = int(view.attr("direction", "forward") == "reverse")
        sizes: list[DimLike] = [steps, batch, hidden, first, count, backwards, D.product(whole)]
        for name in given:
            sizes += [accesses[name].offset, *accesses[name].strides]
        launch = functools.partial(recurrence_launch, hints_of(sizes))
        phases.append(Phase(kernel, (*(operands[n] for n in given), scratch), tuple(sizes), launch))
        room = (2 + len(cells[first].states)) * count * batch * hidden
    return NativeKernel(
        f"{op.lower()} {stored}",
        tuple(phases),
        tuple(reads),
        workspace=(D.product(whole) + room) * (bits(dtype) // 8),
        flops=2 * steps * batch * directions * gates * (features + hidden),
    )


def _ordered(access: Access, name: str, batch_first: bool) -> Access:
    """How an operand lies over the axes that :data:`~accord.backends.cuda.recurrence.STRIDES` names."""
    if not batch_first or name not in ("h0", "c0", *_OUTPUTS):
        return access
    order = (1, 2, 0, 3) if name == "y" else (1, 0, 2)
    return Access(tuple(access.strides[a] for a in order), access.offset)
