"""LpPool-1, GlobalLpPool-1 (a real ``p``) and RoiAlign before 16."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, rank_vector, rebuild, scalar_like

__all__: list[str] = []


@expands("LpPool", before=2)
def lp_pool(b: Builder, n: Inference) -> Outputs:
    """``p`` was a real number; where it is no integer, the mean of the powers times the size of the window."""
    p = float(n.attr("p", 2.0))
    if p.is_integer():
        return rebuild(b, n, p=int(p))
    kernel = n.attr("kernel_shape")
    n.require(kernel is not None, "attribute kernel_shape is missing")
    x = required(n, 0)
    settings: dict[str, Any] = {k: a for k, a in n.node.attributes.items() if k != "p"}
    # Padding counts as zeros, so the divisor is the same for every window.
    mean = b("AveragePool", _power(b, x, p), count_include_pad=1, **settings)
    return [_root(b, b("Mul", mean, scalar_like(b, math.prod(kernel), x)), x, p)]


@expands("GlobalLpPool", before=2)
def global_lp_pool(b: Builder, n: Inference) -> Outputs:
    """``p`` was a real number."""
    p = float(n.attr("p", 2.0))
    if p.is_integer():
        return rebuild(b, n, p=int(p))
    x = required(n, 0)
    rank = b.fact(x).rank
    if rank is not None:
        axes = b.ints(*range(2, rank))
    else:
        first, step = (b.const(np.array(v, dtype=np.int64)) for v in (2, 1))
        axes = b("Range", first, b("Squeeze", rank_vector(b, x), b.ints(0)), step)
    return [_root(b, b("ReduceSum", _power(b, x, p), axes, keepdims=1), x, p)]


def _power(b: Builder, x: ir.Value, p: float) -> ir.Value:
    return b("Pow", b("Abs", x), scalar_like(b, p, x))


def _root(b: Builder, y: ir.Value, x: ir.Value, p: float) -> ir.Value:
    return b("Pow", y, scalar_like(b, 1.0 / p, x))


@expands("RoiAlign", before=16)
def roi_align(b: Builder, n: Inference) -> Outputs:
    """Boxes were not moved by half a pixel; today that is the default."""
    return rebuild(b, n, coordinate_transformation_mode="output_half_pixel")
