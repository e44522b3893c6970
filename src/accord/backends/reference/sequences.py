"""Sequences and optionals. A sequence is a list; an empty optional is None, a full one is its element."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import normal_axis, require, scalar


def _position(position: Array, length: int) -> int:
    """A position counted from the end if negative; raises if it is outside ``[-length, length - 1]``."""
    index = int(scalar(position))
    require(-length <= index < length, f"position {index} is outside [{-length}, {length - 1}]")
    return index + length if index < 0 else index


@implements("SequenceConstruct")
def sequence_construct(_op: OpNode, *inputs: Any) -> list[Any]:
    """Make a sequence of the inputs."""
    return list(inputs)


@implements("SequenceEmpty")
def sequence_empty(_op: OpNode) -> list[Any]:
    """Make an empty sequence."""
    return []


@implements("SequenceAt")
def sequence_at(_op: OpNode, sequence: list[Any], position: Array) -> Any:
    """Return one element."""
    return sequence[_position(position, len(sequence))]


@implements("SequenceInsert")
def sequence_insert(_op: OpNode, sequence: list[Any], x: Any, position: Array | None = None) -> list[Any]:
    """Return the sequence with an element inserted before a position, or at the end."""
    # One more place than elements, but counted from the end by the elements.
    length = len(sequence)
    index = length if position is None else int(scalar(position))
    require(-length <= index <= length, f"position {index} is outside [{-length}, {length}]")
    index += length if index < 0 else 0
    return [*sequence[:index], x, *sequence[index:]]


@implements("SequenceErase")
def sequence_erase(_op: OpNode, sequence: list[Any], position: Array | None = None) -> list[Any]:
    """Return the sequence without one element, the last by default."""
    require(bool(sequence), "the sequence is empty")
    index = len(sequence) - 1 if position is None else _position(position, len(sequence))
    return [*sequence[:index], *sequence[index + 1 :]]


@implements("SequenceLength")
def sequence_length(_op: OpNode, sequence: list[Any]) -> Array:
    """Return the number of elements."""
    return np.array(len(sequence), dtype=np.int64)


@implements("ConcatFromSequence")
def concat_from_sequence(op: OpNode, sequence: list[Array]) -> Array:
    """Join the elements along an axis, or stack them along a new one."""
    require(bool(sequence), "the sequence is empty")
    if op["new_axis"]:
        return np.stack(sequence, axis=normal_axis(op["axis"], sequence[0].ndim + 1))
    return np.concatenate(sequence, axis=normal_axis(op["axis"], sequence[0].ndim))


@implements("Optional")
def optional(_op: OpNode, x: Any = None) -> Any:
    """Make an optional of the element, or an empty one."""
    return x


@implements("OptionalGetElement")
def optional_get_element(_op: OpNode, x: Any) -> Any:
    """Return the element of an optional."""
    require(x is not None, "the optional is empty")
    return x


@implements("OptionalHasElement")
def optional_has_element(_op: OpNode, x: Any = None) -> Array:
    """Tell whether an optional has an element."""
    return np.array(x is not None)
