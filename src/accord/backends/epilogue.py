"""What a kernel does with a result before it stores it.

A fused operator's body is one *root* (a contraction, a window, a reduction ...) and elementwise operators after it.
Those become one expression of the root's result and of further operands, the extras.
"""

from __future__ import annotations

from collections.abc import Callable

from accord.expr.lang import FLOATS, Expr, bits, cast, operand, rebuild, topological
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Epilogue", "Extra", "accumulator", "substitute", "with_first", "with_sum"]


@record
class Extra:
    """A further operand of an epilogue.

    Attributes:
        dtype: Element type in memory.
        access: How it is walked over the axes of the root's output; stride 0 where it is broadcast.
    """

    dtype: str
    access: Access


@record
class Epilogue:
    """What is stored: ``expr`` of the root's result (operand 0, of the root's output dtype) and the extras (1, 2 ...).

    Its dtype is that of what is stored.
    """

    expr: Expr
    extras: tuple[Extra, ...] = ()


def accumulator(dtype: str) -> str:
    """The type in which products of values of ``dtype`` are summed."""
    return "f32" if dtype in ("f16", "bf16") else "i32" if dtype in ("i8", "u8") else dtype


def with_sum(expr: Expr, dtype: str) -> Expr:
    """``expr`` of a sum as it is made, in ``dtype``, in place of one of the type that it would have as a value."""
    return with_first(expr, operand(0, dtype))


def with_first(expr: Expr, first: Expr, shift: int = 0) -> Expr:
    """``expr`` with ``first`` in place of operand 0, and the others ``shift`` numbers later.

    Where the expression widens operand 0, ``first`` is not rounded to its type: between the operators of a group f16
    and bf16 are f32.
    """
    made: dict[Expr, Expr] = {}
    for node in topological((expr,)):
        widened = node.op == "cast" and _is_first(node.args[0]) and _holds(node.dtype, first.dtype)
        if widened or _is_first(node):
            made[node] = cast(first, node.dtype)
        elif node.op == "operand" and node.value is not None:
            made[node] = operand(int(node.value) + shift, node.dtype)
        else:
            made[node] = rebuild(node, tuple(made[a] for a in node.args))
    return made[expr]


def _is_first(node: Expr) -> bool:
    return node.op == "operand" and node.value == 0


def _holds(wide: str, sums: str) -> bool:
    """Whether every sum is a value of ``wide`` too."""
    return wide == sums or (wide in FLOATS and sums in FLOATS and bits(wide) >= bits(sums))


def substitute(expr: Expr, operand_of: Callable[[int, str], Expr]) -> Expr:
    """``expr`` with each operand replaced by what ``operand_of`` gives for its index and dtype."""
    made: dict[Expr, Expr] = {}
    for node in topological((expr,)):
        if node.op == "operand" and node.value is not None:
            made[node] = operand_of(int(node.value), node.dtype)
        else:
            made[node] = rebuild(node, tuple(made[a] for a in node.args))
    return made[expr]
