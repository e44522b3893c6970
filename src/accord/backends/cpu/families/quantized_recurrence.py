"""The steps of an LSTM whose recurrence weights are 8-bit."""

from __future__ import annotations

import functools

import numpy as np

from accord.backends.cpu.families.recurrence import Layer, tensors_of, units_of
from accord.backends.cpu.families.table import selects
from accord.backends.cpu.lane_packing import Bytes, lane_packing_phase
from accord.backends.cpu.lanes import INTEGERS, lanes, pack_lanes, packed_length
from accord.backends.cpu.machine import machine
from accord.backends.cpu.packing import Packing
from accord.backends.cpu.projection import Panel, heights_of
from accord.backends.cpu.quantized_recurrence import (
    CheckedQuantizedRecurrenceCode,
    QuantizedRecurrenceCode,
    quantized_state_elements,
)
from accord.backends.cpu.recurrence import Places, recurrence_phase
from accord.backends.cpu.transpose import moved_by
from accord.backends.gates import CELLS, activations_of
from accord.backends.loops.table import known, output_operands
from accord.backends.protocol import Array, Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.expand import OWN_DOMAIN
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason
from accord.ir.strides import Access

__all__ = ["quantized_lstm"]

_INPUTS, _R, _SCALE, _ZERO, _LENGTHS, _H0, _C0, _P = range(8)


@selects("QuantizedLSTM", domain=OWN_DOMAIN)
def quantized_lstm(view: NodeView) -> Kernel | Reason:
    """The kernel; all operands are row-major."""
    inputs, r = known(view.tensor(_INPUTS), "the projected inputs"), known(view.tensor(_R), "the recurrence weights")
    for found in (inputs, r):
        if isinstance(found, Reason):
            return found
    assert not isinstance(inputs, Reason) and not isinstance(r, Reason)
    if inputs[1] != "f32" or r[1] not in INTEGERS:
        return Reason("only f32 with weights of 8 bits")
    if None in (view.tensor(_SCALE).shape, view.tensor(_ZERO).shape):
        return Reason("the rank of the weights' scales or zero points is not known")
    kind = CELLS["LSTM"]
    directions = 2 if view.attr("direction", "forward") == "bidirectional" else 1
    made = activations_of(view, kind, directions)
    if made is None:
        return Reason("an activation is missing or unknown")
    flag, size = bool(view.attr(kind.flag, 0)), len(kind.defaults)
    cells = [
        kind.make("f32", made[d * size : (d + 1) * size], view.has(kind.constants), flag) for d in range(directions)
    ]
    reads = [i for i in range(_P + 1) if view.has(i)]
    outputs = [n for n in output_operands(view.node, len(reads)) if n >= 0]
    hidden = r[0][1] if isinstance(r[0][1], int) else D.floordiv(r[0][2], kind.gates)
    layer = Layer(
        view,
        kind,
        cells,
        "f32",
        "f32",
        hidden,
        units_of("f32", kind.gates, hidden),
        {index: number for number, index in enumerate(reads)},
        len(reads) + len(outputs),
    )
    return _kernel(layer, r[1])


def _kernel(layer: Layer, weights: str) -> NativeKernel:
    """Packing of what is not constant, and the time loops."""
    view, kind, hidden, units = layer.view, layer.kind, layer.hidden, layer.units
    steps, batch, line = view.tensor(_INPUTS).shape or ()
    panels = D.ceildiv(hidden, units)
    moved = moved_by(weights, lanes().right)
    operands: dict[str, int] = {"scratch": layer.scratch_operand, "inputs": layer.operands[_INPUTS]}
    further: dict[str, tuple[DimLike, ...]] = {"inputs": ()}
    operands["weights"], columns_at = _weights(layer, weights)
    operands["columns"], further["columns"] = operands["weights"], (columns_at,)
    operands["scales"], further["scales"] = _parameter(layer, _SCALE, "f32", "f32")
    zero = view.tensor(_ZERO)
    if not zero.is_const or (zero.numpy().astype(np.int32) + moved).any():
        operands["zeros"], further["zeros"] = _parameter(layer, _ZERO, weights, "i32")
    peepholes_at: DimLike = 0
    if view.has(_P):
        operands["peepholes"], (peepholes_at,) = layer.pack(_P, 1, [[(g,) for g in range(3)]])
    entry = quantized_state_elements(layer.cells[0], units, panels)
    places = Places(
        (0,),
        (view.access(_INPUTS).offset, batch * line, line, hidden * kind.gates),
        layer.scratch.take(entry * batch * layer.directions),
        layer.teams(1, 1),
        peepholes_at,
        0,
        tensors_of(layer, False, operands),
    )
    make = functools.partial(
        CheckedQuantizedRecurrenceCode if view.has(_LENGTHS) else QuantizedRecurrenceCode,
        whole=isinstance(hidden, int) and hidden % units == 0,
        moved=moved,
    )
    reverse = view.attr("direction", "forward") == "reverse"
    for first, count in [(0, layer.directions)] if len(set(layer.cells)) == 1 else [(0, 1), (1, 1)]:
        layer.phases.append(
            recurrence_phase(
                layer.cells[first],
                ("f32", "f32"),
                units,
                heights_of(Panel("i32", kind.gates, units), batch),
                (steps, batch, hidden, panels),
                (first, count, reverse),
                places,
                operands,
                make,
                further,
            )
        )
    return NativeKernel(
        f"quantized lstm {weights}",
        tuple(layer.phases),
        tuple(layer.operands),
        constants=layer.constants,
        workspace=layer.scratch.size * 4,
        flops=2 * steps * batch * hidden * line,
    )


def _packing(layer: Layer, k: DimLike, dtype: str) -> Packing:
    gates = layer.kind.gates
    return Packing(tuple((g,) for g in range(gates)), layer.directions, layer.hidden, layer.units, k, dtype)


def _each_column(values: Array, shape: tuple[int, int]) -> Array:
    """One number for each direction and column, from one for each direction or for each of both."""
    return np.broadcast_to(values[:, None] if values.ndim == 1 else values, shape)


def _column_access(layer: Layer, index: int) -> Access:
    access = layer.view.access(index)
    return Access((access.strides[0], access.strides[1] if len(access.strides) > 1 else 0), access.offset)


def _parameter(layer: Layer, index: int, source: str, dtype: str) -> tuple[int, tuple[DimLike, ...]]:
    """Scales or zero points of type ``source`` as panels: the number of the operand, and where they begin."""
    packing, fact = _packing(layer, 1, dtype), layer.view.tensor(index)
    # phases that pack the weights read the zero points as they are
    if fact.is_const and isinstance(layer.hidden, int) and (index == _SCALE or _R in layer.constants):
        columns = (layer.directions, layer.kind.gates * layer.hidden)
        layer.constants[index] = packing.packed(_each_column(fact.numpy(), columns))
        return layer.operands[index], (0,)
    start = layer.scratch.take(packing.size * layer.directions)
    numbers = (layer.operands[index], layer.scratch_operand)
    layer.phases += packing.phases(source, _column_access(layer, index), start, numbers)
    return layer.scratch_operand, (start,)


def _weights(layer: Layer, dtype: str) -> tuple[int, DimLike]:
    """Panels of lanes at the beginning of an operand: its number, and where the sums of columns begin.

    Each group of the product of lanes is one panel of units, so all panels of lanes are as wide as those.
    """
    view, hidden, directions = layer.view, layer.hidden, layer.directions
    weights, zeros = _packing(layer, hidden, dtype), _packing(layer, 1, dtype)
    line = layer.kind.gates * layer.units
    vectors = line // machine().width(32)
    if view.tensor(_R).is_const and view.tensor(_ZERO).is_const:
        layer.constants[_R] = functools.partial(_packed, view.tensor(_R), view.tensor(_ZERO), weights, zeros, vectors)
        groups, k = D.evaluate(directions * weights.panels, {}), D.evaluate(hidden, {})
        return layer.operands[_R], packed_length(groups, k, line)[0]
    # lanes come first in the scratch memory; then their sources, in bytes
    scratch = layer.scratch_operand
    per_panel = D.ceildiv(hidden, lanes().count) * line
    layer.scratch.take(directions * weights.panels * (per_panel + line))
    starts = []
    for index, packing in ((_R, weights), (_ZERO, zeros)):
        starts.append(layer.scratch.take(D.ceildiv(packing.size * directions, 4)) * 4)
        access = _column_access(layer, _ZERO)
        if index == _R:
            strides = view.access(_R).strides
            access = Access((strides[0], strides[2], strides[1]), view.access(_R).offset)
        layer.phases += packing.phases(dtype, access, starts[-1], (layer.operands[index], scratch))
    data = Bytes(dtype, (weights.size, hidden * line), 1, starts[0], line)
    zero = Bytes(dtype, (zeros.size, line), 1, starts[1])
    groups_ = (directions, weights.panels)
    phase, columns_at, _ = lane_packing_phase(groups_, line, hidden, vectors, data, zero, (scratch, scratch, scratch))
    layer.phases.append(phase)
    return scratch, columns_at


def _packed(r: TensorFact, zero: TensorFact, weights: Packing, zeros: Packing, vectors: int) -> Array:
    """The panels of lanes of constant weights."""
    tensor = r.numpy()
    directions, k, columns = tensor.shape
    each = _each_column(zero.numpy(), (directions, columns))
    line = vectors * machine().width(32)
    panels = weights.packed(tensor.transpose(0, 2, 1)).reshape(-1, k, line)
    return pack_lanes(panels, vectors, zeros.packed(each).reshape(-1, 1, line))
