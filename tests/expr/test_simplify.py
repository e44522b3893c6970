"""Simplification never changes a result."""

from __future__ import annotations

import math

import numpy as np
import pytest
from expr_harness import NUMPY, compile_elementwise, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.expr.lang import Expr, call, cast, const, operand, topological
from accord.expr.primitives import select
from accord.expr.simplify import simplify

x, y = operand(0, "f32"), operand(1, "f32")
i, k = operand(0, "i32"), operand(1, "u8")
b = operand(0, "bool")


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (x * 1.0, x),
        (1.0 * x, x),
        (x * -1.0, -x),
        (x / 1.0, x),
        (x / 4.0, x * 0.25),
        (x / 3.0, x / 3.0),
        (x - 0.0, x),
        (x + -0.0, x),
        (x + 0.0, x + 0.0),  # turns -0 into +0
        (x * 0.0, x * 0.0),  # keeps NaN and the sign
        (call("neg", -x), x),
        (x + -y, x - y),
        (-x + y, y - x),
        (x - -y, x + y),
        (-x * -y, x * y),
        (call("abs", -x), call("abs", x)),
        (call("max", x, const(2.0, "f32")), call("max", const(2.0, "f32"), x)),
        (select(const(True, "bool"), x, y), x),
        (select(b, x, x), x),
        (select(~b, x, y), select(b, y, x)),
        (~(~b), b),
        (b & True, b),
        (b | True, const(True, "bool")),
        (i * 0, const(0, "i32")),
        (i ^ -1, ~i),
        (cast(cast(k, "i32"), "f32"), cast(k, "f32")),
        (cast(cast(k, "f32"), "u8"), k),
        (cast(cast(i, "i64"), "i8"), cast(i, "i8")),
        (cast(cast(i, "f64"), "i8"), cast(cast(i, "f64"), "i8")),  # not the low bits
        (cast(cast(i, "f32"), "i32"), cast(cast(i, "f32"), "i32")),
        (cast(cast(x, "f16"), "f32"), cast(cast(x, "f16"), "f32")),
        (cast(cast(x, "f64"), "f32"), x),
        (call("round", cast(i, "f32")), cast(i, "f32")),
        (const(2.0, "f32") * 3.0 + 1.0, const(7.0, "f32")),
        (cast(const(300, "i32"), "u8"), const(44, "u8")),
    ],
    ids=str,
)
def test_rules(expr: Expr, expected: Expr):
    assert simplify(expr) is expected


_FLOAT_OPS = ("add", "sub", "mul", "div", "min", "max")
_LEAVES = st.sampled_from([x, y, *(const(v, "f32") for v in (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.7, math.inf, math.nan))])


def _grow(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    compare = st.builds(
        lambda op, p, q: call(op, p, q, dtype="bool"),
        st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]),
        children,
        children,
    )
    return st.one_of(
        st.builds(call, st.sampled_from(_FLOAT_OPS), children, children),
        st.builds(call, st.sampled_from(["neg", "abs", "floor", "round", "sqrt"]), children),
        st.builds(lambda c, p, q: select(~c, p, q), compare, children, children),
        st.builds(lambda p, t: cast(cast(p, t), "f32"), children, st.sampled_from(["f64", "f16", "i32", "u8", "bf16"])),
        st.builds(lambda p: call("bitcast", call("bitcast", p, dtype="i32"), dtype="f32"), children),
    )


@settings(max_examples=60, deadline=None)
@given(st.recursive(_LEAVES, _grow, max_leaves=12))
def test_values_stay_the_same_bit_for_bit(expr: Expr):
    short = simplify(expr)
    assert len(topological((short,))) <= len(topological((expr,)))
    values = np.array([0, -0.0, 1, -1, 0.5, 2.5, 1e-40, -3e38, 300, -7.5, np.inf, -np.inf, np.nan], np.float32)
    p, q = (v.ravel() for v in np.meshgrid(values, values))
    before = _unsimplified(expr)(p, q)
    after = compile_elementwise(short, 2)(p, q)
    assert same_bits(before, after)


def _unsimplified(expr: Expr):
    """The expression with its constants read from memory, so that nothing is folded."""
    from accord.expr.lang import rebuild

    found: dict[Expr, Expr] = {}
    values: list[Expr] = []
    for node in topological((expr,)):
        if node.op == "const":
            found[node] = operand(2 + len(values), node.dtype)
            values.append(node)
        else:
            found[node] = rebuild(node, tuple(found[a] for a in node.args))
    kernel = compile_elementwise(found[expr], 2 + len(values))
    return lambda *arrays: kernel(*arrays, *(np.full(arrays[0].shape, v.value, NUMPY[v.dtype]) for v in values))


_INT_OPS = ("add", "sub", "mul", "and", "or", "xor", "min", "max")


@given(st.sampled_from(_INT_OPS), st.sampled_from(["i8", "u8", "i32", "u64", "i64"]), st.data())
def test_folded_integers_are_what_numpy_gives(op: str, dtype: str, data: st.DataObject):
    info = np.iinfo(NUMPY[dtype])
    p, q = (data.draw(st.integers(int(info.min), int(info.max))) for _ in range(2))
    functions = {
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "min": np.minimum,
        "max": np.maximum,
    }
    function = functions.get(op) or {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op]
    expected = function(np.array([p], NUMPY[dtype]), np.array([q], NUMPY[dtype]))[0]
    assert simplify(call(op, const(p, dtype), const(q, dtype))).value == expected
