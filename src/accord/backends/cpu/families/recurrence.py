"""RNN, GRU and LSTM: one product for the inputs of all steps, then the time loop; ReverseSequence."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.jit import machine
from accord.backends.cpu.packing import Packing, joined
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.cpu.projection import Panel, heights_of, projection_phase
from accord.backends.cpu.recurrence import Places, recurrence_phase, state_elements, team_elements
from accord.backends.cpu.sequences import reverse_phase
from accord.backends.gates import CELLS, Cell, CellKind, activations_of, hidden_of
from accord.backends.loops.members.movements import known_bits
from accord.backends.loops.table import known, output_operands
from accord.backends.protocol import Arrangement, Constant, Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, bits, const
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import Reason
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Layer", "any_strides", "recurrent", "reverse_sequence", "tensors_of", "units_of"]

_X, _W, _R, _B, _LENGTHS, _H0, _C0, _P = range(8)
#: Panels of few gates hold more units, so that one element of a state meets about this many vectors.
_VECTORS = 4


@dataclass(slots=True)
class _Scratch:
    """Scratch memory that phases share, in elements."""

    size: DimLike = 0

    def take(self, elements: DimLike) -> DimLike:
        """Where a part of ``elements`` begins."""
        start = self.size
        self.size = start + elements
        return start


@dataclass(slots=True)
class Layer:
    """A recurrent node on its way to a kernel.

    Attributes:
        view: The node.
        kind: Its kind of cell.
        cells: The cell of each direction.
        stored: Element type of its tensors.
        dtype: Element type of the arithmetic.
        hidden: Hidden units.
        units: Units of a panel.
        operands: Input → its number as an operand.
        scratch_operand: Number of the scratch memory, which comes last.
        scratch: What has been taken of it.
        phases: What has been made so far.
        constants: Packed constants by input.
    """

    view: NodeView
    kind: CellKind
    cells: list[Cell]
    stored: str
    dtype: str
    hidden: DimLike
    units: int
    operands: dict[int, int]
    scratch_operand: int
    scratch: _Scratch = field(default_factory=_Scratch)
    phases: list[Phase] = field(default_factory=list)
    constants: dict[int, Constant] = field(default_factory=dict)

    @property
    def directions(self) -> int:
        """Number of directions."""
        return len(self.cells)

    def teams(self, batch: DimLike, height: int) -> DimLike:
        """Where in scratch memory teams of blocks of at least ``height`` entries are; a phase makes them."""
        count = team_elements(self.dtype, self.directions, batch, height)
        start = self.scratch.take(count)
        zeros = [(self.dtype, Access((1,), start))]
        self.phases.append(pointwise_phase((count,), [], zeros, [const(0.0, self.dtype)], (self.scratch_operand,)))
        return start

    def pack(self, index: int, k: DimLike, parts: Sequence[Sequence[tuple[int, ...]]]) -> tuple[int, list[DimLike]]:
        """Pack an input, now if it is constant, else in phases.

        Args:
            index: The input.
            k: Length of its summed axis, or 1.
            parts: For each set of panels its gates, see :class:`Packing`.

        Returns:
            The number of the operand, and where each set of panels begins in it.
        """
        packings = [Packing(tuple(gates), self.directions, self.hidden, self.units, k, self.dtype) for gates in parts]
        fact = self.view.tensor(index)
        if fact.is_const:
            array = fact.numpy()
            self.constants[index] = joined([p.packed(array) for p in packings])
            sizes = [p.size * self.directions for p in packings]
            return self.operands[index], list(itertools.accumulate(sizes[:-1], initial=0))
        starts = []
        for p in packings:
            starts.append(self.scratch.take(p.size * self.directions))
            numbers = (self.operands[index], self.scratch_operand)
            self.phases += p.phases(self.stored, self.view.access(index), starts[-1], numbers)
        return self.scratch_operand, starts


@arranges(*CELLS, "ReverseSequence")
def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


@selects(*CELLS)
def recurrent(view: NodeView) -> Kernel | Reason:
    """The kernel of a recurrent layer."""
    layer = _layer(view)
    return layer if isinstance(layer, Reason) else _kernel(layer)


def _layer(view: NodeView) -> Layer | Reason:
    """The node's attributes and sizes, or why there is no kernel."""
    kind = CELLS[view.node.op_type]
    x = known(view.tensor(_X), "the input")
    r = known(view.tensor(_R), "the recurrence weights")
    if isinstance(x, Reason):
        return x
    if isinstance(r, Reason):
        return r
    if x[1] not in FLOATS:
        return Reason("only floating-point layers")
    directions = 2 if view.attr("direction", "forward") == "bidirectional" else 1
    made = activations_of(view, kind, directions)
    if made is None:
        return Reason("an activation is missing or unknown")
    dtype = "f64" if x[1] == "f64" else "f32"
    flag = bool(kind.flag and view.attr(kind.flag, 0))
    size = len(kind.defaults)
    cells = [
        kind.make(dtype, made[d * size : (d + 1) * size], view.has(kind.constants), flag) for d in range(directions)
    ]
    reads = [i for i in range(_P + 1) if view.has(i)]
    outputs = [n for n in output_operands(view.node, len(reads)) if n >= 0]
    hidden = hidden_of(view, kind.gates)
    return Layer(
        view,
        kind,
        cells,
        x[1],
        dtype,
        hidden,
        units_of(dtype, max(len(p.gates) for p in cells[0].passes), hidden),
        {index: number for number, index in enumerate(reads)},
        len(reads) + len(outputs),
    )


def units_of(dtype: str, gates: int, hidden: DimLike) -> int:
    """Units of a panel: several vectors of them if that adds no padding."""
    width = machine().width(bits(dtype))
    vectors = max(1, _VECTORS // gates)
    while vectors > 1 and (not isinstance(hidden, int) or hidden % (vectors * width)):
        vectors -= 1
    return vectors * width


def _kernel(layer: Layer) -> NativeKernel:
    """All phases: packing of what is not constant, the product of the inputs, the time loops."""
    view, kind, dtype = layer.view, layer.kind, layer.dtype
    shape, weights_shape = view.tensor(_X).shape, view.tensor(_W).shape
    assert shape is not None
    features = shape[2]
    if weights_shape is not None and isinstance(weights_shape[2], int):
        features = weights_shape[2]
    batch_first = bool(view.attr("layout", 0))
    batch, steps = (shape[0], shape[1]) if batch_first else (shape[1], shape[0])
    panel = Panel(dtype, kind.gates, layer.units)
    panels = D.ceildiv(layer.hidden, layer.units)
    passes = layer.cells[0].passes
    # the biases of input and recurrence are one, except where the reset gate acts on the recurrent sum
    apart = {g for p in passes if "rb" in p.reads for g in p.gates[-1:]}
    operands: dict[str, int] = {"scratch": layer.scratch_operand}
    weights, (weights_at,) = layer.pack(_W, features, [[(g,) for g in range(kind.gates)]])
    operands["weights"], passes_at = layer.pack(_R, layer.hidden, [[(g,) for g in p.gates] for p in passes])
    start: tuple[int, DimLike] | None = None
    bias_at: DimLike = 0
    if view.has(_B):
        both = [(g,) if g in apart else (g, kind.gates + g) for g in range(kind.gates)]
        number, starts = layer.pack(_B, 1, [both, *([(kind.gates + g,)] for g in apart)])
        start = (number, starts[0])
        if apart:
            operands["bias"], bias_at = number, starts[1]
    peepholes_at: DimLike = 0
    if view.has(_P):
        operands["peepholes"], (peepholes_at,) = layer.pack(_P, 1, [[(g,) for g in range(3)]])
    rows = _rows(view.access(_X), batch_first, steps, batch)
    line = panels * panel.line
    inputs_at = layer.scratch.take(steps * batch * line * layer.directions)
    layer.phases.append(
        projection_phase(
            panel,
            layer.stored,
            (rows.count, rows.outer, features, panels, layer.directions),
            (rows.offset, rows.stride, rows.outer_stride, rows.column),
            (weights_at, None if start is None else start[1]),
            (inputs_at, line, rows.count * line, steps * batch * line),
            (layer.operands[_X], weights, *(() if start is None else (start[0],)), layer.scratch_operand),
        )
    )
    entry = state_elements(layer.cells[0], layer.units, panels)
    states_at = layer.scratch.take(entry * batch * layer.directions)
    heights = heights_of(Panel(dtype, max(len(p.gates) for p in passes), layer.units), batch)
    tensors = tensors_of(layer, batch_first, operands)
    places = Places(
        tuple(passes_at),
        (inputs_at, rows.step * line, rows.entry * line, steps * batch * line),
        states_at,
        layer.teams(batch, heights[0]),
        peepholes_at,
        bias_at,
        tensors,
    )
    reverse = view.attr("direction", "forward") == "reverse"
    for first, count in [(0, layer.directions)] if len(set(layer.cells)) == 1 else [(0, 1), (1, 1)]:
        layer.phases.append(
            recurrence_phase(
                layer.cells[first],
                (dtype, layer.stored),
                layer.units,
                heights,
                (steps, batch, layer.hidden, panels),
                (first, count, reverse),
                places,
                operands,
            )
        )
    size = layer.directions * kind.gates * layer.hidden
    return NativeKernel(
        f"{view.node.op_type.lower()} {layer.stored}",
        tuple(layer.phases),
        tuple(layer.operands),
        constants=layer.constants,
        workspace=layer.scratch.size * (bits(dtype) // 8),
        flops=2 * steps * batch * size * (features + layer.hidden),
    )


@record
class _InputRows:
    """The rows of the input as one axis, or as two where its strides need that; projected rows lie in their order.

    Attributes:
        count: Rows of the inner axis.
        outer: Extent of the outer axis.
        offset: First element.
        stride: Elements from row to row.
        outer_stride: Elements along the outer axis.
        column: Elements along a row.
        step: How many rows later the next step of an entry comes.
        entry: How many rows later the next entry comes.
    """

    count: DimLike
    outer: DimLike
    offset: DimLike
    stride: DimLike
    outer_stride: DimLike
    column: DimLike
    step: DimLike
    entry: DimLike


def _rows(access: Access, batch_first: bool, steps: DimLike, batch: DimLike) -> _InputRows:
    along_batch, along_steps = access.strides[:2] if batch_first else access.strides[1::-1]
    column, at = access.strides[2], access.offset
    if steps == 1 or along_steps == along_batch * batch:
        return _InputRows(steps * batch, 1, at, along_batch, 0, column, batch, 1)
    if batch == 1 or along_batch == along_steps * steps:
        return _InputRows(steps * batch, 1, at, along_steps, 0, column, 1, steps)
    return _InputRows(steps, batch, at, along_steps, along_batch, column, 1, steps)


def tensors_of(layer: Layer, batch_first: bool, operands: dict[str, int]) -> dict[str, Access]:
    """Accesses of the optional operands, the batch behind steps and directions; their numbers go to ``operands``."""
    view = layer.view
    found: dict[str, Access] = {}
    for name, index in (("h0", _H0), ("c0", _C0), ("lengths", _LENGTHS)):
        if view.has(index):
            found[name] = view.access(index)
            operands[name] = layer.operands[index]
    for index, number in enumerate(output_operands(view.node, len(layer.operands))):
        if number >= 0:
            name = ("y", "y_h", "y_c")[index]
            found[name] = view.output_access(index)
            operands[name] = number
    if not batch_first:
        return found
    order = {3: (1, 0, 2), 4: (1, 2, 0, 3)}
    return {
        name: Access(tuple(a.strides[axis] for axis in order.get(len(a.strides), (0,))), a.offset)
        for name, a in found.items()
    }


@selects("ReverseSequence")
def reverse_sequence(view: NodeView) -> Kernel | Reason:
    """The first elements of each sequence in reverse order."""
    x, lengths = view.tensor(0), known(view.tensor(1), "the lengths")
    size = known_bits(x)
    if x.shape is None or len(x.shape) < 2 or size not in (8, 16, 32, 64):
        return Reason("the rank is not known, or the elements have no size that can be moved")
    if isinstance(lengths, Reason):
        return lengths
    if lengths[1] != "i64" or len(lengths[0]) != 1:
        return Reason("lengths are a vector of int64")
    time = view.axis(int(view.attr("time_axis", 0)), len(x.shape))
    if time > 1:
        return Reason("time is one of the first two axes")
    phase = reverse_phase(f"u{size}", x.shape, time, view.access(0), view.access(1), view.output_access())
    return NativeKernel(f"reverse u{size}", (phase,), (0, 1))
