"""Rewriting of expressions that never changes a result, up to the payload of a NaN."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Final

from accord.expr.fold import fold
from accord.expr.lang import FLOATS, INTS, SIGNED, Expr, bits, call, cast, const, rebuild, topological

__all__ = ["simplify"]

_SIGNIFICAND: Final = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_EXPONENT: Final = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}
_TO_WHOLE: Final = frozenset({"floor", "ceil", "round", "trunc"})


@functools.lru_cache(maxsize=1024)
def simplify(expr: Expr) -> Expr:
    """An expression of the same values with fewer operations: constants folded, identities and cast chains removed."""
    done: dict[Expr, Expr] = {}
    for node in topological((expr,)):
        done[node] = _rewritten(rebuild(node, tuple(done[a] for a in node.args)))
    return done[expr]


def _rewritten(node: Expr) -> Expr:
    while True:
        following = fold(node)
        rule = _RULES.get(following.op)
        if rule is not None:
            following = rule(following)
        if following is node:
            return node
        node = following


def _is(x: Expr, value: float) -> bool:
    """Whether ``x`` is this constant; zeros of different sign are different."""
    if x.op != "const" or x.value is None or x.value != value:
        return False
    return value != 0 or x.dtype not in FLOATS or math.copysign(1, x.value) == math.copysign(1, value)


def _add(node: Expr) -> Expr:
    a, b = node.args
    if _is(b, -0.0 if node.dtype in FLOATS else 0):
        return a
    if _is(a, -0.0 if node.dtype in FLOATS else 0):
        return b
    if b.op == "neg":
        return a - b.args[0]
    return b - a.args[0] if a.op == "neg" else node


def _sub(node: Expr) -> Expr:
    a, b = node.args
    if _is(b, 0):
        return a
    return a + b.args[0] if b.op == "neg" else node


def _mul(node: Expr) -> Expr:
    a, b = node.args
    if a.op == "const" and b.op != "const":
        a, b = b, a
    if _is(b, 1):
        return a
    if node.dtype not in INTS - SIGNED and _is(b, -1):
        return -a
    if node.dtype in INTS and _is(b, 0):
        return b
    return a.args[0] * b.args[0] if a.op == b.op == "neg" else node


def _div(node: Expr) -> Expr:
    a, b = node.args
    if _is(b, 1):
        return a
    if _is(b, -1):
        return -a
    if b.op == "const" and b.value:
        m, e = math.frexp(float(b.value))
        # the reciprocal of a power of two is exact while it is a normal number
        if abs(m) == 0.5 and abs(e) < 2 ** (_EXPONENT[node.dtype] - 1) - 2:
            return a * (1 / float(b.value))
    return node


def _neg(node: Expr) -> Expr:
    (a,) = node.args
    return a.args[0] if a.op == "neg" else node


def _abs(node: Expr) -> Expr:
    (a,) = node.args
    if a.op == "abs" or node.dtype in INTS - SIGNED:
        return a
    return call("abs", a.args[0]) if a.op == "neg" else node


def _extreme(node: Expr) -> Expr:
    a, b = node.args
    if a is b:
        return a
    # of constants a first one is printed as one instruction, but which zero wins depends on the order
    if b.op == "const" and a.op != "const" and b.value != 0 and b.value == b.value:
        return call(node.op, b, a)
    return node


def _select(node: Expr) -> Expr:
    condition, a, b = node.args
    if condition.op == "const":
        return a if condition.value else b
    if a is b:
        return a
    if condition.op == "not" and node.op == "select":
        return call("select", condition.args[0], b, a, dtype=node.dtype)
    return node


def _not(node: Expr) -> Expr:
    (a,) = node.args
    if a.op == "not":
        return a.args[0]
    opposite = {"eq": "ne", "ne": "eq"}.get(a.op)
    return node if opposite is None else call(opposite, *a.args, dtype="bool")


def _bits(node: Expr) -> Expr:
    a, b = node.args
    if a is b:
        return const(0, node.dtype) if node.op == "xor" else a
    if a.op == "const":
        a, b = b, a
    if b.op != "const":
        return node
    ones = b.value is True or (b.value == -1 and node.dtype in SIGNED)
    ones = ones or (node.dtype in INTS - SIGNED and b.value == (1 << bits(node.dtype)) - 1)
    if not b.value:
        return b if node.op == "and" else a
    if ones:
        return {"and": a, "or": b, "xor": ~a}[node.op]
    return node


def _shift(node: Expr) -> Expr:
    a, b = node.args
    return a if _is(b, 0) else node


def _whole(node: Expr) -> Expr:
    (a,) = node.args
    from_integer = a.op == "cast" and a.args[0].dtype in INTS | {"bool"}
    return a if a.op in _TO_WHOLE or from_integer else node


def _holds(wide: str, narrow: str) -> bool:
    """Whether every value of type ``narrow`` is one of ``wide``."""
    if narrow in (wide, "bool"):
        return True
    if narrow in FLOATS:
        if wide not in FLOATS:
            return False
        return _SIGNIFICAND[wide] >= _SIGNIFICAND[narrow] and _EXPONENT[wide] >= _EXPONENT[narrow]
    if wide == "bool":
        return False
    magnitude = bits(narrow) - (narrow in SIGNED)
    if wide in FLOATS:
        return magnitude <= _SIGNIFICAND[wide] and magnitude < 2 ** (_EXPONENT[wide] - 1)
    return magnitude <= bits(wide) - (wide in SIGNED) and (wide in SIGNED or narrow not in SIGNED)


def _cast(node: Expr) -> Expr:
    (middle,) = node.args
    if node.dtype == middle.dtype:
        return middle
    if middle.op != "cast":
        return node
    (x,) = middle.args
    kinds = [("f" if t in FLOATS else "b" if t == "bool" else "i") for t in (x.dtype, middle.dtype, node.dtype)]
    if _holds(middle.dtype, x.dtype):
        # integer → float → narrower integer is not the integer's low bits
        if kinds != ["i", "f", "i"] or _holds(node.dtype, x.dtype):
            return cast(x, node.dtype)
    elif kinds == ["i", "i", "i"] and bits(node.dtype) <= bits(middle.dtype):
        return cast(x, node.dtype)
    return node


def _bitcast(node: Expr) -> Expr:
    (a,) = node.args
    if a.dtype == node.dtype:
        return a
    if a.op == "bitcast":
        (x,) = a.args
        return x if x.dtype == node.dtype else call("bitcast", x, dtype=node.dtype)
    return node


_RULES: Final[dict[str, Callable[[Expr], Expr]]] = {
    "abs": _abs,
    "add": _add,
    "bitcast": _bitcast,
    "cast": _cast,
    "div": _div,
    "mul": _mul,
    "neg": _neg,
    "not": _not,
    "sub": _sub,
    **dict.fromkeys(("and", "or", "xor"), _bits),
    **dict.fromkeys(("min", "max"), _extreme),
    **dict.fromkeys(("select", "rare"), _select),
    **dict.fromkeys(("shl", "shr"), _shift),
    **dict.fromkeys(_TO_WHOLE, _whole),
}
