"""Each rule: what it rewrites, what it leaves alone and why, and that results stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from rules_harness import FUSIONS, F, batch_norm, check, compiled, fired, ops, rand, reasons

from accord.backends.reference.evaluator import evaluate
from accord.passes.phases import phases, rule_names
from accord.runtime.options import Options
from builders import model, node


def test_rule_names_are_unique():
    assert len(rule_names()) == len(set(rule_names()))
    assert all(r.level >= 1 for p in phases() for r in p.rules)


def test_constants_fold():
    proto = model(
        [node("Add", ["a", "b"], ["c"]), node("Mul", ["x", "c"], ["y"])],
        {"x": (F, ["n", 3])},
        ["y"],
        {"a": rand(3), "b": rand(3)},
    )
    check(proto, {"x": rand(2, 3)}, "fold-constants", ["Mul"])


def test_random_nodes_do_not_fold():
    proto = model([node("RandomNormal", [], ["r"], shape=[4]), node("Add", ["x", "r"], ["y"])], {"x": (F, [4])}, ["y"])
    m = compiled(proto)
    assert "RandomNormal" in ops(m)


def test_a_result_much_larger_than_its_inputs_is_not_stored():
    proto = model(
        [node("Expand", ["c", "s"], ["e"]), node("Add", ["x", "e"], ["y"])],
        {"x": (F, [1024, 1024])},
        ["y"],
        {"c": rand(1, 1), "s": np.array([1024, 1024], np.int64)},
    )
    m = compiled(proto)
    assert "Expand" in ops(m)
    assert any("larger than its inputs" in r for r in reasons(m, "fold-constants"))


@pytest.mark.parametrize(
    "removed",
    [node("Identity", ["a"], ["b"]), node("Dropout", ["a"], ["b"]), node("Sum", ["a"], ["b"])],
    ids=lambda n: n.op_type,
)
def test_identities_go(removed):
    proto = model([node("Relu", ["x"], ["a"]), removed, node("Neg", ["b"], ["y"])], {"x": (F, [2, 3])}, ["y"])
    check(proto, {"x": rand(2, 3)}, "remove-identity", ["Relu", "Neg"])


def test_training_dropout_stays():
    proto = model(
        [node("Dropout", ["x", "r", "t"], ["y"])], {"x": (F, [2]), "t": (np.bool_, [])}, ["y"], {"r": np.array(0.5, F)}
    )
    m = compiled(proto)
    assert any("training_mode" in r for r in reasons(m, "remove-identity"))


def test_casts_there_and_back_go():
    proto = model(
        [node("Cast", ["x"], ["a"], to=11), node("Cast", ["a"], ["b"], to=1), node("Neg", ["b"], ["y"])],
        {"x": (F, [3])},
        ["y"],
    )
    check(proto, {"x": rand(3)}, "remove-no-op-cast", ["Neg"])


def test_a_narrowing_cast_stays():
    proto = model(
        [node("Cast", ["x"], ["a"], to=10), node("Cast", ["a"], ["b"], to=1), node("Neg", ["b"], ["y"])],
        {"x": (F, [3])},
        ["y"],
    )
    assert ops(compiled(proto)) == ["Cast", "Cast", "Neg"]


def test_transposes_merge():
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("Transpose", ["r"], ["a"], perm=[1, 2, 0]),
            node("Transpose", ["a"], ["b"], perm=[1, 2, 0]),
            node("Neg", ["b"], ["y"]),
        ],
        {"x": (F, [2, 3, 4])},
        ["y"],
    )
    check(proto, {"x": rand(2, 3, 4)}, "merge-transposes", ["Relu", "Transpose", "Neg"], level=1)


def test_a_transpose_of_ones_is_a_reshape():
    proto = model(
        [node("Relu", ["x"], ["r"]), node("Transpose", ["r"], ["a"], perm=[0, 2, 1]), node("Neg", ["a"], ["y"])],
        {"x": (F, ["n", 1, 4])},
        ["y"],
    )
    check(proto, {"x": rand(3, 1, 4)}, "transpose-to-reshape", ["Relu", "Reshape", "Neg"])


def test_shape_arithmetic_disappears():
    proto = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Concat", ["n", "rest"], ["t"], axis=0),
            node("Reshape", ["x", "t"], ["r"]),
            node("Neg", ["r"], ["y"]),
        ],
        {"x": (F, ["n", 4, 6])},
        ["y"],
        {"zero": np.array([0], np.int64), "rest": np.array([24], np.int64)},
    )
    check(proto, {"x": rand(3, 4, 6)}, "fold-reshape-target", ["Reshape", "Neg"])


def test_reshapes_collapse():
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("Flatten", ["r"], ["a"]),
            node("Reshape", ["a", "t"], ["b"]),
            node("Neg", ["b"], ["y"]),
        ],
        {"x": (F, ["n", 4, 6])},
        ["y"],
        {"t": np.array([0, 6, 4], np.int64)},
    )
    check(proto, {"x": rand(2, 4, 6)}, "collapse-reshapes", ["Relu", "Reshape", "Neg"])


def test_neutral_arithmetic_goes():
    proto = model(
        [node("Mul", ["x", "one"], ["a"]), node("Sub", ["a", "zero"], ["b"]), node("Neg", ["b"], ["y"])],
        {"x": (F, ["n", 3])},
        ["y"],
        {"one": np.ones(3, F), "zero": np.zeros((), F)},
    )
    check(proto, {"x": rand(2, 3)}, "remove-neutral-arithmetic", ["Neg"])


def test_a_neutral_constant_that_broadcasts_stays():
    proto = model([node("Mul", ["x", "one"], ["y"])], {"x": (F, [1, 3])}, ["y"], {"one": np.ones((4, 3), F)})
    m = compiled(proto)
    assert ops(m) == ["Mul"]
    assert any("broadcasts" in r for r in reasons(m, "remove-neutral-arithmetic"))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("op", "shape", "attributes", "channels"),
    [
        ("Conv", (6, 4, 3, 3), {}, 6),
        ("Conv", (6, 2, 3, 3), {"group": 2}, 6),
        ("ConvTranspose", (4, 6, 3, 3), {}, 6),
        ("ConvTranspose", (4, 3, 3, 3), {"group": 2}, 6),
    ],
)
def test_batch_norm_folds(op, shape, attributes, channels, bias):
    constants = {"w": rand(*shape), **batch_norm(channels)} | ({"c": rand(channels)} if bias else {})
    proto = model(
        [
            node(op, ["x", "w", *(["c"] if bias else [])], ["a"], **attributes),
            node("BatchNormalization", ["a", "g", "b", "m", "v"], ["y"]),
        ],
        {"x": (F, ["n", 4, 7, 7])},
        ["y"],
        constants,
    )
    check(proto, {"x": rand(2, 4, 7, 7)}, "fold-batch-norm", [op])


def test_batch_norm_with_statistics_from_outside_says_why():
    proto = model(
        [node("Conv", ["x", "w"], ["a"]), node("BatchNormalization", ["a", "g", "b", "m", "v"], ["y"])],
        {"x": (F, [1, 3, 5, 5]), "v": (F, [4])},
        ["y"],
        {"w": rand(4, 3, 1, 1), "g": rand(4), "b": rand(4), "m": rand(4)},
    )
    m = compiled(proto)
    assert ops(m) == ["Conv", "BatchNormalization"]
    assert any("input_var 'v' is a graph input" in r for r in reasons(m, "fold-batch-norm"))


def test_a_default_that_the_caller_may_replace_is_no_constant():
    proto = model(
        [node("Conv", ["x", "w"], ["a"]), node("BatchNormalization", ["a", "g", "b", "m", "v"], ["y"])],
        {"x": (F, [1, 3, 5, 5]), "m": (F, [4])},
        ["y"],
        {"w": rand(4, 3, 1, 1), **batch_norm(4)},
    )
    m = compiled(proto)
    assert "fold-batch-norm" not in fired(m)
    x = rand(1, 3, 5, 5)
    default, other = m(x=x)[0], m(x=x, m=np.zeros(4, F))[0]
    assert not np.allclose(default, other)


def test_batch_norm_does_not_fold_into_a_value_with_other_uses():
    proto = model(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("BatchNormalization", ["a", "g", "b", "m", "v"], ["y"]),
            node("Neg", ["a"], ["z"]),
        ],
        {"x": (F, [1, 3, 5, 5])},
        ["y", "z"],
        {"w": rand(4, 3, 1, 1), **batch_norm(4)},
    )
    m = check(proto, {"x": rand(1, 3, 5, 5)}, "batch-norm-to-affine", ["Conv", "Mul", "Add", "Neg"])
    assert any("has other uses" in r for r in reasons(m, "fold-batch-norm"))


@pytest.mark.parametrize("op", ["Mul", "Div", "Add", "Sub"])
@pytest.mark.parametrize("size", [(1,), (6, 1, 1), (1, 6, 1, 1)])
def test_affine_folds_into_conv(op, size):
    proto = model(
        [node("Conv", ["x", "w"], ["a"]), node(op, ["a", "c"], ["y"])],
        {"x": (F, ["n", 4, 5, 5])},
        ["y"],
        {"w": rand(6, 4, 3, 3), "c": np.abs(rand(*size)) + 0.5},
    )
    check(proto, {"x": rand(2, 4, 5, 5)}, "fold-affine-into-contraction", ["Conv"])


@pytest.mark.parametrize("trans_b", [0, 1])
def test_affine_folds_into_gemm(trans_b):
    w = rand(5, 4) if trans_b else rand(4, 5)
    proto = model(
        [node("Gemm", ["x", "w", "b"], ["a"], transB=trans_b, alpha=0.5, beta=2.0), node("Mul", ["a", "c"], ["y"])],
        {"x": (F, ["n", 4])},
        ["y"],
        {"w": w, "b": rand(5), "c": rand(5)},
    )
    check(proto, {"x": rand(3, 4)}, "fold-affine-into-contraction", ["Gemm"])


def test_a_constant_along_another_axis_does_not_fold():
    proto = model(
        [node("Conv", ["x", "w"], ["a"]), node("Mul", ["a", "c"], ["y"])],
        {"x": (F, [1, 4, 5, 5])},
        ["y"],
        {"w": rand(6, 4, 1, 1), "c": rand(5)},
    )
    m = compiled(proto)
    assert ops(m) == ["Conv", "Mul"]
    assert any("one value a channel" in r for r in reasons(m, "fold-affine-into-contraction"))


def test_equal_expressions_are_computed_once():
    proto = model(
        [
            node("Exp", ["x"], ["a"]),
            node("Exp", ["x"], ["b"]),
            node("Add", ["a", "p"], ["c"]),
            node("Add", ["b", "q"], ["d"]),
            node("Mul", ["c", "d"], ["y"]),
        ],
        {"x": (F, [3])},
        ["y"],
        {"p": np.float32(2), "q": np.float32(2)},
    )
    check(proto, {"x": rand(3)}, "common-subexpressions", ["Exp", "Add", "Mul"])


def test_graph_outputs_keep_their_names():
    proto = model(
        [node("Identity", ["x"], ["y"]), node("Relu", ["x"], ["r"]), node("Identity", ["r"], ["z"])],
        {"x": (F, [2])},
        ["y", "z", "r"],
    )
    m = compiled(proto)
    assert [o.name for o in m.outputs] == ["y", "z", "r"]
    x = rand(2)
    out = m(x)
    np.testing.assert_array_equal(out["y"], x)
    np.testing.assert_array_equal(out["z"], np.maximum(x, 0))
    assert out["y"] is not x and not np.shares_memory(out["y"], x)


def test_stop_after_applies_that_many_patches():
    proto = model(
        [
            node("Identity", ["x"], ["a"]),
            node("Relu", ["a"], ["b"]),
            node("Identity", ["b"], ["c"]),
            node("Neg", ["c"], ["y"]),
        ],
        {"x": (F, [2])},
        ["y"],
    )
    counts = [len(compiled(proto, stop_after=n, level=1).compiled.log.patches) for n in range(4)]
    assert counts == [0, 1, 2, 2]


def test_unknown_rules_and_levels_are_errors():
    from accord.errors import AccordError

    with pytest.raises(AccordError, match="unknown rule"):
        Options(disabled_rules=("no-such-rule",))
    with pytest.raises(AccordError, match="level"):
        Options(level=4)


def test_weights_of_fewer_bits_are_restored_at_load():
    packed = np.random.default_rng(0).integers(-128, 128, (700, 600)).astype(np.int8)
    proto = model(
        [
            node("Cast", ["w"], ["a"], to=1),
            node("Mul", ["a", "s"], ["b"]),
            node("MatMul", ["x", "b"], ["y"]),
        ],
        {"x": (F, [2, 700])},
        ["y"],
        {"w": packed, "s": rand(600) / 4096},
    )
    check(proto, {"x": rand(2, 700)}, "fold-constants", ["MatMul"], level=1)


def test_rows_of_a_table_are_restored_after_they_were_looked_up():
    packed = np.random.default_rng(0).integers(-128, 128, (3000, 200)).astype(np.int8)
    proto = model(
        [
            node("Cast", ["w"], ["a"], to=1),
            node("Mul", ["a", "s"], ["b"]),
            node("Gather", ["b", "i"], ["y"]),
        ],
        {"i": (np.int64, [2, "n"])},
        ["y"],
        {"w": packed, "s": rand(3000, 1)},
    )
    indices = {"i": np.array([[1, -1, 7], [0, 2999, 3]])}
    check(proto, indices, "gather-before-elementwise", ["Gather", "Cast", "Gather", "Mul"], level=1)


@pytest.mark.parametrize("scale", [(200,), (1, 200), ()])
def test_what_has_no_rows_is_not_looked_up(scale):
    packed = np.random.default_rng(0).integers(-128, 128, (3000, 200)).astype(np.int8)
    nodes = [
        node("Cast", ["w"], ["a"], to=1),
        node("Mul", ["a", "s"], ["b"]),
        node("Gather", ["b", "i"], ["y"]),
    ]
    proto = model(nodes, {"i": (np.int64, [2, 3])}, ["y"], {"w": packed, "s": rand(*scale)})
    check(
        proto,
        {"i": np.array([[1, -1, 7], [0, 2999, 3]])},
        "gather-before-elementwise",
        ["Gather", "Cast", "Mul"],
        level=1,
    )


def test_transposes_go_behind_elementwise_operators_and_meet():
    proto = model(
        [
            node("Transpose", ["x"], ["a"], perm=[0, 2, 3, 1]),
            node("Mul", ["a", "s"], ["b"]),
            node("Relu", ["b"], ["c"]),
            node("Add", ["c", "a"], ["d"]),
            node("Transpose", ["d"], ["y"], perm=[0, 3, 1, 2]),
        ],
        {"x": (F, ["n", 3, 4, 5])},
        ["y"],
        {"s": rand(3)},
    )
    check(proto, {"x": rand(2, 3, 4, 5)}, "sink-transpose", ["Mul", "Relu", "Add"], level=2, disabled_rules=FUSIONS)


def test_transposes_that_differ_stay():
    proto = model(
        [
            node("Transpose", ["x"], ["a"], perm=[1, 0, 2]),
            node("Transpose", ["x"], ["b"], perm=[0, 2, 1]),
            node("Add", ["a", "b"], ["y"]),
        ],
        {"x": (F, [3, 3, 3])},
        ["y"],
    )
    m = compiled(proto)
    assert any("different ways" in r for r in reasons(m, "sink-transpose"))


@pytest.mark.parametrize("through", [[], [node("Reshape", ["w", "s"], ["v"])]], ids=["alone", "reshaped"])
def test_computed_weights_fold_whatever_their_size(through):
    proto = model(
        [node("ConstantOfShape", ["n"], ["w"]), *through, node("Conv", ["x", "v" if through else "w"], ["y"])],
        {"x": (F, [1, 512, 1, 1])},
        ["y"],
        {"n": np.array([640, 512, 1, 1]), "s": np.array([640, 512, 1, 1])},
    )
    check(proto, {"x": rand(1, 512, 1, 1)}, "fold-constants", ["Conv"])


EMPTY_CHAINS = {
    "affine": [node("MatMul", ["x", "w"], ["m"]), node("Mul", ["m", "c"], ["a"]), node("Add", ["a", "c"], ["y"])],
    "mixture": [node("Sub", ["one", "x"], ["u"]), node("Mul", ["u", "c"], ["a"]), node("Add", ["a", "x"], ["y"])],
    "mean": [node("ReduceSum", ["x", "axis"], ["s"]), node("Div", ["s", "one"], ["m"]), node("Mul", ["m", "c"], ["y"])],
    "where": [node("Less", ["x", "c"], ["b"]), node("Where", ["b", "x", "c"], ["y"])],
    "clip": [
        node("Add", ["x", "one"], ["a"]),
        node("Clip", ["a", "one", "one"], ["b"]),
        node("Mul", ["x", "b"], ["y"]),
    ],
    "norm": [
        node("ReduceMean", ["x", "axis"], ["m"]),
        node("Sub", ["x", "m"], ["d"]),
        node("Mul", ["d", "d"], ["q"]),
        node("ReduceMean", ["q", "axis"], ["v"]),
        node("Add", ["v", "one"], ["e"]),
        node("Sqrt", ["e"], ["r"]),
        node("Div", ["d", "r"], ["n"]),
        node("Mul", ["n", "c"], ["a"]),
        node("Add", ["a", "c"], ["y"]),
    ],
}


@pytest.mark.parametrize("name", list(EMPTY_CHAINS))
@pytest.mark.parametrize("shape", [(0,), (1, 0), (3, 0)])
def test_rules_take_constants_without_elements(name, shape):
    """They have no first element and no largest one, and nothing says that they are all equal."""
    constants = {"c": np.zeros(shape, F), "one": F(1), "axis": np.array([-1]), "w": np.zeros((0, 0), F)}
    used = {i for n in EMPTY_CHAINS[name] for i in n.input}
    proto = model(EMPTY_CHAINS[name], {"x": (F, [3, 0])}, ["y"], {k: v for k, v in constants.items() if k in used})
    x = np.zeros((3, 0), F)
    for got in (compiled(proto, level=level)(x)[0] for level in range(4)):
        np.testing.assert_array_equal(got, evaluate(proto, {"x": x})[0])


WEIGHTS = np.random.default_rng(1).standard_normal((5, 5)).astype(F)
TWICE = {
    "product": [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "w"], ["y"])],
    "gemm": [node("Gemm", ["x", "w", "w"], ["p"], transB=1), node("Mul", ["p", "w"], ["y"])],
    "where": [node("MatMul", ["x", "w"], ["p"]), node("Where", ["c", "p", "w"], ["y"])],
    "convolution": [
        node("Reshape", ["x", "image"], ["i"]),
        node("Reshape", ["w", "taps"], ["k"]),
        node("Conv", ["i", "k"], ["p"], pads=[2, 2, 2, 2]),
        node("Sub", ["p", "k"], ["y"]),
    ],
}


@pytest.mark.parametrize("name", list(TWICE))
def test_weights_that_an_epilogue_reads_too_are_not_packed_for_it(name):
    """One value in two forms: as the contraction wants it, and as it lies in the model."""
    constants = {"w": WEIGHTS, "image": np.array([1, 1, 5, 5]), "taps": np.array([1, 1, 5, 5])}
    read = {i for n in TWICE[name] for i in n.input}
    inputs = {"x": (F, [5, 5])} | ({"c": (np.bool_, [1, 5])} if "c" in read else {})
    proto = model(TWICE[name], inputs, ["y"], {k: v for k, v in constants.items() if k in read})
    feeds = {"x": rand(5, 5)} | ({"c": np.array([[True, False, True, False, False]])} if "c" in read else {})
    m = compiled(proto)
    assert "fuse-epilogue" in fired(m)
    np.testing.assert_allclose(m(feeds)[0], evaluate(proto, feeds)[0], rtol=1e-5, atol=1e-5)


def test_a_default_epsilon_is_a_float32():
    """Also where it is added to a variance in double precision."""
    constants = {n: np.abs(rand(6)).astype(np.float64) + 0.01 for n in ("s", "b", "m", "v")}
    nodes = [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", *constants], ["y"])]
    weights = {"w": rand(6, 6, 1).astype(np.float64)}
    proto = model(nodes, {"x": (np.float64, [2, 6, 5])}, ["y"], weights | constants)
    x = rand(2, 6, 5).astype(np.float64)
    np.testing.assert_allclose(compiled(proto)(x)[0], evaluate(proto, {"x": x})[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("taps", [1, 3])
def test_an_image_that_its_epilogue_reads_too_lies_in_one_way(taps):
    """A depthwise convolution wants it channels-last, and so it is for what is fused to it."""
    pads = [taps // 2] * 4
    nodes = [node("Conv", ["x", "w"], ["c"], group=8, pads=pads), node("Sub", ["c", "x"], ["y"])]
    proto = model(nodes, {"x": (F, ["n", 8, 13, 17])}, ["y"], {"w": rand(8, 1, taps, taps)})
    m = compiled(proto)
    assert "fuse-epilogue" in fired(m)
    x = rand(1, 8, 13, 17)
    np.testing.assert_allclose(m(x)[0], evaluate(proto, {"x": x})[0], rtol=1e-5, atol=1e-5)
