"""Expansions: normalisations, with the sums, embeddings and gates around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, cast, like_cast, reshape, size, wants
from accord.ops.microsoft.schemas import DOMAIN

__all__ = ["mask_lengths", "rms_normalize", "simplified"]

FLOAT = ir.DataType.FLOAT


def _sum(b: Builder, *values: ir.Value | None) -> ir.Value:
    present = [v for v in values if v is not None]
    total = present[0]
    for v in present[1:]:
        total = b("Add", total, v)
    return total


@expands("LayerNormalization", before=17)
def layer_normalization(b: Builder, n: Inference) -> Outputs:
    """ONNX Runtime writes this name into the ONNX domain before the domain had it.

    The scale and the bias may be of another float type than the data; the statistics are float32.
    """
    x = required(n, 0)
    bias = given(n, 2)
    outputs = b.multi(
        "LayerNormalization",
        max(1, len(n.node.outputs)),
        x,
        like_cast(b, required(n, 1), x),
        None if bias is None else like_cast(b, bias, x),
        axis=n.attr("axis", -1),
        epsilon=n.attr("epsilon", 1e-5),
    )
    return list(outputs)


def _inverse_root(b: Builder, x: ir.Value, axes: tuple[int, ...], epsilon: float) -> ir.Value:
    """``1 / sqrt(mean(x * x) + epsilon)`` over ``axes``, which stay as size 1; in float32."""
    wide = x if b.fact(x).dtype == ir.DataType.DOUBLE else cast(b, x, FLOAT)
    mean = b("ReduceMean", b("Mul", wide, wide), b.ints(*axes), keepdims=1)
    return b("Reciprocal", b("Sqrt", b("Add", mean, b.scalar(epsilon, mean))))


def rms_normalize(b: Builder, x: ir.Value, scale: ir.Value, epsilon: float, axis: int = -1) -> ir.Value:
    """``RMSNormalization``, with the scale in any float type."""
    return b("RMSNormalization", x, like_cast(b, scale, x), axis=axis, epsilon=epsilon)


@expands("SimplifiedLayerNormalization")
@expands("SimplifiedLayerNormalization", domain=DOMAIN)
def simplified(b: Builder, n: Inference) -> Outputs:
    """RMS normalisation; its second output is the reciprocal of the root mean square."""
    x, axis, epsilon = required(n, 0), n.attr("axis", -1), n.attr("epsilon", 1e-5)
    y = like_cast(b, rms_normalize(b, x, required(n, 1), epsilon, axis), required(n, 1))
    if not wants(n, 1):
        return [y]
    rank = n.tensor(0).rank
    if rank is None:
        return None
    return [y, _inverse_root(b, x, tuple(range(n.axis(axis, rank), rank)), epsilon)]


@expands("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(b: Builder, n: Inference) -> Outputs:
    """The skip input broadcasts over the batch."""
    total = _sum(b, required(n, 0), required(n, 1), given(n, 4))
    statistics = 3 if wants(n, 1) or wants(n, 2) else 1
    outputs = b.multi(
        "LayerNormalization",
        statistics,
        total,
        required(n, 2),
        given(n, 3),
        axis=-1,
        epsilon=n.attr("epsilon", 1e-12),
    )
    return [*outputs, *[None] * (3 - statistics), total]


@expands("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_simplified_layer_normalization(b: Builder, n: Inference) -> Outputs:
    """As :func:`skip_layer_normalization`, without a mean."""
    total = _sum(b, required(n, 0), required(n, 1), given(n, 3))
    epsilon = n.attr("epsilon", 1e-12)
    y = rms_normalize(b, total, required(n, 2), epsilon)
    inverse = _inverse_root(b, total, (-1,), epsilon) if wants(n, 2) else None
    if wants(n, 1):
        return None
    return [y, None, inverse, total]


# Embeddings -------------------------------------------------------------------------------------------------------


def mask_lengths(b: Builder, mask: ir.Value | None, ids: ir.Value) -> ir.Value:
    """Number of ones in each row of the mask, as int32; zeros without a mask."""
    if mask is None:
        return b("Expand", b.const(np.array(0, np.int32)), size(b, ids, 0))
    ones = b("Cast", b("Equal", mask, b.scalar(1, mask)), to=int(ir.DataType.INT32))
    return b("ReduceSum", ones, b.ints(1), keepdims=0)


@expands("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_normalization(b: Builder, n: Inference) -> Outputs:
    """Positions count from 0 unless they are given."""
    ids, table = required(n, 0), required(n, 3)
    positions = given(n, 8)
    if positions is not None:
        position = b("Gather", table, positions, axis=0)
    else:
        position = b("Slice", table, b.ints(0), size(b, ids, 1), b.ints(0))
    segments = given(n, 1)
    segment = None if segments is None else b("Gather", required(n, 4), segments, axis=0)
    total = _sum(b, b("Gather", required(n, 2), ids, axis=0), position, segment)
    y = b("LayerNormalization", total, required(n, 5), required(n, 6), axis=-1, epsilon=n.attr("epsilon", 1e-12))
    lengths = mask_lengths(b, given(n, 7), ids) if wants(n, 1) else None
    return [y, lengths, total]


# Groups, branches, gates ------------------------------------------------------------------------------------------


def _group_norm(b: Builder, n: Inference, x: ir.Value) -> list[ir.Value] | None:
    rank = b.fact(x).rank or n.tensor(0).rank
    if rank is None:
        return None
    last = bool(n.attr("channels_last", 1))
    wide = cast(b, x, FLOAT)
    if last:
        wide = b("Transpose", wide, perm=(0, rank - 1, *range(1, rank - 1)))
    y = b(
        "GroupNormalization",
        wide,
        cast(b, required(n, 1), FLOAT),
        cast(b, required(n, 2), FLOAT),
        num_groups=n.attr("groups"),
        epsilon=n.attr("epsilon", 1e-5),
    )
    if n.attr("activation", 0) == 1:
        y = b("Swish", y)
    if last:
        y = b("Transpose", y, perm=(0, *range(2, rank), 1))
    return [like_cast(b, y, x)]


@expands("GroupNorm", domain=DOMAIN)
def group_norm(b: Builder, n: Inference) -> Outputs:
    """Statistics, scale and activation in float32."""
    return _group_norm(b, n, required(n, 0))


@expands("SkipGroupNorm", domain=DOMAIN)
def skip_group_norm(b: Builder, n: Inference) -> Outputs:
    """The skip input may be (N, C) or (N, 1, 1, C): one vector for each image."""
    x, skip = required(n, 0), required(n, 3)
    if n.tensor(3).rank == 2:
        skip = b("Unsqueeze", skip, b.ints(1, 2))
    total = _sum(b, x, skip, given(n, 4))
    y = _group_norm(b, n, total)
    return None if y is None else [*y, total]


def _branches(b: Builder, n: Inference, x: ir.Value, count: int) -> ir.Value:
    """(..., C * H) as (..., C, H); ``x`` itself if it is that already."""
    if not count:
        return x
    return b("Reshape", x, b("Concat", b("Shape", x, end=-1), b.ints(count, -1), axis=0))


@expands("BranchwiseRMSNorm", domain=DOMAIN)
def branchwise_rms_norm(b: Builder, n: Inference) -> Outputs:
    """Arithmetic in float32, rounded once; the scale may be (H), (C, H) or (C * H)."""
    x, scale = required(n, 0), given(n, 1)
    count = n.attr("num_branches", 0)
    branches = cast(b, _branches(b, n, x, count), FLOAT)
    y = b("Mul", branches, _inverse_root(b, branches, (-1,), n.attr("epsilon", 1e-5)))
    if scale is not None:
        scale = cast(b, scale, FLOAT)
        if n.tensor(1).rank == 1:
            # A vector is either one row for all branches or the rows one after another: both are (k, H).
            scale = reshape(b, scale, -1, size(b, branches, -1))
        y = b("Mul", y, scale)
    return [like_cast(b, b("Reshape", y, b("Shape", x)), x)]


@expands("GatedRMSNorm", domain=DOMAIN)
def gated_rms_norm(b: Builder, n: Inference) -> Outputs:
    """Normalises runs of as many elements as the scale has; arithmetic in float32."""
    x, scale, gate = required(n, 0), required(n, 1), required(n, 2)
    activation = n.attr("activation", "silu").lower()
    rows = reshape(b, cast(b, x, FLOAT), -1, size(b, scale, 0))
    y = rms_normalize(b, rows, cast(b, scale, FLOAT), n.attr("epsilon", 1e-5))
    wide = cast(b, gate, FLOAT)
    gated = b("Sigmoid", wide) if activation == "sigmoid" else b("Swish", wide)
    product = b("Mul", b("Reshape", y, b("Shape", x)), gated)
    return [like_cast(b, product, x)]


@expands("GatedAdd", domain=DOMAIN)
def gated_add(b: Builder, n: Inference) -> Outputs:
    """With a weight the gate is a projection through a sigmoid, rounded at each step; GPU kernels do that only."""
    x, y, gate, weight = required(n, 0), required(n, 1), required(n, 2), given(n, 3)
    if weight is not None:
        projected = like_cast(b, b("MatMul", cast(b, gate, FLOAT), cast(b, weight, FLOAT)), x)
        gate = like_cast(b, b("Sigmoid", cast(b, projected, FLOAT)), x)
    return [b("Add", x, b("Mul", y, gate))]


@expands("EngramGate", domain=DOMAIN)
def engram_gate(b: Builder, n: Inference) -> Outputs:
    """A signed root of the similarity, through a sigmoid; arithmetic in float32."""
    epsilon = n.attr("epsilon", 1e-5)
    key, query, value = (cast(b, required(n, i), FLOAT) for i in range(3))

    def normalized(x: ir.Value, scale: ir.Value) -> ir.Value:
        return b("Mul", b("Mul", x, _inverse_root(b, x, (-1,), epsilon)), cast(b, scale, FLOAT))

    product = b("Mul", normalized(key, required(n, 3)), normalized(query, required(n, 4)))
    width = b("Sqrt", b("Cast", size(b, key, -1), to=int(FLOAT)))
    dot = b("Div", b("ReduceSum", product, b.ints(-1), keepdims=1), width)
    root = b("Sqrt", b("Max", b("Abs", dot), b.scalar(1e-6, dot)))
    gate = b("Sigmoid", b("Mul", b("Sign", dot), root))
    gated = b("Mul", gate, b("Unsqueeze", value, b.ints(2)))
    outputs: list[ir.Value | None] = [like_cast(b, gated, required(n, 0))]
    scale = given(n, 5)
    if wants(n, 1) and scale is not None:
        outputs.append(like_cast(b, normalized(gated, scale), required(n, 0)))
    return outputs


# Hyper-connections ------------------------------------------------------------------------------------------------


def _mixing(b: Builder, mix: ir.Value, rank: int | None, branches_rank: int | None, count: int) -> ir.Value | None:
    """Weights of branches as (..., C, 1) or (..., C, H), from (..., C), (..., C, 1), (..., C, H) or (..., C * H)."""
    wide = cast(b, mix, FLOAT)
    if rank is None or branches_rank is None:
        return None
    if rank == branches_rank:
        return wide
    if not count:
        return b("Unsqueeze", wide, b.ints(-1))
    # (..., C) and (..., C * H) alike: as many columns as there are for each of the C branches.
    return b("Reshape", wide, b("Concat", b("Shape", wide, end=-1), b.ints(count, -1), axis=0))


def _ranked(n: Inference, index: int, count: int) -> int | None:
    rank = n.tensor(index).rank
    return rank if rank is None or not count else rank + 1


@expands("HyperConnectionPreMix", domain=DOMAIN)
def hyper_connection_pre_mix(b: Builder, n: Inference) -> Outputs:
    """A weighted sum over branches."""
    count = n.attr("num_branches", 0)
    branches = cast(b, _branches(b, n, required(n, 0), count), FLOAT)
    rank = _ranked(n, 0, count)
    known = n.tensor(0).shape
    if not count and known is not None and isinstance(known[-2], int):
        count = known[-2]
    mix = _mixing(b, required(n, 1), n.tensor(1).rank, rank, count)
    if mix is None:
        return None
    total = b("ReduceSum", b("Mul", branches, mix), b.ints(-2), keepdims=0)
    scale: Any = n.attr("reduction_scale", 1.0)
    if scale != 1.0:
        total = b("Mul", total, b.scalar(scale, total))
    return [like_cast(b, total, required(n, 0))]


@expands("HyperConnectionPostMix", domain=DOMAIN)
def hyper_connection_post_mix(b: Builder, n: Inference) -> Outputs:
    """Streams mixed by a matrix (transposed), plus the block's output to each."""
    x, count = required(n, 0), n.attr("num_branches", 0)
    branches = cast(b, _branches(b, n, x, count), FLOAT)
    rank = _ranked(n, 0, count)
    if rank is None:
        return None
    stream_mix = given(n, 3)
    if stream_mix is not None:
        mixer = cast(b, stream_mix, FLOAT)
        branches = b("MatMul", b("Transpose", mixer, perm=(*range(rank - 2), rank - 1, rank - 2)), branches)
    post = cast(b, required(n, 2), FLOAT)
    if n.tensor(2).rank == rank - 1:
        post = b("Unsqueeze", post, b.ints(-1))
    injected = b("Mul", post, b("Unsqueeze", cast(b, required(n, 1), FLOAT), b.ints(-2)))
    total = b("Add", branches, injected)
    return [like_cast(b, b("Reshape", total, b("Shape", x)), x)]


@expands("HyperConnectionLowRankMix", domain=DOMAIN)
def hyper_connection_low_rank_mix(b: Builder, n: Inference) -> Outputs:
    """Every step is rounded to T, as the separate operators would do."""
    streams, count = required(n, 0), n.attr("num_branches")
    shape = b("Shape", streams)
    block, gate = given(n, 5), given(n, 6)
    if block is not None and gate is not None:
        injected = b("Mul", b("Unsqueeze", gate, b.ints(-1)), b("Unsqueeze", block, b.ints(-2)))
        streams = b("Reshape", b("Add", _branches(b, n, streams, count), injected), shape)
    branches = _branches(b, n, streams, count)
    wide = cast(b, branches, FLOAT)
    scale = cast(b, reshape(b, required(n, 1), count, -1), FLOAT)
    normed = b("Mul", b("Mul", wide, _inverse_root(b, wide, (-1,), n.attr("epsilon", 1e-5))), scale)
    normed = like_cast(b, normed, streams)
    flat = b("Reshape", normed, shape)
    down = b("MatMul", flat, required(n, 2))
    hidden = b("Mul", down, b.scalar(n.attr("silu_alpha", 1.0), down))
    hidden = b("Mul", hidden, b("Sigmoid", hidden))
    gates = b("Reshape", b("Sigmoid", b("MatMul", hidden, required(n, 3))), b("Shape", branches))
    product = b("Mul", cast(b, normed, FLOAT), cast(b, gates, FLOAT))
    reduced = b("ReduceSum", product, b.ints(-2), keepdims=0)
    reduced = b("Mul", reduced, b.scalar(n.attr("reduction_scale", 1.0), reduced))
    inject = b("MatMul", flat, required(n, 4))
    inject = b("Sigmoid", b("Div", inject, b.scalar(n.attr("gate_div", 1.0), inject)))
    post = b("Mul", inject, b.scalar(n.attr("gate_mul", 1.0), inject))
    return [like_cast(b, reduced, streams), post, streams]


@expands("RouterGateUpProj", domain=DOMAIN)
def router_gate_up_proj(b: Builder, n: Inference) -> Outputs:
    """One projection, split into router logits, gate and up."""
    y = b("MatMul", required(n, 0), required(n, 1))
    router_size = n.attr("router_size")
    router = b("Slice", y, b.ints(0), b.ints(router_size), b.ints(-1))
    rest = b("Slice", y, b.ints(router_size), b.ints(np.iinfo(np.int64).max), b.ints(-1))
    if n.attr("activation", "swiglu") != "swiglu":
        return None
    gate, up = (cast(b, v, FLOAT) for v in b.multi("Split", 2, rest, axis=-1, num_outputs=2))
    limit = n.attr("limit", 0.0)
    if limit > 0:
        high, low = b.scalar(limit, gate), b.scalar(-limit, gate)
        gate, up = b("Clip", gate, None, high), b("Clip", up, low, high)
    activated = b("Swish", gate, alpha=n.attr("activation_alpha", 1.0))
    shifted = b("Add", up, b.scalar(n.attr("activation_beta", 0.0), up))
    return [router, like_cast(b, b("Mul", activated, shifted), y)]
