"""Runs loop programs and kernels of nodes on arrays that lie in memory in any way."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from accord.backends.cpu.jit import KERNEL_TYPE, compile_function, machine
from accord.backends.cpu.loops import loop_phase, lower_loops
from accord.backends.cpu.program import KernelCode, words_of
from accord.backends.loops.groups import group_kernel, select_alone
from accord.backends.loops.members import elementwise, generators, normalisations, reductions, views
from accord.backends.loops.program import LoopProgram, lowered
from accord.backends.protocol import NativeKernel, Phase
from accord.backends.view import NodeView
from accord.ir import dims as D
from accord.ir.strides import Access
from accord.model.load import load_model
from accord.model.normalise import normalise
from accord.runtime.evaluate import evaluate_node

FAMILIES = (elementwise, generators, normalisations, reductions, views)  # importing them registers their operators
Array = np.ndarray[Any, Any]
SENTINEL = 77


def device(kernel):
    """The kernel for this machine, or the reason why there is none."""
    return lowered(kernel, lower_loops) if isinstance(kernel, NativeKernel) else kernel


@dataclass(frozen=True)
class Layout:
    """How a tensor lies: axes from the outermost to the innermost, gaps after each, and which are walked backwards."""

    order: tuple[int, ...]
    gaps: tuple[int, ...] = ()
    backwards: frozenset[int] = frozenset()

    def access(self, shape: Sequence[int]) -> Access:
        strides = [0] * len(shape)
        step, offset = 1, 3
        for position, axis in reversed(list(enumerate(self.order))):
            strides[axis] = step
            if axis in self.backwards:
                strides[axis] = -step
                offset += step * max(0, shape[axis] - 1)
            step *= shape[axis] + (self.gaps[position] if self.gaps else 0)
        return Access(tuple(strides), offset)


class Memory:
    """A tensor in memory."""

    def __init__(self, shape: Sequence[int], dtype: Any, access: Access) -> None:
        self.shape = tuple(shape)
        self.access = access
        reach = [s * (n - 1) for n, s in zip(shape, access.strides, strict=True) if n]
        size = 1 + access.offset + sum(r for r in reach if r > 0)
        self.flat = np.full(size + 5, SENTINEL, dtype)
        self.mask = np.zeros(size + 5, bool)
        if math.prod(shape):
            view_of(self.mask, self.shape, access)[...] = True

    @property
    def array(self) -> Array:
        if not math.prod(self.shape):
            return np.zeros(self.shape, self.flat.dtype)
        return view_of(self.flat, self.shape, self.access)

    def untouched(self) -> bool:
        """Whether the gaps still hold what they held."""
        rest = self.flat[~self.mask]
        return bool((rest == np.full(1, SENTINEL, self.flat.dtype)).all())


def view_of(flat: Array, shape: Sequence[int], access: Access) -> Array:
    strides = [s * flat.itemsize for s in access.strides]
    return np.lib.stride_tricks.as_strided(flat[access.offset :], shape, strides)


def placed(array: Array, access: Access | None = None) -> Memory:
    """``array`` in memory."""
    if access is None:
        access = Layout(tuple(range(array.ndim))).access(array.shape)
    memory = Memory(array.shape, array.dtype, access)
    if array.size:
        memory.array[...] = array
    return memory


@contextlib.contextmanager
def vectors(bits: int) -> Iterator[None]:
    """Code for a machine whose registers have ``bits`` bits."""
    m = machine()
    before = m.vector_bits
    object.__setattr__(m, "vector_bits", bits)  # one machine is known everywhere, and does not change
    try:
        yield
    finally:
        object.__setattr__(m, "vector_bits", before)


def run_phase(phase: Phase, operands: Sequence[Array], env: Mapping[str, int]) -> None:
    """Run a phase as two threads would, in the reverse order."""
    code = phase.code
    assert isinstance(code, KernelCode)
    name = f"{code.symbol}_{machine().vector_bits}"
    kernel = KERNEL_TYPE(compile_function(name, code.module(name)))
    launch = phase.launch([D.evaluate(d, env) for d in phase.dims])
    params = words_of(launch)
    addresses = np.array([operands[i].ctypes.data for i in phase.operands], np.int64)
    middle = launch.tasks // 2
    for first, last, thread in ((middle, launch.tasks, 1), (0, middle, 0)):
        kernel(params.ctypes.data, addresses.ctypes.data, first, last, thread)
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def run_program(program: LoopProgram, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> Phase:
    """Run a program whose sizes are integers on its operands with memory and its outputs, in order."""
    n = len(inputs)
    phase, scratch = loop_phase(program, range(n), range(n, n + len(outputs)), n + len(outputs))
    arrays = [m.flat for m in (*inputs, *outputs)]
    run_phase(phase, [*arrays, np.zeros(2 * int(D.evaluate(scratch, {})) + 64, np.uint8)], {})
    assert all(m.untouched() for m in outputs)
    return phase


def run_kernel(
    kernel: NativeKernel, inputs: Sequence[Array | None], outputs: Sequence[Array], env: Mapping[str, int]
) -> None:
    """Run a kernel on flat memory."""
    read = [kernel.constants.get(i, inputs[i]) for i in kernel.reads]
    scratch = np.zeros(2 * D.evaluate(kernel.workspace, env) + 64, np.uint8)
    for phase in kernel.phases:
        run_phase(phase, [*read, *outputs, scratch], env)


class Graph:
    """A model's nodes as the backend sees them."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.model = load_model(proto)
        self.analyzer = normalise(self.model, evaluator=evaluate_node).analyzer
        self.inputs: list[ir.Value] = [*self.model.graph.inputs, *self.model.graph.initializers.values()]

    def views(self, layouts: Mapping[ir.Value, Access] | None = None) -> list[NodeView]:
        return [NodeView(n, self.analyzer, layouts) for n in self.model.graph]

    def run(
        self,
        feeds: Mapping[str, Array],
        layouts: Mapping[str, Layout],
        env: Mapping[str, int] | None = None,
        *,
        in_place: bool = False,
    ) -> tuple[NativeKernel, list[Array]]:
        """All nodes as one kernel, with inputs and outputs that lie as ``layouts`` says.

        With ``in_place`` the outputs take the memory of the inputs that the kernel allows.
        """
        outputs = list(self.model.graph.outputs)
        shapes = {
            v.name: tuple(D.evaluate(d, env or {}) for d in self.analyzer.facts.tensor(v).shape or ())
            for v in (*self.inputs, *outputs)
        }
        access = {
            v: layouts.get(v.name or "", Layout(tuple(range(len(shapes[v.name]))))).access(shapes[v.name])
            for v in (*self.inputs, *outputs)
        }
        views = self.views(access)
        if len(views) == 1:
            kernel = device(select_alone(views[0]))
            operands: list[ir.Value | None] = list(views[0].node.inputs)
        else:
            kernel = device(group_kernel(views, self.inputs, outputs, access.__getitem__))
            operands = list(self.inputs)
        assert isinstance(kernel, NativeKernel), kernel
        memory = {}
        for v in self.inputs:
            array = feeds[v.name] if v.name in feeds else v.const_value.numpy()
            memory[v] = placed(array, access[v])
        results = []
        for v in outputs:
            dtype = self.analyzer.facts.tensor(v).dtype
            assert dtype is not None
            results.append(Memory(shapes[v.name], dtype.numpy(), access[v]))
        for j, i in kernel.in_place if in_place else ():
            taken = operands[i]
            assert taken is not None
            results[j] = memory[taken]
        flat = [None if v is None else memory[v].flat for v in operands]
        run_kernel(kernel, flat, [m.flat for m in results], env or {})
        assert all(m.untouched() for m in results)
        return kernel, [m.array for m in results]
