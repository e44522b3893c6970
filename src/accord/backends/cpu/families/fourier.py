"""Fourier transforms, window functions and the mel scale."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from accord.backends.butterflies import factors
from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.fourier import (
    FourierPlaces,
    Setting,
    fourier_phase,
    fourier_scratch,
    inner_length,
    needed_radices,
)
from accord.backends.cpu.packing import joined
from accord.backends.cpu.pointwise import pointwise_phase
from accord.backends.cpu.specialised import SpecialisedKernel
from accord.backends.cpu.streams import Kind
from accord.backends.cpu.tabulated import tabulated_phase
from accord.backends.loops.nest import merge_axes
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Array, Kernel, NativeKernel, Phase
from accord.backends.spectral import (
    WINDOWS,
    Transform,
    dft_is_known,
    dft_of,
    mel_edge,
    mel_weight,
    size_in,
    stft_is_known,
    stft_of,
    window_value,
)
from accord.backends.view import NodeView
from accord.backends.waves import cos_turns, sin_turns
from accord.expr.lang import FLOATS, bits, cast, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import Reason
from accord.ir.strides import Access

__all__ = ["any_strides", "dft", "mel_weight_matrix", "stft", "window"]

#: A length with a prime factor above this is done by a convolution.
_LARGE_FACTOR = 31


@selects(*WINDOWS)
def window(view: NodeView) -> Kernel | Reason:
    """A sum of cosines over one period, with or without its end point."""
    out = known(view.output(), "the output")
    if isinstance(out, Reason):
        return out
    count = size_in(view, 0)
    if count is None:
        return SpecialisedKernel(view, window)
    expr = window_value(view, operand(0, "f64"), operand(1, "f64"))
    phase = tabulated_phase(cast(expr, out[1]), count, (count,), (), view.output_access().offset, (0,))
    return NativeKernel(f"window {out[1]}", (phase,), ())


@selects("MelWeightMatrix")
def mel_weight_matrix(view: NodeView) -> Kernel | Reason:
    """Triangular filters at equal distances on the mel scale: their edges, then each element from three of them."""
    out = known(view.output(), "the output")
    if isinstance(out, Reason):
        return out
    bins, length = size_in(view, 0), size_in(view, 1)
    if bins is None or length is None:
        return SpecialisedKernel(view, mel_weight_matrix)
    dtypes = []
    for i in (2, 3, 4):
        found = known(view.tensor(i), f"input {i}")
        if isinstance(found, Reason):
            return found
        dtypes.append(found[1])
    rows = D.floordiv(length, 2) + 1
    edges = tabulated_phase(
        mel_edge(*(operand(i, "f64") for i in range(6))), bins + 2, (bins, length), dtypes, 0, (0, 1, 2, 4)
    )
    index = tabulated_phase(operand(0, "f64"), rows, (), (), bins + 2, (4,))
    inputs = [("f64", Access((1, 0), bins + 2)), *(("f64", Access((0, 1), k)) for k in range(3))]
    weights = pointwise_phase(
        (rows, bins),
        inputs,
        [(out[1], view.output_access())],
        [cast(mel_weight(*(operand(i, "f64") for i in range(4))), out[1])],
        (4, 4, 4, 4, 3),
    )
    return NativeKernel(f"mel {out[1]}", (edges, index, weights), (2, 3, 4), workspace=(bins + 2 + rows) * 8)


# transforms


@arranges("DFT", "STFT")
def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


@selects("DFT")
def dft(view: NodeView) -> Kernel | Reason:
    """Along one axis, forward or inverse, one- or two-sided."""
    if not dft_is_known(view):
        return SpecialisedKernel(view, dft)
    t = dft_of(view)
    return t if isinstance(t, Reason) else _kernel(t)


@selects("STFT")
def stft(view: NodeView) -> Kernel | Reason:
    """Transforms of windowed frames: the input is walked with one more axis, the frames."""
    if not stft_is_known(view):
        return SpecialisedKernel(view, stft)
    t = stft_of(view)
    return t if isinstance(t, Reason) else _kernel(t)


def _kernel(t: Transform) -> Kernel | Reason:
    found = known(t.view.tensor(0), "the input")
    if isinstance(found, Reason):
        return found
    stored = found[1]
    if stored not in FLOATS:
        return Reason("only floating-point signals")
    if isinstance(t.length, int) and t.length < 1:
        return Reason(f"a transform of length {t.length}")
    view, dtype = t.view, "f64" if stored == "f64" else "f32"
    inverse = bool(view.attr("inverse", 0))
    onesided = bool(view.attr("onesided", 0 if view.node.op_type == "DFT" else 1))
    hermitian = onesided and inverse
    halves = t.parts == 1 and not inverse and isinstance(t.length, int) and t.length % 2 == 0
    batch, accesses, _ = merge_axes((*t.batch, 1, 1), [_batch(t.x), _batch(t.out)])
    if not batch:
        batch, accesses = (1,), [Access((0,)), Access((0,))]
    parts_out = 1 if hermitian else 2
    ways = [
        _way(t.x, accesses[0], t.parts),
        _way(t.out, accesses[1], parts_out),
    ]
    points = t.length // 2 if halves and isinstance(t.length, int) else t.length
    chirp = isinstance(points, int) and t.table_input is not None and max(factors(points), default=1) > _LARGE_FACTOR
    setting = Setting(
        Kind(stored, t.parts == 2, halves, ways[0]),
        Kind(stored, parts_out == 2, False, ways[1]),
        dtype,
        t.window is not None,
        inverse,
        hermitian,
        halves and not onesided,
        chirp,
        (),
        len(batch) - 1,
    )
    setting = dataclasses.replace(setting, radices=needed_radices(setting, t.length))
    reads = [0, *([2] if t.window is not None else [])]
    constants: dict[int, Array] = {}
    phases: list[Phase] = []
    scratch_operand = len(reads) + 1
    table_size: DimLike = 0
    if isinstance(t.length, int) and t.table_input is not None:
        constants[t.table_input] = _table(t.length, points if isinstance(points, int) and chirp else 0, dtype)
        reads.append(t.table_input)
        table_operand = len(reads) - 1
        scratch_operand += 1
    else:
        table_size = 2 * t.length
        table_operand = scratch_operand
        turns = operand(0, "f64") / operand(1, "f64")
        for number, expr in enumerate((cos_turns(turns), -sin_turns(turns))):
            phases.append(
                tabulated_phase(cast(expr, dtype), t.length, (t.length,), (), t.length * number, (scratch_operand,))
            )
    places = FourierPlaces(
        batch,
        Access((*accesses[0].strides, *t.x.strides[-2:]), t.x.offset),
        Access((*accesses[1].strides, *t.out.strides[-2:]), t.out.offset),
        Access((0,)) if t.window is None else t.window,
        0,
        table_size,
    )
    operands = (*range(len(reads) - len(constants)), table_operand, len(reads), scratch_operand)
    phases.append(fourier_phase(setting, (t.length, t.along, t.bins), places, operands))
    return NativeKernel(
        f"fourier {view.node.op_type} {stored}",
        tuple(phases),
        tuple(reads),
        constants=constants,
        workspace=(table_size + fourier_scratch(setting, t.length, t.bins)) * (bits(dtype) // 8),
        flops=_flops(t),
    )


def _flops(t: Transform) -> DimLike:
    """The usual count, 5 N log2 N for complex numbers and half of it for real ones; 0 where N is not known."""
    if not isinstance(t.length, int):
        return 0
    return D.product(t.batch) * int(2.5 * t.parts * t.length * math.log2(t.length))


def _batch(access: Access) -> Access:
    """The batch axes, and two more that are merged away."""
    return Access((*access.strides[:-2], 0, 0))


def _way(access: Access, batch: Access, parts: int) -> str:
    """How a stream lies, see :class:`accord.backends.cpu.streams.Kind`."""
    along, part = access.strides[-2:]
    if parts == 2 and part != 1:
        return "any"
    if along == parts:
        return "stream"
    return "lanes" if batch.strides[-1] == parts else "any"


def _table(length: int, points: int, dtype: str) -> Array:
    """Cosines and negative sines of the fractions of a turn; with ``points`` also what a chirp needs."""
    real = np.float32 if dtype == "f32" else np.float64
    parts = [_angles(np.arange(length), length)]
    if points:
        inner = inner_length(points)
        squares = np.array([n * n % (2 * points) for n in range(points)], np.int64)
        chirp = _angles(squares, 2 * points)
        conjugate = np.zeros(inner, np.complex128)
        conjugate[:points] = chirp.conj()
        conjugate[inner - points + 1 :] = chirp[1:][::-1].conj()
        parts += [_angles(np.arange(inner), inner), np.fft.fft(conjugate) / inner, chirp]
    return joined([half.astype(real) for part in parts for half in (part.real, part.imag)])


def _angles(count: Array, whole: int) -> Array:
    """``exp(-2 pi i count / whole)``, exact at quarters of a turn."""
    quarters = (4 * count + whole // 2) // whole
    rest = (4 * count - quarters * whole) * (math.pi / 2 / whole)
    turned = np.array([1, -1j, -1, 1j])[quarters % 4]
    return np.asarray(turned * (np.cos(rest) - 1j * np.sin(rest)))
