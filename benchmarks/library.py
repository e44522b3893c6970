#!/usr/bin/env python3
"""Times of the operator library on the CPU, beside compositions of ONNX operators, ONNX Runtime and PyTorch.

    python benchmarks/library.py [--threads N] [--seconds S] [--output FILE] [--table FILE] [CASE ...]

A case is a model of one operator of domain ``accord``, and what computes the same elsewhere: the nodes that an exporter
would write, node by node (``unfused``, level 0) and optimised (``composition``), both in Accord; those nodes, or the
operator of its own that there is, in ONNX Runtime; a function of PyTorch. All get the same inputs and as many threads,
their results are compared first, and they take turns. ``copy`` is NumPy's copy of the input.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.library_cases import CASES, Case
from benchmarks.machine import machine, settle

#: Largest difference of two results, against the largest value.
_TOLERANCE = 5e-3


def main() -> int:
    """Measure, print, write; 1 if results differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names (default: all)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.6, help="time for each way (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="file for all times, as JSON; cases that were not run stay in it")
    parser.add_argument("--table", type=Path, help="Markdown file whose table is written anew")
    parser.add_argument("--redraw", action="store_true", help="measure nothing, only write the table")
    arguments = parser.parse_args()
    for name in set(arguments.cases) - set(CASES):
        parser.error(f"no case '{name}'; there are {', '.join(CASES)}")
    rows: dict[str, Any] = {}
    if arguments.output is not None and arguments.output.exists():
        rows = {r["case"]: r for r in json.loads(arguments.output.read_text(encoding="utf-8"))["cases"]}
    wrong = False
    for name in [] if arguments.redraw else arguments.cases or CASES:
        settle(2)
        rows[name] = measure(name, CASES[name](), arguments.threads, arguments.seconds)
        wrong |= any(d > _TOLERANCE for d in rows[name]["differences"].values())
        print(drawn([rows[name]]).splitlines()[-1], flush=True)
        if arguments.output is not None:
            command = f"python benchmarks/library.py --threads {arguments.threads}"
            data = {"command": command, "machine": machine(), "threads": arguments.threads, "cases": _ordered(rows)}
            arguments.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if arguments.table is not None:
        text = arguments.table.read_text(encoding="utf-8")
        head, _, rest = text.partition("<!-- table -->\n")
        _, _, tail = rest.partition("<!-- end -->\n")
        table = f"<!-- table -->\n{drawn(_ordered(rows))}\n<!-- end -->\n"
        arguments.table.write_text(head + table + tail, encoding="utf-8")
    return int(wrong)


def _ordered(rows: Mapping[str, Any]) -> list[Any]:
    return [rows[n] for n in CASES if n in rows]


def measure(name: str, case: Case, threads: int, seconds: float) -> dict[str, Any]:
    """Median times of all ways in milliseconds, and how far their results are from the library's."""
    from accord.workbench.peers import take_turns

    with tempfile.TemporaryDirectory() as folder:
        ways = _ways(case, threads, Path(folder))
    expected = ways["accord"](case.feed)
    differences: dict[str, float] = {}
    failures: dict[str, str] = {}
    for way in [w for w in ways if w not in ("accord", "copy")]:
        try:
            differences[way] = _difference(expected, ways[way](case.feed))
        except Exception as error:  # noqa: BLE001  a peer may raise anything
            failures[way] = f"{type(error).__name__}: {error}"[:160]
            del ways[way]
    began, times = time.perf_counter(), {}
    for times in take_turns(ways, case.feed, sys.maxsize):
        if time.perf_counter() - began > seconds * len(ways) and min(map(len, times.values())) >= 7:
            break
    median = {w: statistics.median(t) * 1e3 for w, t in times.items()}
    return {
        "case": name,
        "what": case.what,
        "milliseconds": {w: round(t, 5) for w, t in median.items()},
        "bytes": case.moved,
        "differences": differences,
        "failures": failures,
    }


def _ways(case: Case, threads: int, folder: Path) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    """Everything that computes the case, by name."""
    import accord
    from accord.workbench.peers import peer

    ways: dict[str, Callable[[Mapping[str, Any]], Any]] = {"accord": accord.load(case.model, threads=threads)}
    for way, options in case.options.items():
        ways[way] = accord.load(case.model, threads=threads, **options)
    if case.nodes is not None:
        ways["composition"] = accord.load(case.nodes, threads=threads)
        ways["unfused"] = accord.load(case.nodes, threads=threads, level=0)
    peers = case.peer or case.nodes
    if peers is not None:
        path = folder / "peer.onnx"
        onnx.save(peers, path)
        try:
            ways["onnxruntime"] = peer("onnxruntime", path, threads)
        except Exception as error:  # noqa: BLE001  a peer may raise anything
            print(f"onnxruntime: {error}"[:200], file=sys.stderr)
    if case.torch is not None:
        try:
            import torch
        except ImportError:
            return _with_copy(case, ways)
        torch.set_num_threads(threads)
        given = {n: torch.from_numpy(v) for n, v in case.feed.items()}
        for way, function in case.torch(torch, given).items():
            ways[way] = _in_torch(torch, function)
    return _with_copy(case, ways)


def _in_torch(torch: Any, function: Callable[[], Any]) -> Callable[[Mapping[str, Any]], Any]:
    def run(feed: Mapping[str, Any]) -> Any:
        del feed
        with torch.inference_mode():
            found = function()
        return [f.numpy() for f in (found if isinstance(found, tuple) else (found,))]

    return run


def _with_copy(case: Case, ways: dict[str, Any]) -> dict[str, Any]:
    if case.copied:
        ways["copy"] = lambda feed: [feed[case.copied].copy()]
    return ways


def _difference(expected: Any, actual: Any) -> float:
    from benchmarks.cpu import difference

    return difference([expected[0]], [np.asarray(actual[0])])


def drawn(rows: list[dict[str, Any]]) -> str:
    """A table in Markdown: microseconds of the library, and how many times as long everything else takes."""
    lines = ["| case | library, µs | others, times as long |", "|---|---|---|"]
    for r in rows:
        own = r["milliseconds"]["accord"]
        others = ", ".join(f"{w} {t / own:.2f}" for w, t in r["milliseconds"].items() if w != "accord")
        speed = f" ({r['bytes'] / own / 1e6:.1f} GB/s)" if r["bytes"] else ""
        lines.append(f"| {r['case']}: {r['what']} | {own * 1e3:.1f}{speed} | {others} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
