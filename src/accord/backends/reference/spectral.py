"""Fourier transforms, window functions and the mel scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import normal_axis, numpy_dtype, require, require_room, scalar, to_double, widen


def _as_complex(x: Array) -> Array:
    """Complex numbers from a last axis of length 1 (real) or 2 (real and imaginary)."""
    require(x.ndim >= 2 and x.shape[-1] in (1, 2), f"a last axis of length 1 or 2 is needed, found {x.shape}")
    values = widen(x)
    return values[..., 0] + (0 if x.shape[-1] == 1 else 1j * values[..., 1])


def _as_pairs(x: Array, dtype: Any) -> Array:
    return np.stack([x.real, x.imag], axis=-1).astype(dtype)


@implements("DFT")
def dft(op: OpNode, x: Array, length: Array | None = None, axis: Array | None = None) -> Array:
    """Discrete Fourier transform along an axis, forward or inverse, one- or two-sided."""
    default = op["axis"] if op.version < 20 else -2
    along = normal_axis(int(scalar(axis)) if axis is not None else default, x.ndim)
    require(along < x.ndim - 1, "the last axis holds real and imaginary parts and cannot be transformed")
    # In the input's own precision: of sums that cancel, the operator's conformance cases expect float32's remainder.
    signal = _as_complex(x)
    size = None if length is None else int(scalar(length))
    require(size is None or size > 0, f"a transform of length {size}")
    require_room([size or n if number == along else n for number, n in enumerate(x.shape)], 16)
    if op["inverse"]:
        if op["onesided"]:
            require(x.shape[-1] == 2, "a one-sided inverse needs complex input")
            count = 2 * (x.shape[along] - 1) if size is None else size
            return np.fft.irfft(signal, n=count, axis=along)[..., np.newaxis].astype(x.dtype)
        return _as_pairs(np.fft.ifft(signal, n=size, axis=along), x.dtype)
    if op["onesided"]:
        require(x.shape[-1] == 1, "a one-sided transform needs real input")
        return _as_pairs(np.fft.rfft(signal.real, n=size, axis=along), x.dtype)
    return _as_pairs(np.fft.fft(signal, n=size, axis=along), x.dtype)


@implements("STFT")
def stft(
    op: OpNode, x: Array, frame_step: Array, window: Array | None = None, frame_length: Array | None = None
) -> Array:
    """Fourier transforms of windowed frames of a signal (batch, length, 1 or 2)."""
    require(x.ndim == 3, f"a signal of rank 3 is needed, found {x.ndim}")
    step = int(scalar(frame_step))
    default = x.shape[1] if window is None else window.shape[0]
    size = default if frame_length is None else int(scalar(frame_length))
    require(window is None or window.shape == (size,), f"a window for frames of {size} elements is needed")
    require(step > 0 and 0 < size <= x.shape[1], f"frames of {size} by {step} do not fit {x.shape[1]} samples")
    signal = _as_complex(to_double(x))
    starts = np.arange((x.shape[1] - size) // step + 1) * step
    frames = signal[:, starts[:, np.newaxis] + np.arange(size)]
    if window is not None:
        frames = frames * widen(window)
    if op["onesided"]:
        require(x.shape[2] == 1, "a one-sided transform needs a real signal")
        return _as_pairs(np.fft.rfft(frames.real, axis=-1), x.dtype)
    return _as_pairs(np.fft.fft(frames, axis=-1), x.dtype)


#: Name → coefficients of the cosine terms.
_WINDOWS: dict[str, tuple[float, ...]] = {
    "HannWindow": (0.5, 0.5),
    "HammingWindow": (25 / 46, 21 / 46),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@implements(*_WINDOWS)
def window_function(op: OpNode, size: Array) -> Array:
    """Sum of cosines over one period, with or without its end point."""
    count = int(scalar(size))
    require_room((count,))
    period = count if op["periodic"] else count - 1
    angle = 2 * np.pi * np.arange(count) / max(period, 1)
    values = sum((-1) ** order * factor * np.cos(order * angle) for order, factor in enumerate(_WINDOWS[op.op_type]))
    result = np.ones(1) if count == 1 else np.asarray(values)
    return result.astype(numpy_dtype(op["output_datatype"]))


@implements("MelWeightMatrix")
def mel_weight_matrix(
    op: OpNode, bins: Array, dft_length: Array, sample_rate: Array, lower: Array, upper: Array
) -> Array:
    """Triangular filters at equal distances on the mel scale, as a matrix from spectrum to mel bins."""
    count, length, rate = (int(scalar(v)) for v in (bins, dft_length, sample_rate))
    require_room((length // 2 + 1, count + 2))
    low, high = (2595 * np.log10(1 + float(scalar(v)) / 700) for v in (lower, upper))
    mels = low + np.arange(count + 2) * (high - low) / (count + 2)
    edges = np.floor((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate).astype(np.int64)
    spectrum = np.arange(length // 2 + 1)
    weights = np.zeros((len(spectrum), count))
    for number in range(count):
        left, centre, right = (int(edge) for edge in edges[number : number + 3])
        rising = (spectrum >= left) & (spectrum <= centre)
        falling = (spectrum >= centre) & (spectrum < right)
        if centre > left:
            weights[rising, number] = (spectrum[rising] - left) / (centre - left)
        elif centre < len(spectrum):
            weights[centre, number] = 1
        if right > centre:
            weights[falling, number] = (right - spectrum[falling]) / (right - centre)
    return weights.astype(numpy_dtype(op["output_datatype"]))
