"""Shape rules of attention operators and rotary embeddings."""

from __future__ import annotations

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import (
    dtype_attr,
    graph_attr,
    int_attr,
    operator,
    rank_of,
    same_dtype,
    same_size,
    str_attr,
)


def _heads(n: Inference, shape: Shape | None, heads: int, index: int) -> Shape | None:
    """``[batch, heads, sequence, head size]`` of a packed ``[batch, sequence, hidden]`` or of what is so already."""
    if shape is None or len(shape) == 4:
        return shape
    batch, sequence, hidden = shape
    if isinstance(hidden, int) and hidden % heads:
        raise n.error(
            "hidden size does not divide into heads", expected=f"a multiple of {heads}", found=hidden, value=index
        )
    return (batch, heads, sequence, D.floordiv(hidden, heads))


def _or_new(n: Inference, shape: Shape | None) -> Shape:
    return n.fresh_shape(4) if shape is None else shape


def _require_groups(n: Inference, q: DimLike, kv: DimLike) -> None:
    if isinstance(q, int) and isinstance(kv, int) and (kv == 0 or q % kv):
        raise n.error("query heads are no multiple of key heads", expected=f"a multiple of {kv}", found=q)


@operator("Attention", inputs=3)
def attention(n: Inference) -> list[Fact]:
    """The query's shape with the value's head size; present keys and values; the score matrix."""
    dtype, value_dtype = same_dtype(n, 0, 1, 4), same_dtype(n, 2, 5)
    shapes = [rank_of(n, i, 3, 4) for i in range(3)]
    ranks = {len(s) for s in shapes if s is not None}
    n.require(len(ranks) <= 1, "query, key and value differ in rank", expected="3 or 4 for all", found=sorted(ranks))
    n.require(n.has(4) == n.has(5), "past key and value come together", expected="both or none", found="one of them")
    mode = int_attr(n, "qk_matmul_output_mode", 0)
    n.require(0 <= mode <= 3, "qk_matmul_output_mode is unknown", expected="0 to 3", found=mode)
    rank = next(iter(ranks), None)
    q_heads, kv_heads = int_attr(n, "q_num_heads", 0, low=0), int_attr(n, "kv_num_heads", 0, low=0)
    if rank == 3:
        n.require(
            q_heads > 0 and kv_heads > 0,
            "packed inputs need q_num_heads and kv_num_heads",
            expected="both over 0",
            found=f"{q_heads} and {kv_heads}",
        )
    if rank is None:
        return [TensorFact(dtype, None), *(TensorFact(d, n.fresh_shape(4)) for d in (dtype, value_dtype, dtype))]
    q = _or_new(n, _heads(n, shapes[0], q_heads, 0))
    k = _or_new(n, _heads(n, shapes[1], kv_heads, 1))
    v = _or_new(n, _heads(n, shapes[2], kv_heads, 2))
    _require_groups(n, q[1], k[1])
    batch = same_size(n, same_size(n, q[0], k[0], "batch sizes", value=1), v[0], "batch sizes", value=2)
    same_size(n, q[3], k[3], "head sizes", value=1)
    heads = same_size(n, k[1], v[1], "numbers of heads", value=2)
    fresh = same_size(n, k[2], v[2], "sequence lengths", value=2)
    total = fresh
    past_k, past_v = (rank_of(n, i, 4) if n.has(i) else None for i in (4, 5))
    if n.has(4):
        lengths = [p[2] for p in (past_k, past_v) if p is not None]
        total = fresh + lengths[0] if lengths else n.fresh()
        for index, past, new in ((4, past_k, k), (5, past_v, v)):
            if past is not None:
                same_size(n, batch, past[0], "batch sizes", value=index)
                same_size(n, heads, past[1], "numbers of heads", value=index)
                same_size(n, lengths[0], past[2], "past lengths", value=index)
                same_size(n, new[3], past[3], "head sizes", value=index)
    y = (batch, q[1], q[2], v[3]) if rank == 4 else (batch, q[2], q[1] * v[3])
    return [
        TensorFact(dtype, y),
        TensorFact(dtype, (batch, heads, total, k[3])),
        TensorFact(value_dtype, (batch, heads, total, v[3])),
        TensorFact(dtype, (batch, q[1], q[2], total)),
    ]


@operator("FlexAttention", inputs=3, domain="ai.onnx.preview")
def flex_attention(n: Inference) -> list[Fact]:
    """``[batch, query heads, query length, value head size]``; the modifiers keep the score matrix's shape."""
    dtype = same_dtype(n, 0, 1, 2)
    q, k, v = (_or_new(n, rank_of(n, i, 4)) for i in range(3))
    _require_groups(n, q[1], k[1])
    batch = same_size(n, same_size(n, q[0], k[0], "batch sizes", value=1), v[0], "batch sizes", value=2)
    same_size(n, q[3], k[3], "head sizes", value=1)
    same_size(n, k[1], v[1], "numbers of heads", value=2)
    keys = same_size(n, k[2], v[2], "sequence lengths", value=2)
    default = ir.DataType.DOUBLE if dtype is ir.DataType.DOUBLE else ir.DataType.FLOAT
    scores = TensorFact(dtype_attr(n, "softmax_precision", default), (batch, q[1], q[2], keys))
    for name in ("score_mod", "prob_mod"):
        if name in n.node.attributes:
            body = graph_attr(n, name)
            n.require(len(body.inputs) == 1, f"{name} takes one input", expected=1, found=len(body.inputs))
            n.analyzer.facts[body.inputs[0]] = scores
            n.analyzer.infer_graph(body)
    return [TensorFact(dtype, (batch, q[1], q[2], v[3]))]


@operator("RotaryEmbedding", inputs=3)
def rotary_embedding(n: Inference) -> list[Fact]:
    """The input's fact."""
    dtype = same_dtype(n, 0, 1, 2)
    x = rank_of(n, 0, 3, 4)
    heads = int_attr(n, "num_heads", 0, low=0)
    width = int_attr(n, "rotary_embedding_dim", 0, low=0)
    if x is not None and len(x) == 3:
        n.require(heads > 0, "a packed input needs num_heads", expected="over 0", found=heads)
    by_heads = _or_new(n, _heads(n, x, heads, 0))
    size = width or by_heads[3]
    n.require(not isinstance(size, int) or size % 2 == 0, "the rotation has no pairs", expected="even", found=str(size))
    n.require(
        not isinstance(by_heads[3], int) or width <= by_heads[3],
        "the rotation is wider than a head",
        expected=f"at most {by_heads[3]}",
        found=width,
    )
    places = (by_heads[0], by_heads[2])
    positions = rank_of(n, 3, 2) if n.has(3) else None
    rows = [(3, positions)] if positions is not None else []
    for i in (1, 2):
        cache = rank_of(n, i, 2 if n.has(3) else 3)
        if cache is None:
            continue
        if x is not None or width:
            same_size(n, D.floordiv(size, 2), cache[-1], "widths of the rotation", value=i)
        if not n.has(3):
            rows.append((i, cache[:2]))
    for i, found in rows if x is not None else []:
        for a, b, what in zip(places, found, ("batch sizes", "sequence lengths"), strict=True):
            same_size(n, a, b, what, value=i)
    return [TensorFact(dtype, x)]


@operator("LinearAttention", inputs=3, required=("q_num_heads", "kv_num_heads"))
def linear_attention(n: Inference) -> list[Fact]:
    """``[B, T, H_q * d_v]``, and the state ``[B, H_kv, d_k, d_v]``."""
    dtype = same_dtype(n, 0, 1, 2, 4, 5)
    q_heads, kv_heads = int_attr(n, "q_num_heads", 1, low=1), int_attr(n, "kv_num_heads", 1, low=1)
    str_attr(n, "update_rule", "gated_delta", among=("linear", "gated", "delta", "gated_delta"))
    _require_groups(n, q_heads, kv_heads)
    q = _or_new(n, _heads(n, rank_of(n, 0, 3), q_heads, 0))
    k = _or_new(n, _heads(n, rank_of(n, 1, 3), kv_heads, 1))
    v = _or_new(n, _heads(n, rank_of(n, 2, 3), kv_heads, 2))
    for index, other in ((1, k), (2, v)):
        same_size(n, q[0], other[0], "batch sizes", value=index)
        same_size(n, q[2], other[2], "sequence lengths", value=index)
    same_size(n, q[3], k[3], "head sizes", value=1)
    past = rank_of(n, 3, 4) if n.has(3) else None
    state = (q[0], kv_heads, k[3], v[3])
    if past is not None:
        state = tuple(same_size(n, a, b, "sizes of the state", value=3) for a, b in zip(state, past, strict=True))  # type: ignore[assignment]
    state_dtype = n.tensor(3).dtype if n.has(3) else dtype
    return [TensorFact(dtype, (q[0], q[2], v[3] * q_heads)), TensorFact(state_dtype, state)]
