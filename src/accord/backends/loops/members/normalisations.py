"""Softmax and its kin, and normalisations: reductions of a row and an expression of each element and the results.

The variance is the mean of the squared deviations from the mean, which is taken first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accord.backends.loops.group import Group, Term, wide
from accord.backends.loops.groups import member
from accord.backends.loops.members.reductions import mean_of
from accord.backends.loops.space import Run, cut, unify
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, Expr, call, cast, const
from accord.expr.primitives import eq, select, sqrt
from accord.ir import dims as D
from accord.ir.reason import Reason

__all__ = ["batch_normalization", "layer_normalization", "softmax", "statistics_normalization"]

#: Values of "stash_type" (TensorProto.DataType).
_STASH = {1: "f32", 11: "f64"}


def _float_input(group: Group, view: NodeView) -> Term | Reason:
    x = group.term(view, 0)
    if isinstance(x, Reason) or x.dtype in FLOATS:
        return x
    return Reason(f"{view.node.op_type} is of floats, not of {x.dtype}")


def _epsilon(view: NodeView) -> float:
    """The attribute, which is an f32; so is its default."""
    return float(np.float32(view.attr("epsilon", 1e-5)))


@member("Softmax", "LogSoftmax", "Hardmax")
def softmax(group: Group, view: NodeView) -> Reason | None:
    """Along one axis, shifted by the maximum."""
    x = group.term(view, 0)
    if isinstance(x, Reason):
        return x
    op = view.node.op_type
    if view.opset < 13 or (op != "Hardmax" and x.dtype not in FLOATS):
        return Reason("only of floats, along one axis")
    run = x.axes[view.axis(int(view.attr("axis", -1)), len(x.axes))]
    if op == "Hardmax":
        return group.define(view, 0, _hardmax(group, x, run), x.axes)
    (peak,) = group.reduce("max", (x.expr,), [run])
    shifted = x.expr - peak
    weight = call("exp", shifted)
    (total,) = group.reduce("add", (weight,), [run])
    result = weight * (1.0 / total) if op == "Softmax" else shifted - call("log", total)
    return group.define(view, 0, result, x.axes)


def _hardmax(group: Group, x: Term, run: Run) -> Expr:
    """One at the first maximum."""
    one, zero = const(1, x.expr.dtype), const(0, x.expr.dtype)
    if not run:
        return one
    index = group.index(run)
    where = group.reduce("first_max", (x.expr, index), [run])[1]
    return select(eq(index, where), one, zero)


@member("LpNormalization")
def lp_normalization(group: Group, view: NodeView) -> Reason | None:
    """Divided by the 1-norm or 2-norm along an axis; a zero vector stays zero."""
    x = _float_input(group, view)
    if isinstance(x, Reason):
        return x
    run = x.axes[view.axis(int(view.attr("axis", -1)), len(x.axes))]
    p = int(view.attr("p", 2))
    if p not in (1, 2):
        return Reason("the norm is neither 1 nor 2")
    (total,) = group.reduce("add", (call("abs", x.expr) if p == 1 else x.expr * x.expr,), [run])
    norm = total if p == 1 else sqrt(total)
    return group.define(view, 0, select(eq(norm, 0.0), const(0, norm.dtype), x.expr / norm), x.axes)


def _moments(group: Group, x: Expr, runs: Sequence[Run]) -> tuple[Expr, Expr, Expr]:
    """Mean, deviation from it, variance."""
    mean = mean_of(group, group.reduce("add", (x,), runs)[0], runs)
    deviation = x - mean
    variance = mean_of(group, group.reduce("add", (deviation * deviation,), runs)[0], runs)
    return mean, deviation, variance


@member("LayerNormalization", "RMSNormalization")
def layer_normalization(group: Group, view: NodeView) -> Reason | None:
    """Over the axes from ``axis`` on; also the mean and the inverse standard deviation."""
    x = _float_input(group, view)
    scale = group.term(view, 1)
    bias = group.term(view, 2) if view.has(2) else None
    for t in (x, scale, bias):
        if isinstance(t, Reason):
            return t
    assert isinstance(x, Term) and isinstance(scale, Term) and not isinstance(bias, Reason)
    stash = _STASH.get(int(view.attr("stash_type", 1)))
    if stash is None:
        return Reason("stash_type is neither float nor double")
    axis = view.axis(int(view.attr("axis", -1)), len(x.axes))
    runs = x.axes[axis:]
    axes = group.broadcast(x.shape, [x, scale] + ([] if bias is None else [bias]))
    if isinstance(axes, Reason):
        return axes
    # as exact as the operand, where the statistics may be narrower
    value = cast(x.expr, "f64") if "f64" in (stash, x.dtype) else x.expr
    epsilon = const(_epsilon(view), value.dtype)
    if view.node.op_type == "RMSNormalization":
        (total,) = group.reduce("add", (value * value,), runs)
        inverse = 1.0 / sqrt(mean_of(group, total, runs) + epsilon)
        normal = value * inverse
        return group.define(view, 0, _scaled(normal, scale, None), axes)
    mean, deviation, variance = _moments(group, value, runs)
    inverse = 1.0 / sqrt(variance + epsilon)
    results = (_scaled(deviation * inverse, scale, bias), mean, inverse)
    rows = [*x.axes[:axis], *(() for _ in runs)]
    for j, o in enumerate(view.node.outputs):
        refused = group.define(view, j, results[j], rows if j else axes) if o.name else None
        if refused is not None:
            return refused
    return None


def _scaled(normal: Expr, scale: Term, bias: Term | None) -> Expr:
    y = normal * cast(scale.expr, normal.dtype)
    return y if bias is None else y + cast(bias.expr, normal.dtype)


@member("MeanVarianceNormalization", "InstanceNormalization", "GroupNormalization")
def statistics_normalization(group: Group, view: NodeView) -> Reason | None:
    """By the mean and the variance of given axes, of each channel, or of each group of channels."""
    x = _float_input(group, view)
    if isinstance(x, Reason):
        return x
    op = view.node.op_type
    epsilon = const(_epsilon(view), x.expr.dtype)
    if op == "MeanVarianceNormalization":
        axes = {view.axis(int(a), len(x.axes)) for a in view.attr("axes", (0, 2, 3))}
        _, deviation, variance = _moments(group, x.expr, [x.axes[a] for a in sorted(axes)])
        return group.define(view, 0, deviation / (sqrt(variance) + 1e-9), x.axes)
    scale, bias = group.term(view, 1), group.term(view, 2)
    if isinstance(scale, Reason) or isinstance(bias, Reason):
        return scale if isinstance(scale, Reason) else bias if isinstance(bias, Reason) else None
    if len(x.axes) < 3:
        return Reason("a tensor without spatial axes")
    runs = list(x.axes[2:])
    if op == "GroupNormalization":
        if view.opset < 21:
            return Reason("the scale is one for each group")
        groups = int(view.attr("num_groups", 1))
        parts = cut(x.axes[1], (groups, D.floordiv(x.shape[1], groups)))
        if parts is None:
            return Reason("it is not known whether the channels divide into the groups")
        runs.insert(0, parts[1])
    for t in (scale, bias):
        if len(t.axes) != 1 or (t.axes[0] and not unify(x.axes[1], t.axes[0])):
            return Reason("scale and bias have another size than the channels")
    _, deviation, variance = _moments(group, x.expr, runs)
    return group.define(view, 0, _scaled(deviation * (1.0 / sqrt(variance + epsilon)), scale, bias), x.axes)


@member("BatchNormalization")
def batch_normalization(group: Group, view: NodeView) -> Reason | None:
    """By given statistics; constant ones are folded into one factor and one summand for each channel."""
    x = _float_input(group, view)
    if isinstance(x, Reason):
        return x
    if view.attr("training_mode", 0) or len(view.node.outputs) > 1 or view.opset < 14 or len(x.axes) < 2:
        return Reason("only inference, with channels")
    epsilon = _epsilon(view)
    dtype = x.expr.dtype
    folded = _folded(group, view, epsilon, wide(x.dtype))
    if folded is not None:
        factor, summand = folded
        terms: list[Term] = [factor, summand]
        result = call("fma", x.expr, cast(factor.expr, dtype), cast(summand.expr, dtype))
    else:
        found = [group.term(view, i) for i in range(1, 5)]
        terms = [t for t in found if isinstance(t, Term)]
        if len(terms) < 4:
            return next(t for t in found if isinstance(t, Reason))
        scale, bias, mean, variance = (cast(t.expr, dtype) for t in terms)
        result = (x.expr - mean) * (scale / sqrt(variance + const(epsilon, dtype))) + bias
    for t in terms:
        if len(t.axes) != 1 or (t.axes[0] and not unify(x.axes[1], t.axes[0])):
            return Reason("a parameter has another size than the channels")
    return group.define(view, 0, result, x.axes)


def _folded(group: Group, view: NodeView, epsilon: float, dtype: str) -> tuple[Term, Term] | None:
    """Factor and summand in place of scale and bias, if all parameters are constant and read nowhere else."""
    facts = [view.tensor(i) for i in range(1, 5)]
    values = view.node.inputs[1:5]
    if not all(f.is_const for f in facts) or len(set(values)) < 4 or any(v in group.terms for v in values):
        return None
    scale, bias, mean, variance = (f.numpy().astype(np.float64) for f in facts)
    if scale.size == 1:
        return None
    factor = scale / np.sqrt(variance + epsilon)
    kind = np.float64 if dtype == "f64" else np.float32
    made = [
        group.substitute(view, 1, factor.astype(kind)),
        group.substitute(view, 2, (bias - mean * factor).astype(kind)),
    ]
    terms = [t for t in made if isinstance(t, Term)]
    return (terms[0], terms[1]) if len(terms) == 2 else None
