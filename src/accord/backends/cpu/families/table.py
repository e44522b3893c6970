"""The table from operators to the functions that make their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir

from accord.backends.protocol import Arrangement, Kernel
from accord.backends.view import NodeView
from accord.contract.choose import Choice
from accord.expr.onnx_ops import dtype_name
from accord.ir.dims import Shape
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason

__all__ = [
    "ARRANGERS",
    "GENERATORS",
    "ROOTS",
    "SELECTORS",
    "Arranger",
    "Generator",
    "Selector",
    "arranges",
    "generates",
    "known",
    "output_operands",
    "selects",
]

Selector: TypeAlias = Callable[[NodeView], "Kernel | Reason"]
SELECTORS: dict[tuple[str, str], Selector] = {}
Arranger: TypeAlias = Callable[[NodeView], Arrangement]
ARRANGERS: dict[tuple[str, str], Arranger] = {}
Generator: TypeAlias = Callable[[NodeView, Choice], "Kernel | Reason"]
#: By the class of what a declared kernel of kind "generated" has as its code.
GENERATORS: dict[type, Generator] = {}
#: Operators whose kernels apply an epilogue.
ROOTS: set[tuple[str, str]] = set()


def selects(*names: str, domain: str = "", epilogue: bool = False) -> Callable[[Selector], Selector]:
    """Register the decorated function for the operators ``names`` of ``domain``.

    With ``epilogue`` its kernels apply :func:`~accord.backends.cpu.epilogue.epilogue_of` before they store.
    """

    def register(function: Selector) -> Selector:
        for name in names:
            SELECTORS[domain, name] = function
            if epilogue:
                ROOTS.add((domain, name))
        return function

    return register


def arranges(*names: str, domain: str = "") -> Callable[[Arranger], Arranger]:
    """Register the decorated function as what says how the operands of the operators ``names`` should lie.

    Operators without one get row-major operands.
    """

    def register(function: Arranger) -> Arranger:
        for name in names:
            ARRANGERS[domain, name] = function
        return function

    return register


def generates(code: type) -> Callable[[Generator], Generator]:
    """Register the decorated function for operators that declare a generated kernel whose code is a ``code``."""

    def register(function: Generator) -> Generator:
        GENERATORS[code] = function
        return function

    return register


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
