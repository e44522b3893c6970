"""From the nodes of a region to its formula in :mod:`.algebra`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.passes.rule import RuleContext
from accord.passes.rules.recognise.algebra import Algebra, Floats, Layout, Poly, Reduced, Term, UnfitError
from accord.passes.rules.recognise.region import Region

__all__ = ["THROUGH", "Moments", "Reading", "moments", "read"]

#: Order of the float dtypes by precision; a value between that is less precise than the result rounds it.
PRECISION = {
    ir.DataType.BFLOAT16: 0,
    ir.DataType.FLOAT16: 1,
    ir.DataType.FLOAT: 2,
    ir.DataType.DOUBLE: 3,
}

Handler: TypeAlias = "Callable[[Reading, ir.Node], Term]"


class Reading:
    """Reads the formula of one region.

    Args:
        region: The region.
        context: For constants and facts.

    Attributes:
        algebra: Knows the formula's atoms.

    Raises:
        UnfitError: the variable's rank is not known.
    """

    def __init__(self, region: Region, context: RuleContext) -> None:
        self.region = region
        self.context = context
        shape = context.tensor(region.variable).shape
        if shape is None:
            raise UnfitError("the rank of the input is not known")
        self.algebra = Algebra(shape)
        self._terms: dict[ir.Value, Term] = {region.variable: self.algebra.x()}

    def root(self) -> Term:
        """The formula of the region's result.

        Raises:
            UnfitError: the algebra does not cover it.
        """
        lowest = PRECISION.get(self.context.tensor(self.region.root).dtype or ir.DataType.UNDEFINED)
        for node in self.region.nodes:
            precision = PRECISION.get(self.context.tensor(node.outputs[0]).dtype or ir.DataType.UNDEFINED)
            if lowest is None or precision is None or precision < lowest:
                raise UnfitError(f"'{node.outputs[0].name}' is rounded to a shorter type")
            self._terms[node.outputs[0]] = _HANDLERS[node.op_type](self, node)
        return self._terms[self.region.root]

    def term(self, node: ir.Node, index: int = 0) -> Term:
        """The formula of an input that depends on the variable.

        Raises:
            UnfitError: it is a constant.
        """
        value = node.inputs[index]
        if value is None or value not in self._terms:
            raise UnfitError(f"input {index} of {node.op_type} is a constant")
        return self._terms[value]

    def array(self, node: ir.Node, index: int) -> np.ndarray[Any, Any] | None:
        """A constant input, None where it is absent.

        Raises:
            UnfitError: it is not constant.
        """
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            return None
        content = self.context.constant(value)
        if content is None:
            raise UnfitError(f"'{value.name}' is not constant")
        return content

    def number(self, node: ir.Node, index: int, default: float) -> float:
        """A constant input of one element.

        Raises:
            UnfitError: it is not constant or has several elements.
        """
        content = self.array(node, index)
        if content is None:
            return default
        if content.size == 0 or not bool((content == content.reshape(-1)[0]).all()):
            raise UnfitError("a constant that should be one number has several")
        return float(content.reshape(-1)[0])

    def pair(self, node: ir.Node) -> tuple[Poly, Poly, Layout]:
        """The two operands of a binary node over the axes of its result.

        Raises:
            UnfitError: they meet along different axes of the variable.
        """
        terms: list[Term | None] = [self._terms.get(v) if v is not None else None for v in node.inputs[:2]]
        for i, j in ((0, 1), (1, 0)):
            other = terms[j]
            if terms[i] is None and other is not None:
                terms[i] = self._known(node, i, other.layout)
        a, b = terms
        if a is None or b is None:
            raise UnfitError("two constants")
        return a.poly, b.poly, _join(a.layout, b.layout)

    def _known(self, node: ir.Node, index: int, layout: Layout) -> Term:
        value = node.inputs[index]
        fact = self.context.tensor(value)
        if fact.is_const:
            array = fact.numpy()
            if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
                raise UnfitError("a constant that is no number")
            first = array.reshape(-1)[:1]
            if array.size > 1 and bool((array == first).all()):
                array = first.reshape([1] * array.ndim)
            wide = array.astype(np.float64)
            if not np.isfinite(wide).all():
                raise UnfitError("a constant is not finite")
            return self.algebra.align(wide, layout)
        if fact.data is not None and len(fact.data) == 1:
            return Term(self._sizes(fact.data[0]), (None,) * (fact.rank or 0))
        raise UnfitError(f"'{value.name if value is not None else '?'}' is not constant")

    def _sizes(self, d: D.DimLike) -> Poly:
        """A number of elements that a run computes, as a product of sizes of the variable."""
        algebra = self.algebra
        for first in range(algebra.rank):
            for last in range(first + 1, algebra.rank + 1):
                if D.product(algebra.shape[first:last]) == d:
                    size, sizes = algebra.elements(range(first, last))
                    return {sizes: np.full([1] * algebra.rank, float(size))}
        raise UnfitError(f"the size {d} is not one of the input's")

    def axes(self, node: ir.Node, layout: Layout) -> tuple[list[int], frozenset[int]]:
        """The axes that a reduction removes: of its input, and of the variable.

        Raises:
            UnfitError: they are not constant.
        """
        content = self.array(node, 1)
        rank = len(layout)
        if content is None or content.size == 0:
            if self.context.attr(node, "noop_with_empty_axes", 0):
                return [], frozenset()
            own = list(range(rank))
        else:
            own = sorted(int(a) % rank for a in content.reshape(-1))
        return own, self._variable_axes(own, layout, self.context.tensor(node.inputs[0]).shape)

    @staticmethod
    def _variable_axes(own: Sequence[int], layout: Layout, shape: D.Shape | None) -> frozenset[int]:
        found: set[int] = set()
        for i in own:
            entry = layout[i]
            if entry is not None:
                found.add(entry)
            elif shape is None or shape[i] != 1:
                raise UnfitError("a reduction over an axis that the input does not have")
        return frozenset(found)

    def trailing(self, layout: Layout, first: int, shape: D.Shape | None) -> frozenset[int]:
        """Axes of the variable behind the axes from ``first`` of a value."""
        return self._variable_axes(range(first, len(layout)), layout, shape)


def read(region: Region, context: RuleContext) -> tuple[Algebra, Term]:
    """The formula of a region.

    Raises:
        UnfitError: the algebra does not cover it.
    """
    reading = Reading(region, context)
    return reading.algebra, reading.root()


def _join(a: Layout, b: Layout) -> Layout:
    rank = max(len(a), len(b))
    out: list[int | None] = []
    for x, y in zip((None,) * (rank - len(a)) + a, (None,) * (rank - len(b)) + b, strict=True):
        if x is not None and y is not None and x != y:
            raise UnfitError("values meet along different axes")
        out.append(y if x is None else x)
    return tuple(out)


# the variance


class Moments:
    """What is under the root of a normalisation: ``factor * (variance or mean square) + rest``.

    Attributes:
        axes: Axes of the variable that the moments are over.
        centred: True for the variance, False for the mean of squares.
        factor: Its coefficient.
        rest: What is added.
    """

    def __init__(self, axes: frozenset[int], centred: bool, factor: float, rest: float) -> None:
        self.axes = axes
        self.centred = centred
        self.factor = factor
        self.rest = rest


def moments(algebra: Algebra, poly: Poly, tolerance: float) -> Moments | None:
    """Read ``poly`` as a variance or a mean square of the variable plus a number; None if it is not that."""
    square = ((algebra.variable, 2.0),)
    axes = None
    for monomial in poly:
        for number, _ in monomial:
            atom = algebra.atom(number)
            if isinstance(atom, Reduced) and atom.kind == "sum" and atom.of == square:
                axes = atom.axes
    if axes is None:
        return None
    x = algebra.x().poly
    second = algebra.mean(algebra.multiply(x, x), axes)
    mean = algebra.mean(x, axes)
    ((key, unit),) = second.items()
    ((mean_key, mean_unit),) = algebra.multiply(mean, mean).items()
    left = dict(poly)
    c, m, rest = left.pop(key, None), left.pop(mean_key, None), left.pop((), None)
    if left or c is None or c.size != 1 or (rest is not None and rest.size != 1):
        return None
    factor = float((c / unit).reshape(()))
    added = 0.0 if rest is None else float(rest.reshape(()))
    if m is None:
        return Moments(axes, False, factor, added)
    if m.size != 1 or abs(float((m / mean_unit).reshape(())) + factor) > tolerance * abs(factor):
        return None
    return Moments(axes, True, factor, added)


# operators


def _add(r: Reading, node: ir.Node) -> Term:
    a, b, layout = r.pair(node)
    return Term(r.algebra.add(a, b), layout)


def _sub(r: Reading, node: ir.Node) -> Term:
    a, b, layout = r.pair(node)
    return Term(r.algebra.add(a, r.algebra.scale(b, -1.0)), layout)


def _mul(r: Reading, node: ir.Node) -> Term:
    a, b, layout = r.pair(node)
    return Term(r.algebra.multiply(a, b), layout)


def _div(r: Reading, node: ir.Node) -> Term:
    a, b, layout = r.pair(node)
    return Term(r.algebra.multiply(a, r.algebra.power(b, -1.0)), layout)


def _power(exponent: float) -> Handler:
    def handler(r: Reading, node: ir.Node) -> Term:
        t = r.term(node)
        return Term(r.algebra.power(t.poly, exponent), t.layout)

    return handler


def _pow(r: Reading, node: ir.Node) -> Term:
    t = r.term(node)
    return Term(r.algebra.power(t.poly, r.number(node, 1, 1.0)), t.layout)


def _neg(r: Reading, node: ir.Node) -> Term:
    t = r.term(node)
    return Term(r.algebra.scale(t.poly, -1.0), t.layout)


def _same(r: Reading, node: ir.Node) -> Term:
    return r.term(node)


def _exp(r: Reading, node: ir.Node) -> Term:
    t = r.term(node)
    return Term(r.algebra.exp(t.poly), t.layout)


def _log(r: Reading, node: ir.Node) -> Term:
    t = r.term(node)
    return Term(r.algebra.log(t.poly), t.layout)


def _never_below_zero(r: Reading, node: ir.Node) -> Term:
    """Max, Clip, Relu and Abs guard a variance against rounding; of a variance they are the identity."""
    data = [i for i, v in enumerate(node.inputs) if v in r._terms]
    t = r.term(node, data[0])
    if node.op_type in ("Max", "Clip"):
        low = r.number(node, 1 - data[0], -np.inf)
        high = r.number(node, 2, np.inf)
        if len(node.inputs) > (3 if node.op_type == "Clip" else 2) or low > 0 or high != np.inf:
            raise UnfitError(f"{node.op_type} changes values")
    found = moments(r.algebra, t.poly, 1e-3)
    if found is None or found.factor < 0 or found.rest < 0:
        raise UnfitError(f"{node.op_type} of something that may be negative")
    return t


def _reduce(function: Callable[[Algebra, Poly, frozenset[int]], Poly]) -> Handler:
    def handler(r: Reading, node: ir.Node) -> Term:
        t = r.term(node)
        own, axes = r.axes(node, t.layout)
        layout = t.layout
        if not int(r.context.attr(node, "keepdims", 1)):
            layout = tuple(e for i, e in enumerate(t.layout) if i not in own)
        return Term(function(r.algebra, t.poly, axes), layout)

    return handler


def _square_sum(a: Algebra, p: Poly, axes: frozenset[int]) -> Poly:
    return a.sum(a.multiply(p, p), axes)


_REDUCTIONS: dict[str, Callable[[Algebra, Poly, frozenset[int]], Poly]] = {
    "ReduceSum": Algebra.sum,
    "ReduceMean": Algebra.mean,
    "ReduceMax": Algebra.maximum,
    "ReduceSumSquare": _square_sum,
    "ReduceL2": lambda a, p, axes: a.power(_square_sum(a, p, axes), 0.5),
    "ReduceLogSumExp": lambda a, p, axes: a.log(a.sum(a.exp(p), axes)),
    "ReduceLogSum": lambda a, p, axes: a.log(a.sum(p, axes)),
}


def _reshape(r: Reading, node: ir.Node) -> Term:
    """Only axes of size 1 come and go."""
    t = r.term(node)
    before = r.context.tensor(node.inputs[0]).shape
    after = r.context.tensor(node.outputs[0]).shape
    if before is None or after is None:
        raise UnfitError("the shapes around a Reshape are not known")
    kept = [(d, e) for d, e in zip(before, t.layout, strict=True) if d != 1]
    if [d for d, _ in kept] != [d for d in after if d != 1]:
        raise UnfitError("a Reshape splits or joins axes")
    entries = iter(e for _, e in kept)
    return Term(t.poly, tuple(None if d == 1 else next(entries) for d in after))


def _transpose(r: Reading, node: ir.Node) -> Term:
    t = r.term(node)
    perm = r.context.attr(node, "perm", range(len(t.layout))[::-1])
    return Term(t.poly, tuple(t.layout[p] for p in perm))


def _expand(r: Reading, node: ir.Node) -> Term:
    t = r.term(node)
    rank = r.context.tensor(node.outputs[0]).rank
    if rank is None:
        raise UnfitError("the shape of an Expand is not known")
    return Term(t.poly, (None,) * (rank - len(t.layout)) + t.layout)


# operators that a meaning was found in already: the nodes around them may belong to it as well


def _normalise(
    r: Reading, t: Term, axes: frozenset[int], centred: bool, epsilon: float, scale: Poly, bias: Poly
) -> Term:
    a = r.algebra
    d = a.add(t.poly, a.scale(a.mean(t.poly, axes), -1.0)) if centred else t.poly
    variance = a.mean(a.multiply(d, d), axes)
    y = a.multiply(d, a.power(a.add(variance, a.constant(epsilon)), -0.5))
    return Term(a.add(a.multiply(y, scale), bias), t.layout)


def _layer_norm(r: Reading, node: ir.Node) -> Term:
    t = r.term(node)
    first = int(r.context.attr(node, "axis", -1)) % len(t.layout)
    axes = r.trailing(t.layout, first, r.context.tensor(node.inputs[0]).shape)
    scale, bias = (r.array(node, i) for i in (1, 2))
    affine = [
        r.algebra.constant(default) if c is None else r.algebra.align(c.astype(np.float64), t.layout).poly
        for c, default in ((scale, 1.0), (bias, 0.0))
    ]
    epsilon = float(r.context.attr(node, "epsilon", 1e-5))
    return _normalise(r, t, axes, node.op_type == "LayerNormalization", epsilon, affine[0], affine[1])


def _instance_norm(r: Reading, node: ir.Node) -> Term:
    t = r.term(node)
    rank = len(t.layout)
    axes = r.trailing(t.layout, 2, r.context.tensor(node.inputs[0]).shape)
    affine: list[Poly] = []
    for i in (1, 2):
        c = r.array(node, i)
        if c is None:
            raise UnfitError("InstanceNormalization without scale or bias")
        affine.append(r.algebra.align(c.astype(np.float64).reshape(-1, *[1] * (rank - 2)), t.layout).poly)
    return _normalise(r, t, axes, True, float(r.context.attr(node, "epsilon", 1e-5)), affine[0], affine[1])


def _softmax(r: Reading, node: ir.Node) -> Term:
    t, a = r.term(node), r.algebra
    axis = t.layout[int(r.context.attr(node, "axis", -1)) % len(t.layout)]
    if axis is None:
        raise UnfitError("a softmax over an axis of size 1")
    e = a.exp(t.poly)
    total = a.sum(e, frozenset({axis}))
    if node.op_type == "Softmax":
        return Term(a.multiply(e, a.power(total, -1.0)), t.layout)
    return Term(a.add(t.poly, a.scale(a.log(total), -1.0)), t.layout)


def _global_average(r: Reading, node: ir.Node) -> Term:
    t = r.term(node)
    return Term(r.algebra.mean(t.poly, r.trailing(t.layout, 2, r.context.tensor(node.inputs[0]).shape)), t.layout)


_HANDLERS: dict[str, Handler] = {
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Div": _div,
    "Neg": _neg,
    "Pow": _pow,
    "Sqrt": _power(0.5),
    "Reciprocal": _power(-1.0),
    "Exp": _exp,
    "Log": _log,
    **dict.fromkeys(("Cast", "Identity"), _same),
    **dict.fromkeys(("Max", "Clip", "Relu", "Abs"), _never_below_zero),
    **{op: _reduce(function) for op, function in _REDUCTIONS.items()},
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), _reshape),
    "Transpose": _transpose,
    "Expand": _expand,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _layer_norm),
    "InstanceNormalization": _instance_norm,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "GlobalAveragePool": _global_average,
}

#: Operators that may lie in the region of a formula, and which of their inputs carry data.
THROUGH: dict[str, Sequence[int] | None] = {
    op: None if op in ("Add", "Sub", "Mul", "Div", "Max") else (0,) for op in _HANDLERS
}


def split(algebra: Algebra, poly: Poly, number: int) -> dict[float, Poly]:
    """``poly`` by powers of an atom: exponent → what multiplies that power."""
    out: dict[float, Poly] = {}
    for monomial, c in poly.items():
        exponent = next((e for n, e in monomial if n == number), 0.0)
        rest = tuple((n, e) for n, e in monomial if n != number)
        out.setdefault(exponent, {})[rest] = c
    return out


def one(values: Poly) -> Floats | None:
    """The coefficient of a formula that is a constant, else None."""
    if not values:
        return np.zeros(())
    return values[()] if set(values) == {()} else None
