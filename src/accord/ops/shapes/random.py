"""Shape rules of random number operators: the shape of an attribute or of the input, the dtype of an attribute."""

from __future__ import annotations

import math

import onnx_ir as ir

from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import dtype_attr, int_attr, ints_attr, operator, rank_of


def _check_seed(n: Inference) -> None:
    seed = float(n.attr("seed", 0.0))
    n.require(math.isfinite(seed), "the seed is not finite", expected="a number", found=seed)


@operator("RandomNormal", "RandomUniform", inputs=0, required=("shape",))
def random(n: Inference) -> list[Fact]:
    """The shape and the dtype that the attributes state; float without a dtype."""
    _check_seed(n)
    return [TensorFact(dtype_attr(n, "dtype", ir.DataType.FLOAT), ints_attr(n, "shape", low=0))]


@operator("RandomNormalLike", "RandomUniformLike", "Bernoulli")
def random_like(n: Inference) -> list[Fact]:
    """The input's shape; its dtype unless an attribute states another."""
    _check_seed(n)
    x = n.tensor(0)
    return [TensorFact(dtype_attr(n, "dtype", x.dtype), x.shape)]


@operator("Multinomial")
def multinomial(n: Inference) -> list[Fact]:
    """``[batch, sample_size]``; int32 without a dtype."""
    _check_seed(n)
    shape = rank_of(n, 0, 2)
    size = int_attr(n, "sample_size", 1, low=1)
    batch = n.fresh() if shape is None else shape[0]
    return [TensorFact(dtype_attr(n, "dtype", ir.DataType.INT32), (batch, size))]
