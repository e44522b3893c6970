"""ReferenceKernel: errors, outputs, sharing between threads, and where implementations come from."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from reference_harness import assert_close, node_of, run

from accord.backends.reference import kernels, registry
from accord.backends.reference.compare import assert_outputs_match, assert_same_distribution, judge
from accord.backends.reference.control import CONTROL
from accord.backends.reference.kernels import ReferenceKernel
from accord.backends.reference.registry import OpNode, implements, registered
from accord.backends.reference.tensors import require
from accord.errors import AccordError, ExecutionError, GraphError, UnknownOperatorError


def test_every_operator_of_onnx_is_written_out() -> None:
    kernels.find("", "Relu", 21)
    known = {*registered(), *CONTROL}
    missing = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()} - known
    assert missing == set()


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "fragment"),
    [
        ("Add", [np.ones(2, np.float32), np.ones(2, np.int32)], {}, "share an element type"),
        ("Add", [np.ones(2, np.float32), np.ones(3, np.float32)], {}, "broadcast"),
        ("Add", [np.ones(2, np.float32)], {}, "number of inputs"),
        ("Add", [np.ones(2, np.float32), None], {}, "missing"),
        ("Relu", [np.array(["a"], object)], {}, "element type"),
        ("Relu", [[np.ones(2, np.float32)]], {}, "kind"),
        ("Conv", [np.ones((1, 3, 4, 4), np.float32), np.ones((2, 2, 3, 3), np.float32)], {}, "channels"),
        ("Conv", [np.ones((1, 3, 2, 2), np.float32), np.ones((2, 3, 3, 3), np.float32)], {}, "does not fit"),
        ("Reshape", [np.ones(6, np.float32), np.array([4, -1])], {}, "do not fit"),
        ("Softmax", [np.ones((2, 2), np.float32)], {"axis": 5}, "axis 5"),
        ("Concat", [np.ones(2, np.float32)], {"axis": 3}, "axis 3"),
        ("TopK", [np.ones(2, np.float32), np.array([3])], {}, "exceeds"),
        ("OptionalGetElement", [None], {}, "empty"),
        ("BatchNormalization", [np.ones((1, 2), np.float32), *[np.ones(3, np.float32)] * 4], {}, "channels"),
        ("LSTM", [*[np.ones((1, 4, 3), np.float32)] * 3], {"hidden_size": 2}, "W has the shape"),
        ("ConstantOfShape", [np.array([2**40, 2**20])], {}, "allowed"),
        ("Range", [np.array(0), np.array(2**60), np.array(1)], {}, "allowed"),
        ("Expand", [np.ones(1, np.float32), np.array([2**50])], {}, "allowed"),
    ],
)
def test_wrong_inputs_name_the_node(op: str, inputs: list[Any], attributes: dict[str, Any], fragment: str) -> None:
    with pytest.raises(ExecutionError) as caught:
        run(op, inputs, **attributes)
    assert caught.value.node == "tested"
    assert caught.value.op == op
    assert fragment in str(caught.value)


def test_missing_and_malformed_attributes() -> None:
    with pytest.raises(GraphError, match="'to' is missing"):
        ReferenceKernel(helper.make_node("Cast", ["x"], ["y"]), 21)
    node = helper.make_node("Cast", ["x"], ["y"])
    node.attribute.add(name="to")
    with pytest.raises(GraphError, match="no valid type"):
        ReferenceKernel(node, 21)


def test_unknown_operators() -> None:
    for domain, op in (("", "NoSuchOperator"), ("some.where", "Relu")):
        with pytest.raises(UnknownOperatorError) as caught:
            ReferenceKernel(helper.make_node(op, ["x"], ["y"], domain=domain, name="n"), 21)
        assert caught.value.node == "n"


def test_outputs_follow_the_node() -> None:
    x = np.array([3, 1, 2], np.float32)
    node = helper.make_node("TopK", ["x", "k"], ["", "i"])
    values, indices = ReferenceKernel(node, 21).run([x, np.array([2])])
    assert values is None
    assert indices.tolist() == [0, 2]
    with pytest.raises(ExecutionError, match="more outputs"):
        run("Relu", [x], 2)


def test_inputs_are_not_changed() -> None:
    x, updates = np.zeros((3, 2), np.float32), np.ones((1, 2), np.float32)
    run("ScatterND", [x, np.array([[1]]), updates], reduction="add")
    run("ScatterElements", [x, np.array([[0, 1]]), updates])
    run("TensorScatter", [x[None], updates[None]], opset=24, axis=1)
    assert not x.any()


def test_a_kernel_serves_several_threads() -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    kernel = ReferenceKernel(node_of("Conv", [w, w], pads=[1, 1, 1, 1]), 21)
    inputs = [rng.standard_normal((1, 3, 9, 9)).astype(np.float32) for _ in range(16)]
    alone = [kernel.run([x, w])[0] for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: kernel.run([x, w])[0], inputs))
    assert_outputs_match(alone, together, rtol=0, atol=0)


def test_seeds_repeat_and_their_absence_does_not() -> None:
    fixed = ReferenceKernel(node_of("RandomNormal", [], shape=[50], seed=3.0), 21)
    assert (fixed.run([])[0] == fixed.run([])[0]).all()
    free = ReferenceKernel(node_of("RandomNormal", [], shape=[50]), 21)
    assert (free.run([])[0] != free.run([])[0]).any()


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_random_distributions(dtype: int) -> None:
    normal = run("RandomNormal", [], opset=22, shape=[20_000], mean=2.0, scale=3.0, seed=1.0, dtype=dtype)
    uniform = run("RandomUniform", [], opset=22, shape=[20_000], low=-1.0, high=3.0, seed=1.0, dtype=dtype)
    assert normal.dtype == uniform.dtype == helper.tensor_dtype_to_np_dtype(dtype)
    normal, uniform = normal.astype(np.float64), uniform.astype(np.float64)
    assert abs(normal.mean() - 2) < 0.1
    assert abs(normal.std() - 3) < 0.1
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert abs(uniform.mean() - 1) < 0.05


def test_multinomial_follows_its_logits() -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.7]], np.float32))
    drawn = run("Multinomial", [logits], opset=22, sample_size=20_000, seed=1.0, dtype=TensorProto.INT64)
    assert drawn.dtype == np.int64
    shares = np.bincount(drawn[0], minlength=3) / 20_000
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.7], atol=0.02)


def test_dropout_in_training_masks_and_scales() -> None:
    x = np.ones((100, 100), np.float32)
    y, mask = run("Dropout", [x, np.array(0.25, np.float32), np.array(True)], 2, opset=22, seed=7)
    assert mask.dtype == bool
    assert (y == np.where(mask, np.float32(1 / 0.75), 0)).all()
    assert abs(mask.mean() - 0.75) < 0.02
    y, mask = run("Dropout", [x], 2, opset=22)
    assert mask.all()
    assert (y == x).all()


def test_own_operators_and_their_versions() -> None:
    @implements("Twice", domain="test.reference", defaults={"extra": 0})
    def twice(op: OpNode, x: Any) -> Any:
        require(x.ndim == 1, "a vector is needed")
        return 2 * x + op["extra"]

    @implements("Twice", domain="test.reference", since=3)
    def twice_3(_op: OpNode, x: Any) -> Any:
        return 3 * x

    x = np.array([1, 2], np.float32)
    assert run("Twice", [x], domain="test.reference", opset=2).tolist() == [2, 4]
    assert run("Twice", [x], domain="test.reference", opset=2, extra=5).tolist() == [7, 9]
    assert run("Twice", [x], domain="test.reference", opset=4).tolist() == [3, 6]
    with pytest.raises(ExecutionError, match="a vector is needed"):
        run("Twice", [x[None]], domain="test.reference", opset=2)
    assert twice.__name__ == "twice"


def test_an_operator_without_implementation_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find", lambda *_: None)
    x = np.array([-1, 0.5], np.float32)
    assert_close(run("Relu", [x]), np.array([0, 0.5], np.float32))  # a class of onnx.reference
    assert_close(run("Mish", [x]), (x * np.tanh(np.log1p(np.exp(x)))).astype(np.float32))  # the schema's function
    # The function that a schema builds from the attributes and types of the node.
    assert_close(run("Celu", [x], alpha=2.0, opset=12), np.where(x > 0, x, 2 * np.expm1(x / 2)).astype(np.float32))
    with pytest.raises(UnknownOperatorError):
        run("MaxRoiPool", [x[None, None, None], np.zeros((1, 5), np.float32)], pooled_shape=[1, 1])


def test_versions_of_the_schema_decide_on_defaults() -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    whole = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    assert_close(run("Softmax", [x], opset=11), whole.astype(np.float32))  # axes from 1 on count as one
    last = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
    assert_close(run("Softmax", [x], opset=13), last.astype(np.float32))


def test_garbage_never_gives_a_raw_exception_or_a_warning() -> None:
    rng = np.random.default_rng(5)
    types = [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.uint8, bool]
    extremes = [0, 1, -1, 2, 0.5, np.inf, -np.inf, np.nan, 1e30, 127, -128, 2**31 - 1, -(2**31)]
    schemas = [s for s in onnx.defs.get_all_schemas() if (s.domain, s.name) not in CONTROL and s.name != "Constant"]
    succeeded = 0
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for schema in schemas * 6:
            inputs = []
            for _ in range(int(rng.integers(schema.min_input, min(schema.max_input, schema.min_input + 2) + 1))):
                shape = rng.integers(0, 4, rng.integers(0, 4))
                with np.errstate(all="ignore"):
                    inputs.append(np.asarray(rng.choice(extremes, shape)).astype(types[rng.integers(len(types))]))
            attributes: dict[str, Any] = {}
            for name, attribute in schema.attributes.items():
                kind = attribute.type.name
                if attribute.required or rng.random() < 0.3:
                    made = {
                        "INT": int(rng.integers(-2, 4)),
                        "FLOAT": 0.5,
                        "STRING": "linear",
                        "INTS": rng.integers(-2, 4, 2).tolist(),
                    }
                    if kind in made:
                        attributes[name] = made[kind]
            node = node_of(schema.name, inputs, max(1, schema.min_output), domain=schema.domain, **attributes)
            try:
                ReferenceKernel(node, schema.since_version).run(inputs)
                succeeded += 1
            except AccordError as error:
                assert error.node == "tested"
    assert [str(warning.message) for warning in heard] == []
    assert succeeded > 100


def test_comparison_of_outputs() -> None:
    a = np.array([1, np.nan], np.float32)
    assert_outputs_match([a, [a], None, {1: a}], [a, [a], None, {1: a}])
    for want, have in (
        (a, a.astype(np.float64)),
        (a, a[:1]),
        (a, np.array([1, 2], np.float32)),
        ([a], [a, a]),
        ([a], a),
        (None, a),
        ({1: a}, {2: a}),
        (np.array(["a"], object), np.array(["b"], object)),
        (np.array([1.0], ml_dtypes.bfloat16), np.array([1.04], ml_dtypes.bfloat16)),
    ):
        with pytest.raises(AssertionError):
            assert_outputs_match([want], [have])
    assert_outputs_match([np.array([1.0], ml_dtypes.bfloat16)], [np.array([1.0078], ml_dtypes.bfloat16)])
    with pytest.raises(AssertionError, match="2 outputs"):
        assert_outputs_match([a], [a, a])


def test_comparison_of_distributions() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random(2000), rng.random(2000)
    assert_same_distribution([a, np.zeros((0, 2))], [b, np.zeros((0, 2))])
    for wrong in (b + 0.2, b.astype(np.float32), b[:-1]):
        with pytest.raises(AssertionError):
            assert_same_distribution([a], [wrong])
    with pytest.raises(AssertionError):
        assert_same_distribution([a], [])
    assert judge([a], [b], 1e-3, 1e-7, random=True)
    assert not judge([a], [a], 1e-3, 1e-7, random=True)
    with pytest.raises(AssertionError):
        judge([a], [b], 1e-3, 1e-7, random=False)


def test_registry_keeps_the_table_ordered() -> None:
    assert registry.find("", "Resize", 10) != registry.find("", "Resize", 19)
    assert registry.find("", "Resize", 9) is None
