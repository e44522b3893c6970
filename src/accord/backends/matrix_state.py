"""Attention without softmax, as a recurrence over a matrix state: what an operator asks for, on any device.

``S = exp(g) S``, ``S += k (beta (v - Sᵀ k))ᵀ``, ``o = scale Sᵀ q`` (Yang et al., "Gated Delta Networks" (2024)).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from accord.backends.loops.table import known, output_operands
from accord.expr.lang import FLOATS
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = ["LinearAttention", "linear_attention_of"]

#: Rule → whether the state decays, and whether what it holds of a key is taken off its value.
_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


@record
class LinearAttention:
    """What is computed.

    Attributes:
        dtype: Of all but states.
        state: Of the states.
        past: There is a past state.
        decay: The state decays.
        delta: What the state holds of a key already is taken off its value.
        kept: The state is a result.
        scale: Of the results.
    """

    dtype: str
    state: str
    past: bool
    decay: bool
    delta: bool
    kept: bool
    scale: float


def linear_attention_of(
    view: NodeView,
) -> tuple[LinearAttention, dict[str, DimLike], tuple[int, ...], tuple[int, ...]] | Reason:
    """What a LinearAttention asks for: what is computed, sizes by name, inputs that are read, operands of results.

    Sizes: "images", "steps", "heads" (of keys), "group" (query heads of each), "size" (of keys), "value.size", "decays"
    and "betas" (elements of a row of them).
    """
    shapes: dict[int, Shape] = {}
    dtypes: dict[int, str] = {}
    for i in range(6):
        if view.has(i):
            found = known(view.tensor(i), f"input {i}")
            if isinstance(found, Reason):
                return found
            shapes[i], dtypes[i] = found
            if found[1] not in FLOATS:
                return Reason("only floats")
    decay, delta = _RULES[str(view.attr("update_rule", "gated_delta"))]
    if (4 in shapes) != decay or (5 in shapes) != delta:
        return Reason("the rule and the inputs do not fit each other")
    heads, queries = int(view.attr("kv_num_heads")), int(view.attr("q_num_heads"))
    size = D.floordiv(shapes[0][2], queries)
    scale = float(view.attr("scale", 0.0) or 0.0)
    if not scale and not isinstance(size, int):
        return Reason("the head size is only known at run time")
    numbers = output_operands(view.node, len(shapes))
    kept = len(numbers) > 1 and numbers[1] >= 0
    sizes: dict[str, DimLike] = {
        "images": shapes[0][0],
        "steps": shapes[0][1],
        "heads": heads,
        "group": queries // heads,
        "size": size,
        "value.size": D.floordiv(shapes[2][2], heads),
        "decays": shapes[4][2] if decay else 0,
        "betas": shapes[5][2] if delta else 0,
    }
    reads = tuple(shapes)
    results = tuple(n for n in numbers[:2] if n >= 0)
    if numbers[0] < 0:
        return Reason("only its state is wanted")
    factor = scale or 1 / math.sqrt(int(str(size)))
    asked = LinearAttention(dtypes[0], dtypes.get(3, dtypes[0]), 3 in shapes, decay, delta, kept, factor)
    return asked, sizes, reads, results
