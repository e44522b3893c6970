"""Contractions in Triton's interpreter, beside NumPy in float64."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
from triton_harness import NUMPY, function_of, memory

from accord.backends.cuda.code import Binary, CudaLaunch, KernelText, Variant, binary_of, exact_hints
from accord.backends.cuda.contraction import ContractionKernel
from accord.backends.cuda.packing import Packing, PackKernel, pack_launch
from accord.backends.cuda.tiles import Tile, launches, text_of, workspace
from accord.ir import dims as D
from accord.ir.strides import Access
from accord.kernels.interpreter import interpret_elsewhere

Array = np.ndarray[Any, Any]


class Tensor:
    """Memory of its own, walked by an access that was drawn: any order of axes, gaps, an offset, repeated axes.

    Args:
        rng: For contents, and for how it lies.
        dtype: Of elements.
        shape: Over all axes.
        repeated: Axes with stride 0.
        order: Axes from the outermost in memory; None: drawn.
        gap: Elements between lines, and before the first.
    """

    def __init__(self, rng, dtype: str, shape, repeated=(), order=None, gap: int = 0) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        order = rng.permutation(len(shape)) if order is None else order
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            if axis not in repeated:
                strides[axis] = step
                step = step * max(1, shape[axis]) + gap
        self.access = Access(tuple(int(s) for s in strides), gap)
        reach = gap + 1 + sum(s * max(0, n - 1) for s, n in zip(strides, shape, strict=True))
        if NUMPY[dtype] in (np.int8, np.uint8):
            self.memory = rng.integers(np.iinfo(NUMPY[dtype]).min, 128, reach).astype(NUMPY[dtype])
        else:
            self.memory = rng.standard_normal(reach).astype(NUMPY[dtype])

    @property
    def values(self) -> Array:
        """Over its shape."""
        item = self.memory.itemsize
        strides = [s * item for s in self.access.strides]
        return np.lib.stride_tricks.as_strided(self.memory[self.access.offset :], self.shape, strides)


def run(folder: Path, kernel: ContractionKernel, sizes: list[int], tile: Tile, tensors: list[Tensor]) -> None:
    """Run a kernel; ``tensors`` are in the order of its pointers."""
    parts = np.full(workspace(kernel, tile, sizes), 0xFF, np.uint8)
    pointers = [*(memory(t.memory) for t in tensors), memory(parts.view(NUMPY[kernel.pointers[-1]]))]
    calls = []
    for part, launch in zip((kernel, kernel.parts), launches(kernel, tile, sizes), strict=True):
        if launch.tasks:
            calls.append(called(folder, kernel, part.symbol, launch, pointers))
    interpret_elsewhere(calls, [*(t.memory for t in tensors), parts], kernel.symbol)


def called(folder: Path, kernel: KernelText, entry: str, launch: CudaLaunch, pointers: list[Any]) -> tuple[Any, ...]:
    """A function of a kernel's module, its arguments, and its programs."""
    function = function_of(folder, kernel.symbol, kernel.text(), entry)
    given = iter([*pointers, *launch.params])
    constants = dict(launch.constants)
    return function, {n: constants[n] if n in constants else next(given) for n in function.arg_names}, launch.grid


def pack(folder: Path, kernel: PackKernel, sizes: list[int], image: Tensor, packed: Tensor) -> None:
    """Pack an image."""
    launch = pack_launch(kernel, exact_hints(sizes), sizes)
    if launch.tasks:
        call = called(folder, kernel, kernel.symbol, launch, [memory(image.memory), memory(packed.memory)])
        interpret_elsewhere([call], [image.memory, packed.memory], kernel.symbol)


def packed(folder: Path, packing: Packing, image: Tensor, weights: Array) -> list[Tensor]:
    """A packed image, with nothing but NaN where nothing was written, and packed weights."""
    rng = np.random.default_rng(0)
    kernel, moves = packing.image_kernel(image.access)
    shape = evaluated(packing.sizes)
    moved = Tensor(rng, image.dtype, shape, order=range(len(shape)))
    moved.memory[...] = np.nan
    pack(folder, kernel, evaluated(moves), image, moved)
    values = packing.weights(weights)
    filled = Tensor(rng, image.dtype, values.shape, order=range(values.ndim))
    filled.values[...] = values
    return [moved, filled]


def compiled(kernel: ContractionKernel, sizes: list[int], tile: Tile, architecture: int) -> list[Binary]:
    """What a launch needs, compiled for an architecture with all pointers aligned."""
    started = zip((text_of(kernel, tile, sizes), kernel.parts), launches(kernel, tile, sizes), strict=True)
    return [binary_of(Variant.of(k, launch, aligned=True), architecture) for k, launch in started if launch.tasks]


def evaluated(dims, env=None) -> list[int]:
    return [D.evaluate(d, env or {}) for d in dims]


def product(a: Array, b: Array, groups) -> Array:
    """The sums, in float64 or in integers; ``groups`` are the shapes of batch, rows, columns and depth."""
    batch, rows, columns, depth = groups
    wide = np.int64 if a.dtype.kind in "iu" else np.float64
    left = a.astype(wide).reshape(math.prod(batch), math.prod(rows), math.prod(depth))
    right = b.astype(wide).reshape(math.prod(batch), math.prod(depth), math.prod(columns))
    return (left @ right).reshape(*batch, *rows, *columns)


def convolution(x: Array, w: Array, steps, dilations, pads, outputs, groups: int) -> Array:
    """Images [N, C, *space] and weights [M, C / groups, *taps] in float64, tap by tap."""
    taps = w.shape[2:]
    share, columns = w.shape[1], w.shape[0] // groups
    result = np.zeros((x.shape[0], w.shape[0], *outputs))
    for tap in itertools.product(*map(range, taps)):
        places = [
            np.arange(n) * step + t * dilation - pad
            for n, step, t, dilation, pad in zip(outputs, steps, tap, dilations, pads, strict=True)
        ]
        inside = [(p >= 0) & (p < size) for p, size in zip(places, x.shape[2:], strict=True)]
        if 0 in x.shape[2:]:
            continue
        picked = x.astype(np.float64)
        for axis, (p, size) in enumerate(zip(places, x.shape[2:], strict=True)):
            picked = picked.take(np.clip(p, 0, size - 1), 2 + axis)
        for axis, there in enumerate(inside):
            picked = picked * there.reshape(-1, *[1] * (len(inside) - 1 - axis))
        weights = w[(..., *tap)].astype(np.float64)
        for g in range(groups):
            own = slice(g * columns, (g + 1) * columns)
            result[:, own] += np.einsum("nc...,mc->nm...", picked[:, g * share : (g + 1) * share], weights[own])
    return result
