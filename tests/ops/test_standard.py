"""Standard operators that are written in others, and kernels of the tail, against the reference of the operator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from standard_harness import check

from accord.errors import AccordError, ModelTypeError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TRAINING = "ai.onnx.preview.training"
seeds = st.integers(0, 2**32 - 1)


@SETTINGS
@given(
    st.sampled_from(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"]),
    st.lists(st.sampled_from([1, 2, 5]), max_size=2),
    st.sampled_from(["none", "sum", "mean"]),
    st.booleans(),
    st.sampled_from([None, 0, -100, 3]),
    st.sampled_from(["float32", "float64", "float16"]),
    st.booleans(),
    seeds,
)
def test_losses(op, more, reduction, weighted, ignore, dtype, symbolic, seed):
    rng = np.random.default_rng(seed)
    n, classes = 3, 4
    scores = rng.standard_normal((n, classes, *more)).astype(dtype)
    target = rng.integers(0, classes, (n, *more)).astype(rng.choice(["int32", "int64"]))
    if ignore is not None:
        target.reshape(-1)[rng.random(target.size) < 0.3] = ignore
        target.reshape(-1)[0] = 1  # something must take part in the mean
    inputs = [scores, target, *([rng.uniform(0.1, 2, classes).astype(dtype)] if weighted else [])]
    attributes = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    outputs = 2 if op.startswith("Softmax") else 1
    check(op, inputs, outputs, rtol=2e-3 if dtype == "float16" else 1e-5, symbolic=symbolic, **attributes)


@pytest.mark.parametrize("target", [-1, 4])
def test_a_target_that_is_no_class_is_refused(target):
    scores = np.zeros((2, 4), np.float32)
    model = check("NegativeLogLikelihoodLoss", [scores, np.array([0, 3])])
    with pytest.raises(AccordError, match="outside"):
        model({"i0": scores, "i1": np.array([0, target])})


@pytest.mark.parametrize("tensors", [1, 3])
@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize(
    ("op", "kinds", "attributes"),
    [
        ("Adagrad", 3, {"norm_coefficient": 0.01, "epsilon": 1e-4, "decay_factor": 0.1}),
        (
            "Adam",
            4,
            {"alpha": 0.9, "beta": 0.99, "epsilon": 1e-4, "norm_coefficient": 0.01, "norm_coefficient_post": 0.1},
        ),
        ("Momentum", 3, {"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.01, "mode": "standard"}),
        ("Momentum", 3, {"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.0, "mode": "nesterov"}),
    ],
)
def test_optimisers(op, kinds, attributes, steps, tensors):
    rng = np.random.default_rng(steps)
    inputs = [np.float32(0.1), np.int64(steps)]
    inputs += [rng.uniform(0.1, 2, (2, k + 1)).astype(np.float32) for _ in range(kinds) for k in range(tensors)]
    check(op, inputs, (kinds - 1) * tensors, domain=TRAINING, rtol=1e-4, **attributes)


@SETTINGS
@given(st.lists(st.sampled_from([1, 3, 8]), min_size=1, max_size=3), st.data(), seeds, st.booleans())
def test_compress(shape, data, seed, symbolic):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    room = x.size if axis is None else shape[axis]
    condition = rng.random(data.draw(st.integers(0, room))) < 0.5
    check("Compress", [x, condition], symbolic=symbolic, **({} if axis is None else {"axis": axis}))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("more", [(), (5,), (3, 4)])
def test_batch_normalization_in_training(more, dtype):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((6, 3, *more)) * 2 + 1).astype(dtype)
    channels = [rng.uniform(0.5, 2, 3).astype(dtype) for _ in range(4)]
    check(
        "BatchNormalization",
        [x, *channels],
        3,
        training_mode=1,
        momentum=0.7,
        rtol=5e-3 if dtype == "float16" else 1e-4,
    )


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolution(length, past, activation):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 5, length)).astype(np.float32)
    inputs = [x, rng.standard_normal((5, 1, 4)).astype(np.float32), rng.standard_normal(5).astype(np.float32)]
    if past:
        inputs.append(rng.standard_normal((2, 5, 3)).astype(np.float32))
    check("CausalConvWithState", inputs, 2, opset=27, activation=activation)


EQUATIONS = [
    "ij,jk->ik",
    "ij,jk->ki",
    "bij,bjk->bik",
    "bhid,bhjd->bhij",
    "bhij,bhjd->bihd",
    "ij,kj->",
    "i,j->ij",
    "i,i->",
    "ij,ij->ij",
    "ijk,ij->jk",
    "abc,bcd->ad",
    "abcd,cdef->abef",
    "ij,jk,kl->il",
    "ij,ik,il->jkl",
    "...ij,...jk->...ik",
    "b...i,b...i->b...",
    "...ij->...ji",
    "ij->",
    "ij,j",
    "ba,ab",
    "ii",
    "ii->i",
    "bii->bi",
    "...ii->...i",
    "iij,jk->ik",
    "iji,jj->i",
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation, symbolic):
    rng = np.random.default_rng(3)
    sizes = {k: 2 + i % 3 for i, k in enumerate("abcdefhijkl")}
    inputs = []
    for term in equation.split("->")[0].split(","):
        before, dots, after = term.partition("...")
        shape = [*(sizes[k] for k in before), *((3, 2) if dots else ()), *(sizes[k] for k in after)]
        inputs.append(rng.standard_normal(shape).astype(np.float32))
    check("Einsum", inputs, equation=equation, symbolic=symbolic)


def test_einsum_broadcasts_sizes_of_1():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((1, 3, 4)).astype(np.float32), rng.standard_normal((5, 4, 1)).astype(np.float32)
    check("Einsum", [a, b], equation="...ij,...jk->...ik")


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("equation", ["bij,bjk->bik", "bhij,bjk->bhik", "bcij,bcjkl->bcikl", "bj,bjk->bk"])
@pytest.mark.parametrize("one", ["left", "right", "none"])
def test_einsum_of_a_batch_of_1(equation, symbolic, one):
    """A label of one element in one operand goes with any size in the other, also where only a run tells."""
    rng = np.random.default_rng(5)
    left, right = equation.split("->")[0].split(",")
    sizes = dict(zip("bchijkl", (3, 2, 4, 5, 6, 2, 3), strict=True))
    small = sizes | {"b": 1}
    inputs = [[(small if one == side else sizes)[k] for k in term] for side, term in (("left", left), ("right", right))]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in inputs]
    check("Einsum", arrays, equation=equation, symbolic=symbolic)


@pytest.mark.parametrize("equation", ["bij,bjk->bik", "bij,kj->bki", "bcij,bcjk->bcik", "bci,bcj->bij"])
@pytest.mark.parametrize("axis", range(3))
def test_einsum_of_nothing(equation, axis):
    left, right = equation.split("->")[0].split(",")
    sizes = dict.fromkeys("bcijk", 3) | {left[axis]: 0}
    check("Einsum", [np.ones([sizes[k] for k in term], np.float32) for term in (left, right)], equation=equation)


@SETTINGS
@given(
    st.lists(st.sampled_from([0, 1, 3]), max_size=2), st.integers(0, 9), st.sampled_from(["float32", "float64"]), seeds
)
def test_determinant(more, size, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (*more, size, size)).astype(dtype)
    check("Det", [x], rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_binarizer(dtype):
    check("Binarizer", [np.arange(-3, 4).astype(dtype)], domain="ai.onnx.ml", threshold=0.5)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["plain", "bool", "float", "past", "valid"])
def test_attention_whose_scores_are_wanted(mode, dtype, kind):
    rng = np.random.default_rng(mode)
    q, k, v = (rng.standard_normal((2, n, 5, 8)).astype(dtype) for n in (4, 2, 2))
    inputs = [q, k, v, None, None, None, None]
    if kind == "bool":
        inputs[3] = rng.random((2, 4, 5, 4)) < 0.6
    elif kind == "float":
        inputs[3] = np.where(rng.random((5, 5)) < 0.3, -np.inf, rng.standard_normal((5, 5))).astype(dtype)
    elif kind == "past":
        inputs[4:6] = [rng.standard_normal((2, 2, 3, 8)).astype(dtype) for _ in range(2)]
    elif kind == "valid":
        inputs[6] = np.array([5, 3])
    while inputs[-1] is None:
        inputs.pop()
    attributes = {"qk_matmul_output_mode": mode, "is_causal": mode % 2, "softcap": 2.0 if mode else 0.0}
    check("Attention", inputs, 4, rtol=6e-3 if dtype == "float16" else 1e-5, **attributes)


@pytest.mark.parametrize(
    ("op", "shape", "text"),
    [
        (node("Einsum", ["x", "x"], ["y"], equation="bij,bjk->bik"), [], "rank"),
        (node("Attention", ["x", "x", "x"], ["y"], qk_matmul_output_mode=4), [1, 2, 4, 8], "mode"),
    ],
)
def test_what_the_shape_rule_refuses_is_not_written_in_other_operators(op, shape, text):
    with pytest.raises(ModelTypeError, match=text):
        Model(model([op], {"x": (np.float32, shape)}, ["y"]), Options())
