"""Kernels for known sizes that are started on operands wherever these are, again and again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accord.backends.protocol import Array, Backend, NativeKernel, Program

__all__ = ["Prepared"]


class Prepared:
    """A native kernel whose sizes are known.

    Threads may run it at once: each takes a program, of which there come to be as many as runs were under way.

    Args:
        backend: The kernel's.
        kernel: The kernel.
        sizes: Values of its ``dims``.
        threads: Threads that may work on a phase; the workspace has room for so many.

    Attributes:
        kernel: The kernel.
        workspace: Bytes of the workspace.
    """

    def __init__(self, backend: Backend, kernel: NativeKernel, sizes: Sequence[int], threads: int = 1) -> None:
        launches = kernel.launches(sizes)
        self.kernel = kernel
        self.workspace = sizes[-1] * threads
        self._backend = backend
        self._threads = threads
        self._launches = [(p, launch) for p, launch in zip(kernel.phases, launches, strict=True) if launch.tasks]
        self._operands = np.array([i for p, _ in self._launches for i in p.operands], np.int64)
        self._free: list[tuple[Program, Array]] = []

    def run(self, addresses: Sequence[int]) -> int:
        """Compute on operands at these addresses: inputs in ``reads``, named outputs, workspace.

        Returns:
            0, or the number with which a phase refused its data.
        """
        try:
            program, table = self._free.pop()
        except IndexError:
            program, table = self._made()
        table[:] = np.array(addresses, np.int64)[self._operands]
        refused = program.run() >= 0
        number = program.refusal if refused else 0
        self._free.append((program, table))
        return number

    def _made(self) -> tuple[Program, Array]:
        table = np.empty(len(self._operands), np.int64)
        ends = np.cumsum([len(p.operands) for p, _ in self._launches])
        parts = np.split(table, ends[:-1]) if len(ends) else []
        return self._backend.program(self._launches, parts, self._threads), table
