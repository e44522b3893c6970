"""Half precision on request: what is stored in 16 bits, what stays float32 and why, and that results are near."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from recognise_harness import G
from rules_harness import F, compiled, ops, rand, reasons

import accord
from accord.backends.reference.evaluator import evaluate
from accord.cli import main
from accord.contract.registry import unregister
from builders import model, node

Tensor = accord.Tensor
NEAR = {"float16": 2e-2}


def stored(m) -> dict[str, set[str]]:
    """Element types of the results of the steps of a model, by operator."""
    found: dict[str, set[str]] = {}
    for step in m.plan.steps:
        for o in step.outputs:
            if o >= 0:
                found.setdefault(step.placement.op, set()).add(m.plan.slots[o].type.name)
    return found


def transformer(dtype=F) -> onnx.ModelProto:
    """Embedding, a normalised linear layer with Gelu, a residual, a softmax."""
    g = G(dtype=dtype)
    x = g("Gather", rand(50, 16).astype(dtype), "ids")
    n = g("LayerNormalization", x, rand(16).astype(dtype), rand(16).astype(dtype), axis=-1)
    h = g("Gelu", g("Add", g("MatMul", n, rand(16, 32).astype(dtype)), rand(32).astype(dtype)))
    y = g("Add", g("MatMul", h, rand(32, 16).astype(dtype)), x)
    return g.model({"ids": (np.int64, [2, 5])}, g("Softmax", y, axis=-1))


IDS = {"ids": np.arange(10).reshape(2, 5)}
#: Fusion hides the types between operators.
APART = ("fuse-epilogue", "fuse-loops")


@pytest.mark.parametrize("precision", ["float16"])
@pytest.mark.parametrize("level", [0, 3])
def test_a_transformer_is_stored_in_halves(precision, level):
    proto = transformer()
    m = compiled(proto, precision=precision, level=level, disabled_rules=APART)
    assert m.outputs[0].dtype == "float"
    types = stored(m)
    for op in ("Gather", "LayerNormalization", "MatMul", "Gelu", "Add", "Softmax"):
        assert types[op] == {precision}, op
    assert types["Cast"] == {"float"}  # of the output alone
    assert ops(m).count("Cast") == 1
    got, want = m(IDS)[0], evaluate(proto, IDS)[0]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=NEAR[precision], atol=1e-2)
    assert not np.array_equal(got, want)


def test_bfloat16_on_a_cpu_rounds_operands_only():
    m = compiled(transformer(), precision="bfloat16", disabled_rules=APART)
    assert "Cast" not in ops(m)
    assert all(types <= {"float"} for types in stored(m).values())


def test_bfloat16_is_stored_where_the_device_gains():
    from accord.backends.null import backend

    assert not backend.stores_halves
    from accord.backends.cuda import CudaBackend

    assert CudaBackend.stores_halves


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("Exp", "leave the range"),
        ("Floor", "decide places"),
        ("ReduceSum", "sums what may be long"),
        ("CumSum", "sums what may be long"),
        ("LogSoftmax", "loss"),
        ("Erf", ""),
        ("Relu", ""),
        ("Softmax", ""),
        ("ReduceMax", ""),
        ("Transpose", ""),
    ],
)
def test_what_follows_a_product(op, why):
    more = {"ReduceSum": ["axes"], "CumSum": ["axis"], "ReduceMax": ["axes"]}.get(op, [])
    constants = {"w": rand(8, 6), "axes": np.array([1]), "axis": np.array(1)}
    nodes = [node("MatMul", ["x", "w"], ["m"]), node(op, ["m", *more], ["y"])]
    proto = model(nodes, {"x": (F, [4, 8])}, ["y"], {k: v for k, v in constants.items() if k in ("w", *more)})
    m = compiled(proto, precision="float16", disabled_rules=APART)
    assert stored(m)[op] == ({"float"} if why else {"float16"})
    assert (not why) or any(why in r for r in reasons(m, "store-half"))
    x = rand(4, 8) * F(0.3)
    np.testing.assert_allclose(m({"x": x})[0], evaluate(proto, {"x": x})[0], rtol=2e-2, atol=2e-2)


def test_what_meets_float32_stays_float32():
    proto = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Exp", ["m"], ["e"]), node("Add", ["m", "e"], ["y"])],
        {"x": (F, [4, 8])},
        ["y"],
        {"w": rand(8, 6)},
    )
    m = compiled(proto, precision="float16", disabled_rules=APART)
    assert stored(m)["Add"] == {"float"}
    assert any("'e' is computed in float32" in r for r in reasons(m, "store-half"))


def test_no_product_no_halves():
    proto = model([node("Relu", ["x"], ["r"]), node("Add", ["r", "x"], ["y"])], {"x": (F, [4])}, ["y"])
    assert ops(compiled(proto, precision="float16", disabled_rules=APART)) == ["Relu", "Add"]


def test_weights_that_do_not_fit_stay():
    w = rand(8, 6)
    w[2, 3] = 1e5
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (F, [4, 8])}, ["y"], {"w": w})
    m = compiled(proto, precision="float16")
    assert ops(m) == ["MatMul"]
    assert any("'w' has values that float16 does not hold" in r for r in reasons(m, "store-half"))
    x = rand(4, 8)
    np.testing.assert_allclose(m({"x": x})[0], evaluate(proto, {"x": x})[0], rtol=1e-5)


@pytest.mark.parametrize("hidden", [-3.4028235e38, -1e31, -np.inf])
def test_masks_of_great_numbers_hide_as_before(hidden):
    mask = np.zeros((4, 6), F)
    mask[:, 3:] = hidden
    proto = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "mask"], ["a"]), node("Softmax", ["a"], ["y"], axis=-1)],
        {"x": (F, [4, 8])},
        ["y"],
        {"w": rand(8, 6), "mask": mask},
    )
    m = compiled(proto, precision="float16", disabled_rules=APART)
    assert stored(m)["Softmax"] == {"float16"}
    x = rand(4, 8)
    got = m({"x": x})[0]
    assert not got[:, 3:].any()
    np.testing.assert_allclose(got, evaluate(proto, {"x": x})[0], rtol=2e-2, atol=1e-3)


def test_a_convolution_keeps_its_normalisation_and_pool_in_halves():
    channels = dict(zip("gbmv", (rand(6), rand(6), rand(6), np.abs(rand(6)) + 1), strict=True))
    proto = model(
        [
            node("Conv", ["x", "w", "c"], ["a"], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["r"]),
            node("BatchNormalization", ["r", *"gbmv"], ["n"]),
            node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", ["p"], ["q"]),
            node("Flatten", ["q"], ["f"]),
            node("Gemm", ["f", "v2", "c2"], ["y"], transB=1),
        ],
        {"x": (F, [2, 3, 8, 8])},
        ["y"],
        {"w": rand(6, 3, 3, 3), "c": rand(6), "v2": rand(4, 6), "c2": rand(4), **channels},
    )
    m = compiled(proto, precision="float16", disabled_rules=APART)
    types = stored(m)
    for op in ("Conv", "MaxPool", "GlobalAveragePool", "Gemm"):
        assert types[op] == {"float16"}, op
    x = rand(2, 3, 8, 8)
    np.testing.assert_allclose(m({"x": x})[0], evaluate(proto, {"x": x})[0], rtol=5e-2, atol=5e-2)


@pytest.fixture
def forgotten():
    yield
    unregister("half", "Twice")


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("types", [["float32"], ["float32", "float16"]], ids=str)
def test_a_users_operator_follows_its_contract(types):
    @accord.operator("half::Twice")
    def twice(x: Tensor["T", ...]) -> Tensor["T", ...]:
        """Twice its input."""
        return x * np.asarray(2, x.dtype)

    twice.types(T=types).scheduling(fuses="elementwise")
    twice.expression(lambda x: x * 2.0)
    proto = model(
        [node("MatMul", ["x", "w"], ["m"]), node("Twice", ["m"], ["y"], domain="half")],
        {"x": (F, [4, 8])},
        ["y"],
        {"w": rand(8, 6)},
    )
    m = compiled(proto, precision="float16", disabled_rules=APART)
    assert stored(m)["half::Twice"] == {types[-1].removesuffix("32")}
    x = rand(4, 8)
    np.testing.assert_allclose(m({"x": x})[0], 2 * (x @ proto_weights(proto)), rtol=2e-2, atol=2e-2)
    assert (len(types) == 2) or any("it takes no float16" in r for r in reasons(m, "store-half"))


def proto_weights(proto: onnx.ModelProto) -> np.ndarray:
    return onnx.numpy_helper.to_array(proto.graph.initializer[0])


def test_bodies_are_stored_in_halves_too():
    def branch(name: str, op: str) -> onnx.GraphProto:
        made = model([node("MatMul", ["x", "w"], ["m"]), node(op, ["m"], [f"{name}_y"])], {}, [f"{name}_y"], {}).graph
        made.name = name
        return made

    nodes = [node("If", ["c"], ["y"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg"))]
    proto = model(nodes, {"c": (np.bool_, []), "x": (F, [4, 8])}, ["y"], {"w": rand(8, 6)})
    m = compiled(proto, precision="float16", disabled_rules=APART)
    x = rand(4, 8)
    for c in (True, False):
        feeds = {"c": np.array(c), "x": x}
        got, want = m(feeds)[0], evaluate(proto, feeds)[0]
        assert not np.array_equal(got, want)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)


def test_explain_says_what_stays_float32(tmp_path):
    path = tmp_path / "m.onnx"
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Exp", ["m"], ["y"])]
    onnx.save(model(nodes, {"x": (F, [4, 8])}, ["y"], {"w": rand(8, 6)}), path)
    run = CliRunner().invoke(main, ["explain", str(path), "--precision", "float16", "--json"])
    assert run.exit_code == 0, run.output
    (row,) = json.loads(run.output)["wide"]
    assert row["op"] == "Exp"
    assert "leave the range" in row["reason"]


def test_halves_in_the_model_are_left_alone():
    proto = transformer(np.float16)
    assert "Cast" not in ops(compiled(proto, precision="float16", disabled_rules=APART))
