"""What attention asks for, on any device: queries, keys and values as heads, and what is done to scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from accord.expr.lang import FLOATS, Expr
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, broadcast_access
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = [
    "KEY",
    "MASK",
    "PAST_KEY",
    "PAST_VALUE",
    "QUERY",
    "VALID",
    "VALUE",
    "Asked",
    "Features",
    "HeadTensor",
    "Heads",
    "as_heads",
    "attention_of",
    "features_of",
    "heads_of",
]

#: Inputs of ONNX's Attention.
QUERY, KEY, VALUE, MASK, PAST_KEY, PAST_VALUE, VALID = range(7)


@record
class Heads:
    """A tensor as images, heads, positions and head size.

    Attributes:
        dtype: Element type.
        access: Over these four axes.
    """

    dtype: str
    access: Access

    @property
    def unit(self) -> bool:
        """Elements of a head follow each other."""
        return self.access.strides[3] == 1


@record
class Features:
    """What is done to scores.

    Attributes:
        scale: Of the products.
        softcap: 0 for none.
        causal: A query sees no keys after its own place.
        left: Keys that it sees before its place; negative for all.
        right: Keys that it sees after its place; negative for all.
        offset: Place of the first query.
        valid: Elements between the images' numbers of keys (i64), which say where the queries are too; None if all
            keys are valid.
        mask: Element type of the mask, and how it is walked over images, heads, queries and keys.
        mask_keys: Keys that the mask is for; later ones are not seen.
        score: What becomes of scores; see :class:`~accord.backends.cpu.attention.AttentionCode`.
    """

    scale: float
    softcap: float = 0.0
    causal: bool = False
    left: int = -1
    right: int = -1
    offset: DimLike = 0
    valid: DimLike | None = None
    mask: Heads | None = None
    mask_keys: DimLike = 0
    score: Expr | None = None


@record
class HeadTensor:
    """Images, heads, positions, head size; how they lie, and the element type."""

    shape: Shape
    access: Access
    dtype: str


def as_heads(shape: Shape, access: Access, dtype: str, heads: DimLike) -> HeadTensor:
    """A tensor of rank 4, or one of rank 3 whose last axis holds all heads."""
    if len(shape) == 4:
        return HeadTensor(shape, access, dtype)
    size = D.floordiv(shape[2], heads)
    image, position, step = access.strides
    return HeadTensor(
        (shape[0], heads, shape[1], size), Access((image, size * step, position, step), access.offset), dtype
    )


def heads_of(view: NodeView, index: int, heads: str) -> HeadTensor | Reason:
    """Input ``index`` as heads, whose number attribute ``heads`` says where its rank is 3."""
    from accord.backends.loops.table import known

    found = known(view.tensor(index), f"input {index}")
    if isinstance(found, Reason):
        return found
    shape, dtype = found
    if dtype not in FLOATS or len(shape) not in (3, 4):
        return Reason("only floats of rank 3 or 4")
    count = int(view.attr(heads, 0) or 0)
    if len(shape) == 3 and count <= 0:
        return Reason(f"{heads} is missing")
    return as_heads(shape, view.access(index), dtype, count)


def features_of(view: NodeView, q: HeadTensor) -> Features | Reason:
    """What ONNX's Attention does to scores of queries ``q``."""
    from accord.backends.loops.table import known

    size = q.shape[3]
    assert isinstance(size, int)
    given = view.attr("scale")
    scale = 1 / math.sqrt(size) if given is None else float(given)
    offset: DimLike = 0
    if view.has(PAST_KEY):
        past = view.tensor(PAST_KEY).shape
        if past is None:
            return Reason("the rank of the past is not known")
        offset = past[2]
    valid: DimLike | None = None
    if view.has(VALID):
        counts = known(view.tensor(VALID), "the numbers of keys")
        if isinstance(counts, Reason) or counts[1] != "i64":
            return Reason("numbers of keys are int64")
        valid = view.access(VALID).strides[0]
        if view.access(VALID).offset != 0:
            return Reason("the numbers of keys are part of a larger tensor")
    mask = None
    mask_keys: DimLike = 0
    if view.has(MASK):
        found = known(view.tensor(MASK), "the mask")
        if isinstance(found, Reason):
            return found
        shape, dtype = found
        if not 1 <= len(shape) <= 4 or (dtype != "bool" and dtype not in FLOATS):
            return Reason("the mask is neither bool nor float, or of another rank than 1 to 4")
        mask_keys = shape[-1]
        over = (*q.shape[:3], mask_keys)
        mask = Heads(dtype, broadcast_access(shape, over, view.access(MASK)))
    return Features(
        scale,
        float(view.attr("softcap", 0.0) or 0.0),
        bool(view.attr("is_causal", 0)),
        _window(view, "left_window_size"),
        _window(view, "right_window_size"),
        offset,
        valid,
        mask,
        mask_keys,
    )


def _window(view: NodeView, name: str) -> int:
    size = view.attr(name)
    return -1 if size is None else int(size)


@record
class Asked:
    """What an Attention asks for.

    Attributes:
        query: The queries.
        key: The new keys.
        value: The new values.
        features: What is done to scores.
        shape: Of the output.
        dtype: Of the output.
    """

    query: HeadTensor
    key: HeadTensor
    value: HeadTensor
    features: Features
    shape: Shape
    dtype: str


def attention_of(view: NodeView) -> Asked | Reason:
    """What ONNX's Attention asks for; the scores themselves are no result of any kernel."""
    from accord.backends.loops.table import known, output_operands

    inputs = ((QUERY, "q_num_heads"), (KEY, "kv_num_heads"), (VALUE, "kv_num_heads"))
    tensors = [heads_of(view, i, heads) for i, heads in inputs]
    for t in tensors:
        if isinstance(t, Reason):
            return t
    q, k, v = (t for t in tensors if isinstance(t, HeadTensor))
    numbers = output_operands(view.node, 0)
    if len(numbers) > 3 and numbers[3] >= 0:
        return Reason("the scores are wanted as well")
    out = known(view.output(), "the output")
    if isinstance(out, Reason):
        return out
    if not isinstance(q.shape[3], int) or not isinstance(v.shape[3], int) or not q.shape[3]:
        return Reason("head sizes are only known at run time")
    features = features_of(view, q)
    return features if isinstance(features, Reason) else Asked(q, k, v, features, *out)
