"""Checking a run step by step: each step's result against that of the reference backend for the same inputs.

A step whose inputs are no longer what their makers wrote shows that memory is shared wrongly.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.backends.memory import DeviceArray
from accord.backends.protocol import HostKernel
from accord.backends.reference import backend as reference
from accord.backends.view import NodeView
from accord.contract.registry import contract_for
from accord.errors import AccordError
from accord.ir import dims as D
from accord.ir.facts import TensorFact, to_numpy
from accord.ir.infer import Analyzer
from accord.placement.placement import Placement
from accord.profile.difference import Bounds, Difference, differences
from accord.runtime.executor import Executor
from accord.runtime.watch import Running, Watch

__all__ = ["StepChecker", "StepFault"]


@dataclass(frozen=True, slots=True)
class StepFault:
    """The first step that is wrong.

    Attributes:
        placement: Node, kernel and backend.
        difference: Of its worst output; of the changed input where memory is at fault.
        memory: Not the kernel is at fault: an input was changed after it had been made.
    """

    placement: Placement
    difference: Difference
    memory: bool = False

    def data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        p = self.placement
        return {
            "node": p.node,
            "op": p.op,
            "backend": p.backend,
            "kernel": None if p.kernel is None else p.kernel.name,
            "memory": self.memory,
            "difference": self.difference.data(),
        }


class StepChecker(Watch):
    """Checks the steps of a run of a ``stepwise`` executor, until one is wrong.

    Args:
        executor: The executor.
        graph: The graph that its plan was made of.
        analyzer: Facts of the graph's values.
        bounds: What the result of a step may differ by.

    Attributes:
        fault: The first step that is wrong.
        checked: Steps that were compared.
        unchecked: Nodes that could not be: the reference backend cannot compute them, or an input is not known.
    """

    def __init__(self, executor: Executor, graph: ir.Graph, analyzer: Analyzer, bounds: Bounds) -> None:
        self.fault: StepFault | None = None
        self.checked = 0
        self.unchecked: dict[str, None] = {}
        self._analyzer = analyzer
        self._bounds = bounds
        self._nodes: dict[int, dict[str, ir.Node]] = {}
        self._kernels: dict[tuple[int, int], HostKernel | None] = {}
        self._written: dict[tuple[int, int], int] = {}
        self._note_nodes(executor, graph)

    def _note_nodes(self, executor: Executor, graph: ir.Graph) -> None:
        """Nodes by the name of their first output, for each plan."""
        known = {o.name: node for node in graph for o in node.outputs if o.name}
        self._nodes[id(executor)] = known
        for (index, attribute), child in executor.children.items():
            node = self._node(executor, index)
            if node is not None:
                self._note_nodes(child, node.attributes[attribute].value)

    def _node(self, executor: Executor, index: int) -> ir.Node | None:
        """The node of a step; None for a reorder, which the plan put in."""
        step, slots = executor.plan.steps[index], executor.plan.slots
        names = (slots[o].name for o in step.outputs if o >= 0)
        return next((n for name in names if (n := self._nodes[id(executor)].get(name)) is not None), None)

    def run(self, run: Running) -> None:
        """Execute the segments and check them."""
        for segment in run.frame.segments:
            index = segment if isinstance(segment, int) else segment[1][0]
            placement = run.step(index).placement
            if self.fault is not None or placement.kernel is None or placement.fallback:
                run.execute(segment)
                self._note_written(run, index)
                continue
            inputs = [_copy(_near(run.value(slot))) for slot in run.step(index).inputs]
            if self._is_changed(run, index, inputs):
                run.execute(segment)
                continue
            run.execute(segment)
            self._note_written(run, index)
            self._check(run, index, inputs)

    # the step's own work

    def _check(self, run: Running, index: int, values: Sequence[Any]) -> None:
        step = run.step(index)
        expected = self._expected(run, index, values)
        if expected is None:
            self.unchecked[step.placement.node] = None
            return
        self.checked += 1
        names, right, found = [], [], []
        for slot, value in zip(step.outputs, expected, strict=False):
            if slot >= 0:
                names.append(run.executor.plan.slots[slot].name)
                right.append(value)
                found.append(_near(run.value(slot)))
        worst = next(iter(differences(names, right, found, self._step_bounds(run, index))), None)
        if worst is not None and worst.is_fault:
            self.fault = StepFault(step.placement, worst)

    def _expected(self, run: Running, index: int, values: Sequence[Any]) -> Sequence[Any] | None:
        node = self._node(run.executor, index)
        if node is None:  # a reorder
            return [values[0]]
        kernel = self._reference(run.executor, index, node)
        if kernel is None:
            return None
        inputs = []
        for slot, v, value in zip(run.step(index).inputs, node.inputs, values, strict=True):
            known, found = (True, None) if v is None else self._known(v, run.env)
            if not known:
                if slot < 0:
                    return None
                found = value
            inputs.append(found)
        try:
            return kernel.run(inputs)
        except AccordError:
            return None

    def _known(self, v: ir.Value, env: dict[str, int]) -> tuple[bool, Any]:
        """The content of a value that is constant, or that holds sizes."""
        if v.const_value is not None and not v.is_graph_input():
            return True, to_numpy(v.const_value)
        fact = self._analyzer.facts.get(v)
        if not isinstance(fact, TensorFact):
            return False, None
        if fact.const is not None:
            return True, fact.numpy()
        if fact.data is None or fact.dtype is None or not all(D.symbols_of(d) <= env.keys() for d in fact.data):
            return False, None
        elements = [D.evaluate(d, env) for d in fact.data]
        return True, np.array(elements, fact.dtype.numpy()).reshape(() if fact.rank == 0 else (len(elements),))

    def _reference(self, executor: Executor, index: int, node: ir.Node) -> HostKernel | None:
        key = (id(executor), index)
        if key not in self._kernels:
            found = reference.select(NodeView(node, self._analyzer))
            self._kernels[key] = found if isinstance(found, HostKernel) else None
        return self._kernels[key]

    def _step_bounds(self, run: Running, index: int) -> Bounds:
        """As asked for; else what the operator's own contract declares."""
        node = self._node(run.executor, index)
        if node is None:
            return self._bounds
        try:
            contract = contract_for(node.domain, node.op_type, self._analyzer.opsets.get(node.domain, 1))
        except AccordError:
            return self._bounds
        return replace(self._bounds, declared=contract.semantic.tolerance or None)

    # memory

    def _note_written(self, run: Running, index: int) -> None:
        for slot in run.step(index).outputs:
            if slot >= 0:
                self._written[id(run.executor), slot] = _digest(_near(run.value(slot)))

    def _is_changed(self, run: Running, index: int, inputs: Sequence[Any]) -> bool:
        """Whether an input is not what its maker wrote."""
        step, slots = run.step(index), run.executor.plan.slots
        for slot, value in zip(step.inputs, inputs, strict=True):
            written = self._written.get((id(run.executor), slot))
            if written is not None and written != _digest(value):
                name = slots[slot].name
                text = "what its maker wrote"
                changed = Difference(name, float("inf"), None, (), text, "something else", 1, 1, "equality")
                self.fault = StepFault(step.placement, changed, memory=True)
                return True
        return False


def _near(value: Any) -> Any:
    """A value in the host's memory."""
    return value.numpy() if isinstance(value, DeviceArray) else value


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy(order="C")
    return [_copy(v) for v in value] if isinstance(value, list) else value


def _digest(value: Any) -> int:
    """A checksum of arrays and lists of them."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return sum(_digest(v) for v in value) if isinstance(value, list) else 0
