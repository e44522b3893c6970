"""Linear: a product with a weight matrix, and what is done to its result before it is stored."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from accord.contract.operator import Tensor, operator
from accord.library.activations import gelu, hard_swish, silu
from accord.library.composing import floats, transposed
from accord.library.reference import narrow, wide

__all__ = ["ACTIVATIONS", "Activation", "activated", "linear"]

Activation: TypeAlias = Literal["none", "relu", "gelu", "gelu_tanh", "silu", "hard_swish", "sigmoid", "tanh"]

#: Epilogues by name: the definition, and the ONNX operator with its attributes.
ACTIVATIONS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "relu": (lambda z: np.where(np.isnan(z), z, np.maximum(z, 0.0)), "Relu", {}),
    "gelu": (gelu, "Gelu", {}),
    "gelu_tanh": (lambda z: gelu(z, approximate="tanh"), "Gelu", {"approximate": "tanh"}),
    "silu": (silu, "Swish", {}),
    "hard_swish": (hard_swish, "HardSwish", {}),
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), "Sigmoid", {}),
    "tanh": (np.tanh, "Tanh", {}),
}


def activated(b: Any, y: Any, activation: str) -> Any:
    """``y`` through the epilogue of that name; "none" for none."""
    if activation == "none":
        return y
    _, name, attributes = ACTIVATIONS[activation]
    return b(name, y, **attributes)


@operator("accord::Linear")
def linear(
    x: Tensor["T", ..., "K"],
    weight: Tensor["T", "N", "K"],
    bias: Tensor["T", "N"] | None = None,
    residual: Tensor["T", ..., "N"] | None = None,
    *,
    activation: Activation = "none",
) -> Tensor["T", ..., "N"]:
    """``activation(x @ weight.T + bias) + residual``."""
    z = wide(x) @ wide(weight).T
    z = z if bias is None else z + wide(bias)
    if activation != "none":
        z = ACTIVATIONS[activation][0](z)
    return narrow(z if residual is None else z + wide(residual), x)


floats(linear, tight=False).scheduling(fuses="contraction", epilogue=True)


@linear.composition
def product(b: Any, x: Any, weight: Any, bias: Any, residual: Any, *, activation: str) -> Any:
    """A product whose epilogue is everything else."""
    y = b("MatMul", x, transposed(b, weight))
    y = activated(b, y if bias is None else b("Add", y, bias), activation)
    return y if residual is None else b("Add", y, residual)
