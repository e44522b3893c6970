"""What a rewrite rule is, and the context that it sees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.facts import Fact, FactTable, TensorFact
from accord.ir.infer import Analyzer
from accord.ir.patch import Patch
from accord.ir.reason import Reason

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Rule", "RuleContext"]


#: None if a device fuses elementwise operators into the node, or why not.
Fuses: TypeAlias = Callable[[ir.Node], Reason | None]
#: None if a device makes one loop nest of these nodes, which are in graph order, or why not.
Joins: TypeAlias = Callable[[Sequence[ir.Node]], Reason | None]


class RuleContext:
    """What a rule may look at. It changes nothing itself.

    Attributes:
        model: The model being rewritten.
        analyzer: Facts and how to make more.
        scratch: A dictionary of the rule's own that lives for one sweep over one graph (for value numbering).
        fuses: Whether the device computes elementwise operators together with a node, on its results; a reason if not.
        joins: Whether the device makes one loop nest of some nodes; a reason if not.
        runs: Whether the device has a kernel of its own for a node; a reason if not.
        device: What the model is compiled for.
        allows: Whether a rule may run, now or in a later phase.
    """

    def __init__(
        self,
        model: ir.Model,
        analyzer: Analyzer,
        fuses: Fuses | None = None,
        joins: Joins | None = None,
        runs: Fuses | None = None,
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.analyzer = analyzer
        self.fuses: Fuses = fuses if fuses is not None else lambda node: Reason("no device was chosen")
        self.runs: Fuses = runs if runs is not None else lambda node: None
        self.joins: Joins = joins if joins is not None else lambda nodes: Reason("no device was chosen")
        self.device = device
        self.scratch: dict[Any, Any] = {}
        self.allows: Callable[[type[Rule]], bool] = lambda rule: True

    @property
    def facts(self) -> FactTable:
        """Facts by value."""
        return self.analyzer.facts

    @property
    def opset(self) -> int:
        """Version of the ONNX domain in force."""
        return self.model.opset_imports.get("", 1)

    def builder(self) -> Builder:
        """A builder for the replacement's nodes."""
        return Builder(self.analyzer)

    def fact(self, value: ir.Value | None) -> Fact:
        """Fact of a value."""
        return self.facts.get(value)

    def tensor(self, value: ir.Value | None) -> TensorFact:
        """Fact of a value as a tensor; unknown in all parts if it is none."""
        return self.facts.tensor(value)

    def constant(self, value: ir.Value | None, limit: int | None = None) -> np.ndarray[Any, Any] | None:
        """Content of a constant (of at most ``limit`` elements), else None.

        An initializer that is also a graph input is not constant: the caller may replace it.
        """
        fact = self.facts.tensor(value)
        if fact.const is None or (limit is not None and fact.const.size > limit):
            return None
        return fact.numpy()

    def number(self, value: ir.Value | None) -> Any:
        """The element of a constant that has one, as a NumPy scalar; else None."""
        content = self.constant(value, 1)
        return None if content is None or content.size == 0 else content.reshape(-1)[0]

    @staticmethod
    def attr(node: ir.Node, name: str, default: Any = None) -> Any:
        """Attribute as a Python value, or ``default``."""
        attribute = node.attributes.get(name)
        return default if attribute is None else attribute.value

    @staticmethod
    def only_use(value: ir.Value) -> ir.Node | None:
        """The one node that reads ``value`` once, if there is exactly one and it is no graph output; else None."""
        uses = value.uses()
        if len(uses) != 1 or value.is_graph_output():
            return None
        return next(iter(uses)).node

    def sources(self, node: ir.Node) -> Mapping[str, str]:
        """Names of the nodes that produce the inputs of ``node``, for reasons."""
        return {
            v.name or "?": (p.name or "?") for v in node.inputs if v is not None and (p := v.producer()) is not None
        }


class Rule(ABC):
    """One rewrite.

    Attributes:
        name: Unique; users switch it off by this name.
        level: Lowest optimisation level at which it runs.
        ops: Operators that it looks at, ``(domain, name)``; empty means every node.
    """

    name: ClassVar[str]
    level: ClassVar[int] = 1
    ops: ClassVar[frozenset[tuple[str, str]]] = frozenset()

    @abstractmethod
    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """Look at ``node``: a patch, the reason why not, or None if it does not concern the rule."""


def onnx_ops(*names: str) -> frozenset[tuple[str, str]]:
    """Operators of the ONNX domain, for :attr:`Rule.ops`."""
    return frozenset(("", n) for n in names)
