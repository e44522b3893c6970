"""Operators that change shapes: parameters that were attributes and are inputs today."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, as_dtype, constant, has_attribute, rank_vector, rebuild, scalar_like

__all__: list[str] = []


@expands("Concat", before=4)
def concat(b: Builder, n: Inference) -> Outputs:
    """``axis`` had the default 1."""
    return None if has_attribute(n, "axis") else rebuild(b, n, axis=1)


@expands("Reshape", before=5)
def reshape_attribute(b: Builder, n: Inference) -> Outputs:
    """The shape was an attribute."""
    return [b("Reshape", required(n, 0), b.ints(*n.attr("shape", ())))]


@expands("Tile", before=6)
def tile_axis(b: Builder, n: Inference) -> Outputs:
    """``tiles`` copies along one ``axis``, both inputs of the dtype of the data."""
    x = required(n, 0)
    tiles, axis = required(n, 1), required(n, 2)
    rank, known = b.fact(x).rank, [constant(b, v) for v in (tiles, axis)]
    if rank is not None and known[0] is not None and known[1] is not None:
        repeats = [1] * rank
        repeats[n.axis(int(known[1].item()), rank)] = int(known[0].item())
        return [b("Tile", x, b.ints(*repeats))]
    zero, one = (b.const(np.array(v, dtype=np.int64)) for v in (0, 1))
    count, at = (b("Reshape", as_dtype(b, v, ir.DataType.INT64), b.ints()) for v in (tiles, axis))
    length = b("Squeeze", rank_vector(b, x), b.ints(0))
    at = b("Where", b("Less", at, zero), b("Add", at, length), at)
    return [b("Tile", x, b("Where", b("Equal", b("Range", zero, length, one), at), count, one))]


@expands("Slice", before=10)
def slice_attributes(b: Builder, n: Inference) -> Outputs:
    """``starts``, ``ends`` and ``axes`` were attributes."""
    if not has_attribute(n, "starts"):
        return None
    axes = n.attr("axes")
    parameters = (b.ints(*n.attr("starts")), b.ints(*n.attr("ends")), None if axes is None else b.ints(*axes))
    return [b("Slice", required(n, 0), *parameters)]


@expands("Split", before=13)
def split_attribute(b: Builder, n: Inference) -> Outputs:
    """The sizes were an attribute, or in Split-1 an input of the dtype of the data."""
    sizes = n.attr("split")
    source = given(n, 1)
    if sizes is not None:
        source = b.ints(*sizes)
    elif source is not None:
        source = as_dtype(b, source, ir.DataType.INT64)
    return _split(b, n, source)


@expands("Split", before=18)
def split_evenly(b: Builder, n: Inference) -> Outputs:
    """Without sizes the number of parts followed from the number of outputs."""
    return None if n.has(1) or has_attribute(n, "num_outputs") else _split(b, n, None)


def _split(b: Builder, n: Inference, sizes: ir.Value | None) -> Outputs:
    count = len(n.node.outputs) if sizes is None else None
    return rebuild(b, n, required(n, 0), sizes, drop=("split",), num_outputs=count)


@expands("Squeeze", "Unsqueeze", before=13)
def axes_attribute(b: Builder, n: Inference) -> Outputs:
    """``axes`` was an attribute."""
    axes = n.attr("axes")
    return None if axes is None else [b(n.node.op_type, required(n, 0), b.ints(*axes))]


@expands("Pad", before=11)
def pad_attributes(b: Builder, n: Inference) -> Outputs:
    """``pads`` (``paddings`` in Pad-1) and ``value`` were attributes.

    The text and the example of Pad-1 contradict each other on the order; the text is followed, as Pad-2's example is.
    """
    pads = n.attr("pads", n.attr("paddings"))
    if pads is None:
        return None
    x, value = required(n, 0), n.attr("value", 0.0)
    return [b("Pad", x, b.ints(*pads), scalar_like(b, value, x) if value else None, mode=n.attr("mode"))]
