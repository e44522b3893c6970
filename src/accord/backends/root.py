"""The root of a fused operator as a backend sees it.

Stored plans need :mod:`~accord.backends.epilogue`; what needs graphs is here.
"""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.epilogue import Epilogue
from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.expr.lang import operand
from accord.expr.onnx_ops import dtype_name
from accord.ir.strides import Access

__all__ = ["RootView", "epilogue_of"]


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
