"""Mathematical functions, and their expansion into primitives.

A function is an expression like any other, ``call("exp", x)``; its operands are f32 or f64 and so is its result.
:func:`expand` replaces it by primitives, unless the printer says that it prints that function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from accord.expr.functions import binary, error, exponential, inverse, logarithm, power, trigonometric
from accord.expr.lang import Expr, _make, topological
from accord.expr.primitives import PRIMITIVES, select

__all__ = ["FUNCTIONS", "PRIMITIVES", "expand"]

#: Functions by name.
FUNCTIONS: Final[dict[str, Callable[..., Expr]]] = {
    "acos": inverse.acos,
    "acosh": logarithm.acosh,
    "asin": inverse.asin,
    "asinh": logarithm.asinh,
    "atan": inverse.atan,
    "atanh": logarithm.atanh,
    "cos": trigonometric.cos,
    "cosh": exponential.cosh,
    "erf": error.erf,
    "erfc": error.erfc,
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "gelu_erf": error.gelu_erf,
    "gelu_tanh": exponential.gelu_tanh,
    "log": logarithm.log,
    "log1p": logarithm.log1p,
    "log2": logarithm.log2,
    "mish": exponential.mish,
    "pow": power.pow_,
    "reciprocal": power.reciprocal,
    "rsqrt": power.rsqrt,
    "sigmoid": exponential.sigmoid,
    "silu": exponential.silu,
    "sin": trigonometric.sin,
    "sinh": exponential.sinh,
    "softplus": exponential.softplus,
    "tan": trigonometric.tan,
    "tanh": exponential.tanh,
}

_STAND_FOR: Final[dict[str, Callable[..., Expr]]] = {
    "ldexp": binary.ldexp,
    "exponent": binary.exponent,
    "mantissa": binary.mantissa,
    "rare": select,
}


def expand(expr: Expr, *, keep: Set[str] = frozenset(), lower: Set[str] = frozenset()) -> Expr:
    done: dict[Expr, Expr] = {}
    for node in topological((expr,)):
        args = tuple(done[a] for a in node.args)
        if node.op in FUNCTIONS and node.op not in keep:
            done[node] = expand(FUNCTIONS[node.op](*args), keep=keep, lower=lower)
        elif node.op in lower and node.op in _STAND_FOR:
            done[node] = expand(_STAND_FOR[node.op](*args), keep=keep, lower=lower)
        elif args == node.args:
            done[node] = node
        else:
            done[node] = _make(node.op, args, node.dtype, node.value)
    return done[expr]
