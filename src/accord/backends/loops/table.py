"""Tables from operators to the functions that make their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir

from accord.backends.protocol import Arrangement, Kernel
from accord.backends.view import NodeView
from accord.expr.onnx_ops import dtype_name
from accord.ir.dims import Shape
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason

__all__ = ["LOOPS", "Arranger", "Selector", "Table", "known", "output_operands"]

Selector: TypeAlias = Callable[[NodeView], "Kernel | Reason"]
Arranger: TypeAlias = Callable[[NodeView], Arrangement]


class Table:
    """What a backend has by operator: (domain, name).

    Args:
        base: Where what it has not is looked for.

    Attributes:
        selectors: What makes the kernel.
        arrangers: What says how operands should lie; operators without one get row-major operands.
        roots: Operators whose kernels apply :func:`~accord.backends.root.epilogue_of` before they store.
    """

    def __init__(self, base: Table | None = None) -> None:
        self._base = base
        self.selectors: dict[tuple[str, str], Selector] = {}
        self.arrangers: dict[tuple[str, str], Arranger] = {}
        self.roots: set[tuple[str, str]] = set()

    def selects(self, *names: str, domain: str = "", epilogue: bool = False) -> Callable[[Selector], Selector]:
        """Register the decorated function for the operators ``names`` of ``domain``; ``epilogue``: they are roots."""

        def register(function: Selector) -> Selector:
            for name in names:
                self.selectors[domain, name] = function
                if epilogue:
                    self.roots.add((domain, name))
            return function

        return register

    def arranges(self, *names: str, domain: str = "") -> Callable[[Arranger], Arranger]:
        """Register the decorated function as what says how the operands of the operators ``names`` should lie."""

        def register(function: Arranger) -> Arranger:
            for name in names:
                self.arrangers[domain, name] = function
            return function

        return register

    def selector(self, domain: str, name: str) -> Selector | None:
        """What makes the kernel of an operator, if anything does."""
        found = self.selectors.get((domain, name))
        return self._base.selector(domain, name) if found is None and self._base is not None else found

    def arranger(self, domain: str, name: str) -> Arranger | None:
        """What arranges an operator, if anything does."""
        found = self.arrangers.get((domain, name))
        return self._base.arranger(domain, name) if found is None and self._base is not None else found


#: What is made of loop programs alone, for all backends.
LOOPS = Table()


def known(fact: TensorFact, what: str) -> tuple[Shape, str] | Reason:
    """Shape and element type of a tensor, or why a kernel cannot be generated for it."""
    if fact.shape is None:
        return Reason(f"the rank of {what} is not known")
    if fact.dtype is None:
        return Reason(f"the dtype of {what} is not known")
    name = dtype_name(fact.dtype)
    if name is None:
        return Reason(f"dtype {fact.dtype.name.lower()} of {what} has no generated kernels")
    return fact.shape, name


def output_operands(node: ir.Node, first: int) -> list[int]:
    """Operand numbers of the outputs, counted from ``first``; outputs without a name have none (-1)."""
    numbers = []
    for o in node.outputs:
        if o.name == "":
            numbers.append(-1)
        else:
            numbers.append(first)
            first += 1
    return numbers
