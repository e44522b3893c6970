"""Evaluate a whole model, node by node, as the specification's text says: the oracle of this project.

Nothing is optimised, reused or reordered. Values live in a dictionary by name; a subgraph reads the values of
the graphs around it through a chain of such dictionaries.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from accord.backends.reference.kernels import ReferenceKernel
from accord.backends.reference.registry import normal_domain
from accord.backends.reference.tensors import canonical, numpy_dtype, to_array, to_dense
from accord.errors import (
    ExecutionError,
    ExternalDataError,
    GraphError,
    InputError,
    ModelFormatError,
    UnknownOperatorError,
)

__all__ = ["Context", "FunctionEvaluator", "GraphEvaluator", "evaluate"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Context:
    """What is in force around a node.

    Attributes:
        opset_imports: Version by domain; ``""`` is the ONNX domain.
        functions: Model-local functions by domain, name and overload.
        graph: The graph that holds the node.
        callers: The functions being expanded, so that one that calls itself is found out.
    """

    opset_imports: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], FunctionProto]
    graph: GraphProto | FunctionProto | None = None
    callers: tuple[tuple[str, str, str], ...] = ()

    def evaluator(self, graph: GraphProto) -> GraphEvaluator:
        """Return an evaluator of a subgraph in this context."""
        return GraphEvaluator(graph, self)


class _Runner(Protocol):
    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any] = ...) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    runner: _Runner


def _step(node: NodeProto, context: Context) -> _Step:
    domain = normal_domain(node.domain)
    name = node.name or (node.output[0] if node.output else node.op_type)
    key = (domain, node.op_type, node.overload)
    runner: _Runner
    if key in context.functions:
        runner = FunctionEvaluator(context.functions[key], node, context)
    else:
        version = context.opset_imports.get(domain)
        if version is None:
            raise UnknownOperatorError(
                "The model does not import the operator's domain.",
                node=name,
                op=f"{domain}::{node.op_type}" if domain else node.op_type,
                expected=f"one of {sorted(context.opset_imports)}",
                found=domain,
            )
        runner = ReferenceKernel(node, version, context=context)
    return _Step(name, tuple(node.input), tuple(node.output), runner)


def _run_steps(steps: Sequence[_Step], values: ChainMap[str, Any]) -> None:
    for step in steps:
        inputs = [_read(values, name, step.name) if name else None for name in step.inputs]
        results = step.runner.run(inputs, values)
        values.update((name, value) for name, value in zip(step.outputs, results, strict=True) if name)


def _read(values: Mapping[str, Any], name: str, reader: str) -> Any:
    try:
        return values[name]
    except KeyError:
        raise GraphError(
            "The value is used before anything produces it.",
            node=reader,
            value=name,
            remedy="Sort the nodes so that each comes after those that feed it.",
        ) from None


class GraphEvaluator:
    """Evaluates one graph: a model's main graph, or the body of a control-flow operator.

    Args:
        graph: The graph; external data must have been loaded.
        context: Opsets and functions in force.

    Raises:
        UnknownOperatorError: A node's operator is unknown.
        GraphError: A node or an initializer is malformed.
    """

    def __init__(self, graph: GraphProto, context: Context) -> None:
        inner = replace(context, graph=graph)
        self.name = graph.name
        self.inputs = tuple(value.name for value in graph.input)
        self.outputs = tuple(value.name for value in graph.output)
        self.constants: dict[str, Any] = {}
        try:
            for tensor in graph.initializer:
                self.constants[tensor.name] = to_array(tensor)
            for sparse in graph.sparse_initializer:
                self.constants[sparse.values.name] = to_dense(sparse)
        except ValueError as error:
            raise GraphError(f"An initializer of graph '{graph.name}' is malformed: {error}.") from error
        self._steps = [_step(node, inner) for node in graph.node]

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any] = _NOTHING) -> list[Any]:
        """Evaluate the graph.

        Args:
            inputs: Values of the graph's inputs in order; inputs that are left over take their initializers.
            captured: Values of the enclosing graphs by name.

        Returns:
            The values of the graph's outputs in order.

        Raises:
            ExecutionError: A node failed, or there are more values than inputs.
            GraphError: A value is used that nothing produces.
        """
        if len(inputs) > len(self.inputs):
            raise ExecutionError(
                f"Graph '{self.name}' is given too many inputs.", expected=len(self.inputs), found=len(inputs)
            )
        return self.run_named(dict(zip(self.inputs, inputs, strict=False)), captured)

    def run_named(
        self,
        feeds: Mapping[str, Any],
        captured: Mapping[str, Any] = _NOTHING,
        outputs: Sequence[str] | None = None,
    ) -> list[Any]:
        """Evaluate the graph on inputs given by name.

        Args:
            feeds: Values by name; they take precedence over initializers.
            captured: Values of the enclosing graphs by name.
            outputs: Names of the values to return; the graph's outputs if None.

        Returns:
            The values asked for, in order.

        Raises:
            ExecutionError: A node failed.
            GraphError: A value is used that nothing produces.
        """
        own: dict[str, Any] = {**self.constants, **feeds}
        values = ChainMap(own, captured)  # type: ignore[arg-type]  # the outer maps are never written
        _run_steps(self._steps, values)
        return [
            _read(values, name, f"output of {self.name}") for name in (self.outputs if outputs is None else outputs)
        ]


class FunctionEvaluator:
    """Evaluates a call of a function: model-local, or the body that a schema gives for its operator.

    Args:
        function: The function.
        call: The node that calls it.
        context: Opsets and functions in force around the call.
        defaults: Attribute values to use where neither the call nor the function gives one.

    Raises:
        GraphError: The function calls itself, or an attribute cannot be converted.
    """

    def __init__(
        self,
        function: FunctionProto,
        call: NodeProto,
        context: Context,
        defaults: Mapping[str, Any] = _NOTHING,
    ) -> None:
        key = (normal_domain(function.domain), function.name, function.overload)
        if key in context.callers:
            raise GraphError("A function calls itself.", node=call.name, op=f"{key[0]}::{key[1]}")
        attributes = {
            name: onnx.helper.make_attribute(name, value)
            for name, value in defaults.items()
            if value is not None and name in function.attribute
        }
        attributes.update((a.name, a) for a in function.attribute_proto)
        attributes.update((a.name, a) for a in call.attribute)
        imports = {normal_domain(o.domain): o.version for o in function.opset_import}
        inner = replace(
            context,
            opset_imports=imports or context.opset_imports,
            graph=function,
            callers=(*context.callers, key),
        )
        self._inputs = tuple(function.input)
        self._outputs = tuple(function.output)
        self._wanted = len(call.output)
        self._steps = [_step(_bind(node, attributes), inner) for node in function.node]

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any] = _NOTHING) -> list[Any]:
        """Evaluate the call.

        Args:
            inputs: Values of the call's inputs; omitted ones at the end are None in the function.
            captured: Ignored: a function sees nothing of the graph around its call.

        Returns:
            The values of as many outputs as the call lists.

        Raises:
            ExecutionError: A node failed, or the call has more inputs or outputs than the function.
        """
        if len(inputs) > len(self._inputs) or self._wanted > len(self._outputs):
            raise ExecutionError(
                "A call does not fit its function.",
                expected=f"at most {len(self._inputs)} inputs and {len(self._outputs)} outputs",
                found=f"{len(inputs)} inputs and {self._wanted} outputs",
            )
        values: ChainMap[str, Any] = ChainMap(dict.fromkeys(self._inputs))
        values.update(zip(self._inputs, inputs, strict=False))
        _run_steps(self._steps, values)
        return [_read(values, name, "output of a function") for name in self._outputs[: self._wanted]]


def _bind(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> NodeProto:
    """Replace references to a function's attributes by values; a reference without a value is dropped."""
    bound = NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            value = attributes.get(attribute.ref_attr_name)
            if value is None:
                continue
            copy = bound.attribute.add()
            copy.CopyFrom(value)
            copy.name = attribute.name
        else:
            copy = bound.attribute.add()
            copy.CopyFrom(attribute)
            for graph in [copy.g] if copy.HasField("g") else list(copy.graphs):
                nodes = [_bind(inner, attributes) for inner in graph.node]
                del graph.node[:]
                graph.node.extend(nodes)
    return bound


def evaluate(
    model: ModelProto | str | os.PathLike[str],
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
) -> list[Any]:
    """Evaluate a model.

    Args:
        model: The model, or the path of its file. External data is read from the file's folder, so a model with
            external data must be given as a path.
        inputs: Values by input name: arrays, lists (sequences), dicts (maps), None (empty optionals). Inputs
            that have an initializer may be left out.
        outputs: Names of the values to return, which may be any value of the main graph; the model's outputs
            if None.

    Returns:
        The values asked for, in order: NumPy arrays (ml_dtypes for types that NumPy lacks, ``object`` arrays of
        str for strings), lists, dicts, or None.

    Raises:
        ModelFormatError: The file is not an ONNX model.
        ExternalDataError: External data lies outside the model's folder, is missing, or ends too early.
        GraphError: The graph is malformed.
        UnknownOperatorError: A node's operator is unknown.
        InputError: An input is missing, unknown, or of another element type than declared.
        ExecutionError: A node failed.
    """
    proto = model if isinstance(model, ModelProto) else _load(Path(model))
    # A model without imports, which the first versions of the format allowed, means version 1.
    imports = {normal_domain(o.domain): o.version for o in proto.opset_import} or {"": 1}
    functions = {(normal_domain(f.domain), f.name, f.overload): f for f in proto.functions}
    evaluator = GraphEvaluator(proto.graph, Context(imports, functions))
    return evaluator.run_named(_feeds(proto.graph, evaluator, inputs), outputs=outputs)


def _load(path: Path) -> ModelProto:
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise ModelFormatError(f"'{path.name}' is not an ONNX model: {error}.") from error
    try:
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (onnx.checker.ValidationError, OSError, ValueError) as error:
        raise ExternalDataError(f"External data of '{path.name}' cannot be read: {error}.") from error
    return model


def _feeds(graph: GraphProto, evaluator: GraphEvaluator, inputs: Mapping[str, Any]) -> dict[str, Any]:
    declared = {value.name: value.type for value in graph.input}
    unknown = sorted(set(inputs) - set(declared) - set(evaluator.constants))
    if unknown:
        raise InputError("The model has no such input.", value=unknown[0], expected=f"one of {list(declared)}")
    missing = [name for name in declared if name not in inputs and name not in evaluator.constants]
    if missing:
        raise InputError("No value is given for an input.", value=missing[0])
    feeds = {name: canonical(value) for name, value in inputs.items()}
    for name, value in feeds.items():
        kind = declared.get(name)
        if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.elem_type:
            continue
        try:
            dtype = numpy_dtype(kind.tensor_type.elem_type)
        except ValueError as error:
            raise GraphError(f"The declared type is malformed: {error}.", value=name) from error
        if getattr(value, "dtype", None) != dtype:
            raise InputError(
                "The value has another element type than the model declares.",
                value=name,
                expected=dtype,
                found=getattr(value, "dtype", type(value).__name__),
            )
    return feeds
