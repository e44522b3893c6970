"""Shape rules of operators that move elements: reshape, transpose, concatenate, split, slice, pad, repeat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ir.places import from_front
from accord.ops.shapes.common import (
    MAX_ELEMENTS,
    axis_of,
    elements,
    int_attr,
    ints_attr,
    operator,
    product,
    rank_of,
    same_dtype,
    same_size,
    str_attr,
    unknown_shape,
    with_elements,
)
from accord.ops.shapes.tables import table_of, with_table

INT64 = ir.DataType.INT64

#: Bounds at and beyond this are "to the end": exporters write the largest int32 or int64.
_FAR = 2**31 - 1


#: More axes than any tensor has; an input with one entry per axis is no longer than this.
_MAX_RANK = 64


def vector_length(n: Inference, index: int) -> int | None:
    """Number of elements of the 1-D input ``index``, which has one per axis or fewer; None if unknown."""
    shape = rank_of(n, index, 0, 1)
    length = shape[0] if shape else None if shape is None else 1
    if not isinstance(length, int):
        return None
    n.require(length <= _MAX_RANK, "more axes than a tensor has", expected=f"at most {_MAX_RANK}", found=length)
    return length


def int_list(n: Inference, name: str, index: int) -> tuple[int, ...] | None:
    """A list of integers that old versions take as attribute ``name`` and new ones as input ``index``; None: unknown.

    An absent list is None, too; ask :func:`given` first where that matters.
    """
    attribute = ints_attr(n, name)
    if attribute is not None:
        return attribute
    if not n.has(index):
        return None
    vector_length(n, index)
    items = elements(n.tensor(index))
    return tuple(items) if items is not None and D.is_known(items) else None


def given(n: Inference, name: str, index: int) -> bool:
    """True if the list of :func:`int_list` is there, known or not."""
    return n.has(index) or name in n.node.attributes


# Identity, Shape, Size -------------------------------------------------------------------------------------------


@operator("Identity", tensors=False)
def identity(n: Inference) -> list[Fact]:
    """The input's fact."""
    return [n.inputs[0]]


@operator("Shape")
def shape_of(n: Inference) -> list[Fact]:
    """1-D int64 that holds the sizes of the axes from ``start`` to ``end``."""
    shape = n.tensor(0).shape
    start = int_attr(n, "start", 0)
    end = int_attr(n, "end", _FAR)
    if shape is None:
        return [TensorFact(INT64, (n.fresh(),))]
    part = shape[_bound(start, len(shape)) : _bound(end, len(shape))]
    return [with_elements(INT64, (len(part),), part)]


def _bound(index: int, rank: int) -> int:
    return max(0, min(rank, index + rank if index < 0 else index))


@operator("Size")
def size_of(n: Inference) -> list[Fact]:
    """Scalar int64: the number of elements."""
    shape = n.tensor(0).shape
    return [with_elements(INT64, (), None if shape is None else [product(n, shape)])]


# Reshape and its relatives ---------------------------------------------------------------------------------------


@operator("Reshape")
def reshape(n: Inference) -> list[Fact]:
    """The shape that the second input holds, where 0 copies a size and -1 takes what is left."""
    x = n.tensor(0)
    attribute = ints_attr(n, "shape")
    if attribute is None and not n.has(1):
        raise n.error("a required input is missing", expected="2 inputs", found=1)
    length = len(attribute) if attribute is not None else vector_length(n, 1)
    target = attribute if attribute is not None else elements(n.tensor(1))
    if target is None:
        return [TensorFact(x.dtype, unknown_shape(n, length))]
    shape = _target_shape(n, x.shape, target, bool(n.attr("allowzero", 0)))
    if len(shape) <= 1 and (x.data is not None or x.const is not None):
        items = elements(x)
        if items is not None:
            return [with_elements(x.dtype, shape, items)]
    content = table_of(x)
    if content is not None and len(shape) in (1, 2) and D.is_known(shape):
        return [with_table(x.dtype, content.reshape(shape))]
    return [TensorFact(x.dtype, shape)]


def _target_shape(n: Inference, source: Shape | None, target: Sequence[DimLike], allow_zero: bool) -> Shape:
    out: list[DimLike] = []
    open_axis: int | None = None
    for i, e in enumerate(target):
        size = e
        if isinstance(e, int):
            if e == 0 and not allow_zero:
                if source is None:
                    size = n.fresh()
                elif i < len(source):
                    size = source[i]
                else:
                    raise n.error("0 copies an axis that the input lacks", expected=f"rank over {i}", found=len(source))
            elif e == -1:
                if open_axis is not None:
                    raise n.error("only one size can be inferred", expected="one -1", found=list(target))
                open_axis = i
            elif e < 0:
                raise n.error("negative size", expected="-1, 0 or a size", found=list(target))
        out.append(size)
    if open_axis is not None and allow_zero and any(e == 0 for e in target):
        raise n.error("-1 and 0 exclude each other with allowzero", expected="one of them", found=list(target))
    if source is None:
        if open_axis is not None:
            out[open_axis] = n.fresh()
        return tuple(out)
    if open_axis is None:
        have, want = D.known_product(source), D.known_product(out)
        if have is not None and want is not None and have != want:
            raise n.error("element counts differ", expected=f"{have} elements {_text(source)}", found=_text(out))
        return tuple(out)
    rest = list(source)
    others: list[DimLike] = []
    for i, d in enumerate(out):
        # Equal sizes cancel: for every size but 0 that is the division, and next to a 0 the open size is undefined.
        if i != open_axis and d in rest and d != 0:
            rest.remove(d)
        elif i != open_axis:
            others.append(d)
    out[open_axis] = _quotient(n, product(n, rest), product(n, others), source, target)
    return tuple(out)


def _quotient(n: Inference, total: DimLike, rest: DimLike, source: Shape, target: Sequence[DimLike]) -> DimLike:
    if rest == 1:
        return total
    if rest == 0:
        raise n.error("-1 is ambiguous next to a size of 0", expected="no 0", found=list(target))
    if isinstance(total, int) and isinstance(rest, int) and total % rest:
        raise n.error("element counts differ", expected=f"{_text(source)} divided by {rest}", found=list(target))
    return D.floordiv(total, rest)


def _text(shape: Sequence[DimLike]) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"


@operator("Transpose")
def transpose(n: Inference) -> list[Fact]:
    """Axes in the order of ``perm``, reversed without it."""
    x = n.tensor(0)
    perm = ints_attr(n, "perm")
    if x.shape is None:
        return [TensorFact(x.dtype, None if perm is None else n.fresh_shape(len(perm)))]
    if perm is None:
        perm = tuple(range(len(x.shape) - 1, -1, -1))
    elif sorted(perm) != list(range(len(x.shape))):
        raise n.error("perm is no permutation of the axes", expected=f"0 .. {len(x.shape) - 1}", found=list(perm))
    if len(perm) <= 1:
        return [x]
    content = table_of(x)
    if content is not None:
        return [with_table(x.dtype, content.transpose(perm))]
    return [TensorFact(x.dtype, tuple(x.shape[p] for p in perm))]


@operator("Flatten")
def flatten(n: Inference) -> list[Fact]:
    """Two axes: what is before ``axis`` and the rest."""
    x = n.tensor(0)
    axis = int_attr(n, "axis", 1)
    if x.shape is None:
        return [TensorFact(x.dtype, n.fresh_shape(2))]
    rank = len(x.shape)
    n.require(-rank <= axis <= rank, "axis is out of range", expected=f"-{rank} <= axis <= {rank}", found=axis)
    axis = axis + rank if axis < 0 else axis
    return [TensorFact(x.dtype, (product(n, x.shape[:axis]), product(n, x.shape[axis:])))]


def _axes(n: Inference, axes: Sequence[int], rank: int) -> list[int]:
    out = [axis_of(n, a, rank) for a in axes]
    n.require(len(set(out)) == len(out), "an axis is repeated", expected="distinct axes", found=list(axes))
    return out


@operator("Squeeze")
def squeeze(n: Inference) -> list[Fact]:
    """Axes of size 1 removed: those named, else all."""
    x = n.tensor(0)
    axes = int_list(n, "axes", 1)
    if axes is None and given(n, "axes", 1):
        count = vector_length(n, 1)
        rank = None if count is None or x.shape is None else len(x.shape) - count
        return [TensorFact(x.dtype, unknown_shape(n, rank if rank is None or rank >= 0 else None))]
    if x.shape is None:
        return [TensorFact(x.dtype, None)]
    if axes is None:
        if any(not isinstance(d, int) and (D.lower_bound(d) or 0) < 2 for d in x.shape):
            # A symbol may turn out to be 1, so that the rank itself depends on the run.
            return [TensorFact(x.dtype, None)]
        drop = {i for i, d in enumerate(x.shape) if d == 1}
    else:
        drop = set(_axes(n, axes, len(x.shape)))
        for i in drop:
            if isinstance(x.shape[i], int) and x.shape[i] != 1:
                raise n.error("only axes of size 1 can be squeezed", expected=f"1 on axis {i}", found=_text(x.shape))
    shape = tuple(d for i, d in enumerate(x.shape) if i not in drop)
    return [_with_content(x, shape)]


@operator("Unsqueeze")
def unsqueeze(n: Inference) -> list[Fact]:
    """New axes of size 1 at these positions of the result."""
    x = n.tensor(0)
    if not given(n, "axes", 1):
        raise n.error("a required input is missing", expected="2 inputs", found=1)
    axes = int_list(n, "axes", 1)
    count = len(axes) if axes is not None else vector_length(n, 1)
    if x.shape is None or count is None:
        return [TensorFact(x.dtype, None)]
    rank = len(x.shape) + count
    if axes is None:
        return [TensorFact(x.dtype, n.fresh_shape(rank))]
    where = set(_axes(n, axes, rank))
    old = iter(x.shape)
    shape = tuple(1 if i in where else next(old) for i in range(rank))
    return [_with_content(x, shape)]


def _with_content(x: TensorFact, shape: Shape) -> TensorFact:
    """``x`` in another shape; short content goes along, it keeps its order."""
    if len(shape) <= 1 and (x.data is not None or x.const is not None):
        return with_elements(x.dtype, shape, elements(x))
    return TensorFact(x.dtype, shape)


# Concat, Split ---------------------------------------------------------------------------------------------------


@operator("Concat")
def concat(n: Inference) -> list[Fact]:
    """Inputs one after the other on ``axis``; the other sizes are equal."""
    facts = [n.tensor(i) for i in range(len(n.inputs))]
    dtype = same_dtype(n, *range(len(facts)))
    if n.opset >= 4 and "axis" not in n.node.attributes:
        raise n.error("attribute axis is missing", expected="a value for axis", found="none")
    axis = int_attr(n, "axis", 1)
    shapes = [f.shape for f in facts if f.shape is not None]
    if not shapes:
        return [TensorFact(dtype, None)]
    rank = len(shapes[0])
    axis = axis_of(n, axis, rank)
    out = list(shapes[0])
    total: DimLike = out[axis]
    for i, shape in enumerate(shapes[1:], start=1):
        if len(shape) != rank:
            raise n.error("inputs differ in rank", expected=rank, found=len(shape), value=i)
        for k in range(rank):
            if k != axis:
                out[k] = same_size(n, out[k], shape[k], f"sizes on axis {k}", value=i)
        total = total + shape[axis]
    out[axis] = total if len(shapes) == len(facts) else n.fresh()
    if rank == 1:
        items = _joined(facts)
        if items is not None:
            return [with_elements(dtype, tuple(out), items)]
    return [TensorFact(dtype, tuple(out))]


def _joined(facts: Sequence[TensorFact]) -> list[DimLike] | None:
    if len(facts) > MAX_ELEMENTS:
        return None
    items: list[DimLike] = []
    for fact in facts:
        part = elements(fact)
        if part is None:
            return None
        items.extend(part)
    return items


@operator("Split")
def split(n: Inference) -> list[Fact]:
    """Parts on ``axis``: of the given sizes, or equal ones of which the last may be smaller."""
    x = n.tensor(0)
    count = len(n.node.outputs)
    known = ints_attr(n, "split", low=0)
    sizes: Sequence[DimLike] | None = known
    if known is None and n.has(1):
        rank_of(n, 1, 1)
        sizes = elements(n.tensor(1))
    if sizes is not None:
        n.require(len(sizes) == count, "one size per output", expected=count, found=len(sizes))
        n.require(
            not any(isinstance(s, int) and s < 0 for s in sizes), "negative size", expected="sizes", found=str(sizes)
        )
    parts = int_attr(n, "num_outputs", count, low=1)
    n.require(parts == count, "num_outputs differs from the number of outputs", expected=count, found=parts)
    if x.shape is None:
        return [TensorFact(x.dtype, None)] * count
    axis = axis_of(n, int_attr(n, "axis", 0), len(x.shape))
    size = x.shape[axis]
    if sizes is None:
        sizes = n.fresh_shape(count) if n.has(1) else _equal_parts(n, size, count)
    elif D.is_known(sizes) and isinstance(size, int) and sum(sizes) != size:
        raise n.error("the parts do not add up", expected=f"{size} on axis {axis}", found=list(sizes))
    else:
        n.agree(size, sum(sizes, start=0), "sizes of the axis and of all parts")
    items = elements(x) if len(x.shape) == 1 else None
    if items is not None and D.is_known(sizes):
        out: list[Fact] = []
        at = 0
        for s in sizes:
            out.append(with_elements(x.dtype, (s,), items[at : at + s]))
            at += s
        return out
    return [TensorFact(x.dtype, (*x.shape[:axis], s, *x.shape[axis + 1 :])) for s in sizes]


def _equal_parts(n: Inference, size: DimLike, count: int) -> list[DimLike]:
    if D.modulo(size, count) == 0:
        return [D.floordiv(size, count)] * count
    if n.opset < 18:
        if isinstance(size, int):
            raise n.error("the axis cannot be split evenly", expected=f"a multiple of {count}", found=size)
        return [D.floordiv(size, count)] * count
    part = D.ceildiv(size, count)
    last = size - part * (count - 1)
    if isinstance(last, int) and last < 0:
        raise n.error("too many parts", expected=f"at most {size} outputs", found=count)
    return [part] * (count - 1) + [last]


# Slice -----------------------------------------------------------------------------------------------------------


@operator("Slice")
def slice_(n: Inference) -> list[Fact]:
    """The part from ``starts`` to ``ends`` in ``steps`` on ``axes``; bounds are clamped to the axis."""
    x = n.tensor(0)
    starts = _slice_input(n, "starts", 1)
    ends = _slice_input(n, "ends", 2)
    if x.shape is None:
        return [TensorFact(x.dtype, None)]
    rank = len(x.shape)
    axes = int_list(n, "axes", 3)
    if axes is None and not given(n, "axes", 3):
        bounds = starts or ends
        count = len(bounds) if bounds is not None else vector_length(n, 1)
        axes = tuple(range(count)) if count is not None else None
    if axes is None:
        return [TensorFact(x.dtype, n.fresh_shape(rank))]
    where = _axes(n, axes, rank)
    steps = elements(n.tensor(4)) if n.has(4) else (1,) * len(where)
    for items, name in ((starts, "starts"), (ends, "ends"), (steps, "steps")):
        if items is not None and len(items) != len(where):
            raise n.error(f"{name} and axes differ in length", expected=len(where), found=len(items))
    out = list(x.shape)
    for i, axis in enumerate(where):
        if starts is None or ends is None or steps is None:
            out[axis] = n.fresh()
        else:
            out[axis] = _sliced(n, x.shape[axis], starts[i], ends[i], steps[i])
    content = table_of(x)
    if content is not None and starts and ends and steps:
        for axis, start, end, step in zip(where, starts, ends, steps, strict=True):
            picked = _places(content.shape[axis], start, end, step)
            if picked is None:
                break
            content = content.take(np.array(picked, np.intp), axis)
        else:
            return [with_table(x.dtype, content)]
    return [TensorFact(x.dtype, tuple(out))]


def _slice_input(n: Inference, name: str, index: int) -> tuple[DimLike, ...] | None:
    attribute = ints_attr(n, name)
    if attribute is not None:
        return attribute
    if not n.has(index):
        raise n.error("a required input is missing", expected=name, found="none")
    vector_length(n, index)
    return elements(n.tensor(index))


def _places(size: int, start: DimLike, end: DimLike, step: DimLike) -> range | None:
    """Which of ``size`` elements a slice has; None where that is open."""
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)):
        return None
    if step < 0:
        # The specification clamps to the last element and to one before the first.
        first = min(max(start + size if start < 0 else start, 0), size - 1)
        last = min(max(end + size if end < 0 else end, -1), size - 1)
        return range(first, last, step) if size else range(0)
    return range(size)[start:end:step]


def _sliced(n: Inference, size: DimLike, start: DimLike, end: DimLike, step: DimLike) -> DimLike:
    """Length of ``start:end:step`` of an axis of ``size``."""
    if not isinstance(step, int):
        return n.fresh()
    n.require(step != 0, "step is zero", expected="another step", found=0)
    if isinstance(start, int) and abs(start) > _FAR:
        start = _FAR if start > 0 else -_FAR
    s = from_front(start, size)
    if step > 0:
        if isinstance(end, int) and end >= _FAR:
            if isinstance(start, int) and start < 0:
                # The last k elements: the shorter of k and the axis, which says more than a difference of clamps.
                return D.ceildiv(D.minimum(size, -start), step)
            e = size
        else:
            e = D.minimum(from_front(end, size), size)
        return D.ceildiv(D.maximum(e - D.maximum(s, 0), 0), step)
    e = -1 if isinstance(end, int) and end <= -_FAR else D.maximum(D.minimum(from_front(end, size), size - 1), -1)
    first = size - 1 if start == -1 else D.minimum(D.maximum(s, 0), size - 1)
    return D.ceildiv(D.maximum(first - e, 0), -step)


# Expand, Tile, Pad -----------------------------------------------------------------------------------------------


@operator("Expand", inputs=2)
def expand(n: Inference) -> list[Fact]:
    """The input broadcast with the shape that the second input holds."""
    x = n.tensor(0)
    length = vector_length(n, 1)
    target = elements(n.tensor(1))
    if x.shape is None:
        return [TensorFact(x.dtype, None)]
    if target is None:
        if length is None:
            return [TensorFact(x.dtype, None)]
        rank = max(length, len(x.shape))
        padded: Shape = (1,) * (rank - len(x.shape)) + x.shape
        kept = [d if isinstance(d, int) and (d > 1 or i < rank - length) else None for i, d in enumerate(padded)]
        return [TensorFact(x.dtype, tuple(n.fresh() if d is None else d for d in kept))]
    n.require(not any(isinstance(t, int) and t < 0 for t in target), "negative size", expected="sizes", found=target)
    shape = n.broadcast(x.shape, target)
    items = elements(x) if shape is not None and len(shape) <= 1 else None
    if items is not None and shape is not None:
        size = shape[0] if shape else 1
        if size == len(items):
            return [with_elements(x.dtype, shape, items)]
        if isinstance(size, int) and len(items) == 1 and size <= MAX_ELEMENTS:
            return [with_elements(x.dtype, shape, items * size)]
    return [TensorFact(x.dtype, shape)]


@operator("Tile", inputs=2)
def tile(n: Inference) -> list[Fact]:
    """Each axis repeated as often as the second input says; one axis, which the third names, before opset 6."""
    x = n.tensor(0)
    if n.has(2):
        return [TensorFact(x.dtype, unknown_shape(n, x.rank))]
    length = vector_length(n, 1)
    repeats = elements(n.tensor(1))
    if x.shape is None:
        return [TensorFact(x.dtype, unknown_shape(n, length))]
    rank = len(x.shape)
    n.require(length is None or length == rank, "one repeat per axis", expected=rank, found=length, value=1)
    if repeats is None:
        return [TensorFact(x.dtype, n.fresh_shape(rank))]
    n.require(
        not any(isinstance(r, int) and r < 0 for r in repeats), "negative repeat", expected="counts", found=repeats
    )
    shape = tuple(d * r for d, r in zip(x.shape, repeats, strict=False))
    items = elements(x) if rank == 1 else None
    if items is not None and isinstance(repeats[0], int) and len(items) * repeats[0] <= MAX_ELEMENTS:
        return [with_elements(x.dtype, shape, items * repeats[0])]
    return [TensorFact(x.dtype, shape)]


@operator("Pad")
def pad(n: Inference) -> list[Fact]:
    """Each axis longer (or, with negative pads, shorter) by the pads at its two ends."""
    x = n.tensor(0)
    if n.has(2):
        same_dtype(n, 0, 2)
    str_attr(n, "mode", "constant", among=("constant", "reflect", "edge", "wrap"))
    attribute = ints_attr(n, "pads")
    pads: Sequence[DimLike] | None = attribute if attribute is not None else ints_attr(n, "paddings")
    if pads is None:
        if not n.has(1):
            raise n.error("a required input is missing", expected="pads", found="none")
        pads = elements(n.tensor(1))
    if x.shape is None:
        return [TensorFact(x.dtype, None)]
    rank = len(x.shape)
    axes: Sequence[int] | None = range(rank)
    if n.has(3):
        listed = int_list(n, "axes", 3)
        axes = None if listed is None else _axes(n, listed, rank)
    if axes is None or pads is None:
        return [TensorFact(x.dtype, n.fresh_shape(rank))]
    count = len(axes)
    n.require(len(pads) == 2 * count, "two pads per axis", expected=2 * count, found=len(pads))
    out = list(x.shape)
    for i, axis in enumerate(axes):
        out[axis] = out[axis] + pads[i] + pads[i + count]
        if isinstance(out[axis], int) and out[axis] < 0:  # type: ignore[operator]
            raise n.error("pads remove more than there is", expected="a size", found=f"{out[axis]} on axis {axis}")
    return [TensorFact(x.dtype, tuple(out))]


@operator("CenterCropPad", inputs=2)
def center_crop_pad(n: Inference) -> list[Fact]:
    """The sizes of the second input on ``axes``."""
    x = n.tensor(0)
    length = vector_length(n, 1)
    sizes = elements(n.tensor(1))
    axes = ints_attr(n, "axes")
    if x.shape is None:
        return [TensorFact(x.dtype, None if axes is not None else unknown_shape(n, length))]
    where = range(len(x.shape)) if axes is None else _axes(n, axes, len(x.shape))
    n.require(length is None or length == len(where), "one size per axis", expected=len(where), found=length, value=1)
    if sizes is None:
        sizes = n.fresh_shape(len(where))
    out = list(x.shape)
    for axis, size in zip(where, sizes, strict=False):
        n.require(not isinstance(size, int) or size >= 0, "negative size", expected="a size", found=str(size))
        out[axis] = size
    return [TensorFact(x.dtype, tuple(out))]
