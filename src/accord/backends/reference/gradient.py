"""Numeric differentiation of part of a graph, for the Gradient operator."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto

from accord.backends.reference.kernels import ReferenceKernel
from accord.backends.reference.registry import Array, normal_domain
from accord.backends.reference.tensors import is_float, require, to_array

if TYPE_CHECKING:
    from accord.backends.reference.evaluator import Context

__all__ = ["Differentiable"]

_STEP = 1e-3
#: Rounding to a narrower float would turn a smooth function into steps, so these pass float64 through.
_CASTS = ("Cast", "CastLike")


class Differentiable:
    """One value of a graph as a function of some others, evaluated in float64.

    Args:
        graph: The graph that holds both.
        context: Opsets and functions in force in it.
        names: The independent values.
        target: The dependent value.

    Raises:
        ValueError: The target does not depend on the graph's nodes.
    """

    def __init__(self, graph: GraphProto | FunctionProto, context: Context, names: Sequence[str], target: str) -> None:
        self._names = tuple(names)
        self._target = target
        nodes = _between(graph, set(names), target)
        require(bool(nodes) or target in names, f"nothing in the graph produces '{target}'")
        self._steps = [
            (node, ReferenceKernel(node, context.opset_imports[normal_domain(node.domain)], context=context))
            for node in nodes
        ]
        initializers = graph.initializer if isinstance(graph, GraphProto) else ()
        self._constants = {tensor.name: _double(to_array(tensor)) for tensor in initializers}

    def derivative(self, inputs: Sequence[Any], index: int, captured: Mapping[str, Any]) -> Array:
        """Differentiate the sum of the target's elements with respect to one independent value.

        Central differences of two widths, extrapolated (Richardson, 1911): the error falls with the fourth power
        of the width.

        Args:
            inputs: The point, one value for each independent name.
            index: Which of them to differentiate by.
            captured: Values of the graph that do not depend on the independent ones.

        Returns:
            An array of that value's shape and dtype.
        """
        point = [_double(value) for value in inputs]
        x = np.array(point[index], dtype=np.float64)
        result = np.zeros(x.shape, dtype=np.float64)
        for position in np.ndindex(x.shape):
            width = _STEP * max(1.0, abs(float(x[position])))
            slopes = []
            for h in (width, width / 2):
                sums = []
                for offset in (h, -h):
                    moved = x.copy()
                    moved[position] += offset
                    point[index] = moved
                    sums.append(self._sum(point, captured))
                slopes.append((sums[0] - sums[1]) / (2 * h))
            result[position] = (4 * slopes[1] - slopes[0]) / 3
        return result.astype(inputs[index].dtype)

    def _sum(self, point: Sequence[Any], captured: Mapping[str, Any]) -> float:
        own: dict[str, Any] = {**self._constants, **dict(zip(self._names, point, strict=True))}
        values = ChainMap(own, captured)  # type: ignore[arg-type]  # the outer map is never written
        for node, kernel in self._steps:
            inputs = [_double(values[name]) if name else None for name in node.input]
            if node.op_type in _CASTS and inputs[0] is not None and is_float(inputs[0].dtype):
                own[node.output[0]] = inputs[0]
                continue
            results = kernel.run(inputs, values)
            own.update((name, _double(value)) for name, value in zip(node.output, results, strict=True) if name)
        return float(np.sum(values[self._target], dtype=np.float64))


def _between(graph: GraphProto | FunctionProto, stops: set[str], target: str) -> list[NodeProto]:
    """The nodes that compute the target from the stops, in order."""
    needed = {target} - stops
    chosen = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            chosen.append(node)
            needed |= set(node.input) - stops
    return chosen[::-1]


def _double(value: Any) -> Any:
    if isinstance(value, np.ndarray) and is_float(value.dtype):
        return value.astype(np.float64)
    return value
