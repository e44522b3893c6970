"""Grouped-query attention on a cache, and block-sparse attention."""

from __future__ import annotations

import numpy as np
import pytest
from microsoft_harness import check, expand_model, node_model, normal, rng, run_ort, run_ort_shared

F, I32 = np.float32, np.int32
N, K, H = 4, 2, 16
COS, SIN = normal(64, H // 2, seed=5), normal(64, H // 2, seed=6)
HEADS = {"num_heads": N, "kv_num_heads": K}


def new_tokens(batch, length, packed=False):
    q, k, v = (
        normal(batch, length, N * H, seed=1),
        normal(batch, length, K * H, seed=2),
        normal(batch, length, K * H, seed=3),
    )
    return [np.concatenate([q, k, v], axis=-1), None, None] if packed else [q, k, v]


def filled_cache(lengths, room):
    """Key and value caches with as many entries as each sequence has, zeros after them."""
    caches = [normal(len(lengths), K, room, H, seed=i) for i in (7, 8)]
    for cache in caches:
        for i, length in enumerate(lengths):
            cache[i, :, length:] = 0
    return caches


def specified(lengths, new):
    """What the operator promises: rows of tokens that are no padding, and the filled part of the cache."""

    def view(outputs):
        parts = []
        for i, output in enumerate(map(np.asarray, outputs)):
            for entry, length, count in zip(output, lengths, new, strict=True):
                parts.append(entry[:count] if i == 0 else entry[:, :length] if i < 3 else entry[:, :count, :length])
        return parts

    return view


def grouped(length, lengths, *, room=None, total=None, packed=False, rotary=False, outputs=3, extra=None, **attributes):
    """Run with ``lengths`` tokens in each sequence after the call; ``room`` is the cache's length, if there is one."""
    total = total or max(lengths)
    cache = [None, None] if room is None else filled_cache([max(n - length, 0) for n in lengths], room)
    counts = [np.array(lengths, I32) - 1, np.array([total], I32)]
    inputs = [*new_tokens(len(lengths), length, packed), *cache, *counts, *((COS, SIN) if rotary else (None, None))]
    for index, value in (extra or {}).items():
        inputs += [None] * (index + 1 - len(inputs))
        inputs[index] = value
    view = specified(lengths, [min(length, n) for n in lengths])
    check(
        "GroupQueryAttention",
        inputs,
        {**HEADS, "do_rotary": int(rotary), **attributes},
        [F] * outputs,
        constants=(7, 8) if rotary else (),
        view=view,
    )


#: New tokens, lengths after the call, length of the cache: prompts, padded prompts, steps with and without room.
CALLS = [(5, [5, 5], None), (5, [5, 3], None), (1, [7, 5], 6), (1, [7, 5], 16), (5, [5, 3], 16), (3, [9], 6)]


@pytest.mark.parametrize(("length", "lengths", "room"), CALLS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_prompts_and_steps(length, lengths, room, packed, rotary):
    grouped(length, lengths, room=room, packed=packed, rotary=rotary)


@pytest.mark.parametrize("window", [1, 2, 4, 20])
def test_local_window(window):
    grouped(5, [5, 5], local_window_size=window)
    grouped(1, [7, 5], room=6, local_window_size=window)


def test_softcap_and_scale():
    grouped(5, [5, 4], scale=0.3, softcap=2.0)


@pytest.mark.parametrize("extra", [{}, {11: normal(N)}])
def test_sinks(extra):
    smooth = {} if extra else {"smooth_softmax": 1}
    grouped(5, [5, 4], extra=extra, **smooth)
    grouped(1, [7, 5], room=12, softcap=1.5, extra=extra, **smooth)


def test_bias():
    grouped(5, [5, 5], extra={10: normal(2, N, 5, 5)})
    grouped(1, [7, 5], room=6, extra={10: normal(1, 1, 1, 7)})
    grouped(1, [7, 5], room=12, extra={10: normal(1, 1, 1, 7), 11: normal(N)})


def test_rotary_variants():
    grouped(5, [5, 5], rotary=True, rotary_interleaved=1)
    grouped(1, [7, 5], room=6, rotary=True, extra={9: np.array([[3], [9]], np.int64)})


def test_without_causality():
    grouped(5, [5, 5], causal=0)
    grouped(2, [8], room=6, causal=0)


@pytest.mark.parametrize("kind", [1, 2])
def test_scores(kind):
    grouped(5, [5, 5], outputs=4, qk_output=kind)
    grouped(1, [7, 5], room=6, outputs=4, qk_output=kind, extra={10: normal(1, 1, 1, 7)})
    grouped(3, [9], room=12, outputs=4, qk_output=kind, softcap=2.0)


@pytest.mark.parametrize(("lengths", "new"), [([9, 4], [4, 2]), ([10, 4], [1, 4])])
@pytest.mark.parametrize("rotary", [False, True])
def test_padded_chunks(lengths, new, rotary):
    batch, room = 2, 14
    counts = [np.array(lengths, I32) - 1, np.array([room], I32)]
    cache = [normal(batch, K, room, H, seed=i) for i in (4, 5)]
    inputs = [*new_tokens(batch, 4), *cache, *counts, *((COS, SIN) if rotary else (None, None)), *[None] * 7]
    inputs.append(np.array(new, I32))
    attributes = {**HEADS, "do_rotary": int(rotary)}
    constants = (7, 8) if rotary else ()
    view = specified(lengths, new)
    check("GroupQueryAttention", inputs, attributes, [F] * 3, constants=constants, view=view)


@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("length", "lengths", "room"), [(1, [7, 5], 6), (1, [7, 5], 12), (5, [5, 5], 12)])
def test_cache_of_integers(kind, bits, length, lengths, room):
    dtype, width = (np.int8, H) if bits == 8 else (np.uint8, H // 2)
    cache = [rng(i).integers(0, 256, (2, K, room, width)).astype(np.uint8).view(dtype) for i in range(2)]
    step = 0.02 if bits == 8 else 0.3
    scale = np.array([step], F) if kind == "PER_TENSOR" else rng().uniform(step / 2, step * 1.5, K * H).astype(F)
    inputs = [*new_tokens(2, length), *cache, np.array(lengths, I32) - 1, np.array([max(lengths)], I32), *[None] * 5]
    attributes = {**HEADS, "k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    # ONNX Runtime rounds the queries too where the cache is in integers.
    loose = {"rtol": 2e-2, "atol": 2e-2, "steps": 1 if bits == 8 else 0}
    view = specified(lengths, [length, length])
    check("GroupQueryAttention", [*inputs, scale, scale], attributes, [F, dtype, dtype], view=view, **loose)


def test_normalised_queries_and_keys():
    q, k, v = new_tokens(2, 5)
    weights = normal(H, seed=8), normal(H, seed=9)

    def normalised(x, heads, weight):
        x = x.reshape(2, 5, heads, H)
        return (x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight).reshape(2, 5, -1).astype(F)

    counts = [np.array([4, 4], I32), np.array([5], I32)]
    plain = [normalised(q, N, weights[0]), normalised(k, K, weights[1]), v, None, None, *counts]
    model = node_model("GroupQueryAttention", plain, HEADS, [F] * 3)
    expected = run_ort(model, {i.name: plain[int(i.name[1:])] for i in model.graph.input})
    inputs = [q, k, v, None, None, *counts, *[None] * 7, *weights]
    check("GroupQueryAttention", inputs, HEADS, [F] * 3, expected=expected)


def test_a_cache_that_keeps_a_window_is_left_alone():
    inputs = [*new_tokens(1, 1), *filled_cache([4], 8), np.array([4], I32), np.array([5], I32)]
    attributes = {**HEADS, "local_window_size": 4, "sliding_window_cache": 1}
    model = node_model("GroupQueryAttention", inputs, attributes, [F] * 3)
    assert [n.op_type for n in expand_model(model).graph.node] == ["GroupQueryAttention"]


# Block-sparse attention

ROWS = np.array([[0, 1, 3, 5, 8], [0, 1, 3, 6, 9]], I32)
COLUMNS = np.array([[0, 0, 1, 1, 2, 1, 2, 3, -1], [0, 0, 1, 0, 1, 2, 0, 2, 3]], I32)


@pytest.mark.parametrize(("length", "lengths"), [(40, [40, 40]), (1, [41, 41]), (50, [50, 50]), (1, [60, 60])])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_sparse_attention(length, lengths, packed, rotary):
    cache = filled_cache([n - length for n in lengths], 64)
    counts = [np.array([max(lengths)], I32), np.array(lengths, I32)]
    inputs = [*new_tokens(2, length, packed), *cache, ROWS, COLUMNS, *counts, *((COS, SIN) if rotary else ())]
    attributes = {**HEADS, "sparse_block_size": 16, "do_rotary": int(rotary)}
    constants = (5, 6, 9, 10) if rotary else (5, 6)
    model = node_model("SparseAttention", inputs, attributes, [F] * 3, constants=constants)
    feeds = {i.name: inputs[int(i.name[1:])] for i in model.graph.input}
    expected = run_ort_shared(model, feeds, {"y1": "x3", "y2": "x4"})
    view = specified(lengths, [length, length])
    check("SparseAttention", inputs, attributes, [F] * 3, constants=constants, view=view, expected=expected)


def test_sparse_attention_counts_each_sequence_by_itself():
    inputs = [
        *new_tokens(2, 1),
        *filled_cache([40, 29], 64),
        ROWS,
        COLUMNS,
        np.array([41], I32),
        np.array([41, 30], I32),
    ]
    attributes = {**HEADS, "sparse_block_size": 16}
    blocks = np.zeros((2, 4, 4), bool)
    for layout in range(2):
        for row in range(4):
            blocks[layout, row, COLUMNS[layout, ROWS[layout, row] : ROWS[layout, row + 1]]] = True
    outputs, presents = [], [inputs[3].copy(), inputs[4].copy()]
    for i, length in enumerate((41, 30)):
        q = inputs[0][i].reshape(N, H)
        for cache, x in zip(presents, inputs[1:3], strict=True):
            cache[i, :, length - 1] = x[i].reshape(K, H)
        row = []
        for head in range(N):
            k, v = (p[i, head // 2, :length] for p in presents)
            seen = blocks[head % 2, (length - 1) // 16, np.arange(length) // 16]
            scores = np.where(seen, k @ q[head] / np.sqrt(H), -np.inf)
            weights = np.exp(scores - scores.max())
            row.append(weights / weights.sum() @ v)
        outputs.append(np.concatenate(row)[None])
    expected = [np.stack(outputs).astype(F), *presents]
    check("SparseAttention", inputs, attributes, [F] * 3, constants=(5, 6), expected=expected)
