"""Groups: connected elementwise operators, reductions and movements of data as one kernel. A node is a group of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from accord.backends.loops.group import MEMBERS, VIEWS, Group, Member
from accord.backends.loops.table import LOOPS
from accord.backends.protocol import Arrangement, Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.expr.onnx_ops import dtype_name
from accord.ir.reason import Reason
from accord.ir.strides import Access

__all__ = ["arrange_group", "can_join", "group_kernel", "member", "select_alone"]


def member(*names: str, domain: str = "") -> Callable[[Member], Member]:
    """Register the decorated function as how the operators ``names`` of ``domain`` become part of a group.

    Where they stand alone, they are groups of one.
    """

    def register(function: Member) -> Member:
        for name in names:
            MEMBERS[domain, name] = function
            LOOPS.selectors[domain, name] = select_alone
            LOOPS.arrangers[domain, name] = arrange_alone
        return function

    return register


def select_alone(view: NodeView, rule: Member | None = None) -> Kernel | Reason:
    """The kernel of a single node, by ``rule`` or as it becomes part of a group."""
    group = Group()
    refused = group.add(view) if rule is None else rule(group, view)
    if refused is not None:
        return refused
    outputs = [(j, o) for j, o in enumerate(view.node.outputs) if o.name]
    if any(o not in group.terms for _, o in outputs):
        return Reason("it has an output that is not generated")
    stores = [group.store(o, view.output_access(j)) for j, o in outputs]
    return group.kernel(_name([view]), view.node.inputs, stores)


def group_kernel(
    nodes: Sequence[NodeView],
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    access_of: Callable[[ir.Value], Access],
) -> NativeKernel | Reason:
    """One kernel of several nodes.

    Args:
        nodes: In topological order.
        inputs: What they read from outside; the kernel's ``reads`` number these.
        outputs: Which of their results are stored.
        access_of: How inputs and outputs lie.

    Returns:
        The kernel, whose operands are the inputs that it reads, the outputs, and the workspace if there is one; or why
        there is none.
    """
    group = _grown(nodes, access_of)
    if isinstance(group, Reason):
        return group
    return group.kernel(_name(nodes), inputs, [group.store(v, access_of(v)) for v in outputs])


def can_join(nodes: Sequence[NodeView]) -> Reason | None:
    """None if connected ``nodes``, in topological order, make one kernel, and why not otherwise.

    Groups are refused that would compute something expensive several times, and views (Transpose, Reshape ...) whose
    result leaves the group: they cost nothing outside.
    """
    group = _grown(nodes, None)
    if isinstance(group, Reason):
        return group
    members = {n.node for n in nodes}
    stores = []
    for n in nodes:
        for j, o in enumerate(n.node.outputs):
            if not o.name or not (o.is_graph_output() or any(u.node not in members for u in o.uses())):
                continue
            if (n.node.domain, n.node.op_type) in VIEWS:
                return Reason(f"{n.node.op_type} costs nothing outside")
            if o not in group.terms:
                return Reason(f"output {j} of {n.node.op_type} is not generated")
            stores.append(group.store(o, n.output_access(j)))
    return group.wasteful(stores) if len(nodes) > 1 else group.refusal(stores)


def arrange_group(
    nodes: Sequence[NodeView], outputs: Sequence[ir.Value | None], access_of: Callable[[ir.Value], Access] | None = None
) -> Arrangement:
    """How ``outputs`` of several nodes should lie: each as the largest operand does that has all of its axes.

    Args:
        nodes: In topological order.
        outputs: Which of their results are stored; None for one that is not, or that is returned and has to be
            row-major. It keeps its place in the answer.
        access_of: How what they read from outside lies; by default as the views say.
    """
    group = _grown(nodes, access_of)
    if isinstance(group, Reason) or any(v is not None and v not in group.terms for v in outputs):
        return Arrangement()
    return Arrangement(outputs=tuple(None if v is None else group.order(v) for v in outputs), strided=True)


def arrange_alone(view: NodeView) -> Arrangement:
    """As :func:`arrange_group` for a single node."""
    return arrange_group([view], [o if o.name and not o.is_graph_output() else None for o in view.node.outputs])


def _grown(nodes: Sequence[NodeView], access_of: Callable[[ir.Value], Access] | None) -> Group | Reason:
    group = Group(access_of)
    for n in nodes:
        refused = group.add(n)
        if refused is not None:
            return refused
    return group


def _name(nodes: Sequence[NodeView]) -> str:
    """For people: the operators and the type of what they give."""
    dtype = nodes[-1].output().dtype
    kind = "loops" if len(nodes) > 1 else "loop"
    return " ".join([kind, *(n.node.op_type for n in nodes), dtype_name(dtype) or "" if dtype is not None else ""])
