"""Attention on a GPU: every candidate checked against PyTorch in float64 and timed beside its backends.

    PYTHONPATH=src python benchmarks/gpu_attention.py [--only check|time] [--kind hopper|triton] [--case full,causal]

Needs torch, triton and a Hopper GPU. Kernels are compiled in several processes first. A time is that of one call in a
CUDA graph of many, on operands that are not in the cache; the median of graphs.
"""

from __future__ import annotations

import argparse
import datetime as dt
import faulthandler
import functools
import json
import math
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from gpu_timing import median_us
from machine import invocation, machine

from accord.backends.cuda.attention import AttentionKernel, JoiningKernel, Tiles, attention_kernel, candidates, geometry
from accord.backends.cuda.code import KernelText, function_of
from accord.backends.cuda.hopper import (
    HopperAttention,
    HopperTiles,
    hopper_candidates,
    hopper_geometry,
    suits_hopper,
)
from accord.backends.heads import Features, Heads
from accord.expr.lang import call, operand
from accord.ir.strides import Access

ALIBI = operand(0, "f32") - call("exp2", (operand(3, "f32") + 1.0) * -8.0 / operand(4, "f32")) * (
    operand(1, "f32") - operand(2, "f32")
)
#: images, heads, groups, queries, keys, head size, causal
SHAPES = {
    "full": (4, 16, 16, 4096, 4096, 128, False),
    "causal": (4, 16, 16, 4096, 4096, 128, True),
    "bert b1": (1, 12, 12, 128, 128, 64, False),
    "bert b32": (32, 12, 12, 128, 128, 64, False),
    "vit b1": (1, 12, 12, 197, 197, 64, False),
    "vit b32": (32, 12, 12, 197, 197, 64, False),
    "gpt2 1024": (1, 12, 12, 1024, 1024, 64, True),
}
#: images, heads, groups, queries, keys, head size, type, rows of all heads side by side, features
CHECKS: list[tuple[Any, ...]] = [
    (2, 4, 4, 256, 256, 128, "f16", False, {}),
    (2, 4, 2, 200, 333, 128, "f16", True, {}),
    (1, 6, 2, 1, 1, 64, "bf16", False, {}),
    (2, 4, 4, 129, 65, 64, "f16", True, {"causal": True}),
    (2, 4, 4, 515, 515, 128, "bf16", False, {"causal": True}),
    (2, 2, 1, 63, 400, 128, "f16", False, {"causal": True, "offset": 337}),
    (1, 2, 2, 300, 200, 64, "f16", False, {"causal": True, "offset": -150}),
    (1, 4, 4, 700, 700, 128, "f16", True, {"left": 100, "right": 30}),
    (3, 4, 4, 190, 300, 128, "f16", False, {"valid": [300, 0, 77], "causal": True}),
    (1, 4, 4, 256, 256, 128, "f16", False, {"softcap": 2.0}),
    (2, 8, 8, 256, 256, 64, "f16", False, {"score": ALIBI, "causal": True}),
    (40, 16, 4, 512, 512, 128, "f16", False, {"causal": True}),
    (2, 4, 2, 100, 130, 80, "f16", True, {"mask": "bool"}),
    (2, 4, 2, 100, 130, 64, "bf16", False, {"mask": "f16"}),
    (2, 4, 2, 100, 130, 64, "f32", False, {"causal": True}),
    (2, 32, 8, 1, 3000, 128, "f16", False, {"split": True}),
]
PLAIN = (Tiles(128, 128, 8, 3, descriptors=True),)
NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


def heads_of(shape: tuple[int, ...], dtype: str, rows: bool) -> Heads:
    """How ``[images, heads, positions, size]`` lies: row-major, or positions before heads."""
    _, count, length, size = shape
    strides = (
        (length * count * size, size, count * size, 1) if rows else (count * length * size, length * size, size, 1)
    )
    return Heads(dtype, Access(strides, 0))


class Problem:
    """One problem: the kernel of its pattern, and operands."""

    def __init__(
        self, images: int, heads: int, groups: int, length: int, keys: int, size: int, dtype: str, rows: bool,
        features: dict[str, Any],
    ) -> None:  # fmt: skip
        self.features = given = dict(features)
        self.dtype = dtype
        self.shapes = dict.fromkeys("qy", (images, heads, length, size))
        self.shapes |= dict.fromkeys("kv", (images, groups, keys, size))
        self.tensors = {t: heads_of(s, dtype, rows) for t, s in self.shapes.items()}
        split = given.pop("split", False)
        mask = given.pop("mask", None)
        self.mask = mask
        if mask is not None:
            given |= {"mask": Heads(mask, Access((keys, 0, 0, 1), 0)), "mask_keys": keys}
        self.valid = given.get("valid")
        if self.valid is not None:
            given["valid"] = 1
        sizes = {"images": images, "heads": heads, "groups": groups, "length": length, "keys": keys}
        sizes |= {"size": size, "value.size": size}
        self.scale = 1 / math.sqrt(size)
        operands = [self.tensors[t] for t in "qkvy"]
        kernel, dims = attention_kernel(*operands, sizes, Features(self.scale, **given), split=split)
        self.kernel: AttentionKernel = kernel
        self.dims: tuple[int, ...] = tuple(int(d) for d in dims)  # type: ignore[arg-type]

    def variants(self, more: bool) -> list[Tiles | HopperTiles]:
        """Tiles to try; ``more`` to find the fastest, else to check."""
        found: list[Tiles | HopperTiles] = []
        if suits_hopper(self.kernel, self.dims):
            found += [t for t in hopper_candidates(self.kernel) if more or t.turns]
        plain = candidates(self.kernel, 90, self.dims)
        found += plain if more else [plain[0], *(t for t in plain if t.descriptors)][:2]
        found += PLAIN if more and self.kernel.size == 128 else ()
        return found

    def allocate(self, seed: int) -> dict[str, Any]:
        """Memory of all pointers."""
        import torch

        torch.manual_seed(seed)
        images, _, _, _ = self.shapes["q"]
        keys = self.shapes["k"][2]
        made: dict[str, Any] = {}
        for t, shape in self.shapes.items():
            data = torch.randn(math.prod(shape), device="cuda").to(getattr(torch, NAMES[self.dtype]))
            made[t] = torch.full_like(data, 7) if t == "y" else data
        if self.valid is not None:
            made["n"] = torch.tensor(self.valid, device="cuda")
        if self.mask == "bool":
            made["m"] = torch.rand(images * keys, device="cuda") < 0.7
        elif self.mask is not None:
            made["m"] = torch.randn(images * keys, device="cuda").to(getattr(torch, NAMES[self.mask]))
        wanted = [geometry(self.kernel, t, self.dims).workspace for t in candidates(self.kernel, 90, self.dims)]
        for name, counts in zip(("sums", "stats"), zip(*wanted, strict=True), strict=True):
            made[name] = torch.empty(max(counts), device="cuda")
        return made

    def launches(
        self, tiles: Tiles | HopperTiles, memory: dict[str, Any]
    ) -> list[tuple[Any, tuple[int, ...], list[Any], dict[str, Any]]]:
        """Functions, grids, arguments and the compiler's options."""
        values = dict(zip(self.kernel.names, self.dims, strict=True)) | memory
        if isinstance(tiles, HopperTiles):
            h, hopper = hopper_geometry(self.kernel, tiles, self.dims, 132), HopperAttention(self.kernel)
            values |= h.constants
            options = {"num_warps": h.warps}
            parts: list[tuple[KernelText, Any, Any]] = [(hopper, (h.grid, 1, 1), options)]
        else:
            g = geometry(self.kernel, tiles, self.dims)
            values |= g.constants
            options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
            options |= {"maxnreg": tiles.registers} if tiles.registers else {}
            parts = [(self.kernel, (*g.grid, 1), options)]
            if g.joined:
                parts.append((JoiningKernel(self.kernel), (g.joined, 1, 1), {}))
        made = []
        for part, grid, options in parts:
            function = function_of(part)
            made.append((function, grid, [values[n] for n in function.arg_names], options))
        return made

    def run(self, tiles: Tiles | HopperTiles, memory: dict[str, Any]) -> None:
        """Compute."""
        for function, grid, arguments, options in self.launches(tiles, memory):
            function[grid](*arguments, **options)

    def view(self, t: str, memory: dict[str, Any]) -> Any:
        """A tensor as ``[images, heads, positions, size]``."""
        return memory[t].as_strided(self.shapes[t], self.tensors[t].access.strides)

    def expected(self, memory: dict[str, Any], image: int, head: int) -> Any:
        """One head in float64."""
        import torch

        _, heads, length, _ = self.shapes["q"]
        groups, keys = self.shapes["k"][1:3]
        f = self.features
        group = head // (heads // groups)
        q, k, v = (self.view(t, memory)[image, h].double() for t, h in (("q", head), ("k", group), ("v", group)))
        s = q @ k.T * self.scale
        if f.get("softcap"):
            s = f["softcap"] * torch.tanh(s / f["softcap"])
        here, limit = f.get("offset", 0), keys
        if self.valid is not None:
            here, limit = self.valid[image] - length, self.valid[image]
        i = here + torch.arange(length, device="cuda")[:, None]
        j = torch.arange(keys, device="cuda")[None, :]
        if f.get("score") is not None:
            s = s - 2.0 ** (-8 * (head + 1) / heads) * (i - j)
        seen = (j < limit).expand(length, keys)
        seen = seen & (j <= i) if f.get("causal") else seen
        seen = seen & (i - j <= f["left"]) if f.get("left", -1) >= 0 else seen
        seen = seen & (j - i <= f["right"]) if f.get("right", -1) >= 0 else seen
        if self.mask is not None:
            row = memory["m"].reshape(-1, keys)[image]
            seen, s = (seen & row, s) if self.mask == "bool" else (seen, s + row.double())
        p = torch.softmax(s.masked_fill(~seen, float("-inf")), -1).nan_to_num(0.0)
        return p @ v

    def error(self, memory: dict[str, Any]) -> float:
        """The greatest difference in a few heads, of what rounding to the type may make."""
        y = self.view("y", memory)
        images, heads = y.shape[:2]
        near = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 1e-5}[self.dtype]
        worst = 0.0
        for image, head in {(0, 0), (images - 1, heads - 1), (images // 2, heads // 2)}:
            found = (y[image, head].double() - self.expected(memory, image, head)).abs().max().item()
            worst = max(worst, found / near) if math.isfinite(found) else math.inf
        return worst


def problem_of(name: str) -> Problem:
    """Of :data:`SHAPES`."""
    *shape, causal = SHAPES[name]
    return Problem(*shape, "f16", False, {"causal": True} if causal else {})  # type: ignore[misc]


def compile_one(task: tuple[str, int, Tiles | HopperTiles]) -> tuple[str, float]:
    """Compile a variant; in a process of its own, so that the caller finds it in Triton's cache."""
    import torch

    kind, index, tiles = task
    problem = problem_of(list(SHAPES)[index]) if kind == "time" else Problem(*CHECKS[index])
    begin = time.perf_counter()
    types = {t: getattr(torch, NAMES[problem.dtype]) for t in "qkvy"} | {"sums": torch.float32, "stats": torch.float32}
    types |= {"n": torch.int64, "m": getattr(torch, NAMES.get(problem.mask or "", "bool"))}
    try:
        for function, grid, arguments, options in problem.launches(tiles, types):
            function.warmup(*arguments, grid=grid, **options)
    except Exception as error:  # noqa: BLE001 — it is said, and said again when the variant is run
        return f"{tiles}: {type(error).__name__}: {str(error)[:300]}", time.perf_counter() - begin
    return "", time.perf_counter() - begin


def check(wanted: Any) -> bool:
    """Whether all variants that are wanted of all checks are right."""
    import torch

    good = True
    for c in CHECKS:
        problem = Problem(*c)
        for tiles in wanted(problem, more=False):
            memory = problem.allocate(1)
            try:
                for _ in range(3):
                    problem.run(tiles, memory)
                torch.cuda.synchronize()
                worst = problem.error(memory)
            except Exception as error:  # noqa: BLE001 — the others are tried all the same
                worst, text = math.inf, f" {type(error).__name__}: {str(error)[:200]}"
                print(f"    {tiles}{text}")
            good &= worst <= 1
            if worst > 1:
                print(f"WRONG {worst:.2g} × the tolerance: {c} {tiles}", flush=True)
    print("checks passed" if good else "CHECKS FAILED", flush=True)
    return good


def measure(name: str, wanted: Any) -> dict[str, float]:
    """Microseconds of all variants and of PyTorch's backends."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    problem = problem_of(name)
    images, heads, _, length, keys, size, causal = SHAPES[name]
    flops = 4 * images * heads * length * keys * size / (2 if causal else 1)
    bytes_ = 8 * images * heads * length * size
    sets = [problem.allocate(k) for k in range(max(2, min(64, (200 << 20) // bytes_)))]
    order = (sets * 64)[: max(4, min(64, int(4e12 // flops)))]
    rows = []

    def note(label: str, make: Any) -> None:
        try:
            ms = median_us([make(s) for s in order], replays=7) / 1e3
            rows.append((ms, label))
        except Exception as error:  # noqa: BLE001 — a backend may not take the shape
            print(f"    {label}: {type(error).__name__}: {str(error).strip()[:160]}")

    backends = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
    for label, backend in backends.items():
        kind = getattr(SDPBackend, backend)

        def call_torch(s: dict[str, Any], kind: Any = kind) -> Any:
            q, k, v = (problem.view(t, s) for t in "qkv")

            def run() -> None:
                with sdpa_kernel(kind):
                    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

            return run

        note(f"torch {label}", call_torch)
    best = min(rows)[0] if rows else math.nan
    for tiles in wanted(problem, more=True):
        note(str(tiles), lambda s, tiles=tiles: functools.partial(problem.run, tiles, s))
        problem.run(tiles, sets[0])
        worst = problem.error(sets[0])
        if worst > 1:
            print(f"WRONG {worst:.2g} × the tolerance: {tiles}")
    print(f"{name}: {flops / 1e9:.1f} GFLOP, PyTorch's best {best * 1e3:.1f} µs")
    for ms, label in sorted(rows):
        print(f"  {ms * 1e3:9.1f} µs {flops / ms / 1e9:7.1f} TFLOP/s {best / ms:5.2f} ×  {label}")
    sys.stdout.flush()
    return {label: ms * 1e3 for ms, label in sorted(rows)}


def main() -> int:
    """Check, time, write; 1 if a variant is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["check", "time"])
    parser.add_argument("--kind", choices=["hopper", "triton"])
    parser.add_argument("--limit", type=float, default=280.0, help="seconds after which it ends: a kernel may hang")
    parser.add_argument("--case", default=",".join(SHAPES), help="names of shapes, separated by commas")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--output", type=Path, help="file for JSON")
    given = parser.parse_args()
    faulthandler.dump_traceback_later(given.limit, exit=True)
    begin = time.perf_counter()
    cases = [n for n in SHAPES if n in given.case.split(",")]

    def wanted(problem: Problem, *, more: bool) -> list[Tiles | HopperTiles]:
        kinds = {"hopper": HopperTiles, "triton": Tiles, None: (Tiles, HopperTiles)}
        return [t for t in problem.variants(more) if isinstance(t, kinds[given.kind])]

    tasks = []
    if given.only != "check":
        tasks += [("time", list(SHAPES).index(n), t) for n in cases for t in wanted(problem_of(n), more=True)]
    if given.only != "time":
        tasks += [("check", i, t) for i, c in enumerate(CHECKS) for t in wanted(Problem(*c), more=False)]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        done = pool.map(compile_one, tasks, chunksize=1)
    for problem in sorted({text for text, _ in done if text}):
        print(f"does not compile: {problem}")
    spent = sum(t for _, t in done)
    print(f"compiled {len(tasks)} variants in {time.perf_counter() - begin:.0f} s ({spent:.0f} s of work)", flush=True)
    import torch
    import triton

    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    print(torch.cuda.get_device_name(), torch.__version__, triton.__version__)
    good = given.only == "time" or check(wanted)
    times = {} if given.only == "check" else {n: measure(n, wanted) for n in cases}
    print(f"{time.perf_counter() - begin:.0f} s in all")
    if given.output:
        facts = {"command": invocation(), "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}
        facts |= {"machine": machine(), "device": torch.cuda.get_device_name(), "torch": torch.__version__}
        facts |= {"checked": good, "us": times}
        given.output.write_text(json.dumps(facts, indent=1) + "\n")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
