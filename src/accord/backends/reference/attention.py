"""Attention and the operators around it: rotary embedding, linear attention."""

from __future__ import annotations

import math

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import numpy_dtype, require, to_accumulator, to_double, widen


def _split_heads(x: Array, heads: int) -> Array:
    """(batch, length, heads * size) to (batch, heads, length, size)."""
    require(heads is not None and heads > 0, "the number of heads is needed for inputs of rank 3")
    require(x.shape[2] % heads == 0, f"{x.shape[2]} features do not split into {heads} heads")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def _join_heads(x: Array) -> Array:
    """(batch, heads, length, size) to (batch, length, heads * size)."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def _bias(op: OpNode, q_length: int, k_length: int, mask: Array | None, offset: Array, valid: Array | None) -> Array:
    """What is added to the scores: mask, causal frontier, window and padding; -inf where a key is not seen.

    Args:
        op: The node.
        q_length: Number of queries.
        k_length: Number of keys.
        mask: The mask input, or None.
        offset: Number of keys before the first query, one for each batch entry or one for all.
        valid: Number of keys that are not padding by batch entry, or None.

    Returns:
        Float array that broadcasts to (batch, heads, queries, keys).
    """
    queries = np.arange(q_length)[:, np.newaxis] + offset.reshape(-1, 1, 1, 1)
    keys = np.arange(k_length)
    seen = np.ones((1, 1, q_length, k_length), dtype=bool)
    if op["is_causal"]:
        seen = seen & (keys <= queries)
    left, right = (-1 if op[name] is None else op[name] for name in ("left_window_size", "right_window_size"))
    require(left >= -1 and right >= -1, "a window size is negative")
    if left >= 0:
        seen = seen & (keys >= queries - left)
    if right >= 0:
        seen = seen & (keys <= queries + right)
    if valid is not None:
        seen = seen & (keys < valid.reshape(-1, 1, 1, 1))
    if mask is None:
        return np.where(seen, 0.0, -np.inf)
    missing = k_length - mask.shape[-1]
    require(missing >= 0, f"a mask for {mask.shape[-1]} keys where there are {k_length}")
    values = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
    values = np.pad(values, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=-np.inf)
    return np.where(seen, values, -np.inf)


@implements("Attention")
def attention(
    op: OpNode,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    valid: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Scaled dot-product attention with grouped heads, masks, windows and a cache; a query without keys gives 0."""
    require(q.ndim == k.ndim == v.ndim and q.ndim in (3, 4), "Q, K and V must all have rank 3 or 4")
    require((past_key is None) == (past_value is None), "past_key and past_value go together")
    require(valid is None or past_key is None, "nonpad_kv_seqlen does not go with past_key")
    packed = q.ndim == 3
    if packed:
        q_heads, k_heads, v_heads = (
            _split_heads(t, op[name]) for t, name in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads"))
        )
    else:
        q_heads, k_heads, v_heads = q, k, v
    present_key = k_heads if past_key is None else np.concatenate([past_key, k_heads], axis=2)
    present_value = v_heads if past_value is None else np.concatenate([past_value, v_heads], axis=2)
    require(q_heads.shape[1] % present_key.shape[1] == 0, "the query heads are not a multiple of the key heads")
    group = q_heads.shape[1] // present_key.shape[1]
    keys, values = (np.repeat(to_accumulator(t), group, axis=1) for t in (present_key, present_value))
    root = math.sqrt(1 / math.sqrt(q_heads.shape[3]) if op["scale"] is None else op["scale"])
    scores = np.matmul(to_accumulator(q_heads) * root, np.swapaxes(keys, -1, -2) * root)
    shown = scores
    if op["softcap"]:
        scores = np.tanh(scores / op["softcap"]) * op["softcap"]
    capped = scores
    q_length, k_length = scores.shape[-2:]
    if valid is not None:
        offset = valid.astype(np.int64) - q_length
    else:
        offset = np.array(0 if past_key is None else past_key.shape[2])
    bias = _bias(op, q_length, k_length, mask, offset, valid)
    # A key that is not seen stays out even if its score is not a number.
    biased = np.where(np.isneginf(bias), -np.inf, scores + bias)
    probabilities = _masked_softmax(
        biased, q.dtype if op["softmax_precision"] is None else numpy_dtype(op["softmax_precision"])
    )
    y = np.matmul(probabilities, values)
    if packed:
        y = _join_heads(y)
    shown = {0: shown, 1: capped, 2: biased, 3: probabilities}[op["qk_matmul_output_mode"]]
    return y.astype(q.dtype), present_key, present_value, shown.astype(q.dtype)


def _masked_softmax(scores: Array, precision: np.dtype[np.generic]) -> Array:
    """Softmax over the last axis of scores rounded to a precision; a row of -inf gives zeros."""
    rounded = widen(scores.astype(precision))
    peak = rounded.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(rounded - np.where(np.isneginf(peak), 0, peak))
    total = weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights / np.where(total == 0, 1, total))


@implements("RotaryEmbedding")
def rotary_embedding(
    op: OpNode, x: Array, cos_cache: Array, sin_cache: Array, position_ids: Array | None = None
) -> Array:
    """Rotate pairs of features by angles that grow with the position.

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).
    """
    wide = to_double(x)
    heads = _split_heads(wide, op["num_heads"]) if x.ndim == 3 else wide
    require(heads.ndim == 4, f"the input has rank {x.ndim}, not 3 or 4")
    size = op["rotary_embedding_dim"] or heads.shape[3]
    require(size % 2 == 0 and size <= heads.shape[3], f"{size} features of {heads.shape[3]} cannot be rotated")
    cos, sin = to_double(cos_cache), to_double(sin_cache)
    if position_ids is not None:
        require(
            bool(((position_ids >= 0) & (position_ids < len(cos))).all()),
            f"a position lies outside the {len(cos)} of the caches",
        )
        cos, sin = cos[position_ids], sin[position_ids]
    require(cos.shape[-1] == sin.shape[-1] == size // 2, f"the caches must have {size // 2} columns")
    cos, sin = cos[:, np.newaxis], sin[:, np.newaxis]
    rotated, rest = heads[..., :size], heads[..., size:]
    if op["interleaved"]:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., : size // 2], rotated[..., size // 2 :]
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if op["interleaved"]:
        rotated = np.stack([real, imaginary], axis=-1).reshape(rotated.shape)
    else:
        rotated = np.concatenate([real, imaginary], axis=-1)
    result = np.concatenate([rotated, rest], axis=-1)
    if x.ndim == 3:
        result = _join_heads(result)
    return result.astype(x.dtype)


_RULES = ("linear", "gated", "delta", "gated_delta")


@implements("LinearAttention")
def linear_attention(
    op: OpNode,
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
) -> tuple[Array, Array]:
    """Attention without softmax, as a recurrence over a matrix state; computed in float32 step by step."""
    rule = op["update_rule"]
    require(rule in _RULES, f"update_rule '{rule}' is unknown")
    require((decay is not None) == (rule in ("gated", "gated_delta")), f"rule '{rule}' and decay do not fit")
    require((beta is not None) == (rule in ("delta", "gated_delta")), f"rule '{rule}' and beta do not fit")
    q_heads, kv_heads = op["q_num_heads"], op["kv_num_heads"]
    require(kv_heads > 0 and q_heads % kv_heads == 0, f"{q_heads} query heads on {kv_heads} heads")
    q, k, v = (
        _split_heads(t.astype(np.float32), heads) for t, heads in ((query, q_heads), (key, kv_heads), (value, kv_heads))
    )
    batch, _, steps, size = q.shape
    shape = (batch, kv_heads, size, v.shape[3])
    require(k.shape[3] == size, f"queries of {size} features and keys of {k.shape[3]}")
    require(past_state is None or past_state.shape == shape, f"the past state must have the shape {shape}")
    state = np.zeros(shape, dtype=np.float32) if past_state is None else past_state.astype(np.float32)
    if decay is not None:
        require(decay.shape[2] in (kv_heads, kv_heads * size), f"decay has {decay.shape[2]} features")
        gate = np.exp(_split_heads(decay.astype(np.float32), kv_heads))  # last axis: 1 or size
    if beta is not None:
        require(beta.shape[2] in (1, kv_heads), f"beta has {beta.shape[2]} features")
        rate = beta.astype(np.float32).transpose(0, 2, 1)[..., np.newaxis]
    scale = op["scale"] or 1 / math.sqrt(size)
    outputs = np.zeros((batch, q_heads, steps, v.shape[3]), dtype=np.float32)
    for t in range(steps):
        written = v[:, :, t]
        if decay is not None:
            state = state * gate[:, :, t][..., np.newaxis]
        if beta is not None:
            written = rate[:, :, t] * (written - np.einsum("bhkv,bhk->bhv", state, k[:, :, t]))
        state = state + k[:, :, t][..., np.newaxis] * written[..., np.newaxis, :]
        read = np.repeat(state, q_heads // kv_heads, axis=1)
        outputs[:, :, t] = scale * np.einsum("bhk,bhkv->bhv", q[:, :, t], read)
    kept = query.dtype if past_state is None else past_state.dtype
    return _join_heads(outputs).astype(query.dtype), state.astype(kept)
