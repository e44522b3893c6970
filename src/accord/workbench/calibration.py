"""Calibration kernels: work whose time tells how fast the machine is at the moment, not how good anybody's kernel is.

One adds and multiplies in registers, one copies as many bytes as the measured kernel touches, so that it lives in the
same level of memory. Both are sized to take about as long as the kernel does: what disturbs the one by chance disturbs
the others as often.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from accord.backends.cpu.jit import load
from accord.backends.cpu.program import CpuProgram, KernelCode
from accord.backends.protocol import Launch, Phase
from accord.profile import probes
from accord.profile.probes import CopyProbe, MultiplyProbe, block_bytes
from accord.workbench.arrays import Array, aligned

__all__ = ["KINDS", "Calibration", "Calibrator", "code_hash"]

KINDS: Final = ("arithmetic", "copy")
#: Most bytes that are copied: beyond the caches of every processor.
_MOST: Final = 256 << 20
#: Turns of the multiply-add loop, of which it is found out how long one takes.
_TRIAL: Final = 1_000


@dataclass(frozen=True, slots=True)
class Calibration:
    """Sizes of the calibration kernels.

    Attributes:
        turns: Of the multiply-add loop.
        blocks: Blocks that are copied in one pass.
        passes: Over the same bytes.
        threads: That work, each as much.
        code: Of the kernels, :func:`code_hash`.
    """

    turns: int
    blocks: int
    passes: int
    threads: int
    code: str

    def data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def code_hash() -> str:
    """A hash of what the calibration kernels are made from: figures of others cannot be compared."""
    return hashlib.sha256(Path(probes.__file__).read_bytes()).hexdigest()[:16]


class Calibrator:
    """The calibration kernels, ready to run.

    Attributes:
        size: Their sizes.
    """

    def __init__(self, size: Calibration) -> None:
        load([MultiplyProbe("f32"), CopyProbe()])
        self.size = size
        # all tasks of a thread are equal, so that it does not matter which thread takes which
        half = max(1, size.blocks) * block_bytes()
        source, target = aligned((half,), np.uint8), aligned((half,), np.uint8)
        source[:], target[:] = 1, 0
        regions = max(1, min(size.threads, size.blocks))
        sums = aligned((64 * size.threads,), np.uint8)
        self._memory = (source, target, sums)  # programs know addresses only
        self._programs: dict[str, CpuProgram] = {
            "arithmetic": _program(MultiplyProbe("f32"), (size.turns,), [sums], size.threads, size.threads),
            "copy": _program(
                CopyProbe(),
                (max(1, size.blocks // regions), size.passes, regions),
                [source, target],
                regions,
                size.threads,
            ),
        }
        for _ in range(5):
            self.run("arithmetic")
            self.run("copy")

    @classmethod
    def sized(
        cls, nbytes: int, seconds: float, threads: int, timed: Callable[[Callable[[], None]], float]
    ) -> Calibrator:
        """Calibration kernels that take about as long as a kernel.

        Args:
            nbytes: What the kernel reads and writes.
            seconds: How long it takes.
            threads: Of one run.
            timed: Gives the middle time of several calls.
        """
        blocks = max(1, min(nbytes, _MOST) // 2 // block_bytes())
        trial = cls(Calibration(_TRIAL, blocks, 1, threads, code_hash()))
        turn = timed(lambda: trial.run("arithmetic")) / _TRIAL
        once = timed(lambda: trial.run("copy"))
        turns, passes = max(1, round(seconds / turn)), max(1, round(seconds / once))
        return cls(Calibration(turns, blocks, passes, threads, code_hash()))

    def run(self, kind: str) -> None:
        """Run the calibration kernel ``kind``."""
        self._programs[kind].run()


def _program(code: KernelCode, params: tuple[int, ...], operands: list[Array], tasks: int, threads: int) -> CpuProgram:
    table = np.array([a.ctypes.data for a in operands], np.int64)
    return CpuProgram([(Phase(code, tuple(range(len(operands))), ()), Launch(params, tasks))], [table], threads)


def as_calibration(data: Mapping[str, Any]) -> Calibration:
    """What :meth:`Calibration.data` wrote."""
    return Calibration(**data)
