"""Expansions: mixtures of experts.

Every expert computes every token, and the tokens' weights, zero for experts that were not chosen, pick the results.
That is the meaning in operators that ONNX has; it costs as many expert layers as there are experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.blocks import codes
from accord.ops.microsoft.common import Outputs, activate, cast, like_cast, reshape, size, wants
from accord.ops.microsoft.schemas import DOMAIN

__all__: list[str] = []

FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights (E, out, in) and bias (E, out) of all experts, in float32."""

    weight: ir.Value
    bias: ir.Value | None

    def apply(self, b: Builder, x: ir.Value) -> ir.Value:
        """(1 or E, tokens, in) to (E, tokens, out)."""
        y = b("MatMul", x, b("Transpose", self.weight, perm=(0, 2, 1)))
        return y if self.bias is None else b("Add", y, b("Unsqueeze", self.bias, b.ints(1)))


def _routing(b: Builder, n: Inference, logits: ir.Value, chosen_by: ir.Value | None) -> ir.Value:
    """Weight of each expert for each token, (tokens, E): softmax of the logits, kept for the ``k`` greatest.

    With ``chosen_by`` the logits only choose, and the weights are taken from it.
    """
    scores = cast(b, logits, FLOAT)
    weights = b("Softmax", scores, axis=-1) if chosen_by is None else cast(b, chosen_by, FLOAT)
    _, index = b.multi("TopK", 2, scores, b.ints(n.attr("k", 1)), axis=-1)
    kept = b("GatherElements", weights, index, axis=-1)
    if n.attr("normalize_routing_weights", 0):
        kept = b("Div", kept, b("ReduceSum", kept, b.ints(-1), keepdims=1))
    zeros = b("Expand", b.scalar(0.0, weights), b("Shape", weights))
    return b("ScatterElements", zeros, index, kept, axis=-1)


def _gated(b: Builder, n: Inference, gate: ir.Value, up: ir.Value) -> ir.Value:
    limit = n.attr("swiglu_limit")
    if limit is not None:
        high, low = b.scalar(limit, gate), b.scalar(-limit, gate)
        gate, up = b("Clip", gate, None, high), b("Clip", up, low, high)
    activated = b("Swish", gate, alpha=n.attr("activation_alpha", 1.0))
    beta = n.attr("activation_beta", 0.0)
    return b("Mul", activated, b("Add", up, b.scalar(beta, up)) if beta else up)


def _hidden(b: Builder, n: Inference, x: ir.Value, first: _Layer, third: _Layer | None) -> ir.Value | None:
    """Activation of the first layer, gated by the third or by half of the first."""
    kind = n.attr("activation_type", "relu")
    y = first.apply(b, x)
    if kind not in ("swiglu", "geglu"):
        activated = activate(b, y, kind)
        return activated if third is None or activated is None else b("Mul", activated, third.apply(b, x))
    fusion = n.attr("swiglu_fusion", 0)
    if fusion == 0:
        return None if third is None or kind == "geglu" else _gated(b, n, y, third.apply(b, x))
    if fusion == 1:
        pairs = b("Reshape", y, b("Concat", b("Shape", y, end=-1), b.ints(-1, 2), axis=0))
        gate, up = (b("Squeeze", v, b.ints(-1)) for v in b.multi("Split", 2, pairs, axis=-1, num_outputs=2))
    else:
        gate, up = b.multi("Split", 2, y, axis=-1, num_outputs=2)
    return _gated(b, n, gate, up) if kind == "swiglu" else b("Mul", b("Gelu", gate, approximate="tanh"), up)


def _mixture(
    b: Builder, n: Inference, layers: tuple[_Layer, _Layer, _Layer | None], chosen_by: ir.Value | None
) -> Outputs:
    if n.attr("use_sparse_mixer", 0) or n.attr("swiglu_limit_after_activation", 0):
        return None
    x, (first, second, third) = required(n, 0), layers
    tokens = reshape(b, cast(b, x, FLOAT), 1, -1, size(b, x, -1))
    hidden = _hidden(b, n, tokens, first, third)
    if hidden is None:
        return None
    weights = _routing(b, n, required(n, 1), chosen_by)
    results = second.apply(b, hidden)
    share = b("Unsqueeze", b("Transpose", weights, perm=(1, 0)), b.ints(-1))
    total = b("ReduceSum", b("Mul", results, share), b.ints(0), keepdims=0)
    return [like_cast(b, b("Reshape", total, b("Shape", x)), x)]


@expands("MoE", domain=DOMAIN)
def moe(b: Builder, n: Inference) -> Outputs:
    """Layers in float."""

    def layer(index: int) -> _Layer:
        bias = given(n, index + 1)
        return _Layer(cast(b, required(n, index), FLOAT), None if bias is None else cast(b, bias, FLOAT))

    return _mixture(b, n, (layer(2), layer(4), layer(6) if n.has(6) else None), None)


@expands("QMoE", domain=DOMAIN)
def q_moe(b: Builder, n: Inference) -> Outputs:
    """Layers in integers of few bits, a scale for each row or for each block of a row; not in 8-bit or 4-bit floats."""
    if n.attr("quant_type", "int") != "int" or any(n.has(i) for i in range(15, 21)):
        return None
    layers: list[_Layer | None] = []
    for i in range(3):
        index = 2 + 3 * i
        if not n.has(index):
            layers.append(None)
            continue
        bits = n.attr(f"fc{i + 1}_expert_weight_bits") or n.attr("expert_weight_bits", 4)
        weight = _dequantized(b, n, (index, index + 1, 11 + i), bits)
        if weight is None:
            return None
        bias = given(n, index + 2)
        layers.append(_Layer(weight, None if bias is None else cast(b, bias, FLOAT)))
    first, second, third = layers
    if first is None or second is None:
        return None
    return _mixture(b, n, (first, second, third), given(n, 14))


def _dequantized(b: Builder, n: Inference, at: tuple[int, int, int], bits: int) -> ir.Value | None:
    """(E, out, in) in float32 from packed rows, scales and zero points, which are the inputs ``at``."""
    packed, scales, zeros = required(n, at[0]), given(n, at[1]), given(n, at[2])
    found = codes(b, packed, bits)
    if found is None or scales is None or n.tensor(at[1]).rank is None:
        return None
    block = n.attr("block_size", 0)
    values = cast(b, found, FLOAT)
    scale = cast(b, scales, FLOAT)
    if n.tensor(at[1]).rank == 2:
        scale, block = b("Unsqueeze", scale, b.ints(2)), 0
    zero: ir.Value = b.const(np.array(1 << (bits - 1), np.float32))
    if zeros is not None:
        # A row's zero points are packed like its weights; without blocks it has one.
        rows = b("Unsqueeze", zeros, b.ints(2)) if n.tensor(at[2]).rank == 2 and not block and bits == 8 else zeros
        unpacked = codes(b, rows, bits)
        if unpacked is None:
            return None
        zero = cast(b, b("Slice", unpacked, b.ints(0), size(b, scale, -1), b.ints(-1)), FLOAT)
        if block:
            zero = b("Unsqueeze", zero, b.ints(3))
    if not block:
        return b("Mul", b("Sub", values, zero), scale)
    shape = b("Shape", values)
    grouped = b("Reshape", values, b("Concat", b("Shape", values, end=2), b.ints(-1, block), axis=0))
    return b("Reshape", b("Mul", b("Sub", grouped, zero), b("Unsqueeze", scale, b.ints(3))), shape)


@expands("MoEGroupRouter", domain=DOMAIN)
def moe_group_router(b: Builder, n: Inference) -> Outputs:
    """Experts in groups: the best groups are kept, and in them the best experts.

    DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.1.2.
    """
    logits, bias, projection = required(n, 0), required(n, 1), given(n, 2)
    wide = cast(b, logits, FLOAT)
    if projection is not None:
        wide = b("MatMul", wide, b("Transpose", cast(b, projection, FLOAT), perm=(1, 0)))
    experts = size(b, bias, 0)
    scores = b("Sigmoid", b("Reshape", wide, b("Concat", b.ints(-1), experts, axis=0)))
    biased = b("Add", scores, bias)
    if wants(n, 1):
        return [None, biased, scores] if not wants(n, 0) else None
    groups, per_group = n.attr("n_group", 1), n.attr("group_topk", 2)
    low = b.scalar(-np.inf, biased)
    eligible = biased
    if groups > 1:
        members = b("Div", experts, b.ints(groups))
        grouped = reshape(b, biased, -1, groups, members)
        best, _ = b.multi("TopK", 2, grouped, b("Min", b.ints(per_group), members), axis=-1)
        strength = b("ReduceSum", best, b.ints(-1), keepdims=0)
        kept = _top_mask(b, strength, n.attr("topk_group", 1))
        eligible = b("Reshape", b("Where", b("Unsqueeze", kept, b.ints(-1)), grouped, low), b("Shape", biased))
    chosen = _top_mask(b, eligible, n.attr("top_k"))
    logs = b("Log", b("Max", scores, b.scalar(1e-20, scores)))
    sentinel = b.scalar(n.attr("router_sentinel", -10000.0), logs)
    return [like_cast(b, b("Where", chosen, logs, sentinel), logits)]


def _top_mask(b: Builder, x: ir.Value, count: int) -> ir.Value:
    """True at the ``count`` greatest elements of each row."""
    _, index = b.multi("TopK", 2, x, b.ints(count), axis=-1)
    false = b("Expand", b.const(np.array(False)), b("Shape", x))
    true = b("Expand", b.const(np.array(True)), b("Shape", index))
    return b("ScatterElements", false, index, true, axis=-1)
