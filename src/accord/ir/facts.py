"""Facts: what is known about a value before anything runs.

A tensor's fact is its dtype, its shape in symbolic sizes, and, where it is known, its content: a constant, or for
small integer tensors (shapes on their way to Reshape, Slice, Expand ...) the symbolic size of each element.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape

__all__ = [
    "Fact",
    "FactTable",
    "OptionalFact",
    "OtherFact",
    "SequenceFact",
    "TensorFact",
    "constant_fact",
    "fact_of_type",
    "same_kind",
    "to_numpy",
    "to_tensor",
]


@dataclass(frozen=True, slots=True)
class TensorFact:
    """What is known of a tensor.

    Attributes:
        dtype: Element type; None while unknown.
        shape: One size per axis; None while the rank is unknown.
        const: The content where it is constant (shape and dtype as above).
        data: For tensors of rank 0 or 1 that hold sizes, one symbolic element each in order; only set where ``const``
            is None. The dtype is an integer one, or float where sizes are on their way through a cast and back.
        table: The same of a tensor of rank 2, row by row.
    """

    dtype: ir.DataType | None
    shape: Shape | None
    const: ir.TensorProtocol | None = field(default=None, compare=False)
    data: tuple[DimLike, ...] | None = None
    table: tuple[DimLike, ...] | None = None

    @property
    def rank(self) -> int | None:
        """Number of axes, None if unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """True if every size is a known integer."""
        return self.shape is not None and D.is_known(self.shape)

    @property
    def is_const(self) -> bool:
        """True if the content is known."""
        return self.const is not None

    def numpy(self) -> np.ndarray[Any, Any]:
        """The constant content; only where :attr:`is_const`."""
        if self.const is None:
            raise ValueError("the value is not constant")
        return to_numpy(self.const)

    def elements(self) -> tuple[DimLike, ...] | None:
        """The elements as sizes, for an integer or bool tensor of rank 0 or 1 that is known or symbolic; else None."""
        if self.data is not None:
            return self.data
        if self.const is None or self.dtype not in _INTEGRAL or self.rank is None or self.rank > 1:
            return None
        return tuple(int(x) for x in self.const.numpy().reshape(-1))

    def with_shape(self, shape: Shape | None) -> TensorFact:
        """The same dtype in another shape, content unknown."""
        return TensorFact(self.dtype, shape)

    def __str__(self) -> str:
        shape = "[?]" if self.shape is None else "[" + ", ".join(str(d) for d in self.shape) + "]"
        text = f"{self.dtype.name.lower() if self.dtype is not None else '?'}{shape}"
        if self.data is not None:
            text += " = (" + ", ".join(str(d) for d in self.data) + ")"
        return text


_INTEGRAL = frozenset(
    {
        ir.DataType.INT64,
        ir.DataType.INT32,
        ir.DataType.INT16,
        ir.DataType.INT8,
        ir.DataType.UINT64,
        ir.DataType.UINT32,
        ir.DataType.UINT16,
        ir.DataType.UINT8,
        ir.DataType.BOOL,
    }
)


@dataclass(frozen=True, slots=True)
class SequenceFact:
    """A sequence; ``element`` describes every element (its shape only where all agree).

    Attributes:
        element: What all elements have in common; None where nothing is known.
        length: Number of elements, None while unknown.
    """

    element: Fact | None
    length: DimLike | None = None

    def __str__(self) -> str:
        return f"seq({self.element})"


@dataclass(frozen=True, slots=True)
class OptionalFact:
    """A value that may be absent."""

    element: Fact | None

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True, slots=True)
class OtherFact:
    """A value that the compiler knows nothing of (maps, sparse tensors); only its ONNX type, if any."""

    type: ir.TypeProtocol | None = None

    def __str__(self) -> str:
        return f"other({self.type})"


Fact: TypeAlias = TensorFact | SequenceFact | OptionalFact | OtherFact
UNKNOWN = OtherFact()


def to_numpy(tensor: ir.TensorProtocol) -> np.ndarray[Any, Any]:
    """The content of ``tensor``: ml_dtypes for low-bit dtypes, an object array of ``str`` for strings."""
    array = tensor.numpy()
    if tensor.dtype == ir.DataType.STRING:
        flat = [x.decode("utf-8") if isinstance(x, bytes) else str(x) for x in array.reshape(-1)]
        out = np.empty(len(flat), dtype=object)
        out[:] = flat
        return out.reshape(array.shape)
    return array


def to_tensor(array: np.ndarray[Any, Any]) -> ir.TensorProtocol:
    """The reverse of :func:`to_numpy`."""
    if array.dtype.kind in "OUS":
        flat = [x.encode("utf-8") if isinstance(x, str) else bytes(x) for x in array.reshape(-1).tolist()]
        return ir.StringTensor(flat, shape=ir.Shape(array.shape))
    return ir.Tensor(array if array.flags.c_contiguous else array.copy(order="C"))


def constant_fact(tensor: ir.TensorProtocol | np.ndarray[Any, Any]) -> TensorFact:
    """The fact of a constant."""
    if isinstance(tensor, np.ndarray):
        tensor = to_tensor(tensor)
    return TensorFact(tensor.dtype, tuple(int(d) for d in tensor.shape.numpy()), const=tensor)


def shape_of(shape: ir.Shape | None, prefix: str, *, named: dict[str, DimLike] | None = None) -> Shape | None:
    """An ONNX shape as sizes: integers, the named symbols, and a new symbol ``prefix.axis`` where nothing is said."""
    if shape is None:
        return None
    out: list[DimLike] = []
    for axis, d in enumerate(shape.dims):
        if isinstance(d, int):
            out.append(d if d >= 0 else D.symbol(f"{prefix}.{axis}"))
        elif d.value is None or not any(c.isalnum() for c in d.value):  # "?" and the like name nothing
            out.append(D.symbol(f"{prefix}.{axis}"))
        else:
            out.append((named or {}).get(d.value, D.symbol(d.value)))
    return tuple(out)


def fact_of_type(type_: ir.TypeProtocol | None, shape: ir.Shape | None, prefix: str) -> Fact:
    """The fact that a declared ONNX type and shape state."""
    if type_ is None:
        return UNKNOWN
    if isinstance(type_, ir.TensorType):
        dtype = type_.dtype if type_.dtype != ir.DataType.UNDEFINED else None
        return TensorFact(dtype, shape_of(shape, prefix))
    if isinstance(type_, ir.SequenceType):
        return SequenceFact(fact_of_type(type_.elem_type, None, prefix))
    if isinstance(type_, ir.OptionalType):
        return OptionalFact(fact_of_type(type_.elem_type, shape, prefix))
    return OtherFact(type_)


def same_kind(a: Fact, b: Fact) -> bool:
    """True if nothing known of ``a`` contradicts what is known of ``b`` (dtype, rank, integer sizes)."""
    if isinstance(a, TensorFact) and isinstance(b, TensorFact):
        if a.dtype is not None and b.dtype is not None and a.dtype != b.dtype:
            return False
        if a.shape is None or b.shape is None:
            return True
        return len(a.shape) == len(b.shape) and all(
            not (isinstance(x, int) and isinstance(y, int)) or x == y for x, y in zip(a.shape, b.shape, strict=True)
        )
    if isinstance(a, OtherFact) or isinstance(b, OtherFact):
        return True
    return type(a) is type(b)


def merge(a: Fact, b: Fact) -> Fact:
    """The more precise of two facts about one value: integers beat symbols, known beats unknown."""
    if isinstance(a, TensorFact) and isinstance(b, TensorFact):
        shape: Shape | None
        if a.shape is None or b.shape is None:
            shape = a.shape if b.shape is None else b.shape
        elif len(a.shape) != len(b.shape):
            shape = a.shape
        else:
            shape = tuple(y if isinstance(y, int) else x for x, y in zip(a.shape, b.shape, strict=True))
        return replace(a, dtype=a.dtype if a.dtype is not None else b.dtype, shape=shape)
    return b if isinstance(a, OtherFact) else a


class FactTable:
    """Facts by value. One table belongs to one model and is updated as rules change the graph."""

    def __init__(self) -> None:
        self._facts: dict[ir.Value, Fact] = {}
        self._labels: dict[ir.Node, str] = {}

    def __getitem__(self, value: ir.Value) -> Fact:
        return self._facts[value]

    def __setitem__(self, value: ir.Value, fact: Fact) -> None:
        self._facts[value] = fact

    def __contains__(self, value: object) -> bool:
        return value in self._facts

    def get(self, value: ir.Value | None) -> Fact:
        """The fact of ``value``; constants and declared types are known without inference."""
        if value is None:
            return UNKNOWN
        fact = self._facts.get(value)
        if fact is None:
            if value.const_value is not None and not value.is_graph_input():  # an input's default may be replaced
                fact = constant_fact(value.const_value)
            else:
                fact = fact_of_type(value.type, value.shape, value.name or "v")
            self._facts[value] = fact
        return fact

    def tensor(self, value: ir.Value | None) -> TensorFact:
        """As :meth:`get`, for a tensor; an empty fact where the value is no tensor or is absent."""
        fact = self.get(value)
        return fact if isinstance(fact, TensorFact) else TensorFact(None, None)

    def label(self, node: ir.Node) -> str:
        """A name for a node that has none and whose outputs have none: always the same one, and no other node's."""
        return self._labels.setdefault(node, f"#{len(self._labels)}")

    def discard(self, values: Iterable[ir.Value]) -> None:
        """Forget values that are no longer in the graph."""
        for v in values:
            self._facts.pop(v, None)

    def write_back(self, values: Iterable[ir.Value]) -> None:
        """Store facts as ONNX types and shapes on ``values``, so that a dump carries them."""
        for v in values:
            fact = self.get(v)
            if isinstance(fact, TensorFact) and fact.dtype is not None:
                v.type = ir.TensorType(fact.dtype)
                v.shape = None if fact.shape is None else ir.Shape([_onnx_dim(d) for d in fact.shape])


def _onnx_dim(d: DimLike) -> int | str | None:
    """A size as ONNX writes it: an integer, a plain symbol's name, else nothing (ONNX has no expressions)."""
    if isinstance(d, int):
        return d
    text = str(d)
    return text if D.symbols_of(d) == {text} else None
