"""Facts: elements, constants, declared types, the table."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from accord.ir import dims as D
from accord.ir.facts import (
    FactTable,
    OptionalFact,
    OtherFact,
    SequenceFact,
    TensorFact,
    constant_fact,
    fact_of_type,
    merge,
    same_kind,
    to_numpy,
    to_tensor,
)

N = D.symbol("N")
F32 = ir.DataType.FLOAT
I64 = ir.DataType.INT64


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array(True),
        np.zeros((0, 3), dtype=np.uint8),
        np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16),
        np.array([1, -2], dtype=ml_dtypes.int4),
        np.array(["a", "ü", ""], dtype=object),
    ],
)
def test_arrays_survive_the_way_into_a_tensor_and_back(array: np.ndarray) -> None:
    back = to_numpy(to_tensor(array))
    assert back.shape == array.shape
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist()


def test_a_constant_knows_shape_content_and_elements() -> None:
    fact = constant_fact(np.array([3, -1], dtype=np.int64))
    assert (fact.dtype, fact.shape, fact.rank) == (I64, (2,), 1)
    assert fact.is_const
    assert fact.is_static
    assert fact.elements() == (3, -1)
    assert fact.numpy().tolist() == [3, -1]
    assert constant_fact(np.array(True)).elements() == (1,)
    assert constant_fact(np.ones((2, 2), dtype=np.int64)).elements() is None
    assert constant_fact(np.ones(2, dtype=np.float32)).elements() is None


def test_symbolic_content_is_not_constant() -> None:
    fact = TensorFact(I64, (2,), data=(N, 3))
    assert fact.elements() == (N, 3)
    assert not fact.is_const
    with pytest.raises(ValueError, match="not constant"):
        fact.numpy()
    assert str(fact) == "int64[2] = (N, 3)"
    assert fact.with_shape((1, 2)) == TensorFact(I64, (1, 2))
    assert not TensorFact(F32, (N, 2)).is_static
    assert TensorFact(None, None).rank is None
    assert str(TensorFact(None, None)) == "?[?]"


def test_declared_types_become_facts() -> None:
    shape = ir.Shape([2, "batch", None])
    fact = fact_of_type(ir.TensorType(F32), shape, "x")
    assert fact == TensorFact(F32, (2, D.symbol("batch"), D.symbol("x.2")))
    assert fact_of_type(ir.SequenceType(ir.TensorType(F32)), None, "s") == SequenceFact(TensorFact(F32, None))
    assert fact_of_type(ir.OptionalType(ir.TensorType(F32)), ir.Shape([1]), "o") == OptionalFact(TensorFact(F32, (1,)))
    assert fact_of_type(ir.TensorType(ir.DataType.UNDEFINED), ir.Shape([1]), "u") == TensorFact(None, (1,))
    assert fact_of_type(None, None, "n") == OtherFact()


def test_kinds_and_merging() -> None:
    assert same_kind(TensorFact(F32, (N, 2)), TensorFact(F32, (5, 2)))
    assert not same_kind(TensorFact(F32, (3, 2)), TensorFact(F32, (5, 2)))
    assert not same_kind(TensorFact(F32, (2,)), TensorFact(F32, (2, 1)))
    assert not same_kind(TensorFact(F32, (2,)), TensorFact(I64, (2,)))
    assert not same_kind(TensorFact(F32, (2,)), SequenceFact(None))
    assert same_kind(OtherFact(), SequenceFact(None))
    assert merge(TensorFact(F32, (N, 2)), TensorFact(None, (5, 2))) == TensorFact(F32, (5, 2))
    assert merge(TensorFact(None, None), TensorFact(F32, (N,))) == TensorFact(F32, (N,))
    assert merge(OtherFact(), TensorFact(F32, (N,))) == TensorFact(F32, (N,))


def test_the_table_reads_constants_and_types_on_demand() -> None:
    table = FactTable()
    constant = ir.Value(name="c", const_value=ir.tensor(np.array([1, 2], dtype=np.int64)))
    typed = ir.Value(name="t", type=ir.TensorType(F32), shape=ir.Shape(["N", 4]))
    assert table.tensor(constant).elements() == (1, 2)
    assert table.get(typed) == TensorFact(F32, (N, 4))
    assert table.get(None) == OtherFact()
    assert table.tensor(None) == TensorFact(None, None)
    assert typed in table
    table[typed] = TensorFact(F32, (3, D.floordiv(N, 2)))
    table.write_back([typed])
    assert typed.shape is not None
    assert [d if isinstance(d, int) else d.value for d in typed.shape] == [3, None]
    table.discard([typed])
    assert typed not in table


def test_labels_of_unnamed_nodes_are_stable_and_distinct() -> None:
    table = FactTable()
    a, b = (ir.Node("", "Relu", [None], num_outputs=1) for _ in range(2))
    assert table.label(a) == table.label(a)
    assert table.label(a) != table.label(b)


def test_a_sequence_may_know_its_length() -> None:
    assert SequenceFact(None).length is None
    assert SequenceFact(TensorFact(F32, (N,)), 2) != SequenceFact(TensorFact(F32, (N,)), 3)
