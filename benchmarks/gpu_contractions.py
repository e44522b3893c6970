"""Contractions and convolutions in Triton beside cuBLAS and cuDNN (through PyTorch), on the GPU of this machine.

``python benchmarks/gpu_contractions.py benchmarks/results/contractions-h200.json [--only PATTERN] [--tiles 6]``

Every tile of ``candidates`` is compiled first, on all cores; each result is compared with a product in float64 (a
convolution in float32), then timed as the median over replays of a CUDA graph whose launches rotate among sets of
inputs that together exceed the cache. Times of one problem are from one process, one after the other.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime as dt
import json
import math
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gpu_timing import median_us
from machine import invocation, machine

from accord.backends.cuda.code import CudaLaunch, KernelText, Variant, binary_of
from accord.backends.cuda.contraction import ContractionKernel, Factor, contraction_kernel
from accord.backends.cuda.convolution import Convolution
from accord.backends.cuda.tiles import Device, Tile, candidates, launches, text_of, workspace
from accord.backends.epilogue import Extra
from accord.errors import CompileError
from accord.expr.lang import Expr, call, cast, const, operand
from accord.ir.strides import Access

LAUNCHES, REPLAYS = 24, 7
#: Bytes that rotating sets of inputs take together, and how many sets at most.
ROTATED, SETS = 200 << 20, 24
NUMPY = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


@dataclass
class Problem:
    """A contraction, and what makes its tensors.

    Attributes:
        name: What it is.
        kernel: Of a pattern.
        sizes: Of its launch.
        flops: Of one.
        shapes: Of A, B, the bias, and the result, as PyTorch has them; the result of images has channels last.
        residual: Something is added to the result.
        options: Step and padding of a convolution; None of a product.
        activation: After the bias.
        count: How often a model has it.
    """

    name: str
    kernel: ContractionKernel
    sizes: tuple[int, ...]
    flops: int
    shapes: tuple[tuple[int, ...], ...]
    options: tuple[int, int] | None
    activation: str
    count: int = 1
    residual: bool = False


def epilogue(dtype: str, activation: str, *, residual: bool = False) -> Expr:
    """Bias, then the activation, then what is added, then the type in memory."""
    total = operand(0, "f32") + cast(operand(1, dtype), "f32")
    if activation == "gelu":
        total = call("gelu_erf", total)
    if activation == "relu":
        total = call("max", total, const(0.0, "f32"))
    if residual:
        total = total + cast(operand(2, dtype), "f32")
    return cast(total, dtype)


def product(m: int, n: int, k: int, activation: str = "", dtype: str = "f16", *, residual: bool = False) -> Problem:
    """``activation(x @ w.T + bias)`` and perhaps something added, as ``F.linear`` has its weights."""
    extras = [Extra(dtype, Access((0, 1))), *([Extra(dtype, Access((n, 1)))] if residual else [])]
    kernel, sizes = contraction_kernel(
        (), (m,), (n,), (k,), Factor(dtype, Access((k, 1))), Factor(dtype, Access((1, k))), Access((n, 1)),
        epilogue(dtype, activation, residual=residual), extras, precision="tf32",
    )  # fmt: skip
    shapes = ((m, k), (n, k), (n,), (m, n))
    name = (
        f"linear {m}x{n}x{k}" + f" {activation}" * bool(activation) + " add" * residual + f" {dtype}" * (dtype != "f16")
    )
    return Problem(name, kernel, tuple(sizes), 2 * m * n * k, shapes, None, activation, residual=residual)


def conv(
    images: int, c: int, size: int, taps: int, m: int, step: int, count: int = 1, pad: int | None = None
) -> Problem:
    """``relu(conv(x, w) + bias)`` of images with channels last and weights [taps, taps, channels, outputs]."""
    pad = taps // 2 if pad is None else pad
    out = (size + 2 * pad - taps) // step + 1

    def last(channels: int, side: int) -> Access:
        return Access((side * side * channels, 1, side * channels, channels))

    made = Convolution(images, 1, c, m, (size, size), (out, out), (taps, taps), (step, step), (1, 1), (pad, pad))
    kernel, sizes = made.kernel(
        Factor("f16", last(c, size)), Factor("f16", Access((1, m, taps * c * m, c * m))), last(m, out),
        epilogue("f16", "relu"), [Extra("f16", Access((0, 1, 0, 0)))],
    )  # fmt: skip
    shapes = ((images, c, size, size), (m, c, taps, taps), (m,), (images, m, out, out))
    flops = 2 * images * out * out * m * c * taps * taps
    name = f"conv b{images} {c}x{size}x{size} {taps}x{taps}/{step} -> {m}" + f" pad {pad}" * (pad != taps // 2)
    return Problem(name, kernel, tuple(sizes), flops, shapes, (step, pad), "relu", count)


def resnet50(images: int) -> list[Problem]:
    """Its convolutions, each once, with how often it has them."""
    found = [conv(images, 3, 224, 7, 64, 2), conv(images, 64, 56, 1, 64, 1)]
    before, size = 64, 56
    for width, blocks, step in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        inner = size // step
        if width > 64:
            found.append(conv(images, before, size, 1, width, 1))
            found.append(conv(images, width, size, 3, width, 2))
        found.append(conv(images, before, size, 1, 4 * width, step))
        found.append(conv(images, width, inner, 3, width, 1, blocks if width == 64 else blocks - 1))
        found.append(conv(images, width, inner, 1, 4 * width, 1, blocks))
        found.append(conv(images, 4 * width, inner, 1, width, 1, blocks - 1))
        before, size = 4 * width, inner
    merged: dict[str, Problem] = {}
    for p in found:
        merged.setdefault(p.name, replace(p, count=0)).count += p.count
    return list(merged.values())


def problems(only: str) -> list[Problem]:
    """All in whose name the pattern ``only`` is found."""
    found = []
    for m in (128, 4096, 197, 6304, 1024):
        found += [product(m, 768, 768), product(m, 2304, 768), product(m, 3072, 768, "gelu")]
        found += [product(m, 768, 3072, residual=True)]
    found += [product(1, 1000, 2048), product(8192, 8192, 8192), product(4096, 4096, 4096)]
    found += [product(4096, 4096, 4096, dtype="bf16")]
    for images in (1, 32):
        found += resnet50(images)
        found += [conv(images, c, 224, 7, 64, 2, 0) for c in (4, 8)]  # the first with padded channels
    found += [conv(8, 64, 35, 3, 96, 1, 0, 0), conv(8, 48, 37, 5, 80, 2, 0), conv(3, 24, 30, 3, 40, 3, 0, 2)]
    return [p for p in found if re.search(only, p.name)]


# compiled beforehand


def started(p: Problem, tile: Tile) -> list[tuple[KernelText, CudaLaunch]]:
    """What is started for a problem, in order."""
    texts = (text_of(p.kernel, tile, p.sizes), p.kernel.parts)
    found = zip(texts, launches(p.kernel, tile, p.sizes), strict=True)
    return [(text, launch) for text, launch in found if launch.tasks]


def prepared(p: Problem, tile: Tile, architecture: int) -> int | str:
    """Compile what is started: the bytes that are spilled, or why it does not compile."""
    try:
        made = [binary_of(Variant.of(t, launch, aligned=True), architecture) for t, launch in started(p, tile)]
    except CompileError as error:
        return str(error)[:200]
    return max(b.spills for b in made)


# on the device


class Inputs:
    """One set of tensors of a problem: PyTorch's, and those with the same content that the kernel reads."""

    def __init__(self, p: Problem, device: str = "cuda") -> None:
        import torch

        dtype = getattr(torch, NUMPY[p.kernel.a.own.dtype])
        form = torch.contiguous_format if p.options is None else torch.channels_last
        a, b, bias, out = p.shapes
        depth = math.prod(b[1:])
        self.p, self.device = p, device
        self.a = torch.randn(a, device=device).to(dtype).contiguous(memory_format=form)
        self.b = (torch.randn(b, device=device) * depth**-0.5).to(dtype).contiguous(memory_format=form)
        self.bias = torch.randn(bias, device=device).to(dtype)
        self.added = torch.randn(out, device=device).to(dtype) if p.residual else None
        self.out = torch.full(out, math.nan, device=device, dtype=dtype).contiguous(memory_format=form)
        self.packed = self.b if p.options is None else self.b.permute(2, 3, 1, 0).contiguous()

    def peer(self, *, whole: bool = True) -> Any:
        """What PyTorch makes of them, with or without the activation and what is added."""
        import torch.nn.functional as F

        added, activation = (self.added, self.p.activation) if whole else (None, "")
        return self._made(F, self.a, self.b, self.bias, added, activation)

    def _made(self, f: Any, a: Any, b: Any, bias: Any, added: Any, activation: str) -> Any:
        total = f.linear(a, b, bias) if self.p.options is None else f.conv2d(a, b, bias, *self.p.options)
        total = getattr(f, activation)(total) if activation else total
        return total if added is None else total + added

    def error(self) -> float:
        """Of the output, relative to the same in a wider type."""
        import torch
        import torch.nn.functional as F

        wide = torch.float64 if self.p.options is None else torch.float32
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False):
            added = None if self.added is None else self.added.to(wide)
            a, b, bias = (t.to(wide) for t in (self.a, self.b, self.bias))
            expected = self._made(F, a, b, bias, added, self.p.activation)
        gap = (self.out.to(wide) - expected).norm() / expected.norm()
        return float(gap)


def starter(p: Problem, inputs: Inputs, tile: Tile, scratch: Any) -> Callable[[], None]:
    """A launch on the current stream."""
    import torch

    from accord.backends.cuda.driver import device
    from accord.backends.cuda.program import _Kernel

    added = [] if inputs.added is None else [inputs.added]
    tensors = (inputs.a, inputs.packed, inputs.bias, *added, inputs.out, scratch)
    table = np.array([t.data_ptr() for t in tensors], np.int64)
    kernels = [_Kernel(device(), text, launch, table, 0) for text, launch in started(p, tile)]

    def begin() -> None:
        for kernel in kernels:
            kernel.start(torch.cuda.current_stream().cuda_stream)

    return begin


def shown(tile: Tile) -> str:
    """A tile in short."""
    words = [f"{tile.m}x{tile.n}x{tile.k}", f"w{tile.warps}", f"s{tile.stages}"]
    words += [f"/{tile.splits}"] * (tile.splits > 1) + ["flat"] * tile.flat + ["tma"] * tile.described
    words += [("turns" if tile.turns else "together") + f" g{tile.group}"] * bool(tile.hopper)
    return " ".join(words)


def measured(p: Problem, tried: Sequence[tuple[Tile, Any]]) -> dict[str, Any]:
    """A row of the result file."""
    import torch

    first = Inputs(p)
    size = sum(t.numel() * t.element_size() for t in (first.a, first.b, first.out))
    sets = [first, *(Inputs(p) for _ in range(min(SETS, -(-ROTATED // size)) - 1))]
    row: dict[str, Any] = {"problem": p.name, "count": p.count, "flops": p.flops, "tiles": {}}
    row["torch"] = median_us([lambda i=i: i.peer(whole=False) for i in sets], LAUNCHES, REPLAYS)
    row["torch with activation"] = row["torch"]
    if p.activation or p.residual:
        row["torch with activation"] = median_us([lambda i=i: i.peer() for i in sets], LAUNCHES, REPLAYS)
    for tile, made in tried:
        if isinstance(made, str):
            row["tiles"][shown(tile)] = made
            continue
        scratch = torch.empty(max(16, workspace(p.kernel, tile, p.sizes)), dtype=torch.uint8, device="cuda")
        first.out.fill_(math.nan)
        calls = [starter(p, i, tile, scratch) for i in sets]
        calls[0]()
        torch.cuda.synchronize()
        error = first.error()
        good = error < 4e-3
        row["tiles"][shown(tile)] = median_us(calls, LAUNCHES, REPLAYS) if good else f"wrong: error {error:.1e}"
        row["error"] = max(row.get("error", 0.0), error)
        row["spills"] = max(row.get("spills", 0), made)
    times = {name: us for name, us in row["tiles"].items() if isinstance(us, float)}
    row["rule"] = next(iter(row["tiles"].values()), "")
    row["best"] = min(times.values(), default=math.nan)
    row["tile"] = min(times, key=times.__getitem__, default="")
    return row


def line(row: dict[str, Any]) -> str:
    """A row for people: microseconds and TFLOP/s."""
    peer, best = row["torch"], row["best"]
    rule = f"{row['rule']:.1f}" if isinstance(row["rule"], float) else "-"
    return (
        f"{row['problem']:<38}{peer:8.1f} ({row['torch with activation']:7.1f}) {row['flops'] / peer / 1e6:5.0f} |"
        f"{best:8.1f} {row['flops'] / best / 1e6:5.0f} | {peer / best:4.2f} | rule {rule:>7} | {row['tile']}"
    )


def main() -> None:
    """Compile, compare, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", nargs="?", help="file for JSON")
    parser.add_argument("--only", default="", help="pattern of the names of problems")
    parser.add_argument("--tiles", type=int, default=6, help="most tiles of a problem")
    parser.add_argument("--seconds", type=float, default=130, help="no problem is begun after this time")
    arguments = parser.parse_args()
    began = time.monotonic()
    chosen = problems(arguments.only)
    device = Device(90, 227 << 10, 132)
    work = [(p, t) for p in chosen for t in candidates(p.kernel, p.sizes, device, arguments.tiles)]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), context) as pool:
        futures = [pool.submit(prepared, p, t, device.architecture) for p, t in work]
        built = [f.result() for f in futures]
    print(f"{len(work)} tiles compiled in {time.monotonic() - began:.0f} s", flush=True)
    import torch

    torch.backends.cudnn.benchmark = True
    properties = torch.cuda.get_device_properties(0)
    assert (properties.major, properties.multi_processor_count) == (9, device.processors), properties
    print("problem                                   torch (with act.) TFLOP/s |  accord TFLOP/s | ratio")
    rows, skipped = [], 0
    for p in chosen:
        if time.monotonic() - began > arguments.seconds:
            skipped += 1
            continue
        tried = [(t, made) for (q, t), made in zip(work, built, strict=True) if q is p]
        rows.append(measured(p, tried))
        print(line(rows[-1]), flush=True)
    for images in (1, 32):
        own = [r for r in rows if r["problem"].startswith(f"conv b{images} ")]
        if own:
            total = {k: sum(r["count"] * r[k] for r in own) / 1e3 for k in ("torch", "torch with activation", "best")}
            print(f"all convolutions of ResNet-50, batch {images}, ms:", {k: round(v, 3) for k, v in total.items()})
    print(
        f"{skipped} problems skipped; {time.monotonic() - began:.0f} s; {torch.cuda.get_device_name()}", file=sys.stderr
    )
    if arguments.result:
        facts = {"command": invocation(), "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}
        facts |= {
            "machine": machine(),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "rows": rows,
        }
        Path(arguments.result).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
