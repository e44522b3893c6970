"""Attention: Vaswani et al., "Attention Is All You Need", 2017, equation 1; computed in blocks (Dao et al., 2022).

Grouped queries: Ainslie et al., "GQA", 2023: query heads share the key heads of their group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from accord.contract.contract import NanPolicy
from accord.contract.operator import Operator, Tensor, operator
from accord.library.composing import floats, transposed
from accord.library.reference import Array, narrow, wide
from accord.library.reference import softmax as softmax_of

__all__ = ["attention", "attention_like", "attention_of", "qkv_attention"]


def attention_of(
    query: Any,
    key: Any,
    value: Any,
    *,
    scale: float = 0.0,
    causal: bool = False,
    window: int = -1,
    score: Callable[[Array, Array, Array, Array, int], Array] | None = None,
    mask: Any = None,
) -> Array:
    """The definition, in float64.

    Args:
        query: [B, H, Q, D].
        key: [B, G, K, D]; each of the G heads serves H / G query heads in a row.
        value: [B, G, K, E].
        scale: Of the products; 0 for ``1 / sqrt(D)``.
        causal: Query i sees the keys 0 to i.
        window: Keys that a query sees before its own place, and behind it if it is not causal; -1 for all.
        score: What becomes of scores: ``score(scores, query place, key place, head, number of heads)``.
        mask: Added to the scores, or bool: which keys are seen.
    """
    q, k, v = wide(query), wide(key), wide(value)
    heads, groups, length, keys = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    k, v = (np.repeat(t, heads // max(1, groups), axis=1) for t in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * (scale or 1 / np.sqrt(max(1, q.shape[3])))
    i, j = np.arange(length)[:, None], np.arange(keys)[None, :]
    if score is not None:
        scores = score(scores, i, j, np.arange(heads)[:, None, None], heads)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + wide(mask)
    seen = np.ones((length, keys), bool)
    if causal:
        seen &= j <= i
    if window >= 0:
        seen &= (j >= i - window) & (j <= i + window)
    weights = softmax_of(np.where(seen, scores, -np.inf))
    return np.einsum("bhqk,bhke->bhqe", weights, v)


def attention_like(op: Operator) -> Operator:
    """Promises of every kind of attention; what lies behind a mask may be anything but NaN."""
    floats(op, tight=False, nan=NanPolicy.UNDEFINED, batch=("B",)).constraint("H % G == 0", "D >= 1", "G >= 1")
    return op.scheduling(fuses="contraction")


@operator("accord::Attention")
def attention(
    query: Tensor["T", "B", "H", "Q", "D"],
    key: Tensor["T", "B", "G", "K", "D"],
    value: Tensor["T", "B", "G", "K", "E"],
    mask: Tensor["T", "B", "H", "Q", "K"] | None = None,
    *,
    scale: float = 0.0,
    causal: bool = False,
    window: int = -1,
) -> Tensor["T", "B", "H", "Q", "E"]:
    """``softmax(scale * query @ key.T + mask) @ value``; zeros for a query that sees no key.

    ``scale`` 0 stands for ``1 / sqrt(D)``. ``causal``: query i sees the keys 0 to i. ``window``: it sees the keys
    i - window to i + window only; -1 for all.
    """
    return narrow(attention_of(query, key, value, scale=scale, causal=causal, window=window, mask=mask), query)


attention_like(attention).constraint("E >= 1", "window >= -1")


@attention.composition
def in_blocks(b: Any, query: Any, key: Any, value: Any, mask: Any, *, scale: float, causal: int, window: int) -> Any:
    """ONNX's operator: its kernel walks blocks of keys, without the matrix of scores and without keys outside."""
    return b(
        "Attention",
        *(query, key, value, mask),
        scale=scale or None,
        is_causal=causal or None,
        left_window_size=None if window < 0 else window,
        right_window_size=None if window < 0 else window,
    )


@operator("accord::QKVAttention")
def qkv_attention(
    x: Tensor["T", "B", "S", "M"],
    weight: Tensor["T", "P", "M"],
    bias: Tensor["T", "P"] | None = None,
    *,
    heads: int,
    groups: int,
    causal: bool = False,
    scale: float = 0.0,
) -> Tensor["T", "B", "S", "P // (heads + 2 * groups) * heads"]:
    """The projection of ``x`` to queries, keys and values, and their attention.

    Rows of ``weight`` are those of ``heads`` query heads, then of ``groups`` key heads and as many value heads. Heads
    lie side by side in the result.
    """
    rows, length, _ = x.shape
    z = wide(x) @ wide(weight).T
    z = z if bias is None else z + wide(bias)
    z = z.reshape(rows, length, heads + 2 * groups, -1 if z.size else 1).transpose(0, 2, 1, 3)
    y = attention_of(z[:, :heads], z[:, heads : heads + groups], z[:, heads + groups :], scale=scale, causal=causal)
    return narrow(
        y.transpose(0, 2, 1, 3).reshape(
            rows, length, -1 if z.size else weight.shape[0] // (heads + 2 * groups) * heads
        ),
        x,
    )


floats(qkv_attention, tight=False, batch=("B",)).scheduling(fuses="contraction")
qkv_attention.constraint("groups >= 1", "heads % groups == 0", "P % (heads + 2 * groups) == 0", "P >= 1")


@qkv_attention.composition
def one_projection(
    b: Any, x: Any, weight: Any, bias: Any, *, heads: int, groups: int, causal: int, scale: float
) -> Any:
    """One product; attention reads its heads in place, as parts of the rows."""
    size = b.shape(weight)[0]
    y = b("MatMul", x, transposed(b, weight))
    y = y if bias is None else b("Add", y, bias)
    head = size // (heads + 2 * groups)
    parts = b.multi("Split", 3, y, b.ints(heads * head, groups * head, groups * head), axis=-1)
    attributes = {"q_num_heads": heads, "kv_num_heads": groups, "is_causal": causal or None, "scale": scale or None}
    return b("Attention", *parts, **attributes)
