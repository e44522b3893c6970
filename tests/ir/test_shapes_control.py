"""Control flow: what branches agree on, what loops carry, and that symbols of a body stay inside."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from shapes_harness import BOOL, F32, N, S, f32, i64, scalar

from accord.errors import ModelTypeError
from accord.ir import dims as D
from accord.ir.facts import Fact, FactTable, SequenceFact, TensorFact
from accord.ir.infer import Analyzer


def outputs(text: str, inputs: dict[str, Fact], opset: int = 24) -> list[Fact]:
    """Facts of the outputs of a graph in ONNX's text form."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}]>\n'
    model = ir.serde.deserialize_model(onnx.parser.parse_model(header + text))
    facts = FactTable()
    for value in model.graph.inputs:
        facts[value] = inputs[value.name or ""]
    analyzer = Analyzer(facts, model.graph.opset_imports, functions=model.functions)
    analyzer.infer_graph(model.graph)
    return [facts[o] for o in model.graph.outputs]


def shapes(facts: list[Fact]) -> list[object]:
    return [f.shape if isinstance(f, TensorFact) else f for f in facts]


CONDITION = TensorFact(BOOL, ())
IF = """
g (bool c, float[N, 3] x) => (float[?] y, float[?] z) {
    y, z = If (c) <
        then_branch = t () => (float[?] a, float[?] b) { a = Identity (x)  b = Concat <axis = 0> (x, x) },
        else_branch = e () => (float[?] a2, float[?] b2) { a2 = Relu (x)  b2 = Transpose (x) }
    >
}
"""


def test_if_keeps_what_both_branches_have() -> None:
    a, b = outputs(IF, {"c": CONDITION, "x": f32(N, 3)})
    assert a == f32(N, 3)
    assert b == f32(D.symbol("y.0"), D.symbol("y.1"))


def test_if_with_a_known_condition_is_that_branch() -> None:
    for condition, expected in ((True, (2 * N, 3)), (False, (3, N))):
        (_, z) = outputs(IF, {"c": scalar(condition, np.bool_), "x": f32(N, 3)})
        assert isinstance(z, TensorFact)
        assert z.shape == expected


def test_a_dead_branch_may_contradict_the_sizes() -> None:
    text = """
    g (bool c, float[N, 3] x) => (float[?] y) {
        y = If (c) <
            then_branch = t () => (float[?] a) { ax = Constant <value_ints = [1]> ()  a = Squeeze (x, ax) },
            else_branch = e () => (float[?] b) { b = Identity (x) }
        >
    }
    """
    assert outputs(text, {"c": scalar(False, np.bool_), "x": f32(N, 3)}) == [f32(N, 3)]
    with pytest.raises(ModelTypeError, match="Squeeze"):
        outputs(text, {"c": CONDITION, "x": f32(N, 3)})


def test_ranks_that_differ_leave_the_rank_open() -> None:
    text = """
    g (bool c, float[N, 1] x) => (float[?] y) {
        y = If (c) <
            then_branch = t () => (float[?] a) { ax = Constant <value_ints = [1]> ()  a = Squeeze (x, ax) },
            else_branch = e () => (float[?] b) { b = Identity (x) }
        >
    }
    """
    assert outputs(text, {"c": CONDITION, "x": f32(N, 1)}) == [TensorFact(F32, None)]


def test_symbols_of_a_branch_do_not_leave_it() -> None:
    text = """
    g (bool c, float[N] x) => (int64[?] y, int64[?] z) {
        y, z = If (c) <
            then_branch = t () => (int64[?] a, int64[?] b) { a = NonZero (x)  b = Concat <axis = 1> (a, a) },
            else_branch = e () => (int64[?] a2, int64[?] b2) { a2 = NonZero (x)  b2 = Identity (a2) }
        >
    }
    """
    y, z = shapes(outputs(text, {"c": scalar(True, np.bool_), "x": f32(N)}))
    assert y == (1, D.symbol("y.0"))
    assert z == (1, D.symbol("y.1"))


LOOP = """
g (int64 m, bool c, float[N] x) => (float[?] last, float[?] all) {
    last, all = Loop (m, c, x) <
        body = b (int64 i, bool ci, float[?] v) => (bool co, float[?] vo, float[?] s) {
            co = Identity (ci)
            vo = %s
            s = ReduceSum <keepdims = 0> (v)
        }
    >
}
"""


def test_a_loop_that_keeps_its_shape() -> None:
    inputs: dict[str, Fact] = {"m": scalar(S), "c": scalar(True, np.bool_), "x": f32(N)}
    assert outputs(LOOP % "Relu (v)", inputs) == [f32(N), f32(S)]
    inputs["m"] = scalar(7)
    assert outputs(LOOP % "Relu (v)", inputs) == [f32(N), f32(7)]
    inputs["c"] = CONDITION
    assert outputs(LOOP % "Relu (v)", inputs) == [f32(N), f32(D.symbol("last.0"))]
    inputs["c"] = scalar(False, np.bool_)
    assert outputs(LOOP % "Relu (v)", inputs) == [f32(N), f32(0)]


def test_a_loop_that_grows_gives_its_size_up() -> None:
    inputs: dict[str, Fact] = {"m": scalar(7), "c": scalar(True, np.bool_), "x": f32(N)}
    last, every = shapes(outputs(LOOP % "Concat <axis = 0> (v, x)", inputs))
    assert isinstance(last, tuple)
    assert last[0] not in (N, 2 * N)
    assert every == (7,)


def test_a_loop_that_changes_rank_gives_its_rank_up() -> None:
    text = """
    g (int64 m, bool c, float[N] x) => (float[?] last) {
        last = Loop (m, c, x) <
            body = b (int64 i, bool ci, float[?] v) => (bool co, float[?] vo) {
                co = Identity (ci)
                zero = Constant <value_ints = [0]> ()
                vo = Unsqueeze (v, zero)
            }
        >
    }
    """
    assert outputs(text, {"m": scalar(7), "c": CONDITION, "x": f32(N)}) == [TensorFact(F32, None)]


def test_a_counter_is_no_constant_and_an_invariant_stays_one() -> None:
    text = """
    g (int64 m, bool c, int64 start, int64 fixed) => (int64[?] last, int64 kept, int64[?] rows) {
        last, kept, rows = Loop (m, c, start, fixed) <
            body = b (int64 i, bool ci, int64[?] v, int64[?] f) => (bool co, int64[?] vo, int64[?] fo, int64[?] row) {
                co = Identity (ci)
                one = Constant <value_int = 1> ()
                vo = Add (v, one)
                fo = Identity (f)
                zero = Constant <value_ints = [0]> ()
                n = Unsqueeze (f, zero)
                row = ConstantOfShape <value = int64[1] {1}> (n)
            }
        >
    }
    """
    inputs: dict[str, Fact] = {"m": scalar(3), "c": scalar(True, np.bool_), "start": scalar(0), "fixed": scalar(5)}
    last, kept, rows = outputs(text, inputs)
    assert isinstance(last, TensorFact)
    assert (last.shape, last.const, last.data) == ((), None, None)
    assert isinstance(kept, TensorFact)
    assert kept.elements() == (5,)
    assert rows == i64(3, 5)


def test_a_while_loop_has_an_open_trip_count() -> None:
    text = """
    g (bool c, float[N] x) => (float[?] last, float[?] all) {
        last, all = Loop (, c, x) <
            body = b (int64 i, bool ci, float[?] v) => (bool co, float[?] vo, float[?] s) {
                limit = Constant <value_int = 3> ()
                co = Less (i, limit)
                vo = Relu (v)
                s = Identity (v)
            }
        >
    }
    """
    facts = outputs(text, {"c": scalar(True, np.bool_), "x": f32(N)})
    assert facts == [f32(N), f32(D.symbol("last.0"), N)]


def test_a_loop_may_collect_a_sequence() -> None:
    text = """
    g (int64 m, bool c, float[N] x) => (float[?] y) {
        empty = SequenceEmpty ()
        s = Loop (m, c, empty) <
            body = b (int64 i, bool ci, seq(float[?]) v) => (bool co, seq(float[?]) vo) {
                co = Identity (ci)
                vo = SequenceInsert (v, x)
            }
        >
        y = ConcatFromSequence <axis = 0, new_axis = 1> (s)
    }
    """
    facts = outputs(text, {"m": scalar(7), "c": scalar(True, np.bool_), "x": f32(N)})
    assert shapes(facts) == [(D.symbol("y.0"), N)]


def test_a_body_of_the_wrong_signature_is_refused() -> None:
    text = """
    g (int64 m, bool c, float[N] x) => (float[?] last) {
        last = Loop (m, c, x) <body = b (int64 i, bool ci) => (bool co) { co = Identity (ci) }>
    }
    """
    with pytest.raises(ModelTypeError, match="signature"):
        outputs(text, {"m": scalar(7), "c": CONDITION, "x": f32(N)})


SCAN = """
g (float[N] h, float[N, S, 4] x) => (float[?] last, float[?] all) {
    last, all = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
        body = b (float[?] s, float[?] e) => (float[?] so, float[?] o) {
            axis = Constant <value_ints = [1]> ()
            sum = ReduceSum <keepdims = 0> (e, axis)
            so = Add (s, sum)
            o = Identity (e)
        }
    > (h, x)
}
"""


def test_scan_moves_the_scanned_axis() -> None:
    assert outputs(SCAN, {"h": f32(N), "x": f32(N, S, 4)}) == [f32(N), f32(N, 4, S)]


def test_scan_refuses_a_state_that_changes() -> None:
    with pytest.raises(ModelTypeError, match="from round to round"):
        outputs(SCAN.replace("so = Add (s, sum)", "so = Concat <axis = 0> (s, sum)"), {"h": f32(3), "x": f32(3, S, 4)})


def test_sequence_map_maps_the_common_shape() -> None:
    text = """
    g (seq(float[?]) s, float[N] x) => (seq(float[?]) y) {
        y = SequenceMap (s, x) <body = b (float[?] e, float[?] v) => (float[?] o) { o = Concat <axis = 0> (e, v) }>
    }
    """
    facts = outputs(text, {"s": SequenceFact(f32(4), 3), "x": f32(N)})
    assert facts == [SequenceFact(f32(N + 4), 3)]


def test_two_calls_of_a_function_have_symbols_of_their_own() -> None:
    text = """
    g (float[N] x, float[N] y) => (int64[?] a, int64[?] b) { a = my.count (x)  b = my.count (y) }
    <domain: "my", opset_import: ["" : 24]>
    count (v) => (o) { o = NonZero (v) }
    """
    header = '<ir_version: 10, opset_import: ["" : 24, "my" : 1]>\n'
    model = ir.serde.deserialize_model(onnx.parser.parse_model(header + text))
    facts = FactTable()
    for value in model.graph.inputs:
        facts[value] = f32(N)
    Analyzer(facts, model.graph.opset_imports, functions=model.functions).infer_graph(model.graph)
    a, b = (facts.tensor(o).shape for o in model.graph.outputs)
    assert a is not None
    assert b is not None
    assert a[1] != b[1]


def test_a_function_sees_the_attributes_of_its_call() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 24, "my" : 1]>
    g (float[N, 3] x) => (float[?] y, float[?] z) { y = my.cat <axis = 1> (x)  z = my.cat (x) }
    <domain: "my", opset_import: ["" : 24]>
    cat <axis: int = 0> (v) => (o) { o = Concat <axis: int = @axis> (v, v) }
    """
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    facts = FactTable()
    facts[model.graph.inputs[0]] = f32(N, 3)
    Analyzer(facts, model.graph.opset_imports, functions=model.functions).infer_graph(model.graph)
    assert [facts.tensor(o).shape for o in model.graph.outputs] == [(N, 6), (2 * N, 3)]


def test_nodes_without_any_name_have_symbols_of_their_own() -> None:
    facts = FactTable()
    analyzer = Analyzer(facts, {"": 24})
    x = ir.Value(name="x")
    facts[x] = f32(N)
    nodes = [ir.Node("", "NonZero", [x], num_outputs=1) for _ in range(2)]
    analyzer.infer_graph(nodes)
    first, second = (facts.tensor(n.outputs[0]).shape for n in nodes)
    assert first != second
    analyzer.infer(nodes[0])
    assert facts.tensor(nodes[0].outputs[0]).shape == first
