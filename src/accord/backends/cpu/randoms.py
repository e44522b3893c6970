"""Random numbers of the Mersenne twister, and what operators make of them.

Matsumoto and Nishimura, "Mersenne Twister" (1998); a pair of words is one number of 53 bits in [0, 1), and normal
numbers are made by Marsaglia's polar method, as NumPy's ``RandomState`` does it: a seed gives the same numbers.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from accord.backends.cpu.host import start
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Array
from accord.expr.lang import Expr, call, cast, operand
from accord.expr.math import expand
from accord.expr.primitives import ge, lt, select
from accord.record import record

__all__ = ["KINDS", "RandomCode", "draw"]

_WORDS: Final = 624
_MIDDLE: Final = 397
_NUMBERS: Final = _WORDS // 2
#: Words of state, then room for one block of numbers.
_SCRATCH: Final = _WORDS * 4 + _NUMBERS * 8

_U, _A, _B = operand(0, "f64"), operand(2, "f64"), operand(3, "f64")
#: Kind → expressions of the outputs, of a number in [0, 1) or a normal one (operand 0), an element of the input
#: (operand 1, of a given type), and two numbers (2 and 3).
KINDS: Final[dict[str, Callable[[str], tuple[Expr, ...]]]] = {
    "uniform": lambda _: (_A + _B * _U,),
    "normal": lambda _: (_A + _B * _U,),
    "bernoulli": lambda x: (lt(_U, cast(operand(1, x), "f64")),),
    "dropout": lambda x: (_kept(x), ge(_U, _A)),
}


def _kept(x: str) -> Expr:
    real = "f64" if x == "f64" else "f32"
    return select(ge(_U, _A), cast(operand(1, x), real) / cast(_B, real), 0.0)


@record
class RandomCode(KernelCode):
    """One task draws all. Parameters: elements, whether there is a seed, the seed, bits of two f64.

    Operands: the input if there is one, the outputs, scratch memory that starts with 624 random words.

    Attributes:
        kind: One of :data:`KINDS`.
        source: Element type of the input; "" without one.
        outputs: Element types.
    """

    kind: str
    source: str
    outputs: tuple[str, ...]

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"random_{self.kind}_{self.source}_{'_'.join(self.outputs)}"

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Writer:
    def __init__(self, code: RandomCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        self.width = machine().width(64)
        exprs = KINDS[code.kind](code.source or "f64")
        self.exprs = [expand(cast(e, d)) for e, d in zip(exprs, code.outputs, strict=True)]

    def write(self) -> str:
        b, code = self.b, self.code
        count, seeded, seed = (b.param(i) for i in range(3))
        self.numbers = [b.op(f"bitcast i64 {b.param(3 + i)} to double") for i in range(2)]
        first = 1 if code.source else 0
        self.inputs = [b.operand(0)] if code.source else []
        self.outputs = [b.operand(first + i) for i in range(len(code.outputs))]
        self.state = b.operand(first + len(code.outputs))
        self.drawn = b.address(self.state, "i32", _WORDS)
        b.branch(b.compare("ne", seeded, 0), lambda: self._seed(seed))
        if code.kind == "normal":
            self._normal(count)
        else:
            with b.loop(0, count, _NUMBERS) as i:
                self._refill()
                self._block(i, b.min(b.sub(count, i), _NUMBERS))
        return b.module()

    # the generator

    def _seed(self, seed: str) -> None:
        """Knuth's linear recurrence."""
        b = self.b
        start_ = b.op(f"trunc i64 {seed} to i32")
        b.emit(f"store i32 {start_}, ptr {self.state}")
        with b.loop_carrying(1, _WORDS, 1, (("i32", start_),)) as (i, carried, following):
            mixed = b.op(f"xor i32 {carried[0]}, {b.op(f'lshr i32 {carried[0]}, 30')}")
            scaled = b.op(f"mul i32 {mixed}, 1812433253")
            value = b.op(f"add i32 {scaled}, {b.op(f'trunc i64 {i} to i32')}")
            b.emit(f"store i32 {value}, ptr {b.address(self.state, 'i32', i)}")
            following.append(value)

    def _word(self, i: str | int) -> str:
        return self.b.op(f"load i32, ptr {self.b.address(self.state, 'i32', i)}")

    def _refill(self) -> None:
        """The next 624 words of state, and the numbers that they give."""
        b = self.b
        for start_, stop, ahead in ((0, _WORDS - _MIDDLE, _MIDDLE), (_WORDS - _MIDDLE, _WORDS, _MIDDLE - _WORDS)):
            with b.loop(start_, stop) as i:
                following = b.add(i, 1)
                wrapped = b.op(f"select i1 {b.compare('eq', following, _WORDS)}, i64 0, i64 {following}")
                low, high = self._word(wrapped), self._word(i)
                joined = b.op(f"or i32 {b.op(f'and i32 {high}, -2147483648')}, {b.op(f'and i32 {low}, 2147483647')}")
                odd = b.op(f"icmp ne i32 {b.op(f'and i32 {joined}, 1')}, 0")
                twist = b.op(f"select i1 {odd}, i32 -1727483681, i32 0")
                mixed = b.op(f"xor i32 {self._word(b.add(i, ahead))}, {b.op(f'lshr i32 {joined}, 1')}")
                b.emit(f"store i32 {b.op(f'xor i32 {mixed}, {twist}')}, ptr {b.address(self.state, 'i32', i)}")
        with b.loop(0, _NUMBERS) as i:
            upper, lower = (self._tempered(self._word(b.add(b.mul(i, 2), k))) for k in (0, 1))
            whole = b.op(f"uitofp i32 {b.op(f'lshr i32 {upper}, 5')} to double")
            rest = b.op(f"uitofp i32 {b.op(f'lshr i32 {lower}, 6')} to double")
            joined = b.op(f"fadd double {b.op(f'fmul double {whole}, 67108864.0')}, {rest}")
            value = b.op(f"fmul double {joined}, 0x3CA0000000000000")  # 2**-53
            b.emit(f"store double {value}, ptr {b.address(self.drawn, 'f64', i)}")

    def _tempered(self, y: str) -> str:
        b = self.b
        for op, shift, mask in (("lshr", 11, -1), ("shl", 7, 0x9D2C5680), ("shl", 15, 0xEFC60000), ("lshr", 18, -1)):
            moved = b.op(f"{op} i32 {y}, {shift}")
            if mask >= 0:
                moved = b.op(f"and i32 {moved}, {mask - (1 << 32)}")
            y = b.op(f"xor i32 {y}, {moved}")
        return y

    # elements

    def _block(self, first: str, count: str) -> None:
        """One number for each of ``count`` elements."""
        b, w, code = self.b, self.width, self.code
        spread = [Printer(b, w).splat("f64", n, w) for n in self.numbers]
        with b.loop(0, count, w) as i:
            lanes = b.min(b.sub(count, i), w)
            at = b.add(first, i)
            many = Printer(b, w)
            values = [many.load("f64", b.address(self.drawn, "f64", i)), "poison", *spread]
            if code.source:
                values[1] = many.load_masked(code.source, b.address(self.inputs[0], code.source, at), lanes)
            for expr, dtype, base in zip(self.exprs, code.outputs, self.outputs, strict=True):
                result = Printer(b, w).value(expr, values)
                many.store_masked(dtype, result, b.address(base, dtype, at), lanes)

    def _normal(self, count: str) -> None:
        """Pairs of normal numbers, of which the second is used first."""
        b = self.b
        place = b.op("alloca i64")
        b.emit(f"store i64 {_NUMBERS}, ptr {place}")
        radius = operand(0, "f64")
        factor = expand(call("sqrt", call("log", radius) * -2.0 / radius))
        with b.loop(0, count, 2) as i:
            head, draw_, done = (b.fresh("try").lstrip("%") for _ in range(3))
            b.emit(f"br label %{head}")
            b.label(head)
            used = b.op(f"load i64, ptr {place}")

            def refill() -> None:
                self._refill()
                b.emit(f"store i64 0, ptr {place}")

            b.branch(b.compare("sge", used, _NUMBERS), refill)
            b.emit(f"br label %{draw_}")
            b.label(draw_)
            at = b.op(f"load i64, ptr {place}")
            b.emit(f"store i64 {b.add(at, 2)}, ptr {place}")
            pair = []
            for k in (0, 1):
                u = b.op(f"load double, ptr {b.address(self.drawn, 'f64', b.add(at, k))}")
                pair.append(b.op(f"fsub double {b.op(f'fmul double {u}, 2.0')}, 1.0"))
            squares = [b.op(f"fmul double {x}, {x}") for x in pair]
            total = b.op(f"fadd double {squares[0]}, {squares[1]}")
            below = b.op(f"fcmp olt double {total}, 1.0")
            above = b.op(f"fcmp ogt double {total}, 0.0")
            b.emit(f"br i1 {b.op(f'and i1 {below}, {above}')}, label %{done}, label %{head}")
            b.label(done)
            scale = Printer(b, 1).value(factor, [total])
            first, second = (b.op(f"fmul double {scale}, {x}") for x in (pair[1], pair[0]))
            self._put(i, first)
            following = b.add(i, 1)
            b.branch(b.compare("slt", following, count), functools.partial(self._put, following, second))

    def _put(self, i: str, normal: str) -> None:
        b, dtype = self.b, self.code.outputs[0]
        value = Printer(b, 1).value(self.exprs[0], [normal, "poison", *self.numbers])
        Printer(b, 1).store(dtype, value, b.address(self.outputs[0], dtype, i))


def draw(
    code: RandomCode, source: Array | None, outputs: Sequence[Array], numbers: tuple[float, float], seed: int | None
) -> None:
    """Fill ``outputs``, which have no gaps and as many elements as ``source`` if there is one.

    Args:
        code: What to make.
        source: The input, without gaps.
        outputs: Where to put it.
        numbers: The two numbers of the kind.
        seed: 32 bits; None for numbers that were never seen before.
    """
    scratch = np.empty(_SCRATCH, np.uint8)
    if seed is None:
        scratch[: _WORDS * 4] = np.frombuffer(os.urandom(_WORDS * 4), np.uint8)
    words = struct.unpack("<2q", struct.pack("<2d", *numbers))
    params = (outputs[0].size, int(seed is not None), seed or 0, *words)
    start(code, params, [*([] if source is None else [source]), *outputs, scratch])
