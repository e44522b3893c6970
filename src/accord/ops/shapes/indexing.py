"""Shape rules of operators that pick, place or select elements by index, and whose sizes may depend on data."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import (
    axis_of,
    elements,
    int_attr,
    operator,
    product,
    rank_of,
    same_dtype,
    same_size,
    str_attr,
    with_elements,
)

INT64 = ir.DataType.INT64
_INDEX = frozenset({ir.DataType.INT32, INT64})
_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _require_index(n: Inference, i: int) -> None:
    dtype = n.tensor(i).dtype
    if dtype is not None and dtype not in _INDEX:
        raise n.error("indices have the wrong dtype", expected="INT32 or INT64", found=dtype.name, value=i)


# Gather ----------------------------------------------------------------------------------------------------------


@operator("Gather", inputs=2)
def gather(n: Inference) -> list[Fact]:
    """``axis`` of the data replaced by the shape of the indices."""
    x, indices = n.tensor(0), n.tensor(1)
    _require_index(n, 1)
    axis = int_attr(n, "axis", 0)
    if x.shape is None:
        return [TensorFact(x.dtype, None)]
    axis = axis_of(n, axis, len(x.shape))
    if indices.shape is None:
        return [TensorFact(x.dtype, None)]
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    picked = elements(indices) if len(indices.shape) <= 1 else None
    if picked is None:
        return [TensorFact(x.dtype, shape)]
    size = x.shape[axis]
    for i in picked:
        if isinstance(i, int) and isinstance(size, int) and not -size <= i < size:
            raise n.error("index is out of range", expected=f"-{size} <= index < {size}", found=i, value=1)
    items = elements(x) if len(x.shape) == 1 else None
    if items is None or not D.is_known(picked) or len(shape) > 1:
        return [TensorFact(x.dtype, shape)]
    return [with_elements(x.dtype, shape, [items[i] for i in picked])]


@operator("GatherElements", inputs=2)
def gather_elements(n: Inference) -> list[Fact]:
    """The shape of the indices, which have the data's rank."""
    x, indices = n.tensor(0), n.tensor(1)
    _require_index(n, 1)
    shape = indices.shape
    if x.shape is not None:
        rank = len(x.shape)
        axis_of(n, int_attr(n, "axis", 0), rank)
        if shape is None:
            shape = n.fresh_shape(rank)
        n.require(len(shape) == rank, "data and indices differ in rank", expected=rank, found=len(shape), value=1)
    return [TensorFact(x.dtype, shape)]


@operator("GatherND", inputs=2)
def gather_nd(n: Inference) -> list[Fact]:
    """The axes of the indices but the last, then the data's axes that the last one does not reach."""
    x, indices = n.tensor(0), n.tensor(1)
    batch = int_attr(n, "batch_dims", 0, low=0)
    rank_of(n, 1, least=1)
    if x.shape is None or indices.shape is None:
        return [TensorFact(x.dtype, None)]
    rank = len(x.shape)
    n.require(
        batch < min(rank, len(indices.shape)),
        "batch_dims is out of range",
        expected=f"less than {min(rank, len(indices.shape))}",
        found=batch,
    )
    for i in range(batch):
        same_size(n, x.shape[i], indices.shape[i], f"sizes on batch axis {i}", value=1)
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        return [TensorFact(x.dtype, None)]
    n.require(1 <= depth <= rank - batch, "indices are too long", expected=f"1 to {rank - batch}", found=depth, value=1)
    shape = indices.shape[:-1] + x.shape[batch + depth :]
    if len(shape) <= 1 and rank == 1 and batch == 0:
        items, picked = elements(x), elements(indices)
        if items is not None and picked is not None and len(indices.shape) == 1 and isinstance(picked[0], int):
            i = picked[0]
            n.require(-len(items) <= i < len(items), "index is out of range", expected=f"under {len(items)}", found=i)
            return [with_elements(x.dtype, shape, [items[i]])]
    return [TensorFact(x.dtype, shape)]


# Scatter ---------------------------------------------------------------------------------------------------------


@operator("ScatterElements", "Scatter", inputs=3)
def scatter_elements(n: Inference) -> list[Fact]:
    """The data's fact; indices and updates have one shape and the data's rank."""
    dtype = same_dtype(n, 0, 2)
    _require_index(n, 1)
    str_attr(n, "reduction", "none", among=_REDUCTIONS)
    x, indices, updates = n.tensor(0).shape, n.tensor(1).shape, n.tensor(2).shape
    rank = next((len(s) for s in (x, indices, updates) if s is not None), None)
    if rank is not None:
        axis_of(n, int_attr(n, "axis", 0), rank)
        for i, shape in enumerate((x, indices, updates)):
            found = rank if shape is None else len(shape)
            n.require(found == rank, "inputs differ in rank", expected=rank, found=found, value=i)
    if indices is not None and updates is not None:
        for a, b in zip(indices, updates, strict=True):
            same_size(n, a, b, "indices and updates", value=2)
    return [TensorFact(dtype, x if x is not None or rank is None else n.fresh_shape(rank))]


@operator("ScatterND", inputs=3)
def scatter_nd(n: Inference) -> list[Fact]:
    """The data's fact; the updates' shape follows from the data's and the indices'."""
    dtype = same_dtype(n, 0, 2)
    str_attr(n, "reduction", "none", among=_REDUCTIONS)
    rank_of(n, 1, least=1)
    x, indices, updates = n.tensor(0).shape, n.tensor(1).shape, n.tensor(2).shape
    if x is not None and indices is not None and isinstance(indices[-1], int):
        depth = indices[-1]
        n.require(0 < depth <= len(x), "indices are too long", expected=f"1 to {len(x)}", found=depth, value=1)
        want = indices[:-1] + x[depth:]
        if updates is not None:
            n.require(
                len(want) == len(updates),
                "updates have the wrong rank",
                expected=len(want),
                found=len(updates),
                value=2,
            )
            for a, b in zip(want, updates, strict=True):
                same_size(n, a, b, "sizes of the updates", value=2)
    return [TensorFact(dtype, x)]


@operator("TensorScatter", inputs=2)
def tensor_scatter(n: Inference) -> list[Fact]:
    """The cache's fact; the update differs from it on ``axis`` only."""
    dtype = same_dtype(n, 0, 1)
    str_attr(n, "mode", "linear", among=("linear", "circular"))
    cache, update = n.tensor(0).shape, n.tensor(1).shape
    if cache is not None:
        axis = axis_of(n, int_attr(n, "axis", -2), len(cache))
        n.require(axis != 0, "axis cannot be the batch axis", expected="another axis", found=0)
        if update is not None:
            n.require(len(update) == len(cache), "inputs differ in rank", expected=len(cache), found=len(update))
            for i, (c, u) in enumerate(zip(cache, update, strict=True)):
                if i != axis:
                    same_size(n, c, u, f"sizes on axis {i}", value=1)
                elif isinstance(c, int) and isinstance(u, int) and u > c:
                    raise n.error("the update is longer than the cache", expected=f"at most {c}", found=u, value=1)
        if n.has(2):
            lengths = rank_of(n, 2, 1)
            if lengths is not None:
                same_size(n, cache[0], lengths[0], "batch sizes", value=2)
    return [TensorFact(dtype, cache)]


@operator("OneHot", inputs=3)
def one_hot(n: Inference) -> list[Fact]:
    """A new ``axis`` of the size that ``depth`` holds; the values' dtype."""
    dtype = n.tensor(2).dtype
    values = rank_of(n, 2, 1)
    if values is not None:
        same_size(n, 2, values[0], "numbers of values", value=2)
    rank_of(n, 1, 0, 1)
    indices = n.tensor(0).shape
    depth = elements(n.tensor(1))
    if indices is None:
        return [TensorFact(dtype, None)]
    axis = axis_of(n, int_attr(n, "axis", -1), len(indices) + 1)
    size: DimLike = depth[0] if depth is not None and len(depth) == 1 else n.fresh()
    n.require(not isinstance(size, int) or size > 0, "depth must be positive", expected="1 or more", found=str(size))
    return [TensorFact(dtype, (*indices[:axis], size, *indices[axis:]))]


# sizes that depend on data ---------------------------------------------------------------------------------------


@operator("NonZero")
def non_zero(n: Inference) -> list[Fact]:
    """int64 ``[rank, count]``."""
    shape = n.tensor(0).shape
    # A scalar counts as one axis.
    rank: DimLike = n.fresh() if shape is None else max(len(shape), 1)
    return [TensorFact(INT64, (rank, n.fresh()))]


@operator("Compress", inputs=2)
def compress(n: Inference) -> list[Fact]:
    """A new size on ``axis``, or one axis of a new size without it."""
    x = n.tensor(0)
    rank_of(n, 1, 1)
    condition = n.tensor(1).dtype
    n.require(
        condition in (None, ir.DataType.BOOL),
        "condition has the wrong dtype",
        expected="BOOL",
        found=condition,
        value=1,
    )
    size: DimLike = n.fresh()
    chosen = elements(n.tensor(1))
    if chosen is not None and D.is_known(chosen):
        size = sum(chosen)
    if "axis" not in n.node.attributes:
        return [TensorFact(x.dtype, (size,))]
    if x.shape is None:
        return [TensorFact(x.dtype, None)]
    axis = axis_of(n, int_attr(n, "axis", 0), len(x.shape))
    return [TensorFact(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :]))]


@operator("Unique")
def unique(n: Inference) -> list[Fact]:
    """Unique values or slices, and three int64 vectors."""
    x = n.tensor(0)
    count = n.fresh()
    if "axis" not in n.node.attributes:
        total: DimLike = n.fresh() if x.shape is None else product(n, x.shape)
        return [TensorFact(x.dtype, (count,)), *_unique_vectors(count, total)]
    if x.shape is None:
        return [TensorFact(x.dtype, None), *_unique_vectors(count, n.fresh())]
    axis = axis_of(n, int_attr(n, "axis", 0), len(x.shape))
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return [TensorFact(x.dtype, shape), *_unique_vectors(count, x.shape[axis])]


def _unique_vectors(count: DimLike, total: DimLike) -> list[TensorFact]:
    return [TensorFact(INT64, (count,)), TensorFact(INT64, (total,)), TensorFact(INT64, (count,))]


@operator("NonMaxSuppression", inputs=2)
def non_max_suppression(n: Inference) -> list[Fact]:
    """int64 ``[count, 3]``; boxes ``[batch, boxes, 4]``, scores ``[batch, classes, boxes]``."""
    boxes, scores = rank_of(n, 0, 3), rank_of(n, 1, 3)
    if boxes is not None:
        same_size(n, 4, boxes[2], "numbers of box coordinates", value=0)
    if boxes is not None and scores is not None:
        same_size(n, boxes[0], scores[0], "batch sizes", value=1)
        same_size(n, boxes[1], scores[2], "numbers of boxes", value=1)
    for i in (2, 3, 4):
        if n.has(i):
            rank_of(n, i, 0, 1)
    return [TensorFact(INT64, (n.fresh(), 3))]


# order and triangles ---------------------------------------------------------------------------------------------


@operator("ReverseSequence", inputs=2)
def reverse_sequence(n: Inference) -> list[Fact]:
    """The input's fact; batch and time axis are the first two."""
    x = n.tensor(0)
    shape = rank_of(n, 0, least=2)
    lengths = rank_of(n, 1, 1)
    time, batch = int_attr(n, "time_axis", 0), int_attr(n, "batch_axis", 1)
    n.require({time, batch} == {0, 1}, "time_axis and batch_axis are 0 and 1", expected="{0, 1}", found=[time, batch])
    if shape is not None and lengths is not None:
        same_size(n, shape[batch], lengths[0], "batch sizes", value=1)
    return [TensorFact(x.dtype, shape)]


@operator("Trilu")
def trilu(n: Inference) -> list[Fact]:
    """The input's fact; at least two axes."""
    return [TensorFact(n.tensor(0).dtype, rank_of(n, 0, least=2))]


@operator("Det")
def det(n: Inference) -> list[Fact]:
    """The two last axes, which are equal, removed."""
    shape = rank_of(n, 0, least=2)
    if shape is not None:
        same_size(n, shape[-2], shape[-1], "the two last axes")
    return [TensorFact(n.tensor(0).dtype, None if shape is None else shape[:-2])]


# space and depth -------------------------------------------------------------------------------------------------


def _divided(n: Inference, size: DimLike, by: int, axis: str) -> DimLike:
    if isinstance(size, int) and size % by:
        raise n.error(f"{axis} is not a multiple", expected=f"a multiple of {by}", found=size, value=0)
    whole = D.floordiv(size, by)
    n.agree(whole * by, size, f"{axis} and its whole blocks of {by}")
    return whole


@operator("DepthToSpace", required=("blocksize",))
def depth_to_space(n: Inference) -> list[Fact]:
    """``[N, C, H, W]`` to ``[N, C / b², H b, W b]``."""
    dtype = n.tensor(0).dtype
    b = int_attr(n, "blocksize", 1, low=1)
    str_attr(n, "mode", "DCR", among=("DCR", "CRD"))
    shape = rank_of(n, 0, 4)
    if shape is None:
        return [TensorFact(dtype, n.fresh_shape(4))]
    batch, channels, height, width = shape
    return [TensorFact(dtype, (batch, _divided(n, channels, b * b, "channels"), height * b, width * b))]


@operator("SpaceToDepth", required=("blocksize",))
def space_to_depth(n: Inference) -> list[Fact]:
    """``[N, C, H, W]`` to ``[N, C b², H / b, W / b]``."""
    dtype = n.tensor(0).dtype
    b = int_attr(n, "blocksize", 1, low=1)
    str_attr(n, "mode", "DCR", among=("DCR", "CRD"))
    shape = rank_of(n, 0, 4)
    if shape is None:
        return [TensorFact(dtype, n.fresh_shape(4))]
    batch, channels, height, width = shape
    return [
        TensorFact(dtype, (batch, channels * (b * b), _divided(n, height, b, "height"), _divided(n, width, b, "width")))
    ]


# losses ----------------------------------------------------------------------------------------------------------


def _loss_shapes(n: Inference) -> Shape | None:
    """Shape of the unreduced loss: the labels'; scores have the classes on axis 1."""
    scores, labels = rank_of(n, 0, least=2), n.tensor(1).shape
    if scores is not None and labels is not None:
        want: Sequence[DimLike] = (scores[0], *scores[2:])
        n.require(
            len(want) == len(labels), "labels have the wrong rank", expected=len(want), found=len(labels), value=1
        )
        for a, b in zip(want, labels, strict=True):
            same_size(n, a, b, "sizes of scores and labels", value=1)
    if n.has(2):
        weights = rank_of(n, 2, 1)
        if weights is not None and scores is not None:
            same_size(n, scores[1], weights[0], "numbers of classes", value=2)
    if labels is None and scores is not None:
        return (scores[0], *scores[2:])
    return labels


@operator("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", inputs=2)
def loss(n: Inference) -> list[Fact]:
    """A scalar, or one loss per label; the second output is the log probability in the scores' shape."""
    dtype = same_dtype(n, 0, 2)
    shape = _loss_shapes(n)
    reduction = str_attr(n, "reduction", "mean", among=("none", "sum", "mean"))
    return [TensorFact(dtype, shape if reduction == "none" else ()), TensorFact(dtype, n.tensor(0).shape)]
