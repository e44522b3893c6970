"""Errors of the functions in units in the last place, against NumPy in a wider type.

The limits are what was measured over all 2**32 arguments, rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from expr_harness import STAND_INS, Array, compile_elementwise, same_bits, ulps

from accord.expr.lang import call, const, operand
from accord.expr.math import FUNCTIONS, expand
from accord.expr.primitives import check

Function = Callable[[Array], Array]


def _elementwise(f: Callable[[float], float]) -> Function:
    return np.vectorize(f, otypes=[np.float64])


_erf, _erfc = _elementwise(math.erf), _elementwise(math.erfc)


def _sigmoid(v: Array) -> Array:
    small = np.exp(-np.abs(v))
    return np.where(v < 0, small, 1) / (1 + small)


def _times(v: Array, gate: Array) -> Array:
    """v * gate with the limit -0 at minus infinity."""
    return np.where(v == -np.inf, -0.0, v * gate)


def _softplus(v: Array) -> Array:
    return np.maximum(v, 0) + np.log1p(np.exp(-np.abs(v)))


def _gelu_tanh(v: Array) -> Array:
    two, pi = v.dtype.type(2), 4 * np.arctan(v.dtype.type(1))
    return _times(v, _sigmoid(two * np.sqrt(two / pi) * (v + v.dtype.type("0.044715") * v**3)))


def _gelu_erf(v: Array) -> Array:
    return np.where(v == -np.inf, 0.0, v * 0.5 * _erfc((v * -math.sqrt(0.5)).astype(np.float64)))


REFERENCES: dict[str, Function] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": _erf,
    "erfc": _erfc,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "gelu_erf": _gelu_erf,
    "gelu_tanh": _gelu_tanh,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "mish": lambda v: _times(v, np.tanh(_softplus(v))),
    "reciprocal": np.reciprocal,
    "rsqrt": lambda v: 1 / np.sqrt(v),
    "sigmoid": _sigmoid,
    "silu": lambda v: _times(v, _sigmoid(v)),
    "sin": np.sin,
    "sinh": np.sinh,
    "softplus": _softplus,
    "tan": np.tan,
    "tanh": np.tanh,
}
#: f32, f64; the second includes the error of the reference where that is not of higher precision.
LIMITS = dict.fromkeys(REFERENCES, (2.0, 3.0)) | {"exp": (0.9, 1.0), "log": (1.2, 1.0), "gelu_erf": (3.2, 8.0)}


def _f32_arguments() -> Array:
    """Every 4099th bit pattern, and all in the neighbourhood of zero, infinities and the ends of ranges."""
    patterns = [np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32)]
    edges = [
        0.0,
        2.0**-126,
        0.25,
        0.346,
        0.5,
        0.65,
        0.75,
        1.0,
        1.5,
        2.0,
        3.92,
        9.02,
        11.0,
        14.6,
        17.3,
        20.0,
        65536.0,
        3.4e38,
    ]
    edges += [k * math.pi / 4 for k in (1, 2, 3, 4, 5, 100, 80000)] + [
        87.3,
        88.7,
        89.4,
        103.97,
        126.0,
        128.0,
        149.0,
        math.inf,
    ]
    for edge in edges:
        centre = int(np.float32(edge).view(np.uint32))
        near = np.clip(np.arange(centre - 200, centre + 200), 0, 0x7F800000).astype(np.uint32)
        patterns += [near, near | np.uint32(0x80000000)]
    return np.concatenate(patterns).view(np.float32)


ARGUMENTS = _f32_arguments()


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_f32(name: str):
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](ARGUMENTS.astype(np.float64))
    got = compile_elementwise(call(name, operand(0, "f32")), 1)(ARGUMENTS)
    error = ulps(got, expected)
    worst = int(np.argmax(error))
    assert error[worst] <= LIMITS[name][0], (ARGUMENTS[worst], got[worst], expected[worst], error[worst])


def _f64_arguments() -> Array:
    rng = np.random.default_rng(2)
    scales = (1e-300, 1e-10, 0.01, 0.3, 1, 3, 10, 30, 300, 1e5, 1e9, 1e20, 1e250)
    values = [rng.standard_normal(600) * s for s in scales] + [rng.uniform(-760, 720, 2000), rng.uniform(-1, 1, 2000)]
    values += [
        1 + rng.standard_normal(500) * 1e-4,
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 5e-324, 1e-310]),
    ]
    return np.concatenate(values)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_f64(name: str):
    values = _f64_arguments()
    wide = name not in ("erf", "erfc", "gelu_erf")
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](values.astype(np.longdouble) if wide else values).astype(np.longdouble)
    got = compile_elementwise(call(name, operand(0, "f64")), 1, 8)(values)
    error = ulps(got, expected)
    if name == "gelu_erf":
        error[values < -1] = 0  # the reference's argument is rounded; see the next test
    worst = int(np.argmax(error))
    assert error[worst] <= LIMITS[name][1], (values[worst], got[worst], expected[worst], error[worst])


def test_gelu_in_f64_keeps_its_precision_far_below_zero():
    # x * Phi(x), from mpmath with 40 digits
    known = {-2.0: -0.045500263896358414401, -10.0: -7.619853024160526066e-23, -37.5: -1.7270073785932330664e-306}
    got = compile_elementwise(call("gelu_erf", operand(0, "f64")), 1, 8)(np.array(list(known)))
    assert np.allclose(got, list(known.values()), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"floor_mod", "fmod", "pow"}))
def test_signs_of_zero_and_other_machines(name: str, dtype: str):
    kind = np.float32 if dtype == "f32" else np.float64
    expr = call(name, operand(0, dtype))
    check(expand(expr))
    zeros = np.array([0.0, -0.0], kind)
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](zeros.astype(np.float64))
    got = compile_elementwise(expr, 1)(zeros)
    assert np.isnan(expected).all() or np.array_equal(np.signbit(got), np.signbit(expected))
    with np.errstate(invalid="ignore"):  # of signalling NaN
        values = np.concatenate([ARGUMENTS[::2003].astype(kind), zeros, np.linspace(-20, 20, 333, dtype=kind)])
    vector = compile_elementwise(expr, 1)(values)
    assert same_bits(compile_elementwise(expr, 1, 1)(values), vector)
    assert same_bits(compile_elementwise(expr, 1, 16, STAND_INS)(values), vector)


_BASES = [
    0.0,
    -0.0,
    1,
    -1,
    2,
    -2,
    3,
    -3,
    0.5,
    -0.5,
    np.inf,
    -np.inf,
    np.nan,
    1e-40,
    -1e-40,
    3e38,
    -3e38,
    2.5,
    1e10,
    -7,
    16777217,
]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_pow(dtype: str):
    kind, wide = (np.float32, np.float64) if dtype == "f32" else (np.float64, np.longdouble)
    rng = np.random.default_rng(3)
    n = 20_000
    base = [np.exp(rng.uniform(-80, 80, n)), np.exp(rng.uniform(-1, 1, n)), 1 + rng.standard_normal(n) * 1e-4]
    base += [-np.exp(rng.uniform(-4, 4, n)), np.exp2(rng.uniform(-149, -120, n))]
    power = [rng.standard_normal(n), rng.standard_normal(n) * 100, rng.standard_normal(n) * 1e6]
    power += [np.round(rng.standard_normal(n) * 30), rng.standard_normal(n)]
    grid = np.meshgrid(_BASES, _BASES)
    x, y = np.concatenate([*base, grid[0].ravel()]), np.concatenate([*power, grid[1].ravel()])
    with np.errstate(all="ignore"):
        x, y = x.astype(kind), y.astype(kind)
        expected = np.power(x.astype(wide), y.astype(wide))
    got = compile_elementwise(call("pow", operand(0, dtype), operand(1, dtype)), 2)(x, y)
    error = ulps(got, expected)
    worst = int(np.argmax(error))
    assert error[worst] <= 1.0, (x[worst], y[worst], got[worst], expected[worst])
    zero = expected == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("power", [0, -0.0, 1, 2, 3, 4, 5, 7, 16, -1, -2, -3, 0.5, -0.5, 2.5, 64, 65, -1e30, math.inf])
def test_pow_to_a_constant(power: float, dtype: str):
    kind, wide = (np.float32, np.float64) if dtype == "f32" else (np.float64, np.longdouble)
    with np.errstate(over="ignore"):
        values = np.concatenate(
            [np.array(_BASES, kind), np.exp(np.random.default_rng(4).uniform(-4, 4, 3000)).astype(kind)]
        )
    with np.errstate(all="ignore"):
        expected = np.power(values.astype(wide), np.full(values.shape, kind(power), wide))  # an array: no special cases
    got = compile_elementwise(call("pow", operand(0, dtype), const(power, dtype)), 1)(values)
    assert ulps(got, expected).max() <= 2.0
    zero = expected == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["fmod", "floor_mod"])
def test_remainders_are_exact(name: str, dtype: str):
    kind = np.float32 if dtype == "f32" else np.float64
    rng = np.random.default_rng(5)
    limits = np.finfo(kind)
    edges = [
        0.0,
        -0.0,
        1,
        -1,
        3,
        -3.5,
        np.inf,
        -np.inf,
        np.nan,
        limits.max,
        -limits.max,
        limits.smallest_subnormal,
        0.1,
    ]
    x, y = np.meshgrid(np.array(edges, kind), np.array(edges, kind))
    reach = 37 if dtype == "f32" else 300
    x = np.concatenate(
        [x.ravel(), (rng.standard_normal(4000) * 10.0 ** rng.integers(-reach, reach, 4000)).astype(kind)]
    )
    y = np.concatenate(
        [y.ravel(), (rng.standard_normal(4000) * 10.0 ** rng.integers(-reach, reach, 4000)).astype(kind)]
    )
    with np.errstate(all="ignore"):
        expected = (np.fmod if name == "fmod" else np.mod)(x, y)
    assert same_bits(compile_elementwise(call(name, operand(0, dtype), operand(1, dtype)), 2)(x, y), expected)
