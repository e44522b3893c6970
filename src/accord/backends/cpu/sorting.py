"""Sorting in machine code: order-preserving keys, and a stable sort of pairs (key, index).

Every element is turned into an unsigned key whose ascending order is the order wanted, so that one sort serves all
element types and both directions. Zeros of both signs have one key, and so have all NaN, which count as largest. Up to
:data:`RANKED` pairs are put where the number of smaller ones says; more are sorted by their bytes, lowest first, with
passes left out in which all bytes agree (Knuth, "The Art of Computer Programming", vol. 3, section 5.2.5).
"""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.ordering import key_dtype
from accord.expr.lang import bits

__all__ = ["COUNTS", "RANKED", "SLACK", "call_sort", "scratch_bytes", "sort_function"]

#: Up to so many pairs, each is compared with all others.
RANKED = 128
#: Bytes of the table of counts.
COUNTS = 8 * 256 * 4
#: Elements after an array that may be touched.
SLACK = 64
_ARGUMENTS = "ptr %keys, ptr %index, ptr %keys2, ptr %index2, i64 %n, ptr %counts"


def scratch_bytes(dtype: str) -> int:
    """Bytes of scratch memory that one pair takes while it is sorted: key and index, both twice."""
    return 2 * (bits(key_dtype(dtype)) // 8 + 4)


def _name(dtype: str) -> str:
    return f"sort_{bits(dtype) // 8}"


def call_sort(b: Builder, dtype: str, arrays: Sequence[str], n: str, counts: str) -> None:
    """Sort ``n`` pairs by the keys of ``dtype`` where they lie; indices are i32.

    Whole vectors are copied, so after each of the four arrays there must be room for :data:`SLACK` elements.

    Args:
        b: Where to write; :func:`sort_function` must be in the same module.
        dtype: Element type that the keys stand for.
        arrays: Addresses of keys and indices, and of room for as many of each.
        n: Number of pairs, below 2**32.
        counts: Address of :data:`COUNTS` bytes of scratch memory.
    """
    keys, index, keys2, index2 = arrays
    arguments = f"ptr {keys}, ptr {index}, ptr {keys2}, ptr {index2}, i64 {n}, ptr {counts}"
    b.emit(f"call void @{_name(dtype)}({arguments})")


def sort_function(dtype: str) -> Builder:
    """The function that sorts pairs by the keys of ``dtype``."""
    b = Builder(_name(dtype), _ARGUMENTS, internal=True)
    key = key_dtype(dtype)
    slots = {name: b.op("alloca ptr") for name in ("keys", "index", "keys2", "index2")}
    few = b.compare("ule", "%n", RANKED)
    b.branch(few, lambda: _rank(b, key), lambda: _radix(b, key, bits(dtype) // 8, slots))
    return b


def _rank(b: Builder, key: str) -> None:
    """Each pair goes to the place that the number of pairs before it is: smaller ones, and equal ones on its left."""
    size = bits(key)
    width = machine().width(size)
    one, many = Printer(b, 1), Printer(b, width)
    type_ = f"<{width} x i{size}>"
    lanes = ", ".join(f"i{size} {k}" for k in range(width))
    b.declare(f"declare i{size} @llvm.vector.reduce.add.v{width}i{size}({type_})")
    with b.loop(0, "%n") as i:
        mine = one.load(key, b.address("%keys", key, i))
        spread = many.splat(key, mine, width)
        place = i if size == 64 else b.op(f"trunc i64 {i} to i{size}")
        own = many.splat(key, place, width)
        with b.loop_carrying(0, "%n", width, ((type_, "zeroinitializer"),)) as (j, total, following):
            other = many.load_masked(key, b.address("%keys", key, j), b.min(b.sub("%n", j), width))
            first = j if size == 64 else b.op(f"trunc i64 {j} to i{size}")
            number = b.op(f"add {type_} {many.splat(key, first, width)}, <{lanes}>")
            smaller = b.op(f"icmp ult {type_} {other}, {spread}")
            same = b.op(f"icmp eq {type_} {other}, {spread}")
            left = b.op(f"icmp ult {type_} {number}, {own}")
            tied = b.op(f"and <{width} x i1> {same}, {left}")
            before = b.op(f"or <{width} x i1> {smaller}, {tied}")
            count = b.op(f"zext <{width} x i1> {before} to {type_}")
            following.append(b.op(f"add {type_} {total[0]}, {count}"))
        rank = b.op(f"call i{size} @llvm.vector.reduce.add.v{width}i{size}({type_} {following[0]})")
        # lanes past the end were zero and counted as smaller: they must not
        if size != 64:
            rank = b.op(f"zext i{size} {rank} to i64")
        rest = b.op(f"urem i64 {b.sub(0, '%n')}, {width}")
        padding = b.op(f"select i1 {b.op(f'icmp ne i{size} {mine}, 0')}, i64 {rest}, i64 0")
        rank = b.sub(rank, padding)
        one.store(key, mine, b.address("%keys2", key, rank))
        entry = b.op(f"load i32, ptr {b.address('%index', 'i32', i)}")
        b.emit(f"store i32 {entry}, ptr {b.address('%index2', 'i32', rank)}")
    _copy_back(b, key, "%keys2", "%index2")


def _copy_back(b: Builder, key: str, keys: str, index: str) -> None:
    for target, source, dtype in (("%keys", keys, key), ("%index", index, "i32")):
        printer = Printer(b, machine().width(bits(dtype)))
        with b.loop(0, "%n", printer.width) as i:
            printer.store(dtype, printer.load(dtype, b.address(source, dtype, i)), b.address(target, dtype, i))


def _radix(b: Builder, key: str, passes: int, slots: dict[str, str]) -> None:
    size = bits(key)
    for name, slot in slots.items():
        b.emit(f"store ptr %{name}, ptr {slot}")
    width = machine().width(32)
    with b.loop(0, passes * 256, width) as i:  # volatile, or LLVM would make it a call that sets byte by byte
        b.emit(f"store volatile {vector('i32', width)} zeroinitializer, ptr {b.address('%counts', 'i32', i)}, align 4")
    with b.loop(0, "%n") as i:
        k = b.op(f"load i{size}, ptr {b.address('%keys', key, i)}")
        for p in range(passes):
            at = b.address("%counts", "i32", b.add(_digit(b, k, size, p), p * 256))
            count = b.op(f"load i32, ptr {at}")
            b.emit(f"store i32 {b.op(f'add i32 {count}, 1')}, ptr {at}")
    for p in range(passes):
        table = b.address("%counts", "i32", p * 256)
        keys = b.op(f"load ptr, ptr {slots['keys']}")
        first = b.op(f"load i{size}, ptr {keys}")
        count = b.op(f"load i32, ptr {b.address(table, 'i32', _digit(b, first, size, p))}")
        differ = b.compare("ne", b.op(f"zext i32 {count} to i64"), "%n")
        b.branch(differ, lambda p=p, table=table: _pass(b, key, p, table, slots))  # type: ignore[misc]
    keys, index = (b.op(f"load ptr, ptr {slots[name]}") for name in ("keys", "index"))
    moved = b.op(f"icmp ne ptr {keys}, %keys")
    b.branch(moved, lambda: _copy_back(b, key, keys, index))


def _digit(b: Builder, k: str, size: int, number: int) -> str:
    shifted = b.op(f"lshr i{size} {k}, {8 * number}") if number else k
    digit = b.op(f"and i{size} {shifted}, 255")
    return digit if size == 64 else b.op(f"zext i{size} {digit} to i64")


def _pass(b: Builder, key: str, number: int, table: str, slots: dict[str, str]) -> None:
    """One pass by one byte, from (keys, index) to (keys2, index2), which change places."""
    size = bits(key)
    with b.loop_carrying(0, 256, 1, (("i32", "0"),)) as (d, total, following):
        at = b.address(table, "i32", d)
        count = b.op(f"load i32, ptr {at}")
        b.emit(f"store i32 {total[0]}, ptr {at}")
        following.append(b.op(f"add i32 {total[0]}, {count}"))
    keys, index, keys2, index2 = (b.op(f"load ptr, ptr {s}") for s in slots.values())
    with b.loop(0, "%n") as i:
        k = b.op(f"load i{size}, ptr {b.address(keys, key, i)}")
        entry = b.op(f"load i32, ptr {b.address(index, 'i32', i)}")
        at = b.address(table, "i32", _digit(b, k, size, number))
        place = b.op(f"load i32, ptr {at}")
        b.emit(f"store i32 {b.op(f'add i32 {place}, 1')}, ptr {at}")
        to = b.op(f"zext i32 {place} to i64")
        b.emit(f"store i{size} {k}, ptr {b.address(keys2, key, to)}")
        b.emit(f"store i32 {entry}, ptr {b.address(index2, 'i32', to)}")
    for slot, address in zip(slots.values(), (keys2, index2, keys, index), strict=True):
        b.emit(f"store ptr {address}, ptr {slot}")
