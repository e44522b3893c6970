#!/usr/bin/env python3
"""Times of the table's models on the CPU, beside ONNX Runtime and OpenVINO.

    python benchmarks/cpu.py [--threads N ...] [--seconds S] [--output FILE] [MODEL ...]

One process a model. All runtimes get the same inputs and as many threads, their outputs are compared first, and they
take turns (``accord.workbench.peers.take_turns``). A peer whose outputs differ by more than rounding is reported
but not compared with. Prints a table in Markdown and writes all times as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import invocation, machine, settle
from benchmarks.models import TABLE, make_feed, source

#: Largest difference of two outputs, against the largest value: rounding stays far below it.
_TOLERANCE = 5e-3
_PEERS = ("onnxruntime", "openvino")


def main() -> int:
    """Measure, print, write; 1 if a model ran nowhere or Accord's outputs were not the peers'."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names in the table (default: all)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="time spent on each runtime (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="file for all times, as JSON")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in set(arguments.models) - set(TABLE):
        parser.error(f"no model '{name}'; there are {', '.join(TABLE)}")
    if arguments.one:
        print(json.dumps(measure(arguments.models[0], arguments.threads[0], arguments.seconds)))
        return 0
    results = []
    for threads in arguments.threads:
        rows = []
        for name in arguments.models or TABLE:
            settle()
            command = [
                sys.executable,
                __file__,
                "--one",
                "--threads",
                str(threads),
                "--seconds",
                str(arguments.seconds),
            ]
            done = subprocess.run([*command, name], stdout=subprocess.PIPE, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{threads} {name}: {_row(rows[-1])}", file=sys.stderr, flush=True)
        results.append({"threads": threads, "models": rows, **summary(rows)})
        print(drawn(results[-1]))
    if arguments.output is not None:
        data = {"command": invocation(), "machine": machine(), "results": results}
        arguments.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return int(any(r["differences"]["onnxruntime"] > _TOLERANCE for result in results for r in result["models"]))


def measure(name: str, threads: int, seconds: float) -> dict[str, Any]:
    """Median times of all runtimes on one model, in milliseconds, and how far their outputs are from Accord's."""
    import accord
    from accord.errors import BackendError
    from accord.workbench.peers import Runner, peer, take_turns

    entry = TABLE[name]
    content, feed = source(entry), make_feed(entry, 0)
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = content
        if isinstance(path, bytes):
            path = Path(folder) / entry.file
            path.write_bytes(content)
        runners: dict[str, Runner] = {"accord": accord.load(path, threads=threads)}
        for other in _PEERS:
            try:
                runners[other] = peer(other, path, threads)
            except BackendError as error:
                failures[other] = str(error)
    expected = runners["accord"](feed)
    differences = {}
    for other in [r for r in runners if r != "accord"]:
        try:
            differences[other] = difference(expected, runners[other](feed))
        except Exception as error:  # noqa: BLE001  a peer may raise anything
            failures[other] = f"{type(error).__name__}: {error}"[:200]
            del runners[other]
    began = time.perf_counter()
    times: dict[str, list[float]] = {}
    for times in take_turns(runners, feed, sys.maxsize):
        if time.perf_counter() - began > seconds * len(runners) and min(map(len, times.values())) >= 12:
            break
    median = {r: statistics.median(t) * 1e3 for r, t in times.items()}
    compared = [median[r] for r in differences if r in median and differences[r] <= _TOLERANCE]
    return {
        "model": name,
        "milliseconds": {r: round(t, 4) for r, t in median.items()},
        "p95": {r: round(sorted(t)[math.ceil(0.95 * len(t)) - 1] * 1e3, 4) for r, t in times.items()},
        "runs": {r: len(t) for r, t in times.items()},
        "ratio": round(min(compared) / median["accord"], 4) if compared else None,
        "differences": differences,
        "failures": failures,
    }


def difference(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """The largest difference over all outputs, against the largest value of the output."""
    worst = 0.0
    for ours, theirs in zip(expected, actual, strict=True):
        a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        if a.shape != b.shape:
            return math.inf
        if a.size:
            worst = max(worst, float(np.abs(a - b).max() / max(float(np.abs(a).max()), 1e-30)))
    return worst


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric mean and least of the ratios."""
    ratios = [r["ratio"] for r in rows if r["ratio"]]
    return {"geometric_mean": round(statistics.geometric_mean(ratios), 4), "least": min(ratios)}


def _row(row: dict[str, Any]) -> str:
    ms = row["milliseconds"]
    cells = [f"{ms['accord']:.3g}"]
    for other in _PEERS:
        if other not in ms:
            cells.append("fails")
        else:
            cells.append(f"{ms[other]:.3g}" + (" (differs)" if row["differences"][other] > _TOLERANCE else ""))
    return " | ".join([*cells, f"{row['ratio']:.2f}"])


def drawn(result: dict[str, Any]) -> str:
    """The results of one number of threads as a table in Markdown."""
    lines = [f"{result['threads']} thread{'s' * (result['threads'] > 1)}, ms:", ""]
    lines += ["| model | Accord | ONNX Runtime | OpenVINO | best peer ÷ Accord |", "|---|---|---|---|---|"]
    lines += [f"| {row['model']} | {_row(row)} |" for row in result["models"]]
    lines += ["", f"Geometric mean {result['geometric_mean']:.2f}, least {result['least']:.2f}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
