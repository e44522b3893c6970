"""Validation: whether every node of a graph is a possible use of its operator, before anything runs.

What an operator takes is read from its contract: ONNX's own, ``com.microsoft``'s or a user's. Dtypes and shapes of
intermediate values are not known here yet; shape inference checks those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from accord.contract.contract import Contract, Parameter
from accord.contract.registry import contract_for
from accord.errors import GraphError, LimitError, ModelFormatError, ModelTypeError, UnknownOperatorError
from accord.model.limits import DEFAULT_LIMITS, Limits
from accord.model.scopes import check_scopes, label_of, near, op_of, subgraphs
from accord.model.versions import VERSIONED_DOMAINS

__all__ = ["validate"]

#: Attributes that count axes.
_AXES = frozenset("axis axes perm batch_axis time_axis batch_dims scan_input_axes scan_output_axes".split())

_FunctionKey = tuple[str, str, str]


def validate(model: ir.Model, limits: Limits = DEFAULT_LIMITS) -> None:
    """Check ``model`` and put it into the form that later stages rely on.

    Afterwards the nodes of each graph are in topological order, every domain that is used has a version, and every
    value of the model has a name that no other has (those of the main graph keep theirs).

    Args:
        model: The model; changed in place.
        limits: How many nodes it may have, and how deeply its graphs may be nested.

    Raises:
        GraphError: scopes, cycles, arity, attributes, bodies or functions that do not fit.
        ModelTypeError: an attribute of another type than its operator takes.
        ModelFormatError: no operator set is imported.
        UnknownOperatorError: no such operator.
        LimitError: the model is too large.
    """
    import accord.ops.catalog  # noqa: F401  makes the operators of com.microsoft known

    if not model.graph.outputs:
        raise GraphError(
            "the graph is empty" if not len(model.graph) else "the graph has no outputs",
            expected="at least one output",
            remedy="Export the model again, and name its outputs.",
        )
    unsorted = check_scopes(model, limits)
    for graph in {id(g): g for g in unsorted}.values():
        graph.sort()
    _check_functions(model, limits)
    _check_interface(model.graph)
    checker = _Checker(model, limits)
    checker.graph(model.graph, model.graph.opset_imports, None)
    for function in model.functions.values():
        for domain, version in model.graph.opset_imports.items():
            function.opset_imports.setdefault(domain, version)
        checker.graph(function.graph, function.opset_imports, function)
    _name_values(model)


def _check_interface(graph: ir.Graph) -> None:
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        for index, value in enumerate(values):
            if not value.name:
                raise GraphError(f"{kind} {index} of the model has no name", remedy="Name it.")
    names = [v.name for v in graph.inputs]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise GraphError("two inputs of the model have the same name", value=twice, remedy="Rename one of them.")


def _check_functions(model: ir.Model, limits: Limits) -> None:
    """No function calls itself, and the model does not explode when calls are inlined."""
    functions = model.functions
    if not functions:
        return
    calls: dict[_FunctionKey, list[_FunctionKey]] = {}
    own: dict[_FunctionKey, int] = {}
    for key, function in functions.items():
        nodes = list(function.graph.all_nodes())
        own[key] = len(nodes)
        calls[key] = [n.op_identifier() for n in nodes if n.op_identifier() in functions]
    total: dict[_FunctionKey, int] = {}
    for root in functions:
        path: list[tuple[_FunctionKey, Iterator[_FunctionKey]]] = (
            [(root, iter(calls[root]))] if root not in total else []
        )
        active = {root}
        while path:
            key, rest = path[-1]
            following = next((k for k in rest if k not in total), None)
            if following is None:
                total[key] = own[key] + sum(total[k] for k in calls[key])
                active.discard(key)
                path.pop()
            elif following in active:
                ring = [k for k, _ in path]
                ring = ring[ring.index(following) :]
                raise GraphError(
                    f"functions call each other in a ring: {' → '.join(_function_name(k) for k in [*ring, following])}",
                    op=_function_name(following),
                    expected="functions without recursion",
                    remedy="Write the repetition as a Loop.",
                )
            else:
                active.add(following)
                path.append((following, iter(calls[following])))
    nodes = list(model.graph.all_nodes())
    inlined = len(nodes) + sum(total.get(n.op_identifier(), 0) for n in nodes)
    if inlined > limits.max_nodes:
        raise LimitError(
            "the model has too many nodes once its functions are inlined",
            expected=f"at most {limits.max_nodes}",
            found=f"{inlined}" if inlined < 10**18 else "more than 10^18",
        )


def _function_name(key: _FunctionKey) -> str:
    domain, name, overload = key
    return f"{domain}::{name}" + (f":{overload}" if overload else "")


def _name_values(model: ir.Model) -> None:
    """Give every value a name of its own, by which sizes and messages can refer to it."""
    for graph in (model.graph, *(f.graph for f in model.functions.values())):
        taken: set[str] = set()
        rename: list[ir.Value] = []
        for inner in (graph, *graph.subgraphs()):
            outputs = [o for n in inner for o in n.outputs if o.name != ""]
            for value in dict.fromkeys((*inner.inputs, *inner.initializers.values(), *outputs)):
                if not value.name or value.name in taken:
                    rename.append(value)
                else:
                    taken.add(value.name)
        count = 0
        for value in rename:
            base = value.name or "value"
            while (name := f"{base}_{count}") in taken:
                count += 1
            taken.add(name)
            value.name = name


def _check_initializer(value: ir.Value) -> None:
    """The stored tensor is what the graph declares under its name; where nothing hangs on that, the tensor decides."""
    tensor = value.const_value
    if tensor is None:
        return
    declared, shape = value.type, value.shape
    stored = tuple(tensor.shape.numpy())
    fits = shape is None or (
        len(shape) == len(stored)
        and all(not isinstance(d, int) or d in (-1, n) for d, n in zip(shape, stored, strict=True))
    )
    wrong = declared is not None and (not isinstance(declared, ir.TensorType) or declared.dtype != tensor.dtype)
    if wrong or (value.is_graph_input() and not fits):
        raise ModelTypeError(
            "the stored tensor is not what the graph declares",
            value=value.name,
            expected=f"{declared}{'' if shape is None else shape}",
            found=f"{tensor.dtype.name.lower()}{list(stored)}",
            remedy="Correct the declaration or the tensor.",
        )
    if not value.is_graph_input():
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(stored)


@dataclass(frozen=True, slots=True)
class _Signature:
    """A contract as the checks need it."""

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    min_inputs: int
    max_inputs: int | None
    min_outputs: int
    max_outputs: int | None
    required: tuple[int, ...]
    attributes: Mapping[str, str]
    required_attributes: tuple[str, ...]


def _signature(contract: Contract) -> _Signature:
    s = contract.semantic
    return _Signature(
        s.inputs,
        s.outputs,
        s.min_inputs,
        s.max_inputs,
        s.min_outputs,
        s.max_outputs,
        tuple(i for i, p in enumerate(s.inputs) if p.option == "single"),
        {a.name: a.kind for a in s.attributes.values()},
        tuple(a.name for a in s.attributes.values() if a.required),
    )


class _Checker:
    """Checks the nodes of one model."""

    def __init__(self, model: ir.Model, limits: Limits) -> None:
        self.functions = model.functions
        self.limits = limits
        self._signatures: dict[tuple[str, str, int], _Signature] = {}
        self._uses: dict[_FunctionKey, dict[str, set[ir.AttributeType]]] = {}

    def graph(self, graph: ir.Graph, opsets: dict[str, int], function: ir.Function | None) -> None:
        """Check all nodes of ``graph`` and of the graphs in them."""
        functions = self.functions
        for value in graph.initializers.values():
            _check_initializer(value)
        for node in graph:
            called = functions.get(node.op_identifier()) if functions else None
            if called is not None:
                opsets.setdefault(node.domain, 1)
                self._call(node, called)
            else:
                version = opsets.get(node.domain) if node.version is None else node.version
                if version is None:
                    version = opsets[node.domain] = _default_version(node)
                self._node(node, version)
            if node.attributes:
                self._references(node, function)
                for _, inner in subgraphs(node):
                    self.graph(inner, opsets, function)

    def _node(self, node: ir.Node, version: int) -> None:
        key = (node.domain, node.op_type, version)
        signature = self._signatures.get(key)
        if signature is None:
            try:
                signature = _signature(contract_for(*key))
            except UnknownOperatorError as error:
                error.node = label_of(node)
                raise
            self._signatures[key] = signature
        inputs = node.inputs
        count = len(inputs)
        if count < signature.min_inputs or (signature.max_inputs is not None and count > signature.max_inputs):
            raise _arity(node, "input", count, signature.min_inputs, signature.max_inputs, signature.inputs)
        for i in signature.required:
            if i < count and inputs[i] is None:
                raise _error(
                    node, f"input '{signature.inputs[i].name}' is left out", expected="a value: it is not optional"
                )
        if (
            signature.max_inputs is None
            and node.domain in VERSIONED_DOMAINS
            and None in inputs[len(signature.inputs) - 1 :]
        ):
            raise _error(
                node, f"one of the inputs '{signature.inputs[-1].name}' is left out", expected="values without gaps"
            )
        count = len(node.outputs)
        if count < signature.min_outputs or (signature.max_outputs is not None and count > signature.max_outputs):
            raise _arity(node, "output", count, signature.min_outputs, signature.max_outputs, signature.outputs)
        self._attributes(node, signature)
        body = _BODIES.get(node.op_type) if node.domain == "" else None
        if body is not None:
            body(node, version)

    def _attributes(self, node: ir.Node, signature: _Signature) -> None:
        known = signature.attributes
        for name, attribute in node.attributes.items():
            kind = known.get(name)
            if kind is None:
                if name.startswith("__"):  # ONNX keeps these names for notes that tools leave
                    continue
                raise _error(
                    node,
                    f"the operator has no attribute '{name}'",
                    expected=", ".join(sorted(known)) or "no attributes",
                    remedy=near(name, known) or "Check the opset that the model was written for.",
                )
            if attribute.type.name != kind:
                raise ModelTypeError(
                    f"attribute '{name}' has the wrong type",
                    node=label_of(node),
                    op=op_of(node),
                    expected=kind,
                    found=attribute.type.name,
                )
            if kind == "STRING" and isinstance(attribute.value, bytes) and node.domain in VERSIONED_DOMAINS:
                raise _error(node, f"attribute '{name}' is no text", expected="UTF-8", found=repr(attribute.value[:40]))
            if name in _AXES and not attribute.is_ref():
                self._axes(node, name, attribute.value)
        for name in signature.required_attributes:
            if name not in node.attributes:
                raise _error(
                    node,
                    f"attribute '{name}' is missing",
                    expected=f"{name}: {known[name]}",
                    found=", ".join(node.attributes) or "no attributes",
                )

    def _axes(self, node: ir.Node, name: str, value: Any) -> None:
        """Inference compares an axis with a rank, which may overflow; no tensor has so many axes."""
        rank = self.limits.max_rank
        axes = value if isinstance(value, tuple) else (value,)
        wrong = next((a for a in axes if isinstance(a, int) and not -rank <= a <= rank), None)
        if wrong is not None:
            raise ModelTypeError(
                f"attribute '{name}' names no axis",
                node=label_of(node),
                op=op_of(node),
                expected=f"-{rank} to {rank}",
                found=wrong,
            )

    def _call(self, node: ir.Node, function: ir.Function) -> None:
        for kind, given, formal in (
            ("input", len(node.inputs), function.inputs),
            ("output", len(node.outputs), function.outputs),
        ):
            if given > len(formal):
                raise _error(
                    node,
                    f"too many {kind}s for the model-local function",
                    expected=f"at most {len(formal)}: {', '.join(v.name or '?' for v in formal)}",
                    found=given,
                )
        for name, attribute in node.attributes.items():
            kinds = self._kinds(function).get(name)
            if kinds is not None and attribute.type not in kinds:
                raise ModelTypeError(
                    f"attribute '{name}' has another type than the model-local function uses it as",
                    node=label_of(node),
                    op=op_of(node),
                    expected=", ".join(sorted(k.name for k in kinds)),
                    found=attribute.type.name,
                )
            if name not in function.attributes and not name.startswith("__"):
                raise _error(
                    node,
                    f"the model-local function has no attribute '{name}'",
                    expected=", ".join(function.attributes) or "no attributes",
                    remedy=near(name, function.attributes),
                )

    def _kinds(self, function: ir.Function) -> dict[str, set[ir.AttributeType]]:
        """The types of the attributes of a function: what its nodes use each as."""
        key = function.identifier()
        if key not in self._uses:
            uses: dict[str, set[ir.AttributeType]] = {}
            for node in function.graph.all_nodes():
                for attribute in node.attributes.values():
                    if attribute.is_ref() and attribute.ref_attr_name:
                        uses.setdefault(attribute.ref_attr_name, set()).add(attribute.type)
            self._uses[key] = uses
        return self._uses[key]

    def _references(self, node: ir.Node, function: ir.Function | None) -> None:
        for name, attribute in node.attributes.items():
            if not attribute.is_ref():
                continue
            if function is None:
                raise _error(
                    node,
                    f"attribute '{name}' refers to '{attribute.ref_attr_name}' of a function, but is in none",
                    remedy="Only nodes of model-local functions may do so: give the value.",
                )
            if attribute.ref_attr_name not in function.attributes:
                raise _error(
                    node,
                    f"attribute '{name}' refers to the unknown attribute '{attribute.ref_attr_name}' of its function",
                    expected=", ".join(function.attributes) or "no attributes",
                    remedy=near(attribute.ref_attr_name, function.attributes),
                )


def _default_version(node: ir.Node) -> int:
    """The version of a domain that a model uses without importing it."""
    if node.domain in VERSIONED_DOMAINS:
        raise ModelFormatError(
            f"the model uses domain '{node.domain or 'ai.onnx'}' without importing it",
            node=label_of(node),
            op=op_of(node),
            remedy="Add an opset_import with the version that the model was written for.",
        )
    return 1


def _error(node: ir.Node, message: str, **facts: Any) -> GraphError:
    return GraphError(message, node=label_of(node), op=op_of(node), **facts)


def _arity(
    node: ir.Node, kind: str, count: int, least: int, most: int | None, ports: Sequence[Parameter]
) -> GraphError:
    number = f"{least}" if most == least else f"at least {least}" if most is None else f"{least} to {most}"
    names = ", ".join(p.name + {"optional": "?", "variadic": "..."}.get(p.option, "") for p in ports)
    few = count < least
    return _error(
        node,
        f"too {'few' if few else 'many'} {kind}s",
        expected=f"{number} ({names})",
        found=count,
        remedy="Check the opset that the model was written for." if not few else None,
    )


# bodies: what If, Loop, Scan and SequenceMap ask of the graphs that they hold ----------------------------------------


def _body(node: ir.Node, name: str) -> ir.Graph:
    attribute = node.attributes[name]
    if attribute.is_ref() or not isinstance(attribute.value, ir.Graph):
        raise _error(node, f"attribute '{name}' holds no graph")
    return attribute.value


def _check_body(node: ir.Node, name: str, inputs: int, outputs: int, why: str) -> None:
    body = _body(node, name)
    for kind, expected, values in (("inputs", inputs, body.inputs), ("outputs", outputs, body.outputs)):
        if len(values) != expected:
            raise _error(
                node,
                f"the number of {kind} of '{name}' does not fit the node",
                expected=f"{expected} ({why})",
                found=f"{len(values)}: {', '.join(v.name or '?' for v in values)}" if values else "none",
            )


def _if(node: ir.Node, version: int) -> None:
    for name in ("then_branch", "else_branch"):
        _check_body(node, name, 0, len(node.outputs), "no inputs; an output for each of the node's")


def _loop(node: ir.Node, version: int) -> None:
    carried = max(len(node.inputs) - 2, 0)
    if len(node.outputs) < carried:
        raise _error(node, "fewer outputs than carried values", expected=f"at least {carried}", found=len(node.outputs))
    why = f"inputs: iteration, condition, {carried} carried; outputs: condition, and one for each of the node's"
    _check_body(node, "body", 2 + carried, 1 + len(node.outputs), why)


def _scan(node: ir.Node, version: int) -> None:
    given = len(node.inputs) - (1 if version < 9 else 0)  # version 8 has sequence lengths as its first input
    scanned = int(node.attributes["num_scan_inputs"].value or 0)
    if not 1 <= scanned <= given:
        raise _error(node, "num_scan_inputs does not fit the inputs", expected=f"1 to {given}", found=scanned)
    states = given - scanned
    if len(node.outputs) < states:
        raise _error(node, "fewer outputs than states", expected=f"at least {states}", found=len(node.outputs))
    why = f"{states} states and {scanned} scanned inputs; an output for each of the node's"
    _check_body(node, "body", given, len(node.outputs), why)
    scans = {"input": scanned, "output": len(node.outputs) - states}
    names = (
        {"directions": scans["input"]}
        if version < 9
        else {f"scan_{kind}_{what}": scans[kind] for kind in scans for what in ("axes", "directions")}
    )
    for name, length in names.items():
        attribute = node.attributes.get(name)
        if attribute is None:
            continue
        if len(attribute.value) != length:
            raise _error(node, f"attribute '{name}' has the wrong length", expected=length, found=len(attribute.value))
        if name.endswith("directions") and not set(attribute.value) <= {0, 1}:
            raise _error(
                node, f"attribute '{name}' has an impossible entry", expected="0 or 1", found=list(attribute.value)
            )


def _sequence_map(node: ir.Node, version: int) -> None:
    _check_body(node, "body", len(node.inputs), len(node.outputs), "one for each of the node's")


_BODIES: Mapping[str, Callable[[ir.Node, int], None]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}
