"""What takes the place of an operator on a device that has no kernel for it."""

from __future__ import annotations

import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import equivalent, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, dims, size

__all__ = ["deform_conv", "depth_to_space", "roi_align", "space_to_depth"]


@equivalent("DepthToSpace")
def depth_to_space(b: Builder, n: Inference) -> Outputs:
    """Channels are split into a block and the rest, which moves between the pixels."""
    x, s = required(n, 0), int(n.attr("blocksize"))
    shape = b.shape(x)
    if shape is None or not isinstance(shape[1], int):
        return None
    kept = shape[1] // (s * s)
    first = n.attr("mode", "DCR") == "CRD"
    batch, height, width = (size(b, x, axis) for axis in (0, 2, 3))
    split = (kept, s, s) if first else (s, s, kept)
    y = b("Reshape", x, dims(b, batch, *split, height, width), allowzero=1)
    y = b("Transpose", y, perm=(0, 1, 4, 2, 5, 3) if first else (0, 3, 4, 1, 5, 2))
    target = dims(b, batch, kept, b("Mul", height, b.ints(s)), b("Mul", width, b.ints(s)))
    return [b("Reshape", y, target, allowzero=1)]


@equivalent("SpaceToDepth")
def space_to_depth(b: Builder, n: Inference) -> Outputs:
    """Pixels are split into blocks, whose positions become channels."""
    x, s = required(n, 0), int(n.attr("blocksize"))
    batch, channels, height, width = (size(b, x, axis) for axis in range(4))
    rows, columns = b("Div", height, b.ints(s)), b("Div", width, b.ints(s))
    y = b("Reshape", x, dims(b, batch, channels, rows, s, columns, s), allowzero=1)
    y = b("Transpose", y, perm=(0, 3, 5, 1, 2, 4))
    return [b("Reshape", y, dims(b, batch, b("Mul", channels, b.ints(s * s)), rows, columns), allowzero=1)]


@equivalent("DeformConv")
def deform_conv(b: Builder, n: Inference) -> Outputs:
    """The library's, where both axes are alike."""
    x, shape = required(n, 0), b.shape(required(n, 1))
    if shape is None or len(shape) != 4:
        return None
    steps, dilations, pads = (
        {int(v) for v in n.attr(name, default)}
        for name, default in (("strides", (1,)), ("dilations", (1,)), ("pads", (0,)))
    )
    if len(steps) != 1 or len(dilations) != 1 or len(pads) != 1:
        return None
    operands = (required(n, 1), required(n, 2), given(n, 4), given(n, 3))
    attributes = {
        "stride": steps.pop(), "padding": pads.pop(), "dilation": dilations.pop(), "groups": int(n.attr("group", 1)),
        "offset_groups": int(n.attr("offset_group", 1)),
    }  # fmt: skip
    return [b("DeformConv2d", x, *operands, domain="accord", **attributes)]


@equivalent("RoiAlign")
def roi_align(b: Builder, n: Inference) -> Outputs:
    """The library's, where bins are means of a known number of samples."""
    x, boxes, images = (required(n, i) for i in range(3))
    samples, scale = int(n.attr("sampling_ratio", 0)), float(n.attr("spatial_scale", 1.0))
    if n.attr("mode", "avg") != "avg" or samples < 1 or not scale > 0:
        return None
    if n.attr("coordinate_transformation_mode", "half_pixel") != "half_pixel":
        if b.fact(boxes).dtype != ir.DataType.FLOAT:  # moved by half a pixel, shorter floats would be rounded
            return None
        ends = [b("Slice", boxes, b.ints(i), b.ints(i + 2), b.ints(1)) for i in (0, 2)]
        low, high = (b("Add", v, b.scalar(0.5 / scale, boxes)) for v in ends)
        boxes = b("Concat", low, b("Max", high, b("Add", low, b.scalar(1 / scale, boxes))), axis=1)
    height, width = int(n.attr("output_height", 1)), int(n.attr("output_width", 1))
    attributes = {"height": height, "width": width, "samples": samples, "spatial_scale": scale}
    return [b("RoIAlign", x, boxes, images, domain="accord", **attributes)]
