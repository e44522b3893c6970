"""Damaged nodes: a rule raises ModelTypeError or returns facts, quickly, and nothing else ever happens."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from shapes_harness import as_array, constant_of, is_small, node_cases

from accord.errors import ModelTypeError
from accord.ir import dims as D
from accord.ir.facts import Fact, FactTable, OptionalFact, OtherFact, SequenceFact, TensorFact
from accord.ir.infer import Analyzer

SIZES = (0, 1, 2, 3, 7, 2**40)
ELEMENTS = (0, 1, -1, 2, 5, 2**31, -(2**31), D.symbol("p"), D.symbol("q") - 3, -D.symbol("p"))
EQUATIONS = ("", "zzz", "->", "a,b->c", "...i,j", "ij,jk->iik", "i.j", "ij->ijk")
DTYPES = tuple(ir.DataType)


def _damaged_fact(rng: random.Random, fact: Fact) -> Fact:
    if not isinstance(fact, TensorFact):
        return rng.choice(
            [TensorFact(ir.DataType.FLOAT, (2, 3)), OtherFact(), SequenceFact(None), SequenceFact(fact, 0)]
        )
    shape = fact.shape
    kind = rng.randrange(8)
    if kind == 0 or shape is None:
        return TensorFact(fact.dtype, None)
    if kind == 1:
        return TensorFact(rng.choice([*DTYPES, None]), shape)
    at = rng.randrange(len(shape) + 1)
    if kind == 2:
        return TensorFact(fact.dtype, shape[:at] + shape[at + 1 :])
    if kind == 3:
        return TensorFact(fact.dtype, (*shape[:at], rng.choice(SIZES), *shape[at:]))
    if kind == 4:
        return TensorFact(fact.dtype, (*shape[:at], rng.choice(SIZES), *shape[at + 1 :]))
    if kind == 5:
        return TensorFact(fact.dtype, (*shape[:at], D.symbol("q"), *shape[at + 1 :]))
    if kind == 6 and fact.dtype in (ir.DataType.INT64, ir.DataType.INT32) and len(shape) <= 1:
        count = shape[0] if shape else 1
        if isinstance(count, int) and count < 20:
            items = tuple(rng.choice(ELEMENTS) for _ in range(count))
            return TensorFact(fact.dtype, shape, data=items)
    return rng.choice([SequenceFact(TensorFact(fact.dtype, shape)), OptionalFact(fact), TensorFact(fact.dtype, ())])


def _damage_attribute(rng: random.Random, node: ir.Node) -> None:
    if not node.attributes:
        return
    name = rng.choice(sorted(node.attributes))
    kind = node.attributes[name].type
    choices: list[ir.Attr] = [ir.AttrInt64(name, 3), ir.AttrInt64s(name, [1, 2]), ir.AttrFloat32(name, 1.5)]
    if kind == ir.AttributeType.INT:
        choices = [ir.AttrInt64(name, v) for v in (0, -1, 1, 2, -100, 100, 2**40)] + [ir.AttrString(name, "x")]
    elif kind == ir.AttributeType.INTS:
        items = list(node.attributes[name].value)
        swapped = [rng.choice((0, -1, 2**40, -50)), *items[1:]]
        choices = [ir.AttrInt64s(name, v) for v in (items[:-1], [*items, 1], swapped, [])]
    elif kind == ir.AttributeType.STRING:
        choices = [ir.AttrString(name, v) for v in EQUATIONS]
    elif kind == ir.AttributeType.GRAPH:
        choices = []
    if not choices or rng.random() < 0.2:
        del node.attributes[name]
    else:
        node.attributes.add(rng.choice(choices))


def _damaged(rng: random.Random, case: Any) -> tuple[ir.Node, Analyzer]:
    model = ir.serde.deserialize_model(case.model)
    facts = FactTable()
    inputs = list(model.graph.inputs)
    for value, data in zip(inputs, case.data_sets[0][0], strict=False):
        array, fact = as_array(data), facts.get(value)
        if array is not None and isinstance(fact, TensorFact) and fact.dtype is not None and is_small(array):
            facts[value] = constant_of(array, fact.dtype)
    node = next(iter(model.graph))
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.random()
        if kind < 0.5 and inputs:
            value = rng.choice(inputs)
            facts[value] = _damaged_fact(rng, facts.get(value))
        elif kind < 0.9:
            _damage_attribute(rng, node)
        elif node.inputs:
            node.replace_input_with(rng.randrange(len(node.inputs)), None)
    return node, Analyzer(facts, model.graph.opset_imports)


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_node_raises_a_model_error_or_is_inferred(seed: int) -> None:
    rng = random.Random(seed)
    cases = [c for c in node_cases() if len(c.model.graph.node) == 1]
    refused = 0
    for _ in range(1500):
        node, analyzer = _damaged(rng, rng.choice(cases))
        try:
            analyzer.infer(node)
        except ModelTypeError as error:
            refused += 1
            assert error.op is not None
            assert error.message in str(error)
    # Most damage can be seen; the rest are unknown ranks, symbols and attributes that shapes do not depend on.
    assert refused > 300


def test_expressions_cannot_be_blown_up() -> None:
    """Squaring a symbolic element again and again ends in an unknown one, not in a huge polynomial."""
    facts = FactTable()
    value = ir.Value(name="x")
    facts[value] = TensorFact(ir.DataType.INT64, (1,), data=(D.symbol("a") + D.symbol("b") + 1,))
    analyzer = Analyzer(facts, {"": 24})
    for i in range(40):
        node = ir.Node("", "Mul", [value, value], num_outputs=1)
        value = node.outputs[0]
        value.name = f"y{i}"
        analyzer.infer(node)
    assert facts[value] == TensorFact(ir.DataType.INT64, (1,))
    reshape = ir.Node("", "Flatten", [ir.Value(name="t")], [ir.AttrInt64("axis", 0)], num_outputs=1)
    many = tuple(D.symbol(f"s{i}") + i + 1 for i in range(40))
    facts[reshape.inputs[0]] = TensorFact(ir.DataType.FLOAT, many)  # type: ignore[index]
    analyzer.infer(reshape)
    shape = facts.tensor(reshape.outputs[0]).shape
    assert shape is not None
    assert all(isinstance(d, int) or d.weight <= 256 for d in shape)


def test_huge_ranks_are_refused_before_they_cost_memory() -> None:
    facts = FactTable()
    data, shape = ir.Value(name="x"), ir.Value(name="s")
    facts[data] = TensorFact(ir.DataType.FLOAT, (2, 3))
    facts[shape] = TensorFact(ir.DataType.INT64, (2**40,))
    for op in ("Reshape", "Expand", "Unsqueeze"):
        node = ir.Node("", op, [data, shape], num_outputs=1)
        with pytest.raises(ModelTypeError, match="more axes"):
            Analyzer(facts, {"": 24}).infer(node)


def test_a_constant_of_many_elements_is_not_read_as_a_shape() -> None:
    facts = FactTable()
    x, y = ir.Value(name="x"), ir.Value(name="y")
    facts[x] = constant_of(np.arange(100_000, dtype=np.int64), ir.DataType.INT64)
    facts[y] = constant_of(np.array(3, dtype=np.int64), ir.DataType.INT64)
    node = ir.Node("", "Add", [x, y], num_outputs=1)
    Analyzer(facts, {"": 24}).infer(node)
    assert facts[node.outputs[0]] == TensorFact(ir.DataType.INT64, (100_000,))
