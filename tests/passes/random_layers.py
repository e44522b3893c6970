"""More kinds of nodes for random graphs: layers, and what looks places up or chooses by content."""

from __future__ import annotations

import numpy as np
from random_graphs import DISTURBED, F16, F32, I32, I64, MOST_ELEMENTS, SIZES, U8, RandomGraph, Value

__all__ = ["LAYERS"]


def _wide(v: Value) -> bool:
    return v.array.ndim >= 1 and v.array.size > 0


def _axis(g: RandomGraph, v: Value) -> int:
    return g.between(-v.array.ndim, v.array.ndim - 1)


def gather(g: RandomGraph) -> None:
    v = g.value(_wide)
    if v is None:
        return
    axis = _axis(g, v)
    shape = [g.pick(SIZES) for _ in range(g.between(0, 2))]
    places = g.rng.integers(-v.shape[axis], v.shape[axis], shape).astype(g.pick((I32, I64)))
    g.add("Gather", [v, g.new(places.dtype, shape, places)], axis=axis)


def scatter(g: RandomGraph) -> None:
    """Places are different ones, or what lands on one of them is added up."""
    v = g.value(lambda v: _wide(v) and v.dtype in (F32, F16, I32, I64))
    if v is None:
        return
    axis = _axis(g, v)
    length = v.shape[axis]
    if g.chance(0.5):
        shape = tuple(g.between(1, d) for d in v.shape)
        places = np.stack([g.rng.permutation(length) for _ in range(v.array.size // length)], -1)
        places = np.moveaxis(places.reshape(length, *np.delete(v.shape, axis)), 0, axis)[tuple(map(slice, shape))]
        reduction = g.pick(("none", "max", "add"))
        added = reduction == "add" and v.floating
        updates = g.new(v.dtype, shape)
        g.add("ScatterElements", [v, g.constant(places), updates], exact=not added, axis=axis, reduction=reduction)
        return
    count = g.between(1, v.shape[0])
    places = g.rng.permutation(v.shape[0])[:count, None]
    g.add("ScatterND", [v, g.constant(places), g.new(v.dtype, (count, *v.shape[1:]))])


def top(g: RandomGraph) -> None:
    v = g.value(lambda v: _wide(v) and v.exact and v.dtype in (F32, F16, I32, I64, U8))
    if v is not None:
        axis = _axis(g, v)
        count = g.integers([g.between(1, v.shape[axis])])
        g.add("TopK", [v, count], outputs=2, axis=axis, largest=g.pick((0, 1)), sorted=1)


def chosen(g: RandomGraph) -> None:
    """Sizes that depend on data."""
    v = g.value(lambda v: _wide(v) and v.exact)
    if v is None:
        return
    if g.chance(0.4):
        g.add("NonZero", [v])
        return
    axis = _axis(g, v)
    condition = g.rng.random(v.shape[axis]) < 0.6
    if condition.any():
        g.add("Compress", [v, g.new(condition.dtype, condition.shape, condition)], axis=axis)


def attention(g: RandomGraph) -> None:
    v = g.value(lambda v: v.floating and v.array.ndim == 4 and v.array.size > 0)
    if v is None:
        v = g.new(g.pick((F32, F16)), (g.pick((1, 2)), g.pick((1, 2, 4)), g.pick((1, 5, 17)), g.pick((4, 8, 16))))
    images, heads, _, size = v.shape
    groups = g.pick([d for d in range(1, heads + 1) if heads % d == 0])
    keys = g.pick((1, 3, 16, 23))
    pair = [g.new(v.dtype, (images, groups, keys, size)) for _ in range(2)]
    g.add("Attention", [v, *pair], exact=False, is_causal=g.pick((0, 0, 1)), scale=g.pick((0.25, 0.5)))


def recurrent(g: RandomGraph) -> None:
    v = g.value(lambda v: v.dtype == F32 and v.array.ndim == 3 and v.array.size > 0)
    if v is None:
        v = g.new(F32, (g.pick((1, 3, 7)), g.pick((1, 2, 5)), g.pick((2, 4, 8))))
    op, gates = g.pick((("RNN", 1), ("GRU", 3), ("LSTM", 4)))
    units, (_, batch, width) = g.pick((1, 4, 6)), v.shape
    direction = g.pick(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1

    def scaled(*shape: int) -> Value:
        return g.constant(g.rng.standard_normal(shape) * 0.3, F32)

    weights = [scaled(ways, gates * units, width), scaled(ways, gates * units, units)]
    bias = scaled(ways, 2 * gates * units) if g.chance(0.6) else None
    start = g.new(F32, (ways, batch, units)) if g.chance(0.4) else None
    g.add(op, [v, *weights, bias, None, start], outputs=2, exact=False, hidden_size=units, direction=direction)


def product(g: RandomGraph) -> None:
    v = g.value(lambda v: v.floating and v.array.ndim in (2, 3))
    if v is None:
        return
    n, (*_, inner) = g.pick(SIZES), v.shape
    if v.array.ndim == 2:
        forms = (("ij,jk->ki", (inner, n)), ("ij,kj->ik", (n, inner)), ("ij,ij->j", v.shape), ("ij,k->ijk", (n,)))
    else:
        batch = v.shape[:1]
        forms = (("bij,bjk->bik", (*batch, inner, n)), ("bij,kj->bki", (n, inner)), ("bij,b->ij", batch))
    equation, shape = g.pick(forms)
    if v.array.size * n <= MOST_ELEMENTS:
        g.add("Einsum", [v, g.new(v.dtype, shape)], exact=False, equation=equation)


def depth(g: RandomGraph) -> None:
    v = g.value(lambda v: v.array.ndim == 4 and v.dtype in (F32, F16))
    if v is None:
        return
    _, c, h, w = v.shape
    if c and c % 4 == 0 and g.chance(0.6):
        g.add("DepthToSpace", [v], blocksize=2, mode=g.pick(("DCR", "CRD")))
    elif h % 2 == 0 and w % 2 == 0:
        g.add("SpaceToDepth", [v], blocksize=2)


def dequantised(g: RandomGraph) -> None:
    """By a scale that is a power of two, for all or along an axis."""
    v = g.value(lambda v: v.dtype in (U8, I32) and v.exact)
    if v is None:
        return
    axis = _axis(g, v) if v.array.ndim and g.chance(0.5) else None
    shape = () if axis is None else (v.shape[axis],)
    scale = g.constant(2.0 ** g.rng.integers(-3, 0, shape), F32)
    zero = g.constant(g.rng.integers(0, 9, shape), U8) if v.dtype == U8 else None
    del g.values[-1 if zero is None else -2 :]
    scale.disturbed = [scale.array] * DISTURBED  # no other type is a scale
    g.add("DequantizeLinear", [v, scale, zero], **({} if axis is None else {"axis": axis}))


def _size(g: RandomGraph, factors: tuple[int, ...]) -> Value | None:
    """A size of some value, times a factor and shifted, as a vector of one."""
    w = g.value(lambda v: v.array.ndim >= 1)
    if w is None:
        return None
    axis = g.between(0, w.array.ndim - 1)
    made = g.add("Shape", [w], start=axis, end=axis + 1)
    for op, number in (("Mul", g.pick(factors)), ("Add", g.between(-3, 3))):
        made = made and g.add(op, [made[0], g.integers([number])])
    return made[0] if made else None


def sliced_by_sizes(g: RandomGraph) -> None:
    """Bounds that count from either end, as the sizes have it."""
    v, bound = g.value(_wide), _size(g, (-1, 1, 2))
    if v is None or bound is None:
        return
    step = g.pick((1, 1, 2, -1))
    ends = [bound, g.integers([g.pick((2**40, -(2**40), -1))])]
    if g.chance(0.5):
        ends = [g.integers([g.pick((0, -1, 1))]), bound]
    g.add("Slice", [v, *ends, g.integers([_axis(g, v)]), g.integers([step])])


def padded_by_sizes(g: RandomGraph) -> None:
    """As exporters write it: amounts of the last axis first are turned around in a matrix."""
    v = g.value(lambda v: _wide(v) and v.dtype in (F32, F16, I32, I64))
    amount = _size(g, (0, 1))
    if v is None or amount is None or int(amount.array[0]) > 9:
        return
    rest = 2 * v.array.ndim - 1
    first = g.between(0, min(1, rest))
    parts = [g.integers([1] * first), amount, g.integers([0] * (rest - first))]
    made = g.add("Concat", parts, axis=0)
    far = g.integers([-(2**63) + 1])
    for op, *more in (
        ("Reshape", g.integers([-1, 2])), ("Slice", g.integers([-1]), far, g.integers([0]), g.integers([-1])),
        ("Transpose",), ("Reshape", g.integers([-1])),
    ):  # fmt: skip
        made = made and g.add(op, [made[0], *more], **({"perm": [1, 0]} if op == "Transpose" else {}))
    if made and made[0].array.min() >= -min(v.shape):
        g.add("Pad", [v, made[0]])


#: With how often they are drawn.
LAYERS = (
    (gather, 2), (scatter, 2), (top, 1), (chosen, 1), (attention, 2), (recurrent, 1), (product, 1), (depth, 1),
    (dequantised, 1), (sliced_by_sizes, 1), (padded_by_sizes, 1),
)  # fmt: skip
