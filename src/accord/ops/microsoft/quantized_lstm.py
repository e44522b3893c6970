"""Expansion: the LSTM whose products are 8-bit.

The input is quantized as a whole and the hidden state at every step, each by its range at run time, so the recurrence
is written out as a scan with exact integer products. An LSTM with dequantized weights would be faster and nearer to the
model before it was quantized, but it would not round the activations, by up to half of 1/255 of their range at each
step. That is another function, not a rounding error, so it is not computed instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, activate, cast, dims, flat, reshape, size
from accord.ops.microsoft.loops import scan
from accord.ops.microsoft.quantized import scaled_product
from accord.ops.microsoft.rotary import sequence_positions
from accord.ops.microsoft.schemas import DOMAIN

__all__: list[str] = []

INT64 = ir.DataType.INT64

#: How many of alpha and beta an activation takes.
_PARAMETERS = {"affine": 2, "elu": 1, "hardsigmoid": 2, "leakyrelu": 1, "scaledtanh": 2, "thresholdedrelu": 1}


@dataclass(frozen=True, slots=True)
class _Activation:
    name: str
    parameters: tuple[float, ...]

    def __call__(self, b: Builder, x: ir.Value) -> ir.Value:
        y = activate(b, x, self.name, self.parameters)
        assert y is not None
        return y


def _activations(n: Inference, count: int) -> list[_Activation]:
    names = n.attr("activations") or ("Sigmoid", "Tanh", "Tanh") * count
    alphas, betas = list(n.attr("activation_alpha", ())), list(n.attr("activation_beta", ()))
    found = []
    for name in names:
        wanted = _PARAMETERS.get(name.lower(), 0)
        parameters = [values.pop(0) for values in (alphas, betas)[:wanted] if values]
        found.append(_Activation(name, tuple(parameters)))
    return found


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction.

    Attributes:
        recurrent: Weight (H, 4 * H), scale, zero point; gates in the order input, output, forget, cell.
        peepholes: (3 * H) for input, output, forget; None for none.
        functions: Activations of gates, cell and output.
        clip: Bound of what goes into an activation; 0 for none.
        coupled: The forget gate is what the input gate leaves.
    """

    recurrent: tuple[ir.Value, ir.Value, ir.Value]
    peepholes: ir.Value | None
    functions: Sequence[_Activation]
    clip: float
    coupled: bool

    def step(
        self, b: Builder, states: Sequence[ir.Value], parts: Sequence[ir.Value]
    ) -> tuple[Sequence[ir.Value], Sequence[ir.Value]]:
        """From (hidden, cell) and one step's input products, with whether each sequence is still running."""
        hidden, cell = states
        a = b.multi("DynamicQuantizeLinear", 3, hidden)
        gates = b("Add", parts[0], scaled_product(b, (a[0], a[1], a[2]), self.recurrent, None))
        i, o, f, c = b.multi("Split", 4, gates, axis=-1, num_outputs=4)
        pi: ir.Value | None = None
        po: ir.Value | None = None
        pf: ir.Value | None = None
        if self.peepholes is not None:
            pi, po, pf = b.multi("Split", 3, self.peepholes, axis=-1, num_outputs=3)
        gate, inner, outer = self.functions
        i = gate(b, self._clipped(b, _peek(b, i, pi, cell)))
        f = b("Sub", b.scalar(1.0, i), i) if self.coupled else gate(b, self._clipped(b, _peek(b, f, pf, cell)))
        c = inner(b, self._clipped(b, c))
        new_cell = b("Add", b("Mul", f, cell), b("Mul", i, c))
        o = gate(b, self._clipped(b, _peek(b, o, po, new_cell)))
        new_hidden = b("Mul", o, outer(b, self._clipped(b, new_cell)))
        if len(parts) > 1:
            # A sequence that has ended gives zeros and keeps its cell.
            new_hidden = b("Where", parts[1], new_hidden, b.scalar(0.0, new_hidden))
            new_cell = b("Where", parts[1], new_cell, cell)
        return [new_hidden, new_cell], [new_hidden]

    def _clipped(self, b: Builder, x: ir.Value) -> ir.Value:
        return b("Clip", x, b.scalar(-self.clip, x), b.scalar(self.clip, x)) if self.clip else x


def _peek(b: Builder, x: ir.Value, weight: ir.Value | None, cell: ir.Value) -> ir.Value:
    return x if weight is None else b("Add", x, b("Mul", weight, cell))


def _of_direction(b: Builder, x: ir.Value | None, direction: int, count: int) -> ir.Value | None:
    """The part of a tensor with a leading axis of directions."""
    if x is None:
        return None
    part = x if count == 1 else b("Slice", x, b.ints(direction), b.ints(direction + 1), b.ints(0))
    return b("Squeeze", part, b.ints(0))


@expands("DynamicQuantizeLSTM", domain=DOMAIN)
def dynamic_quantize_lstm(b: Builder, n: Inference) -> Outputs:
    """X (T, B, I); W (D, I, 4 * H) and R (D, H, 4 * H), transposed to how LSTM has them."""
    kind = n.attr("direction", "forward")
    count = 2 if kind == "bidirectional" else 1
    hidden = n.attr("hidden_size") or (n.tensor(2).shape or (None, None))[1]
    if not isinstance(hidden, int):
        return None
    functions = _activations(n, count)
    x, lengths = required(n, 0), given(n, 4)
    running: ir.Value | None = None
    if lengths is not None:
        lengths = cast(b, lengths, INT64)
        steps = b("Unsqueeze", sequence_positions(b, size(b, x, 0)), b.ints(1))
        running = b("Unsqueeze", b("Less", steps, lengths), b.ints(2))
        # What lies after the end of all sequences does not count for the range.
        counted = b("ReduceMax", b("Cast", running, to=int(ir.DataType.INT32)), b.ints(1, 2), keepdims=1)
        x = b("Where", b("Cast", counted, to=int(ir.DataType.BOOL)), x, b.scalar(0.0, x))
    quantized = b.multi("DynamicQuantizeLinear", 3, x)
    label = next((o.name for o in n.node.outputs if o.name), n.node.op_type)
    results = []
    for d in range(count):
        cell = _Cell(
            _matrix(b, n, 2, 10, d, count),
            _of_direction(b, given(n, 7), d, count),
            functions[3 * d : 3 * d + 3],
            n.attr("clip", 0.0),
            bool(n.attr("input_forget", 0)),
        )
        weight = _matrix(b, n, 1, 8, d, count)
        bias = _of_direction(b, given(n, 3), d, count)
        if bias is not None:
            bias = b("Add", *b.multi("Split", 2, bias, axis=0, num_outputs=2))
        products = scaled_product(b, (quantized[0], quantized[1], quantized[2]), weight, bias)
        zero = b("Expand", b.scalar(0.0, x), dims(b, size(b, x, 1), hidden))
        states = [_of_direction(b, given(n, i), d, count) or zero for i in (5, 6)]
        backward = kind == "reverse" or d == 1
        results.append(_run(b, f"{label}.body{d}", cell, products, states, running, lengths, backward))
    return [
        b("Concat", *[b("Unsqueeze", r[0], b.ints(1)) for r in results], axis=1),
        *(b("Concat", *[b("Unsqueeze", r[i], b.ints(0)) for r in results], axis=0) for i in (1, 2)),
    ]


def _matrix(
    b: Builder, n: Inference, data: int, scale: int, direction: int, count: int
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Weight (rows, 4 * H), scale and zero point of one direction; the latter scalars or vectors."""
    found = [_of_direction(b, required(n, i), direction, count) for i in (data, scale, scale + 1)]
    weight, s, zero = found
    assert weight is not None and s is not None and zero is not None
    return weight, s, zero


def _run(
    b: Builder,
    label: str,
    cell: _Cell,
    products: ir.Value,
    states: list[ir.Value],
    running: ir.Value | None,
    lengths: ir.Value | None,
    backward: bool,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """All hidden states (T, B, H), the last one and the last cell (B, H)."""
    if lengths is None or running is None:
        hidden, memory, y = scan(b, label, cell.step, states, [products], axis=0, reverse=backward)
        return y, hidden, memory
    if backward:
        products = b("ReverseSequence", products, lengths, time_axis=0, batch_axis=1)
    _, memory, y = scan(b, label, cell.step, states, [products, running], axis=0)
    # The last state of each sequence; zeros for an empty one, whose index falls on a padded step.
    last = b("Max", b("Sub", lengths, b.const(np.array(1, np.int64))), b.const(np.array(0, np.int64)))
    batch = sequence_positions(b, size(b, lengths, 0))
    pairs = b("Concat", b("Unsqueeze", last, b.ints(1)), b("Unsqueeze", batch, b.ints(1)), axis=1)
    hidden = b("GatherND", y, pairs)
    nonempty = reshape(b, b("Greater", flat(b, lengths), b.const(np.array(0, np.int64))), -1, 1)
    memory = b("Where", nonempty, memory, b.scalar(0.0, memory))
    if backward:
        y = b("ReverseSequence", y, lengths, time_axis=0, batch_axis=1)
    return y, hidden, memory
