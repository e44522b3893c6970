"""Builds one node from facts and infers it; loads the node cases of the ONNX package."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir

import accord.ops.shapes  # noqa: F401  (registers the rules)
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.facts import Fact, FactTable, TensorFact, constant_fact
from accord.ir.infer import Analyzer

N, S, H, W = (D.symbol(name) for name in "NSHW")
F32, F16, I64, I32, BOOL, U8 = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.INT64,
    ir.DataType.INT32,
    ir.DataType.BOOL,
    ir.DataType.UINT8,
)


def f32(*shape: DimLike) -> TensorFact:
    """A float tensor of this shape."""
    return TensorFact(F32, shape)


def i64(*shape: DimLike) -> TensorFact:
    """An int64 tensor of this shape."""
    return TensorFact(I64, shape)


def ints(*items: DimLike) -> TensorFact:
    """A vector of known or symbolic elements."""
    if D.is_known(items):
        return constant_fact(np.array(items, dtype=np.int64))
    return TensorFact(I64, (len(items),), data=items)


def scalar(item: Any, dtype: Any = np.int64) -> TensorFact:
    """A scalar that is known or symbolic."""
    if isinstance(item, D.Dim):
        return TensorFact(I64, (), data=(item,))
    return constant_fact(np.array(item, dtype=dtype))


def floats(*items: float) -> TensorFact:
    """A constant float vector."""
    return constant_fact(np.array(items, dtype=np.float32))


def build(
    op: str, inputs: Sequence[Fact | None], outputs: int, opset: int, domain: str, attributes: dict[str, Any]
) -> tuple[ir.Node, Analyzer]:
    """The node and an analyzer that knows its inputs."""
    facts = FactTable()
    values: list[ir.Value | None] = []
    for i, fact in enumerate(inputs):
        value = None if fact is None else ir.Value(name=f"i{i}")
        if value is not None and fact is not None:
            facts[value] = fact
        values.append(value)
    attrs = [v if isinstance(v, ir.Attr) else ir.convenience.convert_attribute(k, v) for k, v in attributes.items()]
    node = ir.Node(domain, op, values, attrs, num_outputs=outputs)
    for i, value in enumerate(node.outputs):
        value.name = f"o{i}"
    return node, Analyzer(facts, {domain: opset})


def infer_all(
    op: str, *inputs: Fact | None, outputs: int = 1, opset: int = 24, domain: str = "", **attributes: Any
) -> list[Fact]:
    """Facts of all outputs."""
    node, analyzer = build(op, inputs, outputs, opset, domain, attributes)
    analyzer.infer(node)
    return [analyzer.facts[o] for o in node.outputs]


def infer(op: str, *inputs: Fact | None, **attributes: Any) -> TensorFact:
    """Fact of the only output, a tensor."""
    (fact,) = infer_all(op, *inputs, **attributes)
    assert isinstance(fact, TensorFact)
    return fact


def content(fact: TensorFact) -> tuple[DimLike, ...] | None:
    """Known or symbolic elements."""
    return fact.elements()


@lru_cache(maxsize=1)
def node_cases() -> list[Any]:
    """All node cases of the installed ONNX package."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # computing expected results overflows on purpose
        cases = load_model_tests(kind="node")
    assert isinstance(cases, list)
    return cases


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """An input or output of a case as an array; None for sequences and absent values."""
    import onnx

    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None


def is_small(array: np.ndarray[Any, Any]) -> bool:
    """True for what may be a shape, an axis, a scale or the like."""
    return array.ndim <= 1 and array.size <= 64 and array.dtype.kind in "iubf"


def constant_of(array: np.ndarray[Any, Any], dtype: ir.DataType) -> TensorFact:
    """The fact of a case's input as a constant."""
    tensor = ir.Tensor(array if array.dtype == dtype.numpy() else array.astype(dtype.numpy()), dtype=dtype)
    return TensorFact(dtype, array.shape, const=tensor)
