"""LSTM (Hochreiter and Schmidhuber, 1997; with the forget gate of Gers et al., 2000) and GRU (Cho et al., 2014).

State is an input and an output of every operator and declared as such: nothing is remembered between two calls, so
neither reuse of memory nor another batch on the same model can change it. Gates of the LSTM are stored in the order
input, output, forget, cell; those of the GRU in the order update, reset, new.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.contract.operator import Tensor, operator
from accord.library.composing import floats
from accord.library.reference import Array, narrow, sigmoid, wide

__all__ = ["gru_cell", "lstm", "lstm_cell"]


def _lstm_step(x: Array, h: Array, c: Array, w: Array, r: Array, bias: Any) -> tuple[Array, Array]:
    z = x @ w.T + h @ r.T
    i, o, f, g = np.split(z if bias is None else z + bias, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


@operator("accord::LSTMCell")
def lstm_cell(
    x: Tensor["T", "N", "I"],
    hidden: Tensor["T", "N", "H"],
    cell: Tensor["T", "N", "H"],
    weight: Tensor["T", "4 * H", "I"],
    recurrence: Tensor["T", "4 * H", "H"],
    bias: Tensor["T", "4 * H"] | None = None,
) -> tuple[Tensor["T", "N", "H"], Tensor["T", "N", "H"]]:
    """One step: the new hidden state and the new cell state."""
    shift = None if bias is None else wide(bias)
    h, c = _lstm_step(wide(x), wide(hidden), wide(cell), wide(weight), wide(recurrence), shift)
    return narrow(h, x), narrow(c, x)


@operator("accord::LSTM")
def lstm(
    x: Tensor["T", "L", "N", "I"],
    hidden: Tensor["T", "N", "H"],
    cell: Tensor["T", "N", "H"],
    weight: Tensor["T", "4 * H", "I"],
    recurrence: Tensor["T", "4 * H", "H"],
    bias: Tensor["T", "4 * H"] | None = None,
) -> tuple[Tensor["T", "L", "N", "H"], Tensor["T", "N", "H"], Tensor["T", "N", "H"]]:
    """``L`` steps: the hidden state after each, and both states after the last, to be given to the next call."""
    shift = None if bias is None else wide(bias)
    h, c, z = wide(hidden), wide(cell), wide(x)
    w, r = wide(weight), wide(recurrence)
    found = np.zeros((*x.shape[:2], hidden.shape[1]))
    for t in range(len(z)):
        h, c = _lstm_step(z[t], h, c, w, r, shift)
        found[t] = h
    return narrow(found, x), narrow(h, x), narrow(c, x)


@operator("accord::GRUCell")
def gru_cell(
    x: Tensor["T", "N", "I"],
    hidden: Tensor["T", "N", "H"],
    weight: Tensor["T", "3 * H", "I"],
    recurrence: Tensor["T", "3 * H", "H"],
    bias: Tensor["T", "3 * H"] | None = None,
    recurrence_bias: Tensor["T", "3 * H"] | None = None,
) -> Tensor["T", "N", "H"]:
    """One step: the new hidden state; the reset gate multiplies ``hidden @ recurrence.T + recurrence_bias``."""
    h = wide(hidden)
    a, b = wide(x) @ wide(weight).T, h @ wide(recurrence).T
    a = a if bias is None else a + wide(bias)
    b = b if recurrence_bias is None else b + wide(recurrence_bias)
    (az, ar, an), (bz, br, bn) = np.split(a, 3, axis=-1), np.split(b, 3, axis=-1)
    z, new = sigmoid(az + bz), np.tanh(an + sigmoid(ar + br) * bn)
    return narrow((1 - z) * new + z * h, x)


for _operator in (lstm_cell, lstm, gru_cell):
    floats(_operator, tight=False, batch=("N",)).constraint("H >= 1", "I >= 1").scheduling(fuses="opaque")
    for _dtype, _rtol in (("float16", 1e-2), ("bfloat16", 8e-2)):
        _operator.tolerance(_dtype, rtol=_rtol, atol=_rtol)
lstm_cell.execution(state=((0, 1), (1, 2)))
lstm.execution(state=((1, 1), (2, 2)))
gru_cell.execution(state=((0, 1),))


def _biases(b: Any, first: Any, second: Any) -> Any:
    """Both biases one after the other with an axis for directions; None if there are none."""
    given = first if first is not None else second
    if given is None:
        return None
    zero = b("Mul", given, b.scalar(0.0, given))
    joined = b("Concat", *(zero if v is None else v for v in (first, second)), axis=0)
    return b("Unsqueeze", joined, b.ints(0))


@lstm.composition
def time_loop(b: Any, x: Any, hidden: Any, cell: Any, weight: Any, recurrence: Any, bias: Any) -> tuple[Any, Any, Any]:
    """ONNX's LSTM in one direction: one product for all inputs, then a time loop in machine code."""
    first = b.ints(0)
    w, r, h, c = (b("Unsqueeze", v, first) for v in (weight, recurrence, hidden, cell))
    size = b.shape(recurrence)[1]
    y, last, state = b.multi(
        "LSTM",
        3,
        *(x, w, r, _biases(b, bias, None), None, h, c),
        hidden_size=size,
    )
    return b("Squeeze", y, b.ints(1)), b("Squeeze", last, first), b("Squeeze", state, first)


@lstm_cell.composition
def one_step(b: Any, x: Any, hidden: Any, cell: Any, weight: Any, recurrence: Any, bias: Any) -> tuple[Any, Any]:
    """A sequence of one step."""
    _, h, c = time_loop(b, b("Unsqueeze", x, b.ints(0)), hidden, cell, weight, recurrence, bias)
    return h, c


@gru_cell.composition
def one_gru_step(b: Any, x: Any, hidden: Any, weight: Any, recurrence: Any, bias: Any, recurrence_bias: Any) -> Any:
    """ONNX's GRU for a sequence of one step."""
    first = b.ints(0)
    sequence, w, r, h = (b("Unsqueeze", v, first) for v in (x, weight, recurrence, hidden))
    _, last = b.multi(
        "GRU",
        2,
        *(sequence, w, r, _biases(b, bias, recurrence_bias), None, h),
        hidden_size=b.shape(recurrence)[1],
        linear_before_reset=1,
    )
    return b("Squeeze", last, first)
