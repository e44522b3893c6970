"""Shape rules of signal processing: Fourier transforms, window functions, mel filters."""

from __future__ import annotations

import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference
from accord.ops.shapes.common import axis_of, dtype_attr, elements, int_attr, operator, rank_of, same_dtype, same_size

FLOAT = ir.DataType.FLOAT


def _scalar(n: Inference, index: int) -> DimLike | None:
    """Integer content of a scalar input, None if absent or unknown."""
    if not n.has(index):
        return None
    rank_of(n, index, 0, 1)
    items = elements(n.tensor(index))
    return items[0] if items is not None and len(items) == 1 else None


def _length(n: Inference, index: int) -> DimLike:
    """A length that input ``index`` holds; a new symbol where it is not known."""
    size = _scalar(n, index)
    if isinstance(size, int):
        n.require(size >= 0, "negative length", expected="0 or more", found=size, value=index)
    return n.fresh() if size is None else size


@operator("BlackmanWindow", "HammingWindow", "HannWindow")
def window(n: Inference) -> list[Fact]:
    """A vector of ``size`` entries."""
    return [TensorFact(dtype_attr(n, "output_datatype", FLOAT), (_length(n, 0),))]


@operator("MelWeightMatrix", inputs=5)
def mel_weight_matrix(n: Inference) -> list[Fact]:
    """``[dft_length // 2 + 1, num_mel_bins]``."""
    bins, length = _length(n, 0), _length(n, 1)
    return [TensorFact(dtype_attr(n, "output_datatype", FLOAT), (D.floordiv(length, 2) + 1, bins))]


@operator("DFT")
def dft(n: Inference) -> list[Fact]:
    """The input's shape with the transform's length on ``axis`` and real and imaginary part on the last axis."""
    x = n.tensor(0)
    shape = rank_of(n, 0, least=2)
    onesided, inverse = bool(int_attr(n, "onesided", 0)), bool(int_attr(n, "inverse", 0))
    if shape is None:
        return [TensorFact(x.dtype, None)]
    parts = shape[-1]
    n.require(parts in (1, 2) or not isinstance(parts, int), "the last axis is 1 or 2", expected="1 or 2", found=parts)
    given = n.has(2)
    axis = _scalar(n, 2) if given else int_attr(n, "axis", -2 if n.opset >= 20 else 1)
    if not isinstance(axis, int):
        return [TensorFact(x.dtype, (*n.fresh_shape(len(shape) - 1), 1 if onesided and inverse else 2))]
    axis = axis_of(n, axis, len(shape))
    n.require(axis != len(shape) - 1, "the last axis holds the parts", expected="another axis", found=axis)
    if n.has(1):
        length = _length(n, 1)
    elif onesided and inverse:
        length = (shape[axis] - 1) * 2
    else:
        length = shape[axis]
    out = list(shape)
    out[axis] = D.floordiv(length, 2) + 1 if onesided and not inverse else length
    out[-1] = 1 if onesided and inverse else 2
    return [TensorFact(x.dtype, tuple(out))]


@operator("STFT", inputs=2)
def stft(n: Inference) -> list[Fact]:
    """``[batch, frames, bins, 2]``."""
    dtype = same_dtype(n, 0, 2)
    signal = rank_of(n, 0, 2, 3)
    step = _scalar(n, 1)
    n.require(not isinstance(step, int) or step > 0, "frame_step must be positive", expected="over 0", found=step)
    window_shape = rank_of(n, 2, 1) if n.has(2) else None
    length: DimLike
    if n.has(3):
        length = _length(n, 3)
        if window_shape is not None:
            length = same_size(n, length, window_shape[0], "lengths of window and frame", value=2)
    elif n.has(2):
        length = n.fresh() if window_shape is None else window_shape[0]
    else:
        length = n.fresh() if signal is None else signal[1]
    bins = D.floordiv(length, 2) + 1 if int_attr(n, "onesided", 1) else length
    if signal is None or step is None:
        frames: DimLike = n.fresh()
    else:
        room = signal[1] - length
        n.require(
            not isinstance(room, int) or room >= 0,
            "the frame is longer than the signal",
            expected=signal[1],
            found=length,
        )
        frames = D.floordiv(room, step) + 1
    return [TensorFact(dtype, (n.fresh() if signal is None else signal[0], frames, bins, 2))]
