"""Shape rules of reductions, scans along an axis, the Softmax family, normalisations and global pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import (
    axis_of,
    dtype_attr,
    elements,
    int_attr,
    ints_attr,
    operator,
    rank_of,
    same_dtype,
    same_size,
    with_elements,
)
from accord.ops.shapes.movement import int_list, vector_length

INT64 = ir.DataType.INT64

#: Reductions that shape arithmetic uses, on the elements of a vector.
_FOLDS: Mapping[str, Callable[[Sequence[DimLike]], DimLike]] = {
    "ReduceSum": lambda items: sum(items[1:], items[0]),
    "ReduceProd": D.product,
    "ReduceMin": lambda items: D.minimum(*items),
    "ReduceMax": lambda items: D.maximum(*items),
}

_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
).split()


@operator(*_REDUCTIONS)
def reduce(n: Inference) -> list[Fact]:
    """``axes`` (all without them) become 1, or go away without ``keepdims``."""
    x = n.tensor(0)
    keep = bool(int_attr(n, "keepdims", 1))
    axes = int_list(n, "axes", 1)
    if axes is None and n.has(1):
        return [TensorFact(x.dtype, _unknown_axes(n, x.shape, keep))]
    if not axes and n.attr("noop_with_empty_axes", 0):
        return [x.with_shape(x.shape)]
    if x.shape is None:
        return [TensorFact(x.dtype, () if not axes and not keep else None)]
    rank = len(x.shape)
    where = frozenset(axis_of(n, a, rank) for a in axes) if axes else frozenset(range(rank))
    if keep:
        shape = tuple(1 if i in where else d for i, d in enumerate(x.shape))
    else:
        shape = tuple(d for i, d in enumerate(x.shape) if i not in where)
    if rank == 1 and where and n.node.op_type in _FOLDS and (x.data is not None or x.const is not None):
        items = elements(x)
        if items:
            return [with_elements(x.dtype, shape, [_FOLDS[n.node.op_type](items)])]
    return [TensorFact(x.dtype, shape)]


def _unknown_axes(n: Inference, shape: Shape | None, keep: bool) -> Shape | None:
    count = vector_length(n, 1)
    if shape is None:
        return None
    if keep:
        return tuple(1 if d == 1 else n.fresh() for d in shape)
    if count is None or (count == 0 and n.attr("noop_with_empty_axes", 0)):
        return None
    return n.fresh_shape(max(0, len(shape) - count)) if count else ()


@operator("ArgMax", "ArgMin")
def arg_extreme(n: Inference) -> list[Fact]:
    """int64; ``axis`` becomes 1 or goes away."""
    shape = n.tensor(0).shape
    keep = bool(int_attr(n, "keepdims", 1))
    axis = int_attr(n, "axis", 0)
    if shape is None:
        return [TensorFact(INT64, None)]
    axis = axis_of(n, axis, len(shape))
    return [TensorFact(INT64, (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :]))]


@operator("CumSum", "CumProd", inputs=2)
def cumulative(n: Inference) -> list[Fact]:
    """The input's dtype and shape; the axis is a scalar input."""
    x = n.tensor(0)
    rank_of(n, 1, 0, 1)
    axis = elements(n.tensor(1))
    if x.shape is not None and axis is not None and len(axis) == 1 and isinstance(axis[0], int):
        axis_of(n, axis[0], len(x.shape))
    return [x.with_shape(x.shape)]


@operator("TopK")
def top_k(n: Inference) -> list[Fact]:
    """Values and int64 indices; ``axis`` has k entries."""
    x = n.tensor(0)
    attribute = n.node.attributes.get("k")
    k: DimLike | None = None if attribute is None else int_attr(n, "k", 0)
    if attribute is None:
        if not n.has(1):
            raise n.error("a required input is missing", expected="K", found="none")
        rank_of(n, 1, 0, 1)
        items = elements(n.tensor(1))
        k = items[0] if items is not None and len(items) == 1 else None
    n.require(not isinstance(k, int) or k >= 0, "negative k", expected="0 or more", found=str(k))
    if x.shape is None:
        return [TensorFact(x.dtype, None), TensorFact(INT64, None)]
    axis = axis_of(n, int_attr(n, "axis", -1), len(x.shape))
    size = x.shape[axis]
    if isinstance(k, int) and isinstance(size, int) and k > size:
        raise n.error("k exceeds the axis", expected=f"at most {size}", found=k)
    shape = (*x.shape[:axis], n.fresh() if k is None else k, *x.shape[axis + 1 :])
    return [TensorFact(x.dtype, shape), TensorFact(INT64, shape)]


# same shape along an axis ----------------------------------------------------------------------------------------

_AXIS_DEFAULT = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "LpNormalization": -1}


@operator(*_AXIS_DEFAULT)
def along_axis(n: Inference) -> list[Fact]:
    """The input's dtype and shape."""
    x = n.tensor(0)
    default = _AXIS_DEFAULT[n.node.op_type]
    if n.opset < 13 and default == -1 and n.node.op_type != "LpNormalization":
        default = 1
    axis = int_attr(n, "axis", default)
    # The flattening form of old versions accepts the rank itself; a scalar has the one axis that a default names.
    flattens = n.opset < 13 and (axis == len(x.shape or ()) or "axis" not in n.node.attributes)
    if x.shape and not flattens:
        axis_of(n, axis, len(x.shape))
    return [x.with_shape(x.shape)]


# normalisations --------------------------------------------------------------------------------------------------


def _per_channel(n: Inference, channels: DimLike, *indices: int) -> None:
    for i in indices:
        # Without "spatial" (before opset 9) there is one statistic per element.
        if n.has(i) and n.attr("spatial", 1):
            shape = rank_of(n, i, 1)
            if shape is not None:
                same_size(n, channels, shape[0], "numbers of channels", value=i)


@operator("BatchNormalization", inputs=5)
def batch_normalization(n: Inference) -> list[Fact]:
    """The input's fact; in training mode the running statistics, one per channel."""
    x = n.tensor(0)
    same_dtype(n, 1, 2)
    same_dtype(n, 3, 4)
    channels: DimLike | None = None
    if x.shape is not None:
        n.require(len(x.shape) >= 1, "input has the wrong rank", expected="at least 1", found=0, value=0)
        channels = x.shape[1] if len(x.shape) > 1 else 1
        _per_channel(n, channels, 1, 2, 3, 4)
    dtype = n.tensor(3).dtype
    mean = n.tensor(3).shape or (None if channels is None else (channels,))
    return [x.with_shape(x.shape), *(TensorFact(dtype, mean) for _ in n.node.outputs[1:])]


@operator("InstanceNormalization", inputs=3)
def instance_normalization(n: Inference) -> list[Fact]:
    """The input's fact; scale and bias have one entry per channel."""
    dtype = same_dtype(n, 0, 1, 2)
    shape = rank_of(n, 0, least=3)
    if shape is not None:
        _per_channel(n, shape[1], 1, 2)
    return [TensorFact(dtype, shape)]


@operator("GroupNormalization", inputs=3, required=("num_groups",))
def group_normalization(n: Inference) -> list[Fact]:
    """The input's fact; scale and bias per channel (per group before opset 21)."""
    dtype = same_dtype(n, 0, 1, 2)
    shape = rank_of(n, 0, least=3)
    groups = int_attr(n, "num_groups", 1, low=1)
    if shape is not None:
        channels = shape[1]
        if isinstance(channels, int) and channels % groups:
            raise n.error("channels do not divide into groups", expected=f"a multiple of {groups}", found=channels)
        _per_channel(n, channels if n.opset >= 21 else groups, 1, 2)
    return [TensorFact(dtype, shape)]


@operator("LayerNormalization", "RMSNormalization", inputs=2)
def layer_normalization(n: Inference) -> list[Fact]:
    """The input's shape; mean and inverse deviation have 1 from ``axis`` on, in the dtype of ``stash_type``."""
    x, scale = n.tensor(0), n.tensor(1)
    is_rms = n.node.op_type == "RMSNormalization"
    if not is_rms:
        same_dtype(n, 0, 1, 2)
    dtype = scale.dtype if is_rms and scale.dtype is not None else x.dtype
    stash = dtype_attr(n, "stash_type", ir.DataType.FLOAT)
    if x.shape is None:
        return [TensorFact(dtype, None), TensorFact(stash, None), TensorFact(stash, None)]
    axis = axis_of(n, int_attr(n, "axis", -1), len(x.shape))
    for i in (1, 2):
        if n.has(i):
            _require_broadcast(n, x.shape, i)
    stats = x.shape[:axis] + (1,) * (len(x.shape) - axis)
    return [TensorFact(dtype, x.shape), TensorFact(stash, stats), TensorFact(stash, stats)]


def _require_broadcast(n: Inference, shape: Shape, index: int) -> None:
    """Input ``index`` must broadcast to ``shape`` without growing it."""
    other = n.tensor(index).shape
    if other is None:
        return
    ok = len(other) <= len(shape) and all(
        o in (1, d)
        for d, o in zip(reversed(shape), reversed(other), strict=False)
        if isinstance(d, int) and isinstance(o, int)
    )
    n.require(ok, "input does not broadcast to the data", expected=f"to {list(shape)}", found=list(other), value=index)
    for d, o in zip(reversed(shape), reversed(other), strict=False):
        n.agree(d, o, "sizes of the data and what is broadcast to them", ones=True)


@operator("LRN", required=("size",))
def lrn(n: Inference) -> list[Fact]:
    """The input's fact."""
    int_attr(n, "size", 1, low=1)
    return [TensorFact(n.tensor(0).dtype, rank_of(n, 0, least=2))]


@operator("MeanVarianceNormalization")
def mean_variance_normalization(n: Inference) -> list[Fact]:
    """The input's fact."""
    x = n.tensor(0)
    axes = ints_attr(n, "axes")
    if x.shape is not None:
        for a in axes if axes is not None else (0, 2, 3):
            axis_of(n, a, len(x.shape))
    return [x.with_shape(x.shape)]


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(n: Inference) -> list[Fact]:
    """Batch and channels stay, the other axes become 1."""
    shape = rank_of(n, 0, least=2)
    return [TensorFact(n.tensor(0).dtype, None if shape is None else shape[:2] + (1,) * (len(shape) - 2))]
