#!/usr/bin/env python3
"""Checks every kernel for the CPU of the operator library, two operators at a time, and says how long it took.

    python scripts/check_library.py [--record FOLDER] [NAME ...]

With ``--record`` what was verified is kept for ``accord op docs``. The exit code is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

DOMAIN = "accord"


def main() -> int:
    """Check, print, 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators (default: the whole library)")
    parser.add_argument("--record", metavar="FOLDER")
    options = parser.parse_args()
    names = options.names or _library()
    began = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda n: _checked(n, options.record), names))
    wrong = [name for name, (code, _, _) in zip(names, results, strict=True) if code]
    for name, (code, seconds, text) in sorted(zip(names, results, strict=True), key=lambda r: -r[1][1]):
        print(f"{seconds:6.1f} s  {name}  {'nothing found' if not code else text}")
    print(f"{len(names)} operators, {time.perf_counter() - began:.0f} s; something found in {len(wrong)}")
    return int(bool(wrong))


def _library() -> list[str]:
    command = [sys.executable, "-m", "accord", "op", "list", "--domain", DOMAIN, "--json"]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [o["operator"] for o in listed["operators"]]


def _checked(name: str, record: str | None) -> tuple[int, float, str]:
    command = [sys.executable, "-m", "accord", "op", "check", name]
    command += ["--record", record] if record else []
    began = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    print(f"{seconds:6.1f} s  {name}", file=sys.stderr, flush=True)
    return done.returncode, seconds, (done.stdout + done.stderr)[-1500:]


if __name__ == "__main__":
    sys.exit(main())
