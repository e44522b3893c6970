"""Movement of data: kernels whose expression is "x"."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.families.sampling import sampled_pad
from accord.backends.cpu.families.table import known, output_operands, selects
from accord.backends.cpu.movement import gather_phase, integers_phase
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.protocol import Kernel, NativeKernel, NodeView, Phase, ViewKernel
from accord.expr.lang import FLOATS, bits, const, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import TensorFact
from accord.ir.patch import Reason
from accord.ir.strides import Access, broadcast_access, contiguous

__all__ = ["integers"]

_INTEGERS = frozenset({"i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool"})


def integers(view: NodeView) -> Kernel | None:
    """A kernel for any node whose one output holds integers that are sizes: it reads nothing."""
    named = [i for i, o in enumerate(view.node.outputs) if o.name != ""]
    if len(named) != 1:
        return None
    fact = view.output(named[0])
    found = known(fact, "the output")
    if isinstance(found, Reason) or found[1] not in _INTEGERS or fact.is_const:
        return None
    elements = fact.elements()
    if elements is None:
        return None
    return NativeKernel(f"integers {found[1]}", (integers_phase(elements, found[1], 0),), ())


@selects("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
def view_of_input(view: NodeView) -> Kernel | Reason:
    """Another shape for the same memory."""
    if view.tensor(0).shape is None or view.output().shape is None:
        return Reason("a rank is not known")
    if known_bits(view.tensor(0)) is None:
        return Reason("the elements have no fixed size")
    return ViewKernel()


def known_bits(fact: TensorFact) -> int | None:
    """Bytes of an element in memory times 8, None where there is none."""
    import onnx_ir as ir

    if fact.dtype is None or fact.dtype == ir.DataType.STRING:
        return None
    return int(fact.dtype.numpy().itemsize) * 8


def _word(fact: TensorFact) -> str | None:
    """An unsigned integer type of the element's size: moving needs no other knowledge of it."""
    n = known_bits(fact)
    return f"u{n}" if n in (8, 16, 32, 64) else None


def _move(word: str, extents: Shape, source: Access, target: Access, operands: tuple[int, int]) -> Phase:

    return pointwise_phase(extents, [(word, source)], [(word, target)], [operand(0, word)], operands)


def _simple(view: NodeView, extents: Shape, source: Access, target: Access | None = None) -> Kernel | Reason:
    word = _word(view.tensor(0))
    if word is None:
        return Reason("the elements have no size that can be moved")
    phase = _move(word, extents, source, target or Access(contiguous(extents)), (0, 1))
    return NativeKernel(f"move {view.node.op_type} {word}", (phase,), (0,))


@selects("Transpose")
def transpose(view: NodeView) -> Kernel | Reason:
    """Axes in another order."""
    shape = view.tensor(0).shape
    if shape is None:
        return Reason("the rank is not known")
    perm = view.attr("perm", tuple(range(len(shape)))[::-1])
    own = contiguous(shape)
    return _simple(view, tuple(shape[p] for p in perm), Access(tuple(own[p] for p in perm)))


@selects("Expand")
def expand(view: NodeView) -> Kernel | Reason:
    """Repeat along axes of size 1."""
    shape, out = view.tensor(0).shape, view.output().shape
    if shape is None or out is None:
        return Reason("a rank is not known")
    return _simple(view, out, broadcast_access(shape, out))


@selects("Tile")
def tile(view: NodeView) -> Kernel | Reason:
    """Repeat whole axes."""
    shape = view.tensor(0).shape
    repeats = view.tensor(1).elements()
    if shape is None or repeats is None or len(repeats) != len(shape):
        return Reason("the repeats are only known at run time")
    extents: list[DimLike] = []
    strides: list[DimLike] = []
    for r, d, s in zip(repeats, shape, contiguous(shape), strict=True):
        extents += [r, d]
        strides += [0, s]
    return _simple(view, tuple(extents), Access(tuple(strides)))


@selects("DepthToSpace", "SpaceToDepth")
def depth_space(view: NodeView) -> Kernel | Reason:
    """Blocks of pixels ↔ channels: a transpose in between two reshapes (the ONNX text's own definition)."""
    shape = view.tensor(0).shape
    size = view.attr("blocksize")
    if shape is None or len(shape) != 4 or not isinstance(size, int) or size < 1:
        return Reason("only images with a block size")
    n, c, h, w = shape
    split: Shape
    by_depth = view.attr("mode", "DCR") == "DCR"
    if view.node.op_type == "SpaceToDepth":
        split = (n, c, D.floordiv(h, size), size, D.floordiv(w, size), size)
        perm = (0, 3, 5, 1, 2, 4) if by_depth else (0, 1, 3, 5, 2, 4)
    elif by_depth:
        split, perm = (n, size, size, D.floordiv(c, size * size), h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (n, D.floordiv(c, size * size), size, size, h, w), (0, 1, 4, 2, 5, 3)
    own = contiguous(split)
    return _simple(view, tuple(split[p] for p in perm), Access(tuple(own[p] for p in perm)))


@selects("Slice")
def slice_(view: NodeView) -> Kernel | Reason:
    """A box with steps; starts must be sizes, ends are implied by the output's shape."""
    shape, out = view.tensor(0).shape, view.output().shape
    if shape is None or out is None:
        return Reason("a rank is not known")
    starts = view.tensor(1).elements()
    axes = view.tensor(3).elements() if view.has(3) else tuple(range(len(starts or ())))
    steps = view.tensor(4).elements() if view.has(4) else (1,) * len(starts or ())
    if starts is None or axes is None or steps is None or not D.is_known(axes) or not D.is_known(steps):
        return Reason("starts, axes or steps are only known at run time")
    own = list(contiguous(shape))
    offset: DimLike = 0
    for start, a, step in zip(starts, axes, steps, strict=True):
        axis = view.axis(a, len(shape))
        size = shape[axis]
        first = _clamped(start, size, step)
        if first is None:
            return Reason(f"the start {start} may count from either end")
        offset = offset + first * own[axis]
        own[axis] = own[axis] * step
    return _simple(view, out, Access(tuple(own), offset))


def _clamped(start: DimLike, size: DimLike, step: int) -> DimLike | None:
    """Where a slice begins: ``start`` counted from the front and brought into the axis; None if its sign is open."""
    low = D.lower_bound(start)
    high = D.upper_bound(start)
    if low is not None and low >= 0:
        first = start
    elif high is not None and high < 0:
        first = start + size
    else:
        return None
    limit = size if step > 0 else size - 1
    return D.maximum(D.minimum(first, limit), 0)


@selects("Concat")
def concat(view: NodeView) -> Kernel | Reason:
    """Each input is copied to its place."""
    out = view.output().shape
    word = _word(view.output())
    if out is None or word is None:
        return Reason("the rank is not known" if out is None else "the elements have no size that can be moved")
    axis = view.axis(view.attr("axis"), len(out))
    target = contiguous(out)
    offset: DimLike = 0
    phases = []
    inputs = [i for i in range(len(view.node.inputs)) if view.has(i)]
    for k, i in enumerate(inputs):
        shape = view.tensor(i).shape
        if shape is None:
            return Reason(f"the rank of input {i} is not known")
        place = Access(target, offset * target[axis])
        phases.append(_move(word, shape, Access(contiguous(shape)), place, (k, len(inputs))))
        offset = offset + shape[axis]
    return NativeKernel(f"move Concat {word}", tuple(phases), tuple(inputs))


@selects("Split")
def split(view: NodeView) -> Kernel | Reason:
    """Each output is copied from its place."""
    shape = view.tensor(0).shape
    word = _word(view.tensor(0))
    if shape is None or word is None:
        return Reason("the rank is not known" if shape is None else "the elements have no size that can be moved")
    axis = view.axis(view.attr("axis", 0), len(shape))
    own = contiguous(shape)
    offset: DimLike = 0
    phases = []
    for k, number in enumerate(output_operands(view.node, 1)):
        part = view.output(k).shape
        if part is None:
            return Reason(f"the rank of output {k} is not known")
        if number >= 0:
            phases.append(_move(word, part, Access(own, offset * own[axis]), Access(contiguous(part)), (0, number)))
        offset = offset + part[axis]
    return NativeKernel(f"move Split {word}", tuple(phases), (0,))


@selects("Pad")
def pad(view: NodeView) -> Kernel | Reason:
    """Constant padding: fill, then copy the inside. Negative pads cut."""
    shape, out = view.tensor(0).shape, view.output().shape
    if view.attr("mode", "constant") != "constant":
        return sampled_pad(view)
    pads = view.tensor(1).elements()
    found = known(view.tensor(0), "the input")
    if isinstance(found, Reason):
        return found
    if shape is None or out is None or pads is None:
        return Reason("the pads are only known at run time")
    axes: Sequence[DimLike] | None = tuple(range(len(shape)))
    if view.has(3):
        axes = view.tensor(3).elements()
    if axes is None or not D.is_known(axes) or len(pads) != 2 * len(axes):
        return Reason("the axes are only known at run time")
    dtype = found[1]
    value: float | int | bool = 0
    if view.has(2):
        fill = view.tensor(2)
        if not fill.is_const or fill.const is None or fill.const.size != 1:
            return Reason("the fill value is only known at run time")
        value = fill.numpy().reshape(-1)[0].item()
    before: list[DimLike] = [0] * len(shape)
    for i, a in enumerate(axes):
        if pads[i] != 0 and D.lower_bound(pads[i]) is None:
            return Reason("the sign of a pad is only known at run time")
        before[view.axis(a, len(shape))] = pads[i]
    inside: list[DimLike] = []
    source_offset: DimLike = 0
    target_offset: DimLike = 0
    own, target = contiguous(shape), contiguous(out)
    for axis, first in enumerate(before):
        begin = D.maximum(first, 0)  # in the output
        cut = D.maximum(first * -1, 0)  # in the input
        length = D.maximum(D.minimum(shape[axis] - cut, out[axis] - begin), 0)
        inside.append(length)
        source_offset = source_offset + cut * own[axis]
        target_offset = target_offset + begin * target[axis]
    word = _word(view.tensor(0))
    if word is None:
        return Reason("the elements have no size that can be moved")
    fill_phase = pointwise_phase(out, [], [(dtype, Access(contiguous(out)))], [const(value, dtype)], (1,))
    copy = _move(word, tuple(inside), Access(own, source_offset), Access(target, target_offset), (0, 1))
    return NativeKernel(f"move Pad {word}", (fill_phase, copy), (0,))


@selects("ConstantOfShape")
def constant_of_shape(view: NodeView) -> Kernel | Reason:
    """Fill."""
    found = known(view.output(), "the output")
    if isinstance(found, Reason):
        return found
    shape, dtype = found
    tensor = view.attr("value")
    value = 0.0 if tensor is None else tensor.numpy().reshape(-1)[0].item()
    if dtype not in FLOATS:
        value = bool(value) if dtype == "bool" else int(value)
    phase = pointwise_phase(shape, [], [(dtype, Access(contiguous(shape)))], [const(value, dtype)], (0,))
    return NativeKernel(f"fill {dtype}", (phase,), ())


@selects("Gather")
def gather(view: NodeView) -> Kernel | Reason:
    """Rows by index."""
    shape = view.tensor(0).shape
    index = known(view.tensor(1), "the indices")
    n = known_bits(view.tensor(0))
    if shape is None or n is None or isinstance(index, Reason):
        return Reason("shapes or element size are not known")
    if not shape:
        return Reason("a scalar has no axis")
    axis = view.axis(view.attr("axis", 0), len(shape))
    if index[1] not in ("i32", "i64"):
        return Reason("indices are int32 or int64")
    phase = gather_phase(shape, axis, D.product(index[0]), n // 8, index[1], (0, 1, 2))
    return NativeKernel(f"gather {bits(index[1])}", (phase,), (0, 1))
