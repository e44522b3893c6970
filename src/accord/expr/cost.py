"""How much work an expression is."""

from __future__ import annotations

import functools
from typing import Final

from accord.expr.lang import Expr, topological
from accord.expr.math import expand

__all__ = ["cost_of"]

#: Primitives that take longer than an addition, in additions.
_SLOW: Final = {"div": 6.0, "sqrt": 6.0, "idiv": 20.0, "irem": 20.0, "operand": 0.0, "const": 0.0}


@functools.lru_cache(maxsize=512)
def cost_of(expr: Expr) -> float:
    """Operations of ``expr`` in primitives."""
    return sum(_SLOW.get(n.op, 1.0) for n in topological((expand(expr),)))
