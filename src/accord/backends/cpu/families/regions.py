"""Regions of interest: RoiAlign and MaxRoiPool."""

from __future__ import annotations

from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.families.windows import channels_last_arrangement
from accord.backends.cpu.regions import Regions, region_phase
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Kernel, NativeKernel
from accord.backends.root import epilogue_of
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS
from accord.ir import dims as D
from accord.ir.reason import Reason

__all__ = ["regions"]


@arranges("RoiAlign", "MaxRoiPool")
def arrange_regions(view: NodeView) -> Arrangement:
    """Image and result are channels-last."""
    return channels_last_arrangement(view)


@selects("RoiAlign", "MaxRoiPool", epilogue=True)
def regions(view: NodeView) -> Kernel | Reason:
    """Bins of regions of images; lanes along channels."""
    pooled = view.node.op_type == "MaxRoiPool"
    found, boxes = known(view.tensor(0), "the input"), known(view.tensor(1), "the regions")
    for f in (found, boxes):
        if isinstance(f, Reason):
            return f
    assert not isinstance(found, Reason) and not isinstance(boxes, Reason)
    (x, dtype), (_, coordinates), out = found, boxes, view.output().shape
    if out is None or len(x) != 4 or dtype not in FLOATS or coordinates not in FLOATS:
        return Reason("only images of floats")
    scale = float(view.attr("spatial_scale", 1.0))
    if pooled:
        what = Regions("pool", scale)
        numbers = None
    else:
        if known(view.tensor(2), "the image numbers") != (view.tensor(2).shape, "i64"):
            return Reason("the image numbers are not int64")
        mode, corner = view.attr("mode", "avg"), view.attr("coordinate_transformation_mode", "half_pixel")
        if mode not in ("avg", "max") or corner not in ("half_pixel", "output_half_pixel"):
            return Reason(f"mode {mode} with {corner} is unknown")
        samples = int(view.attr("sampling_ratio", 0))
        what = Regions(mode, scale, corner == "half_pixel", max(samples, 0))
        numbers = view.access(2)
    epilogue = epilogue_of(view)
    reads = (0, 1) if pooled else (0, 1, 2)
    phase = region_phase(
        what,
        x,
        (out[0], out[2], out[3]),
        (dtype, view.access(0)),
        (coordinates, view.access(1)),
        numbers,
        view.output_access(),
        epilogue,
        tuple(range(len(reads) + len(epilogue.extras) + 1)),
    )
    return NativeKernel(f"{view.node.op_type} {dtype}", (phase,), reads, flops=8 * D.product(out))
