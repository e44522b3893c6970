"""Operators whose attributes are graphs: If, Loop, Scan, SequenceMap, FlexAttention, Gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from onnx import GraphProto

from accord.backends.reference.registry import Array, OpNode
from accord.backends.reference.tensors import normal_axis, numpy_dtype, require, scalar, to_accumulator, widen

if TYPE_CHECKING:
    from accord.backends.reference.evaluator import Context

__all__ = ["CONTROL", "ControlKernel"]


class ControlKernel(Protocol):
    """A node with subgraphs, ready to run."""

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any]) -> tuple[Any, ...]:
        """Evaluate the node; ``captured`` holds the values of the enclosing graphs by name."""


class If:
    """Runs one of two graphs; the condition is a tensor of one element."""

    def __init__(self, op: OpNode, context: Context) -> None:
        self._branches = {
            True: context.evaluator(op["then_branch"]),
            False: context.evaluator(op["else_branch"]),
        }

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the outputs of the branch that the condition chooses."""
        return tuple(self._branches[bool(scalar(inputs[0]))].run((), captured))


class Loop:
    """Runs its body until the trip count is reached or the condition is false.

    An omitted trip count means no bound. An omitted condition means true for ever: what the body yields as its
    condition is then ignored, as the table in the specification says.
    """

    def __init__(self, op: OpNode, context: Context) -> None:
        graph: GraphProto = op["body"]
        self._body = context.evaluator(graph)
        self._carried = len(graph.input) - 2
        require(self._carried >= 0, "the body of Loop must have the inputs iteration number and condition")
        self._scanned = len(graph.output) - 1 - self._carried
        require(self._scanned >= 0, "the body of Loop must yield a condition and every carried value")
        self._element_types = [_declared_element(graph, 1 + self._carried + index) for index in range(self._scanned)]

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the final carried values, then the scan outputs stacked along a new first axis."""
        trips = None if inputs[0] is None else int(scalar(inputs[0]))
        given = len(inputs) > 1 and inputs[1] is not None
        condition = inputs[1] if given else np.array(True)
        going = bool(scalar(condition))
        state = list(inputs[2:])
        require(len(state) == self._carried, f"Loop carries {self._carried} values, found {len(state)}")
        collected: list[list[Any]] = [[] for _ in range(self._scanned)]
        iteration = 0
        while going and (trips is None or iteration < trips):
            results = self._body.run([np.array(iteration, dtype=np.int64), condition, *state], captured)
            condition = results[0]
            going = not given or bool(scalar(condition))
            state = results[1 : 1 + self._carried]
            for values, value in zip(collected, results[1 + self._carried :], strict=True):
                values.append(value)
            iteration += 1
        scans = [_stack(values, 0, element) for values, element in zip(collected, self._element_types, strict=True)]
        return (*state, *scans)


class Scan:
    """Runs its body over slices of its scan inputs, as version 9 and later define it; version 8 per batch entry."""

    def __init__(self, op: OpNode, context: Context) -> None:
        graph: GraphProto = op["body"]
        self._body = context.evaluator(graph)
        self._batched = op.version < 9
        self._scans_in = int(op["num_scan_inputs"])
        self._carried = len(graph.input) - self._scans_in
        self._scans_out = len(graph.output) - self._carried
        require(self._carried >= 0 and self._scans_out >= 0, "the body of Scan does not fit num_scan_inputs")
        legacy = op["directions"]
        self._input_axes = op["scan_input_axes"] or [0] * self._scans_in
        self._input_reversed = op["scan_input_directions"] or legacy or [0] * self._scans_in
        self._output_axes = op["scan_output_axes"] or [0] * self._scans_out
        self._output_reversed = op["scan_output_directions"] or [0] * self._scans_out
        self._element_types = [_declared_element(graph, self._carried + index) for index in range(self._scans_out)]

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the final state, then the scan outputs."""
        if self._batched:
            return self._run_batched(inputs, captured)
        require(
            len(inputs) == self._carried + self._scans_in,
            f"Scan takes {self._carried + self._scans_in} inputs, found {len(inputs)}",
        )
        state, collected = self._scan(inputs, captured, None)
        scans = [
            _stack(values[::-1] if backward else values, axis, element)
            for values, axis, backward, element in zip(
                collected, self._output_axes, self._output_reversed, self._element_types, strict=True
            )
        ]
        return (*state, *scans)

    def _scan(
        self, inputs: Sequence[Any], captured: Mapping[str, Any], length: int | None
    ) -> tuple[list[Any], list[list[Any]]]:
        state = list(inputs[: self._carried])
        sources = []
        for value, axis, backward in zip(inputs[self._carried :], self._input_axes, self._input_reversed, strict=True):
            moved = np.moveaxis(value, normal_axis(axis, value.ndim), 0)[:length]
            sources.append(moved[::-1] if backward else moved)
        lengths = {len(source) for source in sources}
        require(len(lengths) == 1, f"the scan inputs differ in length: {sorted(lengths)}")
        collected: list[list[Any]] = [[] for _ in range(self._scans_out)]
        for step in range(lengths.pop()):
            results = self._body.run([*state, *(np.asarray(source[step]) for source in sources)], captured)
            state = results[: self._carried]
            for values, value in zip(collected, results[self._carried :], strict=True):
                values.append(value)
        return state, collected

    def _run_batched(self, inputs: Sequence[Any], captured: Mapping[str, Any]) -> tuple[Any, ...]:
        # Version 8: optional sequence lengths come first, then tensors with a batch axis in front. The outputs
        # are padded with zeros behind the end of a shorter sequence.
        lengths, values = inputs[0], inputs[1:]
        require(len(values) == self._carried + self._scans_in, "Scan has the wrong number of inputs")
        batch = values[0].shape[0]
        longest = values[self._carried].shape[1]
        states, scans = [], []
        for entry in range(batch):
            length = longest if lengths is None else int(lengths[entry])
            state, collected = self._scan([value[entry] for value in values], captured, length)
            states.append(state)
            stacked = [_stack(v, 0, e) for v, e in zip(collected, self._element_types, strict=True)]
            scans.append([_pad_to(scan, longest) for scan in stacked])
        return tuple(np.stack(column) for column in (*zip(*states, strict=True), *zip(*scans, strict=True)))


class SequenceMap:
    """Runs its body on each element of its first input, a sequence; other sequences advance along with it."""

    def __init__(self, op: OpNode, context: Context) -> None:
        self._body = context.evaluator(op["body"])
        self._outputs = len(op["body"].output)

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return one sequence for each output of the body."""
        first = inputs[0]
        require(isinstance(first, list), "the first input of SequenceMap must be a sequence")
        for value in inputs[1:]:
            require(
                not isinstance(value, list) or len(value) == len(first),
                "the sequences given to SequenceMap differ in length",
            )
        collected: tuple[list[Any], ...] = tuple([] for _ in range(self._outputs))
        for index in range(len(first)):
            sample = [value[index] if isinstance(value, list) else value for value in inputs]
            for values, value in zip(collected, self._body.run(sample, captured), strict=True):
                values.append(value)
        return collected


class FlexAttention:
    """Scaled dot-product attention with user-given graphs on the scores and on the probabilities."""

    def __init__(self, op: OpNode, context: Context) -> None:
        self._op = op
        self._score = context.evaluator(op["score_mod"]) if op["score_mod"] is not None else None
        self._prob = context.evaluator(op["prob_mod"]) if op["prob_mod"] is not None else None

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the attention output, of the type of Q."""
        q, k, v = inputs
        require(q.ndim == k.ndim == v.ndim == 4, "FlexAttention takes tensors of rank 4")
        require(q.shape[1] % k.shape[1] == 0, "the query heads are not a multiple of the key heads")
        precision = self._op["softmax_precision"]
        default = np.float64 if q.dtype == np.float64 else np.float32
        compute = np.dtype(default) if precision is None else numpy_dtype(precision)
        scale = self._op["scale"]
        scale = 1.0 / np.sqrt(q.shape[-1]) if scale is None else scale
        group = q.shape[1] // k.shape[1]
        keys, values = (np.repeat(to_accumulator(t), group, axis=1) for t in (k, v))
        scores = (np.matmul(to_accumulator(q), np.swapaxes(keys, -1, -2)) * scale).astype(compute)
        if self._score is not None:
            scores = _modified(self._score.run([scores], captured), scores, "score_mod")
        wide = widen(scores)
        weights = np.exp(wide - wide.max(axis=-1, keepdims=True, initial=-np.inf))
        probabilities = (weights / weights.sum(axis=-1, keepdims=True)).astype(compute)
        if self._prob is not None:
            probabilities = _modified(self._prob.run([probabilities], captured), probabilities, "prob_mod")
        return (np.matmul(to_accumulator(probabilities), values).astype(q.dtype),)


def _modified(results: list[Any], before: Array, name: str) -> Array:
    require(len(results) == 1, f"{name} must have one output")
    result: Array = results[0]
    require(result.shape == before.shape, f"{name} must keep the shape {list(before.shape)}")
    return result.astype(before.dtype)


def _declared_element(graph: GraphProto, output: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Element type and shape that a body declares for an output: all that is known if it never runs."""
    kind = graph.output[output].type
    if not kind.HasField("tensor_type") or not kind.tensor_type.elem_type:
        return np.dtype(np.float32), ()
    shape = tuple(dim.dim_value for dim in kind.tensor_type.shape.dim)
    return numpy_dtype(kind.tensor_type.elem_type), shape


def _stack(values: list[Any], axis: int, element: tuple[np.dtype[Any], tuple[int, ...]]) -> Array:
    """Stack per-iteration values along a new axis; without any, an empty tensor of the declared type."""
    if not values:
        dtype, shape = element
        at = normal_axis(axis, len(shape) + 1)
        return np.zeros((*shape[:at], 0, *shape[at:]), dtype=dtype)
    shapes = {value.shape for value in values}
    require(len(shapes) == 1, f"a scan output changes its shape between iterations: {sorted(shapes)}")
    return np.stack(values, axis=normal_axis(axis, values[0].ndim + 1))


def _pad_to(scan: Array, length: int) -> Array:
    padding = np.zeros((length - len(scan), *scan.shape[1:]), dtype=scan.dtype)
    return np.concatenate([scan, padding])


class Gradient:
    """Partial derivatives of a value of the enclosing graph, by central differences in float64.

    The graph between ``xs``, ``zs`` and ``y`` is evaluated with every floating-point value in float64. Each
    derivative is extrapolated from two step widths (Richardson), which leaves an error of the order of the
    fourth power of the step. If ``y`` has several elements, the derivatives of their sum are given.
    """

    def __init__(self, op: OpNode, context: Context) -> None:
        from accord.backends.reference.gradient import Differentiable

        self._xs: list[str] = op["xs"]
        self._names = [*self._xs, *(op["zs"] or [])]
        require(context.graph is not None, "Gradient needs the graph that surrounds it")
        assert context.graph is not None
        self._function = Differentiable(context.graph, context, self._names, op["y"])

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the gradient with respect to each of ``xs``."""
        require(len(inputs) == len(self._names), f"Gradient takes {len(self._names)} inputs")
        return tuple(self._function.derivative(inputs, index, captured) for index in range(len(self._xs)))


#: Operators with subgraphs, by domain and name.
CONTROL: dict[tuple[str, str], Callable[[OpNode, Context], ControlKernel]] = {
    ("", "If"): If,
    ("", "Loop"): Loop,
    ("", "Scan"): Scan,
    ("", "SequenceMap"): SequenceMap,
    ("ai.onnx.preview", "FlexAttention"): FlexAttention,
    ("ai.onnx.preview.training", "Gradient"): Gradient,
}
