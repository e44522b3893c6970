"""The stage ``normalise``: one form for every model.

What later stages see after it: one version of the ONNX domain, no model-local functions, no operator that an
expansion writes in others, constants as initializers, facts of every value. The walk follows the order of execution,
so the facts of a node's inputs are known when the node is looked at, and an expansion can tell the short form from the
general one. Nothing is optimised here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import onnx_ir as ir

import accord.model.flex
import accord.model.gradient
import accord.model.upgrade
import accord.ops.shapes  # noqa: F401  registers the shape rules
from accord.contract.registry import user_contract
from accord.errors import GraphError, UnsupportedError, VerifyError
from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.compute import content_symbol
from accord.ir.dims import Dim, DimLike
from accord.ir.expand import ANY_VERSION, CANONICAL_OPSET, expansion_for
from accord.ir.facts import FactTable, OtherFact, fact_of_type, merge
from accord.ir.infer import Analyzer, Evaluator, Inference, op_name
from accord.model.bodies import BODY_FACTS, without_content
from accord.model.branches import decisive_inputs
from accord.model.graphs import BodyCopy, Names, detach, inner_graphs, sort
from accord.model.upgrade.common import node_name

__all__ = ["Decide", "Normalised", "Note", "normalise"]

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


#: An integer input may be anything.
_LOWEST = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Note:
    """One change that the stage made, as data for ``explain``.

    Attributes:
        node: Name of the node that was replaced.
        op: Its operator, ``Name`` or ``domain::Name``.
        domain: Its domain.
        version: The version of the domain that the node was written for.
        target: The version that it is in now; None where no version changed (functions, compositions).
        built: Operators that took its place, in order; empty for a constant.
    """

    node: str
    op: str
    domain: str
    version: int
    target: int | None
    built: tuple[str, ...]

    def __str__(self) -> str:
        what = ", ".join(self.built) if self.built else "initializer"
        how = f"opset {self.version} → {self.target}: " if self.target is not None else ""
        return f"{self.node} ({self.op}): {how}{what}"


@dataclass(frozen=True, slots=True)
class Normalised:
    """What :func:`normalise` leaves.

    Attributes:
        model: The model that was given, changed in place.
        facts: Facts of every value of the model.
        analyzer: Makes facts of new nodes; its versions are those that the model declares now.
        notes: What was changed, in order.
    """

    model: ir.Model
    facts: FactTable
    analyzer: Analyzer
    notes: tuple[Note, ...]


#: Says which branch of an If is taken whose condition depends on sizes; None leaves it open.
Decide: TypeAlias = Callable[[Dim], "bool | None"]


def normalise(
    model: ir.Model,
    *,
    evaluator: Evaluator | None = None,
    facts: FactTable | None = None,
    decide: Decide | None = None,
) -> Normalised:
    """Bring ``model`` to the canonical form, in place.

    Nodes of the ONNX domain are rewritten to :data:`~accord.ir.expand.CANONICAL_OPSET`; a model that declares a later
    version keeps it. Calls of model-local functions are replaced by the functions' bodies, each read in the versions
    that the function declares. Inputs and outputs of the model keep their names, dtypes and shapes.

    Args:
        model: The model.
        evaluator: Computes small constant nodes while facts are made; None leaves them symbolic.
        facts: A table that knows more of the inputs than the model declares; it is extended.
        decide: Asked for each If whose condition depends on sizes of inputs alone, or on inputs of one integer. The
            model then only holds for inputs for which the answers are right.

    Raises:
        GraphError: a cycle among nodes or functions, or nodes of a domain that the model does not import.
        ModelTypeError: a node's inputs contradict its operator.
        UnsupportedError: a version that the installed ``onnx`` does not know, or an operator without an equivalent.
    """
    target = _target_version(model)
    table = facts if facts is not None else FactTable()
    versions = {**model.opset_imports, "": target}
    analyzer = Analyzer(table, versions, evaluator=evaluator)
    declared = dict(model.opset_imports)
    if "" not in declared:
        # Before version 3 of the format there were no imports, which meant version 1.
        declared.update({"": 1} if model.ir_version < 3 else {})
    walk = _Walk(model, analyzer, target, decide)
    walk.graph(model.graph, _Scope(declared))
    model.functions.clear()
    _declare(model, versions, target)
    return Normalised(model, table, analyzer, tuple(walk.notes))


def _target_version(model: ir.Model) -> int:
    """The version that the ONNX domain will have.

    Raises:
        UnsupportedError: a declared version is not one that ``onnx`` knows.
    """
    import onnx.defs

    newest = onnx.defs.onnx_opset_version()
    declared = [model.opset_imports, *(f.opset_imports for f in model.functions.values())]
    versions = [v[""] for v in declared if "" in v]
    for version in versions:
        if not 1 <= version <= newest:
            raise UnsupportedError(
                f"the model declares version {version} of the ONNX operators",
                expected=f"a version from 1 to {newest}, the newest that the installed onnx knows",
                found=version,
                remedy="Update the onnx package, or export for an earlier opset.",
            )
    return max([CANONICAL_OPSET, *versions])


def _declare(model: ir.Model, versions: dict[str, int], target: int) -> None:
    """State what the model uses now: the versions of its domains, and the format that they need."""
    import onnx.helper

    used = {node.domain for node in model.graph.all_nodes()} | {""}
    for domain in set(versions) - used:
        del versions[domain]
    for domain in used - set(versions):
        versions[domain] = 1
    model.opset_imports.clear()
    model.opset_imports.update(versions)
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", target)])
    model.ir_version = max(model.ir_version, needed)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where a node was written.

    Attributes:
        versions: Versions of the domains that the model or the function declares.
        calls: Functions that are being inlined, outermost first.
        made: True for nodes that an expansion built: they are of the newest version.
    """

    versions: Mapping[str, int]
    calls: tuple[ir.OperatorIdentifier, ...] = ()
    made: bool = False

    def version(self, node: ir.Node) -> int:
        """The version of the node's domain.

        Raises:
            GraphError: the domain of an ONNX operator is not imported.
        """
        if self.made:
            return ANY_VERSION
        if node.domain == "" and "" not in self.versions:
            raise GraphError(
                "the node's domain is not imported",
                node=node_name(node),
                op=op_name(node),
                expected="an opset import of the ONNX domain",
                found=", ".join(f"{d or 'ai.onnx'} {v}" for d, v in self.versions.items()) or "no import",
                remedy="Check the exporter.",
            )
        return self.versions.get(node.domain, 1)


class _Walk:
    """The walk over a model: it holds what concerns the model as a whole."""

    def __init__(self, model: ir.Model, analyzer: Analyzer, target: int, decide: Decide | None) -> None:
        self.main = model.graph
        self.decide = decide
        #: Symbols that the model's inputs tell.
        self.inputs: set[str] = set()
        self.functions = model.functions
        self.analyzer = analyzer
        self.facts = analyzer.facts
        self.target = target
        self.notes: list[Note] = []
        self.optional_inputs = model.ir_version >= 4
        self.names = Names(model.graph)

    def graph(self, graph: ir.Graph, scope: _Scope) -> None:
        """Normalise a graph and the graphs inside its nodes."""
        sort(graph)
        self._inputs(graph)
        if self.decide is not None and graph is self.main:
            self._symbols(graph)
        for node in tuple(graph):
            self._node(node, scope)

    def _inputs(self, graph: ir.Graph) -> None:
        for value in tuple(graph.inputs):
            if value.const_value is None or value in self.facts:
                continue
            if self.optional_inputs:
                # A default that the caller may replace is no constant.
                self.facts[value] = without_content(self.facts.get(value))
            else:
                # Version 3 of the format listed every initializer as an input too.
                graph.inputs.remove(value)

    def _symbols(self, graph: ir.Graph) -> None:
        """Note what the inputs tell: their sizes, and their content where it decides about branches."""
        for value in decisive_inputs(graph):
            content = D.symbol(content_symbol(value.name or ""), _LOWEST)
            self.facts[value] = replace(self.facts.tensor(value), data=(content,))
        for value in graph.inputs:
            fact = self.facts.tensor(value)
            for d in (*(fact.shape or ()), *(fact.data or ())):
                self.inputs |= D.symbols_of(d)

    def _node(self, node: ir.Node, scope: _Scope) -> None:
        function = None if scope.made else self.functions.get(node.op_identifier())
        if function is not None:
            self._inline(node, function, scope)
            return
        version = scope.version(node)
        if not scope.made:
            branch = self._taken_branch(node)
            if branch is not None:
                self._enter(node, branch, scope)
                return
            self._bodies(node, scope)
        own = user_contract(node.domain, node.op_type, version) is not None  # what the user declares is not expanded
        expansion = None if own else expansion_for(node.domain, node.op_type, version)
        if expansion is not None:
            context = Inference(node, self.analyzer)
            if not scope.made:
                context.opset = version
            builder = Builder(self.analyzer)
            values = expansion(builder, context)
            if values is not None:
                upgraded = node.domain == "" and not scope.made
                self._note(node, version, self.target if upgraded else None, builder.nodes)
                self._replace(node, builder, values)
                for new in builder.nodes:
                    self._node(new, _Scope(scope.versions, scope.calls, made=True))
                return
        if not scope.made:
            self._keep(node, version)

    def _keep(self, node: ir.Node, version: int) -> None:
        if node.domain:
            versions = self.analyzer.opsets
            assert isinstance(versions, dict)
            versions[node.domain] = max(versions.get(node.domain, 1), version)
        self.analyzer.infer(node)
        for value in node.outputs:
            if isinstance(self.facts.get(value), OtherFact) and value.type is not None:
                # Of an operator without a rule the model's own statement is all that is known.
                self.facts[value] = fact_of_type(value.type, value.shape, value.name or "v")

    def _note(self, node: ir.Node, version: int, target: int | None, built: Iterable[ir.Node]) -> None:
        operators = tuple(op_name(n) for n in built)
        self.notes.append(Note(node_name(node), op_name(node), node.domain, version, target, operators))

    # bodies

    def _bodies(self, node: ir.Node, scope: _Scope) -> None:
        for attribute in node.attributes.values():
            if attribute.type not in _GRAPHS or attribute.is_ref():
                continue
            graphs = (attribute.as_graph(),) if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()
            for graph in graphs:
                known = BODY_FACTS.get(node.op_type) if node.domain == "" else None
                if known is not None:
                    stated = known(Inference(node, self.analyzer), graph, scope.version(node))
                    for value, fact in zip(graph.inputs, stated, strict=False):
                        self.facts[value] = merge(fact, fact_of_type(value.type, value.shape, value.name or "v"))
                self.graph(graph, scope)

    def _taken_branch(self, node: ir.Node) -> ir.Graph | None:
        """The branch of an If whose condition is known; the other one may contradict the shapes and is not read."""
        if node.domain or node.op_type != "If" or not node.inputs:
            return None
        condition = self.facts.tensor(node.inputs[0]).elements()
        if condition is None or len(condition) != 1:
            return None
        truth: DimLike | None = condition[0]
        if isinstance(truth, Dim):
            told = self.decide is not None and D.symbols_of(truth) <= self.inputs
            truth = self.decide(truth) if told and self.decide is not None else None
        if truth is None:
            return None
        branch = node.attributes.get("then_branch" if truth else "else_branch")
        return None if branch is None or branch.is_ref() else branch.as_graph()

    def _enter(self, node: ir.Node, branch: ir.Graph, scope: _Scope) -> None:
        """Put the nodes of a branch in the place of its If."""
        outputs = list(branch.outputs)
        builder = Builder(self.analyzer)
        builder.nodes = list(branch)
        builder.constants = list(branch.initializers.values())
        branch.outputs.clear()
        branch.initializers.clear()
        branch.remove(builder.nodes)
        for dropped in inner_graphs(node):
            detach(dropped)
        moved = frozenset(builder.nodes)
        self._note(node, scope.version(node), None, builder.nodes)
        self._replace(node, builder, outputs)
        for new in tuple(builder.nodes):
            self._node(new, scope if new in moved else _Scope(scope.versions, scope.calls, made=True))

    # functions

    def _inline(self, node: ir.Node, function: ir.Function, scope: _Scope) -> None:
        identifier = function.identifier()
        if identifier in scope.calls:
            raise GraphError("the function calls itself", node=node_name(node), op=op_name(node))
        if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs):
            raise GraphError(
                "the call does not fit the function",
                node=node_name(node),
                op=op_name(node),
                expected=f"at most {len(function.inputs)} inputs and {len(function.outputs)} outputs",
                found=f"{len(node.inputs)} and {len(node.outputs)}",
            )
        attributes = {k: a for k, a in function.attributes.items() if not a.is_ref() and a.value is not None}
        attributes.update(node.attributes)
        arguments = list(node.inputs) + [None] * (len(function.inputs) - len(node.inputs))
        copy = BodyCopy(attributes, dict(zip(function.inputs, arguments, strict=True)))
        builder = Builder(self.analyzer)
        builder.nodes = [copy.node(n) for n in function]
        outputs = [copy.value(v) for v in function.outputs[: len(node.outputs)]]
        self._note(node, scope.versions.get(node.domain, 1), None, builder.nodes)
        inner = _Scope({**scope.versions, **function.opset_imports}, (*scope.calls, identifier))
        self._replace(node, builder, outputs)
        for new in tuple(builder.nodes):
            # The Identity nodes that keep an output's name are in the newest version already.
            self._node(new, inner if new in copy.made else _Scope(inner.versions, inner.calls, made=True))

    # replacing

    def _replace(self, node: ir.Node, builder: Builder, values: Sequence[ir.Value | None]) -> None:
        """Put what was built in the place of ``node``; new values take over the names of those they replace."""
        graph = node.graph
        assert graph is not None
        base = node_name(node)
        built = {v for n in builder.nodes for v in n.outputs} | set(builder.constants)
        pairs = self._pairs(node, builder, values, built)
        for old, new in pairs:
            if new in built:
                built.discard(new)
                name, old.name = old.name, None
                new.name = name
                if old.type is not None and new.const_value is None:
                    new.type, new.shape = old.type, old.shape
        self.names.complete(builder, base, built)
        for constant in builder.constants:
            graph.register_initializer(constant)
        graph.insert_before(node, builder.nodes)
        for old, new in pairs:
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        self.facts.discard(node.outputs)
        graph.remove(node, safe=True)

    def _pairs(
        self, node: ir.Node, builder: Builder, values: Sequence[ir.Value | None], built: set[ir.Value]
    ) -> list[tuple[ir.Value, ir.Value]]:
        """Old and new values; a graph's output is always a value of its own, so that it can keep its name."""
        pairs: list[tuple[ir.Value, ir.Value]] = []
        outputs: set[ir.Value] = set()
        for i, old in enumerate(node.outputs):
            new = values[i] if i < len(values) else None
            if new is None:
                if old.is_graph_output() or old.uses():
                    raise VerifyError(
                        f"the expansion leaves out output {i}, which is used", node=node_name(node), op=op_name(node)
                    )
                continue
            if old.is_graph_output() and (new not in built or new in outputs):
                new = builder("Identity", new)
                built.add(new)
            outputs.add(new)
            pairs.append((old, new))
        return pairs
