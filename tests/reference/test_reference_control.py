"""Loop, Scan, If, SequenceMap and Gradient against what the specification's pseudo-code gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from reference_harness import assert_close, model_of

from accord.backends.reference.evaluator import evaluate
from accord.errors import ExecutionError


def _info(name: str, kind: int = TensorProto.FLOAT, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _loop_body() -> onnx.GraphProto:
    """Adds ``step`` of the outer graph to x; scans x before and i; goes on while x < 5."""
    nodes = [
        helper.make_node("Add", ["x", "step"], ["x_out"]),
        helper.make_node("Less", ["x_out", "five"], ["cond_out"]),
        helper.make_node("Identity", ["x"], ["before"]),
        helper.make_node("Identity", ["i"], ["number"]),
    ]
    return helper.make_graph(
        nodes,
        "body",
        [_info("i", TensorProto.INT64, []), _info("cond", TensorProto.BOOL, []), _info("x", shape=[2])],
        [
            _info("cond_out", TensorProto.BOOL, []),
            _info("x_out", shape=[2]),
            _info("before", shape=[2]),
            _info("number", TensorProto.INT64, []),
        ],
        [helper.make_tensor("five", TensorProto.FLOAT, [1], [5.0])],
    )


def _run_loop(trips: int | None, condition: bool | None) -> list[Any]:
    body = _loop_body()
    # The condition of the body looks at the first element only.
    body.node[1].input[0] = "first"
    body.node.insert(1, helper.make_node("Gather", ["x_out", "zero"], ["first"]))
    body.initializer.append(helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
    names = ["" if trips is None else "m", "" if condition is None else "c", "x0"]
    node = helper.make_node("Loop", names, ["x_last", "befores", "numbers"], body=body)
    feeds: dict[str, Any] = {"x0": np.zeros(2, np.float32), "step": np.array([1, 10], np.float32)}
    if trips is not None:
        feeds["m"] = np.array(trips, np.int64)
    if condition is not None:
        feeds["c"] = np.array(condition)
    return evaluate(model_of([node], feeds, ["x_last", "befores", "numbers"]), feeds)


@pytest.mark.parametrize(
    ("trips", "condition", "iterations"),
    [
        (3, True, 3),  # for: the trip count ends it
        (9, True, 5),  # the body's condition ends it
        (None, True, 5),  # while
        (7, None, 7),  # without a condition, what the body yields is ignored
        (0, True, 0),
        (0, None, 0),
        (4, False, 0),
        (None, False, 0),
    ],
)
def test_loop_modes(trips: int | None, condition: bool | None, iterations: int) -> None:
    last, befores, numbers = _run_loop(trips, condition)
    steps = np.arange(iterations, dtype=np.float32)
    assert_close(last, np.array([iterations, 10 * iterations], np.float32))
    assert_close(befores, np.stack([steps, 10 * steps], axis=1))
    assert_close(numbers, np.arange(iterations, dtype=np.int64))


def test_loop_scan_outputs_must_keep_their_shape() -> None:
    body = helper.make_graph(
        [helper.make_node("Range", ["zero", "i", "one"], ["r"]), helper.make_node("Identity", ["c"], ["c_out"])],
        "body",
        [_info("i", TensorProto.INT64, []), _info("c", TensorProto.BOOL, [])],
        [_info("c_out", TensorProto.BOOL, []), _info("r", TensorProto.INT64, [None])],
        [helper.make_tensor("zero", TensorProto.INT64, [], [0]), helper.make_tensor("one", TensorProto.INT64, [], [1])],
    )
    feeds = {"m": np.array(3, np.int64)}
    node = helper.make_node("Loop", ["m", ""], ["rs"], body=body, name="growing")
    with pytest.raises(ExecutionError, match="growing"):
        evaluate(model_of([node], feeds, ["rs"]), feeds)


@pytest.mark.parametrize("backward_in", [0, 1])
@pytest.mark.parametrize("backward_out", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scan_directions_and_axes(backward_in: int, backward_out: int, axis: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["s_out"]), helper.make_node("Mul", ["s_out", "e"], ["o"])],
        "body",
        [_info("s", shape=[2]), _info("e", shape=[2])],
        [_info("s_out", shape=[2]), _info("o", shape=[2])],
    )
    x = np.arange(1, 7, dtype=np.float32).reshape((3, 2) if axis == 0 else (2, 3))
    feeds = {"s0": np.array([10, 20], np.float32), "x": x}
    node = helper.make_node(
        "Scan",
        ["s0", "x"],
        ["s", "y"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
        scan_input_directions=[backward_in],
        scan_output_directions=[backward_out],
    )
    state, scanned = evaluate(model_of([node], feeds, ["s", "y"]), feeds)
    elements = list(x) if axis == 0 else list(x.T)
    want, total = [], feeds["s0"]
    for element in elements[::-1] if backward_in else elements:
        total = total + element
        want.append(total * element)
    want = want[::-1] if backward_out else want
    assert_close(state, total)
    assert_close(scanned, np.stack(want, axis=axis))


def test_scan_of_version_8_has_a_batch_axis_and_lengths() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["s_out"]), helper.make_node("Identity", ["s_out"], ["o"])],
        "body",
        [_info("s", shape=[1]), _info("e", shape=[1])],
        [_info("s_out", shape=[1]), _info("o", shape=[1])],
    )
    feeds = {
        "n": np.array([3, 1], np.int64),
        "s0": np.zeros((2, 1), np.float32),
        "x": np.array([[1, 2, 3], [4, 5, 6]], np.float32)[..., None],
    }
    node = helper.make_node("Scan", ["n", "s0", "x"], ["s", "y"], body=body, num_scan_inputs=1)
    state, scanned = evaluate(model_of([node], feeds, ["s", "y"], opset=8), feeds)
    assert_close(state, np.array([[6], [4]], np.float32))
    assert_close(scanned, np.array([[1, 3, 6], [4, 0, 0]], np.float32)[..., None])


def test_scan_without_iterations_is_empty() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["s_out"]), helper.make_node("Identity", ["s_out"], ["o"])],
        "body",
        [_info("s", shape=[2]), _info("e", shape=[2])],
        [_info("s_out", shape=[2]), _info("o", shape=[2])],
    )
    feeds = {"s0": np.ones(2, np.float32), "x": np.zeros((0, 2), np.float32)}
    node = helper.make_node("Scan", ["s0", "x"], ["s", "y"], body=body, num_scan_inputs=1)
    state, scanned = evaluate(model_of([node], feeds, ["s", "y"]), feeds)
    assert_close(state, feeds["s0"])
    assert scanned.shape == (0, 2)


def test_if_reads_the_outer_graph_and_shadows_it() -> None:
    def branch(op: str) -> onnx.GraphProto:
        # ``t`` is a name of the outer graph as well; inside, it is the branch's own.
        nodes = [helper.make_node(op, ["x", "x"], ["t"]), helper.make_node("Identity", ["t"], ["y"])]
        return helper.make_graph(nodes, op, [], [_info("y")])

    nodes = [
        helper.make_node("Neg", ["x"], ["t"]),
        helper.make_node("If", ["c"], ["z"], then_branch=branch("Add"), else_branch=branch("Mul")),
        helper.make_node("Add", ["z", "t"], ["r"]),
    ]
    x = np.array([3, 4], np.float32)
    for condition, want in ((True, x + x - x), (False, x * x - x)):
        feeds = {"x": x, "c": np.array([condition])}
        assert_close(evaluate(model_of(nodes, feeds, ["r"]), feeds)[0], want)


def test_sequence_map_reads_the_outer_graph() -> None:
    body = helper.make_graph([helper.make_node("Mul", ["e", "scale"], ["o"])], "body", [_info("e")], [_info("o")])
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b"], ["s"]),
        helper.make_node("SequenceMap", ["s"], ["r"], body=body),
    ]
    feeds = {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32), "scale": np.array(3, np.float32)}
    (result,) = evaluate(model_of(nodes, feeds, ["r"]), feeds)
    assert [value.tolist() for value in result] == [[3, 3], [3, 3, 3]]


def test_gradient_of_a_composition() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Tanh", ["p"], ["h"]),
        helper.make_node("Mul", ["h", "h"], ["q"]),
        helper.make_node("Gradient", ["x", "w"], ["dx", "dw"], domain="ai.onnx.preview.training", xs=["x", "w"], y="q"),
    ]
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 3)).astype(np.float32), "w": rng.standard_normal((3, 2)).astype(np.float32)}
    model = model_of(nodes, feeds, ["dx", "dw"], imports={"ai.onnx.preview.training": 1})
    dx, dw = evaluate(model, feeds)
    h = np.tanh(feeds["x"].astype(np.float64) @ feeds["w"])
    inner = 2 * h * (1 - h * h)
    assert_close(dx, (inner @ feeds["w"].T).astype(np.float32))
    assert_close(dw, (feeds["x"].T @ inner).astype(np.float32))
