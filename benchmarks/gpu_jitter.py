#!/usr/bin/env python3
"""Random batches and lengths on one GPU: are run times steady, and does memory stay what it was?

    python benchmarks/gpu_jitter.py [--runs N] [--timed N] [--largest N] [--longest N] [--step N] [--output FILE]

A transformer encoder of four layers in float16 (BERT's shapes, random weights) with symbolic batch and length. First
batches 1 to 32 at one length are warmed up (``Model.warm_up``) and run in random order, with inputs from the host's
memory. The time of each batch is counted: nothing may be compiled or captured, and the 99th percentile may be 5 ms
above the median at most. Then shapes of random batch and length follow, many of which are new. The device's free memory
is read from the driver as it goes on: after the first half it may not shrink by more than a block of the driver's.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import invocation, machine

import accord
from accord.backends.cuda import code, driver

#: Seconds between the median and the 99th percentile of a batch.
_JITTER = 5e-3
#: Bytes by which the driver takes memory.
_BLOCK = 2 << 20
_WORDS, _WIDTH, _HEADS, _INNER, _LAYERS = 30522, 768, 12, 3072, 4


def main() -> int:
    """Run, print, write; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="runs with random shapes (default: %(default)s)")
    parser.add_argument("--timed", type=int, default=6_400, help="runs that are timed (default: %(default)s)")
    parser.add_argument("--largest", type=int, default=32, help="largest batch (default: %(default)s)")
    parser.add_argument("--longest", type=int, default=128, help="longest length (default: %(default)s)")
    parser.add_argument("--step", type=int, default=16, help="lengths are multiples of this (default: %(default)s)")
    parser.add_argument("--tuning", default="full", choices=("off", "full"))
    parser.add_argument("--output", type=Path, help="file for the result, as JSON")
    arguments = parser.parse_args()
    content = encoder().SerializeToString()
    batches = range(1, arguments.largest + 1)
    began = time.perf_counter()
    model = accord.load(content, device="cuda", tuning=arguments.tuning)
    model.warm_up([{"ids": (n, arguments.longest)} for n in batches])
    ready = time.perf_counter() - began
    print(f"warm after {ready:.1f} s", file=sys.stderr, flush=True)
    counts = Counts()
    times = timed(model, batches, arguments.longest, arguments.timed)
    after_warm_up = counts.taken()
    print(f"timed after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    memory = roam(model, arguments)
    rows = [{"batch": n, "runs": len(t), **summary(t)} for n, t in times.items()]
    worst = max(row["p99"] - row["p50"] for row in rows)
    half = len(memory) // 2
    growth = memory[half]["free"] - memory[-1]["free"]
    print(f"ready in {ready:.1f} s; {arguments.timed} runs after the warm-up: {after_warm_up}")
    print("| batch | runs | p50 ms | p99 ms | max ms |\n|---|---|---|---|---|")
    for row in rows:
        milliseconds = " | ".join(f"{row[k] * 1e3:.3f}" for k in ("p50", "p99", "max"))
        print(f"| {row['batch']} | {row['runs']} | {milliseconds} |")
    print(f"largest p99 - p50: {worst * 1e3:.3f} ms")
    for entry in memory:
        free = f"{entry['free'] / 1e6:.0f} MB free, {entry['frames']} frames"
        print(f"after {entry['runs']} runs with random shapes: {free}")
    print(f"growth in the second half: {growth} bytes; kernels loaded meanwhile: {counts.taken()}")
    result = {
        "command": invocation(),
        "gpu": driver.device().name,
        "machine": machine(),
        "ready": ready,
        "batches": rows,
        "jitter": worst,
        "after_warm_up": after_warm_up,
        "memory": memory,
        "growth": growth,
    }
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(worst > _JITTER or growth > _BLOCK or any(after_warm_up.values()))


class Counts:
    """What was compiled and captured since it was asked last."""

    def __init__(self) -> None:
        self._compiled, self._captured = len(code._FOUND), 0
        keep = driver.Device.keep

        def counting(*given: Any) -> None:
            self._captured += 1
            keep(*given)

        driver.Device.keep = counting  # type: ignore[method-assign]

    def taken(self) -> dict[str, int]:
        """The numbers, which then begin anew."""
        found = {"compiled": len(code._FOUND) - self._compiled, "captured": self._captured}
        self._compiled, self._captured = len(code._FOUND), 0
        return found


def timed(model: Any, batches: range, length: int, runs: int) -> dict[int, list[float]]:
    """The times of runs in random order, by batch."""
    feeds = {n: feed(n, length) for n in batches}
    order = [n for n in batches for _ in range(max(1, runs // len(batches)))]
    random.Random(0).shuffle(order)
    times: dict[int, list[float]] = {n: [] for n in batches}
    for n in order:
        began = time.perf_counter()
        model(feeds[n])
        times[n].append(time.perf_counter() - began)
    return times


def roam(model: Any, arguments: argparse.Namespace) -> list[dict[str, int]]:
    """Runs with random shapes; the device's free memory as they go on."""
    rng = random.Random(1)
    lengths = range(arguments.step, arguments.longest + 1, arguments.step)
    gpu = driver.device()
    found = []
    for run in range(arguments.runs + 1):
        if run % max(1, arguments.runs // 10) == 0:
            gc.collect()
            gpu.enter()
            free, _ = gpu.call("cuMemGetInfo")
            frames = sum(map(len, model._first.executor._frames.values()))
            found.append({"runs": run, "free": int(free), "frames": frames})
            print(f"{run} runs with random shapes: {int(free)} bytes are free", file=sys.stderr, flush=True)
        model(feed(rng.randint(1, arguments.largest), rng.choice(lengths)))
    return found


def feed(batch: int, length: int) -> dict[str, np.ndarray[Any, Any]]:
    """Token ids."""
    return {"ids": np.random.default_rng(batch).integers(0, _WORDS, (batch, length))}


def summary(times: list[float]) -> dict[str, float]:
    """Median, 99th percentile, maximum."""
    ordered = sorted(times)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "max": ordered[-1],
    }


def encoder() -> Any:
    """An encoder with symbolic batch and length."""
    rng = np.random.default_rng(0)
    nodes, constants = [], []

    def weight(name: str, *shape: int) -> str:
        values = (rng.standard_normal(shape) * 0.02).astype(np.float16)
        constants.append(numpy_helper.from_array(values, name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def linear(x: str, name: str, width: int, to: int) -> str:
        product = node("MatMul", [x, weight(f"{name}.w", width, to)], f"{name}.product")
        return node("Add", [product, weight(f"{name}.b", to)], name)

    def norm(x: str, name: str) -> str:
        return node("LayerNormalization", [x, weight(f"{name}.g", _WIDTH), weight(f"{name}.b", _WIDTH)], name, axis=-1)

    x = norm(node("Gather", [weight("words", _WORDS, _WIDTH), "ids"], "embedded"), "first")
    for k in range(_LAYERS):
        q, key, value = (linear(x, f"{k}.{part}", _WIDTH, _WIDTH) for part in "qkv")
        heads = node("Attention", [q, key, value], f"{k}.heads", q_num_heads=_HEADS, kv_num_heads=_HEADS)
        x = norm(node("Add", [linear(heads, f"{k}.joined", _WIDTH, _WIDTH), x], f"{k}.sum"), f"{k}.norm")
        inner = node("Gelu", [linear(x, f"{k}.inner", _WIDTH, _INNER)], f"{k}.gelu")
        x = norm(node("Add", [linear(inner, f"{k}.outer", _INNER, _WIDTH), x], f"{k}.sum2"), f"{k}.norm2")
    node("ReduceMean", [x, "axes"], "y", keepdims=0)
    constants.append(numpy_helper.from_array(np.array([1]), "axes"))
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


if __name__ == "__main__":
    sys.exit(main())
