"""State of loops that never changes becomes a value around the loop."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from rules_harness import F, check, compiled, fired, rand, reasons

from accord.backends.reference.evaluator import evaluate
from builders import model, node

RULE = "capture-unchanged-state"


def body(nodes, inputs, outputs):
    infos = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
    return helper.make_graph(nodes, "body", infos, [onnx.ValueInfoProto(name=o) for o in outputs])


def inner(m, kind):
    (loop,) = [n for n in m.compiled.model.graph if n.op_type == kind]
    return loop, loop.attributes["body"].value


@pytest.mark.parametrize("named", [False, True])
def test_weights_that_a_loop_carries_are_constants_of_its_body(named):
    """Of three states one changes; another is handed on under a second name."""
    step = body(
        [
            node("MatMul", ["h", "w"], ["p"]),
            node("Add", ["p", "c"], ["s"]),
            node("Tanh", ["s"], ["t"]),
            node("Identity", ["w"], ["w_2"]),
            node("Identity", ["go"], ["go_2"]),
        ],
        [("i", 7, []), ("go", 9, []), ("w", 1, [4, 4]), ("h", 1, [None, 4]), ("c", 1, [4])],
        ["go_2", "w_2" if named else "w", "t", "c", "t"],
    )
    nodes = [
        node("Loop", ["n", "", "weights", "x", "c0"], ["w_end", "y", "c_end", "all"], body=step),
        node("Mul", ["w_end", "c_end"], ["z"]),
    ]
    inputs = {"n": (np.int64, []), "x": (F, ["b", 4]), "c0": (F, [4])}
    proto = model(nodes, inputs, ["y", "all", "z"], {"weights": rand(4, 4)})
    for trips in (1, 3):
        feeds = {"n": np.array(trips), "x": rand(2, 4), "c0": rand(4)}
        m = check(proto, feeds, RULE, ["Loop", "Mul"])
    np.testing.assert_array_equal(m(feeds | {"n": np.array(0)})["y"], feeds["x"])
    loop, graph = inner(m, "Loop")
    assert [v.name for v in loop.inputs if v is not None] == ["n", "x"]
    assert (len(graph.inputs), len(graph.outputs), len(loop.outputs)) == (3, 3, 2)


def test_state_of_a_scan():
    step = body(
        [node("Mul", ["e", "k"], ["f"]), node("Add", ["sum", "f"], ["sum_2"])],
        [("k", 1, [3]), ("sum", 1, [3]), ("e", 1, [3])],
        ["k", "sum_2", "f"],
    )
    nodes = [node("Scan", ["k0", "x0", "xs"], ["k_end", "y", "ys"], body=step, num_scan_inputs=1)]
    proto = model(nodes, {"k0": (F, [3]), "x0": (F, [3]), "xs": (F, ["t", 3])}, ["k_end", "y", "ys"])
    feeds = {"k0": rand(3), "x0": rand(3), "xs": rand(5, 3)}
    m = check(proto, feeds, RULE, ["Scan", "Identity"])
    loop, graph = inner(m, "Scan")
    assert (len(loop.inputs), len(graph.inputs), len(graph.outputs)) == (2, 2, 2)


def test_bodies_within_the_body_read_the_outer_value():
    then, other = body([node("Add", ["h", "c"], ["a"])], [], ["a"]), body([node("Sub", ["h", "c"], ["b"])], [], ["b"])
    step = body(
        [
            node("Greater", ["h", "c"], ["m"]),
            node("ReduceMax", ["m8"], ["any"], keepdims=0),
            node("Cast", ["any"], ["which"], to=9),
            node("If", ["which"], ["r"], then_branch=then, else_branch=other),
            node("Identity", ["go"], ["go_2"]),
        ],
        [("i", 7, []), ("go", 9, []), ("h", 1, [3]), ("c", 1, [3])],
        ["go_2", "r", "c"],
    )
    step.node.insert(1, node("Cast", ["m"], ["m8"], to=6))
    proto = model(
        [node("Loop", ["n", "", "x", "c0"], ["y", "c_end"], body=step)],
        {"n": (np.int64, []), "x": (F, [3]), "c0": (F, [3])}, ["y"],
    )  # fmt: skip
    m = check(proto, {"n": np.array(4), "x": rand(3), "c0": rand(3)}, RULE, ["Loop"])
    assert len(inner(m, "Loop")[1].inputs) == 3


def test_what_is_collected_in_each_iteration_stays_state():
    step = body(
        [node("Add", ["h", "c"], ["r"]), node("Identity", ["go"], ["go_2"])],
        [("i", 7, []), ("go", 9, []), ("h", 1, [3]), ("c", 1, [3])],
        ["go_2", "r", "c", "c"],
    )
    proto = model(
        [node("Loop", ["n", "", "x", "c0"], ["y", "c_end", "cs"], body=step)],
        {"n": (np.int64, []), "x": (F, [3]), "c0": (F, [3])}, ["y", "cs"],
    )  # fmt: skip
    m = compiled(proto)
    assert RULE not in fired(m) and reasons(m, RULE)
    feeds = {"n": np.array(2), "x": rand(3), "c0": rand(3)}
    for a, b in zip(m(feeds), evaluate(proto, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


COLLECT = "collect-appended-state"
START = [("i", 7, []), ("go", 9, [])]


def appending(axis: int, batch, *more, seen: str = "", start=(2, 2), returned=()):
    """A loop that appends along an axis what a product makes of its state."""
    shape = [batch, 3]
    grown = [None if a == axis else d for a, d in enumerate(shape)]
    step = body(
        [
            node("MatMul", ["h", "w"], ["p"]),
            node("Tanh", ["p"], ["h_2"]),
            node("Concat", ["all", "h_2"], ["all_2"], axis=axis),
            node("Identity", ["all_2"], ["all_3"]),
            node("Identity", ["go"], ["go_2"]),
            *more,
        ],
        [*START, ("h", 1, shape), ("all", 1, grown)],
        ["go_2", "h_2", seen or "all_3", *returned],
    )
    outputs = ["h_end", "y", *(f"z{k}" for k in range(len(returned)))]
    nodes = [node("Loop", ["n", "", "x", "a"], outputs, body=step)]
    begin = [start[0] if a == axis else d for a, d in enumerate(shape)]
    inputs = {"n": (np.int64, []), "x": (F, shape), "a": (F, begin)}
    return model(nodes, inputs, outputs, {"w": rand(3, 3)})


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("batch", [2, "b"])
@pytest.mark.parametrize("rows", [0, 2])
def test_what_is_appended_is_collected(axis, batch, rows):
    proto = appending(axis, batch, start=(rows, None), returned=("h_2",))
    begin = (rows, 3) if axis == 0 else (2, rows)
    for trips in (3, 1, 0, 12):
        feeds = {"n": np.array(trips), "x": rand(2, 3), "a": rand(*begin)}
        m = compiled(proto)
        assert COLLECT in fired(m)
        found, expected = [*m(feeds)], evaluate(proto, feeds)
        if not trips:  # the oracle does not know of what no round made how large it is
            assert found.pop().shape == (0, 2, 3)
            expected = expected[:2]
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    _, graph = inner(m, "Loop")
    assert "Concat" not in [n.op_type for n in graph]
    assert len(graph.inputs) == 3


@pytest.mark.parametrize(
    ("more", "seen", "returned"),
    [
        ([node("ReduceSum", ["all"], ["s"], keepdims=0)], "", ("s",)),  # it is looked at
        ([], "", ("all_2",)),  # it is an output of the body, too
        ([node("Relu", ["all_2"], ["r"])], "r", ()),  # it is changed
        ([node("Concat", ["all", "all_2"], ["r"], axis=0)], "r", ()),  # it is appended to itself
    ],
)
def test_what_is_not_only_appended_to_stays(more, seen, returned):
    proto = appending(0, 2, *more, seen=seen, returned=returned)
    m = compiled(proto)
    assert COLLECT not in fired(m)
    feeds = {"n": np.array(3), "x": rand(2, 3), "a": rand(2, 3)}
    if "all_2" not in returned:  # as a scan output it would change its shape
        for a, b in zip(m(feeds), evaluate(proto, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ends", [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)], [(2, 1), (1, 0)]])
@pytest.mark.parametrize("batch", [2, "b"])
def test_sequences_that_are_put_together_afterwards(ends, batch):
    seq = helper.make_tensor_sequence_value_info("seq", 1, [batch, 3])
    step = helper.make_graph(
        [
            node("MatMul", ["h", "w"], ["p"]),
            node("Tanh", ["p"], ["h_2"]),
            node("SequenceInsert", ["seq", "h_2"], ["seq_2"]),
            node("Identity", ["go"], ["go_2"]),
        ],
        "body",
        [*(helper.make_tensor_value_info(*v) for v in [*START, ("h", 1, [batch, 3])]), seq],
        [onnx.ValueInfoProto(name=o) for o in ("go_2", "h_2", "seq_2")],
    )
    nodes = [node("SequenceEmpty", [], ["none"]), node("Loop", ["n", "", "x", "none"], ["h_end", "all"], body=step)]
    for k, (axis, new) in enumerate(ends):
        nodes.append(node("ConcatFromSequence", ["all"], [f"y{k}"], axis=axis, new_axis=new))
    inputs = {"n": (np.int64, []), "x": (F, [batch, 3])}
    proto = model(nodes, inputs, ["h_end", *(f"y{k}" for k in range(len(ends)))], {"w": rand(3, 3)})
    m = compiled(proto)
    assert COLLECT in fired(m)
    assert not {"ConcatFromSequence", "SequenceEmpty"} & {n.op_type for n in m.compiled.model.graph}
    for trips in (1, 5, 9):
        feeds = {"n": np.array(trips), "x": rand(2, 3)}
        for a, b in zip(m(feeds), evaluate(proto, feeds), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_sequence_that_is_returned_stays_one():
    seq = helper.make_tensor_sequence_value_info("seq", 1, [3])
    step = helper.make_graph(
        [node("SequenceInsert", ["seq", "x"], ["seq_2"]), node("Identity", ["go"], ["go_2"])],
        "body",
        [*(helper.make_tensor_value_info(*v) for v in START), seq],
        [onnx.ValueInfoProto(name=o) for o in ("go_2", "seq_2")],
    )
    nodes = [node("SequenceEmpty", [], ["none"]), node("Loop", ["n", "", "none"], ["all"], body=step)]
    m = compiled(model(nodes, {"n": (np.int64, []), "x": (F, [3])}, ["all"]))
    assert COLLECT not in fired(m)
    assert any("used as one" in r for r in reasons(m, COLLECT))
    assert len(m({"n": np.array(4), "x": rand(3)})["all"]) == 4
