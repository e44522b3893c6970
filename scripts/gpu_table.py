#!/usr/bin/env python3
"""Models of the table on a GPU, in each precision, beside the same models on the CPU.

    python scripts/gpu_table.py [--device DEVICE] [--precisions P,P ...] [--output FILE] [MODEL ...]

Without names, every model of the table whose file is there (``scripts/fetch_models``). An error is the largest
difference against the largest value of an output, a distance the norm of all differences against that of the values.
Half precision is held to its distance: an element at a threshold of a model, such as an edge of what is detected, may
be anything (the reference, in float16, is off by 7 % in one pixel of PP-OCR detection, and by 0.3 % in norm). Outputs
of integers are counted where they differ, and may in half precision. The exit code is 1 if a model fails, or is further
off than rounding explains.
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
from accord.errors import AccordError

#: The largest error that rounding explains, and the largest distance in halves; bfloat16 is 8 times coarser.
ERRORS = {"float32": 1e-3, "tf32": 2e-2}
DISTANCES = {"float16": 2e-2, "bfloat16": 16e-2}


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
        print(name, *(shown(row) for row in rows), flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps({"errors": found}, indent=1) + "\n")
    return int(failed)


def shown(row: dict[str, Any]) -> str:
    """A row for people."""
    figures = "failed" if "failed" in row else f"{row['error']:.1e} ({row['distance']:.1e} in norm)"
    return f"{row['precision']} {figures}{'' if row['right'] else ' WRONG'}"


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
        try:
            results = [np.asarray(v) for v in accord.load(model, device=device, precision=precision)(feed)]
        except AccordError as failure:  # the others are to be seen too
            rows.append({"precision": precision, "failed": str(failure)[:500], "right": False})
            continue
        error, distance, differing = 0.0, 0.0, 0
        for got, exact in zip(results, expected, strict=True):
            if got.shape == exact.shape and exact.dtype.kind != "f":
                differing += int((got != exact).sum())
                continue
            finite = np.isfinite(exact)
            if got.shape != exact.shape or not np.array_equal(finite, np.isfinite(got)):
                error = distance = float("inf")
            elif finite.any():
                wide = exact[finite].astype(np.float64)
                apart = got[finite].astype(np.float64) - wide
                error = max(error, float(np.abs(apart).max() / max(np.abs(wide).max(), 1e-30)))
                distance = max(distance, float(np.linalg.norm(apart) / max(np.linalg.norm(wide), 1e-30)))
        right = error <= ERRORS.get(precision, np.inf) and distance <= DISTANCES.get(precision, np.inf)
        right &= differing == 0 or precision != "float32"
        row = {"precision": precision, "error": error, "distance": distance, "differing": differing, "right": right}
        rows.append(row | {"seconds": round(time.monotonic() - began, 2)})
    return rows


if __name__ == "__main__":
    sys.exit(main())
