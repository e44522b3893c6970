"""What the shape rules share: registration with arity checks, typed attributes, symbolic elements, joining of facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import Dim, DimLike, Shape
from accord.ir.facts import UNKNOWN, Fact, OptionalFact, OtherFact, SequenceFact, TensorFact, constant_fact
from accord.ir.infer import Inference, rule

__all__ = [
    "FLOATS",
    "MAX_ELEMENTS",
    "VARYING",
    "axis_of",
    "dtype_attr",
    "elements",
    "graph_attr",
    "int_attr",
    "ints_attr",
    "join",
    "join_sequences",
    "opened",
    "operator",
    "product",
    "rank_of",
    "required_dtype",
    "same_dtype",
    "same_size",
    "str_attr",
    "tensor_attr",
    "unknown_shape",
    "with_elements",
]

#: Symbolic content is followed for tensors of at most this many elements; shapes are far shorter.
MAX_ELEMENTS = 64

#: Longer expressions are given up. Sizes of real models stay far below; a crafted model could double them node by node.
_MAX_WEIGHT = 256

#: Size, in the fact of a sequence's elements, of an axis on which the elements may differ. A symbol stands for one
#: size, so :func:`opened` replaces this one whenever an element is taken out.
VARYING = D.symbol("*")

T = ir.DataType
FLOATS = frozenset({T.FLOAT, T.DOUBLE, T.FLOAT16, T.BFLOAT16})

#: Values that a constant of each dtype holds exactly; for floats the integers that are exact.
_RANGES: dict[ir.DataType, tuple[int, int]] = {
    T.BOOL: (0, 1),
    T.INT8: (-(2**7), 2**7 - 1),
    T.INT16: (-(2**15), 2**15 - 1),
    T.INT32: (-(2**31), 2**31 - 1),
    T.INT64: (-(2**63), 2**63 - 1),
    T.UINT8: (0, 2**8 - 1),
    T.UINT16: (0, 2**16 - 1),
    T.UINT32: (0, 2**32 - 1),
    T.UINT64: (0, 2**64 - 1),
    T.FLOAT: (-(2**24), 2**24),
    T.DOUBLE: (-(2**53), 2**53),
}

#: dtypes whose elements may be symbolic sizes; narrower ones could wrap around.
_SYMBOLIC = frozenset({T.BOOL, T.INT64, T.INT32, T.FLOAT, T.DOUBLE})

Body: TypeAlias = "Callable[[Inference], Sequence[Fact]]"


def operator(
    *names: str, inputs: int = 1, required: Sequence[str] = (), domain: str = "", tensors: bool = True
) -> Callable[[Body], Body]:
    """Register the decorated function for operators, behind a check of what every node must have.

    Args:
        names: Operator names.
        inputs: How many leading inputs must be given.
        required: Attributes without a default.
        domain: The operators' domain.
        tensors: All inputs are tensors.
    """

    def register(function: Body) -> Body:
        def checked(n: Inference) -> Sequence[Fact]:
            given = n.node.inputs
            if inputs and (len(given) < inputs or None in given[:inputs]):
                raise n.error("a required input is missing", expected=f"{inputs} inputs", found=_count(given))
            for name in required:
                if name not in n.node.attributes:
                    raise n.error(f"attribute {name} is missing", expected=f"a value for {name}", found="none")
            if tensors:
                for i, fact in enumerate(n.inputs):
                    if isinstance(fact, SequenceFact | OptionalFact):
                        raise n.error("input has the wrong kind", expected="a tensor", found=str(fact), value=i)
            return [_bounded(n, fact) for fact in function(n)]

        rule(*names, domain=domain)(checked)
        return function

    return register


def _bounded(n: Inference, fact: Fact) -> Fact:
    """``fact`` without expressions that have grown too long: each such size becomes a symbol of its own."""
    if not isinstance(fact, TensorFact):
        return fact
    if fact.shape is not None and any(isinstance(d, Dim) and d.weight > _MAX_WEIGHT for d in fact.shape):
        shape = tuple(n.fresh() if isinstance(d, Dim) and d.weight > _MAX_WEIGHT else d for d in fact.shape)
        return TensorFact(fact.dtype, shape)
    if any(isinstance(d, Dim) and d.weight > _MAX_WEIGHT for d in (*(fact.data or ()), *(fact.table or ()))):
        return TensorFact(fact.dtype, fact.shape)
    return fact


def _count(given: Sequence[ir.Value | None]) -> int:
    return sum(v is not None for v in given)


# attributes ------------------------------------------------------------------------------------------------------


def _wrong_type(n: Inference, name: str, expected: str, value: object) -> Exception:
    return n.error(f"attribute {name} has the wrong type", expected=expected, found=type(value).__name__)


def int_attr(n: Inference, name: str, default: int, *, low: int | None = None) -> int:
    """Integer attribute ``name``; an error if it has another type or is less than ``low``."""
    value = n.attr(name)
    if value is None:
        return default
    if not isinstance(value, int | np.integer):
        raise _wrong_type(n, name, "an integer", value)
    if low is not None and value < low:
        raise n.error(f"attribute {name} is too small", expected=f"at least {low}", found=value)
    return int(value)


def ints_attr(n: Inference, name: str, *, length: int | None = None, low: int | None = None) -> tuple[int, ...] | None:
    """Attribute ``name`` as a tuple of integers, None if absent; an error if it breaks ``length`` or ``low``."""
    value = n.attr(name)
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _wrong_type(n, name, "a list of integers", value)
    items = []
    for v in value:
        if not isinstance(v, int | np.integer):
            raise _wrong_type(n, name, "a list of integers", v)
        if low is not None and v < low:
            raise n.error(f"attribute {name} is too small", expected=f"at least {low} each", found=list(value))
        items.append(int(v))
    if length is not None and len(items) != length:
        raise n.error(f"attribute {name} has the wrong length", expected=f"{length} values", found=items)
    return tuple(items)


def str_attr(n: Inference, name: str, default: str, *, among: Sequence[str] = ()) -> str:
    """String attribute ``name``; an error if it is none of ``among``."""
    value = n.attr(name)
    if value is None:
        return default
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise _wrong_type(n, name, "a string", value)
    if among and value not in among:
        raise n.error(f"attribute {name} has an unknown value", expected=", ".join(among), found=value)
    return value


def dtype_attr(n: Inference, name: str, default: ir.DataType | None = None) -> ir.DataType | None:
    """Attribute ``name`` as a dtype (its name in Cast before opset 6); ``default`` where it is absent or 0."""
    value = n.attr(name)
    if isinstance(value, str) and value in T.__members__:
        return T.__members__[value]
    number = int_attr(n, name, 0)
    if number == 0:
        return default
    try:
        return T(number)
    except ValueError:
        raise n.error(f"attribute {name} is no dtype", expected="a TensorProto.DataType", found=number) from None


def required_dtype(n: Inference, name: str) -> ir.DataType:
    """Attribute ``name`` as a dtype."""
    dtype = dtype_attr(n, name)
    if dtype is None:
        raise n.error(f"attribute {name} is no dtype", expected="a TensorProto.DataType", found=0)
    return dtype


def graph_attr(n: Inference, name: str) -> ir.Graph:
    """Attribute ``name`` as a graph."""
    value = n.attr(name)
    if not isinstance(value, ir.Graph):
        raise _wrong_type(n, name, "a graph", value)
    return value


def tensor_attr(n: Inference, name: str) -> ir.TensorProtocol | None:
    """Attribute ``name`` as a tensor, None if absent."""
    value: ir.TensorProtocol | None = n.attr(name)
    # The attribute says what it holds; asking the value whether it follows the protocol is slow.
    if value is not None and n.node.attributes[name].type is not ir.AttributeType.TENSOR:
        raise _wrong_type(n, name, "a tensor", value)
    return value


# checks ----------------------------------------------------------------------------------------------------------


def same_dtype(n: Inference, *indices: int) -> ir.DataType | None:
    """The dtype of the inputs ``indices`` (absent ones are skipped), which the operator declares to be one."""
    found: ir.DataType | None = None
    for i in indices:
        dtype = n.tensor(i).dtype
        if dtype is None or dtype is found:
            continue
        if found is not None:
            raise n.error("inputs must have one dtype", expected=found.name, found=dtype.name, value=i)
        found = dtype
    return found


def axis_of(n: Inference, axis: int, rank: int) -> int:
    """``axis`` counted from the front; unlike ``n.axis`` a scalar has none."""
    if -rank <= axis < rank:
        return axis + rank if axis < 0 else axis
    raise n.error("axis is out of range", expected=f"-{rank} <= axis < {rank}", found=axis)


def rank_of(n: Inference, index: int, *ranks: int, least: int = 0) -> Shape | None:
    """Shape of input ``index``, whose rank must be one of ``ranks`` (if any) and at least ``least``."""
    shape = n.tensor(index).shape
    if shape is not None and ((ranks and len(shape) not in ranks) or len(shape) < least):
        expected = " or ".join(str(r) for r in ranks) if ranks else f"at least {least}"
        raise n.error("input has the wrong rank", expected=expected, found=f"{len(shape)}: {_show(shape)}", value=index)
    return shape


def same_size(n: Inference, a: DimLike, b: DimLike, what: str, *, value: int | None = None) -> DimLike:
    """``a``, or ``b`` where only that is an integer; an error if both are and differ."""
    if a is b:
        return a
    if isinstance(a, int):
        if isinstance(b, int) and a != b:
            raise n.error(f"{what} differ", expected=a, found=b, value=value)
        n.agree(a, b, what)
        return a
    n.agree(a, b, what)
    return b if isinstance(b, int) else a


def _show(shape: Shape) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"


def product(n: Inference, dims: Sequence[DimLike]) -> DimLike:
    """The product of ``dims``; a new symbol where it gets too long to write out."""
    out: DimLike = 1
    for d in dims:
        out = out * d
        if isinstance(out, Dim) and out.weight > _MAX_WEIGHT:
            return n.fresh()
    return out


def unknown_shape(n: Inference, rank: int | None) -> Shape | None:
    """New symbols for a known rank, None for an unknown one."""
    return None if rank is None else n.fresh_shape(rank)


# content ---------------------------------------------------------------------------------------------------------


def elements(fact: TensorFact) -> tuple[DimLike, ...] | None:
    """The elements of a short tensor of rank 0 or 1, where each is an integer or a symbolic size; else None."""
    if fact.data is not None:
        return fact.data
    if fact.const is None or fact.shape is None or len(fact.shape) > 1 or fact.dtype not in _RANGES:
        return None
    if fact.const.size > MAX_ELEMENTS:
        return None
    if fact.dtype not in FLOATS:
        return fact.elements()
    values = fact.const.numpy().reshape(-1)
    limit = _RANGES[fact.dtype][1]
    if not (np.isfinite(values).all() and (np.floor(values) == values).all() and (np.abs(values) <= limit).all()):
        return None
    return tuple(int(x) for x in values)


def with_elements(dtype: ir.DataType | None, shape: Shape | None, items: Sequence[DimLike] | None) -> TensorFact:
    """A tensor of rank 0 or 1 with these elements: a constant where all are integers, else symbolic content.

    ``items`` None, too long, or out of the dtype's range leaves only dtype and shape.
    """
    if items is None or dtype is None or shape is None or len(items) > MAX_ELEMENTS or dtype not in _RANGES:
        return TensorFact(dtype, shape)
    exact: Shape = (len(items),) if shape else ()
    if D.is_known(items):
        low, high = _RANGES[dtype]
        if all(low <= x <= high for x in items):
            return constant_fact(np.array(items, dtype=dtype.numpy()).reshape(exact))
    elif dtype in _SYMBOLIC:
        return TensorFact(dtype, exact, data=tuple(items))
    return TensorFact(dtype, exact)


# joining ---------------------------------------------------------------------------------------------------------


def join(n: Inference, a: Fact, b: Fact, vary: Callable[[DimLike, DimLike], DimLike]) -> Fact:
    """What holds of a value that is described by ``a`` or by ``b``.

    Args:
        n: The node, for messages.
        a: One fact; returned itself if ``b`` adds nothing.
        b: The other.
        vary: Gives the size for an axis where the two differ.

    Raises:
        ModelTypeError: the two are different kinds of value, or tensors of different dtypes.
    """
    if a is b:
        return a
    if isinstance(a, OtherFact) or isinstance(b, OtherFact):
        return a if a == b else UNKNOWN
    if isinstance(a, TensorFact) and isinstance(b, TensorFact):
        return _join_tensors(n, a, b, vary)
    if isinstance(a, SequenceFact) and isinstance(b, SequenceFact):
        return join_sequences(n, a, b)
    if isinstance(a, OptionalFact) and isinstance(b, OptionalFact):
        if a.element is None or b.element is None:
            return OptionalFact(None)
        return OptionalFact(join(n, a.element, b.element, vary))
    if isinstance(a, OptionalFact) or isinstance(b, OptionalFact):
        # An optional input may be replaced by its element in the course of a loop.
        return UNKNOWN
    raise n.error("a value is of two kinds", expected=str(a), found=str(b))


def _join_tensors(
    n: Inference, a: TensorFact, b: TensorFact, vary: Callable[[DimLike, DimLike], DimLike]
) -> TensorFact:
    if a.dtype is not None and b.dtype is not None and a.dtype is not b.dtype:
        raise n.error("a value has two dtypes", expected=a.dtype.name, found=b.dtype.name)
    dtype = a.dtype if a.dtype is not None else b.dtype
    shape: Shape | None = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        shape = tuple(x if x == y else vary(x, y) for x, y in zip(a.shape, b.shape, strict=True))
    const = a.const if _same_content(a, b) else None
    data = a.data if a.data is not None and a.data == b.data else None
    if a.table is None and const is a.const and data is a.data and dtype is a.dtype and shape == a.shape:
        return a
    return TensorFact(dtype, shape, const=const, data=data)


def _same_content(a: TensorFact, b: TensorFact) -> bool:
    if a.const is None or b.const is None:
        return False
    if a.const is b.const:
        return True
    if a.shape != b.shape or a.dtype is not b.dtype or a.const.size > MAX_ELEMENTS:
        return False
    return bool(np.array_equal(a.const.numpy(), b.const.numpy()))


def join_sequences(n: Inference, a: SequenceFact, b: SequenceFact) -> SequenceFact:
    """What holds of a sequence that is described by ``a`` or by ``b``; an empty one says nothing of elements."""
    length = a.length if a.length == b.length else None
    if a.length == 0 or b.length == 0:
        element = a.element if b.length == 0 else b.element
    elif a.element is None or b.element is None:
        element = None
    else:
        element = join(n, a.element, b.element, lambda x, y: VARYING)
    if element is a.element and length == a.length:
        return a
    return SequenceFact(element, length)


def opened(n: Inference, element: Fact | None) -> Fact:
    """The fact of one element taken out of a sequence: sizes that differ between elements become new symbols."""
    if element is None:
        return UNKNOWN
    if not isinstance(element, TensorFact) or element.shape is None:
        return element
    shape = tuple(n.fresh() if d == VARYING else d for d in element.shape)
    return TensorFact(element.dtype, shape)
