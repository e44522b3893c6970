"""Mathematical functions, and their expansion into primitives.

A function is an expression like any other, ``call("exp", x)``; its operands are f32 or f64 and so is its result. f16
and bf16 are widened by whoever builds the expression. :func:`expand` replaces functions by primitives, except those
that a printer says it prints itself.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from accord.expr.functions import binary, error, exponential, inverse, logarithm, power, remainder, trigonometric
from accord.expr.lang import Expr, rebuild, topological
from accord.expr.primitives import PRIMITIVES, select
from accord.expr.simplify import simplify

__all__ = ["FUNCTIONS", "PRIMITIVES", "expand"]

#: Functions by name; what they build is made of primitives.
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
    "floor_mod": remainder.floor_mod,
    "fmod": remainder.fmod,
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

#: What stands for a primitive on a machine that lacks it.
_STAND_INS: Final[dict[str, Callable[..., Expr]]] = {
    "exponent": binary.exponent,
    "ldexp": binary.ldexp,
    "mantissa": binary.mantissa,
    "rare": select,
}


def expand(expr: Expr, *, keep: Set[str] = frozenset(), lower: Set[str] = frozenset()) -> Expr:
    """``expr`` simplified and in primitives.

    Args:
        expr: Primitives and functions.
        keep: Functions that stay as they are, because the printer has its own.
        lower: Primitives out of "ldexp", "exponent", "mantissa" and "rare" that the printer lacks; they are replaced by
            simpler ones, with the same results ("rare" becomes "select").

    Raises:
        ValueError: ``lower`` names another primitive.
    """
    unknown = lower - _STAND_INS.keys()
    if unknown:
        raise ValueError(f"nothing stands for the primitives {sorted(unknown)}")
    return _expand(simplify(expr), keep, lower, {})


def _expand(expr: Expr, keep: Set[str], lower: Set[str], done: dict[Expr, Expr]) -> Expr:
    for node in topological((expr,), done):
        args = tuple(done[a] for a in node.args)
        maker = FUNCTIONS.get(node.op) if node.op not in keep else None
        if maker is None and node.op in lower:
            maker = _STAND_INS[node.op]
        # what a function makes is expanded in turn: its operands are done already, so the depth is that of functions
        done[node] = rebuild(node, args) if maker is None else _expand(maker(*args), keep, lower, done)
        done[done[node]] = done[node]
    return done[expr]
