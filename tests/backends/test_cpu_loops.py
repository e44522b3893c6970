"""Loop programs against NumPy in float64: random axes, strides, types and vector widths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loops_harness import Layout, Memory, placed, run_program, vectors

from accord.backends.cpu.loop_code import LoopCode
from accord.backends.cpu.loops import loop_phase
from accord.backends.loops.program import LoopProgram, Operand, Output
from accord.backends.loops.values import Reduction, Result
from accord.errors import CompileError
from accord.expr.lang import call, cast, const, operand
from accord.ir.strides import Access

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RNG = np.random.default_rng(5)
NAMES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "f16": np.float16}
SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 16, 17, 33, 70])
WIDTHS = st.sampled_from([128, 256, 512])


def values(shape, dtype: str = "f32") -> np.ndarray:
    if dtype[0] in "iu":
        return RNG.integers(0, 9, shape).astype(NAMES[dtype])
    return RNG.standard_normal(shape).astype(NAMES[dtype])


@st.composite
def layouts(draw, rank: int) -> Layout:
    order = tuple(draw(st.permutations(range(rank))))
    gaps = tuple(draw(st.sampled_from([0, 0, 0, 2])) for _ in order)
    backwards = frozenset(a for a in order if draw(st.sampled_from([False, False, False, True])))
    return Layout(order, gaps, backwards)


shapes = st.lists(SIZES, min_size=0, max_size=4).map(tuple).filter(lambda s: math.prod(s) <= 20_000)


def operand_over(draw, shape, dtype: str) -> tuple[Operand, Memory, np.ndarray]:
    """An operand that repeats along some axes, in memory, and as an array of the whole shape."""
    own = tuple(1 if draw(st.sampled_from([False, False, True])) else n for n in shape)
    memory = placed(values(own, dtype), draw(layouts(len(shape))).access(own))
    strides = tuple(0 if o == 1 else s for o, s in zip(own, memory.access.strides, strict=True))
    access = Access(strides, memory.access.offset)
    if any(o == 1 for o in own):  # a size of 1 moves nothing, whatever its stride is
        access = Access(strides, memory.access.offset)
    return Operand(dtype, access), memory, np.broadcast_to(memory.array, shape)


@SETTINGS
@given(st.data(), shapes, WIDTHS)
def test_pointwise(data, shape, bits):
    types = [data.draw(st.sampled_from(["f32", "f64", "i32", "u8", "f16"])) for _ in range(3)]
    made = [operand_over(data.draw, shape, t) for t in types]
    x, y, z = (cast(operand(i, t), "f64") for i, t in enumerate(types))
    target = data.draw(st.sampled_from(["f32", "f64", "i64"]))
    out = [Memory(shape, NAMES[t], data.draw(layouts(len(shape))).access(shape)) for t in (target, "f64")]
    program = LoopProgram(
        shape,
        frozenset(),
        tuple(o for o, _, _ in made),
        (),
        (Output(cast(x * y + z, target), out[0].access), Output(x - z, out[1].access)),
    )
    with vectors(bits):
        run_program(program, [m for _, m, _ in made], out)
    a, b, c = (array.astype(np.float64) for _, _, array in made)
    np.testing.assert_allclose(out[0].array, (a * b + c).astype(NAMES[target]), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(out[1].array, a - c, rtol=1e-12)


@SETTINGS
@given(st.sampled_from([(3, 50), (17, 33), (16, 64), (64, 2), (2, 40, 35)]), st.data(), WIDTHS)
def test_transposed_operands(shape, data, bits):
    """The axis with unit stride of one operand is another one than that of the output."""
    dtype = data.draw(st.sampled_from(["f32", "f64", "u8", "f16"]))
    turned = tuple(range(len(shape)))[::-1]
    gap = data.draw(st.sampled_from([0, 3]))
    x = placed(values(shape, dtype), Layout(turned, (0,) * (len(shape) - 1) + (gap,)).access(shape))
    y = placed(values(shape, dtype))
    out = Memory(shape, NAMES[dtype], Layout(tuple(range(len(shape)))).access(shape))
    both = data.draw(st.booleans())
    inputs = [x, y] if both else [x]
    operands = tuple(Operand(dtype, m.access) for m in inputs)
    a = cast(operand(0, dtype), "f32" if dtype == "f16" else dtype)
    b = cast(operand(1, dtype), a.dtype)
    program = LoopProgram(shape, frozenset(), operands, (), (Output(cast(a + b if both else a, dtype), out.access),))
    with vectors(bits):
        phase = run_program(program, inputs, [out])
    assert isinstance(phase.code, LoopCode)
    expected = x.array + y.array if both else x.array
    np.testing.assert_array_equal(out.array, expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([(), (1,), (5,), (2, 3)]),
    st.integers(2, 8),
    st.sampled_from([8, 15, 16, 17, 32, 37, 80, 129]),
    st.sampled_from(["f32", "f64", "i32", "i64", "u8", "f16"]),
    st.data(),
    WIDTHS,
)
def test_woven_rows(outer, rows, length, dtype, data, bits):
    """Some of the operands and outputs have the elements of a few rows in turn."""
    shape = (*outer, rows, length)
    plain = tuple(range(len(shape)))
    woven = (*plain[:-2], plain[-1], plain[-2])
    orders = [data.draw(st.sampled_from([plain, woven])) for _ in range(3)]
    if len(set(orders)) == 1:
        orders[0] = woven if orders[0] == plain else plain
    gaps = (*(data.draw(st.sampled_from([0, 3])) for _ in outer), 0, 0)
    x, y = (placed(values(shape, dtype), Layout(o, gaps).access(shape)) for o in orders[:2])
    each, every = placed(values((rows, 1), dtype)), placed(values((length,), dtype))
    out = Memory(shape, NAMES[dtype], Layout(orders[2], gaps).access(shape))
    none = (0,) * len(outer)
    accesses = [
        x.access,
        y.access,
        Access((*none, each.access.strides[0], 0), each.access.offset),
        Access((*none, 0, 1), every.access.offset),
    ]
    wide = "f32" if dtype == "f16" else dtype
    a, b, c, d = (cast(operand(i, dtype), wide) for i in range(4))
    program = LoopProgram(
        shape,
        frozenset(),
        tuple(Operand(dtype, access) for access in accesses),
        (),
        (Output(cast(a + b + c + d, dtype), out.access),),
    )
    with vectors(bits):
        phase = run_program(program, [x, y, each, every], [out])
    assert isinstance(phase.code, LoopCode)
    if dtype in ("f32", "f64", "i32", "i64"):
        assert phase.code.woven == rows
    total = sum(array.astype(NAMES[wide]) for array in (x.array, y.array, each.array, every.array))
    np.testing.assert_array_equal(out.array, total.astype(NAMES[dtype]))


KINDS = {"add": np.sum, "mul": np.prod, "min": np.min, "max": np.max}


@SETTINGS
@given(st.data(), shapes, st.sampled_from(sorted(KINDS)), st.sampled_from(["f32", "f64", "i32"]), WIDTHS)
def test_reductions(data, shape, kind, dtype, bits):
    reduced = frozenset(a for a in range(len(shape)) if data.draw(st.booleans()))
    if kind in ("min", "max") and any(shape[a] == 0 for a in reduced):
        return
    made = [operand_over(data.draw, shape, dtype) for _ in range(2)]
    x, y = operand(0, dtype), operand(1, dtype)
    expr = x + y if kind != "mul" else call("min", x, call("max", y, const(1, dtype)))
    left = tuple(1 if a in reduced else n for a, n in enumerate(shape))
    memory = Memory(left, NAMES[dtype], data.draw(layouts(len(shape))).access(left))
    access = Access(tuple(0 if a in reduced else s for a, s in enumerate(memory.access.strides)), memory.access.offset)
    program = LoopProgram(
        shape,
        reduced,
        (*(o for o, _, _ in made), Result(0)),
        (Reduction(kind, (expr,)),),
        (Output(operand(2, dtype), access),),
    )
    with vectors(bits):
        run_program(program, [m for _, m, _ in made], [memory])
    a, b = (array.astype(np.float64 if dtype[0] == "f" else dtype.replace("i", "int")) for _, _, array in made)
    whole = a + b if kind != "mul" else np.minimum(a, np.maximum(b, 1))
    expected = (
        KINDS[kind](whole, axis=tuple(reduced), keepdims=True, dtype=whole.dtype)
        if kind in ("add", "mul")
        else (KINDS[kind](whole, axis=tuple(reduced), keepdims=True))
    )
    np.testing.assert_allclose(memory.array, expected.astype(NAMES[dtype]), rtol=1e-5, atol=1e-4)


@SETTINGS
@given(st.data(), st.lists(st.sampled_from([1, 2, 5, 16, 19, 67]), min_size=1, max_size=3).map(tuple), WIDTHS)
def test_statistics_of_a_row(data, shape, bits):
    """Three passes, an expensive value that is kept, outputs of both spaces."""
    reduced = frozenset(data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True)))
    made = [operand_over(data.draw, shape, "f32") for _ in range(2)]
    n = math.prod(shape[a] for a in reduced)
    x = call("exp", operand(0, "f32")) + operand(1, "f32")
    mean = operand(2, "f32") / float(n)
    variance = operand(3, "f32") / float(n)
    full = Memory(shape, np.float32, data.draw(layouts(len(shape))).access(shape))
    left = tuple(1 if a in reduced else d for a, d in enumerate(shape))
    row = Memory(left, np.float64, data.draw(layouts(len(shape))).access(left))
    row_access = Access(tuple(0 if a in reduced else s for a, s in enumerate(row.access.strides)), row.access.offset)
    program = LoopProgram(
        shape,
        reduced,
        (*(o for o, _, _ in made), Result(0), Result(1)),
        (Reduction("add", (x,)), Reduction("add", ((x - mean) * (x - mean),))),
        (Output((x - mean) / call("sqrt", variance + 0.5), full.access), Output(cast(mean, "f64"), row_access)),
    )
    with vectors(bits):
        run_program(program, [m for _, m, _ in made], [full, row])
    a, b = (array.astype(np.float64) for _, _, array in made)
    whole = np.exp(a) + b
    axes = tuple(reduced)
    expected = (whole - whole.mean(axes, keepdims=True)) / np.sqrt(whole.var(axes, keepdims=True) + 0.5)
    np.testing.assert_allclose(full.array, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(row.array, whole.mean(axes, keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("out", ["f32", "f16"])
def test_an_expensive_value_is_computed_once(out):
    """It is kept in the output's own memory if it fits there."""
    access = Access((300, 1))
    x = operand(0, "f32")
    weight = call("exp", x - operand(1, "f32"))
    program = LoopProgram(
        (5, 300),
        frozenset([1]),
        (Operand("f32", access), Result(0), Result(1)),
        (Reduction("max", (x,)), Reduction("add", (weight,))),
        (Output(cast(weight / operand(2, "f32"), out), access),),
    )
    phase, scratch = loop_phase(program, [0], [1], 2)
    assert isinstance(phase.code, LoopCode)
    passes, rows, buffers = phase.code.plan
    assert [len(p.keeps) for p in passes] == [0, 1, 0]
    assert not rows
    assert buffers == ["f32"]
    assert (scratch == 0) == (out == "f32")


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("shape", [(70, 33), (16, 16), (3, 50), (40, 100)])
def test_rows_that_are_written_across(shape, bits):
    """Operands follow each other along the reduced axis, outputs along the kept one: tiles are transposed."""
    x = placed(values(shape), Layout((0, 1), (0, 2)).access(shape))
    y = placed(values(shape), Layout((1, 0)).access(shape))
    out = Memory(shape, np.float32, Layout((1, 0)).access(shape))
    a = operand(0, "f32")
    program = LoopProgram(
        shape,
        frozenset([1]),
        (Operand("f32", x.access), Operand("f32", y.access), Result(0), Result(1)),
        (Reduction("max", (a,)), Reduction("add", (a - operand(2, "f32"),))),
        (Output((a - operand(2, "f32")) * operand(1, "f32") + operand(3, "f32"), out.access),),
    )
    with vectors(bits):
        phase = run_program(program, [x, y], [out])
    assert isinstance(phase.code, LoopCode)
    assert phase.code.turned == {0}
    shifted = x.array - x.array.max(1, keepdims=True)
    np.testing.assert_allclose(out.array, shifted * y.array + shifted.sum(1, keepdims=True), rtol=1e-4, atol=1e-4)


@SETTINGS
@given(
    st.data(),
    st.sampled_from([(40,), (3, 40), (40, 3), (2, 19, 5)]),
    st.sampled_from(["first_max", "last_max", "first_min", "last_min"]),
    WIDTHS,
)
def test_places_of_extremes(data, shape, kind, bits):
    axis = data.draw(st.integers(0, len(shape) - 1))
    array = RNG.integers(0, 4, shape).astype(np.float32)
    if data.draw(st.booleans()):
        array[RNG.random(shape) < 0.1] = np.nan
    memory = placed(array, data.draw(layouts(len(shape))).access(shape))
    left = tuple(1 if a == axis else d for a, d in enumerate(shape))
    out = Memory(left, np.int64, Layout(tuple(range(len(shape)))).access(left))
    access = Access(tuple(0 if a == axis else s for a, s in enumerate(out.access.strides)), out.access.offset)
    index = Operand("i64", Access(tuple(int(a == axis) for a in range(len(shape)))), memory=False)
    program = LoopProgram(
        shape,
        frozenset([axis]),
        (Operand("f32", memory.access), index, Result(0, 1)),
        (Reduction(kind, (operand(0, "f32"), operand(1, "i64"))),),
        (Output(operand(2, "i64"), access),),
    )
    with vectors(bits):
        run_program(program, [memory], [out])
    find = np.argmax if kind.endswith("max") else np.argmin
    expected = find(array, axis) if kind.startswith("first") else shape[axis] - 1 - find(np.flip(array, axis), axis)
    np.testing.assert_array_equal(np.squeeze(out.array, axis), expected)


@pytest.mark.parametrize("bits", [128, 512])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums(axis, bits):
    array = values((37, 21))
    for running in ("inclusive", "exclusive"):
        out = Memory(array.shape, np.float32, Layout((0, 1)).access(array.shape))
        memory = placed(array)
        program = LoopProgram(
            array.shape,
            frozenset([axis]),
            (Operand("f32", memory.access), Result(0)),
            (Reduction("add", (cast(operand(0, "f32"), "f64"),), running),),
            (Output(cast(operand(1, "f64"), "f32"), out.access),),
        )
        with vectors(bits):
            run_program(program, [memory], [out])
        expected = np.cumsum(array.astype(np.float64), axis)
        expected -= array if running == "exclusive" else 0
        np.testing.assert_allclose(out.array, expected, rtol=1e-6, atol=1e-6)


def _total(array: np.ndarray, axis: int) -> np.ndarray:
    memory = placed(array)
    left = tuple(1 if a == axis else d for a, d in enumerate(array.shape))
    out = Memory(left, np.float32, Layout(tuple(range(array.ndim))).access(left))
    access = Access(tuple(0 if a == axis else s for a, s in enumerate(out.access.strides)), out.access.offset)
    program = LoopProgram(
        array.shape,
        frozenset([axis]),
        (Operand("f32", memory.access), Result(0)),
        (Reduction("add", (operand(0, "f32"),)),),
        (Output(operand(1, "f32"), access),),
    )
    run_program(program, [memory], [out])
    return out.array


@pytest.mark.parametrize("shape", [(1, 300_001), (300_001, 3), (40_000, 17)])
def test_long_sums_lose_little(shape):
    """The error of a sum in pieces does not grow with its length; numbers of one sign so that it shows."""
    axis = int(np.argmax(shape))
    array = RNG.random(shape).astype(np.float32)
    exact = array.sum(axis, dtype=np.float64, keepdims=True)
    error = np.abs(_total(array, axis) - exact) / exact
    assert error.max() < 1e-6
    if axis == 0:  # NumPy adds along this axis one by one: so would a single accumulator
        assert error.max() < np.abs(np.cumsum(array, 0, dtype=np.float32)[-1] - exact).max() / exact.min()


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_sums_of_infinities(special):
    array = np.ones((2, 5000), np.float32)
    array[1, 77] = special
    total = _total(array, 1)
    assert total[0, 0] == 5000
    np.testing.assert_array_equal(total[1, 0], np.float32(special))


def test_an_output_of_full_space_needs_its_place():
    access = Access((0,))
    program = LoopProgram(
        (4,), frozenset([0]), (Operand("f32", Access((1,))),), (), (Output(operand(0, "f32"), access),)
    )
    with pytest.raises(CompileError, match="row space"):
        run_program(program, [placed(values((4,)))], [Memory((1,), np.float32, Access((1,)))])


def test_a_kind_that_does_not_exist():
    program = LoopProgram(
        (4,),
        frozenset([0]),
        (Operand("f32", Access((1,))), Result(0)),
        (Reduction("median", (operand(0, "f32"),)),),
        (Output(operand(1, "f32"), Access((0,))),),
    )
    with pytest.raises(CompileError, match="median"):
        run_program(program, [placed(values((4,)))], [Memory((1,), np.float32, Access((1,)))])
