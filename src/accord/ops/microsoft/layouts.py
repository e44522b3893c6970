"""Expansions: operators on blocked and on channels-last data, which ONNX Runtime writes into an optimised model.

``com.microsoft.nchwc`` keeps the channels of images in blocks. The blocks concern the memory only: shapes count
channels as ever, rounded up to whole blocks, so every operator is the plain one on padded channels, and only the
weights, whose order is part of the file, have to be put back. How large a block is, the file does not say; it is what
the machine that wrote it prefers, and the model runs on machines that prefer the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands
from accord.ir.infer import Inference
from accord.ops.microsoft.common import (
    Outputs,
    activate,
    constant_array,
    copy_attributes,
    given,
    operand,
    to_channels_first,
    to_channels_last,
)
from accord.ops.microsoft.fused import CONV_ATTRIBUTES, POOL_ATTRIBUTES
from accord.ops.microsoft.schemas import NCHWC_DOMAIN, NHWC_DOMAIN

__all__: list[str] = []

#: Operators on channels-last data, with how many leading inputs and outputs are images.
_CHANNELS_LAST = {
    "AveragePool": 1,
    "BatchNormalization": 1,
    "Conv": 1,
    "ConvTranspose": 1,
    "DepthToSpace": 1,
    "GlobalAveragePool": 1,
    "GlobalLpPool": 1,
    "GlobalMaxPool": 1,
    "GridSample": 1,
    "InstanceNormalization": 1,
    "LRN": 1,
    "LpPool": 1,
    "MaxPool": 1,
    "MaxUnpool": 2,
    "QLinearAveragePool": 1,
    "QLinearConv": 1,
    "QLinearConvTranspose": 1,
    "SpaceToDepth": 1,
}
_FUSED = ("activation", "activation_params")


@expands(*_CHANNELS_LAST, domain=NHWC_DOMAIN)
def channels_last(b: Builder, n: Inference) -> Outputs:
    """The operator of the ONNX domain between transposes; weights are in their usual layout."""
    name, rank = n.node.op_type, n.tensor(0).rank
    outputs = [o for o in n.node.outputs if o.name]
    if rank is None or len(outputs) != 1 or name.startswith("QLinear") and name != "QLinearConv":
        return None
    images = _CHANNELS_LAST[name]
    inputs: list[ir.Value | None] = [
        to_channels_first(b, v, rank) if i < images and v is not None else v for i, v in enumerate(n.node.inputs)
    ]
    attributes: dict[str, Any] = {k: a for k, a in n.node.attributes.items() if k not in (*_FUSED, "spatial")}
    if name == "GridSample":
        modes = {"bilinear": "linear", "bicubic": "cubic"}
        attributes["mode"] = modes.get(n.attr("mode", "linear"), n.attr("mode", "linear"))
    y = b(name, *inputs, **attributes)
    activated = activate(b, y, n.attr("activation"), tuple(n.attr("activation_params", ())))
    return None if activated is None else [to_channels_last(b, activated, rank)]


# Blocks -----------------------------------------------------------------------------------------------------------


def _host_block() -> int:
    """Channels in a block on this machine: those of a 512-bit register where there is one, else of 256 bits."""
    import llvmlite.binding as llvm

    if not llvm.get_default_triple().startswith(("x86_64", "i686")):
        return 16
    return 16 if llvm.get_host_cpu_features().get("avx512f", False) else 8


def _weight_shapes(n: Inference) -> list[Sequence[int]]:
    graph = n.node.graph
    nodes: list[ir.Node] = [n.node] if graph is None else list(graph)
    found: list[Sequence[int]] = []
    for node in nodes:
        if node.domain == NCHWC_DOMAIN and node.op_type == "Conv":
            shape = n.analyzer.facts.tensor(node.inputs[1]).shape
            if shape is not None:
                found.append([d for d in shape if isinstance(d, int)])
    return found


def _block_size(n: Inference) -> int:
    """16 unless a convolution of the graph has a number of channels that is no multiple of it, or the machine says 8."""
    for shape in _weight_shapes(n):
        if shape[0] % 16 or (shape[1] % 16 and shape[1] >= 8):
            return 8
    return _host_block()


def _plain_weight(weight: np.ndarray[Any, Any], block: int) -> np.ndarray[Any, Any]:
    """(O, I, ...) from blocks of output channels, and of input channels where these fill a block."""
    out, inp, *kernel = weight.shape
    spatial = len(kernel)
    if inp < block:
        # (O / block, I, ..., block)
        blocked = weight.reshape(out // block, inp, *kernel, block)
        order = (0, spatial + 2, *range(1, spatial + 2))
    else:
        # (O / block, I / block, ..., block of I, block of O)
        blocked = weight.reshape(out // block, inp // block, *kernel, block, block)
        order = (0, spatial + 3, 1, spatial + 2, *range(2, spatial + 2))
    return blocked.transpose(order).reshape(weight.shape)


@expands("Conv", domain=NCHWC_DOMAIN)
def blocked_conv(b: Builder, n: Inference) -> Outputs:
    """The sum, if given, comes before the activation."""
    weight = constant_array(b, operand(n, 1))
    if weight is None:
        return None
    plain = b.const(np.ascontiguousarray(_plain_weight(weight, _block_size(n))))
    y = b("Conv", operand(n, 0), plain, given(n, 2), **copy_attributes(n, *CONV_ATTRIBUTES))
    total = given(n, 3)
    if total is not None:
        y = b("Add", y, total)
    activated = activate(b, y, n.attr("activation"), tuple(n.attr("activation_params", ())))
    return None if activated is None else [activated]


@expands("MaxPool", "AveragePool", domain=NCHWC_DOMAIN)
def blocked_pool(b: Builder, n: Inference) -> Outputs:
    """The plain operator."""
    return [b(n.node.op_type, operand(n, 0), **copy_attributes(n, *POOL_ATTRIBUTES, "count_include_pad"))]


@expands("GlobalMaxPool", "GlobalAveragePool", domain=NCHWC_DOMAIN)
def blocked_global_pool(b: Builder, n: Inference) -> Outputs:
    """The plain operator."""
    return [b(n.node.op_type, operand(n, 0))]


@expands("Upsample", domain=NCHWC_DOMAIN)
def blocked_upsample(b: Builder, n: Inference) -> Outputs:
    """Resize by whole factors."""
    scales = b.const(np.array(n.attr("scales"), np.float32))
    mode = n.attr("mode", "nearest")
    return [
        b(
            "Resize",
            operand(n, 0),
            None,
            scales,
            mode=mode,
            coordinate_transformation_mode=n.attr("coordinate_transformation_mode", "asymmetric"),
            nearest_mode="floor" if mode == "nearest" else None,
        )
    ]


@expands("ReorderInput", domain=NCHWC_DOMAIN)
def reorder_input(b: Builder, n: Inference) -> Outputs:
    """Into blocks: what stays of it is that the channels are padded to whole blocks."""
    x, rank = operand(n, 0), n.tensor(0).rank
    if rank is None:
        return None
    if n.attr("channels_last", 0):
        x = to_channels_first(b, x, rank)
    channels = (b.shape(x) or (None, None))[1]
    if not isinstance(channels, int):
        return None
    missing = -channels % _block_size(n)
    if not missing:
        return [b("Identity", x)]
    return [b("Pad", x, b.ints(*(0,) * (rank + 1), missing, *(0,) * (rank - 2)))]


@expands("ReorderOutput", domain=NCHWC_DOMAIN)
def reorder_output(b: Builder, n: Inference) -> Outputs:
    """Out of blocks: the padding is cut off."""
    x, rank = operand(n, 0), n.tensor(0).rank
    if rank is None:
        return None
    channels = n.attr("channels", 0)
    y = b("Slice", x, b.ints(0), b.ints(channels), b.ints(1)) if channels else b("Identity", x)
    return [to_channels_last(b, y, rank) if n.attr("channels_last", 0) else y]
