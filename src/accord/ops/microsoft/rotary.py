"""Expansions: rotary embedding and biases by relative position."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, flat, like_cast, reshape, size
from accord.ops.microsoft.schemas import DOMAIN

__all__ = ["partial_width", "rotate", "sequence_positions"]

INT64 = ir.DataType.INT64


def partial_width(b: Builder, x: ir.Value, cache: ir.Value, heads: int) -> int | None:
    """How many features of a head the caches rotate, or 0 for all; None where that is not known."""
    x_shape, cache_shape = b.shape(x), b.shape(cache)
    if x_shape is None or cache_shape is None:
        return None
    width, half = x_shape[-1], cache_shape[-1]
    head = width if len(x_shape) == 4 else _divided(width, heads)
    if head == half * 2:
        return 0
    return half * 2 if isinstance(half, int) else None


def _divided(width: object, heads: int) -> int | None:
    return width // heads if isinstance(width, int) and heads else None


def rotate(
    b: Builder,
    x: ir.Value,
    cos: ir.Value,
    sin: ir.Value,
    positions: ir.Value | None,
    *,
    heads: int = 0,
    width: int = 0,
    interleaved: bool = False,
) -> ir.Value:
    """ONNX's RotaryEmbedding of (B, S, N * H) or (B, N, S, H)."""
    return b(
        "RotaryEmbedding",
        x,
        cos,
        sin,
        positions,
        num_heads=heads if b.fact(x).rank == 3 else None,
        rotary_embedding_dim=width or None,
        interleaved=int(interleaved) or None,
    )


def sequence_positions(b: Builder, length: ir.Value) -> ir.Value:
    """0, 1, ... up to ``length`` (int64 [1]), as an int64 vector."""
    stop = b("Squeeze", length, b.ints(0))
    return b("Range", b.const(np.array(0, np.int64)), stop, b.const(np.array(1, np.int64)))


@expands("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(b: Builder, n: Inference) -> Outputs:
    """Positions are one for each token, or one number that the first token of each sequence has."""
    x, positions, cos, sin = (required(n, i) for i in range(4))
    prepared = _arguments(b, n, x, cos)
    if prepared is None:
        return None
    heads, width, sequence_axis = prepared
    if n.tensor(1).rank is None:
        return None
    if n.tensor(1).rank == 1:
        steps = b("Add", sequence_positions(b, size(b, x, sequence_axis)), positions)
        shape = b("Concat", size(b, x, 0), size(b, x, sequence_axis), axis=0)
        positions = b("Expand", steps, shape)
    interleaved = bool(n.attr("interleaved", 0))
    return [rotate(b, x, cos, sin, positions, heads=heads, width=width, interleaved=interleaved)]


def _arguments(b: Builder, n: Inference, x: ir.Value, cos: ir.Value) -> tuple[int, int, int] | None:
    """Number of heads, rotated width (0: all), axis of the sequence; None where a size is needed and unknown."""
    shape, cache = b.shape(x), b.shape(cos)
    if shape is None or cache is None:
        return None
    sequence_axis = 2 if len(shape) == 4 else 1
    width = n.attr("rotary_embedding_dim", 0)
    heads = n.attr("num_heads", 0)
    if len(shape) == 3 and not heads:
        # Without a number of heads each head is as wide as the caches rotate.
        half, hidden = cache[-1], shape[-1]
        if not isinstance(half, int) or not isinstance(hidden, int):
            return None
        heads = hidden // (2 * half)
    return heads, width, sequence_axis


@expands("MRotaryEmbedding", domain=DOMAIN)
def m_rotary_embedding(b: Builder, n: Inference) -> Outputs:
    """The angle of each feature pair follows one of three positions."""
    x, positions, cos, sin = (required(n, i) for i in range(4))
    prepared = _arguments(b, n, x, cos)
    if prepared is None:
        return None
    heads, width, _ = prepared
    stream = _streams(n.attr("mrope_section"), n.attr("mrope_layout", 0))
    rows = [b("Squeeze", p, b.ints(0)) for p in b.multi("Split", 3, positions, axis=0, num_outputs=3)]

    def table(cache: ir.Value) -> ir.Value:
        merged = b("Gather", cache, rows[0], axis=0)
        for i in (1, 2):
            if (stream == i).any():
                merged = b("Where", b.const(stream == i), b("Gather", cache, rows[i], axis=0), merged)
        return merged

    interleaved = bool(n.attr("interleaved", 0))
    return [rotate(b, x, table(cos), table(sin), None, heads=heads, width=width, interleaved=interleaved)]


def _streams(sections: tuple[int, ...], layout: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Which position (0: time, 1: height, 2: width) drives each pair of features."""
    stream = np.zeros(sum(sections), dtype=np.int64)
    if layout == 0:
        return np.repeat(np.arange(3), sections)
    for axis in (1, 2):
        stream[axis : sections[axis] * 3 : 3] = axis
    return stream


@expands("GemmaRotaryEmbedding", domain=DOMAIN)
def gemma_rotary_embedding(b: Builder, n: Inference) -> Outputs:
    """Angles (B, S, H) in float32; query, key and their rotated halves (B, N, S, H) in float16."""
    angles, q, q_rotated, k, k_rotated = (required(n, i) for i in range(5))
    cos, sin = (b("Unsqueeze", like_cast(b, b(f, angles), q), b.ints(1)) for f in ("Cos", "Sin"))
    pairs = ((q, q_rotated), (k, k_rotated))
    return [b("Add", b("Mul", plain, cos), b("Mul", turned, sin)) for plain, turned in pairs]


# Relative positions -----------------------------------------------------------------------------------------------


@expands("RelativePositionBias", domain=DOMAIN)
def relative_position_bias(b: Builder, n: Inference) -> Outputs:
    """Distances fall into buckets: one each when near, logarithmically wider when far.

    Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020). The
    table is declared as (buckets, N) and stored by columns: its memory is (N, buckets). The output is (1, N, query
    length, key length).
    """
    table = required(n, 0)
    buckets = (b.shape(table) or (None,))[0]
    if not isinstance(buckets, int):
        return None
    table = reshape(b, table, -1, buckets)
    queries, keys = (sequence_positions(b, b("Cast", flat(b, required(n, i)), to=int(INT64))) for i in (1, 2))
    distance = b("Sub", b("Unsqueeze", queries, b.ints(1)), b("Unsqueeze", keys, b.ints(0)))
    zero = b.scalar(0, distance)
    offset = None
    if n.attr("is_bidirectional", 0):
        buckets //= 2
        # Keys after the query have the second half of the buckets.
        offset = b("Where", b("Less", distance, zero), b.scalar(buckets, distance), zero)
        distance = b("Abs", distance)
    else:
        distance = b("Max", distance, zero)
    exact = buckets // 2
    span = math.log(n.attr("max_distance") / exact)
    near = b("Less", distance, b.scalar(exact, distance))
    ratio = b("Div", b("Cast", b("Max", distance, b.scalar(1, distance)), to=int(ir.DataType.FLOAT)), _float(b, exact))
    steps = b("Mul", b("Div", b("Log", ratio), _float(b, span)), _float(b, buckets - exact))
    far = b("Add", b("Cast", steps, to=int(INT64)), b.scalar(exact, distance))
    bucket = b("Where", near, distance, b("Min", far, b.scalar(buckets - 1, distance)))
    if offset is not None:
        bucket = b("Add", bucket, offset)
    return [b("Unsqueeze", b("Gather", table, bucket, axis=1), b.ints(0))]


def _float(b: Builder, value: float) -> ir.Value:
    return b.const(np.array(value, np.float32))


@expands("GatedRelativePositionBias", domain=DOMAIN)
def gated_relative_position_bias(b: Builder, n: Inference) -> Outputs:
    """The bias times a gate of each query: ``u * (r * eco_a - 1) + 2`` with u and r from a small projection.

    With ``token_offset`` the query has no padding; that form is left alone.
    """
    if given(n, 6) is not None:
        return None
    heads = n.attr("num_heads")
    query, query_bias, rel_pos, weight, bias, eco_a = (required(n, i) for i in range(6))
    parts = (b.shape(weight) or (None, None))[1]
    if not isinstance(parts, int):
        return None
    layer = b("Transpose", reshape(b, b("Add", query, query_bias), 0, 0, heads, -1), perm=(0, 2, 1, 3))
    projected = b("Add", b("MatMul", layer, weight), bias)
    grouped = reshape(b, projected, 0, 0, 0, 2, parts // 2)
    gates = b("Sigmoid", b("ReduceSum", grouped, b.ints(-1), keepdims=0))
    u, r = b.multi("Split", 2, gates, axis=-1, num_outputs=2)
    inner = b("Sub", b("Mul", r, eco_a), b.scalar(1.0, r))
    gate = b("Add", b("Mul", u, inner), b.scalar(2.0, u))
    return [b("Mul", gate, rel_pos)]
