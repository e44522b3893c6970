"""Expansions: grouped-query attention on a cache, dense and block-sparse.

The new keys are scattered into the cache, and ONNX's Attention reads the cache with the number of its entries that
are filled. A query sees the positions up to its own; they are counted for each sequence of the batch from its length,
so a first prompt may be padded on the right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.attention import Heads, extend_cache, to_heads
from accord.ops.microsoft.blocks import codes
from accord.ops.microsoft.common import Outputs, cast, constant_array, flat, like_cast, reshape, size, wants
from accord.ops.microsoft.normalization import rms_normalize
from accord.ops.microsoft.rotary import partial_width, rotate, sequence_positions
from accord.ops.microsoft.schemas import DOMAIN

__all__: list[str] = []

FLOAT, INT8, INT64, UINT8 = ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.INT64, ir.DataType.UINT8


@dataclass(frozen=True, slots=True)
class _Step:
    """What one call adds to the cache.

    Attributes:
        heads: Query, key and value, (B, N, S, H).
        lengths: Number of entries of each sequence after the call, int64 (B).
        past: Number of entries before it, int64 (B).
        total: The greatest length, int64 [1].
    """

    heads: Heads
    lengths: ir.Value
    past: ir.Value
    total: ir.Value

    def positions(self, b: Builder) -> ir.Value:
        """Position of each query, (B, S)."""
        steps = sequence_positions(b, size(b, self.heads.query, 2))
        return b("Add", b("Unsqueeze", self.past, b.ints(1)), steps)


def _separate(b: Builder, n: Inference, kv_heads: int) -> Heads | None:
    """The three inputs, or the packed one, as (B, N, S, H)."""
    query, key, value = required(n, 0), given(n, 1), given(n, 2)
    heads = n.attr("num_heads")
    if n.tensor(0).rank is None:
        return None
    if key is None or value is None:
        packed = to_heads(b, query, heads + 2 * kv_heads)
        return Heads(*b.multi("Split", 3, packed, b.ints(heads, kv_heads, kv_heads), axis=1))
    if b.fact(key).rank == 4:
        return Heads(to_heads(b, query, heads), key, value)
    return Heads(to_heads(b, query, heads), to_heads(b, key, kv_heads), to_heads(b, value, kv_heads))


def _rotated(
    b: Builder, n: Inference, step: _Step, caches: tuple[int, int], positions: ir.Value | None
) -> Heads | None:
    """Query and key turned by their positions."""
    cos, sin = (required(n, i) for i in caches)
    width = partial_width(b, step.heads.query, cos, n.attr("num_heads"))
    if width is None:
        return None
    if positions is None:
        positions = step.positions(b)
        if n.has(16):
            # Padding may lie past the end of the caches; what becomes of it does not matter.
            positions = b("Min", positions, b("Sub", size(b, cos, 0), b.ints(1)))
    interleaved = bool(n.attr("rotary_interleaved", 0))
    query, key = (
        rotate(b, x, cos, sin, positions, width=width, interleaved=interleaved)
        for x in (step.heads.query, step.heads.key)
    )
    return Heads(query, key, step.heads.value)


def _grown(b: Builder, cache: ir.Value, total: ir.Value) -> ir.Value:
    """The cache with room for ``total`` entries."""
    missing = b("Max", b("Sub", total, size(b, cache, 2)), b.ints(0))
    pads = b("Concat", b.ints(0, 0, 0, 0, 0, 0), missing, b.ints(0), axis=0)
    return b("Pad", cache, pads)


def _visible(b: Builder, n: Inference, step: _Step) -> ir.Value:
    """Which of the first ``total`` entries each query sees: bool (B, 1, S, total)."""
    keys = sequence_positions(b, step.total)
    queries = b("Unsqueeze", step.positions(b), b.ints(1, 3))
    visible = b("LessOrEqual", keys, queries)
    window = n.attr("local_window_size", -1)
    if window >= 0:
        visible = b("And", visible, b("Greater", keys, b("Sub", queries, b.ints(window))))
    return visible


def _with_sink(
    b: Builder, x: Heads, mask: ir.Value, sink: ir.Value, lengths: ir.Value
) -> tuple[Heads, ir.Value, ir.Value]:
    """A key of zeros in front whose bias is the sink: it takes part in the softmax and adds nothing to the sum."""

    def padded(v: ir.Value) -> ir.Value:
        return b("Pad", v, b.ints(0, 0, 1, 0, 0, 0, 0, 0))

    column = reshape(b, sink, 1, -1, 1, 1)
    leading = b("Concat", b("Shape", mask, end=1), size(b, column, 1), b("Shape", mask, start=2, end=3), axis=0)
    column = b("Expand", column, b("Concat", leading, b.ints(1), axis=0))
    spread = b("Expand", mask, b("Concat", leading, b.ints(1), axis=0))
    return (
        Heads(x.query, padded(x.key), padded(x.value)),
        b("Concat", column, spread, axis=-1),
        b("Add", lengths, b.ints(1)),
    )


# A cache of integers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Integers:
    """How one of the two caches holds numbers: int8, or two 4-bit codes in a byte of uint8, the even one low.

    Attributes:
        scale: A scalar, or one factor for each channel, (1, N, 1, H).
        bits: 8 or 4.
    """

    scale: ir.Value
    bits: int

    @classmethod
    def of(cls, b: Builder, n: Inference, side: int) -> _Integers | None:
        """By the attributes of the key (0) or the value (1); None for a cache of floats."""
        kind = n.attr(f"{'kv'[side]}_quant_type", "NONE")
        if kind == "NONE":
            return None
        scale = required(n, 12 + side)
        if kind == "PER_CHANNEL":
            scale = reshape(b, scale, 1, n.attr("kv_num_heads"), 1, -1)
        else:
            scale = b("Squeeze", flat(b, scale), b.ints(0))
        return cls(scale, n.attr("kv_cache_bit_width", 0))

    def stored(self, b: Builder, x: ir.Value) -> ir.Value:
        """From floats."""
        rounded = b("Round", b("Div", cast(b, x, FLOAT), self.scale))
        low, high = (-128, 127) if self.bits == 8 else (-8, 7)
        clipped = b("Clip", rounded, b.scalar(low, rounded), b.scalar(high, rounded))
        if self.bits == 8:
            return b("Cast", clipped, to=int(INT8))
        code = b("Cast", b("Add", clipped, b.scalar(8, clipped)), to=int(UINT8))
        pairs = b("Reshape", code, b("Concat", b("Shape", code, end=-1), b.ints(-1, 2), axis=0))
        even, odd = (b("Squeeze", v, b.ints(-1)) for v in b.multi("Split", 2, pairs, axis=-1, num_outputs=2))
        return b("BitwiseOr", even, b("BitShift", odd, b.const(np.array(4, np.uint8)), direction="LEFT"))

    def read(self, b: Builder, x: ir.Value, like: ir.Value) -> ir.Value:
        """To floats."""
        if self.bits == 4:
            code = codes(b, x, 4)
            assert code is not None
            x = b("Sub", cast(b, code, FLOAT), b.const(np.array(8, np.float32)))
        return like_cast(b, b("Mul", cast(b, x, FLOAT), self.scale), like)


# Operators --------------------------------------------------------------------------------------------------------


@expands("GroupQueryAttention", domain=DOMAIN)
def group_query_attention(b: Builder, n: Inference) -> Outputs:
    """All but a cache that keeps only a window."""
    if n.attr("sliding_window_cache", 0) or n.attr("kv_cache_bit_width", 0) not in (0, 4, 8):
        return None
    x = _separate(b, n, n.attr("kv_num_heads"))
    if x is None:
        return None
    if n.has(14) and n.has(15):
        epsilon = n.attr("qk_norm_epsilon", 1e-6)
        query = rms_normalize(b, x.query, required(n, 14), n.attr("q_norm_epsilon", epsilon))
        key = rms_normalize(b, x.key, required(n, 15), n.attr("k_norm_epsilon", epsilon))
        x = Heads(query, key, x.value)
    lengths = b("Add", b("Cast", flat(b, required(n, 5)), to=int(INT64)), b.ints(1))
    total = b("Cast", flat(b, required(n, 6)), to=int(INT64))
    valid = given(n, 16)
    new = size(b, x.query, 2) if valid is None else b("Cast", flat(b, valid), to=int(INT64))
    step = _Step(x, lengths, b("Max", b("Sub", lengths, new), b.ints(0)), total)
    if n.attr("do_rotary", 0):
        rotated = _rotated(b, n, step, (7, 8), given(n, 9))
        if rotated is None:
            return None
        step = _Step(rotated, step.lengths, step.past, step.total)
    return _attend_cached(b, n, step)


def _attend_cached(b: Builder, n: Inference, step: _Step) -> Outputs:
    x, past_key, past_value = step.heads, given(n, 3), given(n, 4)
    formats = [_Integers.of(b, n, side) for side in (0, 1)]
    new = [v if f is None else f.stored(b, v) for v, f in zip((x.key, x.value), formats, strict=True)]
    if past_key is None or past_value is None:
        present = new
    else:
        present = [
            extend_cache(b, _grown(b, c, step.total), v, step.past)
            for c, v in zip((past_key, past_value), new, strict=True)
        ]
    seen = [p if f is None else f.read(b, p, x.query) for p, f in zip(present, formats, strict=True)]
    return _attend_masked(b, n, step, Heads(x.query, *seen), present)


def _attend_masked(b: Builder, n: Inference, step: _Step, x: Heads, present: list[ir.Value]) -> Outputs:
    heads = n.attr("num_heads")
    mask: ir.Value | None = None
    bias, sink = given(n, 10), given(n, 11)
    if sink is None and n.attr("smooth_softmax", -1) == 1:
        sink = b("Expand", b.scalar(0.0, x.query), b.ints(heads))
    if n.attr("causal", 1):
        mask = _visible(b, n, step)
    if bias is not None or sink is not None:
        mask = _additive(b, step, x.query, mask, bias)
    lengths = step.lengths
    if sink is not None and mask is not None:
        x, mask, lengths = _with_sink(b, x, mask, sink, lengths)
    scores = wants(n, 3)
    if scores and sink is not None:
        return None
    results = b.multi(
        "Attention",
        4 if scores else 1,
        x.query,
        x.key,
        x.value,
        mask,
        None,
        None,
        lengths,
        scale=n.attr("scale", 0.0) or None,
        softcap=n.attr("softcap", 0.0) or None,
        qk_matmul_output_mode=(3 if n.attr("qk_output", 0) == 2 else 2) if scores else None,
    )
    output = reshape(b, b("Transpose", results[0], perm=(0, 2, 1, 3)), 0, 0, -1)
    if not scores:
        return [output, *present]
    shown = b("Slice", results[3], b.ints(0), step.total, b.ints(3))
    # Where nothing is seen the scores read 0, before the softmax as after it.
    hidden = b("IsInf", shown, detect_positive=0)
    return [output, *present, b("Where", hidden, b.scalar(0.0, shown), shown)]


def _additive(b: Builder, step: _Step, like: ir.Value, mask: ir.Value | None, bias: ir.Value | None) -> ir.Value:
    low = b.scalar(-np.inf, like)
    if mask is None:
        keys = b("Unsqueeze", sequence_positions(b, step.total), b.ints(0, 1, 2))
        mask = b("Less", keys, reshape(b, step.lengths, -1, 1, 1, 1))
    return b("Where", mask, b.scalar(0.0, like) if bias is None else bias, low)


@expands("SparseAttention", domain=DOMAIN)
def sparse_attention(b: Builder, n: Inference) -> Outputs:
    """A query block sees the key blocks that its layout lists; heads take the layouts in turn."""
    rows, columns = (constant_array(b, given(n, i)) for i in (5, 6))
    if rows is None or columns is None:
        return None
    x = _separate(b, n, n.attr("kv_num_heads"))
    if x is None:
        return None
    lengths = b("Cast", flat(b, required(n, 8)), to=int(INT64))
    past = b("Max", b("Sub", lengths, size(b, x.query, 2)), b.ints(0))
    step = _Step(x, lengths, past, b("Cast", flat(b, required(n, 7)), to=int(INT64)))
    if n.attr("do_rotary", 0):
        rotated = _rotated(b, n, step, (9, 10), None)
        if rotated is None:
            return None
        step = _Step(rotated, lengths, past, step.total)
    present = [extend_cache(b, required(n, 3 + i), v, past) for i, v in enumerate((step.heads.key, step.heads.value))]
    layouts = _block_layouts(rows, columns)
    layouts = np.tile(layouts, (n.attr("num_heads") // len(layouts), 1, 1))
    block = b.ints(n.attr("sparse_block_size"))
    positions = step.positions(b)
    keys = sequence_positions(b, step.total)
    # From (N, query blocks, key blocks) to (N, B, S, total), then the heads after the batch.
    by_query = b("Gather", b.const(layouts), b("Div", positions, block), axis=1)
    listed = b("Transpose", b("Gather", by_query, b("Div", keys, block), axis=3), perm=(1, 0, 2, 3))
    mask = b("And", listed, b("LessOrEqual", keys, b("Unsqueeze", positions, b.ints(1, 3))))
    output = b(
        "Attention",
        step.heads.query,
        *present,
        mask,
        None,
        None,
        lengths,
        scale=n.attr("scale", 0.0) or None,
    )
    return [reshape(b, b("Transpose", output, perm=(0, 2, 1, 3)), 0, 0, -1), *present]


def _block_layouts(
    rows: np.ndarray[tuple[int, ...], np.dtype[np.int32]], columns: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Compressed rows (L, blocks + 1) and columns (L, entries) as bool (L, blocks, blocks)."""
    count, blocks = rows.shape[0], rows.shape[1] - 1
    dense = np.zeros((count, blocks, blocks), dtype=bool)
    for layout in range(count):
        for row in range(blocks):
            dense[layout, row, columns[layout, rows[layout, row] : rows[layout, row + 1]]] = True
    return dense
