"""Convolutions as matrix products over unfolded windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from accord.backends.reference.quantization import quantize_values
from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.sampling import linear_sample
from accord.backends.reference.tensors import integers, require, require_room, scalar, to_accumulator

__all__ = ["Window", "fold", "same_padding", "unfold_windows"]


def same_padding(total: int, mode: str) -> tuple[int, int]:
    """Split padding between both ends; the odd element goes to the end for SAME_UPPER, else to the beginning."""
    total = max(total, 0)
    small = total // 2
    return (small, total - small) if mode == "SAME_UPPER" else (total - small, small)


@dataclass(frozen=True, slots=True)
class Window:
    """How a kernel slides over the spatial axes.

    Attributes:
        kernel: Kernel length by axis.
        strides: Step by axis.
        dilations: Distance of kernel elements by axis.
        before: Padding in front by axis.
        after: Padding behind by axis.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """Length that the dilated kernel covers, by axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @classmethod
    def of(cls, op: OpNode, kernel: Sequence[int], spatial: Sequence[int]) -> Window:
        """Read strides, dilations and padding of a node.

        Args:
            op: The node.
            kernel: Kernel length by axis.
            spatial: Length of the input by axis.

        Returns:
            The window, with automatic padding resolved.

        Raises:
            ValueError: An attribute has the wrong length or a value that makes no sense.
        """
        rank = len(spatial)
        strides = list(op["strides"] or [1] * rank)
        dilations = list(op["dilations"] or [1] * rank)
        require(len(kernel) == rank, f"a kernel of {len(kernel)} axes on an input of {rank}")
        require(min(kernel, default=1) > 0, f"kernel {list(kernel)} has an empty axis")
        require(len(strides) == rank and min(strides, default=1) > 0, f"strides {strides} do not fit")
        require(len(dilations) == rank and min(dilations, default=1) > 0, f"dilations {dilations} do not fit")
        mode = op["auto_pad"] or "NOTSET"
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            pairs = [
                same_padding((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, mode)
                for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True)
            ]
            before, after = [b for b, _ in pairs], [a for _, a in pairs]
        else:
            require(mode in ("NOTSET", "VALID"), f"auto_pad '{mode}' is unknown")
            pads = list(op["pads"] or []) if mode == "NOTSET" else []
            pads = pads or [0] * (2 * rank)
            require(len(pads) == 2 * rank, f"{len(pads)} pads for {rank} axes")
            before, after = pads[:rank], pads[rank:]
        return cls(tuple(kernel), tuple(strides), tuple(dilations), tuple(before), tuple(after))


def pad_spatial(x: Array, before: Sequence[int], after: Sequence[int], value: Any) -> Array:
    """Pad the axes after the first two with a constant; negative padding removes elements."""
    if not any(before) and not any(after):
        return x
    require_room((*x.shape[:2], *(max(b + n + a, 0) for b, n, a in zip(before, x.shape[2:], after, strict=True))))
    kept = (slice(max(-b, 0), n - max(-a, 0)) for b, a, n in zip(before, after, x.shape[2:], strict=True))
    cropped = x[(slice(None), slice(None), *kept)]
    widths = [(0, 0), (0, 0), *((max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True))]
    return np.pad(cropped, widths, constant_values=value)


def unfold_windows(padded: Array, window: Window) -> Array:
    """View the windows of a padded tensor: shape (N, C, *output, *kernel), without copying.

    Raises:
        ValueError: The window is longer than the padded input.
    """
    rank = len(window.kernel)
    for length, extent in zip(padded.shape[2:], window.extents, strict=True):
        require(length >= extent, f"a window of {extent} does not fit a padded input of {length}")
    views = sliding_window_view(padded, window.extents, axis=tuple(range(2, 2 + rank)))
    steps = tuple(slice(None, None, s) for s in window.strides)
    gaps = tuple(slice(None, None, d) for d in window.dilations)
    result: Array = views[(slice(None), slice(None), *steps, *gaps)]
    return result


def convolve(x: Array, w: Array, groups: int, window: Window) -> Array:
    """Convolve in the element type of the arguments.

    Args:
        x: (N, C, *spatial), not yet padded.
        w: (M, C / groups, *kernel).
        groups: Number of groups.
        window: The sliding window.

    Returns:
        (N, M, *output).

    Raises:
        ValueError: The shapes do not fit together.
    """
    n, c = x.shape[:2]
    m = w.shape[0]
    require(x.ndim == w.ndim and x.ndim >= 3, f"ranks {x.ndim} of the input and {w.ndim} of the filter do not fit")
    require(groups > 0 and c == w.shape[1] * groups, f"{c} channels for a filter of {w.shape[1]} in {groups} groups")
    require(m % groups == 0, f"{m} filters in {groups} groups")
    windows = unfold_windows(pad_spatial(x, window.before, window.after, 0), window)
    rank = len(window.kernel)
    output = windows.shape[2 : 2 + rank]
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    depth = (c // groups) * math.prod(window.kernel)
    columns = windows.transpose(order).reshape(n, groups, depth, math.prod(output))
    result = np.matmul(w.reshape(groups, m // groups, depth), columns)
    y: Array = result.reshape(n, m, *output)
    return y


def _kernel_shape(op: OpNode, w: Array) -> tuple[int, ...]:
    given = op["kernel_shape"]
    require(not given or tuple(given) == w.shape[2:], f"kernel_shape {given} differs from the filter {w.shape[2:]}")
    return w.shape[2:]


def _add_bias(y: Array, bias: Array | None) -> Array:
    if bias is None:
        return y
    require(bias.shape == (y.shape[1],), f"a bias of shape {bias.shape} for {y.shape[1]} channels")
    return np.asarray(y + to_accumulator(bias).reshape((-1,) + (1,) * (y.ndim - 2)))


@implements("Conv")
def conv(op: OpNode, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Convolution of any rank with groups, dilations and automatic padding; sums are taken in float64."""
    window = Window.of(op, _kernel_shape(op, w), x.shape[2:])
    return _add_bias(convolve(to_accumulator(x), to_accumulator(w), op["group"], window), bias).astype(x.dtype)


def _integer_convolution(op: OpNode, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
    """Convolution of 8-bit tensors less their zero points, exact in float64; padding stands for the zero point."""
    values = x.astype(np.float64) - (0 if x_zero is None else float(scalar(x_zero)))
    weights = w.astype(np.float64)
    if w_zero is not None:
        require(w_zero.size in (1, len(w)), f"{w_zero.size} zero points for {len(w)} filters")
        weights = weights - w_zero.astype(np.float64).reshape((-1,) + (1,) * (w.ndim - 1))
    return convolve(values, weights, op["group"], Window.of(op, _kernel_shape(op, w), x.shape[2:]))


@implements("ConvInteger")
def conv_integer(op: OpNode, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
    """Convolution of 8-bit tensors less their zero points, accumulated in 32 bits."""
    return _integer_convolution(op, x, w, x_zero, w_zero).astype(np.int64).astype(np.int32)


@implements("QLinearConv")
def qlinear_conv(
    op: OpNode,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
) -> Array:
    """Convolution of quantised tensors, quantised again; the scale of the filter may differ by output channel."""
    total = _add_bias(_integer_convolution(op, x, w, x_zero, w_zero), bias)
    require(w_scale.size in (1, len(w)), f"{w_scale.size} scales for {len(w)} filters")
    factor = (scalar_of(x_scale) * w_scale / scalar_of(y_scale)).reshape((-1,) + (1,) * (x.ndim - 2))
    return quantize_values(total * factor, y_zero.reshape(()), y_zero.dtype)


def scalar_of(x: Array) -> Any:
    """Return the only element of a tensor as a NumPy scalar, which keeps its precision."""
    require(x.size == 1, f"expected a tensor of one element, got shape {list(x.shape)}")
    return x.reshape(-1)[0]


def fold(columns: Array, spatial: Sequence[int], window: Window) -> Array:
    """Add windows back into an image: the transpose of :func:`unfold_windows`.

    Args:
        columns: (N, C, *kernel, *positions).
        spatial: Length of the image by axis, without padding.
        window: The sliding window; its padding is cut off the result.

    Returns:
        (N, C, *spatial).

    Raises:
        ValueError: The number of positions does not fit the image.
    """
    rank = len(window.kernel)
    positions = columns.shape[2 + rank :]
    reach = [(p - 1) * s + e for p, s, e in zip(positions, window.strides, window.extents, strict=True)]
    padded = [b + n + a for b, n, a in zip(window.before, spatial, window.after, strict=True)]
    lengths = [max(r, p) for r, p in zip(reach, padded, strict=True)]
    require_room((*columns.shape[:2], *lengths))
    image = np.zeros((*columns.shape[:2], *lengths), dtype=columns.dtype)
    every: Any = slice(None)
    for offsets in itertools.product(*(range(k) for k in window.kernel)):
        part: tuple[Any, ...] = tuple(
            slice(o * d, o * d + (p - 1) * s + 1, s)
            for o, d, p, s in zip(offsets, window.dilations, positions, window.strides, strict=True)
        )
        image[(every, every, *part)] += columns[(every, every, *offsets)]
    inner = tuple(slice(b, b + n) for b, n in zip(window.before, spatial, strict=True))
    return image[(every, every, *inner)]


def _transpose_window(op: OpNode, x: Array, kernel: tuple[int, ...]) -> tuple[list[int], Window]:
    """Output lengths and window of a transposed convolution, by the equations of its specification."""
    rank = len(kernel)
    mode = op["auto_pad"] or "NOTSET"
    plain = Window(
        kernel,
        tuple(op["strides"] or [1] * rank),
        tuple(op["dilations"] or [1] * rank),
        (0,) * rank,
        (0,) * rank,
    )
    for name in ("strides", "dilations", "output_padding"):
        require(len(op[name] or [0] * rank) == rank, f"{name} {op[name]} does not fit {rank} axes")
    extra = list(op["output_padding"] or [0] * rank)
    full = [s * (n - 1) + p + e for s, n, p, e in zip(plain.strides, x.shape[2:], extra, plain.extents, strict=True)]
    lengths = op["output_shape"]
    if lengths:
        lengths = list(lengths)[-rank:]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        lengths = [n * s for n, s in zip(x.shape[2:], plain.strides, strict=True)]
    if lengths:
        # A total below zero asks for more output than the input reaches: the surplus stays zero at the end.
        pairs = [same_padding(f - n, mode) for f, n in zip(full, lengths, strict=True)]
        before, after = [b for b, _ in pairs], [a for _, a in pairs]
    else:
        pads = list(op["pads"] or []) if mode == "NOTSET" else []
        pads = pads or [0] * (2 * rank)
        require(len(pads) == 2 * rank, f"{len(pads)} pads for {rank} axes")
        before, after = pads[:rank], pads[rank:]
        lengths = [f - b - a for f, b, a in zip(full, before, after, strict=True)]
    require(min(lengths) > 0, f"the output would have the shape {lengths}")
    return lengths, Window(kernel, plain.strides, plain.dilations, tuple(before), tuple(after))


@implements("ConvTranspose")
def conv_transpose(op: OpNode, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Transposed convolution: every input element adds a scaled kernel to the output."""
    groups = op["group"]
    n, c = x.shape[:2]
    require(x.ndim == w.ndim and x.ndim >= 3, f"ranks {x.ndim} of the input and {w.ndim} of the filter do not fit")
    require(
        groups > 0 and c == w.shape[0] and c % groups == 0, f"{c} channels for a filter {w.shape} in {groups} groups"
    )
    kernel = _kernel_shape(op, w)
    lengths, window = _transpose_window(op, x, kernel)
    pixels = to_accumulator(x).reshape(n, groups, c // groups, math.prod(x.shape[2:]))
    filters = to_accumulator(w).reshape(groups, c // groups, w.shape[1] * math.prod(kernel))
    columns = np.matmul(filters.transpose(0, 2, 1), pixels)
    columns = columns.reshape(n, groups * w.shape[1], *kernel, *x.shape[2:])
    return _add_bias(fold(columns, lengths, window), bias).astype(x.dtype)


@implements("Col2Im")
def col2im(op: OpNode, x: Array, image_shape: Array, block_shape: Array) -> Array:
    """Add column blocks back into an image."""
    spatial, block = integers(image_shape), tuple(integers(block_shape))
    window = Window.of(op, block, spatial)
    positions = [
        (b + n + a - e) // s + 1
        for b, n, a, e, s in zip(window.before, spatial, window.after, window.extents, window.strides, strict=True)
    ]
    require(x.shape[1] % math.prod(block) == 0, f"{x.shape[1]} columns are not a multiple of the block {block}")
    require(x.shape[2] == math.prod(positions), f"{x.shape[2]} blocks where {math.prod(positions)} fit")
    columns = to_accumulator(x).reshape(len(x), x.shape[1] // math.prod(block), *block, *positions)
    return fold(columns, spatial, window).astype(x.dtype)


@implements("CausalConvWithState")
def causal_conv_with_state(
    op: OpNode, x: Array, w: Array, bias: Array | None = None, past: Array | None = None
) -> tuple[Array, Array]:
    """Depthwise convolution over the past only, with the last inputs handed on as state."""
    require(x.ndim == w.ndim == 3 and w.shape[1] == 1, f"shapes {x.shape} and {w.shape} do not fit")
    activation = op["activation"]
    require(activation in ("none", "silu", "swish"), f"activation '{activation}' is unknown")
    length = w.shape[2]
    state = (*x.shape[:2], length - 1)
    require(past is None or past.shape == state, f"the past state must have the shape {state}")
    history = np.zeros(state, dtype=x.dtype) if past is None else past
    padded = np.concatenate([history, x], axis=2)
    window = Window((length,), (1,), (1,), (0,), (0,))
    y = _add_bias(convolve(to_accumulator(padded), to_accumulator(w), x.shape[1], window), bias)
    if activation != "none":
        y = y / (1 + np.exp(-y))
    return y.astype(x.dtype), padded[:, :, padded.shape[2] - (length - 1) :]


@implements("DeformConv")
def deform_conv(
    op: OpNode, x: Array, w: Array, offset: Array, bias: Array | None = None, mask: Array | None = None
) -> Array:
    """Convolution whose every kernel element samples the input at a learned offset, by linear interpolation.

    Dai et al., "Deformable Convolutional Networks" (2017); with masks, Zhu et al. (2018).
    """
    kernel = _kernel_shape(op, w)
    rank = len(kernel)
    n, c = x.shape[:2]
    window = Window.of(op, kernel, x.shape[2:])
    offset_groups, groups = op["offset_group"], op["group"]
    output = tuple(
        (b + size + a - e) // s + 1
        for b, size, a, e, s in zip(
            window.before, x.shape[2:], window.after, window.extents, window.strides, strict=True
        )
    )
    taps = math.prod(kernel)
    require(offset.shape == (n, offset_groups * taps * rank, *output), f"offsets have the shape {offset.shape}")
    require(c % offset_groups == 0 and c == w.shape[1] * groups, f"{c} channels do not fit the groups")
    shifts = to_accumulator(offset).reshape(n, offset_groups, *kernel, rank, *output)
    coordinates = []
    for axis in range(rank):
        start = np.arange(output[axis]) * window.strides[axis] - window.before[axis]
        tap = np.arange(kernel[axis]) * window.dilations[axis]
        base = tap.reshape([-1 if a == axis else 1 for a in range(rank)] + [1] * rank) + start.reshape(
            [1] * rank + [-1 if a == axis else 1 for a in range(rank)]
        )
        coordinates.append(shifts[(slice(None),) * (2 + rank) + (axis,)] + base)
    images = to_accumulator(x).reshape(n * offset_groups, c // offset_groups, *x.shape[2:])
    points = np.stack(coordinates, axis=-1).reshape(n * offset_groups, taps * math.prod(output), rank)
    sampled = linear_sample(images, points).reshape(n, offset_groups, c // offset_groups, taps, *output)
    if mask is not None:
        sampled = sampled * to_accumulator(mask).reshape(n, offset_groups, 1, taps, *output)
    depth = (c // groups) * taps
    columns = sampled.reshape(n, groups, depth, math.prod(output))
    y = np.matmul(to_accumulator(w).reshape(groups, len(w) // groups, depth), columns)
    return _add_bias(y.reshape(n, len(w), *output), bias).astype(x.dtype)
