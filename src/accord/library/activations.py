"""GELU, SiLU and the piecewise linear sigmoids, as expressions: they join whatever is computed before or after."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from accord.contract.operator import Tensor, operator
from accord.expr.lang import Expr, call
from accord.expr.primitives import max_, min_
from accord.library.composing import floats
from accord.library.reference import erf, narrow, sigmoid, wide

__all__ = ["gelu", "hard_sigmoid", "hard_swish", "mish", "silu"]


@operator("accord::GELU")
def gelu(x: Tensor["T", ...], *, approximate: Literal["none", "tanh"] = "none") -> Tensor["T", ...]:
    """``x`` times the normal distribution function at ``x`` (Hendrycks and Gimpel, 2016).

    With ``approximate`` "tanh": ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))``.
    """
    z = wide(x)
    if approximate == "tanh":
        return narrow(0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))), x)
    return narrow(0.5 * z * (1 + erf(z / math.sqrt(2))), x)


@operator("accord::SiLU")
def silu(x: Tensor["T", ...]) -> Tensor["T", ...]:
    """``x * sigmoid(x)`` (Elfwing, Uchibe and Doya, 2017; "swish" of Ramachandran et al., 2017)."""
    z = wide(x)
    return narrow(z * sigmoid(z), x)


@operator("accord::Mish")
def mish(x: Tensor["T", ...]) -> Tensor["T", ...]:
    """``x * tanh(log(1 + exp(x)))`` (Misra, BMVC 2020)."""
    z = wide(x)
    return narrow(z * np.tanh(np.logaddexp(0.0, z)), x)


@operator("accord::HardSigmoid")
def hard_sigmoid(x: Tensor["T", ...]) -> Tensor["T", ...]:
    """``min(max(x / 6 + 1 / 2, 0), 1)`` (Howard et al., "Searching for MobileNetV3", ICCV 2019, section 5.2)."""
    return narrow(np.clip(wide(x) / 6 + 0.5, 0.0, 1.0), x)


@operator("accord::HardSwish")
def hard_swish(x: Tensor["T", ...]) -> Tensor["T", ...]:
    """``x`` times its hard sigmoid (Howard et al., "Searching for MobileNetV3", ICCV 2019, section 5.2)."""
    z = wide(x)
    return narrow(z * np.clip(z / 6 + 0.5, 0.0, 1.0), x)


for _operator in (gelu, silu, mish, hard_sigmoid, hard_swish):
    floats(_operator).execution(in_place=((0, 0),), accumulate={}).scheduling(fuses="elementwise")


@gelu.expression
def gelu_element(x: Expr, *, approximate: str) -> Expr:
    """Both forms are functions of the expression language."""
    return call({"none": "gelu_erf", "tanh": "gelu_tanh"}[approximate], x)


@silu.expression
def silu_element(x: Expr) -> Expr:
    """One function."""
    return call("silu", x)


@mish.expression
def mish_element(x: Expr) -> Expr:
    """One function."""
    return call("mish", x)


@hard_sigmoid.expression
def hard_sigmoid_element(x: Expr) -> Expr:
    """A product, a sum, two bounds."""
    return max_(0.0, min_(1.0, x * (1 / 6) + 0.5))


@hard_swish.expression
def hard_swish_element(x: Expr) -> Expr:
    """As the hard sigmoid."""
    return x * hard_sigmoid_element(x)
