"""Expressions as Triton.

A value is a name of a block; every primitive becomes one line. Results have the bits that the CPU's kernels give: no
product and sum are contracted but where an expression says so, division and square roots are rounded correctly, and
functions are made of the same primitives. (Triton's interpreter rounds a fused multiply-add twice.)

Where results are stored in 16 bits, of which f32 has 13 more, functions come from the hardware's approximations of
exponentials and quotients (two units in the last place of f32).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from accord.errors import CompileError
from accord.expr.fold import fold
from accord.expr.lang import FLOATS, INTS, SIGNED, Expr, bits, rebuild, topological
from accord.expr.math import expand

__all__ = ["TYPES", "TritonPrinter", "as_gluon", "literal", "short_of"]

#: Triton's element types; bool is a byte in memory.
TYPES: Final = {
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f32": "tl.float32",
    "f64": "tl.float64",
    "bool": "tl.int1",
    **{f"i{n}": f"tl.int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"tl.uint{n}" for n in (8, 16, 32, 64)},
}
_LOWERED: Final = frozenset({"ldexp", "exponent", "mantissa", "rare"})
_INFIX: Final = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"} | {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip

#: Where the tail of the normal distribution has no value, and the logarithm of the tail (to base 2) up to there, for
#: results that are rounded to a type of 16 bits. The first polynomial's error is less than 0.01 units in the last place
#: of GELU in f16; the second's, for the range of f32, is about the same everywhere below 6, and ten times that beyond.
_TAILS: Final[Mapping[str, tuple[float, tuple[float, ...]]]] = {
    "f16": (5.8, (
        -1.0000053644, -1.1510664225, -0.4591009021, -0.0531197004, 0.0079737185, -0.00075522094, 3.29957256e-05,
    )),
    "bf16": (14.6, (
        -1.000021, -1.1510899, -0.45859313, -0.054088703, 0.008706627, -0.0010263067, 8.382879e-05, -4.4354763e-06,
        1.356319e-07, -1.8103464e-09,
    )),
}  # fmt: skip


def short_of(dtypes: Iterable[str]) -> str:
    """The type of 16 bits to which all of some results are rounded, "bf16" if to both; "" if to none."""
    found = set(dtypes)
    return ("bf16" if "bf16" in found else "f16") if found and found <= {"f16", "bf16"} else ""


def as_gluon(text: str) -> str:
    """A module with the names that Gluon has not from Triton, which its head imports as ``triton_language``."""
    return text.replace("tl.PropagateNan", "triton_language.PropagateNan")


def literal(value: float | int | bool, dtype: str) -> str:
    """A constant as a scalar of its type."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'tl.full([], float("{value}"), {TYPES[dtype]})'
    if dtype == "bool":
        return f"tl.full([], {int(value)}, tl.int1)"
    return f"tl.full([], {value!r}, {TYPES[dtype]})"


class TritonPrinter:
    """Writes expressions as lines of a Triton function.

    Values that were written are reused: one printer serves one place of a function and one set of operands.

    Args:
        lines: Receives the code.
        prefix: Of the names that it makes.
        short: The type of 16 bits to which results are rounded, "bf16" if to both; "" if to none.
    """

    def __init__(self, lines: list[str], prefix: str = "v", *, short: str = "") -> None:
        self.lines = lines
        self._prefix = prefix
        self._short = short
        self._count = 0
        self._names: dict[Expr, str] = {}
        #: Nodes that turned out to be constants.
        self._folded: dict[Expr, Expr] = {}
        self._operands: tuple[str, ...] = ()
        #: Whether the last value is one number, not a block.
        self.constant = False

    def value(self, expr: Expr, operands: Sequence[str]) -> str:
        """The name of the value of ``expr``.

        Args:
            expr: Primitives and functions.
            operands: Names of its operands' values, in their types.

        Raises:
            CompileError: an operation is not known.
        """
        if tuple(operands) != self._operands:
            self._operands = tuple(operands)
            self._names.clear()
        if self._short and not any(n.op in _SHORT and n.dtype != "f32" for n in topological((expr,))):
            return self._write(expand(expr, keep=_SHORT.keys(), lower=_LOWERED))
        return self._write(expand(expr, lower=_LOWERED))

    def _write(self, root: Expr) -> str:
        name = self._written(root)
        self.constant = root.op == "const" or root in self._folded
        return name

    def _written(self, root: Expr) -> str:
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [a for a in node.args if a not in self._names]
            if node in self._names or not waiting:
                stack.pop()
                if node not in self._names:
                    self._names[node] = self._node(node)
                continue
            stack.extend(reversed(waiting))
        return self._names[root]

    def line(self, text: str) -> str:
        """A new value."""
        self._count += 1
        name = f"{self._prefix}{self._count}"
        self.lines.append(f"{name} = {text}")
        return name

    def _node(self, node: Expr) -> str:
        if node.op == "operand":
            return self._operands[int(node.value or 0)]
        given = tuple(self._folded.get(a, a) for a in node.args)
        if given and all(a.op == "const" for a in given):  # blocks of no axes are not computed with
            found = fold(rebuild(node, given))
            if found.op == "const":
                self._folded[node] = node = found
        if node.op == "const":
            assert node.value is not None
            return self.line(literal(node.value, node.dtype))
        a = [self._names[x] for x in node.args]
        if node.op in _INFIX:
            return self.line(f"{a[0]} {_INFIX[node.op]} {a[1]}")
        if node.op in _SHORT:
            return _SHORT[node.op](self, a[0])
        writer = _WRITERS.get(node.op)
        if writer is None:
            raise CompileError(f"'{node.op}' is neither a primitive nor a function of expressions")
        return writer(self, node, a)

    # primitives

    def _div(self, node: Expr, a: list[str]) -> str:
        exact = node.dtype == "f32" and not self._short
        return self.line(f"tl.div_rn({a[0]}, {a[1]})" if exact else f"{a[0]} / {a[1]}")

    def _fma(self, node: Expr, a: list[str]) -> str:
        del node
        return self.line(f"tl.fma({a[0]}, {a[1]}, {a[2]})")

    def _neg(self, node: Expr, a: list[str]) -> str:
        return self.line(f"{a[0]} * -1.0" if node.dtype in FLOATS else f"0 - {a[0]}")  # 0 - x has no -0

    def _abs(self, node: Expr, a: list[str]) -> str:
        return a[0] if node.dtype not in SIGNED | FLOATS else self.line(f"tl.abs({a[0]})")

    def _extreme(self, node: Expr, a: list[str]) -> str:
        x, y = a
        if node.dtype == "bool":
            return self.line(f"{x} {'&' if node.op == 'min' else '|'} {y}")
        if node.dtype == "f32":
            return self._extreme_of(node.op, x, y)
        better = f"{x} {'<' if node.op == 'min' else '>'} {y}"
        if node.dtype in FLOATS and node.args[0].op != "const":  # a constant NaN never wins, and is none of ours
            better = f"({better}) | ({x} != {x})"
        return self.line(f"tl.where({better}, {x}, {y})")

    def _extreme_of(self, op: str, x: str, y: str) -> str:
        """Of two f32; NaN if one of them is."""
        return self.line(f"tl.{op}imum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)")

    def _sqrt(self, node: Expr, a: list[str]) -> str:
        return self.line(f"{'tl.sqrt_rn' if node.dtype == 'f32' else 'tl.sqrt'}({a[0]})")

    def _rounded(self, node: Expr, a: list[str]) -> str:
        x = a[0]
        if node.op in ("floor", "ceil"):
            return self.line(f"tl.{node.op}({x})")
        if node.op == "trunc":
            return self.line(f"tl.where({x} < 0, tl.ceil({x}), tl.floor({x}))")
        # numbers of this size have no fraction: adding and taking away rounds to the nearest integer, ties to even
        limit = literal(2.0**23 if node.dtype == "f32" else 2.0**52, node.dtype)
        size = self.line(f"tl.abs({x})")
        near = self.line(f"({size} + {limit}) - {limit}")
        return self.line(f"tl.where({size} < {limit}, {self._with_sign(near, x, node.dtype)}, {x})")

    def _with_sign(self, size: str, x: str, dtype: str) -> str:
        """A number that is not negative, with the sign of ``x``."""
        word = TYPES[f"i{bits(dtype)}"]
        sign = self.line(f"{x}.to({word}, bitcast=True) & {-(1 << bits(dtype) - 1)}")
        whole = self.line(f"{size}.to({word}, bitcast=True) | {sign}")
        return self.line(f"{whole}.to({TYPES[dtype]}, bitcast=True)")

    def _isnan(self, node: Expr, a: list[str]) -> str:
        del node
        return self.line(f"{a[0]} != {a[0]}")

    def _select(self, node: Expr, a: list[str]) -> str:
        del node
        return self.line(f"tl.where({a[0]}, {a[1]}, {a[2]})")

    def _not(self, node: Expr, a: list[str]) -> str:
        if node.dtype == "bool":
            return self.line(f"{a[0]} == 0")
        ones = -1 if node.dtype in SIGNED else (1 << bits(node.dtype)) - 1
        return self.line(f"{a[0]} ^ {literal(ones, node.dtype)}")

    def _shift(self, node: Expr, a: list[str]) -> str:
        size, unsigned = bits(node.dtype), TYPES[f"u{bits(node.dtype)}"]
        count = node.args[1]
        if count.op == "const" and count.value is not None and 0 <= count.value < size:
            return self.line(f"{a[0]} {'<<' if node.op == 'shl' else '>>'} {int(count.value)}")
        inside = self.line(f"{a[1]}.to({unsigned}, bitcast=True) < {size}")
        near = self.line(f"tl.where({inside}, {a[1]}, {size - 1})")
        moved = self.line(f"{a[0]} {'<<' if node.op == 'shl' else '>>'} {near}")
        if node.op == "shr" and node.dtype in SIGNED:
            return moved  # the last bit but the sign's is the sign all over
        return self.line(f"tl.where({inside}, {moved}, {literal(0, node.dtype)})")

    def _bitcast(self, node: Expr, a: list[str]) -> str:
        return self.line(f"{a[0]}.to({TYPES[node.dtype]}, bitcast=True)")

    def _quotient(self, node: Expr, a: list[str]) -> str:
        """Of magnitudes, which the hardware and the interpreter divide alike."""
        unsigned, signed = TYPES[f"u{bits(node.dtype)}"], node.dtype in SIGNED
        x, y = a
        if signed:
            x, y = (self.line(f"tl.where({v} < 0, 0 - {v}, {v}).to({unsigned}, bitcast=True)") for v in a)
        nothing = self.line(f"{y} == 0")
        safe = self.line(f"tl.where({nothing}, 1, {y}).to({unsigned})")
        found = self.line(f"{x} {'//' if node.op == 'idiv' else '%'} {safe}")
        found = self.line(f"tl.where({nothing}, 0, {found}).to({unsigned})")
        if not signed:
            return found
        found = self.line(f"{found}.to({TYPES[node.dtype]}, bitcast=True)")
        negative = f"({a[0]} < 0) != ({a[1]} < 0)" if node.op == "idiv" else f"{a[0]} < 0"
        return self.line(f"tl.where({negative}, 0 - {found}, {found})")

    # functions whose results are rounded to 16 bits

    def _from(self, x: str, lowest: float) -> str:
        """``x``, or what stands for all that is lower."""
        return self.line(f"tl.where({x} < {lowest}, {lowest}, {x})")

    def _short_tanh(self, x: str) -> str:
        size = self.line(f"tl.abs({x})")
        power = self.line(f"tl.exp(-2.0 * {size})")
        large = self.line(f"(1.0 - {power}) / (1.0 + {power})")
        square = self.line(f"{size} * {size}")
        small = self.line(f"{size} - {size} * {square} * (0.33333334 - 0.13333334 * {square})")
        found = self.line(f"tl.where({size} < 0.1, {small}, {large})")
        return self.line(f"tl.where({x} < 0.0, -{found}, {found})")

    def _short_tail(self, size: str) -> tuple[str, str]:
        """``size``, no further than the tail has values, and there ``erfc(size / sqrt(2)) / 2``; see :data:`_TAILS`."""
        far, coefficients = _TAILS[self._short]
        near = self.line(f"tl.minimum({size}, {far})")
        power = str(coefficients[-1])
        for c in coefficients[-2::-1]:
            power = self.line(f"{power} * {near} + {c}")
        return near, self.line(f"tl.exp2({power})")

    def _short_erf(self, x: str) -> str:
        size = self.line(f"tl.abs({x})")
        _, tail = self._short_tail(f"{size} * 1.4142135")
        large = self.line(f"1.0 - 2.0 * {tail}")
        small = self.line(f"{size} * (1.1283792 - {size} * {size} * (0.37612638 - {size} * {size} * 0.11283791))")
        found = self.line(f"tl.where({size} >= 0.2, {large}, {small})")
        return self.line(f"tl.where({x} < 0.0, -{found}, {found})")

    def _short_gelu(self, x: str) -> str:
        near, tail = self._short_tail(f"tl.abs({x})")
        return self.line(f"{self._extreme_of('max', x, '0.0')} - {near} * {tail}")

    def _short_gelu_tanh(self, x: str) -> str:
        x = self._from(x, -14.6)
        inner = self.line(f"{x} * (1.5957691 + 0.071354816 * {x} * {x})")
        return self.line(f"{x} / (1.0 + tl.exp(-{inner}))")

    # conversions

    def _cast(self, node: Expr, a: list[str]) -> str:
        return self.convert(a[0], node.args[0].dtype, node.dtype)

    def convert(self, x: str, source: str, target: str) -> str:
        """``x`` as another type, as :func:`accord.expr.lang.cast` defines it."""
        if source == target:
            return x
        if target == "bool":
            return self.line(f"{x} != 0")
        if source in ("f16", "bf16") and target in INTS:
            x, source = self.line(f"{x}.to(tl.float32)"), "f32"
        if target == "bf16" and source not in ("f16", "f32"):  # by way of f32, as ml_dtypes goes
            x = self.line(f"{x}.to(tl.float32)")
        if source not in FLOATS or target in FLOATS:
            return self.line(f"{x}.to({TYPES[target]})")
        if target == "u64":
            return self._to_u64(x, source)
        wide = "i64" if target in ("i64", "u32") else "i32"
        whole = self._to_signed(x, source, wide)
        return whole if wide == target else self.line(f"{whole}.to({TYPES[target]})")

    def _to_signed(self, x: str, source: str, target: str) -> str:
        """Toward zero; the lowest integer for what does not fit."""
        size = bits(target) - 1
        low = f"{x} > {literal(-(2.0**31) - 1, source)}" if (source, size) == ("f64", 31) else f"{x} >= {-(2.0**size)}"
        inside = self.line(f"({low}) & ({x} < {2.0**size})")
        whole = self.line(f"tl.where({inside}, {x}, 0.0).to({TYPES[target]})")
        return self.line(f"tl.where({inside}, {whole}, {literal(-(1 << size), target)})")

    def _to_u64(self, x: str, source: str) -> str:
        top = self.line(f"{x} >= {2.0**63}")
        low = self._to_signed(self.line(f"tl.where({top}, {x} - {2.0**63}, {x})"), source, "i64")
        whole = self.line(f"tl.where({top}, {low} ^ {literal(-(1 << 63), 'i64')}, {low})")
        return self.line(f"{whole}.to(tl.uint64, bitcast=True)")


#: Functions of f32 for results that are rounded to 16 bits.
_SHORT: Final[dict[str, Callable[[TritonPrinter, str], str]]] = {
    "exp": lambda p, x: p.line(f"tl.exp({x})"),
    "exp2": lambda p, x: p.line(f"tl.exp2({x})"),
    "sigmoid": lambda p, x: p.line(f"1.0 / (1.0 + tl.exp(-{x}))"),
    "silu": lambda p, x: p.line(f"{(low := p._from(x, -88.0))} / (1.0 + tl.exp(-{low}))"),
    "tanh": TritonPrinter._short_tanh,
    "erf": TritonPrinter._short_erf,
    "gelu_erf": TritonPrinter._short_gelu,
    "gelu_tanh": TritonPrinter._short_gelu_tanh,
    "reciprocal": lambda p, x: p.line(f"1.0 / {x}"),
    "rsqrt": lambda p, x: p.line(f"tl.rsqrt({x})"),
}

_Writer = Callable[[TritonPrinter, Expr, list[str]], str]
_WRITERS: Final[dict[str, _Writer]] = {
    "div": TritonPrinter._div,
    "fma": TritonPrinter._fma,
    "neg": TritonPrinter._neg,
    "abs": TritonPrinter._abs,
    "min": TritonPrinter._extreme,
    "max": TritonPrinter._extreme,
    "sqrt": TritonPrinter._sqrt,
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), TritonPrinter._rounded),
    "isnan": TritonPrinter._isnan,
    "select": TritonPrinter._select,
    "not": TritonPrinter._not,
    "shl": TritonPrinter._shift,
    "shr": TritonPrinter._shift,
    "bitcast": TritonPrinter._bitcast,
    "idiv": TritonPrinter._quotient,
    "irem": TritonPrinter._quotient,
    "cast": TritonPrinter._cast,
}
