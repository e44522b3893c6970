"""Attention whose scores are wanted as well, as products and a softmax. Without them it is a kernel's business."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, cast, dims, half, size, wants

__all__ = ["attention"]

_SCORES = 3


@expands("Attention")
def attention(b: Builder, n: Inference) -> Outputs:
    """The fourth output holds the scores, those with cap, those with mask, or the probabilities."""
    if not wants(n, _SCORES):
        return None
    heads = [_heads(b, n, i, name) for i, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))]
    q, k, v = heads
    if q is None or k is None or v is None:
        return None
    if n.has(4):
        k, v = (b("Concat", required(n, i), x, axis=2) for i, x in ((4, k), (5, v)))
    shapes = [b.shape(x) for x in (q, k)]
    counts = [None if s is None else s[1] for s in shapes]
    width = None if shapes[0] is None else shapes[0][3]
    dtype = b.fact(q).dtype
    if not all(isinstance(c, int) for c in counts) or not isinstance(width, int) or dtype is None:
        return None
    wide = ir.DataType.FLOAT if half(dtype) else dtype
    group = int(str(counts[0])) // int(str(counts[1]))
    query, keys, values = (_repeated(b, cast(b, x, wide), t) for x, t in ((q, 1), (k, group), (v, group)))
    scale = n.attr("scale")
    factor = 1 / math.sqrt(width) if scale is None else float(scale)
    stages = [b("Mul", b("MatMul", query, b("Transpose", keys, perm=(0, 1, 3, 2))), b.scalar(factor, query))]
    cap = float(n.attr("softcap", 0.0) or 0.0)
    scores = stages[0]
    if cap:
        scores = b("Mul", b("Tanh", b("Div", scores, b.scalar(cap, query))), b.scalar(cap, query))
    stages.append(scores)
    stages.append(_Bias(b, n, query, keys).applied(scores))
    stages.append(_softmax(b, stages[-1]))
    y = cast(b, b("MatMul", stages[-1], values), dtype)
    if b.fact(required(n, 0)).rank == 3:
        y = b("Reshape", b("Transpose", y, perm=(0, 2, 1, 3)), b.ints(0, 0, -1))
    shown = cast(b, stages[int(n.attr("qk_matmul_output_mode", 0))], dtype)
    return [y, k if wants(n, 1) else None, v if wants(n, 2) else None, shown]


def _heads(b: Builder, n: Inference, index: int, name: str) -> ir.Value | None:
    """Input ``index`` as images, heads, positions, head size."""
    x = required(n, index)
    rank, count = b.fact(x).rank, int(n.attr(name, 0) or 0)
    if rank == 4:
        return x
    if rank != 3 or count <= 0:
        return None
    return b("Transpose", b("Reshape", x, b.ints(0, 0, count, -1)), perm=(0, 2, 1, 3))


def _repeated(b: Builder, x: ir.Value, times: int) -> ir.Value:
    """Each head ``times`` times in a row."""
    if times == 1:
        return x
    wide = b("Expand", b("Unsqueeze", x, b.ints(2)), b.ints(1, 1, times, 1, 1))
    return b("Reshape", wide, dims(b, size(b, x, 0), -1, size(b, x, 2), size(b, x, 3)))


def _softmax(b: Builder, scores: ir.Value) -> ir.Value:
    """Probabilities; zeros for a query that sees no key."""
    peak = b("ReduceMax", scores, b.ints(-1))
    some = b("Greater", peak, b.scalar(-math.inf, scores))
    safe = b("Where", some, scores, b.scalar(0.0, scores))
    return b("Where", some, b("Softmax", safe, axis=-1), b.scalar(0.0, scores))


class _Bias:
    """Mask, causal frontier, windows, and keys that are none."""

    def __init__(self, b: Builder, n: Inference, query: ir.Value, keys: ir.Value) -> None:
        self.b = b
        self.n = n
        self.length = size(b, query, 2)
        self.keys = size(b, keys, 2)

    def applied(self, scores: ir.Value) -> ir.Value:
        """Scores with the mask; minus infinity where a key is not seen, whatever its score."""
        b, n = self.b, self.n
        seen = self._seen()
        mask = given(n, 3)
        hidden = b.scalar(-math.inf, scores)
        if mask is not None:
            if b.fact(mask).dtype is ir.DataType.BOOL:
                seen.append(self._padded(mask, b.const(np.array(False))))
            else:
                added = self._padded(mask, b.scalar(-math.inf, mask))
                added = cast(b, added, b.fact(scores).dtype or ir.DataType.FLOAT)
                scores = b("Where", b("Equal", added, hidden), hidden, b("Add", scores, added))
        for s in seen:
            scores = b("Where", s, scores, hidden)
        return scores

    def _padded(self, mask: ir.Value, fill: ir.Value) -> ir.Value:
        """The mask, with keys that it is too short for hidden."""
        b = self.b
        missing = b("Sub", self.keys, size(b, mask, -1))
        return b("Pad", mask, b("Concat", b.ints(0), missing, axis=0), fill, b.ints(-1))

    def _indices(self, count: ir.Value, axis: int) -> ir.Value:
        b = self.b
        end = b("Squeeze", count, b.ints(0))
        numbers = b("Range", b.const(np.array(0)), end, b.const(np.array(1)))
        return b("Unsqueeze", numbers, b.ints(axis))

    def _seen(self) -> list[ir.Value]:
        """What has to hold for a key to be seen by a query."""
        b, n = self.b, self.n
        keys, queries = self._indices(self.keys, 0), self._indices(self.length, 1)
        conditions: list[ir.Value] = []
        if n.has(6):
            valid = b("Reshape", required(n, 6), b.ints(-1, 1, 1, 1))
            queries = b("Add", queries, b("Sub", valid, self.length))
            conditions.append(b("Less", keys, valid))
        elif n.has(4):
            queries = b("Add", queries, size(b, required(n, 4), 2))
        windows: Sequence[tuple[str, str]] = (
            ("left_window_size", "GreaterOrEqual"),
            ("right_window_size", "LessOrEqual"),
        )
        for (name, op), sign in zip(windows, (-1, 1), strict=True):
            width = n.attr(name)
            if width is not None and int(width) >= 0:
                conditions.append(b(op, keys, b("Add", queries, b.ints(sign * int(width)))))
        if n.attr("is_causal", 0):
            conditions.append(b("LessOrEqual", keys, queries))
        return conditions
