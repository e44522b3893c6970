#!/usr/bin/env python3
"""Text recognition at changing shapes in one session: does anything happen after the warm-up that should not?

    python benchmarks/jitter.py [--shapes N] [--runs N] [--threads N] [--seed N] [--output FILE]

Batch sizes 1 to 32 and widths 32 to 1280 in random order, small ones more often. First a few hundred shapes run once.
Then a sample of them runs again and again, in random order; the times of each shape are counted. Fails if after the
warm-up something was compiled, a plan was made, or the arena grew, or if the 99th percentile of the times of a shape is
above 1.3 times their median.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import machine, settle
from benchmarks.models import TABLE, source

MODEL = "pp-ocr-rec"
_HEIGHT = 48
_SMALLEST, _LARGEST = (1, 32), (32, 1280)
_RATIO = 1.3


def main() -> int:
    """Run, print, write; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", type=int, default=300, help="shapes of the warm-up (default: %(default)s)")
    parser.add_argument("--shapes", type=int, default=16, help="shapes whose times are taken (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=100, help="runs of each of them (default: %(default)s)")
    parser.add_argument(
        "--largest", type=int, default=10240, help="batch times width of these at most (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file for all times, as JSON")
    arguments = parser.parse_args()
    result = measure(arguments)
    print(f"{result['warm_up']['shapes']} shapes, then {len(result['shapes'])} of them {arguments.runs} times each")
    print("| batch | width | p50 ms | p99 ms | p99 ÷ p50 |", "|---|---|---|---|---|", sep="\n")
    for row in result["shapes"]:
        print(f"| {row['batch']} | {row['width']} | {row['p50']:.3f} | {row['p99']:.3f} | {row['ratio']:.2f} |")
    for name, count in result["after"].items():
        print(f"{name}: {result['warm_up'][name]} after the warm-up, {count} at the end")
    print(f"largest ratio {result['worst']:.2f}")
    if arguments.output is not None:
        data = {"command": " ".join(["python", *sys.argv]), "machine": machine(), **result}
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

    def image(shape: tuple[int, int]) -> np.ndarray:
        return np.ascontiguousarray(images[: shape[0], :, :, : shape[1]])

    for shape in shapes:
        model(image(shape))
    warm_up = counts(model)
    small = [s for s in shapes if s[0] * s[1] <= arguments.largest]
    sample = chosen.sample(small, min(arguments.shapes, len(small)))
    feeds = {shape: image(shape) for shape in sample}
    order = sample * arguments.runs
    chosen.shuffle(order)
    settle()
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    for shape in order:
        start = time.perf_counter()
        model(feeds[shape])
        times[shape].append((time.perf_counter() - start) * 1e3)
    rows = []
    for (batch, width), taken in sorted(times.items()):
        p50, p99 = (float(np.percentile(taken, q)) for q in (50, 99))
        rows.append({"batch": batch, "width": width, "p50": p50, "p99": p99, "ratio": p99 / p50, "times": taken})
    return {
        "warm_up": {"shapes": len(shapes), **warm_up},
        "after": counts(model),
        "shapes": rows,
        "worst": max(row["ratio"] for row in rows),
    }


def counts(model: Any) -> dict[str, int]:
    """What must not grow: pieces of machine code, plans, bytes of the arena."""
    from accord.backends.cpu import jit

    return {"pieces of machine code": jit.loaded(), **model.held()}


if __name__ == "__main__":
    sys.exit(main())
