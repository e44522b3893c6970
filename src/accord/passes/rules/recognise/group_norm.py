"""GroupNormalization: channels in groups, each normalised with the positions (Wu and He, "Group Normalization", 2018).

Exporters write it as a Reshape to one channel a group, InstanceNormalization or its decomposed form (which
:mod:`.normalisation` has made one by then), a Reshape back, and scale and shift by channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.region import LARGEST, allows

__all__ = ["RecogniseGroupNorm"]

Floats = npt.NDArray[np.float64]
_NORMS = ("InstanceNormalization", "LayerNormalization", "GroupNormalization")


@dataclass(slots=True)
class _Walk:
    """What was met on the way back: scale and shift by channel, the nodes."""

    scale: Floats
    shift: Floats
    nodes: list[ir.Node]


class RecogniseGroupNorm(Rule):
    """Reshape to groups, InstanceNormalization, Reshape back, scale and shift → GroupNormalization."""

    name: ClassVar[str] = "recognise-group-norm"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Reshape", "Mul", "Add")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with GroupNormalization."""
        shape = context.tensor(node.outputs[0]).shape
        dtype = context.tensor(node.outputs[0]).dtype
        if shape is None or dtype is None or len(shape) < 2 or not isinstance(shape[1], int):
            return None
        channels = shape[1]
        if channels > LARGEST:
            return None
        walk = _Walk(np.ones(channels), np.zeros(channels), [])
        inner = self._back(node, walk, shape, context)
        if inner is None:
            return None
        whole = inner.op_type == "GroupNormalization"
        found = inner.inputs[0] if whole else self._grouped(inner, shape, context)
        if not isinstance(found, ir.Value):
            return found
        grouped = context.tensor(inner.inputs[0]).shape
        groups = int(context.attr(inner, "num_groups", 1)) if whole else grouped[1] if grouped is not None else 0
        if not isinstance(groups, int) or groups in (0, channels) or not allows("GroupNormalization", dtype, context):
            return None
        own = _own_affine(inner, groups, channels, context)
        if isinstance(own, Reason):
            return own
        for value in (n.outputs[0] for n in (*walk.nodes[1:], inner)):
            if context.only_use(value) is None:
                return Reason(f"'{value.name}' between is read by others as well")
        scale, shift = walk.scale * own[0], walk.shift + walk.scale * own[1]
        b = context.builder()
        y = b(
            "GroupNormalization",
            found,
            b.const(scale.astype(dtype.numpy())),
            b.const(shift.astype(dtype.numpy())),
            num_groups=groups,
            epsilon=float(context.attr(inner, "epsilon", 1e-5)),
        )
        return patch_from(b, node, [y], f"{groups} groups, {len(walk.nodes)} nodes behind {label(inner)}")

    def _grouped(self, inner: ir.Node, shape: D.Shape, context: RuleContext) -> ir.Value | Reason | None:
        """The value whose channels the Reshape before an InstanceNormalization puts into groups."""
        first = inner.inputs[0].producer() if inner.inputs[0] is not None else None
        grouped = context.tensor(inner.inputs[0]).shape
        if first is None or first.op_type != "Reshape" or first.domain != "" or grouped is None:
            return None
        x = first.inputs[0]
        flat = len(grouped) == 3 and context.attr(inner, "axis", -1) in (-1, 2)
        if inner.op_type == "LayerNormalization" and not flat:
            return None
        if x is None or context.tensor(x).shape != shape or not self._groups(grouped, shape):
            return Reason("the Reshape before does not split the channels into groups")
        return x

    @staticmethod
    def _groups(grouped: D.Shape, shape: D.Shape) -> bool:
        """True if ``grouped`` is ``(batch, groups, ...)`` of an image of ``shape``."""
        return (
            len(grouped) >= 3
            and grouped[0] == shape[0]
            and isinstance(grouped[1], int)
            and isinstance(shape[1], int)
            and grouped[1] > 0
            and shape[1] % grouped[1] == 0
            and D.product(grouped) == D.product(shape)
        )

    def _back(self, node: ir.Node, walk: _Walk, shape: D.Shape, context: RuleContext) -> ir.Node | None:
        """Walk back over scales, shifts and one Reshape to what is normalised."""
        current: ir.Node | None = node
        reshaped = False
        for _ in range(6):
            if current is None or current.domain != "" or current.graph is not node.graph:
                return None
            if current.op_type in _NORMS:
                return current if reshaped == (current.op_type != "GroupNormalization") else None
            walk.nodes.append(current)
            if current.op_type == "Reshape":
                if reshaped or context.tensor(current.outputs[0]).shape != shape:
                    return None
                reshaped = True
                value = current.inputs[0]
            elif current.op_type in ("Mul", "Add"):
                value = self._affine(current, walk, shape, context)
            else:
                return None
            current = None if value is None else value.producer()
        return None

    @staticmethod
    def _affine(node: ir.Node, walk: _Walk, shape: D.Shape, context: RuleContext) -> ir.Value | None:
        """Take a constant by channel of ``node`` into the scale or shift; returns the other input."""
        at = context.tensor(node.outputs[0]).shape
        for side in (0, 1):
            content = context.constant(node.inputs[1 - side])
            if content is None or at is None or context.tensor(node.inputs[side]).shape != at:
                continue
            by_channel = _by_channel(content.astype(np.float64), at, shape)
            if by_channel is None:
                return None
            if node.op_type == "Mul":
                walk.scale = walk.scale * by_channel
            else:
                walk.shift = walk.shift + walk.scale * by_channel
            return node.inputs[side]
        return None


def _own_affine(inner: ir.Node, groups: int, channels: int, context: RuleContext) -> tuple[Floats, Floats] | Reason:
    """Scale and shift of the operator that normalises, by channel."""
    out: list[Floats] = []
    for index, default in ((1, 1.0), (2, 0.0)):
        value = inner.inputs[index] if index < len(inner.inputs) else None
        content = np.full(1, default) if value is None else context.constant(value)
        if content is None or content.size == 0:
            return Reason(f"scale or shift of {label(inner)} is not constant, or empty")
        if inner.op_type == "LayerNormalization":
            if not bool((content == content.reshape(-1)[0]).all()):
                return Reason("scale or shift vary within a group")
            content = content.reshape(-1)[:1]
        flat = content.astype(np.float64).reshape(-1)
        out.append(np.repeat(flat, channels // groups) if flat.size == groups else np.broadcast_to(flat, channels))
    return out[0], out[1]


def _by_channel(content: Floats, at: D.Shape, shape: D.Shape) -> Floats | None:
    """A constant that broadcasts to ``at`` as one number for each channel of ``shape``, if it is that."""
    channels = shape[1]
    assert isinstance(channels, int)
    if content.size == 1:
        return np.full(channels, float(content.reshape(-1)[0]))
    sizes = [1] * (len(at) - content.ndim) + list(content.shape)
    if at == shape:
        by = sizes[1] == channels and all(d == 1 for i, d in enumerate(sizes) if i != 1)
        return content.reshape(-1) if by else None
    # (batch, groups, channels of a group, ...): the channels are two axes
    if len(at) < 3 or at[0] != shape[0] or any(d != 1 for i, d in enumerate(sizes) if i not in (1, 2)):
        return None
    if not isinstance(at[1], int):
        return None
    if isinstance(at[2], int) and at[1] * at[2] == channels:
        return np.ascontiguousarray(np.broadcast_to(content.reshape(sizes[1], sizes[2]), (at[1], at[2]))).reshape(-1)
    by_group = sizes[1] == at[1] and sizes[2] == 1 and channels % at[1] == 0
    return np.repeat(content.reshape(-1), channels // at[1]) if by_group else None
