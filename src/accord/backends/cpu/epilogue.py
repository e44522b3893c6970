"""What a kernel does with a result before it stores it.

A fused operator's body is one *root* (a contraction, a window, a reduction ...) and elementwise operators after it.
Those become one expression of the root's result and of further operands, the extras.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.expr.lang import Expr, operand
from accord.expr.onnx_ops import dtype_name
from accord.ir.strides import Access

__all__ = ["Epilogue", "Extra", "RootView", "epilogue_of"]


@dataclass(frozen=True, slots=True)
class Extra:
    """A further operand of an epilogue.

    Attributes:
        dtype: Element type in memory.
        access: How it is walked over the axes of the root's output; stride 0 where it is broadcast.
    """

    dtype: str
    access: Access


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What is stored: ``expr`` of the root's result (operand 0, of the root's output dtype) and the extras (1, 2 ...).

    Its dtype is that of what is stored.
    """

    expr: Expr
    extras: tuple[Extra, ...] = ()


class RootView(NodeView):
    """The root of a fused operator: a node whose result goes through an epilogue before it is stored.

    Facts of inputs are the root's. :meth:`output` is the root's own result, which is never stored;
    :meth:`output_access` is how what *is* stored lies, over the same axes. ``prologue`` are the nodes that make its
    input 1 from a constant.
    """

    epilogue: Epilogue
    stored: Access
    prologue: Sequence[NodeView] = ()

    def output_access(self, index: int = 0) -> Access:
        """How the stored output lies."""
        return self.stored if index == 0 else super().output_access(index)


def epilogue_of(view: NodeView) -> Epilogue:
    """The epilogue of a node; for one that is not fused, its result as it is.

    A kernel's operands are then: inputs in ``reads``, the epilogue's extras, outputs, workspace. Whoever makes the
    kernel lists only the root's own inputs in ``reads``.

    Raises:
        CompileError: the dtype of the node's output has no expressions.
    """
    if isinstance(view, RootView):
        return view.epilogue
    dtype = view.output().dtype
    name = None if dtype is None else dtype_name(dtype)
    if name is None:
        raise CompileError(f"there are no expressions of dtype {dtype}")
    return Epilogue(operand(0, name))
