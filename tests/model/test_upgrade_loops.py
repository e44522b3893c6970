"""Scan-8, and bodies of control flow in old versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from upgrade_harness import check, floats, model, node, operators, run, upgrade

FLOAT = TensorProto.FLOAT


def info(name: str, shape: list[int] | None = None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def running_sum() -> onnx.GraphProto:
    """state, element → state + element, 2 * (state + element)."""
    nodes = [node("Add", ["state", "element"], ["next"]), node("Add", ["next", "next"], ["twice"])]
    return helper.make_graph(nodes, "body", [info("state"), info("element")], [info("next"), info("twice")])


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 4),
    reverse=st.booleans(),
    data=st.data(),
    shapes=st.sampled_from(["known", "ranks"]),
)
def test_scan_8(batch: int, length: int, reverse: bool, data: st.DataObject, shapes: str) -> None:
    feeds = {"h": floats(batch, 2), "x": floats(batch, length, 2, seed=1)}
    counts = [length] * batch
    name = ""
    if data.draw(st.booleans()):
        counts = [data.draw(st.integers(1, length)) for _ in range(batch)]
        feeds["n"] = np.array(counts)
        name = "n"
    nodes = [
        node(
            "Scan",
            [name, "h", "x"],
            ["y", "z"],
            body=running_sum(),
            num_scan_inputs=1,
            **({"directions": [1]} if reverse else {}),
        )
    ]
    states, outputs = [], []
    for b in range(batch):
        state = feeds["h"][b]
        rows = np.zeros((length, 2), dtype=np.float32)
        steps = range(counts[b])
        for row, t in enumerate(reversed(steps) if reverse else steps):
            state = state + feeds["x"][b, t]
            rows[row] = 2 * state
        states.append(state)
        outputs.append(rows)
    proto = model(8, nodes, feeds, outputs={"y": FLOAT, "z": FLOAT}, shapes=shapes)
    check(proto, feeds, [np.stack(states), np.stack(outputs)])


def test_scan_8_agrees_with_onnx_runtime() -> None:
    feeds = {"h": floats(2, 3), "x": floats(2, 4, 3, seed=1)}
    nodes = [node("Scan", ["", "h", "x"], ["y", "z"], body=running_sum(), num_scan_inputs=1)]
    check(model(8, nodes, feeds, outputs={"y": FLOAT, "z": FLOAT}), feeds)


def test_body_of_scan_8_is_upgraded_too() -> None:
    body = helper.make_graph(
        [node("Softmax", ["element"], ["s"], axis=0), node("Clip", ["s"], ["out"], max=0.4)],
        "body",
        [info("element")],
        [info("out")],
    )
    feeds = {"x": floats(2, 3, 2, 4)}
    nodes = [node("Scan", ["", "x"], body=body, num_scan_inputs=1)]
    check(model(8, nodes, feeds), feeds)


def test_rank_of_an_element_of_scan_8() -> None:
    """[batch, time, row, column] is [row, column] in the body: axis 1 is the last and one Softmax is enough."""
    body = helper.make_graph([node("Softmax", ["element"], ["out"])], "body", [info("element")], [info("out")])
    feeds = {"x": floats(2, 3, 2, 4)}
    new = check(model(8, [node("Scan", ["", "x"], body=body, num_scan_inputs=1)], feeds), feeds)
    outer = next(a.g for a in new.graph.node[0].attribute if a.name == "body")
    inner = next(a.g for a in outer.node[0].attribute if a.name == "body")
    assert [n.op_type for n in inner.node] == ["Softmax"]


def test_scan_8_inside_a_branch_keeps_names_apart() -> None:
    scans = [node("Scan", ["", "h", "x"], [f"y{i}", f"z{i}"], body=running_sum(), num_scan_inputs=1) for i in range(2)]
    then = helper.make_graph([*scans, node("Add", ["z0", "z1"], ["t"])], "then", [], [info("t")])
    other = helper.make_graph([node("Identity", ["x"], ["e"])], "else", [], [info("e")])
    feeds = {"h": floats(2, 3), "x": floats(2, 4, 3, seed=1), "c": np.array(True)}
    nodes = [node("If", ["c"], then_branch=then, else_branch=other)]
    check(model(8, nodes, feeds), feeds)


@pytest.mark.parametrize("opset", [7, 10, 11, 12])
@pytest.mark.parametrize("condition", [True, False])
def test_branches(opset: int, condition: bool) -> None:
    then = helper.make_graph(
        [node("ReduceSum", ["x"], ["r"], axes=[1], keepdims=0), node("Squeeze", ["r"], ["t"], axes=[1])],
        "then",
        [],
        [info("t")],
    )
    constant = helper.make_tensor("v", FLOAT, [2], [1.0, 2.0])
    other = helper.make_graph([node("Constant", [], ["e"], value=constant)], "else", [], [info("e")])
    feeds = {"x": floats(2, 3, 1), "c": np.array(condition)}
    new = check(model(opset, [node("If", ["c"], then_branch=then, else_branch=other)], feeds), feeds)
    assert operators(new) == ["If"]


@pytest.mark.parametrize("changing", [False, True])
def test_loop_state_may_change_its_shape(changing: bool) -> None:
    """Softmax-11 in a loop: the rank of the state is only taken for granted where the body hands it on unchanged."""
    grown = [node("Unsqueeze", ["s"], ["next"], axes=[0])] if changing else [node("Identity", ["s"], ["next"])]
    body = helper.make_graph(
        [node("Softmax", ["state"], ["s"], axis=1), *grown, node("Identity", ["on"], ["on_out"])],
        "body",
        [info("i", [], TensorProto.INT64), info("on", [], TensorProto.BOOL), info("state")],
        [info("on_out", [], TensorProto.BOOL), info("next")],
    )
    x = floats(2, 3)
    feeds = {"n": np.array(2), "x": x}
    proto = model(11, [node("Loop", ["n", "", "x"], body=body)], feeds)

    def softmax(v: Any) -> Any:
        flat = v.reshape(v.shape[0], -1)
        e = np.exp(flat - flat.max(1, keepdims=True))
        return (e / e.sum(1, keepdims=True)).reshape(v.shape)

    expected = softmax(softmax(x)[None])[None] if changing else softmax(softmax(x))
    check(proto, feeds, [expected])


def test_loop_with_outer_values_and_scan_outputs() -> None:
    body = helper.make_graph(
        [
            node("Slice", ["x"], ["row"], starts=[0], ends=[1], axes=[0]),
            node("Add", ["state", "row"], ["next"]),
            node("Clip", ["next"], ["out"], min=0.0),
            node("Identity", ["on"], ["on_out"]),
        ],
        "body",
        [info("i", [], TensorProto.INT64), info("on", [], TensorProto.BOOL), info("state", [1, 3])],
        [info("on_out", [], TensorProto.BOOL), info("next", [1, 3]), info("out", [1, 3])],
    )
    feeds = {"n": np.array(3), "s": floats(1, 3), "x": floats(4, 3, seed=1)}
    nodes = [node("Loop", ["n", "", "s"], ["y", "z"], body=body)]
    check(model(9, nodes, feeds, outputs={"y": FLOAT, "z": FLOAT}), feeds)


def test_output_of_a_branch_keeps_its_name() -> None:
    """Dropout's mask aside, the body's output must stay a value of the body's own."""
    then = helper.make_graph([node("Upsample", ["x"], ["t"], scales=[1.0, 1.0, 2.0, 2.0])], "then", [], [info("t")])
    other = helper.make_graph([node("Dropout", ["x"], ["e"])], "else", [], [info("e")])
    feeds = {"x": floats(1, 1, 2, 2), "c": np.array(False)}
    new, _ = upgrade(model(7, [node("If", ["c"], then_branch=then, else_branch=other)], feeds))
    branches = {a.name: a.g.output[0].name for a in new.graph.node[0].attribute}
    assert branches == {"then_branch": "t", "else_branch": "e"}
    np.testing.assert_array_equal(run(new, feeds)[0], feeds["x"])


@pytest.mark.parametrize(("size", "parts"), [(4, 4), (5, 5)])
def test_branch_that_cannot_run_is_not_read(size: int, parts: int) -> None:
    """Split into four parts has no meaning for a vector of five."""
    kinds = {"y": FLOAT, "z": FLOAT}
    then = helper.make_graph(
        [node("Split", ["x"], ["p0", "p1", "p2", "p3"], num_outputs=4), node("Identity", ["p0"], ["t"])],
        "then",
        [],
        [info("p3"), info("t")],
    )
    names = [f"p{i}" for i in range(5)]
    other = helper.make_graph(
        [node("Split", ["x"], names, num_outputs=5), node("Add", ["p0", "k"], ["e"])],
        "else",
        [],
        [info("p4"), info("e")],
        [helper.make_tensor("k", FLOAT, [1], [2.0])],
    )
    nodes = [
        node("Size", ["x"], ["n"]),
        node("Equal", ["n", "four"], ["c"]),
        helper.make_node("If", ["c"], ["y", "z"], name="choose", then_branch=then, else_branch=other),
    ]
    x = floats(size)
    proto = model(18, nodes, {"x": x}, outputs=kinds, constants={"four": np.array(4)})
    new, result = upgrade(proto)
    assert "If" not in operators(new)
    assert [n.node for n in result.notes] == ["choose"]
    expected = [x[parts - 1 :], x[:1] if size == 4 else x[:1] + np.float32(2)]
    for got, want in zip(run(new, {"x": x}), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    # The dropped branch is no user of x any more.
    assert len(result.model.graph.inputs[0].uses()) == len([n for n in new.graph.node if "x" in n.input])


def test_two_branches_with_the_same_names_are_told_apart() -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph([node("Relu", ["x"], ["r"]), node("Neg", ["r"], [name])], name, [], [info(name)])

    choices = [node("If", ["on"], [f"c{i}"], then_branch=branch("t"), else_branch=branch("e")) for i in range(2)]
    x = floats(3)
    proto = model(17, [*choices, node("Add", ["c0", "c1"])], {"x": x}, constants={"on": np.array(True)})
    new = check(proto, {"x": x})
    values = [o for n in new.graph.node for o in n.output]
    assert len(set(values)) == len(values) == 5
