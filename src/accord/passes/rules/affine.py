"""Scale and shift after a contraction, folded into its weights.

BatchNormalization in inference is ``y = (x - mean) * scale / sqrt(var + eps) + bias`` per channel (Ioffe and Szegedy
2015, section 3.1): a scale and a shift. Both go into the weights and the bias of the Conv, ConvTranspose, Gemm or
MatMul before it. All of it is computed in float64 and rounded once.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["BatchNormToAffine", "FoldAffineIntoContraction", "FoldBatchNorm", "batch_norm_affine"]

_CONV = ("Conv", "ConvTranspose")


def _scaled_weight(
    node: ir.Node, w: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Weights of ``node`` with output channel c multiplied by ``scale[c]``; float64."""
    w64: npt.NDArray[np.float64] = w.astype(np.float64)
    if node.op_type == "Conv":
        return np.multiply(w64, scale.reshape(-1, *[1] * (w.ndim - 1)))
    if node.op_type == "ConvTranspose":  # [C_in, C_out / group, ...]
        group = int(RuleContext.attr(node, "group", 1))
        per_group = scale.reshape(group, 1, -1)
        blocks = w64.reshape(group, w.shape[0] // group, *w.shape[1:])
        return np.multiply(blocks, per_group.reshape(group, 1, -1, *[1] * (w.ndim - 2))).reshape(w.shape)
    if node.op_type == "Gemm" and int(RuleContext.attr(node, "transB", 0)):
        return np.multiply(w64, scale.reshape(-1, 1))
    return np.multiply(w64, scale)  # Gemm and MatMul: [K, N]


def _out_channels(node: ir.Node, w: npt.NDArray[np.float64]) -> int:
    if node.op_type == "Conv":
        return int(w.shape[0])
    if node.op_type == "ConvTranspose":
        return int(w.shape[1]) * int(RuleContext.attr(node, "group", 1))
    if node.op_type == "Gemm" and int(RuleContext.attr(node, "transB", 0)):
        return int(w.shape[0])
    return int(w.shape[-1])


def _fold(
    node: ir.Node,
    contraction: ir.Node,
    context: RuleContext,
    scale: npt.NDArray[np.float64] | None,
    shift: npt.NDArray[np.float64] | None,
    note: str,
) -> Patch | Reason:
    """The patch for ``contraction(x) * scale + shift`` (per output channel) in place of ``node``."""
    w = context.constant(contraction.inputs[1])
    if w is None:
        return Reason(f"the weights of {label(contraction)} are not constant")
    channels = _out_channels(contraction, w)
    has_bias = len(contraction.inputs) > 2 and contraction.inputs[2] is not None
    bias = context.constant(contraction.inputs[2]) if has_bias else None
    if has_bias and bias is None:
        return Reason(f"the bias of {label(contraction)} is not constant")
    alpha = beta = 1.0
    if contraction.op_type == "Gemm":
        alpha, beta = (float(context.attr(contraction, k, 1.0)) for k in ("alpha", "beta"))
    b64 = np.zeros(channels) if bias is None else bias.astype(np.float64).reshape(-1) * beta
    if b64.size not in (1, channels) or (bias is not None and bias.ndim > 1 and bias.shape[0] != 1):
        return Reason(f"the bias of {label(contraction)} is not one value a channel")
    b64 = np.broadcast_to(b64, (channels,))
    w64 = w.astype(np.float64) * alpha
    if scale is not None:
        w64 = _scaled_weight(contraction, w64, np.broadcast_to(scale, (channels,)))
        b64 = b64 * scale
    if shift is not None:
        b64 = b64 + shift
    new_w, new_b = w64.astype(w.dtype), b64.astype(w.dtype)
    if not (np.isfinite(new_w).all() and np.isfinite(new_b).all()):
        return Reason("the folded weights would not be finite")
    b = context.builder()
    x = contraction.inputs[0]
    attrs: dict[str, Any] = {k: a for k, a in contraction.attributes.items() if k not in ("alpha", "beta")}
    base = contraction.inputs[1]
    new_weight = b.const(new_w, f"{base.name if base is not None else label(contraction)}.folded")
    new_bias = b.const(new_b, f"{label(contraction)}.bias")
    if contraction.op_type == "MatMul":
        y = b("MatMul", x, new_weight)
        if shift is not None:
            y = b("Add", y, new_bias)
    else:
        y = b.multi(contraction.op_type, 1, x, new_weight, new_bias, **attrs)[0]
    return patch_from(b, node, [y], note)


def _contraction_before(node: ir.Node, value: ir.Value | None, context: RuleContext) -> ir.Node | Reason | None:
    producer = value.producer() if value is not None else None
    if producer is None or producer.domain != "" or producer.op_type not in (*_CONV, "Gemm", "MatMul"):
        return None
    if producer.graph is not node.graph:
        return Reason(f"{label(producer)} is outside this graph")
    if value is None or context.only_use(value) is not node:
        return Reason(f"the output of {label(producer)} has other uses")
    return producer


class FoldBatchNorm(Rule):
    """BatchNormalization after Conv or ConvTranspose → their weights."""

    name: ClassVar[str] = "fold-batch-norm"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("BatchNormalization")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with one contraction that has new weights and bias."""
        affine = batch_norm_affine(node, context)
        if isinstance(affine, Reason):
            return affine
        producer = _contraction_before(node, node.inputs[0], context)
        if producer is None:
            return Reason("no Conv, ConvTranspose, Gemm or MatMul comes before it")
        if isinstance(producer, Reason):
            return producer
        if producer.op_type == "MatMul" and context.tensor(node.inputs[0]).rank != 2:
            return Reason("channels of the MatMul are not axis 1")
        return _fold(node, producer, context, *affine, note=f"into {label(producer)}")


def batch_norm_affine(
    node: ir.Node, context: RuleContext
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | Reason:
    """Scale and shift of each channel, float64 [C], of a BatchNormalization; or why it has none."""
    if int(context.attr(node, "training_mode", 0)):
        return Reason("training_mode is set: the statistics are of the batch")
    if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        return Reason("its running statistics are used")
    parts = []
    for i, part in enumerate(("scale", "B", "input_mean", "input_var"), start=1):
        v = node.inputs[i]
        content = context.constant(v)
        if content is None:
            name = v.name if v is not None else "?"
            where = "a graph input" if v is not None and v.is_graph_input() else "computed at run time"
            return Reason(f"{part} '{name}' is {where}")
        parts.append(content.astype(np.float64))
    gamma, beta, mean, var = parts
    scale = gamma / np.sqrt(var + float(np.float32(context.attr(node, "epsilon", 1e-5))))
    return scale, beta - mean * scale


class BatchNormToAffine(Rule):
    """A BatchNormalization that no contraction could take → Mul and Add, which fuse with their neighbours."""

    name: ClassVar[str] = "batch-norm-to-affine"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("BatchNormalization")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with Mul and Add by per-channel constants."""
        affine = batch_norm_affine(node, context)
        if isinstance(affine, Reason):
            return affine
        rank = context.tensor(node.inputs[0]).rank
        dtype = context.tensor(node.inputs[0]).dtype
        if rank is None or dtype is None or rank < 2:
            return Reason("the rank is not known")
        per_channel = (-1, *[1] * (rank - 2))
        b = context.builder()
        scale, shift = (a.astype(dtype.numpy()).reshape(per_channel) for a in affine)
        y = b("Add", b("Mul", node.inputs[0], b.const(scale)), b.const(shift))
        return patch_from(b, node, [y], "scale and shift")


class FoldAffineIntoContraction(Rule):
    """Mul, Div, Add or Sub by a per-channel constant after a contraction → its weights and bias."""

    name: ClassVar[str] = "fold-affine-into-contraction"
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Mul", "Div", "Add", "Sub")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with one contraction that has new weights or bias."""
        sides = (0, 1) if node.op_type in ("Mul", "Add") else (0,)
        for side in sides:
            value, other = node.inputs[side], node.inputs[1 - side]
            producer = _contraction_before(node, value, context)
            if producer is None:
                continue
            if isinstance(producer, Reason):
                return producer
            if node.op_type in ("Add", "Sub") and producer.op_type == "MatMul":
                return None  # MatMul has no bias; the Add fuses as an epilogue
            content = context.constant(other)
            if content is None:
                return Reason(f"the other operand '{other.name if other is not None else '?'}' is not constant")
            if context.tensor(value).shape != context.tensor(node.outputs[0]).shape:
                return Reason("the constant also broadcasts the result")
            vector = _per_channel(content, producer, context.tensor(value).rank, context)
            if vector is None:
                return Reason("the constant is not one value a channel")
            if content.dtype.kind != "f":
                return Reason("only floating-point weights are folded")
            if node.op_type == "Div" and not vector.all():
                return Reason("division by zero")
            scale = vector if node.op_type == "Mul" else 1.0 / vector if node.op_type == "Div" else None
            shift = vector if node.op_type == "Add" else -vector if node.op_type == "Sub" else None
            return _fold(node, producer, context, scale, shift, f"into {label(producer)}")
        return None


def _per_channel(
    content: npt.NDArray[np.float64], producer: ir.Node, rank: int | None, context: RuleContext
) -> npt.NDArray[np.float64] | None:
    """The constant as one float64 value per output channel of ``producer`` (or a single one), else None."""
    if content.size == 1:
        return content.reshape(-1).astype(np.float64)
    if rank is None:
        return None
    axis = 1 if producer.op_type in _CONV else rank - 1
    shape = [1] * (rank - content.ndim) + list(content.shape)
    if any(d != 1 for i, d in enumerate(shape) if i != axis):
        return None
    w = context.constant(producer.inputs[1])
    if w is None or shape[axis] != _out_channels(producer, w):
        return None
    return content.reshape(-1).astype(np.float64)
