"""Recurrent layers: RNN, GRU, LSTM; the steps of an LSTM whose products are 8-bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from accord.backends.reference.activations import sigmoid
from accord.backends.reference.quantization import quantize_dynamically
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, to_accumulator
from accord.ir.expand import OWN_DOMAIN

Activation = Callable[[Array], Array]
States = tuple[Array, ...]
#: Maps the projected inputs of one time step [batch, gates * hidden] and the states to new states.
Step = Callable[[Array, States], States]

#: Name → (function of x, alpha, beta; defaults of those that it uses, as the ONNX operators have them).
_ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Array], tuple[float, ...]]] = {
    "relu": (lambda x, _a, _b: np.maximum(x, 0), ()),
    "tanh": (lambda x, _a, _b: np.tanh(x), ()),
    "sigmoid": (lambda x, _a, _b: sigmoid(x), ()),
    "softsign": (lambda x, _a, _b: x / (1 + np.abs(x)), ()),
    "softplus": (lambda x, _a, _b: np.asarray(np.logaddexp(0, x)), ()),
    "leakyrelu": (lambda x, a, _b: np.where(x >= 0, x, a * x), (0.01,)),
    "thresholdedrelu": (lambda x, a, _b: np.where(x >= a, x, 0), (1.0,)),
    "elu": (lambda x, a, _b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), (1.0,)),
    "affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), (1.0, 1.0)),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
}


def _limited(function: Activation, clip: float | None) -> Activation:
    return function if clip is None else lambda x: function(np.clip(x, -clip, clip))


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> Activation:
    require(name.lower() in _ACTIVATIONS, f"activation '{name}' is unknown")
    function, defaults = _ACTIVATIONS[name.lower()]
    # Only activations that use a parameter take one from the lists.
    alpha = next(alphas, defaults[0]) if defaults else 0.0
    beta = next(betas, defaults[1]) if len(defaults) > 1 else 0.0
    return _limited(lambda x: function(x, alpha, beta), clip)


@dataclass(frozen=True)
class _Layer:
    """A recurrent node with its attributes read and its inputs in layout 0 and in float64."""

    op: OpNode
    x: Array  # [steps, batch, input], or the projected inputs of all directions
    directions: int
    hidden: int
    lengths: Array  # [batch]
    activations: list[list[Activation]]  # by direction
    dtype: np.dtype[np.generic]

    @property
    def batch(self) -> int:
        return int(self.x.shape[1])

    def state(self, given: Array | None) -> Array:
        """Initial state [directions, batch, hidden] from an optional input."""
        shape = (self.directions, self.batch, self.hidden)
        if given is None:
            return np.zeros(shape, dtype=self.x.dtype)
        state = to_accumulator(given)
        state = state.transpose(1, 0, 2) if self.op["layout"] else state
        require(state.shape == shape, f"an initial state has the shape {list(given.shape)}")
        return state


def _layer(
    op: OpNode, x: Array, w: Array, r: Array, lengths: Array | None, gates: int, defaults: Sequence[str]
) -> _Layer:
    require(x.ndim == w.ndim == r.ndim == 3, "X, W and R must have rank 3")
    values = to_accumulator(x)
    values = values.transpose(1, 0, 2) if op["layout"] else values
    directions = _directions(op)
    hidden = r.shape[2]
    require(
        w.shape == (directions, gates * hidden, values.shape[2]),
        f"W has the shape {list(w.shape)}, expected {[directions, gates * hidden, values.shape[2]]}",
    )
    require(r.shape == (directions, gates * hidden, hidden), f"R has the shape {list(r.shape)}")
    require(op["hidden_size"] in (None, hidden), f"hidden_size {op['hidden_size']} differs from R's {hidden}")
    return _with_attributes(op, values, hidden, lengths, defaults, x.dtype)


def _directions(op: OpNode) -> int:
    require(op["direction"] in ("forward", "reverse", "bidirectional"), f"direction '{op['direction']}' is unknown")
    return 2 if op["direction"] == "bidirectional" else 1


def _with_attributes(
    op: OpNode, values: Array, hidden: int, lengths: Array | None, defaults: Sequence[str], dtype: np.dtype[np.generic]
) -> _Layer:
    directions = _directions(op)
    steps, batch = values.shape[:2]
    counts = np.full(batch, steps) if lengths is None else lengths.astype(np.int64)
    require(counts.shape == (batch,), f"{counts.size} sequence lengths for a batch of {batch}")
    require(bool(((counts >= 0) & (counts <= steps)).all()), f"a sequence length exceeds the {steps} steps")
    names = list(op["activations"] or []) or list(defaults) * directions
    if len(names) > len(defaults) * directions:  # RNN's own default names two whatever the direction
        names = names[: len(defaults) * directions]
    require(len(names) == len(defaults) * directions, f"{len(names)} activations are given")
    alphas, betas = iter(op["activation_alpha"] or []), iter(op["activation_beta"] or [])
    functions = [_activation(name, alphas, betas, op["clip"]) for name in names]
    split = [functions[d * len(defaults) : (d + 1) * len(defaults)] for d in range(directions)]
    return _Layer(op, values, directions, hidden, counts, split, dtype)


def _biases(b: Array | None, layer: _Layer, direction: int, gates: int) -> tuple[Array, Array]:
    """The input and the recurrence bias of one direction."""
    size = gates * layer.hidden
    if b is None:
        zero = np.zeros(size, dtype=layer.x.dtype)
        return zero, zero
    require(b.shape == (layer.directions, 2 * size), f"B has the shape {list(b.shape)}")
    return to_accumulator(b)[direction, :size], to_accumulator(b)[direction, size:]


def _run(layer: _Layer, direction: int, inputs: Array, states: States, step: Step) -> tuple[Array, States]:
    """Run one direction over time.

    A sequence that has ended keeps its state, and its outputs are zero. In reverse, every sequence begins at its
    own last element.

    Args:
        layer: The layer.
        direction: 0 or 1.
        inputs: Projected inputs [steps, batch, gates * hidden].
        states: Initial states, each [batch, hidden]; the first is the output.
        step: Computes one time step.

    Returns:
        The outputs [steps, batch, hidden], and the final states.
    """
    steps = layer.x.shape[0]
    backward = layer.op["direction"] == "reverse" or direction == 1
    y = np.zeros((steps, layer.batch, layer.hidden), dtype=layer.x.dtype)
    entries = np.arange(layer.batch)
    for number in range(steps):
        alive = number < layer.lengths
        if not alive.any():
            break
        time = np.where(alive, layer.lengths - 1 - number, number) if backward else np.full(layer.batch, number)
        new = step(inputs[time, entries], states)
        states = tuple(np.where(alive[:, None], n, o) for n, o in zip(new, states, strict=True))
        y[time[alive], entries[alive]] = states[0][alive]
    return y, states


def _collect(layer: _Layer, runs: list[tuple[Array, States]]) -> tuple[Array, ...]:
    """Join the directions, and restore the layout and the element type."""
    y = np.stack([run[0] for run in runs], axis=1)  # [steps, directions, batch, hidden]
    finals = [np.stack(states) for states in zip(*(run[1] for run in runs), strict=True)]
    if layer.op["layout"]:
        y = y.transpose(2, 0, 1, 3)
        finals = [final.transpose(1, 0, 2) for final in finals]
    return tuple(value.astype(layer.dtype) for value in (y, *finals))


def _projection(layer: _Layer, w: Array, direction: int, bias: Array) -> Array:
    """Input times weights for all steps at once: [steps, batch, gates * hidden]."""
    return np.asarray(np.matmul(layer.x, to_accumulator(w)[direction].T) + bias)


@implements("RNN")
def rnn(
    op: OpNode,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
) -> tuple[Array, ...]:
    """Elman network: ``H = f(X W + H R + biases)``."""
    layer = _layer(op, x, w, r, lengths, 1, ("Tanh",))
    start = layer.state(initial_h)
    runs = []
    for direction in range(layer.directions):
        wb, rb = _biases(b, layer, direction, 1)
        step = _rnn_step(layer.activations[direction], to_accumulator(r)[direction].T)
        inputs = _projection(layer, w, direction, wb + rb)
        runs.append(_run(layer, direction, inputs, (start[direction],), step))
    return _collect(layer, runs)


def _rnn_step(activations: list[Activation], recurrence: Array) -> Step:
    (f,) = activations
    return lambda now, states: (f(now + states[0] @ recurrence),)


@implements("GRU")
def gru(
    op: OpNode,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
) -> tuple[Array, ...]:
    """Gated recurrent unit; gates are stored in the order update, reset, hidden."""
    layer = _layer(op, x, w, r, lengths, 3, ("Sigmoid", "Tanh"))
    start = layer.state(initial_h)
    runs = []
    for direction in range(layer.directions):
        wb, rb = _biases(b, layer, direction, 3)
        step = _gru_step(
            layer.activations[direction], to_accumulator(r)[direction].T, rb, bool(op["linear_before_reset"])
        )
        inputs = _projection(layer, w, direction, wb)
        runs.append(_run(layer, direction, inputs, (start[direction],), step))
    return _collect(layer, runs)


def _gru_step(activations: list[Activation], recurrence: Array, bias: Array, reset_after: bool) -> Step:
    f, g = activations
    size = recurrence.shape[0]
    gates_of, hidden_of = recurrence[:, : 2 * size], recurrence[:, 2 * size :]

    def step(now: Array, states: States) -> States:
        (h,) = states
        gates = now[:, : 2 * size] + h @ gates_of + bias[: 2 * size]
        update, reset = f(gates[:, :size]), f(gates[:, size:])
        if reset_after:
            hidden = now[:, 2 * size :] + reset * (h @ hidden_of + bias[2 * size :])
        else:
            hidden = now[:, 2 * size :] + (reset * h) @ hidden_of + bias[2 * size :]
        return ((1 - update) * g(hidden) + update * h,)

    return step


@implements("LSTM")
def lstm(
    op: OpNode,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
) -> tuple[Array, ...]:
    """Long short-term memory; gates are stored in the order input, output, forget, cell.

    With ``input_forget`` the forget gate is one minus the input gate.
    """
    layer = _layer(op, x, w, r, lengths, 4, ("Sigmoid", "Tanh", "Tanh"))
    inputs, products = [], []
    for direction in range(layer.directions):
        wb, rb = _biases(b, layer, direction, 4)
        inputs.append(_projection(layer, w, direction, wb + rb))
        products.append(to_accumulator(r)[direction].T.__rmatmul__)
    return _lstm(layer, inputs, products, (initial_h, initial_c, p))


def _lstm(
    layer: _Layer,
    inputs: Sequence[Array],
    products: Sequence[Activation],
    given: tuple[Array | None, Array | None, Array | None],
) -> tuple[Array, ...]:
    """All directions, from their projected inputs and products with the recurrence weights.

    ``given`` has the initial states and the peepholes.
    """
    start_h, start_c = layer.state(given[0]), layer.state(given[1])
    p, shape = given[2], (layer.directions, 3, layer.hidden)
    if p is None:
        peepholes = np.zeros(shape, dtype=layer.x.dtype)
    else:
        require(p.shape == (layer.directions, 3 * layer.hidden), f"P has the shape {list(p.shape)}")
        peepholes = to_accumulator(p).reshape(shape)
    coupled = bool(layer.op["input_forget"])
    runs = []
    for direction in range(layer.directions):
        step = _lstm_step(layer.activations[direction], products[direction], peepholes[direction], coupled)
        runs.append(_run(layer, direction, inputs[direction], (start_h[direction], start_c[direction]), step))
    return _collect(layer, runs)


def _lstm_step(activations: list[Activation], product: Activation, peepholes: Array, coupled: bool) -> Step:
    f, g, h_of = activations
    size = peepholes.shape[1]

    def step(now: Array, states: States) -> States:
        h, c = states
        gates = now + product(h)
        i_in, o_in, f_in, c_in = (gates[:, k * size : (k + 1) * size] for k in range(4))
        i = f(i_in + peepholes[0] * c)
        forget = 1 - i if coupled else f(f_in + peepholes[2] * c)
        cell = forget * c + i * g(c_in)
        o = f(o_in + peepholes[1] * cell)
        return o * h_of(cell), cell

    return step


@implements("QuantizedLSTM", domain=OWN_DOMAIN, defaults={"direction": "forward", "input_forget": 0})
def quantized_lstm(
    op: OpNode,
    inputs: Array,
    r: Array,
    scale: Array,
    zero: Array,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
) -> tuple[Array, ...]:
    """The steps of an LSTM with 8-bit recurrence weights.

    The hidden states of a step are quantised together, by their range. A sequence that has ended counts as zeros.

    Args:
        op: The node.
        inputs: Projected inputs with all biases, [steps, batch, directions * 4 * hidden].
        r: Recurrence weights [directions, hidden, 4 * hidden], int8 or uint8.
        scale: Of R: one for each direction, or [directions, 4 * hidden].
        zero: Zero points of R, as ``scale``.
        lengths: As LSTM's.
        initial_h: As LSTM's.
        initial_c: As LSTM's.
        p: As LSTM's.
    """
    directions, hidden = _directions(op), r.shape[1]
    require(r.shape == (directions, hidden, 4 * hidden), f"R has the shape {list(r.shape)}")
    columns = directions * 4 * hidden
    require(
        inputs.ndim == 3 and inputs.shape[2] == columns, f"the projected inputs have the shape {list(inputs.shape)}"
    )
    layer = _with_attributes(op, to_accumulator(inputs), hidden, lengths, ("Sigmoid", "Tanh", "Tanh"), inputs.dtype)
    spread = [np.broadcast_to(v[:, None] if v.ndim == 1 else v, (directions, 4 * hidden)) for v in (scale, zero)]
    products = [
        _quantized_product(layer.lengths, r[d].astype(np.int64) - spread[1][d], spread[0][d]) for d in range(directions)
    ]
    return _lstm(layer, np.split(layer.x, directions, axis=2), products, (initial_h, initial_c, p))


def _quantized_product(lengths: Array, recurrence: Array, scales: Array) -> Activation:
    numbers = itertools.count()

    def product(h: Array) -> Array:
        counts = lengths >= next(numbers)  # the states that the step before has made; at first all
        codes, scale, zero = quantize_dynamically(np.where(counts[:, None], h, 0).astype(np.float32))
        sums = (codes.astype(np.int64) - zero) @ recurrence
        return np.asarray(sums.astype(np.float32) * (scale * scales), dtype=np.float64)

    return product
