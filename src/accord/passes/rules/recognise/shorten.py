"""Ways of Reshapes and Transposes made shorter."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.views import Views

__all__ = ["ShortenViews"]


class ShortenViews(Rule):
    """Reshapes and Transposes in a row → the fewest that regroup the axes alike: Reshape, Transpose, Reshape at most.

    A way through axes that were joined only to be taken apart again would need its elements in order on the way.
    """

    name: ClassVar[str] = "shorten-views"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Reshape", "Transpose")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch that regroups the axes of the first value of the way."""
        inner = node.inputs[0].producer() if node.inputs[0] is not None else None
        if inner is None or inner.domain != "" or inner.op_type not in ("Reshape", "Transpose", "Squeeze", "Unsqueeze"):
            return None
        views = Views(context)
        chain = views.back(node.outputs[0])
        if chain is None or len(chain.points) < 3:
            return None
        want = views.axes(chain.last)
        steps = views.steps(chain.points[0], want)
        if steps is None:
            return Reason("a shape on the way cannot be stated as a constant")
        if len(steps) >= len(chain.points) - 1:
            return None
        b = context.builder()
        made = views.build(b, chain.points[0], want)
        assert made is not None
        return patch_from(b, node, [made.value], f"{len(chain.points) - 1} steps become {len(steps)}")
