"""What several upgrades share: rebuilding a node, constants of a value's dtype, shapes at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from accord.errors import UnsupportedError
from accord.ir.build import Builder
from accord.ir.infer import Inference, op_name

__all__ = [
    "FLOATS",
    "Outputs",
    "as_dtype",
    "constant",
    "has_attribute",
    "node_name",
    "rank_vector",
    "rebuild",
    "reshape",
    "scalar_like",
    "unsupported",
]

#: What an expansion returns.
Outputs: TypeAlias = "Sequence[ir.Value | None] | None"

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def node_name(node: ir.Node) -> str:
    """How messages and new names call a node: its name, else its first output's."""
    return node.name or next((o.name for o in node.outputs if o.name), None) or node.op_type


def has_attribute(n: Inference, *names: str) -> bool:
    """True if the node sets one of the attributes ``names``."""
    return any(name in n.node.attributes for name in names)


def rebuild(
    b: Builder,
    n: Inference,
    *inputs: ir.Value | None,
    op_type: str | None = None,
    drop: Sequence[str] = (),
    **changes: Any,
) -> Sequence[ir.Value]:
    """The node once more, without the attributes ``drop`` and with ``changes``.

    Args:
        b: Where it is built.
        n: The node.
        inputs: Its new inputs; none given: those it has.
        op_type: Its new operator.
        drop: Attributes to leave out.
        changes: Attributes to set; None leaves one out.
    """
    node = n.node
    attributes: dict[str, Any] = {k: a for k, a in node.attributes.items() if k not in drop}
    attributes.update(changes)
    sources = inputs if inputs else node.inputs
    return b.multi(op_type or node.op_type, len(node.outputs), *sources, domain=node.domain, **attributes)


def constant(b: Builder, value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The content of ``value`` where it is constant."""
    if value is None:
        return None
    fact = b.fact(value)
    return fact.numpy() if fact.is_const else None


def scalar_like(b: Builder, value: float, x: ir.Value) -> ir.Value:
    """``value`` as a rank-0 tensor of the dtype of ``x``, infinite where that dtype cannot hold it."""
    dtype = b.fact(x).dtype
    if dtype is None:
        return b("CastLike", b.const(np.array(value, dtype=np.float32)), x)
    with np.errstate(over="ignore"):
        return b.const(np.array(value, dtype=np.float64).astype(dtype.numpy()))


def as_dtype(b: Builder, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """``x`` cast to ``dtype``; itself where it is of that dtype."""
    return x if b.fact(x).dtype == dtype else b("Cast", x, to=int(dtype))


def reshape(b: Builder, x: ir.Value, shape: ir.Value) -> ir.Value:
    """``x`` in the sizes ``shape`` as they stand: a zero in it means a size of zero, not a copied one."""
    return b("Reshape", x, shape, allowzero=1)


def rank_vector(b: Builder, x: ir.Value) -> ir.Value:
    """The rank of ``x`` as an int64 tensor of shape [1]; a constant where it is known."""
    rank = b.fact(x).rank
    return b("Shape", b("Shape", x)) if rank is None else b.ints(rank)


def unsupported(n: Inference, message: str, remedy: str) -> UnsupportedError:
    """An error that names the node, for what has no equivalent in today's operators."""
    return UnsupportedError(message, node=node_name(n.node), op=op_name(n.node), remedy=remedy)
