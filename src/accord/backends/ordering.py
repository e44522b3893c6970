"""Keys of elements: unsigned integers that are ordered as the elements are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accord.backends.loops.table import known
from accord.expr.lang import FLOATS, SIGNED, Expr, bits, cast, operand
from accord.expr.math import expand
from accord.expr.primitives import bitcast, eq, ge, isnan, select
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = ["key_dtype", "order_key", "top_k_of"]


def key_dtype(dtype: str) -> str:
    """Element type of the keys of ``dtype``: "u32" or "u64"."""
    return "u64" if bits(dtype) == 64 else "u32"


def order_key(dtype: str, *, descending: bool) -> Expr:
    """The key of an element (operand 0): unsigned, ascending in the order wanted."""
    x = operand(0, dtype)
    size = bits(dtype)
    unsigned = f"u{size}"
    if dtype == "bool":
        key = cast(x, "u8")
    elif dtype in FLOATS:
        sign = 1 << (size - 1)
        raw = bitcast(x, unsigned)
        raw = select(eq(raw, sign), 0, raw)
        key = select(ge(raw, sign), ~raw, raw | sign)
        wide = x if size >= 32 else cast(x, "f32")
        key = select(isnan(wide), (1 << size) - 1, key)
    elif dtype in SIGNED:
        key = bitcast(x, unsigned) ^ (1 << (size - 1))
    else:
        key = x
    return expand(cast(~key if descending else key, key_dtype(dtype)))


def top_k_of(view: NodeView) -> tuple[Shape, str, int, DimLike] | Reason:
    """What a TopK asks for: shape and type of its input, the axis, and how many."""
    x = known(view.tensor(0), "the input")
    if isinstance(x, Reason):
        return x
    if not x[0]:
        return Reason("a scalar has no axis")
    axis = view.axis(int(view.attr("axis", -1)), len(x[0]))
    out = view.output(0).shape or view.output(1).shape
    return Reason("the rank is not known") if out is None else (*x, axis, out[axis])
