"""The primitives: the closed set of operations that every printer knows, and functions that build them.

===============  ======================================================================================================
operand, const   an element of an operand; a number
cast             numeric conversion between any two types, see :func:`accord.expr.lang.cast`
add sub mul      floats: IEEE 754, one rounding to nearest even; integers: modulo 2**n
div              floats
fma              floats: ``a * b + c`` with one rounding
neg abs          floats: the sign bit only; integers: modulo 2**n, so ``abs`` of the lowest integer is itself
min max          floats: NaN if an operand is NaN; of zeros of different sign the second operand. Integers, bool
sqrt             floats: correctly rounded, NaN below zero
floor ceil       floats
round trunc      floats: to the nearest integer, ties to even; toward zero
lt le gt ge      → bool; false if an operand is NaN
eq ne            → bool; ``ne`` is true and ``eq`` false if an operand is NaN
isnan            → bool
select           ``select(c, a, b)``: a where c, else b. Any type
rare             as ``select``; says that c is false for nearly all elements, so that a printer may branch around a
and or xor not   integers: bitwise; bool: logical
shl shr          integers: by the second operand taken as unsigned; ``shr`` of a signed integer repeats its sign. By the
                 number of bits or more gives 0, or the sign in all bits
bitcast          the same bits as another type of the same size
idiv irem        integers: quotient toward zero, remainder with the dividend's sign. By zero both give 0; the lowest
                 integer by -1 gives itself and 0. Nothing traps
ldexp            floats: ``ldexp(x, n)`` is x * 2**n, n an integer in the type of x with abs(n) <= 252 (f32) or 2044
                 (f64); overflows to infinity, NaN if x is NaN. Rounded once if x is normal or n >= 0. Beyond, for
                 infinite n too, 0 or infinity if x lies between 2**-60 and 2**60
exponent         floats: floor(log2(abs(x))); -inf for 0, inf for infinities, NaN for NaN. Exact for subnormals
mantissa         floats: x > 0 scaled by a power of two into [3/4, 3/2); 1 for 0 and inf, -1 for -0; NaN below zero and
                 for NaN
===============  ======================================================================================================

f16 and bf16 take part in operand, const, cast, select, rare and bitcast only.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from accord.expr.lang import DTYPES, INTS, Expr, bits, call, const, topological

__all__ = [
    "PRIMITIVES",
    "abs_",
    "bitcast",
    "check",
    "copysign",
    "eq",
    "fma",
    "fnma",
    "ge",
    "gt",
    "idiv",
    "irem",
    "isnan",
    "le",
    "lt",
    "max_",
    "min_",
    "ne",
    "rare",
    "select",
    "shl",
    "shr",
    "sqrt",
]

_REAL: Final = frozenset({"f32", "f64"})
_NUMBER: Final = _REAL | INTS
_LOGICAL: Final = INTS | {"bool"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Signature:
    """Operand count; types of the operands; "same" or the result's type; whether a bool condition comes first."""

    arity: int
    types: frozenset[str]
    result: str = "same"
    condition: bool = False


_ONE_REAL: Final = _Signature(1, _REAL)
_COMPARE: Final = _Signature(2, _NUMBER | {"bool"}, "bool")
_CHOICE: Final = _Signature(3, DTYPES, condition=True)

PRIMITIVES: Final[dict[str, _Signature]] = {
    **dict.fromkeys(("add", "sub", "mul"), _Signature(2, _NUMBER)),
    "div": _Signature(2, _REAL),
    "fma": _Signature(3, _REAL),
    **dict.fromkeys(("neg", "abs"), _Signature(1, _NUMBER)),
    **dict.fromkeys(("min", "max"), _Signature(2, _NUMBER | {"bool"})),
    **dict.fromkeys(("sqrt", "floor", "ceil", "round", "trunc", "exponent", "mantissa"), _ONE_REAL),
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), _COMPARE),
    "isnan": _Signature(1, _REAL, "bool"),
    **dict.fromkeys(("select", "rare"), _CHOICE),
    **dict.fromkeys(("and", "or", "xor"), _Signature(2, _LOGICAL)),
    "not": _Signature(1, _LOGICAL),
    **dict.fromkeys(("shl", "shr", "idiv", "irem"), _Signature(2, INTS)),
    "ldexp": _Signature(2, _REAL),
}


def check(expr: Expr) -> None:
    """Verify that ``expr`` is made of well-typed primitives only.

    Raises:
        ValueError: Names the first subexpression that is not.
    """
    for node in topological((expr,)):
        if node.op in ("operand", "const"):
            continue
        if node.op == "cast" and len(node.args) == 1:
            continue
        if node.op == "bitcast" and len(node.args) == 1 and bits(node.dtype) == bits(node.args[0].dtype):
            continue
        signature = PRIMITIVES.get(node.op)
        if signature is None or not _fits(node, signature):
            found = ", ".join(a.dtype for a in node.args)
            raise ValueError(f"{node.op}({found}) -> {node.dtype} is not a primitive")


def _fits(node: Expr, signature: _Signature) -> bool:
    types = [a.dtype for a in node.args]
    if len(types) != signature.arity:
        return False
    if signature.condition and types.pop(0) != "bool":
        return False
    result = types[0] if signature.result == "same" else signature.result
    return types[0] in signature.types and len(set(types)) == 1 and node.dtype == result


def _pair(a: Expr | float, b: Expr | float) -> tuple[Expr, Expr]:
    """Both as expressions; a number takes the other's type."""
    if isinstance(a, Expr):
        return a, b if isinstance(b, Expr) else const(b, a.dtype)
    if isinstance(b, Expr):
        return const(a, b.dtype), b
    raise TypeError("one operand must be an expression")


def fma(a: Expr, b: Expr | float, c: Expr | float) -> Expr:
    """``a * b + c`` rounded once."""
    return call("fma", a, _pair(a, b)[1], _pair(a, c)[1])


def fnma(a: Expr, b: float, c: Expr) -> Expr:
    """``c - a * b`` rounded once, for a constant ``b``."""
    return call("fma", a, const(-b, a.dtype), c)


def max_(a: Expr | float, b: Expr | float) -> Expr:
    """The greater; a number is put first, where its printed form is one instruction."""
    return call("max", *_constant_first(*_pair(a, b)))


def min_(a: Expr | float, b: Expr | float) -> Expr:
    """The smaller; a number is put first, where its printed form is one instruction."""
    return call("min", *_constant_first(*_pair(a, b)))


def _constant_first(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    return (b, a) if b.op == "const" and a.op != "const" else (a, b)


def abs_(x: Expr) -> Expr:
    """Absolute value."""
    return call("abs", x)


def sqrt(x: Expr) -> Expr:
    """Square root."""
    return call("sqrt", x)


def isnan(x: Expr) -> Expr:
    """Whether ``x`` is NaN."""
    return call("isnan", x, dtype="bool")


def lt(a: Expr | float, b: Expr | float) -> Expr:
    """``a < b``."""
    return call("lt", *_pair(a, b), dtype="bool")


def le(a: Expr | float, b: Expr | float) -> Expr:
    """``a <= b``."""
    return call("le", *_pair(a, b), dtype="bool")


def gt(a: Expr | float, b: Expr | float) -> Expr:
    """``a > b``."""
    return call("gt", *_pair(a, b), dtype="bool")


def ge(a: Expr | float, b: Expr | float) -> Expr:
    """``a >= b``."""
    return call("ge", *_pair(a, b), dtype="bool")


def eq(a: Expr | float, b: Expr | float) -> Expr:
    """``a == b``."""
    return call("eq", *_pair(a, b), dtype="bool")


def ne(a: Expr | float, b: Expr | float) -> Expr:
    """``a != b``."""
    return call("ne", *_pair(a, b), dtype="bool")


def select(condition: Expr, a: Expr | float, b: Expr | float) -> Expr:
    """``a`` where ``condition``, else ``b``."""
    a, b = _pair(a, b)
    return call("select", condition, a, b, dtype=a.dtype)


def rare(condition: Expr, uncommon: Expr | float, common: Expr | float) -> Expr:
    """``uncommon`` where ``condition``, which is nearly never, else ``common``."""
    uncommon, common = _pair(uncommon, common)
    return call("rare", condition, uncommon, common, dtype=common.dtype)


def shl(x: Expr, count: Expr | int) -> Expr:
    """Shift left."""
    return call("shl", *_pair(x, count))


def shr(x: Expr, count: Expr | int) -> Expr:
    """Shift right: zeros enter an unsigned integer, the sign a signed one."""
    return call("shr", *_pair(x, count))


def idiv(a: Expr, b: Expr | int) -> Expr:
    """Integer quotient toward zero."""
    return call("idiv", *_pair(a, b))


def irem(a: Expr, b: Expr | int) -> Expr:
    """Remainder of :func:`idiv`."""
    return call("irem", *_pair(a, b))


def bitcast(x: Expr, dtype: str) -> Expr:
    """The bits of ``x`` read as ``dtype``.

    Raises:
        ValueError: The sizes differ.
    """
    if bits(dtype) != bits(x.dtype) or "bool" in (dtype, x.dtype):
        raise ValueError(f"{x.dtype} and {dtype} differ in size")
    return x if x.dtype == dtype else call("bitcast", x, dtype=dtype)


def copysign(magnitude: Expr, sign: Expr) -> Expr:
    """``magnitude``, a float whose sign bit is clear, with the sign of ``sign``."""
    width = bits(sign.dtype)
    bit = bitcast(sign, f"u{width}") & (1 << (width - 1))
    return bitcast(bitcast(magnitude, f"u{width}") | bit, magnitude.dtype)
