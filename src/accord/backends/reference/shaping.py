"""Operators that move elements without computing: reshape, transpose, slice, pad, split and their kin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import (
    integers,
    normal_axes,
    normal_axis,
    numpy_dtype,
    require,
    require_room,
    scalar,
)


def _from(op: OpNode, name: str, given: Array | None) -> list[int] | None:
    """Integers from an input, or from the attribute that older versions have in its place."""
    if given is not None:
        return integers(given)
    value: list[int] | None = op[name]
    return value


@implements("Reshape")
def reshape(op: OpNode, x: Array, shape: Array | None = None) -> Array:
    """Give the tensor another shape; 0 copies a dimension (unless ``allowzero``), -1 takes what is left."""
    target = _from(op, "shape", shape)
    require(target is not None, "no shape is given")
    sizes = list(target or [])
    require(sizes.count(-1) <= 1 and min(sizes, default=0) >= -1, f"{sizes} is not a shape")
    if op["allowzero"]:
        require(not (0 in sizes and -1 in sizes), f"{sizes} has both 0 and -1 though allowzero is set")
    else:
        for axis, size in enumerate(sizes):
            if size == 0:
                require(axis < x.ndim, f"{sizes} copies dimension {axis} of a tensor of rank {x.ndim}")
                sizes[axis] = x.shape[axis]
    if -1 in sizes:
        known = math.prod(n for n in sizes if n != -1)
        require(known > 0 and x.size % known == 0, f"{x.size} elements do not fit the shape {sizes}")
        sizes[sizes.index(-1)] = x.size // known
    return x.reshape(sizes)


@implements("Flatten")
def flatten(op: OpNode, x: Array) -> Array:
    """Make a matrix: the axes before ``axis`` are its rows, the others its columns."""
    axis = op["axis"] + (x.ndim if op["axis"] < 0 else 0)
    require(0 <= axis <= x.ndim, f"axis {op['axis']} does not split a tensor of rank {x.ndim}")
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@implements("Transpose")
def transpose(op: OpNode, x: Array) -> Array:
    """Permute the axes; without ``perm`` reverse them."""
    return np.transpose(x, op["perm"])


@implements("Squeeze")
def squeeze(op: OpNode, x: Array, axes: Array | None = None) -> Array:
    """Remove axes of length one: those named, or all."""
    chosen = _from(op, "axes", axes)
    if chosen is None:
        return np.squeeze(x)
    return np.squeeze(x, normal_axes(chosen, x.ndim))


@implements("Unsqueeze")
def unsqueeze(op: OpNode, x: Array, axes: Array | None = None) -> Array:
    """Insert axes of length one at positions of the result."""
    chosen = _from(op, "axes", axes)
    require(chosen is not None, "no axes are given")
    return np.expand_dims(x, normal_axes(chosen or [], x.ndim + len(chosen or [])))


@implements("Expand")
def expand(_op: OpNode, x: Array, shape: Array) -> Array:
    """Broadcast the tensor with a shape, both ways."""
    target = np.broadcast_shapes(x.shape, tuple(integers(shape)))
    require_room(target, x.dtype.itemsize)
    return np.broadcast_to(x, target).copy()


@implements("Tile")
def tile(op: OpNode, x: Array, repeats: Array, axis: Array | None = None) -> Array:
    """Repeat the tensor along every axis (version 1: along one)."""
    if op.version < 6 and axis is not None:
        counts = [1] * x.ndim
        counts[normal_axis(int(scalar(axis)), x.ndim)] = int(scalar(repeats))
    else:
        counts = integers(repeats)
        require(len(counts) == x.ndim, f"{len(counts)} repeats for a tensor of rank {x.ndim}")
    require(min(counts, default=0) >= 0, f"repeats {counts} has a negative count")
    require_room([n * count for n, count in zip(x.shape, counts, strict=True)], x.dtype.itemsize)
    return np.tile(x, counts)


@implements("Concat")
def concat(op: OpNode, *inputs: Array) -> Array:
    """Join tensors along an axis."""
    axis = 1 if op["axis"] is None else op["axis"]
    return np.concatenate(inputs, axis=normal_axis(axis, inputs[0].ndim))


@implements("Shape")
def shape_of(op: OpNode, x: Array) -> Array:
    """Dimensions of the tensor, or a slice of them."""
    return np.array(x.shape[op["start"] or 0 : op["end"]], dtype=np.int64)


@implements("Size")
def size_of(_op: OpNode, x: Array) -> Array:
    """Number of elements."""
    return np.array(x.size, dtype=np.int64)


@implements("Slice")
def slice_axes(
    op: OpNode,
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    """Take a strided part of the tensor.

    Bounds beyond an axis are clamped to it. Other than in Python, a start before the axis of a backward slice is
    clamped to its first element, which is then part of the result.
    """
    first, last = _from(op, "starts", starts) or [], _from(op, "ends", ends) or []
    chosen = _from(op, "axes", axes)
    strides = integers(steps) if steps is not None else [1] * len(first)
    along = normal_axes(range(len(first)) if chosen is None else chosen, x.ndim)
    require(len(first) == len(last) == len(along) == len(strides), "starts, ends, axes and steps differ in length")
    require(0 not in strides, "a step is zero")
    parts = [slice(None)] * x.ndim
    for axis, start, end, step in zip(along, first, last, strides, strict=True):
        parts[axis] = slice(start if step > 0 else max(start, -x.shape[axis]), end, step)
    return x[tuple(parts)]


def _cut(length: int, sizes: Sequence[int], axis: int) -> list[slice]:
    require(
        sum(sizes) == length and min(sizes, default=0) >= 0, f"sizes {list(sizes)} do not split {length} on axis {axis}"
    )
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


@implements("Split")
def split(op: OpNode, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    """Cut the tensor along an axis into the sizes given, or into equal parts of which the last may be shorter."""
    axis = normal_axis(op["axis"] or 0, x.ndim)
    lengths = _from(op, "split", sizes)
    if lengths is None:
        parts = op["num_outputs"] or len(op.outputs)
        length = x.shape[axis]
        require(op.version >= 18 or length % parts == 0, f"{length} elements do not split into {parts} equal parts")
        chunk = -(-length // parts)
        lengths = [max(min(chunk, length - i * chunk), 0) for i in range(parts)]
    before = (slice(None),) * axis
    return tuple(x[(*before, part)] for part in _cut(x.shape[axis], lengths, axis))


@implements("SplitToSequence")
def split_to_sequence(op: OpNode, x: Array, sizes: Array | None = None) -> list[Array]:
    """Cut the tensor along an axis into a sequence: by sizes, by one size, or into single slices."""
    axis = normal_axis(op["axis"], x.ndim)
    length = x.shape[axis]
    before = (slice(None),) * axis
    if sizes is None:
        pieces = [x[(*before, slice(i, i + 1))] for i in range(length)]
        return pieces if op["keepdims"] else [np.squeeze(piece, axis) for piece in pieces]
    if sizes.ndim == 0:
        chunk = int(scalar(sizes))
        require(chunk > 0, f"split size {chunk} is not positive")
        lengths = [min(chunk, length - start) for start in range(0, length, chunk)]
    else:
        lengths = integers(sizes)
    return [x[(*before, part)] for part in _cut(length, lengths, axis)]


def _source_indices(mode: str, length: int, before: int, after: int) -> Array:
    """Where each element along a padded axis comes from."""
    index = np.arange(-before, length + after)
    if mode == "edge":
        return np.clip(index, 0, length - 1)
    if mode == "wrap":
        return index % length
    require(mode == "reflect", f"mode '{mode}' is unknown")
    if length == 1:
        return np.zeros_like(index)
    period = 2 * (length - 1)
    folded = index % period
    return np.minimum(folded, period - folded)


def _pad_axis(x: Array, axis: int, before: int, after: int, mode: str, fill: Any) -> Array:
    length = x.shape[axis]
    require(length + before + after >= 0, f"pads {before} and {after} remove more than the {length} of axis {axis}")
    require_room((*x.shape[:axis], length + before + after, *x.shape[axis + 1 :]), x.dtype.itemsize)
    if mode == "constant":
        shape = (*x.shape[:axis], length + before + after, *x.shape[axis + 1 :])
        padded = np.full(shape, fill, dtype=x.dtype)
        index = np.arange(-before, length + after)
        inside = np.flatnonzero((index >= 0) & (index < length))
        where: tuple[Any, ...] = (slice(None),) * axis
        padded[(*where, inside)] = x[(*where, index[inside])]
        return padded
    # What is removed is not there to be repeated: cut first, then pad.
    kept = np.arange(length)[max(-before, 0) : length - max(-after, 0)]
    require(kept.size > 0, f"nothing is left of axis {axis} to pad in mode '{mode}'")
    return np.take(x, kept[_source_indices(mode, kept.size, max(before, 0), max(after, 0))], axis=axis)


@implements("Pad")
def pad(
    op: OpNode, x: Array, pads: Array | None = None, value: Array | None = None, axes: Array | None = None
) -> Array:
    """Add elements before and after each axis, or remove them where the padding is negative."""
    widths = integers(pads) if pads is not None else (op["pads"] if op["pads"] is not None else op["paddings"])
    chosen = normal_axes(range(x.ndim) if axes is None else integers(axes), x.ndim)
    require(len(widths) == 2 * len(chosen), f"{len(widths)} pads for {len(chosen)} axes")
    fill: Any = op["value"] if value is None else value.reshape(-1)[0] if value.size else None
    if fill is None:
        fill = "" if x.dtype == object else 0
    result = x
    for number, axis in enumerate(chosen):
        before, after = widths[number], widths[number + len(chosen)]
        if before or after:
            result = _pad_axis(result, axis, before, after, op["mode"] or "constant", fill)
    return result


@implements("CenterCropPad")
def center_crop_pad(op: OpNode, x: Array, shape: Array) -> Array:
    """Crop or zero-pad around the centre; of an odd difference, the smaller half is in front."""
    sizes = integers(shape)
    axes = normal_axes(range(x.ndim) if op["axes"] is None else op["axes"], x.ndim)
    require(len(sizes) == len(axes), f"{len(sizes)} sizes for {len(axes)} axes")
    result_shape = list(x.shape)
    source = [slice(None)] * x.ndim
    target = [slice(None)] * x.ndim
    for axis, size in zip(axes, sizes, strict=True):
        length = x.shape[axis]
        result_shape[axis] = size
        kept = min(size, length)
        source[axis] = slice((length - kept) // 2, (length - kept) // 2 + kept)
        target[axis] = slice((size - kept) // 2, (size - kept) // 2 + kept)
    require_room(result_shape, x.dtype.itemsize)
    result = np.full(result_shape, "", dtype=object) if x.dtype == object else np.zeros(result_shape, x.dtype)
    result[tuple(target)] = x[tuple(source)]
    return result


@implements("DepthToSpace")
def depth_to_space(op: OpNode, x: Array) -> Array:
    """Move blocks of channels into space; ``mode`` says which part of the channel index is the block's."""
    block = op["blocksize"]
    n, c, h, w = x.shape
    require(c % (block * block) == 0, f"{c} channels are not a multiple of the block's {block * block}")
    depth = c // (block * block)
    if (op["mode"] or "DCR") == "DCR":
        moved = x.reshape(n, block, block, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = x.reshape(n, depth, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return moved.reshape(n, depth, h * block, w * block)


@implements("SpaceToDepth")
def space_to_depth(op: OpNode, x: Array) -> Array:
    """Move blocks of space into channels, the inverse of DepthToSpace."""
    block = op["blocksize"]
    n, c, h, w = x.shape
    require(h % block == 0 and w % block == 0, f"{h}×{w} is not a multiple of the block size {block}")
    cells = x.reshape(n, c, h // block, block, w // block, block)
    order = (0, 1, 3, 5, 2, 4) if op["mode"] == "CRD" else (0, 3, 5, 1, 2, 4)
    return cells.transpose(order).reshape(n, c * block * block, h // block, w // block)


@implements("Trilu")
def trilu(op: OpNode, x: Array, k: Array | None = None) -> Array:
    """Keep the upper or the lower triangle of the matrices in the last two axes."""
    require(x.ndim >= 2, f"a tensor of rank {x.ndim} holds no matrices")
    offset = 0 if k is None else int(scalar(k))
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    keep = columns - rows >= offset if op["upper"] else columns - rows <= offset
    return np.where(keep, x, np.zeros((), dtype=x.dtype))


@implements("EyeLike")
def eye_like(op: OpNode, x: Array) -> Array:
    """Ones on a diagonal, zeros elsewhere, in the shape of the input."""
    require(x.ndim == 2, f"a tensor of rank {x.ndim} is not a matrix")
    dtype = x.dtype if op["dtype"] is None else numpy_dtype(op["dtype"])
    return np.eye(x.shape[0], x.shape[1], k=op["k"]).astype(dtype)


@implements("ReverseSequence")
def reverse_sequence(op: OpNode, x: Array, lengths: Array) -> Array:
    """Reverse the first elements of each batch entry along the time axis."""
    time, batch = normal_axis(op["time_axis"], x.ndim), normal_axis(op["batch_axis"], x.ndim)
    require(time != batch, "time_axis and batch_axis are the same")
    counts = integers(lengths)
    require(len(counts) == x.shape[batch], f"{len(counts)} lengths for {x.shape[batch]} batch entries")
    steps = np.arange(x.shape[time])
    result = np.moveaxis(x, (batch, time), (0, 1)).copy()
    for entry, count in enumerate(counts):
        require(0 <= count <= x.shape[time], f"length {count} exceeds the {x.shape[time]} time steps")
        result[entry] = result[entry][np.where(steps < count, count - 1 - steps, steps)]
    return np.moveaxis(result, (0, 1), (batch, time))


@implements("Constant")
def constant(op: OpNode) -> Any:
    """Return the value of whichever attribute is given."""
    given = [name for name in op.attributes if name.startswith(("value", "sparse_value"))]
    require(len(given) == 1, f"exactly one value attribute is needed, found {given}")
    value = op[given[0]]
    kinds: dict[str, Any] = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
        "value_string": object,
        "value_strings": object,
    }
    return np.array(value, dtype=kinds[given[0]]) if given[0] in kinds else value


@implements("ConstantOfShape")
def constant_of_shape(op: OpNode, shape: Array) -> Array:
    """Fill a tensor of a shape given at run time; zeros of float32 by default."""
    value = op["value"]
    sizes = integers(shape)
    require_room(sizes, 4 if value is None else value.dtype.itemsize)
    if value is None:
        return np.zeros(sizes, dtype=np.float32)
    return np.full(sizes, value.reshape(-1)[0], dtype=value.dtype)
