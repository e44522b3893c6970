"""Shape rules of sequences and optional values.

The fact of a sequence holds what its elements have in common; a size on which they differ is
:data:`~accord.ops.shapes.common.VARYING` there and becomes a new symbol when an element is taken out.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import UNKNOWN, Fact, OptionalFact, OtherFact, SequenceFact, TensorFact, fact_of_type
from accord.ir.infer import Inference
from accord.ops.shapes.common import (
    VARYING,
    axis_of,
    dtype_attr,
    elements,
    int_attr,
    join_sequences,
    opened,
    operator,
    rank_of,
    with_elements,
)

BOOL = ir.DataType.BOOL
INT64 = ir.DataType.INT64


def sequence_at(n: Inference, index: int) -> SequenceFact:
    """The fact of input ``index`` as a sequence."""
    fact = n.inputs[index] if index < len(n.inputs) else UNKNOWN
    if isinstance(fact, SequenceFact):
        return fact
    if isinstance(fact, OtherFact):
        return SequenceFact(None)
    raise n.error("input has the wrong kind", expected="a sequence", found=str(fact), value=index)


def _check_position(n: Inference, index: int, length: DimLike | None, *, insert: bool) -> None:
    if not n.has(index):
        return
    rank_of(n, index, 0, 1)
    items = elements(n.tensor(index))
    if items is None or len(items) != 1 or not isinstance(items[0], int) or not isinstance(length, int):
        return
    high = length + 1 if insert else length
    n.require(
        -length <= items[0] < high, "position is out of range", expected=f"-{length} to {high - 1}", found=items[0]
    )


def _element(fact: Fact) -> TensorFact:
    return TensorFact(fact.dtype, fact.shape) if isinstance(fact, TensorFact) else TensorFact(None, None)


@operator("SequenceConstruct", tensors=False)
def sequence_construct(n: Inference) -> list[Fact]:
    """What all inputs have in common, and how many there are."""
    out = SequenceFact(_element(n.inputs[0]), 1)
    for i, fact in enumerate(n.inputs[1:], start=2):
        out = SequenceFact(join_sequences(n, out, SequenceFact(_element(fact), 1)).element, i)
    return [out]


@operator("SequenceEmpty", inputs=0)
def sequence_empty(n: Inference) -> list[Fact]:
    """No elements, of the dtype of ``dtype`` (float without it)."""
    return [SequenceFact(TensorFact(dtype_attr(n, "dtype", ir.DataType.FLOAT), None), 0)]


@operator("SequenceInsert", inputs=2, tensors=False)
def sequence_insert(n: Inference) -> list[Fact]:
    """One element more."""
    s = sequence_at(n, 0)
    _check_position(n, 2, s.length, insert=True)
    added = _element(n.inputs[1])
    if isinstance(s.element, TensorFact) and None not in (s.element.dtype, added.dtype):
        n.require(
            s.element.dtype is added.dtype, "the element has another dtype", expected=s.element.dtype, found=added.dtype
        )
    joined = join_sequences(n, s, SequenceFact(added, 1))
    return [SequenceFact(joined.element, None if s.length is None else s.length + 1)]


@operator("SequenceErase", tensors=False)
def sequence_erase(n: Inference) -> list[Fact]:
    """One element less."""
    s = sequence_at(n, 0)
    _check_position(n, 1, s.length, insert=False)
    n.require(s.length != 0, "the sequence is empty", expected="an element", found="none", value=0)
    return [SequenceFact(s.element, None if s.length is None else s.length - 1)]


@operator("SequenceAt", inputs=2, tensors=False)
def sequence_element(n: Inference) -> list[Fact]:
    """One element."""
    s = sequence_at(n, 0)
    _check_position(n, 1, s.length, insert=False)
    return [opened(n, s.element)]


@operator("SequenceLength", tensors=False)
def sequence_length(n: Inference) -> list[Fact]:
    """Scalar int64."""
    length = sequence_at(n, 0).length
    return [with_elements(INT64, (), None if length is None else [length])]


@operator("SplitToSequence")
def split_to_sequence(n: Inference) -> list[Fact]:
    """Slices of size 1 on ``axis``, chunks of one size, or chunks of the sizes given."""
    x = n.tensor(0)
    keep = bool(int_attr(n, "keepdims", 1))
    axis = int_attr(n, "axis", 0)
    split = rank_of(n, 1, 0, 1) if n.has(1) else None
    sizes = elements(n.tensor(1)) if n.has(1) else (1,)
    if sizes is not None:
        n.require(not any(isinstance(s, int) and s < 0 for s in sizes), "negative size", expected="sizes", found=sizes)
    if x.shape is None:
        return [SequenceFact(TensorFact(x.dtype, None))]
    axis = axis_of(n, axis, len(x.shape))
    size = x.shape[axis]
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if not n.has(1):
        middle: Shape = (1,) if keep else ()
        return [SequenceFact(TensorFact(x.dtype, (*before, *middle, *after)), size)]
    part: DimLike = VARYING
    length: DimLike | None = None
    if split is not None and len(split) == 1:
        length = split[0] if isinstance(split[0], int) else None
        if sizes is not None and len(set(sizes)) == 1:
            part = sizes[0]
        if sizes is not None and D.is_known(sizes) and isinstance(size, int):
            n.require(sum(sizes) == size, "the parts do not add up", expected=size, found=list(sizes), value=1)
    elif split is not None and sizes is not None and isinstance(sizes[0], int):
        n.require(sizes[0] > 0, "the chunk is empty", expected="1 or more", found=0, value=1)
        length = D.ceildiv(size, sizes[0])
        part = sizes[0] if D.modulo(size, sizes[0]) == 0 else VARYING
    return [SequenceFact(TensorFact(x.dtype, (*before, part, *after)), length)]


@operator("ConcatFromSequence", required=("axis",), tensors=False)
def concat_from_sequence(n: Inference) -> list[Fact]:
    """All elements one after the other on ``axis``, or on a new axis with ``new_axis``."""
    s = sequence_at(n, 0)
    stack = bool(int_attr(n, "new_axis", 0))
    axis = int_attr(n, "axis", 0)
    n.require(s.length != 0, "the sequence is empty", expected="an element", found="none", value=0)
    if not isinstance(s.element, TensorFact) or s.element.shape is None:
        return [TensorFact(s.element.dtype if isinstance(s.element, TensorFact) else None, None)]
    shape = s.element.shape
    axis = axis_of(n, axis, len(shape) + 1 if stack else len(shape))
    if stack:
        out: Sequence[DimLike] = (*shape[:axis], n.fresh() if s.length is None else s.length, *shape[axis:])
    else:
        total = n.fresh() if s.length is None or shape[axis] == VARYING else shape[axis] * s.length
        out = (*shape[:axis], total, *shape[axis + 1 :])
    return [opened(n, TensorFact(s.element.dtype, tuple(out)))]


# optional --------------------------------------------------------------------------------------------------------


@operator("Optional", inputs=0, tensors=False)
def optional(n: Inference) -> list[Fact]:
    """The input, or nothing of the type that the attribute states."""
    if n.has(0):
        return [OptionalFact(n.inputs[0])]
    stated = n.attr("type")
    if isinstance(stated, ir.TypeAndShape):
        return [OptionalFact(fact_of_type(stated.type, None, ""))]
    raise n.error("neither an input nor a type", expected="one of them", found="none")


@operator("OptionalHasElement", inputs=0, tensors=False)
def optional_has_element(n: Inference) -> list[Fact]:
    """Scalar bool; known where the input is absent or is no optional."""
    if not n.has(0):
        return [with_elements(BOOL, (), [0])]
    if isinstance(n.inputs[0], TensorFact | SequenceFact):
        return [with_elements(BOOL, (), [1])]
    return [TensorFact(BOOL, ())]


@operator("OptionalGetElement", tensors=False)
def optional_get_element(n: Inference) -> list[Fact]:
    """The element of an optional; another input as it is."""
    fact = n.inputs[0]
    if isinstance(fact, OptionalFact):
        return [UNKNOWN if fact.element is None else fact.element]
    return [fact]
