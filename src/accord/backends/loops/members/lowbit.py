"""Conversions from and to low-bit types. Inside a group, a value of such a type is the u8 that stands for it."""

from __future__ import annotations

from accord.backends.loops.group import Group, Term
from accord.backends.loops.groups import member
from accord.backends.loops.members.elementwise import elementwise, quantize, spread
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS, Expr, call, cast
from accord.expr.lowbit import LowBit, decode, encode, limited, low_bit
from accord.expr.onnx_ops import dtype_name
from accord.expr.onnx_quantize import PRECISION
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason

__all__ = ["bit_cast", "cast_", "dequantize_linear", "quantize_linear"]


def _kind(fact: TensorFact) -> LowBit | None:
    return None if fact.dtype is None else low_bit(fact.dtype)


def _is_low_bit(view: NodeView) -> bool:
    facts = [view.tensor(i) for i in range(len(view.node.inputs)) if view.has(i)]
    return any(_kind(f) is not None for f in (*facts, view.output()))


def _term(group: Group, view: NodeView, index: int) -> Term | Reason:
    """Input ``index`` of a node as a number; of a low-bit type, as f32 or i32."""
    kind = _kind(view.tensor(index))
    if kind is None:
        term = group.term(view, index)
        return term if isinstance(term, Reason) else Term(cast(term.expr, term.dtype), term.axes, term.dtype)
    v, shape = view.node.inputs[index], view.tensor(index).shape
    if v is None or shape is None:
        return Reason(f"the rank of input {index} is not known")
    if v not in group.terms:
        group.terms[v] = group.read(v, "u8", tuple(group.axis(d) for d in shape), group.access(view, index))
    code = group.terms[v]
    number = decode(code.expr, kind)
    return Term(number, code.axes, number.dtype)


def _define(group: Group, view: NodeView, number: Expr, like: Term) -> Reason | None:
    """Output 0 of a node, converted to its type."""
    kind = _kind(view.output())
    if kind is None:
        dtype = view.output().dtype
        name = None if dtype is None else dtype_name(dtype)
        return Reason("it has no numbers") if name is None else group.define(view, 0, cast(number, name), like.axes)
    saturate = bool(view.attr("saturate", 1))
    code = encode(number, kind, saturate=saturate, round_mode=str(view.attr("round_mode", "up")))
    return group.define_coded(view, 0, code, like.axes)


@member("Cast", "CastLike")
def cast_(group: Group, view: NodeView) -> Reason | None:
    """From and to any numeric type."""
    if not _is_low_bit(view):
        return elementwise(group, view)
    x = _term(group, view, 0)
    return x if isinstance(x, Reason) else _define(group, view, x.expr, x)


@member("BitCast")
def bit_cast(group: Group, view: NodeView) -> Reason | None:
    """The same bits as another type of the same size, bool and low-bit types included."""
    facts = view.tensor(0), view.output()
    kinds = [_kind(f) for f in facts]
    names = ["u8" if k is not None else f.dtype and dtype_name(f.dtype) for k, f in zip(kinds, facts, strict=True)]
    if not any(kinds) and "bool" not in names:
        return elementwise(group, view)
    if set(names) <= {"u8", "i8", "bool"} and all(k is None or k.bits == 8 for k in kinds):
        shape, v = view.tensor(0).shape, view.node.inputs[0]
        if shape is None or v is None or (kinds[0] is None and v in group.terms):
            return Reason("its input is made inside the group, or its rank is not known")
        if v not in group.terms:
            term = group.read(v, "u8", tuple(group.axis(d) for d in shape), group.access(view, 0))
        else:
            term = group.terms[v]
        if kinds[1] is not None:
            return group.define_coded(view, 0, term.expr, term.axes)
        return group.define(view, 0, cast(term.expr, str(names[1])), term.axes)
    return Reason("elements of these types have other sizes in memory than in bits")


@member("QuantizeLinear")
def quantize_linear(group: Group, view: NodeView) -> Reason | None:
    """The quotient by the scale in its precision; rounded, moved by the zero point and limited for integers."""
    if not _is_low_bit(view):
        return quantize(group, view)
    terms = _parameters(group, view)
    if isinstance(terms, Reason):
        return terms
    x, scale, zero = terms
    asked = int(view.attr("precision", 0) or 0)
    work = PRECISION.get(asked) if asked else scale.dtype
    if work not in FLOATS:
        return Reason("the precision is none that is computed in")
    real = "f64" if work == "f64" else "f32"
    quotient = cast(cast(x.expr, work), real) / cast(cast(scale.expr, work), real)
    quotient = cast(cast(quotient, work), "f32")
    kind = _kind(view.output())
    if kind is None:
        return Reason("only its scale has a low-bit type")
    if not kind.is_float:
        quotient = call("round", quotient)
    if zero is not None:
        quotient = quotient + cast(zero.expr, "f32")
    return _define(group, view, quotient if kind.is_float else limited(quotient, kind), x)


@member("DequantizeLinear")
def dequantize_linear(group: Group, view: NodeView) -> Reason | None:
    """The difference to the zero point times the scale, in f32."""
    if not _is_low_bit(view):
        return quantize(group, view)
    terms = _parameters(group, view)
    if isinstance(terms, Reason):
        return terms
    x, scale, zero = terms
    difference = x.expr
    if zero is not None:
        same = zero.expr if zero.expr.dtype == difference.dtype else cast(zero.expr, difference.dtype)
        difference = difference - same
    return _define(group, view, cast(difference, "f32") * cast(scale.expr, "f32"), x)


def _parameters(group: Group, view: NodeView) -> tuple[Term, Term, Term | None] | Reason:
    """Input, scale and zero point, the latter two walked along the input's axes."""
    found: list[Term | None] = []
    for i in range(3):
        term = _term(group, view, i) if view.has(i) else None
        if isinstance(term, Reason):
            return term
        found.append(term)
    x, scale, zero = found
    if x is None or scale is None:
        return Reason("an input is absent")
    for t in (scale, zero):
        refused = None if t is None else spread(view, x, t, int(view.attr("block_size", 0)))
        if refused is not None:
            return refused
    return x, scale, zero
