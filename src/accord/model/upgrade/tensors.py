"""Constant, Cast, Scatter, OneHot and TopK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, as_dtype, constant, rebuild, unsupported

__all__: list[str] = []

_UNSIGNED = frozenset({ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64})


def _strings(value: Any) -> np.ndarray[Any, Any]:
    array = np.empty(len(value), dtype=object)
    array[:] = list(value)
    return array


#: How each attribute of Constant states the tensor.
_VALUES: dict[str, Callable[[Any], ir.TensorProtocol | np.ndarray[Any, Any]]] = {
    "value": lambda v: v,
    "value_float": lambda v: np.array(v, dtype=np.float32),
    "value_floats": lambda v: np.array(v, dtype=np.float32),
    "value_int": lambda v: np.array(v, dtype=np.int64),
    "value_ints": lambda v: np.array(v, dtype=np.int64),
    "value_string": lambda v: _strings([v]).reshape(()),
    "value_strings": _strings,
}


@expands("Constant")
def initializer(b: Builder, n: Inference) -> Outputs:
    """Whatever form states the tensor, it becomes an initializer: later stages know one kind of constant."""
    for name, convert in _VALUES.items():
        value = n.attr(name)
        if value is not None:
            return [b.const(convert(value))]
    return None


@expands("Cast", before=6)
def cast_by_name(b: Builder, n: Inference) -> Outputs:
    """``to`` was the dtype's name."""
    name = str(n.attr("to", ""))
    dtype = ir.DataType.__members__.get(name.upper())
    if dtype is None:
        raise unsupported(n, f"'{name}' is not the name of a dtype.", "Use a name of TensorProto.DataType.")
    return [b("Cast", required(n, 0), to=int(dtype))]


@expands("Scatter")
def scatter(b: Builder, n: Inference) -> Outputs:
    """The name was changed to say what it does."""
    return rebuild(b, n, op_type="ScatterElements")


@expands("OneHot", before=11)
def one_hot_without_wrap(b: Builder, n: Inference) -> Outputs:
    """Negative indices stood for no class; today they count from the back, so they are moved out of range."""
    indices, depth = required(n, 0), required(n, 1)
    known = constant(b, indices)
    if b.fact(indices).dtype in _UNSIGNED or (known is not None and bool((known >= 0).all())):
        return None
    index = as_dtype(b, indices, ir.DataType.INT64)
    beyond = b("Reshape", as_dtype(b, depth, ir.DataType.INT64), b.ints())
    negative = b("Less", index, b.const(np.array(0, dtype=np.int64)))
    return rebuild(b, n, b("Where", negative, beyond, index), depth, required(n, 2))


@expands("TopK", before=10)
def top_k_attribute(b: Builder, n: Inference) -> Outputs:
    """``k`` was an attribute."""
    k = n.attr("k")
    return None if k is None else rebuild(b, n, required(n, 0), b.ints(k), drop=("k",))
