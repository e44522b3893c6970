"""What several expansions need: reshapes with sizes known or not, casts, channels-last wrappers, activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.infer import Inference

__all__ = [
    "Outputs",
    "activate",
    "cast",
    "constant_array",
    "copy_attributes",
    "dims",
    "flat",
    "half",
    "like_cast",
    "reshape",
    "size",
    "swap_last_axes",
    "to_channels_first",
    "to_channels_last",
    "wants",
]

#: What an expansion returns.
Outputs: TypeAlias = "Sequence[ir.Value | None] | None"


def wants(n: Inference, index: int) -> bool:
    """True if the node names output ``index``."""
    return index < len(n.node.outputs) and bool(n.node.outputs[index].name)


def constant_array(b: Builder, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The content of ``value`` if it is constant."""
    fact = b.fact(value)
    return fact.numpy() if value is not None and fact.is_const else None


def size(b: Builder, x: ir.Value, axis: int) -> ir.Value:
    """The size of one axis as an int64 tensor of shape [1]; a constant where it is known."""
    shape = b.shape(x)
    if shape is not None:
        known = shape[axis]
        if isinstance(known, int):
            return b.ints(known)
    return b("Shape", x, start=axis, end=axis + 1 if axis != -1 else None)


def dims(b: Builder, *sizes: int | ir.Value) -> ir.Value:
    """A shape as an int64 vector, from integers and tensors of shape [1]."""
    if all(isinstance(s, int) for s in sizes):
        return b.ints(*(s for s in sizes if isinstance(s, int)))
    return b("Concat", *(b.ints(s) if isinstance(s, int) else s for s in sizes), axis=0)


def reshape(b: Builder, x: ir.Value, *sizes: int | ir.Value) -> ir.Value:
    """``x`` in another shape; a size is an integer (0: as in ``x``, -1: the rest) or a tensor of shape [1]."""
    known = b.shape(x)
    return x if known is not None and known == sizes else b("Reshape", x, dims(b, *sizes))


def flat(b: Builder, x: ir.Value) -> ir.Value:
    """``x`` as a vector."""
    return x if b.fact(x).rank == 1 else b("Reshape", x, b.ints(-1))


def cast(b: Builder, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """``x`` as ``dtype``; itself where it is of that type already."""
    return x if b.fact(x).dtype == dtype else b("Cast", x, to=int(dtype))


def like_cast(b: Builder, x: ir.Value, like: ir.Value) -> ir.Value:
    """``x`` in the dtype of ``like``."""
    dtype = b.fact(like).dtype
    return cast(b, x, dtype) if dtype is not None else b("CastLike", x, like)


def half(dtype: ir.DataType | None) -> bool:
    """True for the 16-bit floats, whose kernels compute in float32."""
    return dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def swap_last_axes(b: Builder, x: ir.Value, rank: int) -> ir.Value:
    """``x`` with its last two axes exchanged."""
    return b("Transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def to_channels_first(b: Builder, x: ir.Value, rank: int) -> ir.Value:
    """From (N, ..., C) to (N, C, ...)."""
    return x if rank < 3 else b("Transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))


def to_channels_last(b: Builder, x: ir.Value, rank: int) -> ir.Value:
    """From (N, C, ...) to (N, ..., C)."""
    return x if rank < 3 else b("Transpose", x, perm=(0, *range(2, rank), 1))


def copy_attributes(n: Inference, *names: str) -> dict[str, Any]:
    """The attributes ``names`` of the node, as far as they are set."""
    return {name: n.node.attributes[name] for name in names if name in n.node.attributes}


# Activations that are named by an attribute -----------------------------------------------------------------------

_Parameters: TypeAlias = Sequence[float]


def _clip(b: Builder, x: ir.Value, p: _Parameters) -> ir.Value:
    low, high = p if p else (None, None)
    return b("Clip", x, *(None if v is None else b.scalar(v, x) for v in (low, high)))


def _scaled_tanh(b: Builder, x: ir.Value, p: _Parameters) -> ir.Value:
    alpha, beta = p
    return b("Mul", b("Tanh", b("Mul", x, b.scalar(beta, x))), b.scalar(alpha, x))


def _affine(b: Builder, x: ir.Value, p: _Parameters) -> ir.Value:
    alpha, beta = p
    return b("Add", b("Mul", x, b.scalar(alpha, x)), b.scalar(beta, x))


def _plain(op: str, *names: str) -> Callable[[Builder, ir.Value, _Parameters], ir.Value]:
    def build(b: Builder, x: ir.Value, p: _Parameters) -> ir.Value:
        attributes: dict[str, Any] = dict(zip(names, p, strict=False))
        return b(op, x, **attributes)

    return build


_ACTIVATIONS: Mapping[str, Callable[[Builder, ir.Value, _Parameters], ir.Value]] = {
    "": lambda _b, x, _p: x,
    "none": lambda _b, x, _p: x,
    "identity": lambda _b, x, _p: x,
    "affine": _affine,
    "clip": _clip,
    "elu": _plain("Elu", "alpha"),
    "gelu": lambda b, x, _p: b("Gelu", x, approximate="tanh"),
    "hardsigmoid": _plain("HardSigmoid", "alpha", "beta"),
    "hardswish": _plain("HardSwish"),
    "leakyrelu": _plain("LeakyRelu", "alpha"),
    "parametricsoftplus": lambda b, x, p: b("Mul", b("Softplus", b("Mul", x, b.scalar(p[1], x))), b.scalar(p[0], x)),
    "relu": _plain("Relu"),
    "scaledtanh": _scaled_tanh,
    "selu": _plain("Selu", "alpha", "gamma"),
    "sigmoid": _plain("Sigmoid"),
    "silu": _plain("Swish"),
    "softplus": _plain("Softplus"),
    "softsign": _plain("Softsign"),
    "swish": _plain("Swish"),
    "tanh": _plain("Tanh"),
    "thresholdedrelu": _plain("ThresholdedRelu", "alpha"),
}


def activate(b: Builder, x: ir.Value, name: str | None, parameters: _Parameters = ()) -> ir.Value | None:
    """Apply the activation that an attribute names, in any spelling; None if there is no such activation."""
    build = _ACTIVATIONS.get((name or "").lower())
    return None if build is None else build(b, x, parameters)
