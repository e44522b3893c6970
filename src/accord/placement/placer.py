"""Placement: each node to the first backend of the device that has a kernel for it.

Whatever a better backend said when it declined is kept, so that nothing falls back silently.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from accord.backends.protocol import Backend, Kernel, NodeView
from accord.errors import FallbackError, UnsupportedError
from accord.ir.infer import Analyzer, op_name
from accord.ir.patch import Reason

__all__ = ["CONTROL", "Placement", "Placer"]

#: Operators with a body graph; the runtime itself runs them.
CONTROL = frozenset({("", "If"), ("", "Loop"), ("", "Scan"), ("", "SequenceMap")})


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a node runs.

    Attributes:
        node: Its name.
        op: Its operator.
        backend: Name of the backend; "runtime" for control flow, "plan" for views.
        kernel: The kernel; None for control flow.
        declined: What better backends said.
        fallback: True if a slow-but-right backend took it.
    """

    node: str
    op: str
    backend: str
    kernel: Kernel | None
    declined: tuple[tuple[str, Reason], ...] = ()
    fallback: bool = False

    @property
    def reason(self) -> str:
        """One line for people: why it is where it is."""
        return "; ".join(f"{name}: {r}" for name, r in self.declined) or "first choice"


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

    def place(self, node: ir.Node, *, exclude: Collection[str] = (), why: Reason | None = None) -> Placement:
        """The placement of ``node``.

        Args:
            node: The node.
            exclude: Backends not to ask.
            why: The reason for the exclusion.

        Raises:
            UnsupportedError: no backend has a kernel; the message lists what each said.
            FallbackError: strict mode, and only a fall-back backend has one.
        """
        name = node.name or next((o.name for o in node.outputs if o.name), None) or "?"
        op = op_name(node)
        if (node.domain, node.op_type) in CONTROL:
            return Placement(name, op, "runtime", None)
        view = NodeView(node, self.analyzer)
        declined: list[tuple[str, Reason]] = []
        for backend in self.backends:
            if backend.name in exclude:
                declined.append((backend.name, why or Reason("excluded")))
                continue
            outcome = backend.select(view)
            if isinstance(outcome, Reason):
                declined.append((backend.name, outcome))
                continue
            if backend.fallback and self.strict:
                raise FallbackError(
                    f"strict mode: only backend '{backend.name}' can run it",
                    node=name,
                    op=op,
                    found="; ".join(f"{b}: {r}" for b, r in declined) or "no other backend",
                    remedy="Load with strict=False, or declare a kernel for the operator.",
                )
            return Placement(name, op, backend.name, outcome, tuple(declined), backend.fallback)
        raise UnsupportedError(
            "no backend can run it",
            node=name,
            op=op,
            found="; ".join(f"{b}: {r}" for b, r in declined) or "no backend",
            remedy="Declare the operator with a reference (accord.operator), or choose another device.",
        )
