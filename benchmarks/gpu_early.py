#!/usr/bin/env python3
"""Kernels that start before those in front of them are done, beside kernels that do not, in one process.

    python benchmarks/gpu_early.py [--modes off,stores] [--rounds N] [MODEL ...]

Each model is loaded once for each mode (``accord.backends.cuda.code.EARLY``), with what the first measured of its
tiles. A round times all of them by turns: a run with a wait at its end, and runs that follow each other on one
stream. The first column of figures is the median of the first, the second that of the second, in microseconds; the
results of all runs are compared with those of the first mode, bit by bit. Needs PyTorch, torchvision, transformers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from gpu_cases import CASES, exported

import accord
from accord.backends.cuda import code

MODES = ("off", "stores")
#: Runs that follow each other.
RUNS = 20


class Mode:
    """A model whose kernels were made in one mode.

    Args:
        early: The mode.
        file: The model.
        given: Its inputs, on the device.
        shape: Of its output.
    """

    def __init__(self, early: str, file: bytes, given: tuple[torch.Tensor, ...], shape: torch.Size) -> None:
        self.early = early
        code.EARLY = early
        self._model = accord.load(file, device="cuda", tuning="full")
        self._feed = dict(zip((i.name for i in self._model.inputs), given, strict=True))
        (name,) = (o.name for o in self._model.outputs)
        self.output = torch.empty(shape, dtype=torch.float16, device="cuda")
        self._into = {name: self.output}
        self._stream = torch.cuda.Stream()
        self.alone: list[float] = []
        self.behind: list[float] = []
        for _ in range(8):  # until there is a graph, of machine code of this mode
            self._run()
            self._run(self._stream.cuda_stream)

    def _run(self, stream: int | None = None) -> None:
        self._model.run_into(self._feed, self._into, stream=stream)

    def time(self) -> None:
        """A turn."""
        code.EARLY = self.early
        for _ in range(RUNS):
            start = time.perf_counter()
            self._run()
            self.alone.append(1e6 * (time.perf_counter() - start))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(self._stream)
        for _ in range(RUNS):
            self._run(self._stream.cuda_stream)
        end.record(self._stream)
        end.synchronize()
        self.behind.append(1e3 * begin.elapsed_time(end) / RUNS)


def main() -> int:
    """Measure and print; 1 if results differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(CASES)}")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    wrong = 0
    for name in options.models or [n for n, c in CASES.items() if c.make is not None]:
        found = _measured(name, options.modes.split(","), options.rounds)
        for mode, same in found:
            first = found[0][0]
            alone, behind = (statistics.median(m) for m in (mode.alone, mode.behind))
            gain, note = statistics.median(first.behind) / behind, "" if same else "WRONG"
            print(f"{name:14} {mode.early:16} {alone:9.1f} {behind:9.1f} {gain:6.3f} {note}", flush=True)
            wrong += not same
    return int(wrong > 0)


@torch.inference_mode()
def _measured(name: str, modes: list[str], rounds: int) -> list[tuple[Mode, bool]]:
    """Each mode of a model, and whether its results were always those of the first."""
    torch.manual_seed(0)
    make: Any = CASES[name].make
    module, inputs = make()
    half = module.eval().cuda().half()
    given = tuple(x.cuda().half() if x.is_floating_point() else x.cuda() for x in inputs)
    shape = half(*given).shape
    file = exported(half, given)
    del half
    found = [Mode(m, file, given, shape) for m in modes]
    wanted = found[0].output.clone()
    same = dict.fromkeys(modes, True)
    for _ in range(rounds):
        for mode in found:
            mode.output.zero_()
            torch.cuda.synchronize()
            mode.time()
            same[mode.early] &= bool(torch.equal(mode.output, wanted))
    return [(m, same[m.early]) for m in found]


if __name__ == "__main__":
    raise SystemExit(main())
