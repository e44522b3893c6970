"""Expansions: attention with as many key heads as query heads.

All end in ONNX's own Attention. Its causal form is aligned as here (a query sees the past and the tokens up to its
own), and padding becomes an additive mask of ``mask_filter_value``, so that a query that sees nothing attends to
everything evenly, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.dims import DimLike
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, constant_array, dims, flat, reshape, size, wants
from accord.ops.microsoft.schemas import DOMAIN

__all__ = [
    "Heads",
    "additive_mask",
    "attend",
    "extend_cache",
    "from_heads",
    "input_projection",
    "key_mask",
    "self_attention",
    "split_bias",
    "to_heads",
]

BOOL, INT32, INT64 = ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64
_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Heads:
    """Query, key and value, all (B, S, N * H) or all (B, N, S, H)."""

    query: ir.Value
    key: ir.Value
    value: ir.Value


def to_heads(b: Builder, x: ir.Value, heads: int) -> ir.Value:
    """From (B, S, N * H) to (B, N, S, H)."""
    return b("Transpose", reshape(b, x, 0, 0, heads, -1), perm=(0, 2, 1, 3))


def from_heads(b: Builder, x: ir.Value) -> ir.Value:
    """From (B, N, S, H) to (B, S, N * H)."""
    return reshape(b, b("Transpose", x, perm=(0, 2, 1, 3)), 0, 0, -1)


def attend(
    b: Builder,
    x: Heads,
    *,
    heads: int,
    kv_heads: int | None = None,
    mask: ir.Value | None = None,
    past: tuple[ir.Value | None, ir.Value | None] = (None, None),
    causal: bool = False,
    scale: float = 0.0,
    softcap: float = 0.0,
    outputs: int = 1,
    qk_mode: int = 0,
) -> Sequence[ir.Value]:
    """ONNX's Attention; a scale of 0 means ``1 / sqrt(H)``. Gives (B, S, N * H), present key, present value, scores."""
    separate = b.fact(x.query).rank == 4
    results = b.multi(
        "Attention",
        outputs,
        x.query,
        x.key,
        x.value,
        mask,
        *past,
        q_num_heads=None if separate else heads,
        kv_num_heads=None if separate else kv_heads or heads,
        is_causal=int(causal) or None,
        scale=scale or None,
        softcap=softcap or None,
        qk_matmul_output_mode=qk_mode or None,
    )
    return [from_heads(b, results[0]), *results[1:]] if separate else results


# Masks ------------------------------------------------------------------------------------------------------------


def additive_mask(b: Builder, keep: ir.Value, like: ir.Value, filter_value: float) -> ir.Value:
    """0 where ``keep`` holds, else ``filter_value``; in the dtype of ``like``."""
    return b("Where", keep, b.scalar(0.0, like), b.scalar(filter_value, like))


def _positions(b: Builder, length: ir.Value, like: ir.Value) -> ir.Value:
    """0, 1, ... as a vector of the dtype of ``like``."""
    dtype = b.fact(like).dtype
    stop = b("Squeeze", length, b.ints(0))
    steps = b("Range", b.const(np.array(0, np.int64)), stop, b.const(np.array(1, np.int64)))
    return steps if dtype == INT64 else b("Cast", steps, to=int(dtype or INT32))


def _ends_and_starts(
    b: Builder, mask: ir.Value, batch: ir.Value, total: ir.Value, sizes: tuple[DimLike, DimLike]
) -> ir.Value:
    """Keep mask (B, 1, 1, T) of a vector of end positions (B), or of ends and starts (2 * B)."""
    mask_size, batch_size = sizes
    positions = _positions(b, total, mask)

    def column(first: ir.Value, last: ir.Value) -> ir.Value:
        return reshape(b, b("Slice", mask, first, last, b.ints(0)), -1, 1, 1, 1)

    keep = b("Less", positions, column(b.ints(0), batch))
    if mask_size == batch_size:
        return keep
    if mask_size == batch_size * 2:
        starts = column(batch, b("Mul", batch, b.ints(2)))
    else:
        # The length tells only at run time which of the two it is: missing starts become 0.
        rest = b("Slice", mask, batch, b("Mul", batch, b.ints(2)), b.ints(0))
        zeros = b("Expand", b.scalar(0, mask), batch)
        starts = b("Slice", b("Concat", rest, zeros, axis=0), b.ints(0), batch, b.ints(0))
        starts = reshape(b, starts, -1, 1, 1, 1)
    return b("And", keep, b("GreaterOrEqual", positions, starts))


def key_mask(
    b: Builder,
    mask: ir.Value,
    *,
    batch: ir.Value,
    sequence: ir.Value,
    total: ir.Value,
    batch_size: DimLike,
    starts: bool,
) -> ir.Value | None:
    """Which keys a query may see, from any of the layouts of the operators, as a bool tensor of four axes.

    Args:
        b: The builder.
        mask: int32; (B) or (2 * B) of positions, (3 * B + 2) whose first B are lengths, (B, T), (B, S, T), or
            (B, 1, M, M), of which the last S rows and T columns up to T count.
        batch: B as a tensor of shape [1].
        sequence: S as a tensor of shape [1].
        total: T as a tensor of shape [1].
        batch_size: B as a size.
        starts: A vector may hold start positions after the ends.
    """
    shape = b.shape(mask)
    if shape is None:
        return None
    if len(shape) == 1:
        known: DimLike = shape[0] if starts else batch_size
        if shape[0] == batch_size * 3 + 2:
            known = batch_size
        return _ends_and_starts(b, mask, batch, total, (known, batch_size))
    if len(shape) == 4:
        first = b("Sub", total, sequence)
        mask = b("Slice", mask, b("Concat", first, b.ints(0), axis=0), b("Concat", total, total, axis=0), b.ints(2, 3))
    keep = b("Greater", mask, b.scalar(0, mask))
    axes = {2: (1, 2), 3: (1,)}.get(len(shape))
    return b("Unsqueeze", keep, b.ints(*axes)) if axes else keep


def _causal_mask(b: Builder, like: ir.Value, sequence: ir.Value, total: ir.Value) -> ir.Value:
    """The lowest value above the diagonal that starts at the end of the past, zeros elsewhere: (S, T)."""
    low = b("Expand", b.scalar(float(np.finfo(np.float32).min), like), b("Concat", sequence, total, axis=0))
    diagonal = b("Add", b("Sub", total, sequence), b.ints(1))
    return b("Trilu", low, b("Squeeze", diagonal, b.ints(0)), upper=1)


def _add(b: Builder, *terms: ir.Value | None) -> ir.Value | None:
    present = [t for t in terms if t is not None]
    if not present:
        return None
    total = present[0]
    for term in present[1:]:
        total = b("Add", total, term)
    return total


def self_attention(
    b: Builder,
    n: Inference,
    x: Heads,
    *,
    mask: ir.Value | None,
    bias: ir.Value | None,
    past: tuple[ir.Value | None, ir.Value | None] = (None, None),
    starts: bool = False,
    present: bool = False,
    scores: bool = False,
) -> list[ir.Value] | None:
    """Attention by the attributes ``num_heads``, ``scale``, ``unidirectional`` and ``mask_filter_value``.

    Returns:
        The output (B, S, N * H), and, as far as asked for, present key, present value and the masked scores.
    """
    heads = n.attr("num_heads")
    causal = bool(n.attr("unidirectional", 0))
    four = b.fact(x.key).rank == 4
    past_key, _ = past
    if mask is not None or scores:
        batch, sequence = size(b, x.query, 0), size(b, x.query, 2 if four else 1)
        total = size(b, x.key, 2 if four else 1)
        if past_key is not None:
            total = b("Add", total, size(b, past_key, 2))
        if mask is not None:
            shape = b.shape(x.query)
            if shape is None:
                return None
            keep = key_mask(b, mask, batch=batch, sequence=sequence, total=total, batch_size=shape[0], starts=starts)
            if keep is None:
                return None
            bias = _add(b, additive_mask(b, keep, x.query, n.attr("mask_filter_value", -10000.0)), bias)
        if scores and causal:
            # The scores that come out have the lowest value, not -inf, where the mask is causal.
            bias, causal = _add(b, bias, _causal_mask(b, x.query, sequence, total)), False
    count = 4 if scores else 3 if present else 1
    return list(
        attend(
            b,
            x,
            heads=heads,
            mask=bias,
            past=past,
            causal=causal,
            scale=n.attr("scale", 0.0),
            outputs=count,
            qk_mode=2 if scores else 0,
        )
    )


# Projections and biases -------------------------------------------------------------------------------------------


def split_bias(b: Builder, bias: ir.Value | None, *like: ir.Value) -> Sequence[ir.Value | None]:
    """The parts of a bias for query, key and value, as wide as the last axes of ``like``."""
    if bias is None:
        return (None, None, None)
    return b.multi("Split", 3, bias, dims(b, *(size(b, x, -1) for x in like)), axis=0)


def _plus(b: Builder, x: ir.Value, bias: ir.Value | None) -> ir.Value:
    return x if bias is None else b("Add", x, bias)


def input_projection(b: Builder, n: Inference, projected: ir.Value) -> Heads:
    """Query, key and value side by side in the last axis, split by ``qkv_hidden_sizes`` or in equal parts."""
    sizes = n.attr("qkv_hidden_sizes")
    if sizes is None:
        return Heads(*b.multi("Split", 3, projected, axis=-1, num_outputs=3))
    return Heads(*b.multi("Split", 3, projected, b.ints(*sizes), axis=-1))


def split_state(b: Builder, past: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """Past key and value from (2, B, N, P, H)."""
    if past is None:
        return (None, None)
    key, value = b.multi("Split", 2, past, axis=0, num_outputs=2)
    return b("Squeeze", key, b.ints(0)), b("Squeeze", value, b.ints(0))


def join_state(b: Builder, key: ir.Value, value: ir.Value) -> ir.Value:
    """(2, B, N, T, H) from present key and value."""
    return b("Concat", b("Unsqueeze", key, b.ints(0)), b("Unsqueeze", value, b.ints(0)), axis=0)


def finish_with_state(
    b: Builder, n: Inference, x: Heads, mask: ir.Value | None, past: ir.Value | None, bias: ir.Value | None
) -> Outputs:
    """The two outputs of Attention and QAttention."""
    present = wants(n, 1)
    results = self_attention(
        b, n, x, mask=mask, bias=bias, past=split_state(b, past), starts=True, present=present or past is not None
    )
    if results is None:
        return None
    return [results[0], join_state(b, results[1], results[2])] if present else results[:1]


@expands("Attention", domain=DOMAIN)
def attention(b: Builder, n: Inference) -> Outputs:
    """Input projection and attention; not for shared buffers and rotary embedding, which GPU kernels do."""
    if n.attr("do_rotary", 0) or n.attr("past_present_share_buffer", 0):
        return None
    projected = _plus(b, b("MatMul", required(n, 0), required(n, 1)), given(n, 2))
    return finish_with_state(b, n, input_projection(b, n, projected), given(n, 3), given(n, 4), given(n, 5))


def _unpack(b: Builder, packed: ir.Value, parts: int) -> Sequence[ir.Value]:
    """Query, key, value, or the latter two, from (B, S, N, parts, H), each as (B, S, N * H)."""
    pieces = b.multi("Split", parts, packed, axis=3, num_outputs=parts)
    return [reshape(b, p, 0, 0, -1) for p in pieces]


@expands("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(b: Builder, n: Inference) -> Outputs:
    """Query, key and value may be packed together; key and value may have their heads apart already."""
    if n.has(8) or n.has(9):
        return None  # a cache that is written in place by beam search
    heads = n.attr("num_heads")
    query, key, value = required(n, 0), given(n, 1), given(n, 2)
    if any(b.fact(v).rank is None for v in (query, key) if v is not None):
        return None
    if key is None:
        query, key, value = _unpack(b, query, 3)
    elif value is None:
        key, value = _unpack(b, key, 2)
    assert value is not None
    separate = b.fact(key).rank == 4
    bias = given(n, 3)
    if bias is not None:
        if separate:
            query = _plus(b, query, b("Slice", bias, b.ints(0), size(b, query, 2), b.ints(0)))
        else:
            parts = split_bias(b, bias, query, key, value)
            query, key, value = (_plus(b, v, p) for v, p in zip((query, key, value), parts, strict=True))
    if separate:
        query = to_heads(b, query, heads)
    return self_attention(
        b,
        n,
        Heads(query, key, value),
        mask=given(n, 4),
        bias=given(n, 5),
        past=(given(n, 6), given(n, 7)),
        present=wants(n, 1) or wants(n, 2) or n.has(6),
        scores=wants(n, 3),
    )


# One new token on a cache -----------------------------------------------------------------------------------------


def extend_cache(b: Builder, cache: ir.Value, new: ir.Value, start: ir.Value) -> ir.Value:
    """``cache`` (B, N, M, H) with ``new`` (B, N, S, H) written at ``start``, an int64 vector (B)."""
    return b("TensorScatter", cache, new, start, axis=2, mode="linear")


def _follow_beams(b: Builder, cache: ir.Value, indirection: ir.Value, length: ir.Value) -> ir.Value:
    """The first ``length`` entries of each beam's cache, taken from the beams that they were computed in.

    Args:
        b: The builder.
        cache: (B * W, N, M, H) for W beams.
        indirection: int32 (B, W, L): which beam of the batch the entry comes from.
        length: int64 [1].
    """
    beams = size(b, indirection, 1)
    chosen = b("Cast", b("Slice", indirection, b.ints(0), length, b.ints(2)), to=int(INT64))
    groups = _positions(b, size(b, indirection, 0), chosen)
    rows = b("Add", chosen, reshape(b, b("Mul", groups, beams), -1, 1, 1))
    rows = b("Reshape", rows, b("Concat", b.ints(-1), length, axis=0))
    columns = b("Expand", _positions(b, length, rows), b("Shape", rows))
    pairs = b("Concat", b("Unsqueeze", rows, b.ints(-1)), b("Unsqueeze", columns, b.ints(-1)), axis=-1)
    found = b("GatherND", b("Transpose", cache, perm=(0, 2, 1, 3)), pairs)
    return b("Transpose", found, perm=(0, 2, 1, 3))


@expands("DecoderMaskedMultiHeadAttention", domain=DOMAIN)
def decoder_masked_multi_head_attention(b: Builder, n: Inference) -> Outputs:
    """Cross-attention on finished keys, or self-attention on a buffer that holds more than is filled."""
    heads = n.attr("num_heads")
    query, key, value = required(n, 0), given(n, 1), given(n, 2)
    scores = bool(n.attr("output_qk", 0)) and wants(n, 3)
    bias = given(n, 10)
    if key is not None and b.fact(key).rank == 4:
        if value is None:
            return None
        if bias is not None:
            query = _plus(b, query, b("Slice", bias, b.ints(0), size(b, query, 2), b.ints(0)))
        x = Heads(to_heads(b, query, heads), key, value)
        results = self_attention(b, n, x, mask=given(n, 3), bias=given(n, 4), scores=scores)
        return None if results is None else [results[0], None, None, *results[3:]]
    if key is None or value is None:
        query, key, value = b.multi("Split", 3, query, axis=-1, num_outputs=3)
    parts = split_bias(b, bias, query, key, value)
    query, key, value = (to_heads(b, _plus(b, v, p), heads) for v, p in zip((query, key, value), parts, strict=True))
    past_key, past_value, length = given(n, 5), given(n, 6), given(n, 7)
    if past_key is None or past_value is None or length is None:
        return None
    filled = b("Cast", flat(b, length), to=int(INT64))
    total = b("Add", filled, b.ints(1))
    start = b("Expand", filled, size(b, query, 0))
    present = [extend_cache(b, cache, new, start) for cache, new in ((past_key, key), (past_value, value))]
    seen = [b("Slice", p, b.ints(0), total, b.ints(2)) for p in present]
    indirection = given(n, 9)
    beams = constant_array(b, given(n, 8))
    single = beams is not None and beams.reshape(-1).tolist() == [1]
    if indirection is not None and not single:
        # The new entry is the beam's own, whatever the table says of it.
        seen = [
            b("Concat", _follow_beams(b, cache, indirection, filled), new, axis=2)
            for cache, new in ((past_key, key), (past_value, value))
        ]
    x = Heads(query, *seen)
    results = self_attention(b, n, x, mask=given(n, 3), bias=given(n, 4), scores=scores)
    return None if results is None else [results[0], *present, *results[3:]]
