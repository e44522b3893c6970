"""Expressions as LLVM vector code.

Every primitive becomes straight-line vector code without a call: operations that LLVM would hand to a library, or do
element by element, are written out here (bf16 rounding, f64 → f16, narrow integer division).
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Final

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, scalar
from accord.backends.cpu.registers import X86_PRIMITIVES, Registers
from accord.errors import CompileError
from accord.expr.lang import FLOATS, INTS, SIGNED, Expr, bits

__all__ = ["Printer"]

_FLOAT_COMPARE: Final = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_INT_COMPARE: Final = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_UNARY_INTRINSIC: Final = {
    "abs": "fabs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "round": "roundeven",
    "trunc": "trunc",
}
_BINARY: Final = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_RARE_WEIGHTS: Final = '!prof !{!"branch_weights", i32 1, i32 2000}'


@functools.cache
def _missing() -> frozenset[str]:
    """Primitives that have no instruction here and are printed as what they stand for."""
    return frozenset() if {"avx512f", "avx512vl", "avx512dq"} <= machine().has else frozenset(X86_PRIMITIVES)


@functools.lru_cache(maxsize=256)
def _lowered(expr: Expr, missing: frozenset[str]) -> Expr:
    from accord.expr.math import expand  # what starts a stored kernel expands nothing

    return expand(expr, lower=missing)


def _literal(value: float | int | bool, dtype: str) -> str:
    """A scalar constant in LLVM's syntax."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in INTS:
        size = bits(dtype)
        return str(int(value) - ((int(value) >> (size - 1)) << size if value > 0 else 0))
    if dtype == "f16":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if dtype == "bf16":
        return str(struct.unpack("<i", struct.pack("<f", value))[0] >> 16)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class Printer(Registers):
    """Writes expressions at one place of a function.

    Values that were written are reused, so one printer serves one basic block and one set of operands.

    Args:
        builder: Receives the code.
        width: Elements of a value, a power of two; 1 for scalars.
        missing: Primitives to be printed as what they stand for; by default those that the machine lacks.
    """

    def __init__(self, builder: Builder, width: int, missing: frozenset[str] | None = None) -> None:
        super().__init__(builder, width)
        self._missing = _missing() if missing is None else missing
        self._operands: tuple[str, ...] = ()
        self._names: dict[Expr, str] = {}

    # expressions

    def value(self, expr: Expr, operands: Sequence[str]) -> str:
        """SSA name of the value of ``expr``.

        Args:
            expr: Primitives and functions.
            operands: SSA names of the operands' vectors in the expression's operand types, bool as i1.

        Raises:
            CompileError: An operation is not known.
        """
        if tuple(operands) != self._operands:
            self._operands = tuple(operands)
            self._names.clear()
        return self._write(_lowered(expr, self._missing))

    def _write(self, root: Expr) -> str:
        """Write what is not yet written, operands first; the uncommon operand of "rare" is left to its branch."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self._names:
                stack.pop()
                continue
            needed = (node.args[0], node.args[2]) if node.op == "rare" else node.args
            waiting = [a for a in needed if a not in self._names]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            self._names[node] = self._node(node)
            stack.pop()
        return self._names[root]

    def _node(self, node: Expr) -> str:
        if node.value is not None:
            return self._const(node.value, node.dtype) if node.op == "const" else self._operands[int(node.value)]
        if node.op == "rare":
            return self._rare(node)
        writer = _WRITERS.get(node.op)
        if writer is None:
            raise CompileError(f"'{node.op}' is neither a primitive nor a function of expressions")
        return writer(self, node, [self._names[a] for a in node.args])

    def _const(self, value: float | int | bool, dtype: str) -> str:
        if not value and math.copysign(1.0, value) > 0:
            return "zeroinitializer" if self.width > 1 else _literal(value, dtype)
        return self._spread(_literal(value, dtype), dtype)

    def _rare(self, node: Expr) -> str:
        """Compute the uncommon operand only if some element needs it."""
        b = self._b
        condition, uncommon, common = node.args
        mask, usual = self._names[condition], self._names[common]
        some = self._any(mask)
        before = b.block
        then, after = b.fresh("rare").lstrip("%"), b.fresh("join").lstrip("%")
        b.emit(f"br i1 {some}, label %{then}, label %{after}, {_RARE_WEIGHTS}")
        b.label(then)
        outside = dict(self._names)
        unusual = self._write(uncommon)
        type_ = self._type(node.dtype)
        chosen = self._choose(mask, node.dtype, unusual, usual)
        latch = b.block
        b.emit(f"br label %{after}")
        b.label(after)
        self._names = outside  # what the branch wrote is not defined on the way around it
        return self._op(f"phi {type_} [ {usual}, %{before} ], [ {chosen}, %{latch} ]")

    def _compare(self, predicate: str, dtype: str, a: str, b: str) -> str:
        kind = "fcmp" if dtype in FLOATS else "icmp"
        return self._op(f"{kind} {predicate} {self._type(dtype)} {a}, {b}")

    # operations, each called with the node and the names of its operands

    def _arithmetic(self, node: Expr, a: list[str]) -> str:
        name = _BINARY[node.op]
        result = self._binary("f" + name if node.dtype in FLOATS else name, node.dtype, *a)
        return self._bitwise_result(node.dtype, result) if name in ("and", "or", "xor") else result

    def _div(self, node: Expr, a: list[str]) -> str:
        return self._binary("fdiv", node.dtype, *a)

    def _fma(self, node: Expr, a: list[str]) -> str:
        return self._same("fma", node.dtype, *a)

    def _neg(self, node: Expr, a: list[str]) -> str:
        if node.dtype in FLOATS:
            return self._op(f"fneg {self._type(node.dtype)} {a[0]}")
        return self._binary("sub", node.dtype, self._const(0, node.dtype), a[0])

    def _unary(self, node: Expr, a: list[str]) -> str:
        if node.dtype in FLOATS:
            return self._same(_UNARY_INTRINSIC[node.op], node.dtype, a[0])
        if node.dtype not in SIGNED:
            return a[0]
        negative = self._binary("sub", node.dtype, self._const(0, node.dtype), a[0])
        return self._same("smax", node.dtype, a[0], negative)

    def _extreme(self, node: Expr, a: list[str]) -> str:
        if node.dtype == "bool":
            return self._binary("and" if node.op == "min" else "or", "bool", *a)
        if node.dtype in INTS:
            return self._same(("s" if node.dtype in SIGNED else "u") + node.op, node.dtype, *a)
        wins = self._compare("olt" if node.op == "min" else "ogt", node.dtype, *a)
        chosen = self._choose(wins, node.dtype, *a)  # the machine's own min and max: the second if one is NaN
        if node.args[0].op == "const" and node.args[0].value == node.args[0].value:
            return chosen
        nan = self._compare("uno", node.dtype, a[0], a[0])
        return self._choose(nan, node.dtype, a[0], chosen)

    def _comparison(self, node: Expr, a: list[str]) -> str:
        dtype = node.args[0].dtype
        if dtype in FLOATS:
            return self._compare(_FLOAT_COMPARE[node.op], dtype, *a)
        sign = "s" if dtype in SIGNED else "u"
        predicate = sign + _INT_COMPARE[node.op] if node.op in _INT_COMPARE else node.op
        return self._compare(predicate, dtype, *a)

    def _isnan(self, node: Expr, a: list[str]) -> str:
        return self._compare("uno", node.args[0].dtype, a[0], a[0])

    def _select(self, node: Expr, a: list[str]) -> str:
        return self._choose(a[0], node.dtype, a[1], a[2])

    def _not(self, node: Expr, a: list[str]) -> str:
        ones = "true" if node.dtype == "bool" else "-1"
        return self._bitwise_result(node.dtype, self._binary("xor", node.dtype, a[0], self._spread(ones, node.dtype)))

    def _shift(self, node: Expr, a: list[str]) -> str:
        dtype, size = node.dtype, bits(node.dtype)
        if node.op == "shr" and dtype in SIGNED:
            return self._binary("ashr", dtype, a[0], self._same("umin", dtype, a[1], self._const(size - 1, dtype)))
        shifted = self._binary("shl" if node.op == "shl" else "lshr", dtype, *a)
        return self._choose(
            self._compare("ult", dtype, a[1], self._const(size, dtype)), dtype, shifted, self._const(0, dtype)
        )

    def _bitcast(self, node: Expr, a: list[str]) -> str:
        if scalar(node.args[0].dtype) == scalar(node.dtype):
            return a[0]
        result = self._convert("bitcast", a[0], node.args[0].dtype, node.dtype)
        return self._bitwise_result(node.dtype, result) if a[0] in self._bitwise else result

    def _x86_primitive(self, node: Expr, a: list[str]) -> str:
        return self._x86(node.op, node.dtype, a)

    # integer division

    def _idiv(self, node: Expr, a: list[str]) -> str:
        return self._quotient(node, a)

    def _irem(self, node: Expr, a: list[str]) -> str:
        dtype = node.dtype
        product = self._binary("mul", dtype, self._quotient(node, a), a[1])
        rest = self._binary("sub", dtype, a[0], product)
        if node.args[1].op == "const" and node.args[1].value:
            return rest
        zero = self._const(0, dtype)
        return self._choose(self._compare("eq", dtype, a[1], zero), dtype, zero, rest)

    def _quotient(self, node: Expr, a: list[str]) -> str:
        """Quotient toward zero that cannot trap: divisors 0 and -1 are replaced by 1."""
        dtype, (x, y) = node.dtype, a
        divisor = node.args[1]
        signed = dtype in SIGNED
        if divisor.op == "const" and divisor.value not in (0, -1):
            return self._binary("sdiv" if signed else "udiv", dtype, x, y)
        zero, one = self._const(0, dtype), self._const(1, dtype)
        by_zero = self._compare("eq", dtype, y, zero)
        unsafe = by_zero
        if signed:
            by_minus = self._compare("eq", dtype, y, self._spread("-1", dtype))
            unsafe = self._binary("or", "bool", by_zero, by_minus)
        q = self._divide(dtype, x, self._choose(unsafe, dtype, one, y))
        if signed:
            q = self._choose(by_minus, dtype, self._binary("sub", dtype, zero, x), q)
        return self._choose(by_zero, dtype, zero, q)

    def _divide(self, dtype: str, x: str, y: str) -> str:
        """Quotient for safe divisors. Below 64 bits floats do it: their quotient rounds to the right side."""
        sign, size = ("s", bits(dtype)) if dtype in SIGNED else ("u", bits(dtype))
        if self.width == 1 or size == 64:
            return self._binary(f"{sign}div", dtype, x, y)
        real = "f32" if size < 32 else "f64"
        a, b = (self._convert(f"{sign}itofp", v, dtype, real) for v in (x, y))
        wide = dtype if size == 32 else "i32"
        q = self._convert(f"fpto{sign if size == 32 else 's'}i", self._binary("fdiv", real, a, b), real, wide)
        return q if wide == dtype else self._convert("trunc", q, wide, dtype)

    # conversions

    def _cast(self, node: Expr, a: list[str]) -> str:
        return self._cast_to(a[0], node.args[0].dtype, node.dtype)

    def _cast_to(self, x: str, source: str, target: str) -> str:
        if source == target:
            return x
        if source in ("f16", "bf16"):
            return self._cast_to(self._widen(x, source), "f32", target)
        if target in ("f16", "bf16"):
            return self._narrow(x, source, target)
        if target == "bool":
            predicate = "une" if source in FLOATS else "ne"
            return self._compare(predicate, source, x, self._const(0.0 if source in FLOATS else 0, source))
        if source == "bool":
            return self._convert("uitofp" if target in FLOATS else "zext", x, source, target)
        if source in FLOATS:
            if target in FLOATS:
                return self._convert("fpext" if target == "f64" else "fptrunc", x, source, target)
            return self._to_integer(x, source, target)
        if target in FLOATS:
            return self._convert("sitofp" if source in SIGNED else "uitofp", x, source, target)
        have, want = bits(source), bits(target)
        if have == want:
            return x
        return self._convert("trunc" if have > want else "sext" if source in SIGNED else "zext", x, source, target)

    def _widen(self, x: str, source: str) -> str:
        if source == "f16":
            return self._convert("fpext", x, "f16", "f32")
        wide = self._convert("zext", x, "bf16", "i32")
        return self._convert("bitcast", self._binary("shl", "i32", wide, self._const(16, "i32")), "i32", "f32")

    def _narrow(self, x: str, source: str, target: str) -> str:
        if source in INTS and bits(source) >= 32:
            x, source = self._cast_to(x, source, "f64"), "f64"
        x = self._round_to_odd(x) if source == "f64" else self._cast_to(x, source, "f32")
        if target == "f16":
            return self._convert("fptrunc", x, "f32", "f16")
        # round to nearest even in integers; the machine's own conversion would flush subnormals
        word = self._convert("bitcast", x, "f32", "i32")
        high = self._binary("lshr", "i32", word, self._const(16, "i32"))
        odd = self._binary("and", "i32", high, self._const(1, "i32"))
        up = self._binary("add", "i32", self._binary("add", "i32", word, odd), self._const(0x7FFF, "i32"))
        rounded = self._binary("lshr", "i32", up, self._const(16, "i32"))
        quiet = self._binary("or", "i32", high, self._const(0x40, "i32"))
        chosen = self._choose(self._compare("uno", "f32", x, x), "i32", quiet, rounded)
        return self._convert("trunc", chosen, "i32", "bf16")

    def _round_to_odd(self, x: str) -> str:
        """f64 → f32 so that a second rounding to a narrower type gives what one rounding would.

        Inexact results get an odd last bit (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
        """
        near = self._convert("fptrunc", x, "f64", "f32")
        back = self._convert("fpext", near, "f32", "f64")
        exact = self._compare("ueq", "f64", back, x)
        above = self._compare("ogt", "f64", self._same("fabs", "f64", back), self._same("fabs", "f64", x))
        word = self._convert("bitcast", near, "f32", "i32")
        down = self._binary("sub", "i32", word, self._convert("zext", above, "bool", "i32"))
        odd = self._binary("or", "i32", down, self._const(1, "i32"))
        return self._convert("bitcast", self._choose(exact, "i32", word, odd), "i32", "f32")

    def _to_integer(self, x: str, source: str, target: str) -> str:
        """Float → integer, defined everywhere as :func:`accord.expr.lang.cast` says."""
        if target == "u64":
            return self._to_u64(x, source)
        wide = "i64" if target in ("i64", "u32") else "i32"
        limit = self._const(2.0 ** (bits(wide) - 1), source)
        fits = self._compare("olt", source, self._same("fabs", source, x), limit)
        # the lowest integer is what the machine gives for anything that does not fit
        safe = self._choose(fits, source, x, self._const(-(2.0 ** (bits(wide) - 1)), source))
        y = self._convert("fptosi", safe, source, wide)
        return y if bits(target) == bits(wide) else self._convert("trunc", y, wide, target)

    def _to_u64(self, x: str, source: str) -> str:
        half = self._const(2.0**63, source)
        high = self._binary("fsub", source, x, half)
        top = self._compare("oge", source, x, half)
        y = self._to_integer(self._choose(top, source, high, x), source, "i64")
        return self._choose(top, "i64", self._binary("xor", "i64", y, self._spread(str(-(1 << 63)), "i64")), y)


_Writer = Callable[[Printer, Expr, list[str]], str]
_WRITERS: Final[dict[str, _Writer]] = {
    **dict.fromkeys(_BINARY, Printer._arithmetic),
    **dict.fromkeys(_UNARY_INTRINSIC, Printer._unary),
    **dict.fromkeys(("min", "max"), Printer._extreme),
    **dict.fromkeys(_FLOAT_COMPARE, Printer._comparison),
    **dict.fromkeys(("shl", "shr"), Printer._shift),
    **dict.fromkeys(X86_PRIMITIVES, Printer._x86_primitive),
    "bitcast": Printer._bitcast,
    "cast": Printer._cast,
    "div": Printer._div,
    "fma": Printer._fma,
    "idiv": Printer._idiv,
    "irem": Printer._irem,
    "isnan": Printer._isnan,
    "neg": Printer._neg,
    "not": Printer._not,
    "select": Printer._select,
}
