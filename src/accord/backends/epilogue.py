"""What a kernel does with a result before it stores it.

A fused operator's body is one *root* (a contraction, a window, a reduction ...) and elementwise operators after it.
Those become one expression of the root's result and of further operands, the extras.
"""

from __future__ import annotations

from accord.expr.lang import Expr
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Epilogue", "Extra"]


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
