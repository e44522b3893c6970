"""The stateful LSTM: a state that nobody declared, then one that everybody can see.

Run it, and check it::

    python examples/stateful_lstm.py
    accord op check tales::LSTMStep --load examples/stateful_lstm.py
    accord op check tales::LSTMCell --load examples/stateful_lstm.py
"""

# ruff: noqa: F821, UP037, ANN001, ANN201, ANN202
from __future__ import annotations

import numpy as np

import accord

Tensor = accord.Tensor


def sigmoid(x):
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def step(gates, c):
    """One step of an LSTM from its four gates: output and next state."""
    i, f, g, o = np.split(gates, 4, -1)
    following = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(following), following


# the state hidden


@accord.operator("tales::LSTMStep")
def lstm_step(gates: Tensor["float32", "N", "4 * H"]) -> Tensor["float32", "N", "H"]:
    """The output of one step from an empty state: all that the declaration tells."""
    return step(gates, np.zeros((gates.shape[0], gates.shape[1] // 4), gates.dtype))[0]


_kept: dict[tuple[int, ...], np.ndarray] = {}


@lstm_step.python(name="remembers")
def remembers(gates):
    """Goes on from where the last call ended, whoever made it."""
    n, h = gates.shape[0], gates.shape[1] // 4
    y, _kept[n, h] = step(gates, _kept.get((n, h), np.zeros((n, h), gates.dtype)))
    return y


# the state explicit


@accord.operator("tales::LSTMCell")
def lstm_cell(
    gates: Tensor["float32", "N", "4 * H"],
    c: Tensor["float32", "N", "H"],
) -> tuple[Tensor["float32", "N", "H"], Tensor["float32", "N", "H"]]:
    """Output and next state from the gates and the state."""
    return step(gates, c)


lstm_cell.execution(state=((1, 1),)).semantic(batch=("N",))
lstm_cell.python(step, name="explicit")


def main() -> None:
    """Print what two users of one kernel get when they take turns."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((3, 1, 4)).astype(np.float32) for _ in range(2))
    alone = [float(remembers(g)[0, 0]) for g in first]
    _kept.clear()
    turns = [float((remembers(g), remembers(other))[0][0, 0]) for g, other in zip(first, second, strict=True)]
    print("state hidden:   alone", *(f"{v:+.3f}" for v in alone))
    print("           in turns", *(f"{v:+.3f}" for v in turns))

    def run(c, gates):
        y, c = step(gates, c)
        return float(y[0, 0]), c

    mine = theirs = np.zeros((1, 1), np.float32)
    explicit = []
    for g, other in zip(first, second, strict=True):
        y, mine = run(mine, g)
        _, theirs = run(theirs, other)
        explicit.append(y)
    print("state explicit: in turns", *(f"{v:+.3f}" for v in explicit))


if __name__ == "__main__":
    main()
