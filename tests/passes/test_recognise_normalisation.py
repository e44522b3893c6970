"""Normalisations and softmax in the spellings of exporters, and in any other."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recognise_harness import F, G, attributes, becomes, compiled, nodes, ops, reasons, same, stays

RNG = np.random.default_rng(11)
LN, RMS, IN, GN = "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"


def rand(*shape, dtype=F):
    return RNG.standard_normal(shape).astype(dtype)


# as exporters write them


def torchscript(g, x, gamma, beta, eps=1e-5):
    """PyTorch's TorchScript exporter below opset 17; paddle2onnx writes the same."""
    d = g("Sub", x, g.axes("ReduceMean", x, [-1]))
    v = g.axes("ReduceMean", g("Pow", d, 2.0), [-1])
    y = g("Div", d, g("Sqrt", g("Add", v, eps)))
    return g("Add", g("Mul", y, gamma), beta)


def batch_norm_form(g, x, gamma, beta, eps=1e-3):
    """tf2onnx of a Keras layer: scale and shift inside, the variance from SquaredDifference."""
    mean = g.axes("ReduceMean", x, [2], keepdims=1)
    d = g("Sub", x, mean)
    v = g.axes("ReduceMean", g("Mul", d, d), [2], keepdims=1)
    inv = g("Mul", g("Reciprocal", g("Sqrt", g("Add", v, eps))), gamma)
    return g("Add", g("Mul", x, inv), g("Sub", beta, g("Mul", mean, inv)))


def jax(g, x, gamma, beta, eps=1e-6):
    """jax2tf of Flax: sums, the mean of squares less the square of the mean, never below zero."""
    n = 1 / 8
    mean = g("Mul", g.axes("ReduceSum", x, [2], keepdims=0), n)
    square = g("Mul", g.axes("ReduceSum", g("Mul", x, x), [2], keepdims=0), n)
    v = g("Max", 0.0, g("Sub", square, g("Mul", mean, mean)))
    shape = np.array([0, 0, 1], np.int64)
    inv = g("Reciprocal", g("Sqrt", g("Add", g("Reshape", v, shape), eps)))
    return g("Add", g("Mul", g("Sub", x, g("Reshape", mean, shape)), g("Mul", inv, gamma)), beta)


def dynamo(g, x, gamma, beta, eps=1e-5):
    """Decomposed by torch.export: var_mean, rsqrt as a power."""
    mean = g.axes("ReduceMean", x, [-1], keepdims=1)
    d = g("Sub", x, mean)
    v = g("Div", g.axes("ReduceSum", g("Mul", d, d), [-1], keepdims=1), 8.0)
    return g("Add", g("Mul", g("Mul", d, g("Pow", g("Add", v, eps), -0.5)), gamma), beta)


def l2(g, x, gamma, beta, eps=1e-12):
    """BERT of Hugging Face in older TensorFlow: two separate differences."""
    d1 = g("Sub", x, g.axes("ReduceMean", x, [-1]))
    d2 = g("Sub", g("Identity", x), g.axes("ReduceMean", x, [-1]))
    v = g.axes("ReduceMean", g("Pow", d2, 2.0), [-1])
    return g("Add", g("Mul", gamma, g("Div", d1, g("Sqrt", g("Add", eps, v)))), beta)


EXPORTERS = [torchscript, batch_norm_form, jax, dynamo, l2]


@pytest.mark.parametrize("opset", [11, 13, 17, 20, 24])
@pytest.mark.parametrize("form", EXPORTERS, ids=lambda f: f.__name__)
def test_layer_norm_of_exporters(form, opset):
    g = G(opset)
    y = form(g, g("Relu", "x"), rand(8), rand(8))
    m = becomes(g.model({"x": ["n", 5, 8]}, y), {"x": rand(3, 5, 8)}, ["Relu", LN])
    assert attributes(m, LN)["axis"] == -1


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_layer_norm_in_other_types(dtype):
    g = G(20, dtype)
    y = torchscript(g, "x", rand(8, dtype=dtype), rand(8, dtype=dtype), eps=1e-3)
    becomes(g.model({"x": ["n", 5, 8]}, y), {"x": rand(3, 5, 8, dtype=dtype)}, [LN])


def test_casts_around_belong_to_it():
    """float16 models compute the statistics in float32; the operator does so itself."""
    g = G(17, np.float16)
    wide = g("Cast", "x", to=1)
    d = g("Sub", wide, g.axes("ReduceMean", wide, [-1]))
    v = g.axes("ReduceMean", g("Pow", d, g.const(2.0, F)), [-1])
    y = g("Cast", g("Div", d, g("Sqrt", g("Add", v, g.const(1e-5, F)))), to=10)
    y = g("Add", g("Mul", y, rand(8, dtype=np.float16)), rand(8, dtype=np.float16))
    becomes(g.model({"x": ["n", 5, 8]}, y), {"x": rand(3, 5, 8, dtype=np.float16)}, [LN])


def test_a_cast_to_a_shorter_type_between_does_not():
    g = G(20)
    d = g("Sub", "x", g.axes("ReduceMean", "x", [-1]))
    v = g("Cast", g("Cast", g.axes("ReduceMean", g("Mul", d, d), [-1]), to=10), to=1)
    y = g("Div", d, g("Sqrt", g("Add", v, 1e-5)))
    stays(g.model({"x": ["n", 5, 8]}, y), "shorter type")


def choose(draw, *options):
    return draw(st.sampled_from(options))


@st.composite
def spellings(draw):
    """A layer norm over some axes, each step in one of its spellings."""
    rank = draw(st.integers(1, 4))
    shape = draw(st.lists(st.integers(2, 5), min_size=rank, max_size=rank))
    first = draw(st.integers(0, rank - 1))
    axes = list(range(first, rank))
    count = int(np.prod([shape[a] for a in axes]))
    named = [a - rank if draw(st.booleans()) else a for a in axes]
    kept = [1 if a in axes else 0 for a in range(rank)]
    g = G(draw(st.sampled_from([13, 18, 24])))

    def total(v, op="ReduceSum"):
        if draw(st.booleans()):
            return g.axes(op, v, named, keepdims=1)
        t = g.axes(op, v, named, keepdims=0)
        return g("Reshape", t, np.array(kept)) if draw(st.booleans()) else g.axes("Unsqueeze", t, axes)

    def mean(v):
        how = draw(st.integers(0, 2))
        if how == 0:
            return total(v, "ReduceMean")
        return g("Mul", total(v), 1 / count) if how == 1 else g("Div", total(v), float(count))

    def square(v):
        return g("Mul", v, v) if draw(st.booleans()) else g("Pow", v, 2.0)

    def commute(op, a, b):
        return g(op, a, b) if draw(st.booleans()) else g(op, b, a)

    centred = draw(st.booleans())
    m = mean("x") if centred else None
    d = "x"
    if centred:
        d = g("Sub", "x", m) if draw(st.booleans()) else commute("Add", "x", g("Neg", m))
    v = mean(square(d)) if draw(st.booleans()) or not centred else g("Sub", mean(square("x")), square(m))
    if draw(st.booleans()):
        v = g("Max", v, 0.0) if draw(st.booleans()) else g("Relu", v)
    eps = draw(st.sampled_from([1e-2, 1e-5]))
    v = commute("Add", v, eps)
    how = draw(st.integers(0, 4))
    affine = draw(st.booleans())
    sizes = shape[first:]
    gamma = draw(st.sampled_from([rand(*sizes), 0.7])) if affine else 1.0
    beta = rand(*sizes) if affine and centred else None
    if how == 0:
        y = commute("Mul", g("Div", d, g("Sqrt", v)), gamma)
    elif how == 1:
        y = g("Div", commute("Mul", d, gamma), g("Pow", v, 0.5))
    elif how == 2:
        y = commute("Mul", d, commute("Mul", gamma, g("Pow", v, -0.5)))
    elif how == 3:
        y = commute("Mul", commute("Mul", g("Reciprocal", g("Sqrt", v)), d), gamma)
    else:
        inv = g("Mul", g("Div", 1.0, g("Sqrt", v)), gamma)
        y = g("Mul", "x", inv)
        y = g("Sub", y, g("Mul", m, inv)) if centred else y
    if beta is not None:
        y = commute("Add", y, beta) if draw(st.booleans()) else g("Sub", y, -beta)
    dims = [f"d{i}" if i < first and draw(st.booleans()) else n for i, n in enumerate(shape)]
    return g.model({"x": dims}, y), shape, centred


@settings(max_examples=60, deadline=None)
@given(spellings())
def test_any_spelling_is_recognised(case):
    proto, shape, centred = case
    m = compiled(proto)
    same(proto, {"x": rand(*shape)}, m, 1e-3)
    # a scale and shift that do not fit the operator's own stay behind it
    left = [o for o in ops(m) if o not in ("Transpose", "Mul", "Add", "Sub")]
    assert left in ([LN], [IN]) if centred else left == [RMS], left


def test_axes_that_are_not_the_last_are_moved():
    g = G()
    d = g("Sub", "x", g.axes("ReduceMean", "x", [1]))
    y = g("Div", d, g("Sqrt", g("Add", g.axes("ReduceMean", g("Mul", d, d), [1]), 1e-5)))
    y = g("Add", g("Mul", y, rand(8, 1)), rand(1, 8, 1))
    becomes(g.model({"x": ["n", 8, 5]}, y), {"x": rand(3, 8, 5)}, ["Transpose", LN, "Transpose"])


def test_instance_norm():
    g = G(13)
    d = g("Sub", "x", g.axes("ReduceMean", "x", [2, 3]))
    y = g("Div", d, g("Sqrt", g("Add", g.axes("ReduceMean", g("Mul", d, d), [-2, -1]), 1e-5)))
    y = g("Add", g("Mul", y, rand(1, 4, 1, 1)), rand(4, 1, 1))
    becomes(g.model({"x": ["n", 4, "h", "w"]}, y), {"x": rand(2, 4, 5, 6)}, [IN])


def test_an_image_scaled_by_position_is_a_layer_norm():
    """Without scale it would be an instance norm; by then it is one, and becomes the other."""
    g = G(13)
    d = g("Sub", "x", g.axes("ReduceMean", "x", [2, 3]))
    y = g("Div", d, g("Sqrt", g("Add", g.axes("ReduceMean", g("Mul", d, d), [2, 3]), 1e-5)))
    y = g("Add", g("Mul", y, rand(5, 6)), rand(5, 6))
    m = becomes(g.model({"x": ["n", 4, 5, 6]}, y), {"x": rand(2, 4, 5, 6)}, [LN])
    assert attributes(m, LN)["axis"] == 2


def t5(g, x, gamma):
    v = g.axes("ReduceMean", g("Pow", x, 2.0), [-1])
    return g("Mul", gamma, g("Mul", x, g("Div", 1.0, g("Sqrt", g("Add", v, 1e-6)))))


def llama(g, x, gamma):
    v = g.axes("ReduceMean", g("Mul", x, x), [-1])
    return g("Mul", g("Mul", x, g("Reciprocal", g("Sqrt", g("Add", v, 1e-6)))), gamma)


def mlx(g, x, gamma):
    v = g("Div", g.axes("ReduceSumSquare", x, [-1], keepdims=1), 8.0)
    return g("Mul", g("Div", x, g("Sqrt", g("Add", v, 1e-6))), gamma)


def gemma(g, x, gamma):
    """The weights are stored less one; the sum is folded."""
    return g(
        "Mul",
        g("Mul", x, g("Pow", g("Add", g.axes("ReduceMean", g("Pow", x, 2.0), [2]), 1e-6), -0.5)),
        g("Add", gamma, 1.0),
    )


@pytest.mark.parametrize("form", [t5, llama, mlx, gemma], ids=lambda f: f.__name__)
@pytest.mark.parametrize("opset", [13, 17, 24])
def test_rms_norm_of_exporters(form, opset):
    g = G(opset)
    y = form(g, "x", rand(8))
    becomes(g.model({"x": ["n", 5, 8]}, y), {"x": rand(3, 5, 8)}, [RMS])


# what must stay


def layer_norm(g, x="x", eps=1e-5):
    mean = g.axes("ReduceMean", x, [-1])
    d = g("Sub", x, mean)
    v = g.axes("ReduceMean", g("Pow", d, 2.0), [-1])
    root = g("Sqrt", g("Add", v, eps))
    return g("Div", d, root), {"mean": mean, "difference": d, "variance": v, "root": root}


@pytest.mark.parametrize("which", ["mean", "difference", "variance", "root"])
def test_a_value_between_that_is_read_elsewhere(which):
    g = G()
    y, inner = layer_norm(g)
    proto = g.model({"x": ["n", 5, 8]}, y, inner[which])
    if which in ("mean", "difference"):  # what is left is a norm of the difference
        assert RMS in ops(compiled(proto))
        assert LN not in ops(compiled(proto))
        return
    stays(proto, "is also a graph output")
    other = g("Neg", inner[which])
    stays(g.model({"x": ["n", 5, 8]}, y, other), "is also read by")


def unbiased(g):
    d = g("Sub", "x", g.axes("ReduceMean", "x", [-1]))
    v = g("Div", g.axes("ReduceSum", g("Mul", d, d), [-1], keepdims=1), 7.0)
    return g("Div", d, g("Sqrt", g("Add", v, 1e-5)))


def test_the_unbiased_variance_is_a_scale():
    g = G()
    y = unbiased(g)
    m = becomes(g.model({"x": ["n", 5, 8]}, y), {"x": rand(3, 5, 8)}, [LN])
    assert attributes(m, LN)["epsilon"] == pytest.approx(1e-5 * 7 / 8)


def other_axes(g):
    d = g("Sub", "x", g.axes("ReduceMean", "x", [-1]))
    v = g.axes("ReduceMean", g("Mul", d, d), [1], keepdims=1)
    return g("Div", d, g("Sqrt", g("Add", v, 1e-5)))


def wrong_mean(g):
    d = g("Sub", "x", g.axes("ReduceMean", "x", [-1]))
    v = g.axes("ReduceMean", g("Mul", d, d), [-1])
    d2 = g("Sub", "x", g("Mul", g.axes("ReduceMean", "x", [-1]), 0.9))
    return g("Div", d2, g("Sqrt", g("Add", v, 1e-5)))


def not_a_mean(g):
    d = g("Sub", "x", g.axes("ReduceMean", "x", [-1]))
    v = g.axes("ReduceMax", g("Mul", d, d), [-1])
    return g("Div", d, g("Sqrt", g("Add", v, 1e-5)))


def epsilon_by_channel(g):
    d = g("Sub", "x", g.axes("ReduceMean", "x", [-1]))
    v = g.axes("ReduceMean", g("Mul", d, d), [-1])
    return g("Div", d, g("Sqrt", g("Add", v, np.geomspace(1e-5, 1e-2, 8))))


def negative_epsilon(g):
    y, _ = layer_norm(g, eps=-1e-5)
    return y


def fourth_root(g):
    d = g("Sub", "x", g.axes("ReduceMean", "x", [-1]))
    v = g.axes("ReduceMean", g("Mul", d, d), [-1])
    return g("Div", d, g("Pow", g("Add", v, 1e-5), 0.25))


@pytest.mark.parametrize(
    "form",
    [other_axes, wrong_mean, not_a_mean, epsilon_by_channel, negative_epsilon, fourth_root],
    ids=lambda f: f.__name__,
)
def test_near_misses_stay(form):
    g = G()
    m = compiled(g.model({"x": ["n", 5, 8]}, form(g)))
    assert LN not in ops(m)
    # the difference may be the input of an RMS norm, which is right; where nothing fits there is a reason
    assert RMS in ops(m) or reasons(m, "recognise-normalisation")
    same(g.model({"x": ["n", 5, 8]}, g.nodes[-1].output[0]), {"x": rand(3, 5, 8)}, m)


def test_a_size_that_a_run_decides():
    g = G()
    y, _ = layer_norm(g)
    stays(g.model({"x": ["n", "m"]}, y), "only known at run time")


def test_a_scale_along_another_axis_stays_outside():
    g = G()
    y, _ = layer_norm(g)
    proto = g.model({"x": ["n", 5, 6, 8]}, g("Mul", y, rand(5, 1, 1)))
    m = becomes(proto, {"x": rand(3, 5, 6, 8)}, [LN, "Mul"])
    assert any("axis 1, which is not normalised" in r for r in reasons(m))


def test_rows_scaled_by_channel_are_an_instance_norm():
    g = G()
    y, _ = layer_norm(g)
    becomes(g.model({"x": ["n", 5, 8]}, g("Mul", y, rand(5, 1))), {"x": rand(3, 5, 8)}, [IN])


def test_a_scale_that_is_computed_by_row_stays_outside():
    """Adaptive layer norms: one scale for each element of the batch."""
    g = G()
    y, _ = layer_norm(g)
    y = g("Add", g("Mul", y, g("Add", "s", 1.0)), "t")
    proto = g.model({"x": ["n", 5, 8], "s": ["n", 1, 8], "t": ["n", 1, 8]}, y)
    becomes(proto, {"x": rand(3, 5, 8), "s": rand(3, 1, 8), "t": rand(3, 1, 8)}, ["Add", LN, "Mul", "Add"])


def test_scale_and_shift_that_the_caller_may_replace():
    """Older exporters list all weights among the inputs."""
    g = G()
    y, _ = layer_norm(g)
    g.constants.update(w=rand(8), b=rand(1, 8))
    y = g("Sin", g("Add", g("Mul", "w", y), "b"))
    proto = g.model({"x": ["n", 5, 8], "w": [8], "b": [1, 8]}, y)
    becomes(proto, {"x": rand(3, 5, 8), "w": rand(8), "b": rand(1, 8)}, ["Reshape", LN, "Sin"])


def test_a_second_computed_scale_stays_outside():
    g = G()
    y, _ = layer_norm(g)
    y = g("Mul", g("Mul", y, "w"), "v")
    proto = g.model({"x": ["n", 5, 8], "w": [8], "v": [8]}, y)
    m = becomes(proto, {"x": rand(3, 5, 8), "w": rand(8), "v": rand(8)}, [LN, "Mul"])
    assert any("has a scale already" in r for r in reasons(m))


def test_axes_of_size_one_do_not_count():
    """Keras by way of a batch norm: (1, rows, features, 1) over all but the rows."""
    g = G(13)
    x = g("Reshape", "x", np.array([1, -1, 8, 1]))
    d = g("Sub", x, g.axes("ReduceMean", x, [0, 2, 3]))
    y = g("Mul", d, g("Pow", g("Add", g.axes("ReduceMean", g("Mul", d, d), [0, 2, 3]), 1e-3), -0.5))
    becomes(g.model({"x": ["n", 5, 8]}, g("Sin", y)), {"x": rand(3, 5, 8)}, ["Reshape", LN, "Sin"])


# softmax


def plain(g, x, axis):
    e = g("Exp", x)
    return g("Div", e, g.axes("ReduceSum", e, [axis], keepdims=1))


def stable(g, x, axis):
    e = g("Exp", g("Sub", x, g.axes("ReduceMax", x, [axis], keepdims=1)))
    return g("Div", e, g.axes("ReduceSum", e, [axis], keepdims=1))


def reciprocal(g, x, axis):
    e = g("Exp", g("Sub", x, g.axes("ReduceMax", x, [axis], keepdims=1)))
    return g("Mul", g("Reciprocal", g.axes("ReduceSum", e, [axis], keepdims=1)), e)


def of_log_sum(g, x, axis):
    return g("Exp", g("Sub", x, g.axes("ReduceLogSumExp", x, [axis], keepdims=1)))


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("opset", [11, 13, 18, 24])
@pytest.mark.parametrize("form", [plain, stable, reciprocal, of_log_sum], ids=lambda f: f.__name__)
def test_softmax(form, opset, axis):
    g = G(opset)
    y = form(g, g("Mul", "x", 0.5), axis)
    m = becomes(g.model({"x": ["n", "m", 8]}, y), {"x": rand(3, 5, 8)}, ["Mul", "Softmax"])
    assert attributes(m, "Softmax")["axis"] == axis % 3


def of_softmax(g, x):
    return g("Log", g("Softmax", x, axis=1))


def log_stable(g, x):
    t = g("Sub", x, g.axes("ReduceMax", x, [1], keepdims=1))
    return g("Sub", t, g("Log", g.axes("ReduceSum", g("Exp", t), [1], keepdims=1)))


def log_sum(g, x):
    return g("Sub", x, g.axes("ReduceLogSumExp", x, [1], keepdims=1))


def log_plain(g, x):
    e = g("Exp", x)
    return g("Log", g("Div", e, g.axes("ReduceSum", e, [1], keepdims=1)))


@pytest.mark.parametrize("form", [of_softmax, log_stable, log_sum, log_plain], ids=lambda f: f.__name__)
def test_log_softmax(form):
    g = G(13)
    becomes(g.model({"x": ["n", "m", 8]}, form(g, g("Relu", "x"))), {"x": rand(3, 5, 8)}, ["Relu", "LogSoftmax"])


def test_exponentials_over_something_else_stay():
    g = G()
    e = g("Exp", "x")
    y = g("Div", e, g("Add", g.axes("ReduceSum", e, [1], keepdims=1), 1.0))
    stays(g.model({"x": ["n", 8]}, y))
    g = G()
    e = g("Exp", "x")
    stays(
        g.model({"x": ["n", 5, 8]}, g("Div", e, g.axes("ReduceSum", e, [1, 2], keepdims=1))), "the sum is over the axes"
    )
    g = G()
    e = g("Exp", "x")
    stays(g.model({"x": ["n", 8]}, g("Div", e, g.axes("ReduceSum", e, [1], keepdims=1)), e), "also a graph output")


# means


@pytest.mark.parametrize(("keepdims", "spell"), list(itertools.product([0, 1], ["mean", "twice", "sum"])))
def test_global_average_pool(keepdims, spell):
    g = G(13)
    x = g("Relu", "x")
    if spell == "mean":
        y = g.axes("ReduceMean", x, [2, 3], keepdims=keepdims)
    elif spell == "twice":
        y = g.axes("ReduceMean", g.axes("ReduceMean", x, [3], keepdims=keepdims), [2], keepdims=keepdims)
    else:
        y = g("Div", g.axes("ReduceSum", x, [-1, -2], keepdims=keepdims), 30.0)
    left = ["Relu", "GlobalAveragePool", *([] if keepdims else ["Squeeze"])]
    becomes(g.model({"x": ["n", 4, 5, 6]}, y), {"x": rand(2, 4, 5, 6)}, left)


def test_a_mean_of_a_sequence_is_no_pool():
    g = G(13)
    stays(g.model({"x": ["n", 5, 8]}, g.axes("ReduceMean", "x", [2])))


def test_a_mean_by_a_size_computed_at_run_time():
    g = G(13)
    size = g("Cast", g("Gather", g("Shape", "x"), np.array(1)), to=1)
    y = g("Div", g.axes("ReduceSum", "x", [1], keepdims=1), size)
    becomes(g.model({"x": ["n", "m", 8]}, y), {"x": rand(2, 5, 8)}, ["ReduceMean"])


@pytest.mark.parametrize("empty", [1, 2])
def test_a_sum_of_nothing_is_no_mean(empty):
    """Along an axis without elements there is no number of them to divide by."""
    g, shape = G(18), [2, 4, 3, 5]
    shape[empty] = 0
    y = g("Mul", g.axes("ReduceSum", "x", [1, 2]), 0.25)
    proto = g.model({"x": shape}, y)
    same(proto, {"x": rand(*shape)}, compiled(proto))


def test_a_sum_divided_by_something_else_stays():
    g = G(13)
    stays(g.model({"x": ["n", 5, 8]}, g("Div", g.axes("ReduceSum", "x", [1], keepdims=1), 6.0)))


def test_the_scale_of_a_layer_norm_is_not_applied_twice():
    g = G(17)
    y = g(LN, "x", rand(8), rand(8), axis=-1, epsilon=1e-5)
    y = g("Mul", g("Mul", y, rand(8)), rand(8))
    m = becomes(g.model({"x": ["n", 5, 8]}, y), {"x": rand(3, 5, 8)}, [LN])
    assert len(nodes(m, LN)[0].inputs) == 3
