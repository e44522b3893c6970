"""Expansions: sequences without padding, the decoder's switched attention, and attention in a sliding window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.attention import (
    Heads,
    additive_mask,
    attend,
    input_projection,
    split_bias,
    to_heads,
)
from accord.ops.microsoft.common import Outputs, constant_array, flat, reshape, size, wants
from accord.ops.microsoft.rotary import sequence_positions
from accord.ops.microsoft.schemas import DOMAIN

__all__: list[str] = []

INT32, INT64 = ir.DataType.INT32, ir.DataType.INT64


def _valid_tokens(b: Builder, counts: ir.Value, length: ir.Value) -> ir.Value:
    """(B, S): True for the first ``counts`` tokens of each sequence."""
    return b("Less", sequence_positions(b, length), b("Unsqueeze", b("Cast", counts, to=int(INT64)), b.ints(1)))


@expands("RemovePadding", domain=DOMAIN)
def remove_padding(b: Builder, n: Inference) -> Outputs:
    """Tokens in the order of the batch; their places, then those of the padding."""
    x, counts = required(n, 0), required(n, 1)
    length = size(b, x, 1)
    valid = flat(b, _valid_tokens(b, counts, length))
    places, padding = (flat(b, b("NonZero", v)) for v in (valid, b("Not", valid)))
    rows = b("Reshape", x, b("Concat", b.ints(-1), size(b, x, 2), axis=0))
    offsets = b("Cast", b("Concat", places, padding, axis=0), to=int(INT32))
    shape = b("Concat", size(b, x, 0), length, axis=0)
    sums = b("CumSum", counts, b.const(np.array(0, np.int64)))
    return [
        b("Gather", rows, places, axis=0),
        b("Reshape", offsets, shape),
        b("Concat", b.const(np.zeros(1, np.int32)), sums, axis=0),
        b("ReduceMax", counts, b.ints(0), keepdims=1),
    ]


@dataclass(frozen=True, slots=True)
class _Packing:
    """Where packed tokens belong.

    Attributes:
        places: Place of each token in the padded batch, int64 (tokens).
        batch: B as a tensor of shape [1].
        length: S as a tensor of shape [1].
    """

    places: ir.Value
    batch: ir.Value
    length: ir.Value

    @classmethod
    def of(cls, b: Builder, offsets: ir.Value, tokens: ir.Value) -> _Packing:
        """From the operators' ``token_offset`` (B, S) and the number of tokens (int64 [1])."""
        places = b("Slice", b("Cast", flat(b, offsets), to=int(INT64)), b.ints(0), tokens, b.ints(0))
        return cls(places, size(b, offsets, 0), size(b, offsets, 1))

    def restored(self, b: Builder, x: ir.Value) -> ir.Value:
        """(tokens, D) as (B, S, D), padded with zeros."""
        width = size(b, x, 1)
        rows = b("Concat", b("Mul", self.batch, self.length), width, axis=0)
        zeros = b("Expand", b.scalar(0, x), rows)
        filled = b("ScatterND", zeros, b("Unsqueeze", self.places, b.ints(1)), x)
        return b("Reshape", filled, b("Concat", self.batch, self.length, width, axis=0))

    def packed(self, b: Builder, x: ir.Value) -> ir.Value:
        """(B, S, D) as (tokens, D)."""
        rows = b("Reshape", x, b("Concat", b.ints(-1), size(b, x, 2), axis=0))
        return b("Gather", rows, self.places, axis=0)


@expands("RestorePadding", domain=DOMAIN)
def restore_padding(b: Builder, n: Inference) -> Outputs:
    """Zeros where there is no token."""
    x = required(n, 0)
    return [_Packing.of(b, required(n, 1), size(b, x, 0)).restored(b, x)]


def _packed_attention(b: Builder, n: Inference, x: Heads, first: int) -> Outputs:
    """Inputs from ``first`` on: places, cumulated lengths, bias of the scores."""
    packing = _Packing.of(b, required(n, first), size(b, x.query, 0))
    sums = required(n, first + 1)
    counts = b(
        "Sub", b("Slice", sums, b.ints(1), b.ints(np.iinfo(np.int64).max)), b("Slice", sums, b.ints(0), b.ints(-1))
    )
    keep = b("Unsqueeze", _valid_tokens(b, counts, packing.length), b.ints(1, 2))
    mask = additive_mask(b, keep, x.query, n.attr("mask_filter_value", -10000.0))
    bias = given(n, first + 2)
    restored = Heads(*(packing.restored(b, v) for v in (x.query, x.key, x.value)))
    y = attend(
        b,
        restored,
        heads=n.attr("num_heads"),
        mask=mask if bias is None else b("Add", mask, bias),
        scale=n.attr("scale", 0.0),
    )
    return [packing.packed(b, y[0])]


@expands("PackedAttention", domain=DOMAIN)
def packed_attention(b: Builder, n: Inference) -> Outputs:
    """Input projection, then attention within each sequence."""
    projected = b("Add", b("MatMul", required(n, 0), required(n, 1)), required(n, 2))
    return _packed_attention(b, n, input_projection(b, n, projected), 3)


@expands("PackedMultiHeadAttention", domain=DOMAIN)
def packed_multi_head_attention(b: Builder, n: Inference) -> Outputs:
    """The query may hold all three, (tokens, N, 3, H)."""
    query, key, value = required(n, 0), given(n, 1), given(n, 2)
    if key is None or value is None:
        query, key, value = (reshape(b, v, 0, -1) for v in b.multi("Split", 3, query, axis=2, num_outputs=3))
    parts = split_bias(b, given(n, 3), query, key, value)
    x = Heads(*(v if p is None else b("Add", v, p) for v, p in zip((query, key, value), parts, strict=True)))
    return _packed_attention(b, n, x, 4)


@expands("DecoderAttention", domain=DOMAIN)
def decoder_attention(b: Builder, n: Inference) -> Outputs:
    """Query (S, B, D). Flags choose: keys of the query or of the encoder, newly projected or from the cache."""
    flags = [constant_array(b, given(n, i)) for i in range(8, 12)]
    if any(f is None for f in flags):
        return None
    static_kv, use_past, has_state, has_mask = (bool(np.all(f)) for f in flags if f is not None)
    cached = has_state and use_past
    heads = n.attr("num_heads")
    query, key = (b("Transpose", required(n, i), perm=(1, 0, 2)) for i in (0, 1))
    bias = required(n, 4)
    width = size(b, query, 2)
    q_bias = b("Slice", bias, b.ints(0), width, b.ints(0))
    kv_bias = b("Slice", bias, width, b.ints(np.iinfo(np.int64).max), b.ints(0))
    q = to_heads(b, b("Add", b("MatMul", query, required(n, 2)), q_bias), heads)
    if static_kv and cached:
        k, v = required(n, 6), required(n, 7)
    else:
        projected = b("Add", b("MatMul", key if static_kv else query, required(n, 3)), kv_bias)
        k, v = (to_heads(b, x, heads) for x in b.multi("Split", 2, projected, axis=-1, num_outputs=2))
        if cached:
            k, v = (b("Concat", required(n, 6 + i), x, axis=2) for i, x in enumerate((k, v)))
    mask: ir.Value | None = None
    if has_mask:
        # True marks padding here.
        keep = b("Not", b("Unsqueeze", required(n, 5), b.ints(1, 2)))
        mask = additive_mask(b, keep, q, n.attr("mask_filter_value", -10000.0))
    y = attend(b, Heads(q, k, v), heads=heads, mask=mask)[0]
    return [b("Transpose", y, perm=(1, 0, 2)), k if wants(n, 1) else None, v if wants(n, 2) else None]


@expands("LongformerAttention", domain=DOMAIN)
def longformer_attention(b: Builder, n: Inference) -> Outputs:
    """A token sees the tokens at most ``window`` away and the global ones; a global token sees all.

    Global tokens have projections of their own as queries and for the keys and values that they read. Beltagy et
    al., "Longformer: The Long-Document Transformer" (2020), section 3.
    """
    heads, window = n.attr("num_heads"), n.attr("window")
    x, mask = required(n, 0), required(n, 3)
    is_global = b("Cast", required(n, 6), to=int(ir.DataType.BOOL))

    def projected(weight: int) -> Heads:
        y = b("Add", b("MatMul", x, required(n, weight)), required(n, weight + 1))
        return Heads(*b.multi("Split", 3, y, axis=-1, num_outputs=3))

    positions = sequence_positions(b, size(b, x, 1))
    distance = b("Abs", b("Sub", b("Unsqueeze", positions, b.ints(1)), positions))
    near = b("LessOrEqual", distance, b.ints(window))
    seen = b("Or", near, b("Unsqueeze", is_global, b.ints(1, 2)))
    padding = b("Unsqueeze", mask, b.ints(1, 2))
    local_bias = b("Where", seen, padding, b.scalar(-np.inf, x))
    local = attend(b, projected(1), heads=heads, mask=local_bias)[0]
    everywhere = attend(b, projected(4), heads=heads, mask=padding)[0]
    return [b("Where", b("Unsqueeze", is_global, b.ints(2)), everywhere, local)]
