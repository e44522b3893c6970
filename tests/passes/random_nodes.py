"""The kinds of nodes that random graphs are made of; see ``random_graphs``."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper
from random_graphs import BF16, BOOL, EPS, F16, F32, F64, FLOATS, I32, I64, MOST_ELEMENTS, SIZES, U8, RandomGraph, Value
from random_layers import LAYERS

__all__ = ["MAKERS", "random_graph"]

#: Adds some nodes to a graph, or returns without.
Maker: TypeAlias = Callable[[RandomGraph], object]


def _float(v: Value) -> bool:
    return v.floating


def _numeric(v: Value) -> bool:
    return v.dtype != BOOL


def _whole(v: Value) -> bool:
    return v.dtype in (I32, I64, U8)


def _ranked(low: int, also: Callable[[Value], bool] = lambda v: True) -> Callable[[Value], bool]:
    return lambda v: v.array.ndim >= low and also(v)


UNARY = (
    ("Relu", {}, True), ("Neg", {}, True), ("Abs", {}, True), ("Identity", {}, True), ("Exp", {}, False),
    ("Tanh", {}, False), ("Sigmoid", {}, False), ("Erf", {}, False), ("Gelu", {}, False),
    ("Gelu", {"approximate": "tanh"}, False), ("Softplus", {}, False), ("Softsign", {}, False),
    ("LeakyRelu", {"alpha": 0.25}, True), ("Elu", {}, False), ("Selu", {}, False), ("HardSwish", {}, False),
    ("HardSigmoid", {}, False), ("Swish", {"alpha": 1.5}, False), ("Mish", {}, False), ("Reciprocal", {}, False),
    ("Sqrt", {}, False), ("Log", {}, False), ("Sin", {}, False), ("Cos", {}, False), ("Atan", {}, False),
    ("Celu", {"alpha": 0.5}, False), ("ThresholdedRelu", {"alpha": -9.0}, False),
)  # fmt: skip


def unary(g: RandomGraph) -> None:
    op, attributes, exact = g.pick(UNARY)
    if op in ("Neg", "Abs", "Identity", "Relu"):
        v = g.value(lambda v: v.floating or (v.dtype in (I32, I64) or op == "Identity"))
    elif op == "Celu":
        v = g.value(lambda v: v.dtype == F32)
    else:
        v = g.value(_float)
    if v is not None:
        g.add(op, [v], exact=exact, **attributes)


def step(g: RandomGraph) -> None:
    """Not continuous, so on exact values alone."""
    op = g.pick(("Floor", "Ceil", "Round", "Sign", "IsNaN", "Cast", "Cast", "Not"))
    if op == "Not":
        v = g.value(lambda v: v.dtype == BOOL)
    else:
        v = g.value(lambda v: v.exact and (v.floating if op != "Sign" else v.dtype != BOOL))
    if v is None:
        return
    if op == "Cast":
        to = g.pick((I32, I64, BOOL))
        g.add(op, [v], to=helper.np_dtype_to_tensor_dtype(to))
    else:
        g.add(op, [v])


def cast(g: RandomGraph) -> None:
    v = g.value(lambda v: True)
    if v is None:
        return
    to = g.pick(FLOATS)
    made = g.add(
        "Cast", [v], exact=v.dtype not in EPS or EPS[to] <= EPS[v.dtype], to=helper.np_dtype_to_tensor_dtype(to)
    )
    if made and made[0].floating and EPS[to] > EPS.get(v.dtype, 0):
        made[0].exact = False  # 0.5 units: between two nodes of a narrow type more bits may be kept


def broadcast_partner(g: RandomGraph, v: Value, dtype: np.dtype[Any] | None = None) -> Value:
    """A value that broadcasts with ``v``: one there is, or a new one."""
    dtype = v.dtype if dtype is None else dtype

    def fits(w: Value) -> bool:
        if w.dtype != dtype:
            return False
        try:
            shape = np.broadcast_shapes(v.shape, w.shape)
        except ValueError:
            return False
        return math.prod(shape) <= MOST_ELEMENTS

    if g.chance(0.6):
        found = g.value(fits)
        if found is not None:
            return found
    shape = [1 if g.chance(0.3) else d for d in v.shape]
    cut = g.between(0, len(shape)) if g.chance(0.5) else 0
    return g.new(dtype, shape[cut:])


def binary(g: RandomGraph) -> None:
    v = g.value(_numeric)
    if v is None:
        return
    op = g.pick(("Add", "Add", "Mul", "Mul", "Sub", "Min", "Max", "Div", "PRelu", "Sum", "Mean", "Max3"))
    exact = op in ("Min", "Max", "Max3") or not v.floating
    if op == "Div" and not v.floating:
        shape = v.shape[g.between(0, v.array.ndim) :]
        g.add(op, [v, g.constant(g.rng.integers(1, 9, shape), v.dtype)])
        return
    if op in ("Sum", "Mean", "Max3"):
        if not v.floating:
            return
        others = [broadcast_partner(g, v) for _ in range(2)]
        g.add(op.rstrip("3"), [v, *others], exact=exact)
        return
    if op == "PRelu":
        if not v.floating:
            return
        shape = [1 if g.chance(0.5) else d for d in v.shape]
        g.add(op, [v, g.new(v.dtype, shape[g.between(0, len(shape)) :])], exact=False)
        return
    pair = [v, broadcast_partner(g, v)]
    g.random.shuffle(pair)
    g.add(op, pair, exact=exact)


def power(g: RandomGraph) -> None:
    v = g.value(_float)
    if v is not None:
        g.add("Pow", [v, g.constant(g.pick((2.0, 3.0, 0.5, -1.0, 1.0)), v.dtype)], exact=False)


def clip(g: RandomGraph) -> None:
    v = g.value(_numeric)
    if v is None:
        return
    low = g.constant(1 if v.dtype == U8 else -1, v.dtype) if g.chance(0.8) else None
    high = g.constant(g.pick((1, 3)), v.dtype) if g.chance(0.8) else None
    g.add("Clip", [v, low, high])


def compare(g: RandomGraph) -> None:
    v = g.value(lambda v: v.exact and v.dtype != BOOL)
    if v is None:
        return
    other = broadcast_partner(g, v)
    if other.exact:
        g.add(g.pick(("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")), [v, other])


def logic(g: RandomGraph) -> None:
    v = g.value(lambda v: v.dtype == BOOL)
    if v is not None:
        g.add(g.pick(("And", "Or", "Xor", "Equal")), [v, broadcast_partner(g, v)])


def bits(g: RandomGraph) -> None:
    v = g.value(_whole)
    if v is None:
        return
    op = g.pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Mod", "BitShift"))
    if op == "BitwiseNot":
        g.add(op, [v])
    elif op == "BitShift":
        if v.dtype == U8:
            shift = g.constant(g.rng.integers(0, 8, v.shape[g.between(0, v.array.ndim) :]), U8)
            g.add(op, [v, shift], direction=g.pick(("LEFT", "RIGHT")))
    elif op == "Mod":
        g.add(op, [v, g.constant(g.pick((3, 4, 7)), v.dtype)], fmod=g.pick((0, 1)))
    else:
        g.add(op, [v, broadcast_partner(g, v)])


def where(g: RandomGraph) -> None:
    v = g.value(lambda v: True)
    if v is None:
        return
    pair = [v, broadcast_partner(g, v)]
    g.random.shuffle(pair)
    condition = broadcast_partner(g, v, BOOL)
    g.add("Where", [condition, *pair])


def reduce(g: RandomGraph) -> None:
    op = g.pick(
        ("Sum", "Sum", "Mean", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp", "LogSum")
    )  # fmt: skip
    whole = op in ("Sum", "Max", "Min", "Prod")
    v = g.value(lambda v: v.floating or (whole and v.dtype in (I32, I64)))
    if v is None:
        return
    if op == "Prod" and v.floating:
        magnitudes = np.abs(v.array.astype(np.float64))
        if np.abs(np.log2(magnitudes[magnitudes > 0])).sum() > 60:
            return  # a part of the product may leave the range of the type
    rank = v.array.ndim
    axes = [a - rank if g.chance(0.3) else a for a in range(rank) if g.chance(0.5)]
    given = None if not axes and g.chance(0.5) else g.integers(axes)
    g.add(
        f"Reduce{op}", [v, given], exact=op in ("Max", "Min") or not v.floating,
        keepdims=g.pick((0, 1)), noop_with_empty_axes=g.pick((0, 0, 1)),
    )  # fmt: skip


def arg_extreme(g: RandomGraph) -> None:
    v = g.value(_ranked(1, lambda v: v.exact and v.dtype in (F32, F16, F64, I32, I64, U8)))
    if v is not None:
        axis = g.between(-v.array.ndim, v.array.ndim - 1)
        g.add(g.pick(("ArgMax", "ArgMin")), [v], axis=axis, keepdims=g.pick((0, 1)), select_last_index=g.pick((0, 1)))


def along_axis(g: RandomGraph) -> None:
    op = g.pick(("Softmax", "LogSoftmax", "LpNormalization", "CumSum", "Softmax"))
    v = g.value(_ranked(1, lambda v: v.floating or (op == "CumSum" and v.dtype in (I32, I64))))
    if v is None:
        return
    axis = g.between(-v.array.ndim, v.array.ndim - 1)
    if op == "CumSum":
        if v.dtype in (F16, BF16):
            return
        given = g.constant(axis, np.int64)
        g.values.pop()
        g.add(op, [v, given], exact=not v.floating, exclusive=g.pick((0, 1)), reverse=g.pick((0, 1)))
    elif op == "LpNormalization":
        g.add(op, [v], exact=False, axis=axis, p=g.pick((1, 2)))
    else:
        g.add(op, [v], exact=False, axis=axis)


def normalise(g: RandomGraph) -> None:
    op = g.pick(("Layer", "Layer", "RMS", "Instance", "Group", "Batch", "MeanVariance"))
    v = g.value(_ranked(1 if op in ("Layer", "RMS") else 3, _float))
    if v is None or not v.array.size:
        return
    rank = v.array.ndim
    if op in ("Layer", "RMS"):
        axis = g.between(-rank, -1)
        parameters = [g.new(v.dtype, v.shape[axis:]) for _ in range(1 if op == "RMS" else g.pick((1, 2)))]
        g.add(f"{op}Normalization", [v, *parameters], exact=False, axis=axis, epsilon=0.01)
        return
    c = v.shape[1]
    if op == "MeanVariance":
        if rank == 4:
            g.add("MeanVarianceNormalization", [v], exact=False, axes=g.pick(([0, 2, 3], [2, 3], [1])))
    elif op == "Batch":
        variance = g.constant(g.rng.uniform(0.5, 2, c), v.dtype)
        three = [g.new(v.dtype, (c,)) for _ in range(3)]
        g.add("BatchNormalization", [v, *three, variance], exact=False)
    else:
        two = [g.new(v.dtype, (c,)) for _ in range(2)]
        groups = {"num_groups": g.pick([d for d in range(1, c + 1) if c % d == 0])} if op == "Group" else {}
        g.add(f"{op}Normalization", [v, *two], exact=False, epsilon=0.01, **groups)


def move(g: RandomGraph) -> None:
    v = g.value(lambda v: True)
    if v is not None:
        g.pick(MOVES)(g, v)


def _transpose(g: RandomGraph, v: Value) -> None:
    if not v.array.ndim:
        return
    perm = list(range(v.array.ndim))
    g.random.shuffle(perm)
    g.add("Transpose", [v], perm=perm)


def _reshape(g: RandomGraph, v: Value) -> None:
    sizes: list[int] = []
    rest = v.array.size
    if not rest:
        return
    while rest > 1 and g.chance(0.75) and len(sizes) < 4:
        factor = g.pick([d for d in range(1, rest + 1) if rest % d == 0][:6])
        sizes.append(factor)
        rest //= factor
    sizes.insert(g.between(0, len(sizes)), rest)
    if g.chance(0.3):
        sizes[g.between(0, len(sizes) - 1)] = -1
    for axis, size in enumerate(sizes):
        if axis < v.array.ndim and size == v.shape[axis] and g.chance(0.3):
            sizes[axis] = 0
    g.add("Reshape", [v, g.integers(sizes)])


def _flatten(g: RandomGraph, v: Value) -> None:
    g.add("Flatten", [v], axis=g.between(-v.array.ndim, v.array.ndim))


def _squeeze(g: RandomGraph, v: Value) -> None:
    ones = [a for a, d in enumerate(v.shape) if d == 1 and g.chance(0.7)]
    if ones:
        g.add("Squeeze", [v, g.integers(ones)])


def _unsqueeze(g: RandomGraph, v: Value) -> None:
    if v.array.ndim < 5:
        g.add("Unsqueeze", [v, g.integers([g.between(-v.array.ndim - 1, v.array.ndim)])])


def _slice(g: RandomGraph, v: Value) -> None:
    axes = [a for a in range(v.array.ndim) if g.chance(0.6)]
    if not axes:
        return
    starts, ends, steps = [], [], []
    for a in axes:
        d = v.shape[a]
        steps.append(g.pick((1, 1, 1, 2, 3, -1, -2)))
        low, high = sorted((g.between(0, d), g.between(0, d)))
        if g.chance(0.3):
            high = 2**40
        if steps[-1] > 0:
            starts.append(low - d if d and low < d and g.chance(0.3) else low)
            ends.append(high)
        else:
            starts.append(min(high, 2**40))
            ends.append(low - 1 if low else -(2**40))
    g.add("Slice", [v, g.integers(starts), g.integers(ends), g.integers(axes), g.integers(steps)])


def _concat(g: RandomGraph, v: Value) -> None:
    if not v.array.ndim:
        return
    axis = g.between(0, v.array.ndim - 1)

    def fits(w: Value) -> bool:
        return (
            w.dtype == v.dtype
            and w.array.ndim == v.array.ndim
            and all(a == axis or d == v.shape[a] for a, d in enumerate(w.shape))
        )

    parts = [v]
    for _ in range(g.between(1, 3)):
        found = g.value(fits) if g.chance(0.7) else None
        shape = [g.pick(SIZES) if a == axis else d for a, d in enumerate(v.shape)]
        parts.append(g.new(v.dtype, shape) if found is None else found)
    g.random.shuffle(parts)
    g.add("Concat", parts, axis=axis - v.array.ndim if g.chance(0.3) else axis)


def _split(g: RandomGraph, v: Value) -> None:
    if not v.array.ndim:
        return
    axis = g.between(0, v.array.ndim - 1)
    d = v.shape[axis]
    if d < 2:
        return
    cuts = sorted(g.between(0, d) for _ in range(g.between(1, 2)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, d], strict=True)]
    if g.chance(0.3):
        n = g.between(2, min(d, 4))
        if -(-d // n) * (n - 1) <= d:
            g.add("Split", [v], outputs=n, axis=axis, num_outputs=n)
    else:
        g.add("Split", [v, g.integers(sizes)], outputs=len(sizes), axis=axis)


def _expand(g: RandomGraph, v: Value) -> None:
    target = [g.pick(SIZES) if d == 1 else d if g.chance(0.7) else 1 for d in v.shape]
    if g.chance(0.3):
        target.insert(0, g.pick((1, 2, 3)))
    g.add("Expand", [v, g.integers(target)])


def _tile(g: RandomGraph, v: Value) -> None:
    g.add("Tile", [v, g.integers([g.pick((1, 1, 2, 3)) for _ in v.shape])])


def _pad(g: RandomGraph, v: Value) -> None:
    mode = g.pick(("constant", "constant", "reflect", "edge", "wrap"))
    if v.dtype == BOOL or not v.array.size:
        return
    low = -1 if mode == "constant" else 0
    pads = [g.between(low, min(3, d - 1)) if g.chance(0.6) else 0 for d in (*v.shape, *v.shape)]
    value = g.constant(2, v.dtype) if mode == "constant" and g.chance(0.5) else None
    g.add("Pad", [v, g.integers(pads), value], mode=mode)


def _gather(g: RandomGraph, v: Value) -> None:
    if not v.array.ndim:
        return
    axis = g.between(0, v.array.ndim - 1)
    d = v.shape[axis]
    if not d:
        return
    op = g.pick(("Gather", "Gather", "GatherElements"))
    if op == "Gather":
        shape = g.pick(((), (1,), (3,), (2, 3)))
    else:
        shape = tuple(g.pick(SIZES) if a == axis else g.between(min(1, n), n) for a, n in enumerate(v.shape))
        if math.prod(shape) > MOST_ELEMENTS:
            return
    index = g.rng.integers(-d, d, shape).astype(g.pick((np.int64, np.int32)))
    given = g.new(index.dtype, shape, index)
    g.values.pop()  # else what is computed with it may be no index
    g.add(op, [v, given], axis=axis)


def _trilu(g: RandomGraph, v: Value) -> None:
    if v.array.ndim >= 2:
        k = g.constant(g.between(-3, 3), np.int64)
        g.values.pop()
        g.add("Trilu", [v, k], upper=g.pick((0, 1)))


def _depth_space(g: RandomGraph, v: Value) -> None:
    if v.array.ndim != 4 or v.dtype == BOOL:
        return
    if v.shape[1] % 4 == 0 and v.shape[1]:
        g.add("DepthToSpace", [v], blocksize=2, mode=g.pick(("DCR", "CRD")))
    elif v.shape[2] % 2 == v.shape[3] % 2 == 0:
        g.add("SpaceToDepth", [v], blocksize=2)


MOVES = (
    _transpose, _transpose, _reshape, _reshape, _flatten, _squeeze, _unsqueeze, _slice, _slice, _concat, _concat,
    _split, _expand, _tile, _pad, _pad, _gather, _gather, _trilu, _depth_space,
)  # fmt: skip


def matmul(g: RandomGraph) -> None:
    v = g.value(_ranked(1, _float))
    if v is None:
        return
    n = g.pick(SIZES)
    if v.array.ndim == 2 and g.chance(0.5):
        turned = [g.pick((0, 1)), g.pick((0, 1))]
        k = v.shape[0] if turned[0] else v.shape[1]
        m = v.shape[1] if turned[0] else v.shape[0]
        weights = g.new(v.dtype, (n, k) if turned[1] else (k, n))
        bias = g.new(v.dtype, g.pick(((n,), (1, n), (m, 1), (m, n), ()))) if g.chance(0.6) else None
        g.add(
            "Gemm", [v, weights, bias], exact=False, transA=turned[0], transB=turned[1],
            alpha=g.pick((1.0, 0.5)), beta=g.pick((1.0, 2.0)),
        )  # fmt: skip
        return
    if g.chance(0.3):
        other = g.value(lambda w: w.dtype == v.dtype and w.array.ndim >= 2 and w.shape[-2] == v.shape[-1])
    else:
        other = None
    if other is None:
        batch = [1 if g.chance(0.5) else d for d in v.shape[:-2]][g.between(0, max(0, v.array.ndim - 2)) :]
        other = g.new(v.dtype, (*batch, v.shape[-1], n) if g.chance(0.9) else (v.shape[-1],))
    g.add("MatMul", [v, other], exact=False)


def conv(g: RandomGraph) -> None:
    v = g.value(lambda v: v.floating and v.array.ndim in (3, 4) and v.array.size > 0)
    if v is None:
        v = g.new(g.pick(FLOATS), (g.pick((1, 2)), g.pick((1, 3, 4, 8, 16)), g.pick((5, 8, 13)), g.pick((4, 7, 9, 17))))
    c, rank = v.shape[1], v.array.ndim - 2
    kernel = [g.pick((1, 1, 2, 3, 3, 5)) for _ in range(rank)] if g.chance(0.5) else [g.pick((1, 3))] * rank
    attributes: dict[str, Any] = {
        "strides": [g.pick((1, 1, 2, 3)) for _ in range(rank)],
        "dilations": [g.pick((1, 1, 1, 2)) for _ in range(rank)],
        "pads": [g.between(0, k // 2) for k in (*kernel, *kernel)],
    }
    if g.chance(0.1):
        del attributes["pads"]
        attributes["auto_pad"] = g.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if g.chance(0.15):
        attributes["strides"] = attributes["dilations"] = [1] * rank
    groups = g.pick([d for d in (1, 1, 2, c) if d and c % d == 0])
    transposed = g.chance(0.15)
    per = g.pick((1, 2, 5)) if groups > 1 else g.pick((1, 2, 3, 8, 16, 24))
    shape = (c, per, *kernel) if transposed else (per * groups, c // groups, *kernel)
    bias = g.new(v.dtype, (per * groups,)) if g.chance(0.6) else None
    # the CPU's transposed convolution needs its weights when it is compiled
    weights = g.constant(g.drawn(v.dtype, shape)) if transposed else g.new(v.dtype, shape)
    g.add("ConvTranspose" if transposed else "Conv", [v, weights, bias], exact=False, group=groups, **attributes)


def pool(g: RandomGraph) -> None:
    v = g.value(lambda v: v.floating and v.array.ndim in (3, 4) and v.array.size > 0)
    if v is None:
        return
    rank = v.array.ndim - 2
    op = g.pick(("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        g.add(op, [v], exact=op == "GlobalMaxPool")
        return
    kernel = [g.pick((1, 2, 3)) for _ in range(rank)]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [g.pick((1, 2, 3)) for _ in range(rank)],
        "pads": [g.between(0, k // 2) for k in (*kernel, *kernel)],
        "ceil_mode": g.pick((0, 0, 1)),
    }
    if op == "AveragePool":
        attributes["count_include_pad"] = g.pick((0, 1))
    g.add(op, [v], exact=op == "MaxPool", **attributes)


def resize(g: RandomGraph) -> None:
    v = g.value(lambda v: v.dtype in (F32, F16, F64) and v.array.ndim == 4 and v.array.size > 0)
    if v is None:
        return
    sizes = [*v.shape[:2], *(g.between(1, 2 * d) for d in v.shape[2:])]
    mode = g.pick(("nearest", "linear", "linear", "cubic"))
    where_ = g.pick(("half_pixel", "asymmetric", "align_corners"))
    g.add(
        "Resize", [v, None, None, g.integers(sizes)], exact=mode == "nearest", mode=mode,
        coordinate_transformation_mode=where_,
    )  # fmt: skip


KINDS: tuple[tuple[Maker, int], ...] = (
    (unary, 8), (binary, 9), (move, 14), (step, 1), (cast, 2), (power, 1), (clip, 1), (compare, 1), (logic, 1),
    (bits, 1), (where, 2), (reduce, 5), (arg_extreme, 1), (along_axis, 2), (normalise, 3), (matmul, 3), (conv, 3),
    (pool, 2), (resize, 1), *LAYERS,
)  # fmt: skip
MAKERS = [maker for maker, weight in KINDS for _ in range(weight)]


def random_graph(random: Random, most: int = 10) -> tuple[RandomGraph, onnx.ModelProto] | None:
    """A graph of up to ``most`` nodes and its model; None if nothing came about.

    Args:
        random: Where the choices come from; a generator of Hypothesis makes failures shrink.
        most: The number of nodes at which it stops growing.
    """
    g = RandomGraph(random, symbolic=random.random() < 0.4)
    dtype = g.pick((F32, F32, F32, F32, F16, BF16, F64, I32, I64, U8, BOOL))
    g.input(g.drawn(dtype, g.shape()))
    wanted = g.between(1, most)
    for _ in range(3 * most):
        if len(g.nodes) >= wanted:
            break
        g.pick(MAKERS)(g)
    return (g, g.finish()) if g.nodes else None
