"""Convolutions of one tensor that are added up, as one convolution.

A convolution is linear in its weights, so ``conv(x, v) + conv(x, w) = conv(x, v + w)`` once the smaller kernel is laid
into the larger one. A BatchNormalization of the same tensor is a convolution whose kernel has one tap and does not mix
channels. Networks that are trained with several branches (Ding et al., "RepVGG", 2021) are exported like this when
nobody has joined the branches before. Weights are added in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.affine import batch_norm_affine

__all__ = ["SumConvolutions"]

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Term:
    """A convolution: for each spatial axis stride, dilation, and padding before and after.

    Attributes:
        node: Where it comes from.
        weight: [outputs, inputs of a group, taps ...].
        bias: [outputs].
        group: Number of groups.
    """

    node: ir.Node
    weight: _Floats
    bias: _Floats
    group: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def taps(self) -> tuple[int, ...]:
        """Size of the kernel."""
        return self.weight.shape[2:]

    def laid_into(self, large: _Term) -> _Floats | None:
        """The weights as ones of ``large``'s kernel; None if they have no place there."""
        places = []
        for axis, (small, size) in enumerate(zip(self.taps, large.taps, strict=True)):
            step = large.dilations[axis]
            if self.strides[axis] != large.strides[axis] or (small > 1 and self.dilations[axis] != step):
                return None
            first, rest = divmod(large.before[axis] - self.before[axis], step)
            # what both reach to at the end must be padded alike, or their outputs would differ in size
            beyond = (size - 1) * step - (small - 1) * self.dilations[axis]
            reach = large.before[axis] + large.after[axis] - self.before[axis] - self.after[axis]
            if rest or first < 0 or first + small > size or beyond != reach:
                return None
            places.append(slice(first, first + small))
        laid = np.zeros((*self.weight.shape[:2], *large.taps))
        laid[(slice(None), slice(None), *places)] = self.weight
        return laid


class SumConvolutions(Rule):
    """Add of two convolutions of the same tensor → one convolution."""

    name: ClassVar[str] = "sum-convolutions"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Add")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with one Conv."""
        producers = [v.producer() if v is not None else None for v in node.inputs]
        convolutions = [p for p in producers if p is not None and (p.domain, p.op_type) == ("", "Conv")]
        if not convolutions:
            return None
        main = convolutions[0]
        x = main.inputs[0]
        terms = []
        for value, producer in zip(node.inputs, producers, strict=True):
            if producer is None or value is None or not producer.inputs or producer.inputs[0] is not x:
                return None
            if (producer.domain, producer.op_type) not in (("", "Conv"), ("", "BatchNormalization")):
                return None
            if context.only_use(value) is not node or producer.graph is not node.graph:
                return Reason(f"the output of {label(producer)} has other uses")
            if context.tensor(value).shape != context.tensor(node.outputs[0]).shape:
                return Reason(f"the output of {label(producer)} is broadcast")
            term = _convolution(producer, context) if producer.op_type == "Conv" else _scaling(producer, main, context)
            if isinstance(term, Reason):
                return term
            terms.append(term)
        return _sum(node, terms, context)


def _sum(node: ir.Node, terms: list[_Term], context: RuleContext) -> Patch | Reason:
    # of equal kernels, the convolution is the one whose attributes are kept
    small, large = sorted(terms, key=lambda t: (int(np.prod(t.taps)), t.node.op_type == "Conv"))
    if small.group != large.group or small.weight.shape[:2] != large.weight.shape[:2]:
        return Reason("the convolutions have other groups")
    laid = small.laid_into(large)
    if laid is None:
        return Reason("neither kernel lies within the other one")
    x = large.node.inputs[0]
    dtype = context.tensor(x).dtype
    if dtype is None or not dtype.is_floating_point():
        return Reason("only floating-point weights are added up")
    weight, bias = ((a + b).astype(dtype.numpy()) for a, b in ((large.weight, laid), (large.bias, small.bias)))
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return Reason("the sum of the weights would not be finite")
    b = context.builder()
    attributes: Mapping[str, Any] = {k: a for k, a in large.node.attributes.items() if k != "kernel_shape"}
    name = label(large.node)
    y = b.multi("Conv", 1, x, b.const(weight, f"{name}.summed"), b.const(bias, f"{name}.bias"), **attributes)[0]
    return patch_from(b, node, [y], f"{label(small.node)} into {label(large.node)}")


def _convolution(node: ir.Node, context: RuleContext) -> _Term | Reason:
    if context.attr(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return Reason(f"the padding of {label(node)} depends on sizes")
    weight = context.constant(node.inputs[1])
    if weight is None:
        return Reason(f"the weights of {label(node)} are not constant")
    biased = len(node.inputs) > 2 and node.inputs[2] is not None
    bias = context.constant(node.inputs[2]) if biased else np.zeros(weight.shape[0])
    if bias is None:
        return Reason(f"the bias of {label(node)} is not constant")
    axes = weight.ndim - 2
    ones, pads = [1] * axes, [int(p) for p in context.attr(node, "pads", [0] * (2 * axes))]
    return _Term(
        node,
        weight.astype(np.float64),
        bias.astype(np.float64),
        int(context.attr(node, "group", 1)),
        tuple(int(s) for s in context.attr(node, "strides", ones)),
        tuple(int(d) for d in context.attr(node, "dilations", ones)),
        tuple(pads[:axes]),
        tuple(pads[axes:]),
    )


def _scaling(node: ir.Node, beside: ir.Node, context: RuleContext) -> _Term | Reason:
    """A BatchNormalization as a convolution with the groups of the one ``beside`` it."""
    affine = batch_norm_affine(node, context)
    if isinstance(affine, Reason):
        return affine
    rank = context.tensor(node.inputs[0]).rank
    weight = context.constant(beside.inputs[1])
    if rank is None or weight is None:
        return Reason(f"the weights of {label(beside)} are not constant")
    scale, shift = affine
    inputs = weight.shape[1]
    taps = np.zeros((scale.size, inputs, *[1] * (rank - 2)))
    channels = np.arange(scale.size)
    taps.reshape(scale.size, inputs)[channels, channels % inputs] = scale
    one, none = (1,) * (rank - 2), (0,) * (rank - 2)
    return _Term(node, taps, shift, scale.size // inputs, one, one, none, none)
