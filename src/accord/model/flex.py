"""FlexAttention as products, a softmax, and the nodes of its modifier graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, required
from accord.ir.infer import Inference
from accord.model.graphs import BodyCopy
from accord.ops.microsoft.common import cast, dims, size

__all__ = ["DOMAIN", "flex_attention"]

DOMAIN = "ai.onnx.preview"


@expands("FlexAttention", domain=DOMAIN)
def flex_attention(b: Builder, n: Inference) -> Sequence[ir.Value | None] | None:
    """The scores are modified before the softmax, the probabilities after it; both in its precision."""
    q, k, v = (required(n, i) for i in range(3))
    shapes = [b.shape(x) for x in (q, k, v)]
    dtype = b.fact(q).dtype
    if dtype is None or any(s is None or len(s) != 4 for s in shapes):
        return None
    width, heads, groups = (shapes[0] or ())[3], (shapes[0] or ())[1], (shapes[1] or ())[1]
    if not (isinstance(width, int) and isinstance(heads, int) and isinstance(groups, int)):
        return None
    wanted = n.attr("softmax_precision")
    default = ir.DataType.DOUBLE if dtype is ir.DataType.DOUBLE else ir.DataType.FLOAT
    precision = default if wanted is None else ir.DataType(int(wanted))
    wide = default if precision in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else precision
    q, k, v = (cast(b, x, wide) for x in (q, k, v))
    if heads != groups:
        k, v = (_repeated(b, x, heads // groups) for x in (k, v))
    scale = n.attr("scale")
    factor = 1 / math.sqrt(width) if scale is None else float(scale)
    scores = b("Mul", b("MatMul", q, b("Transpose", k, perm=(0, 1, 3, 2))), b.scalar(factor, q))
    scores = _modified(b, n, "score_mod", cast(b, scores, precision))
    probabilities = _modified(b, n, "prob_mod", b("Softmax", scores, axis=-1))
    return [cast(b, b("MatMul", cast(b, probabilities, wide), v), dtype)]


def _repeated(b: Builder, x: ir.Value, times: int) -> ir.Value:
    """Each head ``times`` times in a row."""
    apart = b("Unsqueeze", x, b.ints(2))
    wide = b("Expand", apart, b.ints(1, 1, times, 1, 1))
    return b("Reshape", wide, dims(b, size(b, x, 0), -1, size(b, x, 2), size(b, x, 3)))


def _modified(b: Builder, n: Inference, name: str, x: ir.Value) -> ir.Value:
    """The output of the graph in attribute ``name`` for ``x``, of the same dtype."""
    attribute = n.node.attributes.get(name)
    dtype = b.fact(x).dtype
    if attribute is None or dtype is None:
        return x
    body = attribute.as_graph()
    copy = BodyCopy({}, {body.inputs[0]: x})
    b.constants.extend(copy.constant(v) for v in body.initializers.values())
    for node in body:
        made = copy.node(node)
        b.analyzer.infer(made)
        b.nodes.append(made)
    result = copy.value(body.outputs[0])
    n.require(result is not None, f"{name} must have an output")
    assert result is not None
    return cast(b, result, dtype)
