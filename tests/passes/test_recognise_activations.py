"""Activations in the spellings of exporters, and in any other; functions that are nearly one stay."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recognise_harness import F, G, attributes, becomes, compiled, ops, reasons, same, stays

RNG = np.random.default_rng(12)
SQRT2 = math.sqrt(2)
C = math.sqrt(2 / math.pi)


def rand(*shape, dtype=F):
    return (3 * RNG.standard_normal(shape)).astype(dtype)


def one(g, form, left, shape=("n", 5), value=None, tolerance=None):
    """``form`` of a value that another node makes, between two nodes that are not its own."""
    y = g("Sin", form(g, g("Sin", "x")))
    concrete = [3 if isinstance(d, str) else d for d in shape]
    feed = rand(*concrete, dtype=g.dtype) if value is None else value
    return becomes(g.model({"x": list(shape)}, y), {"x": feed}, ["Sin", left, "Sin"], tolerance)


# Gelu


def gelu_torchscript(g, x):
    return g("Mul", g("Mul", x, g("Add", g("Erf", g("Div", x, SQRT2)), 1.0)), 0.5)


def gelu_dynamo(g, x):
    return g("Mul", x, g("Mul", 0.5, g("Add", g("Erf", g("Mul", x, 1 / SQRT2)), 1.0)))


def gelu_half_first(g, x):
    return g("Mul", g("Mul", x, 0.5), g("Add", 1.0, g("Erf", g("Mul", x, 0.7071067811865475))))


def gelu_tf2onnx(g, x):
    return g("Mul", g("Mul", 0.5, g("Add", 1.0, g("Erf", g("Div", x, g("Sqrt", 2.0))))), x)


def gelu_paddle(g, x):
    e = g("Erf", g("Mul", x, 0.70710678))
    return g("Mul", g("Mul", x, g("Add", e, g.const([1.0]))), g.const([0.5]))


def gelu_expanded(g, x):
    h = g("Div", x, 2.0)
    return g("Add", h, g("Mul", h, g("Erf", g("Div", x, SQRT2))))


def gelu_cdf(g, x):
    return g("Mul", x, g("Div", g("Sub", 1.0, g("Erf", g("Div", g("Neg", x), SQRT2))), 2.0))


ERF = [gelu_torchscript, gelu_dynamo, gelu_half_first, gelu_tf2onnx, gelu_paddle, gelu_cdf]


@pytest.mark.parametrize("opset", [11, 13, 17, 20, 24])
@pytest.mark.parametrize("form", ERF, ids=lambda f: f.__name__)
def test_gelu(form, opset):
    m = one(G(opset), form, "Gelu")
    assert attributes(m, "Gelu") == {}


def test_gelu_whose_half_is_shared():
    """x / 2 is read twice, inside."""
    one(G(), gelu_expanded, "Gelu")


def tanh_pow(g, x):
    inner = g("Mul", g("Add", x, g("Mul", g("Pow", x, 3.0), 0.044715)), C)
    return g("Mul", g("Mul", x, 0.5), g("Add", g("Tanh", inner), 1.0))


def tanh_products(g, x):
    """jax2tf."""
    cube = g("Mul", x, g("Mul", x, g("Mul", 0.044715, x)))
    t = g("Tanh", g("Mul", 0.7978846, g("Add", x, cube)))
    return g("Mul", x, g("Mul", 0.5, g("Add", 1.0, t)))


def tanh_factored(g, x):
    """GPT-2 of Hugging Face as optimum exports it, and the form of xformers."""
    inner = g("Mul", g("Mul", x, C), g("Add", 1.0, g("Mul", g("Mul", x, 0.044715), x)))
    return g("Mul", g("Add", 1.0, g("Tanh", inner)), g("Mul", 0.5, x))


def tanh_as_sigmoid(g, x):
    inner = g("Mul", g("Add", x, g("Mul", g("Mul", g("Mul", x, x), x), 0.044715)), 2 * C)
    return g("Mul", x, g("Sigmoid", inner))


@pytest.mark.parametrize("opset", [13, 24])
@pytest.mark.parametrize("form", [tanh_pow, tanh_products, tanh_factored, tanh_as_sigmoid], ids=lambda f: f.__name__)
def test_gelu_by_tanh(form, opset):
    m = one(G(opset), form, "Gelu")
    assert attributes(m, "Gelu") == {"approximate": "tanh"}


# gates


def swish_fn(g, x):
    return g("Mul", g("Sigmoid", x), x)


def swish_div(g, x):
    return g("Div", x, g("Add", g("Exp", g("Neg", x)), 1.0))


def swish_tanh(g, x):
    return g("Mul", g("Mul", x, 0.5), g("Add", g("Tanh", g("Mul", x, 0.5)), 1.0))


def swish_reciprocal(g, x):
    return g("Mul", x, g("Reciprocal", g("Add", 1.0, g("Exp", g("Mul", x, -1.0)))))


@pytest.mark.parametrize("form", [swish_fn, swish_div, swish_tanh, swish_reciprocal], ids=lambda f: f.__name__)
def test_swish(form):
    m = one(G(13), form, "Swish")
    assert attributes(m, "Swish").get("alpha", 1.0) == 1.0


@pytest.mark.parametrize("alpha", [1.702, 0.3, 5.0])
def test_quick_gelu_is_a_swish(alpha):
    m = one(G(14), lambda g, x: g("Mul", x, g("Sigmoid", g("Mul", x, alpha))), "Swish")
    assert attributes(m, "Swish")["alpha"] == pytest.approx(alpha, rel=1e-6)


MISH = [
    lambda g, x: g("Mul", x, g("Tanh", g("Softplus", x))),
    lambda g, x: g("Mul", g("Tanh", g("Log", g("Add", g("Exp", x), 1.0))), x),
]


@pytest.mark.parametrize("form", MISH)
def test_mish(form):
    one(G(13), form, "Mish")


SOFTPLUS = [
    lambda g, x: g("Log", g("Add", 1.0, g("Exp", x))),
    lambda g, x: g("Add", g("Max", x, 0.0), g("Log", g("Add", g("Exp", g("Neg", g("Abs", x))), 1.0))),
    lambda g, x: g("Sub", x, g("Log", g("Sigmoid", x))),
]


@pytest.mark.parametrize("form", SOFTPLUS)
def test_softplus(form):
    one(G(13), form, "Softplus")


def test_softsign():
    one(G(13), lambda g, x: g("Div", x, g("Add", g("Abs", x), 1.0)), "Softsign")


SIGMOID = [
    lambda g, x: g("Reciprocal", g("Add", 1.0, g("Exp", g("Neg", x)))),
    lambda g, x: g("Div", 1.0, g("Add", 1.0, g("Exp", g("Mul", -1.0, x)))),
    lambda g, x: g("Add", g("Mul", g("Tanh", g("Mul", x, 0.5)), 0.5), 0.5),
]


@pytest.mark.parametrize("form", SIGMOID)
def test_sigmoid(form):
    one(G(13), form, "Sigmoid")


# piecewise


def clip(g, x, low, high):
    return g("Clip", x, low, high)


def relu6(g, x):
    return g("Min", g("Relu", x), 6.0)


def min_max(g, x):
    return g("Max", g("Min", x, 6.0), 0.0)


def six(g, x):
    return clip(g, x, 0.0, 6.0)


def where(g, x):
    y = g("Where", g("Less", x, 0.0), 0.0, x)
    return g("Where", g("Greater", y, 6.0), 6.0, y)


H_SWISH = [
    lambda g, x, c: g("Div", g("Mul", x, c(g, g("Add", x, 3.0))), 6.0),
    lambda g, x, c: g("Mul", x, g("Div", c(g, g("Add", 3.0, x)), 6.0)),
    lambda g, x, c: g("Mul", g("Mul", c(g, g("Add", x, 3.0)), 1 / 6), x),
    lambda g, x, c: g("Mul", g("Mul", x, 0.16666667), c(g, g("Sub", x, -3.0))),
    lambda g, x, c: g("Div", g("Mul", c(g, g("Add", x, 3.0)), x), g.const([6.0])),
]


@pytest.mark.parametrize("cut", [six, relu6, min_max, where], ids=lambda f: f.__name__)
@pytest.mark.parametrize("form", H_SWISH)
def test_hard_swish(form, cut):
    one(G(13), lambda g, x: form(g, x, cut), "HardSwish")


def test_hard_swish_of_a_hard_sigmoid():
    one(G(13), lambda g, x: g("Mul", x, g("HardSigmoid", x, alpha=1 / 6, beta=0.5)), "HardSwish")


@pytest.mark.parametrize("alpha", [0.2, 1 / 6, 0.5])
def test_hard_sigmoid(alpha):
    form = lambda g, x: clip(g, g("Add", g("Mul", x, alpha), 0.5), 0.0, 1.0)  # noqa: E731
    m = one(G(13), form, "HardSigmoid")
    assert attributes(m, "HardSigmoid")["alpha"] == pytest.approx(alpha, rel=1e-6)
    assert attributes(m, "HardSigmoid")["beta"] == pytest.approx(0.5)


def test_paddle_hard_swish_with_another_slope_keeps_its_product():
    g = G(11)
    y = g("Mul", "x", clip(g, g("Add", g("Mul", "x", 0.2), 0.5), 0.0, 1.0))
    becomes(g.model({"x": ["n", 5]}, y), {"x": rand(3, 5)}, ["HardSigmoid", "Mul"])


LEAKY = [
    lambda g, x, a: g("Max", x, g("Mul", x, a)),
    lambda g, x, a: g("Where", g("Greater", x, 0.0), x, g("Mul", x, a)),
    lambda g, x, a: g("Where", g("Less", x, 0.0), g("Mul", a, x), x),
    lambda g, x, a: g("Sub", g("Relu", x), g("Mul", a, g("Relu", g("Neg", x)))),
    lambda g, x, a: g("Add", g("Relu", x), g("Mul", g("Min", x, 0.0), a)),
    lambda g, x, a: g("Add", g("Mul", x, (1 + a) / 2), g("Mul", g("Abs", x), (1 - a) / 2)),
]


@pytest.mark.parametrize("form", LEAKY)
def test_leaky_relu(form):
    m = one(G(13), lambda g, x: form(g, x, 0.1), "LeakyRelu")
    assert attributes(m, "LeakyRelu")["alpha"] == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize(
    "form",
    [
        lambda g, x: g("Max", x, 0.0),
        lambda g, x: g("Max", g.const(np.zeros((1, 1))), x),
        lambda g, x: g("Mul", g("Add", x, g("Abs", x)), 0.5),
    ],
)
def test_relu(form):
    g = G(13)
    y = g("Sin", form(g, g("Sin", "x")))
    m = compiled(g.model({"x": ["n", 5]}, y))
    # a single Max is left alone: nothing is gained
    assert ops(m) in (["Sin", "Relu", "Sin"], ["Sin", "Max", "Sin"])
    same(g.model({"x": ["n", 5]}, y), {"x": rand(3, 5)}, m)


def test_a_constant_factor_before_belongs_to_a_hard_sigmoid():
    g = G()
    y = g("HardSigmoid", g("Mul", "x", 3.0), alpha=0.2, beta=0.4)
    y = clip(g, g("Add", g("Mul", g("Neg", y), 1.0), 1.0), 0.0, 1.0)
    m = becomes(g.model({"x": ["n", 5]}, y), {"x": rand(3, 5)}, ["HardSigmoid"])
    assert attributes(m, "HardSigmoid")["alpha"] == pytest.approx(-0.6, rel=1e-6)
    assert attributes(m, "HardSigmoid")["beta"] == pytest.approx(0.6, rel=1e-6)


def test_relu_by_where_differs_for_nan():
    """where(x > 0, x, 0) of NaN is 0, Relu's is NaN."""
    g = G()
    stays(g.model({"x": ["n", 5]}, g("Where", g("Greater", "x", 0.0), "x", 0.0)))
    g = G()
    y = g("Where", g("Greater", 0.0, "x"), 0.0, "x")
    becomes(g.model({"x": ["n", 5]}, y), {"x": rand(3, 5)}, ["Relu"])


ELU = [
    lambda g, x, a: g("Where", g("Greater", x, 0.0), x, g("Mul", a, g("Sub", g("Exp", x), 1.0))),
    lambda g, x, a: g("Add", g("Relu", x), g("Mul", a, g("Sub", g("Exp", g("Min", x, 0.0)), 1.0))),
]


@pytest.mark.parametrize("form", ELU)
@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_elu(form, alpha):
    m = one(G(13), lambda g, x: form(g, x, alpha), "Elu")
    assert attributes(m, "Elu").get("alpha", 1.0) == pytest.approx(alpha)


PRELU = [
    lambda g, x, s: g("Sub", g("Relu", x), g("Mul", s, g("Relu", g("Neg", x)))),
    lambda g, x, s: g("Add", g("Relu", x), g("Mul", -s, g("Relu", g("Neg", x)))),
    lambda g, x, s: g("Where", g("Less", x, 0.0), g("Mul", x, s), x),
    lambda g, x, s: g("Add", g("Max", x, 0.0), g("Mul", g("Min", x, 0.0), s)),
]


@pytest.mark.parametrize("form", PRELU)
def test_prelu(form):
    slope = RNG.uniform(-0.5, 1.5, (4, 1, 1)).astype(F)
    one(G(13), lambda g, x: form(g, x, slope), "PRelu", ("n", 4, 3, 3))


def test_prelu_whose_slope_broadcasts_stays():
    g = G()
    slope = RNG.uniform(0, 1, (4, 1, 1)).astype(F)
    y = g("Where", g("Less", "x", 0.0), g("Mul", "x", slope), "x")
    stays(g.model({"x": ["n", 1, 3, 3]}, y), "broadcasts")


# types


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("form", [gelu_torchscript, swish_fn, lambda g, x: H_SWISH[0](g, x, six)])
def test_in_other_types(form, dtype):
    if form not in (gelu_torchscript, swish_fn) and dtype is np.float64:  # the slope of HardSwish is a float32
        g = G(20, dtype)
        stays(g.model({"x": ["n", 5]}, form(g, "x")), "nearly HardSwish")
        return
    one(G(20, dtype), form, {gelu_torchscript: "Gelu", swish_fn: "Swish"}.get(form, "HardSwish"))


def test_half_computed_in_float():
    """Casts to float32 and back belong to the function."""
    g = G(17, np.float16)

    def form(g, x):
        w = g("Cast", x, to=1)
        e = g("Add", g("Erf", g("Div", w, g.const(SQRT2, F))), g.const(1.0, F))
        return g("Cast", g("Mul", g("Mul", w, e), g.const(0.5, F)), to=10)

    one(g, form, "Gelu")


def test_float_computed_in_half_stays():
    g = G()
    e = g("Cast", g("Erf", g("Cast", g("Div", "x", SQRT2), to=10)), to=1)
    stays(g.model({"x": ["n", 5]}, g("Mul", g("Mul", "x", g("Add", e, 1.0)), 0.5)))


# random spellings


@st.composite
def hard_swishes(draw):
    """x * cut(x + 3) / 6 with factors in any order and place, and any cut."""
    g = G()
    b = draw(st.sampled_from([1.0, 2.0, 0.5, 1 / 6]))  # the cut is at 6 * b
    scaled = "x" if b == 1 else g("Mul", "x", b)
    shifted = g("Add", scaled, 3 * b) if draw(st.booleans()) else g("Sub", scaled, -3 * b)
    how = draw(st.integers(0, 3))
    high = 6 * b
    cut = (
        [
            lambda v: clip(g, v, 0.0, high),
            lambda v: g("Min", g("Relu", v), high),
            lambda v: g("Sub", g("Relu", v), g("Relu", g("Sub", v, high))),
            lambda v: g("Max", 0.0, g("Min", high, v)),
        ][how](shifted)
        if how != 2
        else None
    )
    if cut is None:
        return None
    factors = ["x", cut]
    draw(st.randoms()).shuffle(factors)
    place = draw(st.integers(0, 2))
    k = 6 * b
    if place < 2:
        factors[place] = g("Div", factors[place], k) if draw(st.booleans()) else g("Mul", 1 / k, factors[place])
        return g.model({"x": ["n", 5]}, g("Mul", *factors))
    y = g("Mul", *factors)
    return g.model({"x": ["n", 5]}, g("Div", y, k) if draw(st.booleans()) else g("Mul", y, 1 / k))


@settings(max_examples=40, deadline=None)
@given(hard_swishes())
def test_any_hard_swish(proto):
    if proto is not None:
        becomes(proto, {"x": rand(4, 5)}, ["HardSwish"])


# near misses


@pytest.mark.parametrize(
    ("form", "what"),
    [
        (lambda g, x: g("Mul", g("Mul", x, g("Add", g("Erf", g("Div", x, 1.5)), 1.0)), 0.5), "nearly Gelu"),
        (lambda g, x: g("Mul", g("Mul", x, 0.49), g("Add", g("Erf", g("Div", x, SQRT2)), 1.0)), "nearly Gelu"),
        (lambda g, x: tanh_with(g, x, 0.0447), "nearly Gelu"),
        (lambda g, x: g("Div", g("Mul", x, clip(g, g("Add", x, 3.0), 0.0, 5.9)), 6.0), "nearly HardSwish"),
        (lambda g, x: g("Mul", x, g("Sigmoid", g("Add", x, 0.01))), "nearly Swish"),
        (lambda g, x: g("Mul", x, g("Tanh", g("Mul", g("Softplus", x), 1.01))), "nearly Mish"),
        (lambda g, x: g("Max", g("Mul", x, 1.01), g("Mul", x, 0.1)), "nearly LeakyRelu"),
    ],
)
def test_near_misses_stay(form, what):
    g = G()
    y = form(g, "x")
    proto = g.model({"x": ["n", 5]}, y)
    m = compiled(proto)
    assert len(ops(m)) > 1
    assert any(what in r for r in reasons(m)), reasons(m)
    same(proto, {"x": rand(3, 5)}, m)


def tanh_with(g, x, c):
    inner = g("Mul", g("Add", x, g("Mul", g("Pow", x, 3.0), c)), C)
    return g("Mul", g("Mul", x, 0.5), g("Add", g("Tanh", inner), 1.0))


@pytest.mark.parametrize("high", [20.0, 300.0])
def test_a_gelu_that_is_cut_keeps_the_cut(high):
    g = G()
    y = clip(g, gelu_torchscript(g, "x"), -np.inf, high)
    becomes(g.model({"x": ["n", 5]}, y), {"x": rand(3, 5)}, ["Gelu", "Clip"])


def test_a_floor_in_the_tail_is_seen():
    g = G()
    y = g("Max", g("Reciprocal", g("Add", 1.0, g("Exp", g("Neg", "x")))), 1e-7)
    becomes(g.model({"x": ["n", 5]}, y), {"x": rand(3, 5)}, ["Sigmoid", "Max"])


def test_a_value_between_that_is_read_elsewhere():
    g = G()
    e = g("Erf", g("Div", "x", SQRT2))
    y = g("Mul", g("Mul", "x", g("Add", e, 1.0)), 0.5)
    stays(g.model({"x": ["n", 5]}, y, e), "is also a graph output")
    stays(g.model({"x": ["n", 5]}, y, g("Neg", e)), "is also read by")


def test_a_constant_that_broadcasts():
    g = G()
    y = g("Mul", "x", g("Add", g("Sigmoid", "x"), g.const(np.zeros((2, 1, 1)))))
    proto = g.model({"x": ["n", 5]}, y)
    stays(proto, "broadcasts the input")


def test_two_inputs_are_no_function_of_one():
    g = G()
    stays(g.model({"x": ["n", 5], "z": ["n", 5]}, g("Mul", "z", g("Sigmoid", "x"))))


def test_inside_a_branch():
    """Bodies of If are graphs like any other; what they read from outside may be the input."""
    import onnx

    from builders import model, node

    body = onnx.helper.make_graph(
        [node("Sigmoid", ["x"], ["s"]), node("Mul", ["x", "s"], ["a"])],
        "body",
        [],
        [onnx.helper.make_tensor_value_info("a", 1, None)],
    )
    other = onnx.helper.make_graph(
        [node("Neg", ["x"], ["b"])], "other", [], [onnx.helper.make_tensor_value_info("b", 1, None)]
    )
    proto = model(
        # of several values, so that no plan is made for what one of them says
        [
            node("ReduceMax", ["c"], ["any"], keepdims=0),
            node("If", ["any"], ["y"], then_branch=body, else_branch=other),
        ],
        {"x": (F, ["n", 5]), "c": (np.bool_, [2])},
        ["y"],
    )
    m = compiled(proto)
    assert "recognise-activation" in {p.rule for p in m.compiled.log.patches}
    for c in (True, False):
        same(proto, {"x": rand(3, 5), "c": np.array([c, False])}, m)
