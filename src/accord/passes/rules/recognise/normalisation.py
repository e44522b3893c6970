"""Normalisations: subtract the mean, divide by the standard deviation, scale and shift.

- LayerNormalization: over the last axes (Ba, Kiros and Hinton, "Layer Normalization", 2016). Other axes are moved to
  the end and back; layouts are strides, so that costs nothing.
- RMSNormalization: no mean is subtracted (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).
- InstanceNormalization: over all axes behind the channels, with scale and shift by channel (Ulyanov, Vedaldi and
  Lempitsky, "Instance Normalization", 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.build import Builder
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.algebra import Algebra, Base, Floats, Monomial, Poly, Reduced, UnfitError
from accord.passes.rules.recognise.formula import THROUGH, Moments, moments, one, read, split
from accord.passes.rules.recognise.region import Region, allows, regions, same_shape, tolerance

__all__ = ["RecogniseNormalisation"]

_REDUCES = frozenset({"ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "GlobalAveragePool"})
_KNOWN = frozenset({"LayerNormalization", "RMSNormalization", "InstanceNormalization"})
_ROOTS = frozenset({"Sqrt", "Pow", "ReduceL2"})


@dataclass(frozen=True, slots=True)
class _Found:
    """A normalisation: over which axes, and constants of the variable's rank."""

    axes: frozenset[int]
    centred: bool
    epsilon: float
    scale: Floats
    bias: Floats


class RecogniseNormalisation(Rule):
    """Mean, variance, root and affine part in any spelling → Layer-, RMS- or InstanceNormalization."""

    name: ClassVar[str] = "recognise-normalisation"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops("Mul", "Div", "Add", "Sub", "Cast", "Transpose")

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the normalisation in place of the whole formula."""
        reason: Reason | None = None
        unfit: Reason | None = None
        # The largest first: without its mean, x - mean(x) would be the input of an RMSNormalization.
        for region in reversed(regions(node.outputs[0], context, THROUGH)):
            if len(region.nodes) < 2 or not self._looks_like_one(region):
                continue
            try:
                outcome = self._region(node, region, context)
            except UnfitError as error:
                if region.ops & _REDUCES:
                    unfit = Reason(f"the formula of '{region.variable.name}' is no normalisation: {error}")
                continue
            if isinstance(outcome, Patch):
                return outcome
            reason = reason or outcome
        return reason or unfit

    @staticmethod
    def _looks_like_one(region: Region) -> bool:
        ops = region.ops
        return bool(ops & _KNOWN) or (bool(ops & _REDUCES) and bool(ops & _ROOTS))

    def _region(self, node: ir.Node, region: Region, context: RuleContext) -> Patch | Reason | None:
        dtype = context.tensor(region.root).dtype
        if dtype is None or context.tensor(region.variable).dtype != dtype:
            return None
        algebra, term = read(region, context)
        if term.layout != tuple(range(algebra.rank)) or not _divides(algebra, term.poly):
            return None
        found = _match(algebra, term.poly, tolerance(dtype))
        if not same_shape(context, region.variable, region.root):
            return Reason("the result has another shape than the input")
        blocked = region.blocked()
        if blocked is not None:
            return blocked
        b = context.builder()
        y = _emit(b, region, context, found)
        if isinstance(y, Reason):
            return y
        if len(b.nodes) >= len(region.nodes):
            return None  # it is in its shortest form already
        return patch_from(b, node, [y], f"{len(region.nodes)} nodes from '{region.variable.name}'")


def _divides(algebra: Algebra, y: Poly) -> bool:
    """True if the variable itself is divided by something, as in a normalisation and not in its statistics."""
    return any((algebra.variable, 1.0) in monomial and any(e < 0 for _, e in monomial) for monomial in y)


def _match(algebra: Algebra, y: Poly, rtol: float) -> _Found:
    """Read ``y`` as a normalisation.

    Raises:
        UnfitError: it is none; the text says what is missing.
    """
    number = _root_atom(algebra, y)
    atom = algebra.atom(number)
    if isinstance(atom, Base):
        inner = moments(algebra, algebra.bases[atom.number], rtol)
    elif isinstance(atom, Reduced):  # without epsilon: the mean of squares alone
        size, sizes = algebra.elements(atom.axes)
        inner = Moments(atom.axes, False, float(size), 0.0) if not sizes else None
    else:
        inner = None
    if inner is None:
        raise UnfitError("what is under the root is neither the variance nor the mean of squares")
    if inner.factor <= 0 or inner.rest < 0:
        raise UnfitError("the epsilon is negative")
    parts = split(algebra, y, number)
    bias = one(parts.pop(0.0, {}))
    normal = parts.pop(-0.5, {})
    if parts or bias is None:
        raise UnfitError("the root occurs in another power, or something is added that is not constant")
    scale = normal.pop(((algebra.variable, 1.0),), None)
    if scale is None:
        raise UnfitError("the input is not divided by the root")
    _check_mean(algebra, normal, scale, inner, rtol)
    return _Found(inner.axes, inner.centred, inner.rest / inner.factor, scale / np.sqrt(inner.factor), bias)


def _check_mean(algebra: Algebra, rest: Poly, scale: Floats, inner: Moments, rtol: float) -> None:
    mean = algebra.mean(algebra.x().poly, inner.axes)
    ((key, unit),) = mean.items()
    if not inner.centred:
        if rest:
            raise UnfitError("the mean is subtracted, but what is under the root is the mean of squares")
        return
    c = rest.pop(key, None)
    if rest or c is None:
        raise UnfitError("the mean that belongs to the variance is not subtracted")
    if not np.allclose(np.broadcast_to(c / unit, np.broadcast_shapes(c.shape, scale.shape)), -scale, rtol=rtol):
        raise UnfitError("the mean is scaled otherwise than the input")


def _root_atom(algebra: Algebra, y: Poly) -> int:
    """The atom that the formula has under a root."""
    found: set[int] = {n for monomial in y for n, e in monomial if e == -0.5 and _may_be_root(algebra, monomial, n)}
    if len(found) != 1:
        raise UnfitError(f"there are {len(found)} roots that something is divided by")
    return found.pop()


def _may_be_root(algebra: Algebra, monomial: Monomial, number: int) -> bool:
    atom = algebra.atom(number)
    return isinstance(atom, Base) or (isinstance(atom, Reduced) and atom.of == ((algebra.variable, 2.0),))


# the operator


def _emit(b: Builder, region: Region, context: RuleContext, found: _Found) -> ir.Value | Reason:
    x = region.variable
    shape = context.tensor(x).shape
    dtype = context.tensor(x).dtype
    assert shape is not None and dtype is not None
    rank = len(shape)
    axes = _whole(found.axes, shape)
    vary = {i for c in (found.scale, found.bias) for i, d in enumerate(c.shape) if d != 1}
    spatial = rank >= 3 and axes == list(range(2, rank)) and found.centred
    sizes = [shape[a] for a in axes]
    if spatial and vary <= {1} and (vary or rank > 3 or not D.is_known(sizes)) and isinstance(shape[1], int):
        if not allows("InstanceNormalization", dtype, context):
            return Reason(f"InstanceNormalization does not take {dtype.name.lower()}")
        scale, bias = (_constant(b, c, [1], [shape[1]], dtype) for c in (found.scale, found.bias))
        return b("InstanceNormalization", x, scale, bias, epsilon=found.epsilon)
    if not vary <= set(axes):
        other = sorted(vary - set(axes))
        return Reason(f"scale or shift vary along axis {other[0]}, which is not normalised")
    if not D.is_known(sizes):
        return Reason(
            "the size of a normalised axis is only known at run time", "Give that axis of the input a fixed size."
        )
    op = "LayerNormalization" if found.centred else "RMSNormalization"
    if not allows(op, dtype, context):
        return Reason(f"{op} does not take {dtype.name.lower()}")
    if not found.centred and found.bias.any():
        return Reason("RMSNormalization has no shift")
    scale = _constant(b, found.scale, axes, sizes, dtype)
    shift = _constant(b, found.bias, axes, sizes, dtype) if found.bias.any() else None
    kept = [i for i in range(rank) if i not in axes]
    perm = [*kept, *axes]
    moved = perm != list(range(rank))
    y = b(
        op,
        b("Transpose", x, perm=perm) if moved else x,
        scale,
        shift,
        axis=len(kept) if moved or len(axes) > 1 else -1,
        epsilon=found.epsilon,
    )
    return b("Transpose", y, perm=[perm.index(i) for i in range(rank)]) if moved else y


def _whole(axes: frozenset[int], shape: D.Shape) -> list[int]:
    """The axes, without those of size 1, or with them where that makes them the last axes."""
    rank = len(shape)
    real = sorted(a for a in axes if shape[a] != 1)
    if not real:
        return sorted(axes)
    last = list(range(real[0], rank))
    return last if all(a in axes or shape[a] == 1 for a in last) else real


def _constant(b: Builder, array: Floats, axes: list[int], sizes: Sequence[D.DimLike], dtype: ir.DataType) -> ir.Value:
    """A scale or shift over ``axes``, from an array of the variable's rank."""
    known = [s for s in sizes if isinstance(s, int)]
    reduced = array.reshape([array.shape[a] for a in axes]) if array.ndim else array
    return b.const(np.ascontiguousarray(np.broadcast_to(reduced, known)).astype(dtype.numpy()))
