#!/usr/bin/env python3
"""ONNX's node cases on a GPU, in several processes, and what keeps cases from staying there.

    python scripts/gpu_conformance.py [--processes N] [--filter REGEX] [--level N] [--output FILE]

A case leaves the GPU if a kernel of another device works on a tensor of data, in the model or in a body graph of
control flow. Copies are no such work, nor is what computes sizes on the host (the shape of a value, arithmetic on it)
or reads there what decides how a kernel on the GPU works (axes, pads, a condition). Cases of strings, sequences and
the like are counted apart: those values are not tensors of numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

_NUMERIC = frozenset(range(1, 24)) - {8, 14, 15}  # all element types but strings and complex numbers


def main() -> int:
    """Run, print, write; 1 if a case fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--filter", default="", metavar="REGEX")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        options.output.write_text(json.dumps(_part(options)))
        return 0
    results = _all(options)
    failed = [r for r in results if r["error"]]
    numeric = [r for r in results if r["numeric"]]
    stay = [r for r in numeric if not r["error"] and not r["elsewhere"]]
    print(f"{len(results) - len(failed)} of {len(results)} pass")
    print(f"{len(stay)} of {len(numeric)} with tensors of numbers stay on the GPU ({len(stay) / len(numeric):.1%})")
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for r in numeric:
        for op, why in {(op, why) for op, why in r["elsewhere"]}:
            reasons[op, why].append(r["name"])
    operators = Counter(op for r in numeric for op in {op for op, _ in r["elsewhere"]})
    print("elsewhere:", ", ".join(f"{op} {n}" for op, n in operators.most_common()))
    for r in failed:
        print(f"FAILED {r['name']}: {r['error'][:300]}")
    if options.output:
        data = {
            "passed": len(results) - len(failed),
            "cases": len(results),
            "numeric": len(numeric),
            "on the GPU": len(stay),
            "failures": {r["name"]: r["error"] for r in failed},
            "elsewhere": {f"{op}: {why}": names for (op, why), names in sorted(reasons.items())},
        }
        options.output.write_text(json.dumps(data, indent=1))
    return int(bool(failed))


def _all(options: argparse.Namespace) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{k}.json" for k in range(options.processes)]
        common = [sys.executable, __file__, "--filter", options.filter, "--level", str(options.level)]
        common += ["--processes", str(options.processes)]
        running = [subprocess.Popen([*common, "--part", str(k), "--output", str(file)]) for k, file in enumerate(files)]
        for process, file in zip(running, files, strict=True):
            process.wait()
            if file.exists():
                results += json.loads(file.read_text())
            else:
                error = f"its process ended with {process.returncode}"
                results.append({"name": file.stem, "error": error, "numeric": True, "elsewhere": []})
    return results


def _part(options: argparse.Namespace) -> list[dict[str, Any]]:
    from accord.cli.suites import load_suite

    cases = load_suite("node", options.filter)[options.part :: options.processes]
    return [_run(case, options.level) for case in cases]


def _run(case: Any, level: int) -> dict[str, Any]:
    import accord
    from accord.backends.cuda import SIZES
    from accord.backends.reference.compare import judge
    from accord.cli.suites import is_random
    from accord.onnx_backend import AccordRep
    from accord.plan.plan import all_steps

    result: dict[str, Any] = {"name": case.name, "error": None, "elsewhere": [], "numeric": False}
    try:
        proto = case.model()
        result["numeric"] = all(
            v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in _NUMERIC
            for v in (*proto.graph.input, *proto.graph.output)
        )
        model = accord.load(proto, device="cuda", level=level, tuning="off")
        for step in all_steps(model.plan):
            place = step.placement
            if place.backend not in ("cuda", "plan", "runtime") and not any(r == SIZES for _, r in place.declined):
                result["elsewhere"].append((place.op, place.reason))
        for inputs, expected in case.data(proto):
            for _ in range(2):
                actual = list(AccordRep(model).run(inputs))
                judge(expected, actual, case.rtol, case.atol, random=is_random(proto))
    except Exception as error:  # noqa: BLE001  whatever a case raises is its result
        result["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return result


if __name__ == "__main__":
    sys.exit(main())
