"""Shape rules of RNN, GRU and LSTM, and of the steps of an LSTM whose products are 8-bit."""

from __future__ import annotations

from collections.abc import Mapping

from accord.ir.dims import DimLike
from accord.ir.expand import OWN_DOMAIN
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import int_attr, operator, rank_of, same_dtype, same_size, str_attr

#: Gates per cell: how many times the hidden size the weights hold.
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@operator("RNN", "GRU", "LSTM", inputs=3)
def recurrent(n: Inference) -> list[Fact]:
    """All hidden states, the last one and, for LSTM, the last cell state; ``layout`` 1 puts the batch first."""
    gates = _GATES[n.node.op_type]
    floats = (0, 1, 2, 3, 5, 6, 7)
    dtype = same_dtype(n, *floats)
    x, w, r = (rank_of(n, i, 3) for i in range(3))
    layout = int_attr(n, "layout", 0)
    n.require(layout in (0, 1), "unknown layout", expected="0 or 1", found=layout)
    directions = _directions(n)
    hidden: DimLike | None = int_attr(n, "hidden_size", 0, low=1) if "hidden_size" in n.node.attributes else None
    for index, weight in ((1, w), (2, r)):
        if weight is None:
            continue
        same_size(n, directions, weight[0], "numbers of directions", value=index)
        if isinstance(weight[1], int) and weight[1] % gates:
            raise n.error("the weight does not divide into gates", expected=f"a multiple of {gates}", found=weight[1])
        size = weight[1] // gates
        hidden = size if hidden is None else same_size(n, hidden, size, "hidden sizes", value=index)
    if r is not None and hidden is not None:
        hidden = same_size(n, hidden, r[2], "hidden sizes", value=2)
    if x is not None and w is not None:
        same_size(n, x[2], w[2], "input sizes", value=1)
    batch: DimLike = n.fresh() if x is None else x[0 if layout else 1]
    steps: DimLike = n.fresh() if x is None else x[1 if layout else 0]
    hidden = n.fresh() if hidden is None else hidden
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    _check_rest(n, gates, directions, hidden, batch, state)
    every = (batch, steps, directions, hidden) if layout else (steps, directions, batch, hidden)
    return [TensorFact(dtype, every), TensorFact(dtype, state), TensorFact(dtype, state)]


@operator("QuantizedLSTM", inputs=4, domain=OWN_DOMAIN)
def quantized_lstm(n: Inference) -> list[Fact]:
    """As LSTM's, from the projected inputs of all directions and R of [directions, hidden, 4 * hidden]."""
    same_dtype(n, 1, 3)
    x, r = rank_of(n, 0, 3), rank_of(n, 1, 3)
    directions = _directions(n)
    hidden: DimLike = n.fresh() if r is None else r[1]
    if r is not None:
        same_size(n, directions, r[0], "numbers of directions", value=1)
        same_size(n, hidden * 4, r[2], "columns", value=1)
    if x is not None:
        same_size(n, hidden * (4 * directions), x[2], "columns", value=0)
    steps, batch = (n.fresh(), n.fresh()) if x is None else x[:2]
    state = (directions, batch, hidden)
    _check_sizes(n, {4: (batch,), 5: state, 6: state, 7: (directions, hidden * 3)})
    dtype = same_dtype(n, 0, 2, 5, 6, 7)
    return [TensorFact(dtype, (steps, *state)), TensorFact(dtype, state), TensorFact(dtype, state)]


def _directions(n: Inference) -> int:
    direction = str_attr(n, "direction", "forward", among=("forward", "reverse", "bidirectional"))
    return 2 if direction == "bidirectional" else 1


def _check_rest(
    n: Inference, gates: int, directions: int, hidden: DimLike, batch: DimLike, state: tuple[DimLike, ...]
) -> None:
    """Bias, sequence lengths, initial states and peepholes."""
    wanted: dict[int, tuple[DimLike, ...]] = {
        3: (directions, hidden * (2 * gates)),
        4: (batch,),
        5: state,
        6: state,
        7: (directions, hidden * 3),
    }
    _check_sizes(n, wanted)


def _check_sizes(n: Inference, wanted: Mapping[int, tuple[DimLike, ...]]) -> None:
    for index, want in wanted.items():
        if n.has(index):
            found = rank_of(n, index, len(want))
            for a, b in zip(want, found or (), strict=False):
                same_size(n, a, b, "sizes", value=index)
