"""The pass manager: applies patches, verifies each, labels and counts them, keeps reasons.

Nothing else changes a graph after ``normalise``. Each applied patch gets a serial number, so that a run can be stopped
after patch N and the patch that changes a result can be found by halving.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from accord.errors import AccordError, VerifyError
from accord.ir.facts import merge, same_kind
from accord.ir.infer import Analyzer, op_name
from accord.ir.patch import Patch
from accord.ir.reason import Reason
from accord.passes.rule import Fuses, Joins, Rule, RuleContext

__all__ = ["AppliedPatch", "PassLog", "PassManager", "SkippedRule"]

_MAX_SWEEPS = 40


@dataclass(frozen=True, slots=True)
class AppliedPatch:
    """One rewrite that happened."""

    serial: int
    rule: str
    phase: str
    node: str
    op: str
    note: str
    added: tuple[str, ...]

    def __str__(self) -> str:
        return f"#{self.serial} {self.rule}: {self.node} ({self.op})" + (f": {self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class SkippedRule:
    """A rule that looked at a node and did not fire."""

    rule: str
    node: str
    op: str
    reason: Reason

    def __str__(self) -> str:
        return f"{self.rule}: {self.node} ({self.op}): {self.reason}"


@dataclass(slots=True)
class PassLog:
    """What the manager did, as data for ``explain`` and ``bisect``."""

    patches: list[AppliedPatch] = field(default_factory=list)
    skipped: list[SkippedRule] = field(default_factory=list)
    stopped: bool = False


class PassManager:
    """Runs phases of rules over a model until nothing changes.

    Args:
        model: The model, changed in place.
        analyzer: Facts of all its values.
        disabled: Names of rules that must not run.
        stop_after: Apply at most this many patches in all.
        fuses: What the device computes together; see :class:`~accord.passes.rule.RuleContext`.
        joins: See there as well.
        runs: See there as well.
        device: See there as well.
    """

    def __init__(
        self,
        model: ir.Model,
        analyzer: Analyzer,
        *,
        disabled: Collection[str] = (),
        stop_after: int | None = None,
        fuses: Fuses | None = None,
        joins: Joins | None = None,
        runs: Fuses | None = None,
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.analyzer = analyzer
        analyzer.functions = model.functions  # facts of the calls that patches add come from the functions' bodies
        self.disabled = frozenset(disabled)
        self.stop_after = stop_after
        self.log = PassLog()
        self._context = RuleContext(model, analyzer, fuses, joins, runs, device)
        self._names = {v.name for g in _graphs(model.graph) for v in _values(g) if v.name}
        self._serial = 0
        self._native = False

    def run_phase(self, phase: str, rules: Sequence[Rule], level: int, *, native: bool = False) -> int:
        """Apply ``rules`` of at most ``level`` to every graph until none fires; returns the number of patches.

        With ``native``, a patch is not applied that has a node for which the device has no kernel of its own, if it had
        one for the node that goes.

        Raises:
            VerifyError: a rule's patch does not fit the graph.
        """
        self._context.allows = lambda rule: rule.level <= level and rule.name not in self.disabled
        active = [r for r in rules if self._context.allows(type(r))]
        if not active:
            return 0
        any_op = [r for r in active if not r.ops]
        by_op: dict[tuple[str, str], list[Rule]] = {}
        for r in active:
            for op in r.ops:
                by_op.setdefault(op, []).append(r)
        before = len(self.log.patches)
        self._native = native
        remove_dead(self.model.graph)
        for _ in range(_MAX_SWEEPS):
            changed = False
            reasons: list[SkippedRule] = []
            for graph in list(_graphs(self.model.graph)):
                self._context.scratch = {}
                changed |= self._sweep(graph, phase, by_op, any_op, reasons)
                if self.log.stopped:
                    break
            if not changed or self.log.stopped:
                break
        self.log.skipped.extend(reasons)
        return len(self.log.patches) - before

    def _sweep(
        self,
        graph: ir.Graph,
        phase: str,
        by_op: dict[tuple[str, str], list[Rule]],
        any_op: list[Rule],
        reasons: list[SkippedRule],
    ) -> bool:
        changed = False
        for node in list(graph):
            if node.graph is not graph:
                continue
            for r in [*by_op.get((node.domain, node.op_type), ()), *any_op]:
                if self.stop_after is not None and self._serial >= self.stop_after:
                    self.log.stopped = True
                    return changed
                outcome = r.apply(node, self._context)
                if isinstance(outcome, Patch) and self._native:
                    outcome = self._if_it_runs(outcome, node)
                if isinstance(outcome, Patch):
                    self._apply(outcome, r, node, phase)
                    changed = True
                    break
                if isinstance(outcome, Reason):
                    reasons.append(SkippedRule(r.name, label(node), op_name(node), outcome))
        return changed

    def _if_it_runs(self, patch: Patch, node: ir.Node) -> Patch | Reason:
        unnamed = [o for new in patch.nodes for o in new.outputs if o.name is None]
        for o in unnamed:
            o.name = "~"  # an output without a name is one that nobody wants
        refused = next((r for new in patch.nodes if (r := self._context.runs(new)) is not None), None)
        for o in unnamed:
            o.name = None
        if refused is not None and self._context.runs(node) is None:
            return Reason(f"the device has no kernel for what it means: {refused}")
        return patch

    # one patch

    def _apply(self, patch: Patch, rule: Rule, node: ir.Node, phase: str) -> None:
        graph = node.graph
        if not isinstance(graph, ir.Graph):
            raise VerifyError("a rule was given a node outside any graph", node=label(node), op=op_name(node))
        self._verify(patch, rule, node)
        self._serial += 1
        for function in patch.functions:
            self.model.functions[function.identifier()] = function
            self.model.opset_imports.setdefault(function.domain, 1)
        anchor = patch.anchor if patch.anchor is not None else node
        base = label(node)
        for value in patch.constants:
            value.name = self._unique(value.name or f"{base}.c")
            graph.register_initializer(value)
        for i, new in enumerate(patch.nodes):
            if not new.name:
                new.name = f"{base}~{self._serial}.{i}" if len(patch.nodes) > 1 else f"{base}~{self._serial}"
            for out in new.outputs:
                if not out.name:
                    out.name = self._name_for(out, patch, f"{base}~{self._serial}.v{i}")
        graph.insert_before(anchor, patch.nodes)
        for old, new_value in patch.replace.items():
            self._replace(graph, anchor, old, new_value)
        self.log.patches.append(
            AppliedPatch(
                self._serial,
                rule.name,
                phase,
                base,
                op_name(node),
                patch.note,
                tuple(label(n) for n in patch.nodes),
            )
        )
        producers = [p for old in patch.replace if (p := old.producer()) is not None]
        _remove_if_dead([node, *producers])

    def _name_for(self, new: ir.Value, patch: Patch, otherwise: str) -> str:
        """The name of the value that ``new`` replaces, so that people find it again; a new one if it replaces none."""
        old = next((o for o, n in patch.replace.items() if n is new), None)
        if old is None or not old.name or old.is_graph_output():  # outputs of the graph are renamed with their type
            return self._unique(otherwise)
        name = old.name
        old.name = self._unique(f"{name}.old")
        return name

    def _verify(self, patch: Patch, rule: Rule, node: ir.Node) -> None:
        for old, new in patch.replace.items():
            before, after = self.analyzer.facts.get(old), self.analyzer.facts.get(new)
            if not same_kind(before, after):
                raise VerifyError(
                    f"rule '{rule.name}' replaces '{old.name}' by a value of another kind",
                    node=label(node),
                    op=op_name(node),
                    value=old.name,
                    expected=before,
                    found=after,
                    remedy=f"This is a bug in the rule; load with disabled_rules=['{rule.name}'] meanwhile.",
                )
        known: set[ir.Value] = set(patch.constants)
        for new_node in patch.nodes:
            for v in new_node.inputs:
                if v is None or v in known or v.producer() is None:
                    continue
                producer = v.producer()
                if producer is not None and producer.graph is None:
                    raise VerifyError(
                        f"rule '{rule.name}' made a node that reads a value which is not in the graph",
                        node=label(node),
                        op=op_name(node),
                        value=v.name,
                    )
            known.update(new_node.outputs)

    def _replace(self, graph: ir.Graph, anchor: ir.Node, old: ir.Value, new: ir.Value) -> None:
        facts = self.analyzer.facts
        facts[new] = merge(facts.get(new), facts.get(old))
        if old.is_graph_output():
            if (
                new.is_graph_output()
                or new.is_graph_input()
                or new.is_initializer()
                or new.producer() is None
                or new.graph is not graph
            ):
                keep = ir.Node("", "Identity", [new], num_outputs=1)
                keep.name = f"{old.name}.identity"
                self.analyzer.infer(keep)
                graph.insert_before(anchor, keep)
                new_output = keep.outputs[0]
            else:
                new_output = new
            name = old.name
            type_, shape = old.type, old.shape
            for i, output in enumerate(graph.outputs):
                if output is old:
                    graph.outputs[i] = new_output
            old.name = self._unique(f"{name}.old")
            new_output.name = name
            if new_output.type is None:
                new_output.type, new_output.shape = type_, shape
            if new_output is not new:
                facts[new_output] = facts.get(new)
        readers = [u.node for u in old.uses()]
        old.replace_all_uses_with(new)
        self._refresh(readers)

    def _refresh(self, nodes: Iterable[ir.Node]) -> None:
        """Infer facts of ``nodes`` again, and of whatever reads a value whose fact became sharper."""
        queue = list(dict.fromkeys(nodes))
        facts = self.analyzer.facts
        while queue:
            node = queue.pop(0)
            if node.graph is None or any(isinstance(a.value, ir.Graph) for a in node.attributes.values()):
                continue
            before = [facts.get(o) for o in node.outputs]
            try:
                self.analyzer.infer(node)
            except AccordError:
                for o, fact in zip(node.outputs, before, strict=True):
                    facts[o] = fact
                continue
            for o, fact in zip(node.outputs, before, strict=True):
                sharper = merge(facts.get(o), fact)
                facts[o] = sharper
                if sharper != fact:
                    queue.extend(u.node for u in o.uses() if u.node not in queue)

    def _unique(self, name: str) -> str:
        candidate, i = name, 0
        while candidate in self._names:
            i += 1
            candidate = f"{name}_{i}"
        self._names.add(candidate)
        return candidate


def label(node: ir.Node) -> str:
    """A node's name, or its first output's where it has none."""
    return node.name or next((o.name for o in node.outputs if o.name), None) or f"<{node.op_type}>"


def _graphs(graph: ir.Graph) -> Iterable[ir.Graph]:
    yield graph
    yield from graph.subgraphs()


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _is_dead(node: ir.Node) -> bool:
    return node.graph is not None and not any(o.uses() or o.is_graph_output() for o in node.outputs)


def _remove_if_dead(nodes: Iterable[ir.Node]) -> int:
    queue = list(dict.fromkeys(nodes))
    removed = 0
    while queue:
        node = queue.pop()
        if not _is_dead(node):
            continue
        graph = node.graph
        if not isinstance(graph, ir.Graph):
            continue
        feeding = [v for v in node.inputs if v is not None]
        for subgraph in _subgraphs_of(node):
            for inner in subgraph.all_nodes():
                feeding.extend(v for v in inner.inputs if v is not None)
        graph.remove(node, safe=True)
        for subgraph in _subgraphs_of(node):
            for inner in list(subgraph.all_nodes()):
                for i in range(len(inner.inputs)):
                    inner.replace_input_with(i, None)
        removed += 1
        for v in feeding:
            producer = v.producer()
            if producer is not None:
                queue.append(producer)
            elif v.is_initializer() and not v.uses() and not v.is_graph_output() and not v.is_graph_input():
                owner = v.graph
                if isinstance(owner, ir.Graph) and v.name is not None and v.name in owner.initializers:
                    del owner.initializers[v.name]
    return removed


def _subgraphs_of(node: ir.Node) -> Iterable[ir.Graph]:
    for a in node.attributes.values():
        if a.type == ir.AttributeType.GRAPH:
            yield a.value
        elif a.type == ir.AttributeType.GRAPHS:
            yield from a.value


def remove_dead(graph: ir.Graph) -> int:
    """Remove nodes and initializers that no output needs, in ``graph`` and its bodies; returns the number of nodes."""
    removed = 0
    for g in reversed(list(_graphs(graph))):
        removed += _remove_if_dead(reversed(list(g)))
        for name, v in list(g.initializers.items()):
            if not v.uses() and not v.is_graph_output() and not v.is_graph_input():
                del g.initializers[name]
    return removed
