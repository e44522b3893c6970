"""The LLVM printer: memory access, and the instructions that come out for several machines."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Callable

import numpy as np
import pytest
from expr_harness import KERNEL, NUMPY, STAND_INS, Array, assembly, module_of, same_bits, special_values

from accord.backends.cpu.jit import compile_function
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.errors import CompileError
from accord.expr.lang import DTYPES, Expr, call, cast, const, operand
from accord.expr.math import FUNCTIONS

AVX2 = ("x86-64", "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt")
AVX512 = ("x86-64-v4", "")
WIDTH = 8


def kernel(write: Callable[[Printer, Builder, list[str], str], None], *arrays: Array, param: int = 0) -> None:
    """Run code on whole arrays; ``write`` gets the printer, the builder, the addresses and the parameter."""
    b = Builder("scratch")
    addresses = [b.operand(i) for i in range(len(arrays))]
    write(Printer(b, WIDTH), b, addresses, b.param(0))
    name = "test_printer_" + hashlib.sha256(b.module().encode()).hexdigest()[:24]
    run = KERNEL(compile_function(name, b.module().replace("@scratch(", f"@{name}(")))
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    params = (ctypes.c_int64 * 1)(param)
    run(ctypes.addressof(params), ctypes.addressof(pointers), 0, 1, 0)


def source(dtype: str, count: int) -> Array:
    return np.resize(special_values(dtype), count).astype(NUMPY[dtype])


def untouched(dtype: str, count: int) -> Array:
    return np.ones(count, NUMPY[dtype])


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("count", [0, 1, 5, WIDTH])
def test_masked_access_reads_and_writes_nothing_beyond(dtype: str, count: int):
    x, y = source(dtype, WIDTH), untouched(dtype, WIDTH)

    def copy(p: Printer, _: Builder, at: list[str], n: str) -> None:
        p.store_masked(dtype, p.load_masked(dtype, at[0], n), at[1], n)

    kernel(copy, x, y, param=count)
    assert same_bits(y, np.concatenate([x[:count], untouched(dtype, WIDTH - count)]))

    def fill(p: Printer, _: Builder, at: list[str], n: str) -> None:
        p.store(dtype, p.load_masked(dtype, at[0], n), at[1])

    kernel(fill, x, y, param=count)
    assert same_bits(y, np.concatenate([x[:count], np.zeros(WIDTH - count, NUMPY[dtype])]))


@pytest.mark.parametrize("count", [1, 2, WIDTH - 1])
@pytest.mark.parametrize(
    ("wide", "narrow"), [("f32", "bf16"), ("i32", "i8"), ("i32", "u16"), ("i64", "i32"), ("i16", "u8"), ("i64", "bool")]
)
def test_a_known_number_of_narrowed_elements_leaves_what_follows(wide: str, narrow: str, count: int):
    """LLVM may join the truncation with the store; what it knows of the mask must not make the store wide again."""
    x, y = source(wide, WIDTH), untouched(narrow, WIDTH)
    expr = cast(operand(0, wide), narrow)

    def narrowed(p: Printer, _: Builder, at: list[str], n: str) -> None:
        p.store_masked(narrow, p.value(expr, [p.load(wide, at[0])]), at[1], str(count))

    def whole(p: Printer, _: Builder, at: list[str], n: str) -> None:
        p.store(narrow, p.value(expr, [p.load(wide, at[0])]), at[1])

    z = untouched(narrow, WIDTH)
    kernel(narrowed, x, y)
    kernel(whole, x, z)
    assert same_bits(y, np.concatenate([z[:count], untouched(narrow, WIDTH - count)]))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("stride", [1, 3, -2])
def test_strided_access(dtype: str, stride: int):
    x = source(dtype, 64)
    y = untouched(dtype, 64)
    start = 20

    def move(p: Printer, b: Builder, at: list[str], step: str) -> None:
        value = p.gather(dtype, b.address(at[0], dtype, start), step)
        p.scatter(dtype, value, b.address(at[1], dtype, start), step)

    kernel(move, x, y, param=stride)
    expected = untouched(dtype, 64)
    index = start + stride * np.arange(WIDTH)
    expected[index] = x[index]
    assert same_bits(y, expected)


@pytest.mark.parametrize("dtype", ["bool", "bf16", "f64", "i8"])
def test_splat_and_keep_first(dtype: str):
    x, y, z = source(dtype, WIDTH), source(dtype, WIDTH)[::-1].copy(), untouched(dtype, WIDTH)

    def join(p: Printer, b: Builder, at: list[str], n: str) -> None:
        one = Printer(b, 1)
        first = p.splat(dtype, one.load(dtype, at[0]), WIDTH)
        p.store(dtype, p.keep_first(dtype, first, p.load(dtype, at[1]), n), at[2])

    kernel(join, x, y, z, param=3)
    assert same_bits(z, np.concatenate([np.repeat(x[:1], 3), y[3:]]))


def test_unaligned_access():
    raw, out = np.zeros(WIDTH * 8 + 8, np.uint8), np.zeros(WIDTH * 8 + 8, np.uint8)
    raw[:] = np.arange(raw.size)
    # eight bytes is all that an f64 promises
    x, y = (a[8 - a.ctypes.data % 64 % 8 :][: WIDTH * 8].view(np.float64) for a in (raw, out))

    def copy(p: Printer, _: Builder, at: list[str], __: str) -> None:
        p.store("f64", p.load("f64", at[0]), at[1])

    kernel(copy, x, y)
    assert same_bits(x, y)


def test_values_are_written_once():
    b = Builder("once")
    p = Printer(b, 16)
    x = operand(0, "f32")
    first = p.value(call("exp", x), ["%x"])
    length = len(b.module())
    assert p.value(call("exp", x), ["%x"]) == first
    assert len(b.module()) == length
    assert p.value(call("exp", x), ["%y"]) != first


def test_unknown_operations_are_named():
    with pytest.raises(CompileError, match="'twice' is neither"):
        Printer(Builder("f"), 4).value(call("twice", operand(0, "f32")), ["%x"])


def test_widths_are_powers_of_two():
    with pytest.raises(ValueError, match="not a power of two"):
        Printer(Builder("f"), 12)


def _functions() -> list[tuple[str, Expr, int]]:
    found = []
    for name in sorted(FUNCTIONS):
        n = 2 if name in ("pow", "fmod", "floor_mod") else 1
        found.append((name, call(name, *(operand(k, "f32") for k in range(n))), n))
    for op, dtype in (("idiv", "i8"), ("idiv", "u32"), ("irem", "i32"), ("idiv", "i64"), ("shr", "i8"), ("max", "f64")):
        found.append((f"{op}.{dtype}", call(op, operand(0, dtype), operand(1, dtype)), 2))
    for op in ("floor", "ceil", "round", "trunc", "sqrt"):
        found.append((op, call(op, operand(0, "f64")), 1))
    found += [
        (f"{s}.{t}", cast(operand(0, s), t), 1) for s in sorted(DTYPES) for t in ("f16", "bf16", "u32", "i64") if s != t
    ]
    return found


@pytest.mark.parametrize("machine", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_no_operation_becomes_a_call(machine: tuple[str, str]):
    missing = STAND_INS if machine is AVX2 else frozenset()
    for name, expr, n in _functions():
        for width in (16, 1) if expr.op == "cast" else (16,):
            lines = assembly(module_of(expr, n, width, missing)[1], *machine)
            assert not [line for line in lines if line.startswith("call")], (name, width)


#: Vector instructions of one step of the loop, with its load and store.
_BUDGET = {"exp": 16, "sigmoid": 21, "tanh": 29, "erf": 30, "gelu_erf": 37, "gelu_tanh": 38, "silu": 22, "log": 19}


@pytest.mark.parametrize("name", sorted(_BUDGET))
def test_the_number_of_instructions(name: str):
    lines = assembly(module_of(call(name, operand(0, "f32")), 1, 16, frozenset())[1], *AVX512)
    labels = {line[:-1]: k for k, line in enumerate(lines) if re.fullmatch(r"\.L\w+:", line)}
    for k, line in enumerate(lines):
        target = re.fullmatch(r"j\w+\s+(\.L\w+)", line)
        if target and labels.get(target[1], k) < k:
            body = [s for s in lines[labels[target[1]] : k] if s.startswith("v")]
            assert 5 < len(body) <= _BUDGET[name]
            assert all("zmm" in s or "%k" in s for s in body)
            return
    pytest.fail("no loop found")


def test_a_constant_bound_is_one_instruction():
    relu = call("max", const(0.0, "f32"), operand(0, "f32"))
    lines = assembly(module_of(relu, 1, 16, frozenset())[1], *AVX512)
    assert sum(line.startswith("vmaxps") for line in lines) == 2  # the loop and its tail
    assert not [line for line in lines if line.startswith(("vcmp", "vblend"))]
