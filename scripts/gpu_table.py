#!/usr/bin/env python3
"""Models of the table on a GPU, in each precision, beside the same models on the CPU.

    python scripts/gpu_table.py [--device DEVICE] [--precisions P,P ...] [--output FILE] [MODEL ...]

Without names, every model of the table whose file is there (``scripts/fetch_models``). An error is the largest
difference against the largest value of an output. Outputs of integers are counted where they differ, and may in half
precision. The exit code is 1 if an error is larger than rounding explains.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.models import ALL, Entry, make_feed, source

import accord

#: The largest error that rounding explains, by precision.
LIMITS = {"float32": 1e-3, "tf32": 2e-2, "float16": 5e-2, "bfloat16": 2e-1}


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(ALL)}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precisions", default="float32,float16,bfloat16", help="(default: %(default)s)")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    for name in set(options.models) - set(ALL):
        parser.error(f"no model '{name}'; there are {', '.join(ALL)}")
    names = options.models or [n for n, e in ALL.items() if is_there(e)]
    if not names:
        parser.error("no model of the table is there; run scripts/fetch_models")
    found, failed = {}, False
    for name in names:
        rows = found[name] = compare(ALL[name], options.device, options.precisions.split(","))
        failed |= any(not row["right"] for row in rows)
        print(name, *(f"{r['precision']} {r['error']:.1e}{'' if r['right'] else ' WRONG'}" for r in rows), flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps({"errors": found}, indent=1) + "\n")
    return int(failed)


def is_there(entry: Entry) -> bool:
    """Whether the model can be loaded without a download."""
    try:
        source(entry)
    except FileNotFoundError:
        return False
    return True


def compare(entry: Entry, device: str, precisions: list[str]) -> list[dict[str, Any]]:
    """For each precision the error over the first shape of a model, and whether it is small enough."""
    model = source(entry)
    feed = make_feed(entry, 0)
    expected = [np.asarray(v) for v in accord.load(model)(feed)]
    rows = []
    for precision in precisions:
        began = time.monotonic()
        results = [np.asarray(v) for v in accord.load(model, device=device, precision=precision)(feed)]
        error, differing = 0.0, 0
        for got, exact in zip(results, expected, strict=True):
            if got.shape != exact.shape:
                error = float("inf")
            elif exact.dtype.kind != "f":
                differing += int((got != exact).sum())
            elif exact.size:
                apart = np.abs(got.astype(np.float64) - exact.astype(np.float64)).max()
                error = max(error, float(apart / max(np.abs(exact).max(), 1e-30)))
        right = error <= LIMITS[precision] and (differing == 0 or precision != "float32")
        seconds = round(time.monotonic() - began, 2)
        row = {"precision": precision, "error": error, "differing": differing, "right": right, "seconds": seconds}
        rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
