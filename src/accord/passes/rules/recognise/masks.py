"""The mask input of an Attention, from what was done to its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.reason import Reason
from accord.passes.rule import RuleContext
from accord.passes.rules.recognise.scores import Mask

__all__ = ["Frame", "full_mask", "mask_input"]


@dataclass(frozen=True, slots=True)
class Frame:
    """The scores that a mask is for.

    Attributes:
        query: The operator's query.
        key: The operator's key.
        axis: The axis of both that the length is.
        shape: ``(batch, heads, queries, keys)``; at least the last two.
    """

    query: ir.Value
    key: ir.Value
    axis: int
    shape: D.Shape


def mask_input(b: Builder, masks: Sequence[Mask], frame: Frame, context: RuleContext) -> ir.Value | Reason | None:
    """One mask that does what all of ``masks`` do: None for none, a bool where it can be, else a float to add."""
    if not masks:
        return None
    dtype = context.tensor(frame.query).dtype
    assert dtype is not None
    placed: list[tuple[Mask, ir.Value]] = []
    for mask in (_as_choice(m, context) for m in masks):
        value = _place(b, mask, frame)
        if isinstance(value, Reason):
            return value
        placed.append((mask, value))
    if all(mask.keep is not None and mask.fill == -np.inf for mask, _ in placed):
        seen = [v if mask.keep else b("Not", v) for mask, v in placed]
        total = seen[0]
        for v in seen[1:]:
            total = b("And", total, v)
    else:
        parts = [_added(b, mask, v, dtype) for mask, v in placed]
        total = parts[0]
        for v in parts[1:]:
            total = b("Add", total, v)
    return full_mask(b, total, frame)


def _as_choice(mask: Mask, context: RuleContext) -> Mask:
    """A float of zeros and minus infinity that a bool was made into, as that bool."""
    node = mask.value.producer()
    if mask.keep is not None or mask.factor <= 0 or node is None or node.op_type != "Where" or node.domain != "":
        return mask
    condition = node.inputs[0]
    numbers = [float(c) for v in node.inputs[1:] if (c := context.number(v)) is not None]
    if condition is None:
        return mask
    if sorted(numbers) != [-np.inf, 0.0] or context.tensor(condition).rank != context.tensor(mask.value).rank:
        return mask
    return Mask(condition, 1.0, numbers[0] == 0.0, -np.inf, mask.shape)


def _added(b: Builder, mask: Mask, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """The float that a mask adds to the scores."""
    if mask.keep is not None:
        fill = max(mask.fill, _LOWEST.get(dtype, mask.fill)) if np.isfinite(mask.fill) else mask.fill
        zero, hidden = (b.const(np.array(n, dtype=dtype.numpy())) for n in (0.0, fill))
        return b("Where", value, *((zero, hidden) if mask.keep else (hidden, zero)))
    if b.fact(value).dtype != dtype:
        value = b("Cast", value, to=int(dtype))
    return value if mask.factor == 1 else b("Mul", value, b.scalar(mask.factor, value))


_LOWEST = {ir.DataType.FLOAT16: -65504.0, ir.DataType.FLOAT: float(np.finfo(np.float32).min)}


def _place(b: Builder, mask: Mask, frame: Frame) -> ir.Value | Reason:
    """The mask as it broadcasts to four axes; where the scores had three, batch and heads were one."""
    shape = b.shape(mask.value)
    if shape is None:
        return Reason(f"the rank of the mask '{mask.value.name}' is not known")
    if len(mask.shape) == 4 or len(shape) < 3:
        return mask.value
    if shape[0] == 1:
        return mask.value
    heads = frame.shape[1]
    if heads == 1:
        return b("Unsqueeze", mask.value, b.ints(1))
    if not isinstance(heads, int):
        return Reason(
            f"the mask '{mask.value.name}' is by batch and head at once, and the number of heads is not known"
        )
    # (batch * heads, queries, keys): at most one of the sizes may be left to the Reshape
    known = [heads, *(d if isinstance(d, int) else None for d in shape[1:])]
    if sum(d is None for d in known) > 0:
        batch = frame.shape[0]
        if not isinstance(batch, int) or sum(d is None for d in known) > 1:
            return _by_shape(b, mask.value, heads)
        return b("Reshape", mask.value, b.ints(batch, *(-1 if d is None else d for d in known)))
    return b("Reshape", mask.value, b.ints(-1, *(d for d in known if d is not None)))


def _by_shape(b: Builder, value: ir.Value, heads: int) -> ir.Value:
    rest = b("Shape", value, start=1)
    return b("Reshape", value, b("Concat", b.ints(-1, heads), rest, axis=0))


def full_mask(b: Builder, value: ir.Value, frame: Frame) -> ir.Value | Reason:
    """The mask with all queries and keys, as ONNX Runtime wants it; other axes may broadcast.

    The operator takes a mask with fewer keys for one that hides the rest, so a size that may be 1 is always expanded.
    """
    shape = b.shape(value)
    if shape is None:
        return Reason("the rank of the mask is not known")
    padded = (1,) * (2 - len(shape)) + tuple(shape)
    sizes: list[ir.Value] = []
    for axis, (size, wanted) in enumerate(zip(padded[-2:], frame.shape[-2:], strict=True)):
        if size == wanted or (axis == 0 and size != 1):
            sizes.append(b.ints(1))
        elif isinstance(wanted, int):
            sizes.append(b.ints(wanted))
        else:
            sizes.append(_length(b, (frame.query, frame.key)[axis], frame.axis))
    if all(b.fact(v).is_const and b.fact(v).numpy() == 1 for v in sizes) and len(shape) >= 2:
        return value
    return b("Expand", value, b("Concat", *sizes, axis=0))


def _length(b: Builder, value: ir.Value, axis: int) -> ir.Value:
    """The size of an axis, without reading a value that is put together along it: a cache is to be read by nobody."""
    node = value.producer()
    if node is not None and node.op_type == "Concat" and node.domain == "" and all(v is not None for v in node.inputs):
        own = next((a.value for a in node.attributes.values() if a.name == "axis"), 0)
        rank = len(b.shape(value) or ())
        if rank and own % rank == axis:
            parts = [b("Shape", v, start=axis, end=axis + 1) for v in node.inputs]
            total = parts[0]
            for part in parts[1:]:
                total = b("Add", total, part)
            return total
    return b("Shape", value, start=axis, end=axis + 1)
