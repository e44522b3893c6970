"""A node as a backend sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Analyzer, Inference
from accord.ir.strides import Access, contiguous

__all__ = ["NodeView", "step_name"]


def step_name(node: ir.Node) -> str:
    """What a node is called where plans are shown: its name, else that of its first output."""
    return node.name or next((o.name for o in node.outputs if o.name), None) or "?"


class NodeView(Inference):
    """A node as a backend sees it: attributes and facts of inputs, facts of outputs too, and how both lie in memory.

    Args:
        node: The node.
        analyzer: Facts.
        layouts: How values lie; those that are not in it are row-major.

    Attributes:
        placed: Inputs whose memory is already their part of output 0's (of Concat): they need not be copied.
        choice: Which of its alternatives the kernel shall take; None: the one by rule.
    """

    placed: frozenset[int] = frozenset()

    def __init__(self, node: ir.Node, analyzer: Analyzer, layouts: Mapping[ir.Value, Access] | None = None) -> None:
        super().__init__(node, analyzer)
        self.outputs: tuple[Fact, ...] = tuple(analyzer.facts.get(o) for o in node.outputs)
        self.layouts: Mapping[ir.Value, Access] = {} if layouts is None else layouts
        self.choice: str | None = analyzer.choices.get(step_name(node)) if analyzer.choices else None

    def choose(self, alternatives: Sequence[str]) -> str:
        """The one of ``alternatives``, names of ways to compute the node, that was chosen for it, else the first."""
        return self.choice if self.choice is not None and self.choice in alternatives else alternatives[0]

    def access(self, index: int) -> Access:
        """How input ``index`` lies in memory, counted from where its operand's address points.

        Raises:
            ValueError: its rank is not known.
        """
        return self._access(self.node.inputs[index], self.tensor(index))

    def output_access(self, index: int = 0) -> Access:
        """How output ``index`` lies in memory, counted from where its operand's address points.

        Raises:
            ValueError: its rank is not known.
        """
        return self._access(self.node.outputs[index], self.output(index))

    def _access(self, value: ir.Value | None, fact: TensorFact) -> Access:
        known = self.layouts.get(value) if value is not None else None
        if known is not None:
            return known
        if fact.shape is None:
            raise ValueError("a tensor of unknown rank has no strides")
        return Access(contiguous(fact.shape))

    def output(self, index: int = 0) -> TensorFact:
        """Fact of output ``index`` as a tensor; unknown in all parts where it is none."""
        fact = self.outputs[index] if index < len(self.outputs) else None
        return fact if isinstance(fact, TensorFact) else TensorFact(None, None)

    def function(self) -> ir.Function | None:
        """The model-local function that the node calls, if it does."""
        return self.analyzer.functions.get(self.node.op_identifier())
