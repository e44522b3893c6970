"""Expansions: operators on blocked and on channels-last data, which ONNX Runtime writes into an optimised model.

``com.microsoft.nchwc`` keeps the channels of images in blocks. The blocks concern the memory only: shapes count
channels as ever, rounded up to whole blocks, so every operator is the plain one on padded channels, and only the
weights, whose order is part of the file, have to be put back. How large a block is, the file does not say; it is what
the machine that wrote it prefers, and the model runs on machines that prefer the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import (
    Outputs,
    activate,
    constant_array,
    copy_attributes,
    size,
    to_channels_first,
    to_channels_last,
    wants,
)
from accord.ops.microsoft.fused import CONV_ATTRIBUTES, POOL_ATTRIBUTES
from accord.ops.microsoft.schemas import NCHWC_DOMAIN, NHWC_DOMAIN

__all__: list[str] = []

_BLOCK = "com.microsoft.nchwc block"

#: Operators whose first input and only output are images; all else about them is as in the ONNX domain.
_CHANNELS_LAST = (
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "GridSample",
    "InstanceNormalization",
    "LRN",
    "LpPool",
    "MaxPool",
    "QLinearConv",
    "SpaceToDepth",
)
_OWN_ATTRIBUTES = ("activation", "activation_params", "spatial")


@expands(*_CHANNELS_LAST, domain=NHWC_DOMAIN)
def channels_last(b: Builder, n: Inference) -> Outputs:
    """The operator of the ONNX domain between transposes; weights are in their usual layout."""
    name, rank = n.node.op_type, n.tensor(0).rank
    if rank is None or any(wants(n, i) for i in range(1, len(n.node.outputs))):
        return None
    attributes: dict[str, Any] = {k: a for k, a in n.node.attributes.items() if k not in _OWN_ATTRIBUTES}
    if name == "GridSample":
        modes = {"bilinear": "linear", "bicubic": "cubic"}
        attributes["mode"] = modes.get(n.attr("mode", "linear"), n.attr("mode", "linear"))
    y = b(name, to_channels_first(b, required(n, 0), rank), *n.node.inputs[1:], **attributes)
    activated = activate(b, y, n.attr("activation"), tuple(n.attr("activation_params", ())))
    return None if activated is None else [to_channels_last(b, activated, rank)]


# Blocks -----------------------------------------------------------------------------------------------------------


def _host_block() -> int:
    """Channels in a block on this machine: those of a 512-bit register where there is one, else of 256 bits."""
    from accord.backends.cpu.machine import whole_machine

    at_hand = whole_machine()
    return 16 if at_hand.arch != "x86_64" or "avx512f" in at_hand.has else 8


def _block_size(n: Inference) -> int:
    """16, unless the machine or the channels of some convolution of the graph say 8.

    The convolutions vanish one by one, so the answer is kept with the graph.
    """
    graph = n.node.graph
    known = None if graph is None else graph.meta.get(_BLOCK)
    if isinstance(known, int):
        return known
    nodes = [n.node] if graph is None else [node for node in graph if isinstance(node, ir.Node)]
    weights = [v.inputs[1] for v in nodes if v.domain == NCHWC_DOMAIN and v.op_type == "Conv"]
    shapes = [shape for w in weights if (shape := n.analyzer.facts.tensor(w).shape) is not None]
    block = _host_block()
    for shape in shapes:
        # Channels fill whole blocks, but for an input that is narrower than a block, which is read unblocked.
        if D.is_known(shape) and (shape[0] % 16 or (shape[1] > 16 and shape[1] % 16)):
            block = 8
        elif D.is_known(shape) and 8 < shape[1] < 16:
            block = 16
    if graph is not None:
        graph.meta[_BLOCK] = block
    return block


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
    weight = constant_array(b, required(n, 1))
    if weight is None:
        return None
    plain = b.const(np.ascontiguousarray(_plain_weight(weight, _block_size(n))))
    y = b("Conv", required(n, 0), plain, given(n, 2), **copy_attributes(n, *CONV_ATTRIBUTES))
    total = given(n, 3)
    if total is not None:
        y = b("Add", y, total)
    activated = activate(b, y, n.attr("activation"), tuple(n.attr("activation_params", ())))
    return None if activated is None else [activated]


@expands("MaxPool", "AveragePool", domain=NCHWC_DOMAIN)
def blocked_pool(b: Builder, n: Inference) -> Outputs:
    """The plain operator."""
    return [b(n.node.op_type, required(n, 0), **copy_attributes(n, *POOL_ATTRIBUTES, "count_include_pad"))]


@expands("GlobalMaxPool", "GlobalAveragePool", domain=NCHWC_DOMAIN)
def blocked_global_pool(b: Builder, n: Inference) -> Outputs:
    """The plain operator."""
    return [b(n.node.op_type, required(n, 0))]


@expands("Upsample", domain=NCHWC_DOMAIN)
def blocked_upsample(b: Builder, n: Inference) -> Outputs:
    """Resize by whole factors."""
    scales = b.const(np.array(n.attr("scales"), np.float32))
    mode = n.attr("mode", "nearest")
    return [
        b(
            "Resize",
            required(n, 0),
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
    x, rank = required(n, 0), n.tensor(0).rank
    if rank is None:
        return None
    if n.attr("channels_last", 0):
        x = to_channels_first(b, x, rank)
    block = _block_size(n)
    channels = (b.shape(x) or (None, None))[1]
    if isinstance(channels, int):
        missing = b.ints(-channels % block)
        if channels % block == 0:
            return [b("Identity", x)]
    else:
        missing = b("Mod", b("Neg", size(b, x, 1)), b.ints(block))
    pads = b("Concat", b.ints(*(0,) * (rank + 1)), missing, b.ints(*(0,) * (rank - 2)), axis=0)
    return [b("Pad", x, pads)]


@expands("ReorderOutput", domain=NCHWC_DOMAIN)
def reorder_output(b: Builder, n: Inference) -> Outputs:
    """Out of blocks: the padding is cut off."""
    x, rank = required(n, 0), n.tensor(0).rank
    if rank is None:
        return None
    channels = n.attr("channels", 0)
    y = b("Slice", x, b.ints(0), b.ints(channels), b.ints(1)) if channels else b("Identity", x)
    return [to_channels_last(b, y, rank) if n.attr("channels_last", 0) else y]
