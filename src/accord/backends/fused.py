"""Fused operators: calls of the model-local functions that the passes made.

A body is a group of loops, or a *root* (a contraction, a window ...) whose kernel applies what follows as its epilogue.
Which operators are roots, and their kernels, is the backend's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import onnx_ir as ir

from accord.backends.epilogue import Epilogue, Extra
from accord.backends.loops.group import EXACT, wide
from accord.backends.loops.groups import arrange_group, group_kernel
from accord.backends.loops.table import Table
from accord.backends.protocol import Arrangement, Kernel, NativeKernel
from accord.backends.root import RootView
from accord.backends.view import NodeView
from accord.expr.declared import lower_node
from accord.expr.lang import Expr, cast, const, operand
from accord.expr.onnx_ops import dtype_name
from accord.ir.infer import Analyzer
from accord.ir.reason import FUSED_DOMAIN, Reason
from accord.ir.strides import Access, broadcast_access

__all__ = ["Roots", "TableRoots", "arrange_fused", "select_fused"]


class Roots(ABC):
    """What a backend computes other operators together with.

    Attributes:
        prepares: Operators that may expand a root's weight in front of it.
    """

    prepares: frozenset[str] = frozenset()

    @abstractmethod
    def refusal(self, view: NodeView) -> Reason | None:
        """None if the node's kernel takes an epilogue, or why not."""

    @abstractmethod
    def select(self, root: NodeView) -> Kernel | Reason:
        """The kernel of a root, with its epilogue if it has one."""

    @abstractmethod
    def arrange(self, root: NodeView) -> Arrangement | None:
        """How a root wants its operands; None: row-major."""


class TableRoots(Roots):
    """The roots of a table of generated kernels, and of operators that users declare.

    Args:
        device: Its name, for reasons.
        table: The kernels.
        refuses: Of a declared operator's node: why its kernel takes no epilogue; None: it does.
        selects: Its kernel.
        arranges: How it wants its operands.
        prepares: See :class:`Roots`.
    """

    def __init__(
        self,
        device: str,
        table: Table,
        refuses: Callable[[NodeView], Reason | None],
        selects: Callable[[NodeView], Kernel | Reason | None],
        arranges: Callable[[NodeView], Arrangement | None],
        prepares: frozenset[str] = frozenset(),
    ) -> None:
        self.prepares = prepares
        self._device = device
        self._table = table
        self._refuses, self._selects, self._arranges = refuses, selects, arranges

    def refusal(self, view: NodeView) -> Reason | None:
        """See :class:`Roots`."""
        if (view.node.domain, view.node.op_type) in self._table.roots:
            return None
        if view.node.domain in ("", FUSED_DOMAIN):
            return Reason(f"{self._device} computes nothing together with {view.node.op_type}")
        return self._refuses(view)

    def select(self, root: NodeView) -> Kernel | Reason:
        """See :class:`Roots`."""
        selector = self._table.selector(root.node.domain, root.node.op_type) or self._selects
        return selector(root) or Reason(f"{root.node.op_type} is not declared")

    def arrange(self, root: NodeView) -> Arrangement | None:
        """See :class:`Roots`."""
        arranger = self._table.arranger(root.node.domain, root.node.op_type)
        return self._arranges(root) if arranger is None else arranger(root)


class _Body:
    """A call and its function's body, with facts and layouts inside."""

    def __init__(self, view: NodeView, function: ir.Function, prepares: frozenset[str]) -> None:
        self.view = view
        self.function = function
        nodes = list(function)
        first = next((i for i, n in enumerate(nodes) if n.domain or n.op_type not in prepares), 0)
        #: What expands the root's weight; then the root and what follows.
        self.prologue = nodes[:first] if nodes[first].op_type in ("MatMul", "Gemm") else []
        self.nodes = nodes[len(self.prologue) :]
        self.analyzer: Analyzer = view.analyzer.enter(view.node, function)
        self.number = {formal: i for i, formal in enumerate(function.inputs)}
        self.layouts: dict[ir.Value, Access] = {
            formal: view.access(i) for formal, i in self.number.items() if view.tensor(i).shape is not None
        }

    def views(self) -> list[NodeView]:
        """The root and what follows."""
        return [NodeView(n, self.analyzer, self.layouts) for n in self.nodes]

    def root(self) -> NodeView:
        """The root."""
        return NodeView(self.nodes[0], self.analyzer, self.layouts)

    def outer(self, index: int) -> int:
        """The call's input that is input ``index`` of the root; of a weight that is expanded, its codes."""
        formal = self.prologue[0].inputs[0] if self.prologue and index == 1 else self.nodes[0].inputs[index]
        assert formal is not None
        return self.number[formal]


def arrange_fused(view: NodeView, roots: Roots) -> Arrangement:
    """As the root wants it; an operand of the epilogue that has the output's shape should lie as the output does."""
    function = view.function()
    if function is None:
        return Arrangement()
    body = _Body(view, function, roots.prepares)
    root = body.root()
    if roots.refusal(root) is not None:
        results = zip(function.outputs, view.node.outputs, strict=True)
        return arrange_group(body.views(), [None if o.is_graph_output() else formal for formal, o in results])
    wanted = roots.arrange(root)
    if wanted is None:
        return Arrangement()
    inputs = {body.outer(i): order for i, order in enumerate(wanted.inputs) if root.has(i) and order is not None}
    return Arrangement(
        tuple(inputs.get(i) for i in range(len(view.node.inputs))), wanted.outputs[:1], strided=wanted.strided
    )


def _group(body: _Body) -> Kernel | Reason:
    """One loop nest of all nodes."""
    view = body.view
    places = dict(body.layouts)
    places |= {formal: view.output_access(j) for j, formal in enumerate(body.function.outputs)}
    return group_kernel(body.views(), body.function.inputs, body.function.outputs, places.__getitem__)


def select_fused(view: NodeView, roots: Roots) -> Kernel | Reason:
    """The root's kernel with the rest of the body as its epilogue."""
    function = view.function()
    if function is None:
        return Reason("the function is not in the model")
    body = _Body(view, function, roots.prepares)
    if roots.refusal(body.root()) is not None:
        return _group(body)
    root = RootView(body.nodes[0], body.analyzer, body.layouts)
    root.stored = view.output_access()
    root.choice = view.choice
    root.prologue = [NodeView(n, body.analyzer, body.layouts) for n in body.prologue]
    found = _epilogue(body, root)
    if isinstance(found, Reason):
        return found
    root.epilogue, extras = found
    kernel = roots.select(root)
    if not isinstance(kernel, NativeKernel):
        return kernel
    return _renumbered(kernel, body, extras)


def _epilogue(body: _Body, root: NodeView) -> tuple[Epilogue, list[int]] | Reason:
    """The expression of all nodes after the root, and the call's inputs that are its extras.

    As in a group, f16 and bf16 are kept in f32 between the nodes; a Cast, which asks for it, rounds.
    """
    fact = root.output()
    dtype = None if fact.dtype is None else dtype_name(fact.dtype)
    if dtype is None or fact.shape is None:
        return Reason("the root's result has no expressions")
    #: Expressions and the types of the values that they stand for.
    known: dict[ir.Value, tuple[Expr, str]] = {root.node.outputs[0]: (operand(0, dtype), dtype)}
    extras: dict[ir.Value, Extra] = {}
    for node in body.nodes[1:]:
        inner = NodeView(node, body.analyzer, body.layouts)
        exact = not node.domain and node.op_type in EXACT
        arguments: list[Expr | None] = []
        for i, v in enumerate(node.inputs):
            if v is None:
                arguments.append(None)
                continue
            if v not in known:
                made = _external(inner, i, v, fact.shape, extras)
                if isinstance(made, Reason):
                    return made
                known[v] = made, made.dtype
            expr, own = known[v]
            arguments.append(cast(expr, own if exact else wide(own)))
        out = inner.output().dtype
        target = None if out is None else dtype_name(out)
        result = None if target is None else lower_node(inner, arguments, target if exact else wide(target))
        if result is None or target is None:
            return Reason(f"{node.op_type} of these dtypes or attributes has no expression")
        known[node.outputs[0]] = result, target
    final, own = known[body.function.outputs[0]]
    return Epilogue(cast(final, own), tuple(extras.values())), [body.number[v] for v in extras]


_QUANTISE = frozenset({"QuantizeLinear", "DequantizeLinear"})


def _external(
    inner: NodeView, index: int, v: ir.Value, shape: tuple[object, ...], extras: dict[ir.Value, Extra]
) -> Expr | Reason:
    """The expression of an operand from outside: a constant, or one more extra."""
    fact = inner.tensor(index)
    dtype = None if fact.dtype is None else dtype_name(fact.dtype)
    if dtype is None or fact.shape is None:
        return Reason(f"operand {index} of {inner.node.op_type} has no expressions")
    # scales and zero points differ from node to node, and kernels should not
    if fact.const is not None and fact.const.size == 1 and inner.node.op_type not in _QUANTISE:
        return const(fact.numpy().reshape(-1)[0].item(), dtype)
    access = broadcast_access(fact.shape, shape, inner.access(index))  # type: ignore[arg-type]
    extras[v] = Extra(dtype, access)
    return operand(len(extras), dtype)


def _renumbered(kernel: NativeKernel, body: _Body, extras: list[int]) -> NativeKernel:
    """The kernel with the call's inputs in place of the root's."""
    after = " ".join(n.op_type for n in body.nodes[1:])
    return replace(
        kernel,
        name=f"{kernel.name} + {after}" if after else kernel.name,
        reads=(*(body.outer(i) for i in kernel.reads), *extras),
        constants={body.outer(i): array for i, array in kernel.constants.items()},
        in_place=(),
    )
