"""Vectors of one width in registers: types, intrinsics, and the way from and to memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.expr.lang import INTS, bits

__all__ = ["X86_PRIMITIVES", "Registers"]

#: Primitives that are one instruction of AVX-512: name of the intrinsic, and its immediate operand if it has one.
#: getmant: interval [3/4, 3/2), NaN for negative numbers (Intel SDM, VGETMANTPS, imm8 = 1011b).
X86_PRIMITIVES: Final[dict[str, tuple[str, int | None]]] = {
    "ldexp": ("scalef", None),
    "exponent": ("getexp", None),
    "mantissa": ("getmant", 11),
}

#: Names of values that bitwise operations made, by function; see :meth:`Registers._choose`.
_BITWISE: Final[WeakKeyDictionary[Builder, set[str]]] = WeakKeyDictionary()


class Registers:
    """Code on vectors of ``width`` elements.

    Args:
        builder: Receives the code.
        width: Elements of a value, a power of two; 1 for scalars.

    Raises:
        ValueError: The width is not a power of two.
    """

    def __init__(self, builder: Builder, width: int) -> None:
        if width < 1 or width & (width - 1):
            raise ValueError(f"width {width} is not a power of two")
        self._b = builder
        self.width = width
        self._bitwise = _BITWISE.setdefault(builder, set())

    # writing

    def _type(self, dtype: str) -> str:
        return vector(dtype, self.width)

    def _op(self, text: str) -> str:
        return self._b.op(text)

    def _spread(self, literal: str, dtype: str) -> str:
        """A constant in all elements."""
        return literal if self.width == 1 else f"splat ({scalar(dtype)} {literal})"

    def _same(self, name: str, dtype: str, *values: str) -> str:
        """An intrinsic whose operands and result are of ``dtype``."""
        suffix = _suffix(dtype) if self.width == 1 else f"v{self.width}{_suffix(dtype)}"
        type_ = self._type(dtype)
        self._b.declare(f"declare {type_} @llvm.{name}.{suffix}({', '.join([type_] * len(values))})")
        return self._op(f"call {type_} @llvm.{name}.{suffix}({', '.join(f'{type_} {v}' for v in values)})")

    def _binary(self, op: str, dtype: str, a: str, b: str) -> str:
        return self._op(f"{op} {self._type(dtype)} {a}, {b}")

    def _convert(self, op: str, x: str, source: str, target: str) -> str:
        return self._op(f"{op} {self._type(source)} {x} to {self._type(target)}")

    def _choose(self, condition: str, dtype: str, a: str, b: str) -> str:
        """``a`` where ``condition``, else ``b``.

        LLVM 22 joins and, or, xor and a select that follows into one masked VPTERNLOG, and where the select's other
        arm is an operand of them too, it swaps operands without swapping the truth table: the result is wrong. So
        results of bitwise operations are hidden from it here; that costs no instruction.
        """
        type_ = self._type(dtype)
        a, b = (self._hidden(dtype, v) if v in self._bitwise else v for v in (a, b))
        return self._op(f"select {self._type('bool')} {condition}, {type_} {a}, {type_} {b}")

    def _bitwise_result(self, dtype: str, value: str) -> str:
        """Note that a bitwise operation made ``value``, if it has elements that VPTERNLOG can mask."""
        if self.width > 1 and dtype != "bool" and bits(dtype) >= 32:
            self._bitwise.add(value)
        return value

    def _hidden(self, dtype: str, value: str) -> str:
        """The same value, made by nothing that the optimiser knows."""
        real = f"f{bits(dtype)}"
        if dtype == real:
            return self._same("arithmetic.fence", dtype, value)
        fenced = self._same("arithmetic.fence", real, self._convert("bitcast", value, dtype, real))
        return self._convert("bitcast", fenced, real, dtype)

    def _any(self, mask: str) -> str:
        """Whether some element of a bool vector is true, an i1."""
        if self.width == 1:
            return mask
        type_ = self._type("bool")
        self._b.declare(f"declare i1 @llvm.vector.reduce.or.v{self.width}i1({type_})")
        return self._op(f"call i1 @llvm.vector.reduce.or.v{self.width}i1({type_} {mask})")

    # between registers

    def splat(self, dtype: str, value: str, width: int) -> str:
        """A vector of ``width`` elements, all of them the scalar ``value``."""
        if width == 1:
            return value
        type_ = vector(dtype, width)
        first = self._op(f"insertelement {type_} poison, {scalar(dtype)} {value}, i64 0")
        return self._op(f"shufflevector {type_} {first}, {type_} poison, <{width} x i32> zeroinitializer")

    def keep_first(self, dtype: str, value: str, otherwise: str, count: str) -> str:
        """``value`` in the first ``count`` elements, ``otherwise`` in the rest."""
        return self._choose(self._mask(count), dtype, value, otherwise)

    def _mask(self, count: str) -> str:
        """Which elements are among the first ``count``."""
        if self.width == 1:
            return self._b.compare("sgt", count, 0)
        lane = "i8" if self.width <= 128 else "i32"  # the narrowest: one comparison for all lanes
        small = self._op(f"trunc i64 {count} to {lane}")
        index = ", ".join(f"{lane} {k}" for k in range(self.width))
        return self._op(f"icmp ugt {vector(lane, self.width)} {self.splat(lane, small, self.width)}, <{index}>")

    # memory

    def load(self, dtype: str, address: str) -> str:
        """``width`` consecutive elements, aligned as one element is; bool becomes i1."""
        memory = _in_memory(dtype)
        x = self._op(f"load {self._type(memory)}, ptr {address}, align {bits(dtype) // 8}")
        return self._from_memory(dtype, x)

    def store(self, dtype: str, value: str, address: str) -> None:
        """Write ``width`` consecutive elements."""
        memory = _in_memory(dtype)
        x = self._to_memory(dtype, value)
        self._b.emit(f"store {self._type(memory)} {x}, ptr {address}, align {bits(dtype) // 8}")

    def load_masked(self, dtype: str, address: str, count: str) -> str:
        """The first ``count`` <= ``width`` elements, zero in the rest; nothing after them is read."""
        if self.width == 1:
            return self.load(dtype, address)
        memory = _in_memory(dtype)
        type_, mask = self._type(memory), self._type("bool")
        name = f"@llvm.masked.load.v{self.width}{_suffix(memory)}.p0"
        self._b.declare(f"declare {type_} {name}(ptr, {mask}, {type_})")
        x = self._op(
            f"call {type_} {name}(ptr align {bits(dtype) // 8} {address}, {mask} {self._mask(count)}, "
            f"{type_} zeroinitializer)"
        )
        return self._from_memory(dtype, x)

    def store_masked(self, dtype: str, value: str, address: str, count: str) -> None:
        """Write the first ``count`` <= ``width`` elements; nothing after them is touched.

        LLVM 22 makes one store of a narrowing and a masked store, and where the mask is known to have one element, a
        plain store of the element before it was narrowed. So it does not get to know how many there are.
        """
        if self.width == 1:
            self.store(dtype, value, address)
            return
        memory = _in_memory(dtype)
        if bits(memory) < 32:
            count = self._op(f'call i64 asm "", "=r,0"(i64 {count})')
        type_, mask = self._type(memory), self._type("bool")
        name = f"@llvm.masked.store.v{self.width}{_suffix(memory)}.p0"
        self._b.declare(f"declare void {name}({type_}, ptr, {mask})")
        x = self._to_memory(dtype, value)
        if dtype == "bf16" or dtype in INTS or dtype == "bool":
            count = self._opaque(count)
        self._b.emit(
            f"call void {name}({type_} {x}, ptr align {bits(dtype) // 8} {address}, {mask} {self._mask(count)})"
        )

    def _opaque(self, count: str) -> str:
        """``count``, of which LLVM does not learn more than that it is a number.

        LLVM 22 joins a truncation and a masked store, and if it knows that the mask has one element, it makes of both
        a store of that element before it was truncated: it overwrites what follows in memory.
        """
        return self._op(f'call i64 asm "", "=r,0"(i64 {count})')

    def gather(self, dtype: str, address: str, stride: str | int) -> str:
        """``width`` elements that lie ``stride`` elements apart.

        Loads of single elements: the gather instructions of x86 are slower on several makes and lack 8 and 16 bits.
        """
        memory = _in_memory(dtype)
        if self.width == 1:
            return self.load(dtype, address)
        x = "poison"
        for k in range(self.width):
            at = self._b.address(address, dtype, self._b.mul(k, stride) if k else 0)
            element = self._op(f"load {scalar(memory)}, ptr {at}, align {bits(dtype) // 8}")
            x = self._op(f"insertelement {self._type(memory)} {x}, {scalar(memory)} {element}, i64 {k}")
        return self._from_memory(dtype, x)

    def scatter(self, dtype: str, value: str, address: str, stride: str | int) -> None:
        """Write ``width`` elements ``stride`` elements apart."""
        memory = _in_memory(dtype)
        if self.width == 1:
            self.store(dtype, value, address)
            return
        x = self._to_memory(dtype, value)
        for k in range(self.width):
            at = self._b.address(address, dtype, self._b.mul(k, stride) if k else 0)
            element = self._op(f"extractelement {self._type(memory)} {x}, i64 {k}")
            self._b.emit(f"store {scalar(memory)} {element}, ptr {at}, align {bits(dtype) // 8}")

    def _from_memory(self, dtype: str, x: str) -> str:
        return self._op(f"icmp ne {self._type('u8')} {x}, {self._spread('0', 'u8')}") if dtype == "bool" else x

    def _to_memory(self, dtype: str, x: str) -> str:
        return self._convert("zext", x, "bool", "u8") if dtype == "bool" else x

    # instructions of AVX-512

    def _x86(self, op: str, dtype: str, values: Sequence[str]) -> str:
        """One of :data:`X86_PRIMITIVES`, in pieces of one register."""
        size = bits(dtype)
        lanes = min(self.width, 512 // size)
        padded = max(lanes, 128 // size)
        pieces = []
        for first in range(0, self.width, lanes):
            inside = [self._piece(dtype, v, first, lanes, padded) for v in values]
            pieces.append(self._x86_register(op, dtype, padded, inside))
        if self.width == 1:
            return self._op(f"extractelement {vector(dtype, padded)} {pieces[0]}, i64 0")
        if padded > lanes:
            return self._shuffle(dtype, pieces[0], "poison", padded, range(lanes))
        while len(pieces) > 1:
            pieces = [
                self._shuffle(dtype, a, b, lanes, range(2 * lanes))
                for a, b in zip(pieces[::2], pieces[1::2], strict=True)
            ]
            lanes *= 2
        return pieces[0]

    def _piece(self, dtype: str, value: str, first: int, lanes: int, padded: int) -> str:
        """``lanes`` elements from ``first`` on, in a register of ``padded``."""
        if self.width == 1:
            return self._op(f"insertelement {vector(dtype, padded)} poison, {scalar(dtype)} {value}, i64 0")
        if lanes == self.width == padded:
            return value
        order = [first + k if k < lanes else None for k in range(padded)]
        return self._shuffle(dtype, value, "poison", self.width, order)

    def _shuffle(self, dtype: str, a: str, b: str, width: int, order: Sequence[int | None]) -> str:
        type_ = vector(dtype, width)
        index = ", ".join("i32 poison" if k is None else f"i32 {k}" for k in order)
        return self._op(f"shufflevector {type_} {a}, {type_} {b}, <{len(order)} x i32> <{index}>")

    def _x86_register(self, op: str, dtype: str, lanes: int, values: Sequence[str]) -> str:
        name, immediate = X86_PRIMITIVES[op]
        size = lanes * bits(dtype)
        type_ = vector(dtype, lanes)
        all_lanes = "i16" if lanes == 16 else "i8"
        arguments = [(type_, v) for v in values]
        if immediate is not None:
            arguments.append(("i32", str(immediate)))
        arguments += [(type_, "poison"), (all_lanes, "-1")]
        if size == 512:
            arguments.append(("i32", "4"))  # round as the thread's control register says
        function = f"@llvm.x86.avx512.mask.{name}.p{'s' if dtype == 'f32' else 'd'}.{size}"
        self._b.declare(f"declare {type_} {function}({', '.join(t for t, _ in arguments)})")
        return self._op(f"call {type_} {function}({', '.join(f'{t} {v}' for t, v in arguments)})")


def _in_memory(dtype: str) -> str:
    return "u8" if dtype == "bool" else dtype


def _suffix(dtype: str) -> str:
    """How intrinsics name the type."""
    return f"i{bits(dtype)}" if dtype in INTS or dtype == "bf16" else dtype
