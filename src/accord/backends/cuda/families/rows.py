"""Rows of sequences and caches, and features by number: loop programs that look places up."""

from __future__ import annotations

from accord.backends.cuda.families.table import any_strides, arranges, looped, selects
from accord.backends.loops.group import Group
from accord.backends.loops.members.movements import known_bits
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output, pointwise, program_phase
from accord.backends.loops.table import known
from accord.backends.protocol import Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.expr.lang import cast, operand
from accord.expr.primitives import irem, lt, select
from accord.ir import dims as D
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = ["array_feature_extractor", "reverse_sequence", "tensor_scatter"]


@looped("ReverseSequence")
def reverse_sequence(group: Group, view: NodeView) -> Reason | None:
    """The first elements of each sequence in reverse order."""
    x, lengths = known(view.tensor(0), "the input"), known(view.tensor(1), "the lengths")
    for f in (x, lengths):
        if isinstance(f, Reason):
            return f
    assert not isinstance(x, Reason) and not isinstance(lengths, Reason)
    v, shape, own = view.node.inputs[1], x[0], view.access(0)
    time, batch = (view.axis(int(view.attr(n, k)), len(shape)) for n, k in (("time_axis", 0), ("batch_axis", 1)))
    if v is None or len(lengths[0]) != 1 or time == batch:
        return Reason("lengths are a vector, time and batch two axes")
    axes = [group.axis(d) for d in shape]
    length = cast(group.read(v, lengths[1], (axes[batch],), view.access(1)).expr, "i64")
    at = group.index(axes[time])
    place = Lookup(select(lt(at, length), length - at - 1, at), own.strides[time], shape[time])
    rest = Access(tuple(0 if a == time else s for a, s in enumerate(own.strides)), own.offset)
    return group.define(view, 0, group.look_up(view, 0, axes, rest, [place]), axes)


arranges("TensorScatter")(any_strides)


@selects("TensorScatter")
def tensor_scatter(view: NodeView) -> Kernel | Reason:
    """A copy of a cache, then a block of rows into each of its entries."""
    shape, update = view.tensor(0).shape, view.tensor(1).shape
    size = known_bits(view.tensor(0))
    if shape is None or update is None or size not in (8, 16, 32, 64):
        return Reason("a rank is not known, or the elements have no size that can be moved")
    word, target = f"u{size}", view.output_access()
    axis = view.axis(int(view.attr("axis", -2)), len(shape))
    along = tuple(int(a == axis) for a in range(len(shape)))
    values = [Operand("i64", Access(along), memory=False)]
    at = operand(0, "i64")
    reads, sources = [0, 1], []
    if view.has(2):
        found = known(view.tensor(2), "the write indices")
        if isinstance(found, Reason):
            return found
        reads.append(2)
        sources.append(2)
        starts = view.access(2)
        values.append(Operand(found[1], Access((starts.strides[0], *(0,) * (len(shape) - 1)), starts.offset)))
        at = at + cast(operand(1, found[1]), "i64")
    if view.attr("mode", "linear") == "circular":
        values.append(Operand("i64", Access((0,) * len(shape), shape[axis]), memory=False))
        at = irem(at, operand(len(values) - 1, "i64"))
    values.append(Operand(word, view.access(1)))
    rest = Access(tuple(0 if a == axis else s for a, s in enumerate(target.strides)), target.offset)
    out = Output(operand(len(values) - 1, word), rest, (Lookup(at, target.strides[axis], shape[axis]),))
    program = LoopProgram(update, frozenset(), tuple(values), (), (out,))
    copy = pointwise(shape, [(word, view.access(0))], [(word, target)], [operand(0, word)], (0, len(reads)))
    write = program_phase(program, (*sources, 1), (len(reads),))
    in_place = ((0, 0),) if view.access(0) == target else ()
    return NativeKernel(f"tensor scatter {word}", (copy, write), tuple(reads), in_place=in_place)


@selects("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(view: NodeView) -> Kernel | Reason:
    """Elements along the last axis; a vector counts as a matrix of one row."""
    shape, indices = view.tensor(0).shape, known(view.tensor(1), "the indices")
    size = known_bits(view.tensor(0))
    if isinstance(indices, Reason):
        return indices
    if not shape or size not in (8, 16, 32, 64):
        return Reason("the rank is not known, or the elements have no size that can be moved")
    word, rows = f"u{size}", D.product(shape[:-1])
    extents = (rows, D.product(indices[0]))
    place = Lookup(cast(operand(0, indices[1]), "i64"), 1, shape[-1])
    values = (Operand(indices[1], Access((0, 1))), Operand(word, Access((shape[-1], 0)), lookups=(place,)))
    out = Output(operand(1, word), Access(contiguous(extents)))
    program = LoopProgram(extents, frozenset(), values, (), (out,))
    return NativeKernel(f"gather features {word}", (program_phase(program, (1, 0), (2,)),), (0, 1))
