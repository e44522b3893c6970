"""Expansions: copies of ONNX operators, complex numbers, Fourier transforms, windows, images, lists of tokens."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, cast, copy_attributes, flat, size
from accord.ops.microsoft.rotary import sequence_positions
from accord.ops.microsoft.schemas import DOMAIN

__all__: list[str] = []

BOOL, INT32, INT64 = ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64
_LAST = np.iinfo(np.int64).max


# Operators that the ONNX domain has too ---------------------------------------------------------------------------


@expands("SampleOp", domain=DOMAIN)
def sample_op(b: Builder, n: Inference) -> Outputs:
    """A copy."""
    return [b("Identity", required(n, 0))]


@expands("ExpandDims", domain=DOMAIN)
def expand_dims(b: Builder, n: Inference) -> Outputs:
    """The axis is an input."""
    return [b("Unsqueeze", required(n, 0), cast(b, flat(b, required(n, 1)), INT64))]


@expands("GatherND", domain=DOMAIN)
def gather_nd(b: Builder, n: Inference) -> Outputs:
    """Indices of either integer type."""
    return [b("GatherND", required(n, 0), cast(b, required(n, 1), INT64))]


@expands("GridSample", domain=DOMAIN)
def grid_sample(b: Builder, n: Inference) -> Outputs:
    """Modes under their former names."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(n.attr("mode", "bilinear"), "nearest")
    attributes = copy_attributes(n, "align_corners", "padding_mode")
    return [b("GridSample", required(n, 0), required(n, 1), mode=mode, **attributes)]


@expands("Trilu", domain=DOMAIN)
def trilu(b: Builder, n: Inference) -> Outputs:
    """The same."""
    return [b("Trilu", required(n, 0), given(n, 1), **copy_attributes(n, "upper"))]


@expands("Pad", domain=DOMAIN)
def pad(b: Builder, n: Inference) -> Outputs:
    """Pads may be a row of a matrix, the value a vector of one."""
    value = given(n, 2)
    if value is not None:
        value = b("Reshape", value, b.ints())
    return [b("Pad", required(n, 0), flat(b, required(n, 1)), value, **copy_attributes(n, "mode"))]


@expands("Range", domain=DOMAIN)
def range_(b: Builder, n: Inference) -> Outputs:
    """Bounds may be vectors of one; the step is 1 if not given."""
    bounds = [b("Reshape", required(n, i), b.ints()) for i in (0, 1)]
    delta = given(n, 2)
    step = b.scalar(1, bounds[0]) if delta is None else b("Reshape", delta, b.ints())
    return [b("Range", *bounds, step)]


@expands("TorchEmbedding", domain=DOMAIN)
def torch_embedding(b: Builder, n: Inference) -> Outputs:
    """A padding index matters for gradients only."""
    return [b("Gather", required(n, 0), required(n, 1), axis=0)]


@expands("Unique", domain=DOMAIN)
def unique(b: Builder, n: Inference) -> Outputs:
    """Elements, the position of each input among them, and how often each occurs."""
    elements, _, positions, counts = b.multi("Unique", 4, required(n, 0), sorted=0)
    return [elements, positions, counts]


# Arithmetic -------------------------------------------------------------------------------------------------------


@expands("CDist", domain=DOMAIN)
def c_dist(b: Builder, n: Inference) -> Outputs:
    """``|a|^2 - 2 a b + |b|^2``, which is not below zero for all the rounding."""
    x, y = required(n, 0), required(n, 1)
    squares = [b("ReduceSumSquare", v, b.ints(1), keepdims=1) for v in (x, y)]
    product = b("MatMul", x, b("Transpose", y, perm=(1, 0)))
    sums = b("Add", squares[0], b("Transpose", squares[1], perm=(1, 0)))
    distance = b("Max", b("Sub", sums, b("Mul", product, b.scalar(2.0, product))), b.scalar(0.0, product))
    return [b("Sqrt", distance) if n.attr("metric", "sqeuclidean") == "euclidean" else distance]


@expands("ComplexMul", "ComplexMulConj", domain=DOMAIN)
def complex_mul(b: Builder, n: Inference) -> Outputs:
    """(a + bi)(c + di), or (a + bi)(c - di)."""
    (a_real, a_imag), (b_real, b_imag) = (b.multi("Split", 2, required(n, i), axis=-1, num_outputs=2) for i in (0, 1))
    if n.node.op_type == "ComplexMulConj":
        b_imag = b("Neg", b_imag)
    real = b("Sub", b("Mul", a_real, b_real), b("Mul", a_imag, b_imag))
    imag = b("Add", b("Mul", a_real, b_imag), b("Mul", a_imag, b_real))
    return [b("Concat", real, imag, axis=-1)]


@expands("IsAllFinite", domain=DOMAIN)
def is_all_finite(b: Builder, n: Inference) -> Outputs:
    """Over all elements of all inputs; an attribute restricts the search to one kind."""
    kinds = ("IsNaN",) if n.attr("isnan_only", 0) else ("IsInf",) if n.attr("isinf_only", 0) else ("IsInf", "IsNaN")
    bad: list[ir.Value] = []
    for value in n.node.inputs:
        if value is not None:
            bad += [b("ReduceMax", flat(b, b(kind, value)), b.ints(0), keepdims=0) for kind in kinds]
    total = bad[0]
    for flag in bad[1:]:
        total = b("Or", total, flag)
    return [b("Not", total)]


# Fourier transform ------------------------------------------------------------------------------------------------


def _axis(value: int) -> np.ndarray[tuple[()], np.dtype[np.int64]]:
    return np.array(value, np.int64)


@expands("Rfft", domain=DOMAIN)
def rfft(b: Builder, n: Inference) -> Outputs:
    """Over the last ``signal_ndim`` axes; the last of them keeps the half that is not redundant."""
    if n.attr("normalized", 0):
        return None
    y = b("Unsqueeze", required(n, 0), b.ints(-1))
    y = b("DFT", y, None, b.const(_axis(-2)), onesided=n.attr("onesided", 1))
    for i in range(1, n.attr("signal_ndim", 1)):
        y = b("DFT", y, None, b.const(_axis(-2 - i)))
    return [y]


@expands("Irfft", domain=DOMAIN)
def irfft(b: Builder, n: Inference) -> Outputs:
    """The inverse of :func:`rfft`, for signals of an even length."""
    if n.attr("normalized", 0):
        return None
    y = required(n, 0)
    for i in reversed(range(1, n.attr("signal_ndim"))):
        y = b("DFT", y, None, b.const(_axis(-2 - i)), inverse=1)
    onesided = n.attr("onesided", 1)
    y = b("DFT", y, None, b.const(_axis(-2)), inverse=1, onesided=onesided)
    if not onesided:
        y = b("Slice", y, b.ints(0), b.ints(1), b.ints(-1))
    return [b("Squeeze", y, b.ints(-1))]


# Windows and images -----------------------------------------------------------------------------------------------


@expands("UnfoldTensor", domain=DOMAIN)
def unfold_tensor(b: Builder, n: Inference) -> Outputs:
    """Windows of ``size`` every ``step`` along ``dim``, the window as a new last axis."""
    x, rank = required(n, 0), n.tensor(0).rank
    if rank is None:
        return None
    dim, width, step = n.axis(n.attr("dim", -1), rank), n.attr("size"), n.attr("step", 1)
    stop = b("Sub", size(b, x, dim), b.ints(width - 1))
    starts = b("Range", b.const(_axis(0)), b("Squeeze", stop, b.ints(0)), b.const(_axis(step)))
    index = b("Add", b("Unsqueeze", starts, b.ints(1)), b.const(np.arange(width, dtype=np.int64)))
    windows = b("Gather", x, index, axis=dim)
    order = [i for i in range(rank + 1) if i != dim + 1]
    return [b("Transpose", windows, perm=(*order, dim + 1))]


@expands("CropAndResize", domain=DOMAIN)
def crop_and_resize(b: Builder, n: Inference) -> Outputs:
    """Boxes (y1, x1, y2, x2) in units of the image; their corners are samples of the result."""
    images, boxes = required(n, 0), required(n, 1)
    crop = cast(b, required(n, 3), INT64)
    batch = cast(b, required(n, 2), INT64)
    edges = [b("Slice", boxes, b.ints(i), b.ints(i + 1), b.ints(1)) for i in range(4)]
    rows, columns = (
        _samples(
            b, b("Slice", crop, b.ints(i), b.ints(i + 1), b.ints(0)), edges[i], edges[i + 2], size(b, images, 2 + i)
        )
        for i in (0, 1)
    )
    pixels = b("Transpose", images, perm=(0, 2, 3, 1))

    def gathered(y: ir.Value, x: ir.Value) -> ir.Value:
        """Pixels at integer positions (boxes, rows) and (boxes, columns)."""
        parts = (b("Unsqueeze", batch, b.ints(1, 2)), b("Unsqueeze", y, b.ints(2)), b("Unsqueeze", x, b.ints(1)))
        shape = b("Concat", size(b, boxes, 0), crop, axis=0)
        index = [b("Unsqueeze", b("Expand", p, shape), b.ints(3)) for p in parts]
        return b("GatherND", pixels, b("Concat", *index, axis=3))

    inside = b("And", b("Unsqueeze", rows[1], b.ints(2)), b("Unsqueeze", columns[1], b.ints(1)))
    if n.attr("mode", "bilinear") == "bilinear":
        (y0, y1, dy), (x0, x1, dx) = (_neighbours(b, v) for v in (rows[0], columns[0]))
        along_x, along_y = b("Unsqueeze", dx, b.ints(1, 3)), b("Unsqueeze", dy, b.ints(2, 3))
        top = _between(b, gathered(y0, x0), gathered(y0, x1), along_x)
        y = _between(b, top, _between(b, gathered(y1, x0), gathered(y1, x1), along_x), along_y)
    else:
        # Halves are rounded away from zero, and positions are not negative.
        nearest = [b("Cast", b("Floor", b("Add", v, b.scalar(0.5, v))), to=int(INT64)) for v in (rows[0], columns[0])]
        y = gathered(*nearest)
    y = b("Where", b("Unsqueeze", inside, b.ints(3)), y, b.scalar(n.attr("extrapolation_value", 0.0), y))
    return [b("Transpose", y, perm=(0, 3, 1, 2))]


def _samples(b: Builder, count: ir.Value, low: ir.Value, high: ir.Value, length: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Positions of ``count`` samples from ``low`` to ``high`` (boxes, 1), clipped, and whether they were inside."""
    last = b("CastLike", b("Sub", length, b.ints(1)), low)
    steps = b("CastLike", sequence_positions(b, count), low)
    gaps = b("CastLike", b("Max", b("Sub", count, b.ints(1)), b.ints(1)), low)
    single = b("Equal", count, b.ints(1))
    middle = b("Mul", b("Add", low, high), b.scalar(0.5, low))
    start = b("Where", single, middle, low)
    span = b("Div", b("Mul", b("Sub", high, low), last), gaps)
    position = b("Add", b("Mul", start, last), b("Mul", steps, span))
    # The last sample is the border itself, whatever the sum has lost.
    is_last = b("And", b("Equal", steps, gaps), b("Not", single))
    position = b("Where", is_last, b("Mul", high, last), position)
    inside = b("And", b("GreaterOrEqual", position, b.scalar(0.0, position)), b("LessOrEqual", position, last))
    return b("Max", b("Min", position, last), b.scalar(0.0, position)), inside


def _neighbours(b: Builder, position: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The integers around a position, and how far it is from the lower."""
    below = b("Floor", position)
    above = b("Cast", b("Ceil", position), to=int(INT64))
    return b("Cast", below, to=int(INT64)), above, b("Sub", position, below)


def _between(b: Builder, low: ir.Value, high: ir.Value, weight: ir.Value) -> ir.Value:
    return b("Add", low, b("Mul", b("Sub", high, low), weight))


@expands("WordConvEmbedding", domain=DOMAIN)
def word_conv_embedding(b: Builder, n: Inference) -> Outputs:
    """Windows of characters through Conv and Tanh; the maximum over the windows that begin inside the word.

    A word without characters has no window; its vector is zero.
    """
    words, weight, bias, table = (required(n, i) for i in range(4))
    width = (b.shape(weight) or (None,) * 4)[2]
    if not isinstance(width, int):
        return None
    characters = b("Unsqueeze", b("Gather", table, words, axis=0), b.ints(1))
    windows = b("Tanh", b("Squeeze", b("Conv", characters, weight, bias), b.ints(3)))
    present = b("Greater", words, b.scalar(0, words))
    length = b("ReduceSum", b("Cast", present, to=int(INT64)), b.ints(1), keepdims=1)
    count = b("Sub", b("Max", length, b.ints(width)), b.ints(width - 1))
    inside = b("Less", sequence_positions(b, size(b, windows, 2)), count)
    low = b.scalar(-1e12, windows)
    greatest = b("ReduceMax", b("Where", b("Unsqueeze", inside, b.ints(1)), windows, low), b.ints(2), keepdims=0)
    first = b("Slice", present, b.ints(0), b.ints(1), b.ints(1))
    return [b("Where", first, greatest, b.scalar(0.0, greatest))]


# Tokens -----------------------------------------------------------------------------------------------------------


@expands("NGramRepeatBlock", domain=DOMAIN)
def n_gram_repeat_block(b: Builder, n: Inference) -> Outputs:
    """A token is barred if it followed the last ``ngram_size - 1`` tokens before."""
    ids, scores, order = required(n, 0), required(n, 1), n.attr("ngram_size")
    zero = b.ints(0)
    count = b("Max", b("Sub", size(b, ids, 1), b.ints(order - 1)), zero)
    length = size(b, ids, 1)
    followers = b("Slice", ids, b.ints(order - 1), b.ints(_LAST), b.ints(1))
    repeated: ir.Value = b("Expand", b.const(np.array(True)), b("Shape", followers))
    for i in range(order - 1):
        earlier = b("Slice", ids, b.ints(i), b("Add", count, b.ints(i)), b.ints(1))
        place = b("Sub", length, b.ints(order - 1 - i))
        recent = b("Slice", ids, place, b("Add", place, b.ints(1)), b.ints(1))
        repeated = b("And", repeated, b("Equal", earlier, recent))
    marks = b(
        "ScatterElements",
        b("Expand", b.const(np.array(0, np.int32)), b("Shape", scores)),
        followers,
        b("Cast", repeated, to=int(INT32)),
        axis=1,
        reduction="max",
    )
    return [b("Where", b("Cast", marks, to=int(BOOL)), b.scalar(-np.inf, scores), scores)]
