"""Operand types: what each node is given agrees with what its operator's contract accepts.

This is looked at once the dtype of every value is known, after ``normalise``. Kernels rely on it: generated code reads
memory in the dtype that the contract promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from accord.contract.registry import contract_for
from accord.errors import GraphError, ModelTypeError, UnknownOperatorError
from accord.ir.facts import Fact, FactTable, OptionalFact, SequenceFact, TensorFact, fact_of_type
from accord.model.scopes import label_of, op_of, subgraphs
from accord.model.versions import VERSIONED_DOMAINS

__all__ = ["check_operands", "declared_outputs"]


@dataclass(frozen=True, slots=True)
class _Port:
    """An input as a contract states it: its name, type variable, accepted types, whether all of it are one type, and
    whether it may be left out.
    """

    name: str
    variable: str
    accepted: frozenset[str]
    homogeneous: bool
    optional: bool


@dataclass(frozen=True, slots=True)
class _Ports:
    """The inputs of an operator (the last one stands for all further ones where ``variadic``) and the attributes that
    it needs.
    """

    ports: tuple[_Port, ...]
    variadic: bool
    attributes: tuple[str, ...]


def declared_outputs(model: ir.Model) -> dict[str, ir.TypeProtocol]:
    """The types that the model states for its outputs, by name."""
    return {v.name: v.type for v in model.graph.outputs if v.name and v.type is not None}


def check_operands(
    model: ir.Model, facts: FactTable, opsets: Mapping[str, int], declared: Mapping[str, ir.TypeProtocol]
) -> None:
    """Check the types of all inputs of all nodes, and those of the model's outputs.

    Args:
        model: The normalised model; nothing is changed.
        facts: Facts of its values.
        opsets: Version by domain.
        declared: What the file states for outputs, from :func:`declared_outputs`.

    Raises:
        ModelTypeError: a type that the operator does not accept, two types where it wants one, or an output that is
            not what the file states.
        GraphError: an input or attribute that a function's call left out is not optional.
    """
    _Checker(facts, opsets).graph(model.graph)
    for value in model.graph.outputs:
        stated = _text(fact_of_type(declared.get(value.name or ""), None, "v"))
        found = _text(facts.get(value))
        if stated is not None and found is not None and stated != found:
            raise ModelTypeError(
                "the output has another type than the model states",
                value=value.name,
                expected=stated,
                found=found,
                remedy="Correct the declared output, or insert a Cast.",
            )


class _Checker:
    def __init__(self, facts: FactTable, opsets: Mapping[str, int]) -> None:
        self.facts = facts
        self.opsets = opsets
        self._ports: dict[tuple[str, str], _Ports | None] = {}

    def graph(self, graph: ir.Graph) -> None:
        for node in graph:
            key = (node.domain, node.op_type)
            if key not in self._ports:
                self._ports[key] = _ports(*key, self.opsets.get(node.domain, 1))
            ports = self._ports[key]
            if ports is not None:
                self._node(node, ports)
            if node.attributes:
                for _, inner in subgraphs(node):
                    self.graph(inner)

    def _node(self, node: ir.Node, inputs: _Ports) -> None:
        ports = inputs.ports
        bound: dict[str, tuple[str, str]] = {}
        for name in inputs.attributes:
            if name not in node.attributes:
                raise self._left_out(node, f"attribute '{name}'")
        for i, value in enumerate(node.inputs):
            if i >= len(ports) and not inputs.variadic:
                break
            port = ports[min(i, len(ports) - 1)]
            if value is None:
                if not port.optional:
                    raise self._left_out(node, f"input '{port.name}'")
                continue
            found = _text(self.facts.get(value))
            if found is None:
                continue
            if found not in port.accepted:
                raise ModelTypeError(
                    f"input '{port.name}' has a type that the operator does not accept",
                    node=label_of(node),
                    op=op_of(node),
                    value=value.name,
                    expected=", ".join(sorted(port.accepted)),
                    found=found,
                    remedy="Insert a Cast, or check the exporter.",
                )
            if not port.homogeneous:
                continue
            other, by = bound.setdefault(port.variable, (found, port.name))
            if other != found:
                raise ModelTypeError(
                    f"inputs '{by}' and '{port.name}' must have the same type",
                    node=label_of(node),
                    op=op_of(node),
                    value=value.name,
                    expected=other,
                    found=found,
                    remedy="Insert a Cast, or check the exporter.",
                )

    @staticmethod
    def _left_out(node: ir.Node, what: str) -> GraphError:
        """A single node that lacks something was found before; this one has lost it with a function's call."""
        return GraphError(
            f"{what} is left out",
            node=label_of(node),
            op=op_of(node),
            expected="a value: it is not optional",
            remedy="Give it where the model-local function is called.",
        )


def _ports(domain: str, name: str, version: int) -> _Ports | None:
    """The inputs of an operator; None where the operator is not known, as for those that passes make."""
    try:
        semantic = contract_for(domain, name, version).semantic
    except UnknownOperatorError:
        return None
    ports = []
    for p in semantic.inputs:
        accepted = semantic.types.get(p.type, frozenset({p.type}))
        # A type that is no variable is the same for every port that has it, which needs no comparing.
        optional = p.option == "optional" or (p.option == "variadic" and domain not in VERSIONED_DOMAINS)
        ports.append(_Port(p.name, p.type, accepted, p.homogeneous and p.type in semantic.types, optional))
    variadic = bool(semantic.inputs) and semantic.inputs[-1].option == "variadic"
    return _Ports(tuple(ports), variadic, tuple(a.name for a in semantic.attributes.values() if a.required))


def _text(fact: Fact) -> str | None:
    """A fact's type as ONNX writes it; None while it is unknown."""
    if isinstance(fact, TensorFact):
        return None if fact.dtype is None else f"tensor({fact.dtype.name.lower()})"
    if isinstance(fact, (SequenceFact, OptionalFact)):
        element = None if fact.element is None else _text(fact.element)
        kind = "seq" if isinstance(fact, SequenceFact) else "optional"
        return None if element is None else f"{kind}({element})"
    return None
