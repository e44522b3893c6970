"""Lists of token ids: hashes of n-grams, and where two lists part and meet."""

from __future__ import annotations

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, scalar
from accord.ops.microsoft.schemas import DOMAIN


def _positions(text: Array, part: Array) -> list[int]:
    """Where ``part`` occurs in ``text``."""
    return [i for i in range(len(text) - len(part) + 1) if np.array_equal(text[i : i + len(part)], part)]


@implements("BifurcationDetector", domain=DOMAIN, defaults={"min_ngram_size": 1, "max_ngram_size": 3})
def bifurcation_detector(
    op: OpNode, source: Array, current: Array, previous: Array, predicted: Array | None = None
) -> tuple[Array, Array]:
    """The predictions up to the first that leaves the source, and where in the source the result goes on.

    Ge et al., "Lossless Acceleration for Seq2seq Generation with Aggressive Decoding" (2022).
    """
    tokens = current
    if predicted is not None:
        rest = source[scalar(previous) :]
        require(len(predicted) == len(rest) + 1, "one prediction for each token left in the source and one more")
        equal = predicted[:-1] == rest
        parted = len(rest) if equal.all() else int(np.argmin(equal))
        tokens = np.concatenate([current, predicted[: parted + 1]])
    index = -1
    for order in range(op["min_ngram_size"], op["max_ngram_size"] + 1):
        if order > len(tokens):
            break
        found = _positions(source, tokens[len(tokens) - order :])
        if not found:
            break
        index = found[0] + order
        if index >= len(source):
            break
        if len(found) > 1:
            index = -1
    return tokens, np.full(previous.shape, index, dtype=np.int64)


def _hash_sequence(
    op: OpNode,
    ids: Array,
    history: Array,
    segments: Array,
    tables: tuple[Array, Array, Array | None],
    missing: int,
    eos: int | None,
) -> Array:
    """Hashes ``[T, orders * heads]`` of one sequence; ``history`` and ``segments`` begin before it.

    Args:
        op: The node.
        ids: ``[T]``.
        history: The ids before, ``[largest order - 1]``.
        segments: Segment of each id of ``history`` and ``ids``; a change of it ends an n-gram.
        tables: Multipliers, sizes of the vocabularies, offsets.
        missing: Stands for an id that the n-gram does not reach.
        eos: Ends an n-gram after itself; None for nothing.
    """
    multipliers, sizes, offsets = tables
    largest, heads = op["max_ngram_size"], op["n_head_per_ngram"]
    joined = np.concatenate([history, ids])
    start = len(history)
    position = np.arange(start, len(joined))
    # First index that an n-gram at each position may read.
    breaks = np.concatenate([[False], segments[1:] != segments[:-1]])
    if eos is not None:
        breaks[1:] |= joined[:-1] == eos
    first = np.maximum.accumulate(np.where(breaks, np.arange(len(joined)), 0))[position]
    mix = ids * multipliers[0]
    columns = []
    for shift in range(1, largest):
        index = position - shift
        read = np.where(index >= first, joined[np.maximum(index, 0)], np.array(missing, ids.dtype))
        mix = mix ^ (read * multipliers[shift])
        for head in range(heads):
            column = (shift - 1) * heads + head
            value = mix % sizes[column]
            columns.append(value if offsets is None else value + offsets[column])
    return np.stack(columns, axis=-1).astype(ids.dtype)


def _missing(op: OpNode, eos: Array | None) -> tuple[int, int | None]:
    """What stands for absent ids, and the id that resets."""
    if eos is None:
        return op["pad_id"], None
    return scalar(eos), scalar(eos) if op["reset_on_eos"] else None


@implements("NGramHashMapping", domain=DOMAIN, defaults={"reset_on_eos": 0})
def n_gram_hash_mapping(
    op: OpNode,
    ids: Array,
    multipliers: Array,
    sizes: Array,
    past: Array | None = None,
    offsets: Array | None = None,
    eos: Array | None = None,
    segments: Array | None = None,
) -> tuple[Array, Array]:
    """Hashes ``[B, T, orders * heads]``, and the ids to hand on."""
    missing, reset = _missing(op, eos)
    before = op["max_ngram_size"] - 1
    history = np.full((len(ids), before), missing, ids.dtype) if past is None else past
    rows = []
    for i, row in enumerate(ids):
        # Segments are compared within the call only.
        marks = np.zeros(len(row), np.int64) if segments is None else segments[i]
        marks = np.concatenate([np.repeat(marks[:1], before), marks])
        rows.append(_hash_sequence(op, row, history[i], marks, (multipliers, sizes, offsets), missing, reset))
    present = np.concatenate([history, ids], axis=1)
    return np.stack(rows), present[:, present.shape[1] - before :]


@implements("VarlenNGramHashMapping", domain=DOMAIN, defaults={"reset_on_eos": 0, "state_update_capacity": 0})
def varlen_n_gram_hash_mapping(
    op: OpNode,
    ids: Array,
    multipliers: Array,
    sizes: Array,
    sums: Array,
    past: Array | None = None,
    offsets: Array | None = None,
    eos: Array | None = None,
    segments: Array | None = None,
    past_segments: Array | None = None,
    captured: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """As :func:`n_gram_hash_mapping` for sequences one after the other; also the states after the first tokens."""
    missing, reset = _missing(op, eos)
    before, batch = op["max_ngram_size"] - 1, len(sums) - 1
    history = np.full((batch, before), missing, ids.dtype) if past is None else past
    capacity = op["state_update_capacity"]
    states = np.full((batch, capacity, before), op["pad_id"], ids.dtype)
    hashes, present = [], np.empty((batch, before), ids.dtype)
    marks_out = np.zeros((batch, before), np.int32)
    for i in range(batch):
        row = ids[sums[i] : sums[i + 1]]
        own = np.zeros(len(row), np.int32) if segments is None else segments[sums[i] : sums[i + 1]]
        earlier = np.repeat(own[:1], before) if past_segments is None else past_segments[i]
        marks = np.concatenate([earlier, own])
        hashes.append(_hash_sequence(op, row, history[i], marks, (multipliers, sizes, offsets), missing, reset))
        joined = np.concatenate([history[i], row])
        present[i] = joined[len(joined) - before :]
        marks_out[i] = marks[len(marks) - before :]
        count = 0 if captured is None else min(max(int(captured[i]), 0), capacity, len(row))
        for j in range(count):
            states[i, j] = joined[j + 1 : j + 1 + before]
    return np.concatenate(hashes), present, marks_out, states
