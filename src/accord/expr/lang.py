"""Expressions: immutable, typed, shared.

An expression says how one output element is computed from one element of each operand. It knows nothing of shapes,
loops or devices. Equal expressions are one object (hash-consing), so a value that is used twice is computed once and a
whole kernel has a stable key.

Element types are short strings: ``f16 bf16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 bool``. Storage of f16 and bf16 is
narrow, arithmetic on them is done in f32: builders widen on load and :func:`cast` narrows on store.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Container, Iterable
from typing import Final
from weakref import WeakValueDictionary

__all__ = [
    "DTYPES",
    "FLOATS",
    "INTS",
    "SIGNED",
    "Expr",
    "bits",
    "call",
    "cast",
    "const",
    "operand",
    "rebuild",
    "topological",
]

FLOATS: Final = frozenset({"f16", "bf16", "f32", "f64"})
SIGNED: Final = frozenset({"i8", "i16", "i32", "i64"})
INTS: Final = SIGNED | {"u8", "u16", "u32", "u64"}
DTYPES: Final = FLOATS | INTS | {"bool"}


class Expr:
    """One operation on expressions. Build with :func:`operand`, :func:`const`, :func:`call`, :func:`cast`.

    The operators ``+ - * / & | ^ ~`` build "add", "sub", "mul", "div", "and", "or", "xor" and "not"; a Python number
    beside an expression is a constant of its type.

    Attributes:
        op: Name of the operation: "operand", "const", "cast", or a primitive or function of :mod:`accord.expr.math`.
        args: Operands.
        dtype: Type of the result.
        value: For "const" the number (float, int or bool), for "operand" its index; else None.
    """

    __slots__ = ("__weakref__", "_hash", "args", "dtype", "op", "value")

    _hash: int
    op: str
    args: tuple[Expr, ...]
    dtype: str
    value: float | int | bool | None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other

    def __reduce__(self) -> tuple[object, ...]:
        return _make, (self.op, self.args, self.dtype, self.value)

    def __repr__(self) -> str:
        if self.op == "const":
            return f"{self.value!r}:{self.dtype}"
        if self.op == "operand":
            return f"x{self.value}:{self.dtype}"
        return f"{self.op}({', '.join(map(repr, self.args))}):{self.dtype}"

    @property
    def key(self) -> str:
        """A text that is the same for equal expressions in every process: for caches.

        Its length is linear in the number of different subexpressions, which that of ``repr`` is not.
        """
        number: dict[Expr, int] = {}
        parts = []
        for node in topological((self,)):
            number[node] = len(number)
            value = "" if node.value is None else repr(node.value)
            parts.append(f"{node.op}:{node.dtype}({value}{','.join(str(number[a]) for a in node.args)})")
        return ";".join(parts)

    def __add__(self, other: Expr | float) -> Expr:
        return _make("add", (self, _like(other, self)), self.dtype)

    def __radd__(self, other: float) -> Expr:
        return _make("add", (_like(other, self), self), self.dtype)

    def __sub__(self, other: Expr | float) -> Expr:
        return _make("sub", (self, _like(other, self)), self.dtype)

    def __rsub__(self, other: float) -> Expr:
        return _make("sub", (_like(other, self), self), self.dtype)

    def __mul__(self, other: Expr | float) -> Expr:
        return _make("mul", (self, _like(other, self)), self.dtype)

    def __rmul__(self, other: float) -> Expr:
        return _make("mul", (_like(other, self), self), self.dtype)

    def __truediv__(self, other: Expr | float) -> Expr:
        return _make("div", (self, _like(other, self)), self.dtype)

    def __rtruediv__(self, other: float) -> Expr:
        return _make("div", (_like(other, self), self), self.dtype)

    def __and__(self, other: Expr | int) -> Expr:
        return _make("and", (self, _like(other, self)), self.dtype)

    def __or__(self, other: Expr | int) -> Expr:
        return _make("or", (self, _like(other, self)), self.dtype)

    def __xor__(self, other: Expr | int) -> Expr:
        return _make("xor", (self, _like(other, self)), self.dtype)

    def __invert__(self) -> Expr:
        return _make("not", (self,), self.dtype)

    def __neg__(self) -> Expr:
        return _make("neg", (self,), self.dtype)


_LOCK = threading.Lock()
_TABLE: WeakValueDictionary[object, Expr] = WeakValueDictionary()


def _make(op: str, args: tuple[Expr, ...], dtype: str, value: float | int | bool | None = None) -> Expr:
    if dtype not in DTYPES:
        raise ValueError(f"unknown element type {dtype!r}")
    # NaN and -0.0 differ from other constants by their bits, not by ==
    bits_of = struct.pack("<d", value) if isinstance(value, float) else value
    key = (op, args, dtype, type(value), bits_of)
    with _LOCK:
        found = _TABLE.get(key)
        if found is None:
            found = Expr()
            found.op, found.args, found.dtype, found.value = op, args, dtype, value
            found._hash = hash(key)
            _TABLE[key] = found
        return found


def _like(value: Expr | float, other: Expr) -> Expr:
    return value if isinstance(value, Expr) else const(value, other.dtype)


def _round_bf16(value: float) -> float:
    if not math.isfinite(value) or value == 0:
        return value
    quantum = math.ldexp(1.0, max(math.frexp(value)[1] - 8, -133))
    rounded = round(value / quantum) * quantum
    return math.copysign(math.inf if abs(rounded) >= 2.0**128 else abs(rounded), value)


def _round(value: float, dtype: str) -> float:
    """``value`` rounded to the nearest float of type ``dtype``, ties to even."""
    if dtype == "f64":
        return value
    if dtype == "bf16":
        return _round_bf16(value)
    code = "<f" if dtype == "f32" else "<e"
    try:
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def operand(index: int, dtype: str) -> Expr:
    """Element of operand ``index``."""
    return _make("operand", (), dtype, index)


def const(value: float | int | bool, dtype: str) -> Expr:
    """A constant of type ``dtype``; floats are rounded to it.

    Raises:
        ValueError: An integer does not fit ``dtype``.
    """
    if dtype in FLOATS:
        value = _round(float(value), dtype)
    elif dtype == "bool":
        value = bool(value)
    else:
        value = int(value)
        low = -(1 << bits(dtype) - 1) if dtype in SIGNED else 0
        if not low <= value < low + (1 << bits(dtype)):
            raise ValueError(f"{value} does not fit {dtype}")
    return _make("const", (), dtype, value)


def call(op: str, *args: Expr, dtype: str | None = None) -> Expr:
    """Operation ``op`` on ``args``; the result has the type of the first argument unless ``dtype`` says otherwise."""
    return _make(op, args, args[0].dtype if dtype is None else dtype)


def cast(x: Expr, dtype: str) -> Expr:
    """``x`` as ``dtype``: numeric conversion; float → int truncates toward zero; anything → bool is ``x != 0``.

    An integer that does not fit keeps its low bits. A float that does not fit an integer type, and NaN, give: for 32
    and 64 bits signed the lowest integer; for narrower types the low bits of what i32 gives; for u32 the low bits of
    what i64 gives; for u64, the low bits of what i64 gives below 2**63, and 0 from 2**64 on. NumPy and ONNX Runtime do
    mostly the same on x86, the ONNX specification leaves it open. f64 → f16 and bf16 round once.
    """
    return x if x.dtype == dtype else _make("cast", (x,), dtype)


def rebuild(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """``node`` with other operands of the same types."""
    return node if args == node.args else _make(node.op, args, node.dtype, node.value)


def bits(dtype: str) -> int:
    """Size of an element in memory, in bits; bool takes a byte."""
    return 8 if dtype == "bool" else int(dtype.lstrip("fiub"))


def topological(roots: Iterable[Expr], known: Container[Expr] = ()) -> list[Expr]:
    """All subexpressions of ``roots``, each once, operands before users; nothing in ``known`` or only reached by it.

    Iterative, so depth is not limited.
    """
    order: list[Expr] = []
    done: set[Expr] = set()
    stack = [(root, False) for root in roots]
    stack.reverse()
    while stack:
        node, ready = stack.pop()
        if node in done or node in known:
            continue
        if ready:
            done.add(node)
            order.append(node)
            continue
        stack.append((node, True))
        stack.extend((a, False) for a in reversed(node.args) if a not in done)
    return order
