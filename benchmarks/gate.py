"""How often the gate is right: repeats without a change, and with a drift planted in a kernel.

    python benchmarks/gate.py --clean 100 --drift 20 --out benchmarks/results/gate.json [--append] [--busy]

Kernels: a C function that does a part of its work twice, and the same in NumPy. ``--busy`` keeps all cores busy with
other processes meanwhile. ``--append`` goes on where an earlier run with the same baseline stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machine import machine

C = """
#include <stdint.h>
static void part(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float v = x[i];
        for (int k = 0; k < 8; k++) v = v * 0.999f + 0.001f * v * v;
        y[i] = v;
    }
}
int32_t poly(const float *x, float *y, int64_t N, void *stream) {
    part(x, y, N);
    part(x, y, N * EXTRA / 1000);
    return 0;
}
"""
PYTHON = """
import os
from pathlib import Path
import numpy as np
import accord
from accord import Tensor

EXTRA = int(os.environ.get("PLANTED", "0"))

@accord.operator("bench::Poly")
def poly(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
    for _ in range(8):
        x = x * np.float32(0.999) + np.float32(0.001) * x * x
    return x

poly.library(Path(__file__).parent / f"poly{EXTRA}.so", "poly")

@poly.python(name="numpy")
def numpied(x):
    y = x
    for _ in range(8):
        y = y * np.float32(0.999) + np.float32(0.001) * y * y
    z = x[: x.size * EXTRA // 1000]
    for _ in range(8):
        z = z * np.float32(0.999) + np.float32(0.001) * z * z
    return y
"""
SIZES = {"c": 16_384, "numpy": 16_384}


def build(folder: Path, extras: set[int]) -> None:
    """Write the operator and its libraries."""
    (folder / "poly.py").write_text(PYTHON)
    (folder / "poly.c").write_text(C)
    for extra in extras:
        target = folder / f"poly{extra}.so"
        if not target.exists():
            command = ["cc", "-O2", "-fPIC", "-shared", f"-DEXTRA={extra}", "-o", str(target), str(folder / "poly.c")]
            subprocess.run(command, check=True)


@contextmanager
def others(count: int) -> Iterator[None]:
    """Other processes that work, half of them in memory."""
    work = ("while True: pass", "import numpy as np\na = np.ones(1 << 25)\nwhile True: a[:] = a[::-1]")
    running = [subprocess.Popen([sys.executable, "-c", work[i % 2]]) for i in range(count)]
    try:
        yield
    finally:
        for p in running:
            p.kill()
            p.wait()


def repeat(folder: Path, kernel: str, extra: int) -> dict[str, Any]:
    """One run of the gate."""
    import os

    os.environ["PLANTED"] = str(extra)
    from accord.workbench.gate import gate

    began = time.perf_counter()
    report = gate(folder / f"{kernel}.json")
    r = report["benchmarks"][0]
    if r["verdict"] == "error":
        raise SystemExit(r["error"])
    kept = {k: r[k] for k in ("verdict", "loss", "noise", "noise_now", "discord", "machine", "rounds", "processes")}
    return {"kernel": kernel, "planted": extra / 1000, **kept, "seconds": time.perf_counter() - began}


def main() -> None:
    """Measure the baselines, then repeat."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--drift", type=int, default=20)
    parser.add_argument("--planted", type=int, default=60, help="thousandths of the work that are done twice")
    parser.add_argument("--kernels", default="c,numpy")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--folder", type=Path, required=True, help="for kernels and baselines; kept for --append")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    if shutil.which("cc") is None:
        raise SystemExit("a C compiler is needed")
    began = time.perf_counter()
    a.folder.mkdir(parents=True, exist_ok=True)
    build(a.folder, {0, a.planted})
    kernels = a.kernels.split(",")
    known = json.loads(a.out.read_text())["repeats"] if a.append and a.out.exists() else []
    from accord.workbench.gate import save
    from accord.workbench.measure import Wanted

    for kernel in kernels:
        if not a.append or not (a.folder / f"{kernel}.json").exists():
            (a.folder / f"{kernel}.json").unlink(missing_ok=True)
            wanted = Wanted("bench::Poly", (str(a.folder / "poly.py"),), {"N": (SIZES[kernel],)})
            save(a.folder / f"{kernel}.json", [(wanted, kernel)])
    kinds = ((0, a.clean), (a.planted, a.drift))
    places = sorted(((i + 0.5) / n, extra) for extra, n in kinds for i in range(n))  # both kinds all along
    turns = [(k, extra) for _, extra in places for k in kernels]
    with others(2 if a.busy else 0):
        for kernel, extra in turns:
            if time.perf_counter() - began > a.seconds:
                break
            known.append({**repeat(a.folder, kernel, extra), "busy": a.busy})
            last = known[-1]
            print(
                f"{kernel} +{extra / 10:g} %: {last['verdict']}, loss {last['loss']:+.2%}, noise {last['noise']:.2%}, "
                f"{last['rounds']} rounds, {last['seconds']:.1f} s",
                flush=True,
            )
    write(a.out, known)


def write(path: Path, repeats: list[dict[str, Any]]) -> None:
    """Write the repeats and what they come to."""
    totals: dict[str, Any] = {}
    for r in repeats:
        name = f"{r['kernel']}, planted {r['planted']:.1%}, {'load added' if r['busy'] else 'no load added'}"
        t = totals.setdefault(name, {"repeats": 0, "failed": 0, "largest_loss": -1.0, "least_loss": 1.0})
        t["repeats"] += 1
        t["failed"] += r["verdict"] == "fail"
        t["largest_loss"] = max(t["largest_loss"], r["loss"])
        t["least_loss"] = min(t["least_loss"], r["loss"])
    command = "python benchmarks/gate.py --clean N --drift N --append [--busy]"
    data = {"command": command, "machine": machine(), "totals": totals, "repeats": repeats}
    path.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
