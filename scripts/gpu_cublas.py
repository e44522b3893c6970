#!/usr/bin/env python3
"""cuBLASLt on a GPU: whether it is found and right, what its epilogues do with NaN, and times beside our tiles.

    python scripts/gpu_cublas.py [--only right,nan,unaligned,times] [--output FILE]

Products of all kinds that it is asked for (types, operands and results by rows and by columns, batches, bias, residual,
activations) run once by themselves and once from a graph, and are compared with NumPy. Times are those of the tuner,
for linear layers of f16: all ways with a cold matrix of weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from accord.backends.cuda import cublas
from accord.backends.cuda.choices import name_of
from accord.backends.cuda.code import exact_hints
from accord.backends.cuda.contraction import ContractionKernel, Factor, contraction_kernel
from accord.backends.cuda.driver import Device, Graph, device
from accord.backends.cuda.lanes import borrowed
from accord.backends.cuda.library_product import LibraryProduct, ProductLaunch, product_of
from accord.backends.cuda.tile_choice import contraction_choice
from accord.backends.cuda.tuner import Gate, _Bench, _Problem
from accord.backends.epilogue import Extra
from accord.expr.lang import Expr, call, cast, operand
from accord.expr.primitives import max_
from accord.ir.strides import Access

Array = np.ndarray[Any, Any]
TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
NEAR = {"f16": 4e-3, "bf16": 3e-2, "f32": 2e-5}
#: Rows, columns, depth, with a residual, with Gelu by tanh.
LAYERS = (
    (6304, 768, 3072, True, False),
    (4096, 768, 3072, True, False),
    (6304, 768, 768, False, False),
    (6304, 2304, 768, False, False),
    (1024, 768, 3072, True, False),
    (1024, 3072, 768, False, True),
)
ROOM = 32 << 20


class Problem:
    """A product with values.

    Args:
        dtype: What is multiplied.
        stored: Type of the result.
        batch: Number of products; 0: there is no batch axis.
        turned: For A, B and the result, whether neighbours lie along the rows' axis.
        kind: Of the epilogue.
        precision: How float32 is multiplied.
    """

    def __init__(
        self,
        dtype: str,
        stored: str,
        sizes: tuple[int, int, int] = (200, 136, 264),
        batch: int = 0,
        turned: tuple[bool, bool, bool] = (False, False, False),
        kind: str = "bias",
        precision: str = "ieee",
    ) -> None:
        m, n, k = sizes
        self.name = f"{dtype} -> {stored} {m}x{n}x{k} batch {batch} turned {turned} {kind} {precision}"
        self.stored, self.kind = stored, kind
        rng = np.random.default_rng(0)
        shapes = ((m, k), (k, n), (m, n))
        groups = (batch,) if batch else ()

        def access(rows: int, columns: int, turn: bool) -> Access:
            steps = (1, rows) if turn else (columns, 1)
            return Access((rows * columns, *steps) if batch else steps)

        def values(rows: int, columns: int, turn: bool, own: str, many: int) -> Array:
            made = rng.standard_normal((max(many, 1), *((columns, rows) if turn else (rows, columns)))) / 2
            return made.astype(TYPES[own])

        self.turned = turned
        a, b, out = (access(r, c, t) for (r, c), t in zip(shapes, turned, strict=True))
        self.a = values(m, k, turned[0], dtype, batch)
        self.b = values(k, n, turned[1], dtype, batch)
        self.r = values(m, n, turned[2], stored, batch)
        self.bias = (rng.standard_normal(m if turned[2] else n)).astype(TYPES[stored])
        self.out = np.zeros_like(self.r)
        over = (1, 0) if turned[2] else (0, 1)
        bias = Extra(stored, Access((0, *over) if batch else over))
        expr, extras = epilogue(kind, stored, bias, Extra(stored, out))
        self.extras = [self.bias if e is bias else self.r for e in extras]
        self.kernel, dims = contraction_kernel(
            groups, (m,), (n,), (k,), Factor(dtype, a), Factor(dtype, b), out, expr, extras, precision=precision
        )
        self.sizes = tuple(int(str(d)) for d in dims)

    def expected(self) -> Array:
        """In float64."""
        ta, tb, tout = self.turned
        a, b, r = (x.astype(np.float64) for x in (self.a, self.b, self.r))
        a, b, r = (x.swapaxes(1, 2) if t else x for x, t in ((a, ta), (b, tb), (r, tout)))
        bias = self.bias.astype(np.float64)
        bias = bias[:, None] if tout else bias
        with np.errstate(invalid="ignore"):
            sums = a @ b
            wide = {
                "sum": lambda: sums * 0.5,
                "bias": lambda: sums + bias,
                "relu": lambda: np.maximum(sums + bias, 0),
                "gelu": lambda: gelu(sums + bias),
                "residual": lambda: sums + bias + r,
                "residual relu": lambda: np.maximum(sums + bias + r, 0),
            }[self.kind]()
        return wide.swapaxes(1, 2) if tout else wide


def gelu(x: Array) -> Array:
    """By tanh."""
    found: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return found


def epilogue(kind: str, stored: str, bias: Extra, residual: Extra) -> tuple[Expr, list[Extra]]:
    """What is stored, and its extras."""
    total = operand(0, "f32")
    if kind == "sum":
        return cast(total * 0.5, stored), []
    total = total + cast(operand(1, stored), "f32")
    extras = [bias]
    if kind.startswith("residual"):
        total = total + cast(operand(2, stored), "f32")
        extras.append(residual)
    if kind.endswith("relu"):
        total = max_(0.0, total)
    if kind == "gelu":
        total = call("gelu_tanh", total)
    return cast(total, stored), extras


def started(
    gpu: Device, p: Problem, shift: int = 0, count: int = 3, *, graphs: bool = True
) -> Iterator[tuple[str, Array]]:
    """What each algorithm gives, by itself and from a graph.

    Args:
        gpu: The device.
        p: The problem.
        shift: Bytes by which A lies behind where memory was allocated.
        count: Algorithms that are tried.
        graphs: Also from graphs.
    """
    product = product_of(p.kernel, p.sizes)
    assert product is not None, f"{p.name} is none of the library's"
    ways = cublas.algorithms(gpu, product, ROOM, count)
    if not ways:
        yield "no algorithm", np.zeros(0)
    with borrowed(gpu) as lanes:
        stream = lanes.origin
        arrays = [p.a, p.b, *p.extras, p.out]
        places = [gpu.allocate(x.nbytes + 256) for x in arrays] + [gpu.allocate(ROOM)]
        shifts = [shift, *[0] * len(arrays)]
        for x, place, s in zip(arrays, places, shifts, strict=False):
            gpu.to_device(place + s, np.ascontiguousarray(x).ctypes.data, x.nbytes, stream)
        table = np.array([place + s for place, s in zip(places, shifts, strict=True)], np.int64)
        for way in ways:
            item = cublas.ProductCall(gpu, ProductLaunch((), 1, product, way.algorithm, way.workspace), table)
            item.start(stream)
            yield way.name, fetched(gpu, p, places[-2], stream)
            if graphs:
                with gpu.capturing(stream) as made:
                    item.start(stream)
                graph = Graph(gpu, made[0], [item])
                gpu.replay(graph.handle, stream)
                yield f"{way.name} in a graph", fetched(gpu, p, places[-2], stream)
        gpu.wait(stream)
        for place in places:
            gpu.free(place)


def fetched(gpu: Device, p: Problem, place: int, stream: int) -> Array:
    """The result, which is zero afterwards."""
    found = np.zeros_like(p.out)
    gpu.to_host(found.ctypes.data, place, found.nbytes, stream)
    gpu.wait(stream)
    zero = np.zeros_like(found)
    gpu.to_device(place, zero.ctypes.data, zero.nbytes, stream)
    gpu.wait(stream)
    return found


def kinds() -> Iterator[Problem]:
    """All that is asked for."""
    corners = list(itertools.product((False, True), repeat=3))
    for dtype, turned in itertools.product(TYPES, corners):
        yield Problem(dtype, dtype, turned=turned, kind="residual relu")
        yield Problem(dtype, dtype, turned=turned, batch=3)
    for dtype, kind in itertools.product(TYPES, ("sum", "bias", "relu", "gelu", "residual", "residual relu")):
        if (dtype, kind) != ("f32", "gelu"):
            yield Problem(dtype, dtype, kind=kind)
        if dtype != "f32" and kind != "gelu":
            yield Problem(dtype, "f32", kind=kind)
    for sizes in ((1, 768, 768), (33, 65, 17), (16, 64, 8192)):
        yield Problem("f16", "f16", sizes, kind="residual")
    yield Problem("f16", "f16", (768, 1, 768), kind="sum")
    yield Problem("f32", "f32", kind="relu", precision="tf32")


def right(gpu: Device) -> list[str]:
    """Compare results with NumPy; what is wrong."""
    wrong = []
    for p in kinds():
        want = p.expected()
        for name, got in started(gpu, p):
            near = 2e-3 if "tf32" in p.name else NEAR[p.stored]
            if not got.size:
                error = math.inf
            else:
                error = float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))
            line = f"{p.name}: {name}: {error:.1e}"
            if not error <= near:
                wrong.append(line)
            print(("WRONG " if not error <= near else "      ") + line)
    return wrong


def special(gpu: Device) -> list[str]:
    """What becomes of a NaN, and of large sums, in each epilogue; epilogues that lose a NaN are told."""
    lost = []
    for kind in ("bias", "relu", "gelu", "residual"):
        p = Problem("f16", "f16", kind=kind)
        p.a[0, -1, -1] = np.nan
        p.a[0, 0, :], p.b[0, :, 0] = 60000, -1
        for name, got in started(gpu, p, graphs=False):
            keeps = bool(np.isnan(got[0, -1].astype(np.float32)).all())
            nan = "stays" if keeps else "is LOST"
            print(f"      {kind}: {name}: NaN {nan}; of a sum of -1.6e7 it makes {got[0, 0, 0]}")
            if not keeps:
                lost.append(f"{kind}: {name}")
    return lost


def unaligned(gpu: Device) -> list[str]:
    """Memory that begins 2 bytes behind: another algorithm is found, and is right."""
    p = Problem("f16", "f16", kind="residual")
    want = p.expected()
    wrong = []
    for name, got in started(gpu, p, shift=2, count=1):
        error = float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))
        print(f"      A two bytes behind: {name}: {error:.1e}")
        if not error <= NEAR["f16"]:
            wrong.append(f"unaligned: {name}")
    return wrong


def layer(m: int, n: int, k: int, *, residual: bool, activated: bool) -> tuple[ContractionKernel, tuple[int, ...]]:
    """A linear layer with its weights as PyTorch has them."""
    kind = "residual" if residual else "gelu" if activated else "bias"
    expr, extras = epilogue(kind, "f16", Extra("f16", Access((0, 1))), Extra("f16", Access((n, 1))))
    kernel, dims = contraction_kernel(
        (), (m,), (n,), (k,), Factor("f16", Access((k, 1))), Factor("f16", Access((1, k))), Access((n, 1)), expr, extras
    )
    return kernel, tuple(int(str(d)) for d in dims)


def times(gpu: Device) -> list[dict[str, Any]]:
    """Microseconds of all ways, as the tuner measures them, with room for any workspace; "room" is what plans give."""
    rows = []
    for m, n, k, residual, activated in LAYERS:
        kernel, dims = layer(m, n, k, residual=residual, activated=activated)
        choice = contraction_choice(kernel, exact_hints(dims), (1,), None, (*dims, 0))
        assert choice is not None and choice.product is not None
        planned, choice = choice.room, replace(choice, room=ROOM)
        problem = _Problem(choice)
        with _Bench(gpu, choice.operands()) as bench:
            outcome = bench.measured(problem, Gate(), lambda: False)
        assert outcome is not None
        library = {name_of(w) for w in choice.ways() if isinstance(w, LibraryProduct)}
        us = {name: round(1e6 * s, 2) for name, s in sorted(outcome.seconds.items(), key=lambda pair: pair[1])}
        row = {
            "layer": f"{m}x{n}x{k}" + " residual" * residual + " gelu" * activated,
            "room": planned,
            "library": min((us[name] for name in library & us.keys()), default=None),
            "ours": min((us[name] for name in us.keys() - library), default=None),
            "way": name_of(outcome.way),
            "us": us,
            "refused": dict(outcome.refused),
        }
        rows.append(row)
        print("      " + json.dumps(row))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Look, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="right,nan,unaligned,times")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    gpu = device()
    clock = time.perf_counter()
    lacking = cublas.lacking(gpu)
    print(f"{cublas.installed(gpu.driver_version)}: {lacking or 'usable'}, after {time.perf_counter() - clock:.3f} s")
    if lacking:
        return 1
    data: dict[str, Any] = {"gpu": gpu.name, "library": cublas.identity(gpu.driver_version)}
    parts = {"right": right, "nan": special, "unaligned": unaligned, "times": times}
    for name in options.only.split(","):
        print(name)
        data[name] = parts[name](gpu)
    if options.output:
        options.output.write_text(json.dumps(data, indent=1), encoding="utf-8")
    wrong = data.get("right", []) + data.get("unaligned", [])
    print(f"{len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
