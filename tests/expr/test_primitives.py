"""Every primitive, at several widths, on values where machines differ."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from expr_harness import NUMPY, STAND_INS, Array, compile_elementwise, same_bits, special_values

from accord.expr.lang import DTYPES, INTS, SIGNED, Expr, call, cast, const, operand, topological
from accord.expr.math import expand
from accord.expr.primitives import PRIMITIVES, bitcast, check, rare, select

REAL = ("f32", "f64")
NUMBERS = (*REAL, *sorted(INTS))


def pairs(dtype: str) -> tuple[Array, Array]:
    values = special_values(dtype)
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()


def run(expr: Expr, n: int, *arrays: Array) -> Array:
    """The result at width 16, which must be that of other widths, and of the stand-ins for missing instructions."""
    result = compile_elementwise(expr, n)(*arrays)
    others = [(1, None), (64, None)] if expr.op != "cast" else [(1, None)]
    if any(node.op in STAND_INS for node in topological((expr,))):
        others += [(2, None), (4, None), (8, None), (16, STAND_INS), (1, STAND_INS)]
    for width, missing in others:
        assert same_bits(compile_elementwise(expr, n, width, missing)(*arrays), result), (width, missing)
    return result


def build(op: str, dtype: str, arity: int, result: str | None = None) -> Expr:
    return call(op, *(operand(k, dtype) for k in range(arity)), dtype=result)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "lt", "le", "gt", "ge", "eq", "ne"])
def test_arithmetic_and_comparisons(op: str, dtype: str):
    a, b = pairs(dtype)
    name = {"add": "add", "sub": "subtract", "mul": "multiply", "lt": "less", "le": "less_equal", "gt": "greater"}
    name |= {"ge": "greater_equal", "eq": "equal", "ne": "not_equal"}
    with np.errstate(all="ignore"):
        expected = getattr(np, name[op])(a, b)
    compare = op not in ("add", "sub", "mul")
    assert same_bits(run(build(op, dtype, 2, "bool" if compare else None), 2, a, b), expected)


@pytest.mark.parametrize("dtype", (*NUMBERS, "bool"))
@pytest.mark.parametrize("op", ["min", "max"])
def test_extremes_propagate_nan_and_take_the_second_of_two_zeros(op: str, dtype: str):
    a, b = pairs(dtype)
    got = run(build(op, dtype, 2), 2, a, b)
    expected = (np.minimum if op == "min" else np.maximum)(a, b)
    tie = (a == b) & (a == 0)
    assert same_bits(got, np.where(tie, b, expected))


@pytest.mark.parametrize("dtype", REAL)
def test_extremes_with_a_constant(dtype: str):
    values = special_values(dtype)
    for bound in (0.0, 6.0, -1.5, math.inf):
        got = run(call("max", const(bound, dtype), operand(0, dtype)), 1, values)
        assert np.array_equal(got, np.maximum(values, NUMPY[dtype](bound)), equal_nan=True)
    got = run(call("min", const(math.nan, dtype), operand(0, dtype)), 1, values)
    assert np.isnan(got).all()


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("op", ["sqrt", "floor", "ceil", "trunc", "round", "neg", "abs", "isnan"])
def test_unary_floats(op: str, dtype: str):
    values = special_values(dtype)
    function = {"round": np.rint, "neg": np.negative}.get(op) or getattr(np, op)
    with np.errstate(all="ignore"):
        expected = function(values)
    assert same_bits(run(build(op, dtype, 1, "bool" if op == "isnan" else None), 1, values), expected)


@pytest.mark.parametrize("dtype", sorted(INTS))
def test_unary_integers_wrap(dtype: str):
    values = special_values(dtype)
    assert same_bits(run(build("neg", dtype, 1), 1, values), -values)
    assert same_bits(run(build("abs", dtype, 1), 1, values), np.abs(values))


@pytest.mark.parametrize("dtype", REAL)
def test_division_and_fma(dtype: str):
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        assert same_bits(run(build("div", dtype, 2), 2, a, b), a / b)
    # 1 + eps squared needs the product's last bit
    eps = np.finfo(NUMPY[dtype]).eps
    one = np.array([1 + eps], NUMPY[dtype])
    got = run(build("fma", dtype, 3), 3, one, one, -(one * one))
    assert got[0] == eps * eps


@pytest.mark.parametrize("dtype", sorted(INTS))
def test_integer_division_never_traps(dtype: str):
    a, b = pairs(dtype)
    quotient, remainder = [], []
    for p, q in zip(a.tolist(), b.tolist(), strict=True):
        toward_zero = abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) if q else 0
        quotient.append(toward_zero)
        remainder.append(p - toward_zero * q if q else 0)
    wrapped = np.array([v & (2**64 - 1) for v in quotient], np.uint64).astype(NUMPY[dtype])
    assert same_bits(run(build("idiv", dtype, 2), 2, a, b), wrapped)
    assert same_bits(run(build("irem", dtype, 2), 2, a, b), np.array(remainder, NUMPY[dtype]))


@pytest.mark.parametrize("divisor", [7, 1, 0, -1, -16])
@pytest.mark.parametrize("dtype", ["i8", "i32", "i64"])
def test_integer_division_by_a_constant(dtype: str, divisor: int):
    values = special_values(dtype)
    x, y = operand(0, dtype), const(divisor, dtype)
    other = np.full(values.shape, divisor, NUMPY[dtype])
    for op in ("idiv", "irem"):
        expected = compile_elementwise(build(op, dtype, 2), 2)(values, other)
        assert same_bits(run(call(op, x, y), 1, values), expected)


@pytest.mark.parametrize("dtype", sorted(INTS))
def test_shifts_by_any_amount(dtype: str):
    a, b = pairs(dtype)
    size = np.dtype(NUMPY[dtype]).itemsize * 8
    outside = (b < 0) | (b >= size)
    amount = np.where(outside, 0, b)
    left = np.where(outside, 0, np.left_shift(a, amount))
    fill = np.where(a < 0, -1, 0).astype(NUMPY[dtype]) if dtype in SIGNED else np.zeros_like(a)
    right = np.where(outside, fill, np.right_shift(a, amount))
    assert same_bits(run(build("shl", dtype, 2), 2, a, b), left.astype(NUMPY[dtype]))
    assert same_bits(run(build("shr", dtype, 2), 2, a, b), right.astype(NUMPY[dtype]))
    assert same_bits(run(call("shl", operand(0, dtype), const(3, dtype)), 1, a), np.left_shift(a, NUMPY[dtype](3)))


@pytest.mark.parametrize("dtype", [*sorted(INTS), "bool"])
def test_bitwise(dtype: str):
    a, b = pairs(dtype)
    for op, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        assert same_bits(run(build(op, dtype, 2), 2, a, b), function(a, b))
    assert same_bits(run(build("not", dtype, 1), 1, a), ~a)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_choice(dtype: str):
    a, b = pairs(dtype)
    condition = np.arange(a.size) % 3 == 0
    c = operand(0, "bool")
    expected = np.where(condition, a, b)
    assert same_bits(run(select(c, operand(1, dtype), operand(2, dtype)), 3, condition, a, b), expected)
    assert same_bits(run(rare(c, operand(1, dtype), operand(2, dtype)), 3, condition, a, b), expected)


@pytest.mark.parametrize("dtype", ["i32", "u64", "i16"])
def test_choice_between_bitwise_results_and_their_operands(dtype: str):
    """LLVM makes one masked instruction of these, and makes it wrong if it is let."""
    a, b = pairs(dtype)
    condition = np.arange(a.size) % 3 == 0
    flag, x, y = operand(0, "bool"), operand(1, dtype), operand(2, dtype)
    mask = NUMPY[dtype](85)
    keep = int(~mask)
    forms = [((y & 85) | (x & keep), (b & mask) | (a & ~mask)), ((y & 85) ^ (x & keep), (b & mask) ^ (a & ~mask))]
    forms += [((x & y) | 85, (a & b) | mask), (~(x | y), ~(a | b)), (x & 85, a & mask)]
    for expr, value in forms:
        for other, plain in ((x, a), (y, b)):
            assert same_bits(run(select(flag, expr, other), 3, condition, a, b), np.where(condition, value, plain))
            assert same_bits(run(select(flag, other, expr), 3, condition, a, b), np.where(condition, plain, value))


def test_what_a_branch_computes_is_not_used_outside_of_it():
    x, flag = operand(0, "f32"), operand(1, "bool")
    shared = call("exp", x)
    y = rare(flag, shared * 2.0, x) + rare(
        flag, rare(call("gt", x, const(0.0, "f32"), dtype="bool"), shared, -x), shared
    )
    values = np.linspace(-2, 2, 67, dtype=np.float32)
    for chosen in (np.zeros(67, np.bool_), np.arange(67) == 40, np.ones(67, np.bool_)):
        e = compile_elementwise(shared, 1)(values)
        expected = np.where(chosen, e * 2, values) + np.where(chosen, np.where(values > 0, e, -values), e)
        assert same_bits(run(y, 2, values, chosen), expected)


@pytest.mark.parametrize(
    ("a", "b"), [("f32", "i32"), ("f32", "u32"), ("f64", "i64"), ("f64", "u64"), ("f16", "u16"), ("bf16", "i16")]
)
def test_bitcasts(a: str, b: str):
    values = special_values(a)
    got = run(bitcast(operand(0, a), b), 1, values)
    assert np.array_equal(got, values.view(NUMPY[b]))
    assert same_bits(run(bitcast(operand(0, b), a), 1, got), values)
    with pytest.raises(ValueError, match="differ in size"):
        bitcast(operand(0, "f32"), "i16")


@pytest.mark.parametrize("dtype", REAL)
def test_exponent_and_mantissa(dtype: str):
    values = np.abs(special_values(dtype))
    tiny = np.finfo(NUMPY[dtype]).smallest_subnormal
    values = np.concatenate(
        [values, np.array([tiny, 3 * tiny, 11 * tiny, 0.75, 1.5, np.nextafter(1.5, 0)], values.dtype)]
    )
    exponents = run(build("exponent", dtype, 1), 1, values)
    mantissas = run(build("mantissa", dtype, 1), 1, values)
    finite = np.isfinite(values) & (values > 0)
    fraction, power = np.frexp(values[finite])
    assert np.array_equal(exponents[finite], power - 1)
    assert np.array_equal(mantissas[finite], np.where(fraction < 0.75, fraction * 2, fraction))
    for x, exponent, mantissa in ((0.0, -math.inf, 1), (-0.0, -math.inf, -1), (math.inf, math.inf, 1)):
        one = np.array([x], NUMPY[dtype])
        assert run(build("exponent", dtype, 1), 1, one)[0] == exponent
        assert run(build("mantissa", dtype, 1), 1, one)[0] == mantissa
    for x in (-1.0, -math.inf, math.nan):
        assert np.isnan(run(build("mantissa", dtype, 1), 1, np.array([x], NUMPY[dtype])))[0]


@pytest.mark.parametrize("dtype", REAL)
def test_ldexp_rounds_once(dtype: str):
    limit = 252 if dtype == "f32" else 2044
    x, n = (v.ravel() for v in np.meshgrid([1.0, 0.7000001, 1.4142135, -1.25, 3.3], np.arange(-limit, limit + 1, 1.0)))
    x, n = x.astype(NUMPY[dtype]), n.astype(NUMPY[dtype])
    with np.errstate(all="ignore"):
        expected = np.ldexp(x.astype(np.longdouble), n.astype(np.int32)).astype(NUMPY[dtype])
    assert same_bits(run(build("ldexp", dtype, 2), 2, x, n), expected)
    ends = np.array([math.inf, -math.inf, math.nan], NUMPY[dtype])
    got = run(call("ldexp", const(1.5, dtype), operand(0, dtype)), 1, ends[:2])
    assert got.tolist() == [math.inf, 0]
    assert np.isnan(run(build("ldexp", dtype, 2), 2, ends[2:], np.ones(1, NUMPY[dtype])))[0]


@pytest.mark.parametrize("target", sorted(DTYPES))
@pytest.mark.parametrize("source", sorted(DTYPES))
def test_casts_are_numpys(source: str, target: str):
    values = special_values(source)
    with np.errstate(all="ignore"):
        expected = values.astype(NUMPY[target])
    got = run(cast(operand(0, source), target), 1, values) if source != target else values
    if target == "u32" and source in ("f16", "bf16", "f32", "f64"):
        inside = np.abs(values.astype(np.float64)) < 2.0**31
        got, expected = got[inside], expected[inside]  # NumPy's own loops differ outside
    assert same_bits(got, expected)


def test_floats_too_great_for_unsigned_integers():
    values = np.array([-1.5, 4294967295.0, 1e18, -1e19, math.nan, 9.3e18, 1.8e19, 1e30, math.inf])
    got = run(cast(operand(0, "f64"), "u32"), 1, values)
    assert got.tolist() == [2**32 - 1, 2**32 - 1, int(1e18) % 2**32, 0, 0, 0, 0, 0, 0]
    got = run(cast(operand(0, "f64"), "u64"), 1, values)
    assert got.tolist() == [2**64 - 1, 2**32 - 1, 10**18, 2**63, 2**63, int(9.3e18), int(1.8e19), 0, 0]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_narrow_float_survives_and_every_rounding_is_right(dtype: str):
    every = np.arange(2**16, dtype=np.uint16).view(NUMPY[dtype])
    wide = run(cast(operand(0, dtype), "f32"), 1, every)
    assert same_bits(wide, every.astype(np.float32))
    assert same_bits(run(cast(operand(0, "f32"), dtype), 1, wide), every)
    rng = np.random.default_rng(0)
    pattern = rng.integers(0, 2**32, 50_000, dtype=np.uint32)
    pattern[::3] = (pattern[::3] & 0xFFFF0000) | rng.choice(
        np.array([0x7FFF, 0x8000, 0x8001], np.uint32), pattern[::3].size
    )
    values = pattern.view(np.float32)
    with np.errstate(all="ignore"):
        assert same_bits(run(cast(operand(0, "f32"), dtype), 1, values), values.astype(NUMPY[dtype]))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_f64_is_not_rounded_twice(dtype: str):
    half = np.array([0x3C00, 0x3C01], np.uint16) if dtype == "f16" else np.array([0x3F80, 0x3F81], np.uint16)
    low, high = half.view(NUMPY[dtype]).astype(np.float64)
    middle = (low + high) / 2
    values = np.array([middle, math.nextafter(middle, 2), math.nextafter(middle, 0), -math.nextafter(middle, 2)])
    got = run(cast(operand(0, "f64"), dtype), 1, values)
    assert got.astype(np.float64).tolist() == [low, high, low, -high]


def test_integers_are_rounded_to_bf16_once():
    values = np.array([2**24 + 2**16, 2**24 + 2**16 + 1, 2**24 + 2**16 - 1], np.int32)
    got = run(cast(operand(0, "i32"), "bf16"), 1, values)
    assert got.astype(np.float64).tolist() == [2**24, 2**24 + 2**17, 2**24]
    assert got.dtype == ml_dtypes.bfloat16


def test_the_check_names_what_is_wrong():
    x = operand(0, "f32")
    check(expand(call("tanh", x)))
    for bad in (call("tanh", x), call("add", x, operand(1, "f64")), call("div", operand(0, "i32"), operand(1, "i32"))):
        with pytest.raises(ValueError, match="is not a primitive"):
            check(bad)
    assert "ldexp" in PRIMITIVES


def test_stand_ins_use_only_simpler_primitives():
    lower = frozenset({"ldexp", "exponent", "mantissa", "rare"})
    for name in ("exp", "log", "sin"):
        nodes = {n.op for n in topological((expand(call(name, operand(0, "f32")), lower=lower),))}
        assert not nodes & lower
    assert expand(call("exp", operand(0, "f32")), keep={"exp"}) is call("exp", operand(0, "f32"))
    with pytest.raises(ValueError, match="nothing stands for"):
        expand(operand(0, "f32"), lower={"sqrt"})
