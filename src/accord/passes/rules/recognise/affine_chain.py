"""Scales and shifts by constants: in a row they are one of each; behind a Transpose they belong before it.

``(x - mean) * scale / deviation + bias`` as four nodes is ``x * a + b``; a and b are computed in float64 and rounded
once. Where x is near the mean the sum cancels, which costs digits; as for any batch norm that is accepted behind a
contraction, and only there. Products alone never cancel. Models that came from channels-last frameworks have a
Transpose between a convolution and its batch norm; moved before it, scale and shift fold into the weights.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["MergeAffine"]

Floats = npt.NDArray[np.float64]
_OPS = ("Mul", "Div", "Add", "Sub", "Neg")
_CONTRACTIONS = frozenset({"Conv", "ConvTranspose"})
#: A shift that is so much larger than what remains of all was put there to round.
_CANCELS = 1e3
#: So much larger than at the end may a product be on the way.
_RANGE = 1e6
#: Constants may not grow beyond this many elements by being broadcast against each other.
_LARGEST = 1 << 16


class MergeAffine(Rule):
    """Three and more of Mul, Div, Add, Sub and Neg with constants, or two that one node can replace → Mul and Add."""

    name: ClassVar[str] = "merge-affine"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops(*_OPS)

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the shorter chain."""
        reader = context.only_use(node.outputs[0])
        if reader is not None and self.constant_side(reader, context) is not None:
            return None  # not the end of the chain
        dtype = context.tensor(node.outputs[0]).dtype
        scale: Floats = np.ones(())
        shift: Floats = np.zeros(())
        chain: list[ir.Node] = []
        largest = 0.0
        scales: list[float] = []
        x: ir.Value | None = node.outputs[0]
        while x is not None:
            step = x.producer()
            if step is None or step.graph is not node.graph or (chain and context.only_use(x) is None):
                break
            side = self.constant_side(step, context)
            if side is None:
                break
            with np.errstate(all="ignore"):
                scale, shift = self._through(step, side, scale, shift, context)
            if scale.size > _LARGEST or shift.size > _LARGEST:
                break
            largest = max(largest, _magnitude(shift))
            scales.append(_magnitude(scale))
            chain.append(step)
            x = step.inputs[side]
        scaled, shifted = bool((scale != 1).any()), bool((shift != 0).any())
        if x is None or dtype is None or len(chain) <= max(scaled + shifted, 1):
            return None
        if shifted and not _from_contraction(x):
            return None
        if _leaves_range(scales):
            return Reason("the products leave the range of numbers on the way")
        if largest > _CANCELS * (_magnitude(shift) + _magnitude(scale)):
            return Reason("the shifts cancel, which rounds on purpose")
        with np.errstate(over="ignore"):
            a, c = (np.asarray(k, dtype=dtype.numpy()) for k in (scale, shift))
        if not (np.isfinite(a.astype(np.float64)).all() and np.isfinite(c.astype(np.float64)).all()):
            return Reason("the merged constants would not be finite")
        if context.tensor(x).shape != context.tensor(node.outputs[0]).shape:
            return Reason("a constant broadcasts the value")
        b = context.builder()
        y = b("Mul", x, b.const(a)) if scaled else x
        y = b("Add", y, b.const(c)) if shifted else y
        if y is x:
            return Patch({node.outputs[0]: x}, note=f"{len(chain)} nodes that cancel")
        return patch_from(b, node, [y], f"{len(chain)} nodes from {label(chain[-1])}")

    @staticmethod
    def constant_side(node: ir.Node, context: RuleContext) -> int | None:
        """The index of the input that is not constant, if ``node`` is one step of a chain of floats."""
        if node.domain != "" or node.op_type not in _OPS:
            return None
        dtype = context.tensor(node.outputs[0]).dtype
        if dtype is None or not dtype.is_floating_point():
            return None
        if node.op_type == "Neg":
            return 0
        for side in (1, 0):
            if side == 1 and node.op_type == "Div":
                continue  # a constant over x is no scale
            if context.tensor(node.inputs[1 - side]).is_const and not context.tensor(node.inputs[side]).is_const:
                return side
        return None

    @staticmethod
    def _through(node: ir.Node, side: int, scale: Floats, shift: Floats, context: RuleContext) -> tuple[Floats, Floats]:
        """Scale and shift of the step's input, from those of its output."""
        if node.op_type == "Neg":
            return -scale, shift
        content = context.constant(node.inputs[1 - side])
        assert content is not None
        c = content.astype(np.float64)
        if node.op_type == "Mul":
            return scale * c, shift
        if node.op_type == "Div":
            return scale / c, shift
        if node.op_type == "Add":
            return scale, shift + scale * c
        return (scale, shift - scale * c) if side == 0 else (-scale, shift + scale * c)


def _leaves_range(scales: list[float]) -> bool:
    """True if a product on the way from the input is much larger than the last one: it may overflow where that cannot.

    Args:
        scales: Scale of the whole chain behind each step, the last step first.
    """
    whole = scales[-1]
    on_the_way = [whole / s if s else np.inf for s in scales[:-1]]
    return any(o > _RANGE * max(whole, 1.0) for o in on_the_way)


def _magnitude(a: Floats) -> float:
    """The largest magnitude; 0 of nothing."""
    return float(np.abs(a).max(initial=0.0))


def _from_contraction(x: ir.Value) -> bool:
    """True if ``x`` is the result of a contraction, perhaps transposed."""
    node = x.producer()
    if node is not None and node.op_type == "Transpose" and node.domain == "" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.domain == "" and node.op_type in _CONTRACTIONS | {"Gemm", "MatMul"}
