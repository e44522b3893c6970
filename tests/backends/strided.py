"""Runs the CPU kernel of a one-node model on operands that lie in memory as a test says, task by task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.lib.stride_tricks import as_strided

from accord.backends.cpu import CpuBackend
from accord.backends.cpu.jit import KERNEL_TYPE
from accord.backends.cpu.program import address_of, words_of
from accord.backends.protocol import NativeKernel
from accord.backends.view import NodeView
from accord.ir import dims as D
from accord.ir.strides import Access
from accord.model.load import load_model
from accord.model.normalise import normalise
from accord.runtime.evaluate import evaluate_node

THREADS = 3


def scattered(
    shape: Sequence[int], dtype: Any, rng: np.random.Generator, *, unit: bool = False
) -> tuple[np.ndarray, Access, np.ndarray]:
    """An array whose axes lie in a random order with gaps, how it lies, and all of its memory.

    With ``unit`` the last axis has stride 1.
    """
    order = list(rng.permutation(len(shape)))
    if unit and order:
        order.remove(len(shape) - 1)
        order.append(len(shape) - 1)
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step * (1 if unit and axis == len(shape) - 1 else int(rng.integers(1, 3)))
        step = strides[axis] * max(1, shape[axis]) + int(rng.integers(0, 3))
    offset = int(rng.integers(0, 4))
    base = np.zeros(offset + step + 1, dtype)
    base.view(np.uint8)[:] = 0xA5
    size = base.itemsize
    view = as_strided(base[offset:], shape, [s * size for s in strides])
    return view, Access(tuple(strides), offset), base


def run_strided(
    proto: onnx.ModelProto, feeds: dict[str, np.ndarray], seed: int, *, repeat: Sequence[str] = ()
) -> list[np.ndarray]:
    """Outputs of the one node of ``proto``.

    Every input and output lies in its own random way, those in ``repeat`` with stride 0 along their first axis. The
    tasks of each phase run one at a time, in a random order, as if three threads took them.
    """
    rng = np.random.default_rng(seed)
    model = load_model(proto)
    analyzer = normalise(model, evaluator=evaluate_node).analyzer
    nodes = [n for n in model.graph if n.op_type != "Constant"]
    assert len(nodes) == 1
    node = nodes[0]
    layouts: dict[ir.Value, Access] = {}
    arrays: dict[str, np.ndarray] = {}
    for v in model.graph.inputs:
        given = feeds[v.name]
        if v.name in repeat:
            array, access, _ = scattered(given.shape[1:], given.dtype, rng)
            array[...] = given[0]
            array = np.broadcast_to(array, given.shape)
            layouts[v] = Access((0, *access.strides), access.offset)
        else:
            array, layouts[v], _ = scattered(given.shape, given.dtype, rng)
            array[...] = given
        arrays[v.name] = array
    env: dict[str, int] = {}
    for v in model.graph.inputs:
        for d, n in zip(analyzer.facts.tensor(v).shape, feeds[v.name].shape, strict=True):
            if not isinstance(d, int):
                env[str(d)] = n
    outputs = []
    for o in node.outputs:
        if not o.name:
            continue
        fact = analyzer.facts.tensor(o)
        shape = [D.evaluate(d, env) for d in fact.shape]
        array, layouts[o], base = scattered(shape, fact.dtype.numpy(), rng, unit=True)
        outputs.append((array, layouts[o], base))
    kernel = CpuBackend().select(NodeView(node, analyzer, layouts))
    assert isinstance(kernel, NativeKernel), kernel
    operands = []
    kept = []
    for i in kernel.reads:
        value = node.inputs[i]
        if i in kernel.constants:
            constant = kernel.constants[i]
            kept.append(constant() if callable(constant) else constant)
            operands.append(kept[-1].ctypes.data)
        elif value.name in arrays:
            operands.append(arrays[value.name].ctypes.data - layouts[value].offset * arrays[value.name].itemsize)
        else:
            constant = np.ascontiguousarray(analyzer.facts.tensor(value).numpy())
            arrays[value.name] = constant
            operands.append(constant.ctypes.data)
    operands += [a.ctypes.data - access.offset * a.itemsize for a, access, _ in outputs]
    sizes = [D.evaluate(d, env) for d in kernel.dims]
    scratch = np.full(sizes[-1] * THREADS + 64, 0xA5, np.uint8)
    operands.append(scratch.ctypes.data + -scratch.ctypes.data % 64)
    for phase, launch in zip(kernel.phases, kernel.launches(sizes), strict=True):
        params = words_of(launch)
        table = np.array([operands[i] for i in phase.operands], np.int64)
        function = KERNEL_TYPE(address_of(phase))
        for task in rng.permutation(launch.tasks):
            function(params.ctypes.data, table.ctypes.data, task, task + 1, int(rng.integers(THREADS)))
        assert params[-1] == 0
    for output in outputs:
        _assert_gaps_untouched(*output)
    return [a for a, _, _ in outputs]


def _assert_gaps_untouched(array: np.ndarray, access: Access, base: np.ndarray) -> None:
    """Nothing was written beside the elements of an array of :func:`scattered`."""
    elements = np.full(array.shape, access.offset)
    for axis, (n, stride) in enumerate(zip(array.shape, access.strides, strict=True)):
        elements = elements + (np.arange(n) * stride).reshape([-1 if a == axis else 1 for a in range(array.ndim)])
    rest = np.delete(base, elements.reshape(-1))
    assert (rest.view(np.uint8) == 0xA5).all()
