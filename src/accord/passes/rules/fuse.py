"""Operators joined into one: each group becomes a model-local function whose body is the unfused subgraph.

So a fused model is a plain ONNX file that any runtime can run; a backend that knows such a group makes one kernel of
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import onnx_ir as ir

from accord.contract.choose import Choice, kernel_for
from accord.expr.declared import lower_node
from accord.expr.lang import Expr, operand
from accord.expr.onnx_ops import ELEMENTWISE, dtype_name
from accord.ir.infer import Inference
from accord.ir.patch import Patch
from accord.ir.reason import FUSED_DOMAIN, Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext

__all__ = ["FuseEpilogue", "escaping", "function_patch", "graph_order", "grown", "is_elementwise"]


def is_elementwise(node: ir.Node, context: RuleContext) -> bool:
    """Whether a node computes each element of its one output from one element of each input, by an expression."""
    if len(node.outputs) != 1 or (node.op_type not in ELEMENTWISE if node.domain == "" else node.domain in _COMPILED):
        return False
    out = context.tensor(node.outputs[0])
    target = None if out.dtype is None else dtype_name(out.dtype)
    if target is None or out.shape is None:
        return False
    arguments: list[Expr | None] = []
    for i, v in enumerate(node.inputs):
        if v is None:
            arguments.append(None)
            continue
        fact = context.tensor(v)
        name = None if fact.dtype is None else dtype_name(fact.dtype)
        if name is None or fact.shape is None or len(fact.shape) > len(out.shape):
            return False
        if node.domain == "" and node.op_type in _PARAMETERS and i and fact.shape != ():
            return False
        arguments.append(operand(i, name))
    return lower_node(Inference(node, context.analyzer), arguments, target) is not None


#: Domains in which nobody declares operators.
_COMPILED = frozenset({"com.microsoft", FUSED_DOMAIN})
#: Operators whose inputs after the first are parameters that do not broadcast; only single values are elementwise.
_PARAMETERS = frozenset({"Clip", "QuantizeLinear", "DequantizeLinear"})


class FuseEpilogue(Rule):
    """Elementwise operators after a contraction or a window, computed on its results before they are stored.

    From the root on, operators are taken in as long as only one value leaves the group. Their other operands (a
    residual, a scale for each channel) are read where they are needed.
    """

    name: ClassVar[str] = "fuse-epilogue"
    level: ClassVar[int] = 2

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with one call of a function."""
        if not isinstance(node.graph, ir.Graph) or not _is_root(node, context):
            return None
        group, why = grown(node, context)
        if len(group) == 1:
            return why
        return function_patch(group, context, f"with {', '.join(label(n) for n in group[1:])}", root=node)


_ROOTS = frozenset(
    "Conv ConvTranspose DeformConv Gemm MatMul ConvInteger QLinearConv MatMulInteger QLinearMatMul "
    "MaxPool AveragePool LpPool Resize".split()
)


def _is_root(node: ir.Node, context: RuleContext) -> bool:
    """What may have a kernel that computes more on its result: these operators, and users' that declare it."""
    if node.domain == "" or node.domain in _COMPILED:
        return node.domain == "" and node.op_type in _ROOTS
    choice = kernel_for(Inference(node, context.analyzer), context.device, without=("composition",))
    return isinstance(choice, Choice) and (choice.kernel.scheduling or choice.contract.scheduling).epilogue


def grown(node: ir.Node, context: RuleContext) -> tuple[list[ir.Node], Reason | None]:
    """A root and the elementwise operators that are computed on its results, in order; and why there are no more."""
    out = node.outputs[0]
    shape = context.tensor(out).shape
    if shape is None:
        return [node], Reason("the rank of its output is not known")
    if not out.uses():
        return [node], None
    refused = context.fuses(node)
    if refused is not None:
        return [node], refused
    group: list[ir.Node] = [node]
    found = 1
    why = Reason("no elementwise operator follows")
    tip = out
    while True:
        following = _following(group, tip, shape, context)
        if isinstance(following, Reason):
            why = following
            break
        group.append(following)
        if len(escaping(group)) == 1:
            found = len(group)
        tip = group[-1].outputs[0]
    return group[:found], why


def _following(
    group: Sequence[ir.Node], tip: ir.Value, shape: tuple[object, ...], context: RuleContext
) -> ir.Node | Reason:
    """The operator to take in next."""
    if tip.is_graph_output():
        return Reason(f"'{tip.name}' is an output of the graph")
    inside = {o for n in group for o in n.outputs}
    # the next reader, in the graph's order, of anything that leaves the group
    readers = {u.node for v in inside for u in v.uses()} - set(group)
    if not readers:
        return Reason("nothing follows")
    graph = group[0].graph
    assert isinstance(graph, ir.Graph)
    if any(r.graph is not graph for r in readers):
        return Reason("a body graph reads it")
    first = min(readers, key=graph_order(graph, readers, context).__getitem__)
    if not is_elementwise(first, context):
        return Reason(f"{label(first)} ({first.op_type}) is not elementwise")
    if context.tensor(first.outputs[0]).shape != shape:
        return Reason(f"{label(first)} gives another shape")
    return first


def graph_order(graph: ir.Graph, nodes: Iterable[ir.Node], context: RuleContext) -> dict[ir.Node, int]:
    """Places of at least ``nodes`` in the graph's order; counted once in a sweep, and again after other patches."""
    known: dict[ir.Node, int] = context.scratch.get("order", {})
    if any(n not in known for n in nodes):
        known = {n: i for i, n in enumerate(graph)}
        context.scratch["order"] = known
    return known


def escaping(group: Sequence[ir.Node]) -> list[ir.Value]:
    """Values of a group that others read or that are returned."""
    members = set(group)
    return [o for n in group for o in n.outputs if o.is_graph_output() or any(u.node not in members for u in o.uses())]


def function_patch(
    group: Sequence[ir.Node],
    context: RuleContext,
    note: str,
    outputs: Sequence[ir.Value] = (),
    *,
    root: ir.Node | None = None,
) -> Patch:
    """The patch that replaces ``group`` (in graph order) by one call of a function with these nodes as its body.

    The call stands where the last node stood, so all that the group reads is there. Nodes that make none of
    ``outputs`` may stay for other readers.

    Args:
        group: The nodes.
        context: Of the rule.
        note: For people.
        outputs: What the function gives; by default all that others read.
        root: A node whose inputs are inputs of the function by themselves, even where they are one value, or others
            read it too: its kernel may want them in another form, such as packed weights.
    """
    outputs = outputs or escaping(group)
    made = {o for n in group for o in n.outputs}
    own = [] if root is None else [v for v in root.inputs if v is not None and v not in made]
    others = (v for n in group if n is not root for v in n.inputs)
    inputs = [*own, *dict.fromkeys(v for v in others if v is not None and v not in made)]
    formals = [ir.Value(name=f"x{i}") for i in range(len(inputs))]
    formal = dict(zip(inputs[len(own) :], formals[len(own) :], strict=True))
    next_own = iter(formals)
    body = []
    for k, n in enumerate(group):
        copies = [ir.Value(name=f"y{k}" if j == 0 else f"y{k}_{j}") if o.name else o for j, o in enumerate(n.outputs)]
        arguments = [
            None if v is None else next(next_own) if n is root and v not in made else formal[v] for v in n.inputs
        ]
        body.append(
            ir.Node(
                n.domain, n.op_type, arguments, list(n.attributes.values()), outputs=copies, name=f"{n.op_type}_{k}"
            )
        )
        formal.update(zip(n.outputs, copies, strict=True))
    domains = {n.domain for n in group}
    versions = {d: context.model.opset_imports.get(d, 1) for d in domains}
    graph = ir.Graph(formals, [formal[o] for o in outputs], nodes=body, opset_imports=versions)
    function = ir.Function(FUSED_DOMAIN, _unique_name(group, context), graph=graph, attributes=())
    call = ir.Node(FUSED_DOMAIN, function.name, inputs, num_outputs=len(outputs))
    for new, old in zip(call.outputs, outputs, strict=True):
        context.facts[new] = context.facts.get(old)
    return Patch(
        dict(zip(outputs, call.outputs, strict=True)), (call,), functions=(function,), anchor=group[-1], note=note
    )


def _unique_name(group: Sequence[ir.Node], context: RuleContext) -> str:
    """The operators' names, and a number where there are several such functions."""
    base = "".join(n.op_type for n in group[:6]) + ("Etc" if len(group) > 6 else "")
    taken = {key[1] for key in context.model.functions if key[0] == FUSED_DOMAIN}
    name, i = base, 1
    while name in taken:
        i += 1
        name = f"{base}_{i}"
    return name
