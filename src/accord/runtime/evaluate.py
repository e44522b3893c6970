"""Computing a node on arrays while a model is being compiled: constant folding through the reference backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from accord.errors import AccordError

__all__ = ["evaluate_node"]


def evaluate_node(node: ir.Node, inputs: Sequence[Any], opset: int) -> Sequence[Any] | None:
    """Outputs of ``node`` for ``inputs``, or None where the reference backend cannot compute it."""
    from accord.backends.reference import backend

    try:
        return backend.kernel(node, opset).run(inputs)
    except AccordError:
        return None
