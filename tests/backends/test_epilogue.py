"""What follows a sum in the same kernel."""

from __future__ import annotations

import pytest

from accord.backends.epilogue import with_first, with_sum
from accord.expr.lang import cast, operand

TOTAL = operand(0, "f32")


@pytest.mark.parametrize("short", ["f16", "bf16"])
def test_nothing_is_rounded_between_a_sum_and_an_operator(short):
    bias = cast(operand(1, short), "f32")
    stored = cast(cast(operand(0, short), "f32") + bias, short)
    assert with_sum(stored, "f32") == cast(TOTAL + bias, short)
    assert with_sum(cast(operand(0, short), "f64"), "f32") == cast(TOTAL, "f64")


def test_what_is_stored_or_used_as_a_short_number_is_rounded():
    assert with_sum(operand(0, "f16"), "f32") == cast(TOTAL, "f16")
    assert with_sum(cast(operand(0, "f16"), "i32"), "f32") == cast(cast(TOTAL, "f16"), "i32")
    assert with_sum(operand(0, "f16") * operand(1, "f16"), "f32") == cast(TOTAL, "f16") * operand(1, "f16")


def test_sums_of_their_own_type_stay():
    expr = operand(0, "f32") * operand(1, "f32")
    assert with_sum(expr, "f32") == expr
    assert with_sum(cast(operand(0, "i32"), "f32"), "i32") == cast(operand(0, "i32"), "f32")


def test_what_follows_a_bias_sees_it_unrounded():
    """As a convolution has it: the bias, then the operators that are fused to it, one of them with an operand."""
    own = TOTAL + cast(operand(1, "f16"), "f32")
    then = cast(cast(operand(0, "f16"), "f32") * cast(operand(1, "f16"), "f32"), "f16")
    assert with_first(then, own, 1) == cast(own * cast(operand(2, "f16"), "f32"), "f16")
    assert with_first(operand(0, "f16"), own, 1) == cast(own, "f16")
