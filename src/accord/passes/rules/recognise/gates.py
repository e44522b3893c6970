"""What a gate of a recurrent cell adds up: products of values with constant matrices, and a bias."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.passes.rule import RuleContext

__all__ = ["Gates", "Linear"]

Floats = npt.NDArray[np.float64]
_DEEPEST = 12


@dataclass(slots=True)
class Linear:
    """``sum of value @ matrix + bias``.

    Attributes:
        terms: Value → its matrix ``[features, gates]``.
        bias: ``[gates]``.
    """

    terms: dict[ir.Value, Floats]
    bias: Floats

    def plus(self, other: Linear) -> Linear:
        """The sum of both."""
        terms = dict(self.terms)
        for value, matrix in other.terms.items():
            terms[value] = terms[value] + matrix if value in terms else matrix
        return Linear(terms, self.bias + other.bias)

    def columns(self, cut: slice) -> Linear:
        """Some of the gates."""
        return Linear({v: m[:, cut] for v, m in self.terms.items()}, self.bias[cut])


@dataclass(slots=True)
class Gates:
    """Reads values of shape ``[batch, gates]`` as linear; remembers the nodes that it went through.

    Attributes:
        context: For constants and facts.
        nodes: What was read.
    """

    context: RuleContext
    nodes: dict[ir.Node, None] = field(default_factory=dict)

    def read(self, value: ir.Value | None, depth: int = _DEEPEST) -> Linear | None:
        """``value`` as linear; None if it is not."""
        node = value.producer() if value is not None else None
        shape = self.context.tensor(value).shape
        if value is None or node is None or node.domain != "" or depth == 0:
            return None
        if shape is None or len(shape) != 2 or not isinstance(shape[1], int):
            return None
        match node.op_type:
            case "MatMul":
                found = self._product(node.inputs[0], self._matrix(node.inputs[1], False), np.zeros(shape[1]))
            case "Gemm":
                found = self._gemm(node, shape[1], depth)
            case "Add":
                found = self._sum(node, shape[1], depth)
            case "Split" | "Slice":
                found = self._part(node, value, shape[1], depth)
            case _:
                return None
        if found is not None:
            self.nodes[node] = None
        return found

    def _matrix(self, value: ir.Value | None, transposed: bool) -> Floats | None:
        content = self.context.constant(value)
        if content is None or content.ndim != 2:
            return None
        wide: Floats = content.astype(np.float64)
        return wide.T if transposed else wide

    def _product(self, value: ir.Value | None, matrix: Floats | None, bias: Floats) -> Linear | None:
        if value is None or matrix is None or self.context.tensor(value).rank != 2:
            return None
        node = value.producer()
        if node is None or node.op_type != "Concat" or node.domain != "":
            return Linear({value: matrix}, bias)
        # [x, h] @ [[W], [R]]: a matrix for each part
        found = Linear({}, bias)
        row = 0
        for part in node.inputs:
            shape = self.context.tensor(part).shape
            if part is None or shape is None or not isinstance(shape[1], int):
                return Linear({value: matrix}, bias)
            found = found.plus(Linear({part: matrix[row : row + shape[1]]}, np.zeros_like(bias)))
            row += shape[1]
        self.nodes[node] = None
        return found

    def _gemm(self, node: ir.Node, width: int, depth: int) -> Linear | None:
        attr = self.context.attr
        if int(attr(node, "transA", 0)):
            return None
        matrix = self._matrix(node.inputs[1], bool(attr(node, "transB", 0)))
        if matrix is None:
            return None
        found = self._product(node.inputs[0], matrix * float(attr(node, "alpha", 1.0)), np.zeros(width))
        added = node.inputs[2] if len(node.inputs) > 2 else None
        if found is None or added is None:
            return found
        beta = float(attr(node, "beta", 1.0))
        bias = self._bias(added, width)
        other = Linear({}, bias * beta) if bias is not None else self.read(added, depth - 1) if beta == 1 else None
        return None if other is None else found.plus(other)

    def _bias(self, value: ir.Value | None, width: int) -> Floats | None:
        content = self.context.constant(value)
        if content is None or content.size not in (1, width) or (content.ndim > 1 and content.shape[:-1] != (1,)):
            return None
        return np.broadcast_to(content.astype(np.float64).reshape(-1), (width,))

    def _sum(self, node: ir.Node, width: int, depth: int) -> Linear | None:
        parts: list[Linear] = []
        for value in node.inputs:
            bias = self._bias(value, width)
            part = Linear({}, bias) if bias is not None else self.read(value, depth - 1)
            if part is None:
                return None
            parts.append(part)
        return parts[0].plus(parts[1])

    def _part(self, node: ir.Node, value: ir.Value, width: int, depth: int) -> Linear | None:
        """Some columns: a part of a Split or a Slice along the last axis."""
        whole = self.read(node.inputs[0], depth - 1)
        start = self._split_start(node, value) if node.op_type == "Split" else self._slice_start(node)
        return None if whole is None or start is None else whole.columns(slice(start, start + width))

    def _split_start(self, node: ir.Node, value: ir.Value) -> int | None:
        if int(self.context.attr(node, "axis", 0)) not in (1, -1):
            return None
        start = 0
        for output in node.outputs:
            if output is value:
                return start
            shape = self.context.tensor(output).shape
            if shape is None or not isinstance(shape[1], int):
                return None
            start += shape[1]
        return None

    def _slice_start(self, node: ir.Node) -> int | None:
        contents = [self.context.constant(v) if v is not None else None for v in node.inputs[1:5]]
        numbers = [int(c.reshape(-1)[0]) for c in contents if c is not None and c.size == 1]
        if len(numbers) != len(contents) or len(numbers) < 3 or numbers[2] not in (1, -1):
            return None
        if len(numbers) > 3 and numbers[3] != 1:
            return None
        shape = self.context.tensor(node.inputs[0]).shape
        width = shape[1] if shape is not None and isinstance(shape[1], int) else None
        return numbers[0] if numbers[0] >= 0 else None if width is None else numbers[0] + width
