"""Movements of data that stand alone: kernels whose expression is "x". Inside a group they are :mod:`.views`."""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.loops.program import pointwise
from accord.backends.loops.table import LOOPS, known, output_operands
from accord.backends.protocol import Alias, Arrangement, Kernel, NativeKernel, Phase, ViewKernel
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, const, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import TensorFact
from accord.ir.places import from_front
from accord.ir.reason import Reason
from accord.ir.strides import Access, broadcast_access, contiguous, order_of, reshaped, reshaping
from accord.record import record

__all__ = ["known_bits", "pad"]


@LOOPS.arranges("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
def another_shape(view: NodeView) -> Arrangement:
    """The same memory; an input whose axes cannot be joined and cut where it lies is brought into order first."""
    shape, out = view.tensor(0).shape, view.output().shape
    if shape is None or out is None or known_bits(view.tensor(0)) is None:
        return Arrangement()
    own = view.access(0)
    access = own if shape == out else reshaped(shape, own, out)
    if access is not None:
        return Arrangement((None,), (Alias(0, access),), strided=True)
    copy = reshaping(shape, own, out)
    if copy is not None and copy.order != tuple(range(len(out))):
        return Arrangement(outputs=(copy.order,), strided=True)
    return Arrangement((), (Alias(0, Access(contiguous(out))),))


@LOOPS.selects("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
def view_of_input(view: NodeView) -> Kernel | Reason:
    """Another shape for the same memory, or a copy where the output must lie differently."""
    shape, out = view.tensor(0).shape, view.output().shape
    if shape is None or out is None:
        return Reason("a rank is not known")
    if known_bits(view.tensor(0)) is None:
        return Reason("the elements have no fixed size")
    source, target = view.access(0), view.output_access()
    if shape == out:
        return ViewKernel() if source == target else _simple(view, shape, source)
    if source == Access(contiguous(shape)) and target == Access(contiguous(out)):
        return ViewKernel()
    if target == Access(contiguous(out)):
        return _simple(view, shape, source, Access(contiguous(shape)))
    copy = reshaping(shape, source, out)
    if copy is None:
        return Reason("the axes are not only joined or cut, and the output is not row-major")
    return _simple(view, copy.extents, copy.source, copy.target(target))


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

    return pointwise(extents, [(word, source)], [(word, target)], [operand(0, word)], operands)


def _simple(view: NodeView, extents: Shape, source: Access, target: Access | None = None) -> Kernel | Reason:
    word = _word(view.tensor(0))
    if word is None:
        return Reason("the elements have no size that can be moved")
    phase = _move(word, extents, source, target or view.output_access(), (0, 1))
    return NativeKernel(f"move {view.node.op_type} {word}", (phase,), (0,))


@record
class _Walk:
    """An output that is part of the input's memory, walked in another way over the output's shape."""

    shape: Shape
    access: Access
    whole: bool


def _aliased(found: _Walk | Reason) -> Arrangement:
    if isinstance(found, Reason):
        return Arrangement()
    return Arrangement((None,), (Alias(0, found.access, found.whole),), strided=True)


def _copied(view: NodeView, found: _Walk | Reason) -> Kernel | Reason:
    return found if isinstance(found, Reason) else _simple(view, found.shape, found.access)


def _transposed(view: NodeView) -> _Walk | Reason:
    shape = view.tensor(0).shape
    if shape is None:
        return Reason("the rank is not known")
    perm = view.attr("perm", tuple(range(len(shape)))[::-1])
    own = view.access(0).strides
    return _Walk(tuple(shape[p] for p in perm), Access(tuple(own[p] for p in perm)), True)


@LOOPS.arranges("Transpose")
def transpose_arranged(view: NodeView) -> Arrangement:
    """The same memory."""
    return _aliased(_transposed(view))


@LOOPS.selects("Transpose")
def transpose(view: NodeView) -> Kernel | Reason:
    """Axes in another order."""
    return _copied(view, _transposed(view))


def _expanded(view: NodeView) -> _Walk | Reason:
    shape, out = view.tensor(0).shape, view.output().shape
    if shape is None or out is None:
        return Reason("a rank is not known")
    return _Walk(out, broadcast_access(shape, out, view.access(0)), False)


@LOOPS.arranges("Expand")
def expand_arranged(view: NodeView) -> Arrangement:
    """The same memory."""
    return _aliased(_expanded(view))


@LOOPS.selects("Expand")
def expand(view: NodeView) -> Kernel | Reason:
    """Repeat along axes of size 1."""
    return _copied(view, _expanded(view))


@LOOPS.selects("Tile")
def tile(view: NodeView) -> Kernel | Reason:
    """Repeat whole axes."""
    shape = view.tensor(0).shape
    repeats = view.tensor(1).elements()
    if shape is None or repeats is None or len(repeats) != len(shape):
        return Reason("the repeats are only known at run time")
    extents: list[DimLike] = []
    strides: list[DimLike] = []
    target: list[DimLike] = []
    places = zip(repeats, shape, view.access(0).strides, view.output_access().strides, strict=True)
    for r, d, s, t in places:
        extents += [r, d]
        strides += [0, s]
        target += [t * d, t]
    return _simple(view, tuple(extents), Access(tuple(strides)), Access(tuple(target)))


@LOOPS.arranges("Tile", "Pad")
def any_input(view: NodeView) -> Arrangement:
    """The output's axes lie as the input's do."""
    shape, out = view.tensor(0).shape, view.output().shape
    if shape is None or out is None or len(shape) != len(out):
        return Arrangement(strided=True)
    return Arrangement(outputs=(order_of(shape, view.access(0)),), strided=True)


@LOOPS.arranges("DepthToSpace", "SpaceToDepth")
def depth_space_arranged(view: NodeView) -> Arrangement:
    """As the input lies, which for images is channels-last."""
    return any_input(view)


@LOOPS.selects("DepthToSpace", "SpaceToDepth")
def depth_space(view: NodeView) -> Kernel | Reason:
    """Blocks of pixels ↔ channels: a transpose in between two reshapes (the ONNX text's own definition).

    Each of the five or six axes of the split has a stride in the input and one in the output.
    """
    shape = view.tensor(0).shape
    size = view.attr("blocksize")
    if shape is None or len(shape) != 4 or not isinstance(size, int) or size < 1:
        return Reason("only images with a block size")
    n, c, h, w = shape
    by_depth = view.attr("mode", "DCR") == "DCR"
    s, t = view.access(0).strides, view.output_access().strides
    extents: Shape
    if view.node.op_type == "SpaceToDepth":
        extents = (n, c, D.floordiv(h, size), size, D.floordiv(w, size), size)
        source = (s[0], s[1], s[2] * size, s[2], s[3] * size, s[3])
        step = (t[1] * (c * size), t[1] * c, t[1]) if by_depth else (t[1], t[1] * size, t[1] * (size * size))
        row, column, channel = step
        target = (t[0], channel, t[2], row, t[3], column)
        if not by_depth:
            target = (t[0], t[1] * (size * size), t[2], t[1] * size, t[3], t[1])
    else:
        depth = D.floordiv(c, size * size)
        extents = (n, depth, h, size, w, size)
        if by_depth:
            source = (s[0], s[1], s[2], s[1] * (size * depth), s[3], s[1] * depth)
        else:
            source = (s[0], s[1] * (size * size), s[2], s[1] * size, s[3], s[1])
        target = (t[0], t[1], t[2] * size, t[2], t[3] * size, t[3])
    return _simple(view, extents, Access(source), Access(target))


def _sliced(view: NodeView) -> _Walk | Reason:
    shape, out = view.tensor(0).shape, view.output().shape
    if shape is None or out is None:
        return Reason("a rank is not known")
    starts = view.tensor(1).elements()
    axes = view.tensor(3).elements() if view.has(3) else tuple(range(len(starts or ())))
    steps = view.tensor(4).elements() if view.has(4) else (1,) * len(starts or ())
    if starts is None or axes is None or steps is None or not D.is_known(axes) or not D.is_known(steps):
        return Reason("starts, axes or steps are only known at run time")
    own = list(view.access(0).strides)
    offset: DimLike = 0
    for start, a, step in zip(starts, axes, steps, strict=True):
        axis = view.axis(a, len(shape))
        size = shape[axis]
        limit = size if step > 0 else size - 1
        first = D.maximum(D.minimum(from_front(start, size), limit), 0)
        offset = offset + first * own[axis]
        own[axis] = own[axis] * step
    return _Walk(out, Access(tuple(own), offset), False)


@LOOPS.arranges("Slice")
def slice_arranged(view: NodeView) -> Arrangement:
    """Part of the same memory."""
    return _aliased(_sliced(view))


@LOOPS.selects("Slice")
def slice_(view: NodeView) -> Kernel | Reason:
    """A box with steps; starts must be sizes, ends are implied by the output's shape."""
    return _copied(view, _sliced(view))


@LOOPS.arranges("Concat")
def concat_arranged(view: NodeView) -> Arrangement:
    """The axes lie as those of the first input do; inputs may be written to their place."""
    out = view.output().shape
    if out is None or _word(view.output()) is None:
        return Arrangement()
    order = None
    for i in range(len(view.node.inputs)):
        shape = view.tensor(i).shape
        if view.has(i) and shape is not None and not view.tensor(i).is_const:
            order = order_of(shape, view.access(i))
            break
    return Arrangement(outputs=(order,), strided=True, joins=view.axis(view.attr("axis"), len(out)))


@LOOPS.selects("Concat")
def concat(view: NodeView) -> Kernel | Reason:
    """Each input that is not in its place is copied there."""
    out = view.output().shape
    word = _word(view.output())
    if out is None or word is None:
        return Reason("the rank is not known" if out is None else "the elements have no size that can be moved")
    axis = view.axis(view.attr("axis"), len(out))
    target = view.output_access().strides
    offset: DimLike = 0
    phases = []
    inputs = [i for i in range(len(view.node.inputs)) if view.has(i)]
    for k, i in enumerate(inputs):
        shape = view.tensor(i).shape
        if shape is None:
            return Reason(f"the rank of input {i} is not known")
        if i not in view.placed:
            place = Access(target, offset * target[axis])
            phases.append(_move(word, shape, view.access(i), place, (k, len(inputs))))
        offset = offset + shape[axis]
    return NativeKernel(f"move Concat {word}", tuple(phases), tuple(inputs))


@LOOPS.arranges("Split")
def split_arranged(view: NodeView) -> Arrangement:
    """Parts of the same memory."""
    shape = view.tensor(0).shape
    if shape is None or _word(view.tensor(0)) is None:
        return Arrangement()
    axis = view.axis(view.attr("axis", 0), len(shape))
    own = view.access(0).strides
    offset: DimLike = 0
    parts = []
    for k in range(len(view.node.outputs)):
        part = view.output(k).shape
        if part is None:
            return Arrangement(strided=True)
        parts.append(Alias(0, Access(own, offset * own[axis]), whole=False))
        offset = offset + part[axis]
    return Arrangement((None,), tuple(parts), strided=True)


@LOOPS.selects("Split")
def split(view: NodeView) -> Kernel | Reason:
    """Each output is copied from its place."""
    shape = view.tensor(0).shape
    word = _word(view.tensor(0))
    if shape is None or word is None:
        return Reason("the rank is not known" if shape is None else "the elements have no size that can be moved")
    axis = view.axis(view.attr("axis", 0), len(shape))
    own = view.access(0).strides
    offset: DimLike = 0
    phases = []
    for k, number in enumerate(output_operands(view.node, 1)):
        part = view.output(k).shape
        if part is None:
            return Reason(f"the rank of output {k} is not known")
        if number >= 0:
            phases.append(_move(word, part, Access(own, offset * own[axis]), view.output_access(k), (0, number)))
        offset = offset + part[axis]
    return NativeKernel(f"move Split {word}", tuple(phases), (0,))


@LOOPS.selects("Pad")
def pad(view: NodeView) -> Kernel | Reason:
    """Constant padding: fill, then copy the inside. Negative pads cut."""
    shape, out = view.tensor(0).shape, view.output().shape
    if view.attr("mode", "constant") != "constant":
        return Reason(f"padding of mode '{view.attr('mode')}' is no movement of whole axes")
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
    own, target = view.access(0).strides, view.output_access().strides
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
    fill_phase = pointwise(out, [], [(dtype, view.output_access())], [const(value, dtype)], (1,))
    copy = _move(word, tuple(inside), Access(own, source_offset), Access(target, target_offset), (0, 1))
    return NativeKernel(f"move Pad {word}", (fill_phase, copy), (0,))


@LOOPS.selects("ConstantOfShape")
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
    phase = pointwise(shape, [], [(dtype, view.output_access())], [const(value, dtype)], (0,))
    return NativeKernel(f"fill {dtype}", (phase,), ())
