"""A device whose memory the host cannot read: the CPU's kernels on addresses that mean nothing outside of it.

Its kernels refuse operands in the host's memory, and reading one of its addresses outside of it ends the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from accord.backends.cpu import backend as cpu
from accord.backends.cpu.indexing import CopyCode, copy_phase
from accord.backends.memory import HOST, Block, Memory
from accord.backends.protocol import Arrangement, Backend, NativeKernel, Program, Turn, ViewKernel
from accord.ir.reason import Reason

#: What is added to an address; no process has memory there.
FAR = 1 << 60


class FarMemory(Memory):
    """Counts what is in it."""

    space = "far"

    def __init__(self) -> None:
        self.limit = 1 << 40
        self.blocks: list[int] = []
        self.uploads = 0

    def allocate(self, nbytes: int) -> Block:
        if nbytes > self.limit:
            raise MemoryError(f"{nbytes} bytes of the far memory")
        owner = np.full(nbytes + 64, 0x5A, np.uint8)
        start = owner.ctypes.data + -owner.ctypes.data % 64
        self.blocks.append(nbytes)
        return Block(start + FAR, nbytes, owner)

    def upload(self, array) -> Block:
        self.uploads += 1
        block = self.allocate(array.nbytes)
        self.write(block.address, array)
        return block

    def read(self, address: int, array, stream=None) -> None:
        ctypes.memmove(array.ctypes.data, address - FAR, array.nbytes)

    def write(self, address: int, array, stream=None) -> None:
        ctypes.memmove(address - FAR, array.ctypes.data, array.nbytes)

    def move(self, target: int, source: int, width: int, rows: int = 1, steps: tuple[int, int] = (0, 0)) -> None:
        for k in range(rows):
            ctypes.memmove(target - FAR + k * steps[0], source - FAR + k * steps[1], width)


class FarCopy(CopyCode):
    """From one memory to the other."""


class FarProgram(Program):
    """Phases run one by one, in any order that streams and events allow: the backend's ``next`` picks one of those that
    may start.
    """

    def __init__(self, launches, operands, threads, turns, owner) -> None:
        self._owner = owner
        self._operands = list(operands)
        self._near = [np.zeros_like(o) for o in operands]
        self._copies = [isinstance(phase.code, FarCopy) for phase, _ in launches]
        self._programs = [cpu.program([p], [o], threads) for p, o in zip(launches, self._near, strict=True)]
        self._after = []
        last = {}
        for k, turn in enumerate(turns or [Turn()] * len(launches)):
            self._after.append({*turn.after, *([last[turn.stream]] if turn.stream in last else [])})
            last[turn.stream] = k

    def run(self) -> int:
        for copies, given, near in zip(self._copies, self._operands, self._near, strict=True):
            far = given >= FAR
            wrong = far.sum() != 1 if copies else not far.all()
            assert not wrong, "an operand is in the wrong memory"
            near[:] = np.where(far, given - FAR, given)
        waiting, done = dict(enumerate(self._after)), set()
        while waiting:
            k = self._owner.next([k for k, after in waiting.items() if after <= done])
            self._owner.started.append(k)
            if self._programs[k].run() >= 0:
                self.refusal = self._programs[k].refusal
                return k
            done.add(k)
            del waiting[k]
        return -1


class FarBackend(Backend):
    """Takes the nodes that ``takes`` accepts.

    Attributes:
        next: Which of the phases that may start does.
        started: Numbers of phases within their programs, in the order in which they ran.
    """

    name = "far"
    device = "far"
    hosts = ("cpu", "reference")

    def __init__(self, takes: Callable[[ir.Node], bool] = lambda node: True) -> None:
        self.memory = FarMemory()
        self.takes = takes
        self.next: Callable[[list[int]], int] = min
        self.started: list[int] = []

    def _takes(self, nodes: Sequence[ir.Node]) -> bool:
        return all(n.op_type == "Identity" or self.takes(n) for n in nodes)  # it can bring its values into any order

    def select(self, view):
        if not self._takes([view.node]):
            return Reason("it is left to the host")
        kernel = cpu.select(view)
        return kernel if isinstance(kernel, (NativeKernel, ViewKernel, Reason)) else Reason("it is no native kernel")

    def select_late(self, view):
        return Reason("sizes depend on data")

    def arrange(self, view):
        return cpu.arrange(view) if self._takes([view.node]) else Arrangement(strided=True)

    def fuses(self, root):
        return cpu.fuses(root) if self._takes([root.node]) else Reason("it is left to the host")

    def joins(self, nodes):
        return cpu.joins(nodes) if self._takes([n.node for n in nodes]) else Reason("it is left to the host")

    def prepare(self, kernels) -> None:
        cpu.prepare(kernels)

    def transfer(self, nbytes, source, target):
        assert {source, target} == {HOST, "far"}
        phase = copy_phase(nbytes, (0, 1))
        return NativeKernel(f"copy {source} to {target}", (type(phase)(FarCopy(), *_rest(phase)),), (0,))

    def program(self, launches, operands, threads=1, turns=()):
        return FarProgram(launches, operands, threads, turns, self)


def _rest(phase):
    return phase.operands, phase.dims, phase.launch
