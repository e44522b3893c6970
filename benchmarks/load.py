#!/usr/bin/env python3
"""Load times, first runs and memory of the table's models on the CPU, beside ONNX Runtime.

    python benchmarks/load.py [--threads N] [--rounds N] [--output FILE] [MODEL ...]

Every figure comes from a fresh process that has only NumPy and the inputs; both runtimes' processes take turns. Import
and load are timed apart: what a runtime imports only while it loads counts as loading. "Cold" is with an empty cache of
Accord's, "cached" with what one earlier process left. Memory is what is resident after loading and 20 runs, against the
time before the import. Prints a table in Markdown and writes all figures as JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_RUNS = 20
#: Seconds of watching a process that has run and does nothing.
_IDLE = 5.0
#: Runs between two looks at the memory, and the seconds that they may take.
_MANY, _MANY_SECONDS = 10_000, 5.0
_RUNTIMES = ("accord", "onnxruntime")


# the process that measures: nothing may be imported here that a runtime imports


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of one process.

    Args:
        job: "runtime", "model" (path), "threads", "feeds" (one ``.npz`` a set of shapes), and "deep": also look for
            allocations, and for work when idle.
    """
    feeds = []
    for file in job["feeds"]:
        with np.load(file) as arrays:
            feeds.append({name: arrays[name] for name in arrays.files})
    before = resident()
    start = time.perf_counter()
    load = _LOADERS[job["runtime"]]()
    imported, after_import = time.perf_counter(), resident()
    run = load(job["model"], job["threads"])
    loaded = time.perf_counter()
    run(feeds[0])
    first = time.perf_counter()
    for _ in range(_RUNS - 1):
        run(feeds[0])
    after = resident()
    figures: dict[str, Any] = {
        "import": (imported - start) * 1e3,
        "load": (loaded - imported) * 1e3,
        "first": (first - loaded) * 1e3,
        "memory": after - before,
        "memory_after_import": after - after_import,
    }
    if job["deep"]:
        time.sleep(0.1)
        busy, since = time.process_time(), time.perf_counter()
        time.sleep(_IDLE)
        figures["idle"] = (time.process_time() - busy) / (time.perf_counter() - since)
        figures |= allocations(run, feeds[0])
    figures["steady"] = steady(run, feeds[0])
    figures["others"] = []
    for feed in feeds[1:]:
        start = time.perf_counter()
        run(feed)
        seconds = time.perf_counter() - start
        figures["others"].append({"first": seconds * 1e3, "steady": steady(run, feed)})
    return figures


def _accord() -> Callable[[str, int], Callable[[Mapping[str, Any]], Any]]:
    import accord

    load = accord.load
    return lambda path, threads: load(path, threads=threads)


def _onnxruntime() -> Callable[[str, int], Callable[[Mapping[str, Any]], Any]]:
    import onnxruntime

    def load(path: str, threads: int) -> Callable[[Mapping[str, Any]], Any]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda feed: session.run(None, feed)

    return load


_LOADERS = {"accord": _accord, "onnxruntime": _onnxruntime}


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def steady(run: Callable[[Mapping[str, Any]], Any], feed: Mapping[str, Any]) -> float:
    """Milliseconds of a run among many, the median."""
    times: list[float] = []
    until = time.perf_counter() + 0.3
    while len(times) < 8 or (time.perf_counter() < until and len(times) < 1000):
        start = time.perf_counter()
        run(feed)
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:]) * 1e3


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def allocated() -> int:
    """Bytes that the C library's ``malloc`` has handed out."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Mallinfo
    info = library.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def allocations(run: Callable[[Mapping[str, Any]], Any], feed: Mapping[str, Any]) -> dict[str, int]:
    """What many runs leave behind, and what one run takes for a moment beside the arrays that it returns.

    Returns:
        "runs"; growth in "malloc" and in "resident" bytes over all of them; "peak", the most bytes of Python and NumPy
        that a run held at once beyond its results.
    """
    for _ in range(3):
        run(feed)
    malloc, memory = allocated(), resident()
    until, runs = time.perf_counter() + _MANY_SECONDS, 0
    while runs < _MANY and time.perf_counter() < until:
        run(feed)
        runs += 1
    found = {"runs": runs, "malloc": allocated() - malloc, "resident": resident() - memory}
    tracemalloc.start()
    try:
        run(feed)
        peaks = []
        for _ in range(3):
            tracemalloc.reset_peak()
            begin, _ = tracemalloc.get_traced_memory()
            results = run(feed)
            _, most = tracemalloc.get_traced_memory()
            peaks.append(most - begin - sum(np.asarray(r).nbytes for r in results))
            del results
    finally:
        tracemalloc.stop()
    return {**found, "peak": max(0, min(peaks))}


# the process that starts the others


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names in the table (default: all)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="file for all figures, as JSON")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(measure(json.loads(arguments.job))))
        return 0
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from benchmarks.machine import invocation, machine
    from benchmarks.models import TABLE

    for name in set(arguments.models) - set(TABLE):
        parser.error(f"no model '{name}'; there are {', '.join(TABLE)}")
    rows = []
    for name in arguments.models or TABLE:
        rows.append(_model(name, arguments.threads, arguments.rounds))
        print(_row(rows[-1]), file=sys.stderr, flush=True)
    print(drawn(rows))
    if arguments.output is not None:
        data = {"command": invocation(), "machine": machine(), "models": rows}
        arguments.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


def _model(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """All processes of one model; medians, and what each of them measured."""
    from benchmarks.machine import settle
    from benchmarks.models import TABLE, make_feed, source

    entry = TABLE[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = source(entry)
        if isinstance(path, bytes):
            content, path = path, folder / entry.file
            path.write_bytes(content)
            del content
        feeds = [folder / f"{case}.npz" for case in range(len(entry.shapes))]
        for case, file in enumerate(feeds):
            np.savez(file, **make_feed(entry, case))
        job = {"model": str(path), "threads": threads, "feeds": [str(f) for f in feeds], "deep": False}
        settle()
        all_figures: dict[str, list[dict[str, Any]]] = {"cold": [], "accord": [], "onnxruntime": []}
        for k in range(rounds):
            cache = folder / f"cache{k}"
            all_figures["cold"].append(_process({**job, "runtime": "accord"}, cache))
            for runtime in _RUNTIMES if k % 2 else reversed(_RUNTIMES):
                all_figures[runtime].append(_process({**job, "runtime": runtime, "deep": k == 0}, cache))
    return {
        "model": name,
        **{kind: _medians(found) for kind, found in all_figures.items()},
        "processes": all_figures,
    }


def _process(job: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    environment = {**os.environ, "ACCORD_CACHE": str(cache)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _medians(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each figure, over the processes that have it."""
    merged: dict[str, Any] = {}
    for key in {k: None for figures in found for k in figures if k != "others"}:
        merged[key] = round(statistics.median(f[key] for f in found if key in f), 4)
    merged["others"] = [
        {key: round(statistics.median(case[key] for case in cases), 4) for key in cases[0]}
        for cases in zip(*(f["others"] for f in found), strict=True)
    ]
    return merged


_TITLES = (
    "model",
    "import",
    "ORT's",
    "cold load",
    "cached load + first run",
    "ORT's",
    "first run ÷ steady",
    "at other shapes",
    "MB",
    "ORT's",
    "MB after import",
    "ORT's",
    "left by runs, bytes",
    "peak beside results, bytes",
    "idle CPU, %",
    "ORT's",
)


def _row(row: Mapping[str, Any]) -> str:
    ours, peer, cold = row["accord"], row["onnxruntime"], row["cold"]
    others = ", ".join(f"{c['first']:.1f} ÷ {c['steady']:.1f}" for c in ours["others"])
    cells = (
        row["model"],
        f"{ours['import']:.0f}",
        f"{peer['import']:.0f}",
        f"{cold['load']:.0f}",
        f"{ours['load']:.1f} + {ours['first']:.1f}",
        f"{peer['load']:.1f} + {peer['first']:.1f}",
        f"{ours['first']:.1f} ÷ {ours['steady']:.1f}",
        others or "fixed sizes",
        *(f"{r[key] / 1e6:.0f}" for key in ("memory", "memory_after_import") for r in (ours, peer)),
        f"{ours['malloc']} in {ours['runs']} runs",
        f"{ours['peak']}",
        *(f"{r['idle'] * 100:.2f}" for r in (ours, peer)),
    )
    return f"| {' | '.join(cells)} |"


def drawn(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as a table in Markdown, times in milliseconds."""
    return "\n".join([f"| {' | '.join(_TITLES)} |", "|---" * len(_TITLES) + "|", *map(_row, rows), ""])


if __name__ == "__main__":
    sys.exit(main())
