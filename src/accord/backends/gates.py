"""Cells of recurrent layers as expressions of one hidden unit: RNN, GRU, LSTM.

A time step of a cell is one or two *passes*. A pass multiplies a state vector with the recurrence weights of some
gates; from the sums of a unit's gates it computes new states of the same unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from accord.expr.lang import Expr, call, operand
from accord.expr.primitives import abs_, ge, max_, min_, select
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = [
    "CELLS",
    "Activation",
    "Cell",
    "CellKind",
    "Pass",
    "activations_of",
    "hidden_of",
    "read_activations",
]

Activation = Callable[[Expr], Expr]

#: Name in lower case → (function of x, alpha and beta; defaults of those that it uses, as ONNX's operators have them).
_ACTIVATIONS: Final[dict[str, tuple[Callable[[Expr, float, float], Expr], tuple[float, ...]]]] = {
    "affine": (lambda x, a, b: x * a + b, (1.0, 0.0)),
    "elu": (lambda x, a, _: select(ge(x, 0.0), x, call("expm1", x) * a), (1.0,)),
    "hardsigmoid": (lambda x, a, b: max_(0.0, min_(1.0, x * a + b)), (0.2, 0.5)),
    "leakyrelu": (lambda x, a, _: select(ge(x, 0.0), x, x * a), (0.01,)),
    "relu": (lambda x, _a, _b: max_(0.0, x), ()),
    "scaledtanh": (lambda x, a, b: call("tanh", x * b) * a, (1.0, 1.0)),
    "sigmoid": (lambda x, _a, _b: call("sigmoid", x), ()),
    "softplus": (lambda x, _a, _b: call("softplus", x), ()),
    "softsign": (lambda x, _a, _b: x / (abs_(x) + 1.0), ()),
    "tanh": (lambda x, _a, _b: call("tanh", x), ()),
    "thresholdedrelu": (lambda x, a, _: select(ge(x, a), x, 0.0), (1.0,)),
}


def read_activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], clip: float | None
) -> list[Activation] | None:
    """The activations of all directions; None if one is unknown.

    Args:
        names: As the node has them.
        alphas: Values for those activations that use one, in order; defaults stand for what is missing.
        betas: As ``alphas``.
        clip: Bound of an activation's argument, None for none.
    """
    left_alphas, left_betas = iter(alphas), iter(betas)
    found = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            return None
        found.append(_activation(name.lower(), left_alphas, left_betas, clip))
    return found


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> Activation:
    function, defaults = _ACTIVATIONS[name]
    alpha = float(next(alphas, defaults[0])) if defaults else 0.0
    beta = float(next(betas, defaults[1])) if len(defaults) > 1 else 0.0

    def activation(x: Expr) -> Expr:
        return function(x if clip is None else max_(-clip, min_(clip, x)), alpha, beta)

    return activation


@record
class Pass:
    """One product with recurrence weights and what is made of it.

    Attributes:
        gates: The gates whose sums it takes, numbered as the cell's weights have them.
        source: The state that is multiplied: "h", or "rh" (the hidden state after the reset gate).
        reads: What the expressions read besides: operand ``i`` is the sum of gate ``gates[i]``, operand ``n + i`` its
            projected input, where ``n = len(gates)``; then come these, each a state ("h", "c", "z") or a constant of
            the unit ("p0", "p1", "p2": peepholes; "rb": the recurrence bias of the hidden gate).
        writes: States that it makes: "h" is the new hidden state, the others take the place of the old.
    """

    gates: tuple[int, ...]
    source: str
    reads: tuple[str, ...]
    writes: tuple[tuple[str, Expr], ...]


@record
class Cell:
    """A time step.

    Attributes:
        gates: Number of gates.
        states: State vectors besides the hidden state.
        passes: In order.
    """

    gates: int
    states: tuple[str, ...]
    passes: tuple[Pass, ...]


@record
class CellKind:
    """A kind of cell.

    Attributes:
        gates: Number of gates.
        defaults: Activations of one direction.
        make: From the element type, the activations of one direction, whether the input ``constants`` is there, and
            the attribute ``flag`` to the cell.
        constants: Number of an input that holds constants of the units: biases, peepholes.
        flag: Name of an attribute, or "".
    """

    gates: int
    defaults: tuple[str, ...]
    make: Callable[[str, Sequence[Activation], bool, bool], Cell]
    constants: int
    flag: str = ""


def _now(count: int, index: int, dtype: str) -> Expr:
    """The argument of a gate: projected input and recurrent sum."""
    return operand(count + index, dtype) + operand(index, dtype)


def _rnn(dtype: str, activations: Sequence[Activation], biases: bool, flag: bool) -> Cell:
    """``H = f(X W + H R + biases)``."""
    del biases, flag
    return Cell(1, (), (Pass((0,), "h", (), (("h", activations[0](_now(1, 0, dtype))),)),))


def _gru(dtype: str, activations: Sequence[Activation], biases: bool, flag: bool) -> Cell:
    """Gates in the order update, reset, hidden; with ``flag`` the reset gate acts on the recurrent sum."""
    f, g = activations
    if flag:
        h, total = operand(6, dtype), operand(2, dtype)
        update, reset = f(_now(3, 0, dtype)), f(_now(3, 1, dtype))
        hidden = g(operand(5, dtype) + reset * (total + operand(7, dtype) if biases else total))
        reads = ("h", "rb") if biases else ("h",)
        return Cell(3, (), (Pass((0, 1, 2), "h", reads, (("h", _mixed(update, hidden, h)),)),))
    h = operand(4, dtype)
    first = Pass((0, 1), "h", ("h",), (("z", f(_now(2, 0, dtype))), ("rh", f(_now(2, 1, dtype)) * h)))
    hidden = g(_now(1, 0, dtype))
    second = Pass((2,), "rh", ("h", "z"), (("h", _mixed(operand(3, dtype), hidden, operand(2, dtype))),))
    return Cell(3, ("z", "rh"), (first, second))


def _mixed(update: Expr, new: Expr, old: Expr) -> Expr:
    return (1.0 - update) * new + update * old


def _lstm(dtype: str, activations: Sequence[Activation], peepholes: bool, flag: bool) -> Cell:
    """Gates in the order input, output, forget, cell; with ``flag`` the forget gate is one minus the input gate."""
    f, g, h_of = activations
    c = operand(8, dtype)
    i_in, o_in, f_in, c_in = (_now(4, k, dtype) for k in range(4))

    def seen(x: Expr, state: Expr, index: int) -> Expr:
        """The argument of a gate that looks at the cell state through peephole ``index``."""
        return x + operand(9 + index, dtype) * state if peepholes else x

    i = f(seen(i_in, c, 0))
    forget = 1.0 - i if flag else f(seen(f_in, c, 2))
    cell = forget * c + i * g(c_in)
    o = f(seen(o_in, cell, 1))
    reads = ("c", "p0", "p1", "p2") if peepholes else ("c",)
    return Cell(4, ("c",), (Pass((0, 1, 2, 3), "h", reads, (("h", o * h_of(cell)), ("c", cell))),))


#: Operator → its kind of cell.
CELLS: Final[dict[str, CellKind]] = {
    "RNN": CellKind(1, ("Tanh",), _rnn, 3),
    "GRU": CellKind(3, ("Sigmoid", "Tanh"), _gru, 3, "linear_before_reset"),
    "LSTM": CellKind(4, ("Sigmoid", "Tanh", "Tanh"), _lstm, 7, "input_forget"),
}


def activations_of(view: NodeView, kind: CellKind, directions: int) -> list[Activation] | None:
    """The activations of all directions; None if one is missing or unknown."""
    names = list(view.attr("activations") or kind.defaults * directions)
    count = len(kind.defaults) * directions
    # RNN's own default names two, whatever the direction
    found = read_activations(
        names[:count], view.attr("activation_alpha") or (), view.attr("activation_beta") or (), view.attr("clip")
    )
    return found if len(names) >= count else None


def hidden_of(view: NodeView, gates: int) -> DimLike:
    """Hidden units; an integer if some operand or the attribute tells."""
    sizes: list[DimLike] = []
    for index, axis, parts in ((2, 2, 1), (2, 1, gates), (1, 1, gates), (3, 1, 2 * gates), (5, 2, 1), (7, 1, 3)):
        shape = view.tensor(index).shape if view.has(index) else None
        if shape is not None:
            sizes.append(D.floordiv(shape[axis], parts))
    sizes.append(view.attr("hidden_size", sizes[0]))
    return next((size for size in sizes if isinstance(size, int)), sizes[0])
