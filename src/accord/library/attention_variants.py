"""Kinds of attention that differ in what becomes of a score: each is its definition and one line for the kernel.

The kernel applies the line to vectors of scores in registers, with the places of query and key and the number of the
head at hand; no matrix of scores or biases is ever made. To add another::

    @operator("accord::MyAttention")
    def my_attention(query: Query, key: Key, value: Value) -> Result:
        return narrow(attention_of(query, key, value, score=lambda s, i, j, h, heads: ...), query)

    scored(my_attention, lambda s, i, j, h, heads: ...)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accord.contract.code import ScoreFunction
from accord.contract.operator import Operator, Tensor, operator
from accord.expr.lang import Expr, call
from accord.expr.primitives import lt, select
from accord.library.attention import attention_like, attention_of
from accord.library.reference import narrow

__all__ = ["alibi_attention", "prefix_attention", "scored", "sliding_window_attention", "soft_cap_attention"]

Query = Tensor["T", "B", "H", "Q", "D"]
Key = Tensor["T", "B", "G", "K", "D"]
Value = Tensor["T", "B", "G", "K", "E"]
Result = Tensor["T", "B", "H", "Q", "E"]


def scored(op: Operator, score: Callable[..., Expr], *, causal: bool = False, window: str = "") -> Operator:
    """Give an operator on query, key and value the kernel that attends with a function of scores.

    Args:
        op: The operator.
        score: ``score(s, i, j, h, heads, **attributes)``: the score, the places of query and key, the number of the
            head and how many there are, as float32 expressions (float64 for float64), and the operator's attributes.
        causal: Queries see no keys behind their own place, whatever the function says; such blocks are left out.
        window: Name of an attribute: keys further than that from the query's place are not seen.
    """
    return attention_like(op).kernel("blocks", "generated", ScoreFunction(score, causal, window))


@operator("accord::ALiBiAttention")
def alibi_attention(query: Query, key: Key, value: Value) -> Result:
    """Causal attention with linear biases: scores fall with distance, at a slope of ``2**(-8 (h + 1) / heads)``.

    Press, Smith and Lewis, "Train Short, Test Long", ICLR 2022, section 3.
    """
    return narrow(
        attention_of(
            query, key, value, causal=True, score=lambda s, i, j, h, heads: s - 2.0 ** (-8 * (h + 1) / heads) * (i - j)
        ),
        query,
    )


scored(alibi_attention, lambda s, i, j, h, heads: s - call("exp2", (h + 1) * -8 / heads) * (i - j), causal=True)


@operator("accord::SoftCapAttention")
def soft_cap_attention(query: Query, key: Key, value: Value, *, cap: float = 50.0) -> Result:
    """Scores stay between ``-cap`` and ``cap``: ``cap * tanh(score / cap)`` (Gemma Team, "Gemma 2", 2024)."""
    return narrow(attention_of(query, key, value, score=lambda s, *_: cap * np.tanh(s / cap)), query)


scored(soft_cap_attention, lambda s, i, j, h, heads, cap: call("tanh", s / cap) * cap)


@operator("accord::SlidingWindowAttention")
def sliding_window_attention(query: Query, key: Key, value: Value, *, window: int = 256) -> Result:
    """Causal attention to the ``window`` keys before (Beltagy, Peters and Cohan, "Longformer", 2020, section 3.1)."""
    return narrow(attention_of(query, key, value, causal=True, window=window), query)


scored(sliding_window_attention, lambda s, *_, window: s, causal=True, window="window")
sliding_window_attention.constraint("window >= 0")


@operator("accord::PrefixAttention")
def prefix_attention(query: Query, key: Key, value: Value, *, prefix: int = 0) -> Result:
    """Causal attention, but for a prefix that everybody sees (Raffel et al., "T5", 2020, section 3.2.1)."""
    return narrow(
        attention_of(query, key, value, score=lambda s, i, j, *_: np.where((j <= i) | (j < prefix), s, -np.inf)), query
    )


scored(
    prefix_attention,
    lambda s, i, j, h, heads, prefix: select(lt(j, i + 1.0) | lt(j, prefix), s, float("-inf")),
)
