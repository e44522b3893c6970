#!/usr/bin/env python3
"""Text recognition at changing shapes in one session: does anything happen after the warm-up that should not?

    python benchmarks/jitter.py [--shapes N] [--seconds N] [--threads N] [--seed N] [--largest N] [--output FILE]

Batch sizes 1 to 32 and widths 32 to 1280 in random order, small ones more often. First a few hundred shapes run once.
Then a sample of them runs again and again, in random order, and the times of each shape are counted. Fails if after the
warm-up something was compiled, a plan was made, or the arena grew, or if the 99th percentile of the times of a shape is
above 1.3 times their median.

What the machine does to any program is measured beside it. After every few runs a fixed computation that has nothing
to do with Accord (hashes of a small buffer) takes about as long as each on as many threads: the ratio of its own times
is what this machine allows. And the system counts how often it took the core away from this process during a run
("displaced"); the last ratio is of the runs in which it did not. Both explain the first ratio,
which alone decides. Of a hundred runs the 99th percentile is one of the two worst: it tells of a few hundred or more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import invocation, machine, settle
from benchmarks.models import TABLE, source

MODEL = "pp-ocr-rec"
_HEIGHT = 48
_SMALLEST, _LARGEST = (1, 32), (32, 1280)
_RATIO = 1.3
#: Of each shape at least and at most.
_RUNS = (30, 2000)
#: Runs between which nothing else is done: threads of the fixed computation would take part in who runs where.
_BLOCK = 25

Shape = tuple[int, int]


def main() -> int:
    """Run, print, write; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", type=int, default=300, help="shapes of the warm-up (default: %(default)s)")
    parser.add_argument("--shapes", type=int, default=16, help="shapes whose times are taken (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="time for their runs (default: %(default)s)")
    parser.add_argument(
        "--largest", type=int, default=10240, help="batch times width of these at most (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file for all times, as JSON")
    arguments = parser.parse_args()
    result = measure(arguments)
    print(f"{result['warm_up']['shapes']} shapes, then {len(result['shapes'])} of them again and again")
    print("| batch | width | runs | p50 ms | p99 ms | p99 ÷ p50 | fixed computation | displaced | without these |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in result["shapes"]:
        print(
            f"| {row['batch']} | {row['width']} | {len(row['times'])} | {row['p50']:.3f} | {row['p99']:.3f} "
            f"| {row['ratio']:.2f} | {row['fixed']:.2f} | {sum(row['displaced'])} | {row['calm']:.2f} |"
        )
    for name, count in result["after"].items():
        print(f"{name}: {result['warm_up'][name]} after the warm-up, {count} at the end")
    print(f"largest ratio {result['worst']:.2f}, of the fixed computation {result['worst_fixed']:.2f}")
    if result["worst"] > _RATIO < result["worst_fixed"]:
        print(f"This machine gives no program a ratio of {_RATIO}: measure again when it is quiet.")
    if arguments.output is not None:
        data = {"command": invocation(), "machine": machine(), **result}
        arguments.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    grown = any(count > result["warm_up"][name] for name, count in result["after"].items())
    return int(grown or result["worst"] > _RATIO)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Counts after the warm-up and at the end, and the times of each shape in milliseconds."""
    import accord

    chosen = random.Random(arguments.seed)
    model = accord.load(source(TABLE[MODEL]), threads=arguments.threads)
    shapes = [_SMALLEST, _LARGEST]
    while len(shapes) < arguments.warm:
        shapes.append((round(32 ** chosen.random()), round(32 * 40 ** chosen.random())))
    chosen.shuffle(shapes)
    images = np.random.default_rng(arguments.seed).uniform(-1, 1, (32, 3, _HEIGHT, 1280)).astype(np.float32)

    def image(shape: Shape) -> np.ndarray:
        return np.ascontiguousarray(images[: shape[0], :, :, : shape[1]])

    for shape in shapes:
        model(image(shape))
    warm_up = counts(model)
    small = sorted({s for s in shapes if s[0] * s[1] <= arguments.largest})
    sample = chosen.sample(small, min(arguments.shapes, len(small)))
    feeds = {shape: image(shape) for shape in sample}
    settle()
    usual = {shape: min(taken(lambda s=shape: model(feeds[s])) for _ in range(5)) for shape in sample}
    share = arguments.seconds / len(sample) / 2  # the fixed computation takes the other half
    order = [s for s in sample for _ in range(int(np.clip(share / usual[s], *_RUNS)))]
    chosen.shuffle(order)
    rows: dict[Shape, list[tuple[float, float, bool]]] = defaultdict(list)
    with ThreadPoolExecutor(max(arguments.threads - 1, 1)) as pool:
        fixed = fixed_computation(arguments.threads, pool)
        rate = min(taken(lambda: fixed(256)) for _ in range(20)) / 256
        for start in range(0, len(order), _BLOCK):
            block = order[start : start + _BLOCK]
            runs = []
            for shape in block:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
                seconds = taken(lambda s=shape: model(feeds[s]))
                runs.append((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw > before))
            again = [taken(lambda s=shape: fixed(max(int(usual[s] / rate), 1))) for shape in block]
            for shape, (seconds, displaced), other in zip(block, runs, again, strict=True):
                rows[shape].append((seconds * 1e3, other * 1e3, displaced))
    found = [row(shape, taken) for shape, taken in sorted(rows.items())]
    return {
        "warm_up": {"shapes": len(shapes), **warm_up},
        "after": counts(model),
        "shapes": found,
        "worst": max(r["ratio"] for r in found),
        "worst_fixed": max(r["fixed"] for r in found),
    }


def taken(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def fixed_computation(threads: int, pool: ThreadPoolExecutor) -> Callable[[int], None]:
    """A function that hashes a small buffer as often as it is told, on each of ``threads`` threads."""
    buffer = bytes(4096)

    def work(times: int) -> None:
        hashed = hashlib.sha256()
        piece = buffer * min(times, 8)
        for _ in range(-(-times // 8)):
            hashed.update(piece)

    def run(times: int) -> None:
        others = [pool.submit(work, times) for _ in range(threads - 1)]
        work(times)
        for other in others:
            other.result()

    return run


def row(shape: Shape, runs: Sequence[tuple[float, float, bool]]) -> dict[str, Any]:
    """What is told of a shape: of its times, those of the fixed computation, and whether the run was displaced."""
    times, again, displaced = (list(column) for column in zip(*runs, strict=True))
    p50, p99, ratio = spread(times)
    calm = [t for t, d in zip(times, displaced, strict=True) if not d]
    return {
        "batch": shape[0], "width": shape[1], "p50": p50, "p99": p99, "ratio": ratio,
        "fixed": spread(again)[2], "calm": spread(calm)[2] if calm else ratio,
        "times": times, "fixed_times": again, "displaced": displaced,
    }  # fmt: skip


def spread(times: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile, and their ratio."""
    p50, p99 = (float(np.percentile(times, q)) for q in (50, 99))
    return p50, p99, p99 / p50


def counts(model: Any) -> dict[str, int]:
    """What must not grow: pieces of machine code, plans, bytes of the arena."""
    from accord.backends.cpu import jit

    return {"pieces of machine code": jit.loaded(), **model.held()}


if __name__ == "__main__":
    sys.exit(main())
