"""Control flow: If, Loop, Scan and SequenceMap run the plans of their body graphs.

Semantics as in the ONNX specification's text for each operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.backends.memory import DeviceArray, Memory
from accord.errors import ExecutionError
from accord.ir import dims as D
from accord.plan.plan import Step, SubPlan
from accord.runtime.rounds import Body, Rows, refuse_too_many, run_rounds

if TYPE_CHECKING:
    from accord.runtime.executor import Executor

__all__ = ["run"]

#: What NumPy needs for an array besides its content.
_ARRAY_BYTES = 112


def run(
    executor: Executor,
    index: int,
    step: Step,
    arguments: Sequence[Any],
    values: Sequence[Any],
    env: Mapping[str, int],
) -> list[Any]:
    """Outputs of the control-flow step ``index``."""
    operator = step.placement.op
    call = _Caller(executor, index, step, values, env)
    if operator == "If":
        return _if(call, arguments)
    if operator == "Loop":
        return _loop(call, arguments)
    if operator == "Scan":
        return _scan(call, arguments)
    return _sequence_map(call, arguments)


class _Caller:
    """Runs a body of one step with the outer values that it captures."""

    def __init__(
        self, executor: Executor, index: int, step: Step, values: Sequence[Any], env: Mapping[str, int]
    ) -> None:
        self.executor = executor
        self.index = index
        self.step = step
        self.values = values
        self.env = env
        #: The memory in which bodies compute; None: the host's.
        self.memory = executor.device.memory
        #: What each body captures.
        self.captured: dict[str, list[Any]] = {}

    def body(self, name: str) -> SubPlan:
        return next(b for b in self.step.bodies if b.name == name)

    def __call__(self, name: str, formal: Sequence[Any]) -> list[Any]:
        body = self.body(name)
        child = self.child(name)
        captured = self.taken(name)
        into = {} if self.memory is None else dict.fromkeys(range(len(body.plan.outputs)), self.memory)
        return child.run([_row_major(v) for v in (*formal, *captured)], self.env, into)

    def child(self, name: str) -> Executor:
        return self.executor.children[self.index, name]

    def taken(self, name: str) -> list[Any]:
        """What a body captures."""
        found = self.captured.get(name)
        if found is None:
            body = self.body(name)
            near = [self._near(self.child(name), k, self.values[i]) for k, i in enumerate(body.captured, body.formal)]
            found = self.captured[name] = near
        return found

    def _near(self, child: Executor, k: int, value: Any) -> Any:
        """What a body captures, brought once to the memory in which every run of it reads it."""
        reads_far = child.plan.inputs[k] in child.plan.lent
        if self.memory is None or not reads_far or not isinstance(value, np.ndarray):
            return value
        return DeviceArray.of(self.memory, value)

    def attribute(self, name: str, default: Any) -> Any:
        value = (self.step.attributes or {}).get(name)
        return default if value is None else value


def _row_major(value: Any) -> Any:
    """What a plan takes as input."""
    return np.asarray(value, order="C") if isinstance(value, np.ndarray) else value


def _truth(value: Any) -> bool:
    if np.size(value) != 1:
        raise ExecutionError("a condition must have one element", found=f"shape {list(np.shape(value))}")
    return bool(np.asarray(value).reshape(()))


def _if(call: _Caller, arguments: Sequence[Any]) -> list[Any]:
    return call("then_branch" if _truth(arguments[0]) else "else_branch", ())


def _loop(call: _Caller, arguments: Sequence[Any]) -> list[Any]:
    trips = None if arguments[0] is None else int(np.asarray(arguments[0]).reshape(()))
    condition = True if len(arguments) < 2 or arguments[1] is None else _truth(arguments[1])
    carried = list(arguments[2:])
    body = call.body("body")
    if condition:
        given = Body(np.array(0, np.int64), np.array(True), carried, (), call.taken("body"), trips)
        done = run_rounds(call.child("body"), call.env, given)
        if done is not None:
            return [*done[1], *done[2]]
    scans: list[list[Any]] = [[] for _ in range(len(body.plan.outputs) - 1 - len(carried))]
    i = held = 0
    while condition and (trips is None or i < trips):
        results = call("body", [np.array(i, np.int64), np.array(condition), *carried])
        condition = _truth(results[0])
        carried = results[1 : 1 + len(carried)]
        for collected, value in zip(scans, results[1 + len(carried) :], strict=True):
            collected.append(value)
            held += (value.nbytes if isinstance(value, DeviceArray) else np.asarray(value).nbytes) + _ARRAY_BYTES
        refuse_too_many(held, i + 1)  # twice as many, because they are joined in the end
        i += 1
    first_scan = 1 + len(carried)
    stacked = [_stack(call, body, first_scan + k, collected) for k, collected in enumerate(scans)]
    return [*carried, *stacked]


def _stack(call: _Caller, body: SubPlan, output: int, collected: list[Any], axis: int = 0) -> Any:
    """Scan outputs joined on a new axis; for no iteration an empty array of the element's shape."""
    far = next((v for v in collected if isinstance(v, DeviceArray)), None)
    if far is not None:
        return _stack_far(far.memory, collected, axis)
    if collected:
        return np.stack(collected, axis=axis)
    slot = body.plan.slots[body.plan.outputs[output]]
    shape = slot.shape or ()
    sizes = [D.evaluate(d, call.env) if D.symbols_of(d) <= call.env.keys() else 0 for d in shape]
    sizes.insert(axis, 0)
    return np.empty(sizes, slot.dtype if slot.dtype is not None else object)


def _stack_far(memory: Memory, collected: Sequence[Any], axis: int) -> DeviceArray:
    """As NumPy's ``stack`` in another memory.

    Raises:
        ExecutionError: their shapes differ.
    """
    first = collected[0]
    if any(v.shape != first.shape for v in collected):
        raise ExecutionError(
            "a scan output changes its shape", expected=f"{list(first.shape)}", found=str({v.shape for v in collected})
        )
    shape = (*first.shape[:axis], len(collected), *first.shape[axis:])
    made = DeviceArray.empty(memory, shape, first.dtype)
    for k, v in enumerate(collected):
        made.put(axis, k, v if isinstance(v, DeviceArray) else DeviceArray.of(memory, v))
    return made


def _slice(a: Any, index: int, axis: int) -> Any:
    """The elements at ``index`` of an axis, row-major."""
    if isinstance(a, DeviceArray):
        return a.part(axis, index)
    return np.asarray(np.take(a, index, axis=axis), order="C")


def _scan(call: _Caller, arguments: Sequence[Any]) -> list[Any]:
    body = call.body("body")
    n_scan = int(call.attribute("num_scan_inputs", 0))
    n_state = len(arguments) - n_scan
    state, scanned = list(arguments[:n_state]), arguments[n_state:]
    n_out = len(body.plan.outputs) - n_state
    in_axes = _axes(call.attribute("scan_input_axes", (0,) * n_scan), [np.ndim(a) for a in scanned])
    in_reverse = call.attribute("scan_input_directions", (0,) * n_scan)
    out_reverse = call.attribute("scan_output_directions", (0,) * n_out)
    length = {np.shape(a)[axis] for a, axis in zip(scanned, in_axes, strict=True)}
    if len(length) != 1:
        raise ExecutionError("scan inputs differ in length", expected="one length", found=sorted(length))
    steps = length.pop()
    out_axes = call.attribute("scan_output_axes", (0,) * n_out)
    if call.memory is None and all(isinstance(a, np.ndarray) for a in scanned):
        first = [np.ascontiguousarray(np.moveaxis(a, axis, 0)) for a, axis in zip(scanned, in_axes, strict=True)]
        rows = [Rows(a, bool(r)) for a, r in zip(first, in_reverse, strict=True)]
        done = run_rounds(call.child("body"), call.env, Body(None, None, state, rows, call.taken("body"), steps))
        if done is not None:
            joined = [a[::-1] if r else a for a, r in zip(done[2], out_reverse, strict=True)]
            return [*done[1], *(np.moveaxis(a, 0, axis) for a, axis in zip(joined, out_axes, strict=True))]
    collected: list[list[Any]] = [[] for _ in range(n_out)]
    for i in range(steps):
        slices = [
            _slice(a, steps - 1 - i if r else i, axis) for a, axis, r in zip(scanned, in_axes, in_reverse, strict=True)
        ]
        results = call("body", [*state, *slices])
        state = results[:n_state]
        for k, value in enumerate(results[n_state:]):
            if out_reverse[k]:
                collected[k].insert(0, value)
            else:
                collected[k].append(value)
    outputs = []
    for k in range(n_out):
        rank = np.ndim(collected[k][0]) + 1 if collected[k] else 1
        axis = out_axes[k] + rank if out_axes[k] < 0 else out_axes[k]
        outputs.append(_stack(call, body, n_state + k, collected[k], axis))
    return [*state, *outputs]


def _axes(axes: Sequence[int], ranks: Sequence[int]) -> list[int]:
    return [a + r if a < 0 else a for a, r in zip(axes, ranks, strict=True)]


def _sequence_map(call: _Caller, arguments: Sequence[Any]) -> list[Any]:
    first, *rest = arguments
    body = call.body("body")
    outputs: list[list[Any]] = [[] for _ in body.plan.outputs]
    for i, item in enumerate(first):
        others = [a[i] if isinstance(a, list) else a for a in rest]
        for collected, value in zip(outputs, call("body", [item, *others]), strict=True):
            collected.append(value)
    return list(outputs)
