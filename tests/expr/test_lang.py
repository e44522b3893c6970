"""The expression objects themselves."""

from __future__ import annotations

import gc
import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.expr.lang import Expr, bits, call, cast, const, operand, rebuild, topological


def test_equal_expressions_are_one_object():
    x = operand(0, "f32")
    assert call("add", x, const(1, "f32")) is call("add", operand(0, "f32"), const(1.0, "f32"))
    assert x + 1.0 is call("add", x, const(1.0, "f32"))
    assert 1.0 - x is call("sub", const(1.0, "f32"), x)
    assert operand(0, "f32") is not operand(0, "f64")


def test_zeros_and_nan_are_told_apart_by_their_bits():
    assert const(0.0, "f32") is not const(-0.0, "f32")
    assert const(math.nan, "f32") is const(math.nan, "f32")
    assert const(1, "i32") is not const(True, "bool")


def test_unused_expressions_are_forgotten():
    import weakref

    seen = weakref.ref(operand(7, "f64") * 3.25)
    gc.collect()
    assert seen() is None


def test_the_key_is_linear_in_a_shared_graph_and_distinguishes():
    x = operand(0, "f32")
    for _ in range(60):
        x = x * x + 1.0
    assert len(x.key) < 6000
    assert x.key == rebuild(x, x.args).key
    assert (operand(0, "f32") + operand(1, "f32")).key != (operand(1, "f32") + operand(0, "f32")).key
    assert call("neg", operand(0, "f32")).key != call("neg", operand(0, "f64")).key


def test_deep_expressions_do_not_exhaust_the_stack():
    x = operand(0, "i64")
    for k in range(5000):
        x = x + (k % 7)
    assert len(topological((x,))) == 5000 + 1 + 7
    assert x.key


def test_operands_come_before_users():
    x = operand(0, "f32")
    y = call("exp", x) * x + call("exp", x)
    order = topological((y,))
    assert len(order) == len(set(order)) == 4
    for node in order:
        assert all(order.index(a) < order.index(node) for a in node.args)
    assert topological((y,), known={call("exp", x)}) == [x, call("exp", x) * x, y]


@given(st.floats(allow_nan=False))
def test_constants_are_rounded_to_their_type(value: float):
    with np.errstate(all="ignore"):
        for dtype, kind in (("f16", np.float16), ("f32", np.float32), ("f64", np.float64)):
            expected = float(np.float64(value).astype(kind))
            assert struct.pack("<d", const(value, dtype).value) == struct.pack("<d", expected)


@given(st.integers(0, 0xFFFF), st.sampled_from([-1, 0, 1]), st.sampled_from([0.0, 0.5]))
def test_bf16_constants_round_to_nearest_even(pattern: int, nudge: int, half: float):
    below = float(np.array([pattern], np.uint16).view(ml_dtypes.bfloat16)[0])
    above = float(np.array([(pattern + 1) & 0xFFFF], np.uint16).view(ml_dtypes.bfloat16)[0])
    if not (math.isfinite(below) and math.isfinite(above)) or below * above < 0:
        return
    value = (
        math.nextafter(below + (above - below) * half, math.inf * nudge) if nudge else below + (above - below) * half
    )
    got = const(value, "bf16").value
    if half == 0.5 and nudge == 0:
        assert got == (below if pattern % 2 == 0 else above)
    else:
        assert got == (above if half and (nudge > 0) == (above > below) else below)
    assert const(3.4e38, "bf16").value == math.inf


@pytest.mark.parametrize(("value", "dtype"), [(256, "u8"), (-1, "u64"), (2**31, "i32"), (-129, "i8")])
def test_integers_that_do_not_fit_are_refused(value: int, dtype: str):
    with pytest.raises(ValueError, match="does not fit"):
        const(value, dtype)


def test_unknown_types_are_refused():
    with pytest.raises(ValueError, match="unknown element type"):
        operand(0, "f8")


def test_casts_to_the_same_type_vanish():
    x = operand(0, "u8")
    assert cast(x, "u8") is x
    assert cast(x, "i8").op == "cast"
    assert bits("bf16") == 16
    assert bits("bool") == 8
    assert isinstance(~operand(0, "bool") & operand(1, "bool"), Expr)
