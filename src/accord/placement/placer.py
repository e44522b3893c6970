"""Placement: each node to the first backend of the device that has a kernel for it.

Whatever a better backend said when it declined is kept, so that nothing falls back silently.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from accord.backends.memory import HOST
from accord.backends.protocol import Alias, Arrangement, Backend, HostKernel, Kernel, ViewKernel
from accord.backends.view import NodeView, step_name
from accord.errors import FallbackError, UnsupportedError
from accord.ir.infer import Analyzer, op_name
from accord.ir.reason import FUSED_DOMAIN, Reason
from accord.ir.strides import Access, Order, contiguous, in_order
from accord.placement.placement import Placement

__all__ = ["CONTROL", "Placed", "Placer"]

#: Operators with a body graph; the runtime itself runs them.
CONTROL = frozenset({("", "If"), ("", "Loop"), ("", "Scan"), ("", "SequenceMap")})


@dataclass(frozen=True, slots=True)
class Placed:
    """A placed node.

    Attributes:
        placement: Where it runs.
        reorders: Input number → the order of axes that the input must be brought into first.
        layouts: How outputs lie that are not row-major.
        aliases: By output number, the memory that it shares with an input. Either all outputs are aliases, and nothing
            runs, or none is.
        ordered: Inputs that must be in some order without gaps.
        strided: See :class:`~accord.backends.protocol.Arrangement`.
        joins: See :class:`~accord.backends.protocol.Arrangement`.
    """

    placement: Placement
    reorders: Mapping[int, Order] = field(default_factory=dict)
    layouts: Mapping[ir.Value, Access] = field(default_factory=dict)
    aliases: Mapping[int, Alias] = field(default_factory=dict)
    ordered: frozenset[int] = frozenset()
    strided: bool = False
    joins: int | None = None


class Placer:
    """Chooses kernels for nodes.

    Args:
        backends: In order of preference.
        analyzer: Facts.
        strict: A node that only a fall-back backend can run is an error.
    """

    def __init__(self, backends: Sequence[Backend], analyzer: Analyzer, *, strict: bool = False) -> None:
        self.backends = backends
        self.analyzer = analyzer
        self.strict = strict

    def place(
        self,
        node: ir.Node,
        layouts: Mapping[ir.Value, Access] | None = None,
        *,
        may_alias: Callable[[int, Alias], bool] = lambda output, alias: False,
        placed_inputs: frozenset[int] = frozenset(),
        exclude: Collection[str] = (),
        why: Reason | None = None,
        space: str | None = None,
    ) -> Placed:
        """The placement of ``node``.

        Args:
            node: The node.
            layouts: How values lie that are not row-major. An output in it lies so whatever the backend asks for.
            may_alias: Whether an output may share an input's memory in this way.
            placed_inputs: Inputs whose memory is already their part of the output's.
            exclude: Backends whose kernels need sizes that are only known later; they are asked for late ones.
            why: What they need.
            space: Only backends whose operands are in this space are asked.

        Raises:
            UnsupportedError: no backend has a kernel; the message lists what each said.
            FallbackError: strict mode, and only a fall-back backend has one.
        """
        name = step_name(node)
        op = self._name_of(node)
        if (node.domain, node.op_type) in CONTROL:
            return Placed(Placement(name, op, "runtime", None))
        known = {} if layouts is None else layouts
        declined: list[tuple[str, Reason]] = []
        for backend in self.backends:
            if space is not None and backend.space != space:
                continue
            if backend.name in exclude:
                late = backend.select_late(NodeView(node, self.analyzer, known))
                if isinstance(late, Reason):
                    declined.append((backend.name, why or late))
                    continue
                placement = Placement(name, op, backend.name, late, tuple(declined), backend.fallback)
                return self._on_arrays(placement, node, known)
            wanted = backend.arrange(NodeView(node, self.analyzer, known))
            reorders, arranged, aliases = self._arranged(wanted, node, known, may_alias)
            kernel: Kernel | Reason
            if aliases:
                kernel, backend_name = ViewKernel(), "plan"
            else:
                view = NodeView(node, self.analyzer, ChainMap(arranged, known))  # type: ignore[arg-type]
                view.placed = placed_inputs
                kernel, backend_name = backend.select(view), backend.name
            if isinstance(kernel, Reason):
                declined.append((backend.name, kernel))
                continue
            if backend.fallback and self.strict:
                raise FallbackError(
                    f"strict mode: only backend '{backend.name}' can run it",
                    node=name,
                    op=op,
                    found="; ".join(f"{b}: {r}" for b, r in declined) or "no other backend",
                    remedy="Load with strict=False, or declare a kernel for the operator.",
                )
            placement = Placement(name, op, backend_name, kernel, tuple(declined), backend.fallback)
            if isinstance(kernel, HostKernel) and kernel.space != HOST:
                return self._on_arrays(placement, node, known)
            own = {o: arranged[o] for o in node.outputs if o in arranged}
            ordered = frozenset(i for i, order in enumerate(wanted.inputs) if order is not None)
            return Placed(placement, reorders, own, aliases, ordered, wanted.strided, wanted.joins)
        raise UnsupportedError(
            "no backend can run it",
            node=name,
            op=op,
            found="; ".join(f"{b}: {r}" for b, r in declined) or "no backend",
            remedy="Declare the operator with a reference (accord.operator), or choose another device.",
        )

    def _on_arrays(self, placement: Placement, node: ir.Node, known: Mapping[ir.Value, Access]) -> Placed:
        """A kernel that gets arrays: NumPy's have any strides, those in another memory are row-major."""
        kernel = placement.kernel
        if not isinstance(kernel, HostKernel) or kernel.space == HOST:
            return Placed(placement, strided=True)
        reorders, _, _ = self._arranged(Arrangement(), node, known, lambda output, alias: False)
        return Placed(placement, {i: order for i, order in reorders.items() if i not in kernel.hosted})

    def backend(self, name: str) -> Backend:
        """The backend called ``name``."""
        return next(b for b in self.backends if b.name == name)

    def owner_of(self, space: str) -> Backend:
        """The backend whose kernels' operands are in ``space``, which copies to and from it."""
        return next(b for b in self.backends if b.space == space)

    def _name_of(self, node: ir.Node) -> str:
        """The operator; those of its body for a fused one."""
        function = self.analyzer.functions.get(node.op_identifier()) if node.domain == FUSED_DOMAIN else None
        return op_name(node) if function is None else "+".join(op_name(n) for n in function)

    def _arranged(
        self,
        wanted: Arrangement,
        node: ir.Node,
        known: Mapping[ir.Value, Access],
        may_alias: Callable[[int, Alias], bool],
    ) -> tuple[dict[int, Order], dict[ir.Value, Access], dict[int, Alias]]:
        """From what a backend wants: inputs to bring into another order, layouts of operands, aliases."""
        reorders: dict[int, Order] = {}
        arranged: dict[ir.Value, Access] = {}
        for i, v in enumerate(node.inputs):
            shape = None if v is None else self.analyzer.facts.tensor(v).shape
            if v is None or shape is None:
                continue
            order = wanted.inputs[i] if i < len(wanted.inputs) else None
            if order is None:
                if wanted.strided:
                    continue
                order = tuple(range(len(shape)))
            access = Access(in_order(shape, order))
            if known.get(v, Access(contiguous(shape))) != access:
                reorders[i], arranged[v] = order, access
        aliases = {j: a for j, a in enumerate(wanted.outputs) if isinstance(a, Alias) and may_alias(j, a)}
        if aliases and len(aliases) == sum(bool(o.name) for o in node.outputs):
            return reorders, arranged, aliases
        for j, o in enumerate(node.outputs):
            shape = self.analyzer.facts.tensor(o).shape
            asked = wanted.outputs[j] if j < len(wanted.outputs) else None
            if o not in known and shape is not None and isinstance(asked, tuple):
                access = Access(in_order(shape, asked))
                if access != Access(contiguous(shape)):
                    arranged[o] = access
        return reorders, arranged, {}
