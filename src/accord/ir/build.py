"""Builder: makes nodes of the ONNX domain for rules, and knows the facts of what it made.

A rule that rewrites a node writes the replacement as plain calls::

    y = b("Add", b("MatMul", x, w), bias)          # one output
    values, indices = b.multi("TopK", 2, x, k)     # several

Facts of new values are inferred on the spot, so a rule may ask for the rank or the dtype of what it just built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir.dims import Shape
from accord.ir.facts import TensorFact, constant_fact, to_tensor
from accord.ir.infer import Analyzer

__all__ = ["Builder"]


class Builder:
    """Collects new nodes; nothing in the graph changes until the pass manager applies the patch.

    Attributes:
        nodes: What was built, in order.
        constants: Initializers that were made.
        analyzer: Infers facts; new values are added to its table.
    """

    def __init__(self, analyzer: Analyzer) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self.analyzer = analyzer
        self.facts = analyzer.facts

    def __call__(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """Build a node with one output and return it. Attributes that are None are left out."""
        return self.multi(op_type, 1, *inputs, domain=domain, **attributes)[0]

    def multi(
        self, op_type: str, outputs: int, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """Build a node with ``outputs`` outputs and return them."""
        attrs = [_attribute(k, v) for k, v in attributes.items() if v is not None]
        trimmed = list(inputs)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        node = ir.Node(domain, op_type, trimmed, attrs, num_outputs=outputs)
        self.analyzer.infer(node)
        self.nodes.append(node)
        return node.outputs

    def const(self, array: np.ndarray[Any, Any] | ir.TensorProtocol, name: str | None = None) -> ir.Value:
        """A constant as an initializer."""
        tensor = to_tensor(array) if isinstance(array, np.ndarray) else array
        fact = constant_fact(tensor)
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        self.facts[value] = fact
        self.constants.append(value)
        return value

    def ints(self, *values: int) -> ir.Value:
        """A 1-D int64 constant."""
        return self.const(np.array(values, dtype=np.int64))

    def scalar(self, value: float, like: ir.Value) -> ir.Value:
        """A rank-0 constant of the dtype of ``like``."""
        dtype = self.fact(like).dtype
        if dtype is None:
            raise ValueError("the dtype of the value is not known")
        return self.const(np.array(value, dtype=dtype.numpy()))

    def fact(self, value: ir.Value | None) -> TensorFact:
        """Fact of a value as a tensor."""
        return self.facts.tensor(value)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Shape of a value, None if its rank is unknown."""
        return self.facts.tensor(value).shape


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, ir.Attr):
        return ir.Attr(name, value.type, value.value)
    if isinstance(value, np.ndarray):
        return ir.Attr(name, ir.AttributeType.TENSOR, to_tensor(value))
    if isinstance(value, bool):
        value = int(value)
    return ir.convenience.convert_attribute(name, value)
