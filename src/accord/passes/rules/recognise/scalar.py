"""Functions of one number: what a region of elementwise operators computes, compared as a function.

An activation can be written in too many ways to list (``x * clip(x + 3, 0, 6) / 6``, ``x * hard_sigmoid(x)``,
``min(relu(x + 3), 6) * (x / 6)``, ...), but every one is a function of one number and can simply be evaluated. So
:func:`sample` computes the region in float64 at points that cover the whole range finely and lie on both sides of
whatever its constants may bend, with the operators' own definitions (the reference backend). A meaning is found where
it gives the same values, up to what rounding the region's constants can change. Functions made of a few elementary
ones that agree at some hundred such points are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.passes.rule import RuleContext
from accord.passes.rules.recognise.formula import PRECISION
from accord.passes.rules.recognise.region import Region

__all__ = ["CURVED", "THROUGH", "Difference", "Sampled", "apply", "difference", "sample"]

Floats: TypeAlias = npt.NDArray[np.float64]

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Sum", "Identity", "Cast", "Not", "And", "Or")
#: Elementwise operators that are not linear; without one of them, a region is no activation.
CURVED = frozenset(
    "Pow Sqrt Reciprocal Exp Log Erf Tanh Sigmoid Softplus Softsign Relu LeakyRelu Elu Selu Celu HardSigmoid HardSwish "
    "Gelu Swish Mish Clip Min Max Abs Sign Where Equal Greater GreaterOrEqual Less LessOrEqual".split()
)
#: Operators that may lie in the region of an activation.
THROUGH: Mapping[str, Sequence[int] | None] = dict.fromkeys((*_ARITHMETIC, *CURVED))

#: Points that a meaning's parameters are read at.
PROBES = (0.0, 1.0, -1.0, 2.0, -2.0, 1e-3, -1e-3, 40.0, -40.0, 600.0, -600.0)
_MAGNITUDES = np.concatenate([np.geomspace(1e-8, 600.0, 80), np.linspace(0.05, 12.0, 96)])
_POINTS = np.concatenate([PROBES, _MAGNITUDES, -_MAGNITUDES])
_SPECIAL = np.array([np.nan, np.inf, -np.inf])
#: More elements of a constant than this are no parameter by channel.
_LARGEST = 4096


@dataclass(frozen=True, slots=True)
class Sampled:
    """A region's values.

    Attributes:
        region: The region.
        x: Points; the first are :data:`PROBES`.
        y: Values at the points: ``[points]``, or with parameters by channel ``[points, *channels]``.
        special: Values at NaN, +inf and -inf, as ``y``.
    """

    region: Region
    x: Floats
    y: Floats
    special: Floats

    def at(self, point: float) -> Any:
        """The value at one of :data:`PROBES`."""
        return self.y[PROBES.index(point)]


def sample(region: Region, context: RuleContext, *, channels: bool = False) -> Sampled | None:
    """The values of ``region``; None if it is no function of one number, or loses precision between.

    Args:
        region: Nodes of operators in :data:`THROUGH`.
        context: For constants.
        channels: A constant may have several values, so that the function is another one for each channel.
    """
    lowest = PRECISION.get(context.tensor(region.root).dtype or ir.DataType.UNDEFINED)
    if lowest is None or context.tensor(region.variable).dtype != context.tensor(region.root).dtype:
        return None
    constants: dict[ir.Value, Any] = {}
    bends: list[float] = []
    inside = {o for n in region.nodes for o in n.outputs}
    for node in region.nodes:
        dtype = context.tensor(node.outputs[0]).dtype
        if dtype != ir.DataType.BOOL and PRECISION.get(dtype or ir.DataType.UNDEFINED, -1) < lowest:
            return None
        for v in node.inputs:
            if v is None or v in inside or v is region.variable or v in constants:
                continue
            constant = _constant(v, context)
            if constant is None or (constant.ndim and not channels):
                return None
            constants[v] = constant
            if constant.dtype.kind == "f":
                bends.extend(float(c) for c in constant.reshape(-1)[:64] if np.isfinite(c))
    points = np.array(bends)
    around = np.concatenate([points * f for f in (1.0, -1.0, 0.5, 2.0)] + [points + d for d in (-1, -0.01, 0.01, 1)])
    x = np.concatenate([_POINTS, around[np.abs(around) <= 600]])
    rank = max((c.ndim for c in constants.values()), default=0)
    y = _evaluate(region, np.concatenate([x, _SPECIAL]).reshape(-1, *[1] * rank), constants, context)
    if y is None or y.dtype.kind != "f":
        return None
    return Sampled(region, x, y[: len(x)], y[len(x) :])


def _constant(value: ir.Value, context: RuleContext) -> npt.NDArray[Any] | None:
    """A constant in float64 (bool stays), of rank 0 where all its elements are equal."""
    content = context.constant(value)
    if content is None or content.size == 0:
        return None
    first = content.reshape(-1)[0]
    array: npt.NDArray[Any] = content
    if bool((content == first).all()) or content.size == 1:
        array = np.asarray(first)
    elif content.size > _LARGEST:
        return None
    return array if array.dtype == np.bool_ else array.astype(np.float64)


def _evaluate(
    region: Region, x: Floats, constants: Mapping[ir.Value, Any], context: RuleContext
) -> npt.NDArray[Any] | None:
    values: dict[ir.Value, Any] = {region.variable: x, **constants}
    for node in region.nodes:
        inputs = [None if v is None else values[v] for v in node.inputs]
        if node.op_type == "Cast":
            target = context.tensor(node.outputs[0]).dtype
            result: Any = inputs[0] != 0 if target == ir.DataType.BOOL else np.asarray(inputs[0], dtype=np.float64)
        else:
            result = _run(node, inputs, context)
        if result is None:
            return None
        values[node.outputs[0]] = result
    return np.asarray(values[region.root])


def _run(node: ir.Node, inputs: Sequence[Any], context: RuleContext) -> Any:
    evaluator = context.analyzer.evaluator
    results = None if evaluator is None else evaluator(node, inputs, context.opset)
    return None if results is None else results[0]


def apply(op: str, attributes: Mapping[str, Any], x: Floats, context: RuleContext) -> Floats | None:
    """Operator ``op`` of the ONNX domain at ``x``."""
    attrs = [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()]
    result = _run(ir.Node("", op, [ir.Value(name="x")], attrs, num_outputs=1), [x], context)
    return None if result is None else np.asarray(result, dtype=np.float64)


_STEP = 1e-6


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a region is from an operator.

    Attributes:
        relative: The greatest of ``|region - op| / (|op| + |x op'(x)|)``: the relative error of input or output that
            would explain it.
        absolute: The greatest of ``|region - op| / (1 + |x|)`` for x of ordinary size.
        at: Where that is.
    """

    relative: float
    absolute: float
    at: float


def difference(sampled: Sampled, op: str, attributes: Mapping[str, Any], context: RuleContext) -> Difference:
    """How far the region is from operator ``op`` of the ONNX domain."""
    x = sampled.x
    values = apply(op, attributes, np.concatenate([x, x * (1 + _STEP), x * (1 - _STEP), _SPECIAL]), context)
    if values is None:
        return Difference(np.inf, np.inf, 0.0)
    n = len(x)
    want, above, below, special = values[:n], values[n : 2 * n], values[2 * n : 3 * n], values[3 * n :]
    with np.errstate(all="ignore"):
        scale = np.abs(want) + np.abs(above - below) / (2 * _STEP)
        error = np.abs(sampled.y - want)
        error = np.where(np.isnan(error), np.inf, error)
        # what float64 itself loses where the region cancels, as 1 + erf(x) does far below zero
        relative = np.where(error <= 1e-15 * np.maximum(1.0, np.abs(x)), 0.0, error / np.maximum(scale, 1e-300))
    ordinary = np.where(np.abs(x) <= 12, error / (1 + np.abs(x)), 0.0)
    worst = int(ordinary.argmax())
    agree = _special_agree(sampled.special, special)
    return Difference(float(relative.max()) if agree else np.inf, float(ordinary[worst]), float(x[worst]))


def _special_agree(found: Floats, want: Floats) -> bool:
    """NaN stays NaN; at infinity, what the region computes, if anything, is what the operator does."""
    if bool(np.isnan(found[0])) != bool(np.isnan(want[0])):
        return False
    return all(np.isnan(a) or a == b for a, b in zip(found[1:], want[1:], strict=True))
