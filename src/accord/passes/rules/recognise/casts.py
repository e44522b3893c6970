"""CastLike, whose type is known before a run."""

from __future__ import annotations

from typing import Any, ClassVar

import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops

__all__ = ["CastLikeToCast"]


class CastLikeToCast(Rule):
    """CastLike → Cast, which reads nothing but its input and so can be computed at load."""

    name: ClassVar[str] = "cast-like-to-cast"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("CastLike")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with Cast to the type of the second input."""
        dtype = context.tensor(node.inputs[1]).dtype
        if dtype is None:
            return Reason("the type is not known")
        attributes: dict[str, Any] = {k: a for k, a in node.attributes.items() if k == "saturate"}
        b = context.builder()
        y = b.multi("Cast", 1, node.inputs[0], to=int(dtype), **attributes)[0]
        return patch_from(b, node, [y], dtype.name.lower())
