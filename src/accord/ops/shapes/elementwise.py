"""Shape rules of elementwise operators: one table per signature, and the arithmetic on symbolic elements.

A result has the broadcast shape of its inputs. Where all inputs are short integer tensors with known or symbolic
elements, so is the result: that is how shape arithmetic (``Shape`` → ``Mul`` → ``Reshape``) keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import Fact, TensorFact, constant_fact
from accord.ir.infer import Inference
from accord.ops.shapes.common import (
    FLOATS,
    MAX_ELEMENTS,
    elements,
    operator,
    required_dtype,
    same_dtype,
    str_attr,
    with_elements,
)
from accord.ops.shapes.tables import table_of, with_table

BOOL = ir.DataType.BOOL
STRING = ir.DataType.STRING

#: Computes one element of the result; None where the symbols do not decide it.
Scalar = Callable[..., "DimLike | None"]


# one element -----------------------------------------------------------------------------------------------------


def _nonnegative(*items: DimLike) -> bool:
    return all((low := D.lower_bound(x)) is not None and low >= 0 for x in items)


def _div(a: DimLike, b: DimLike) -> DimLike | None:
    """Integer division of ONNX truncates; that is the floor only where no sign is in play."""
    if isinstance(b, int):
        if b == 0:
            return None
        if isinstance(a, int):
            quotient = abs(a) // abs(b)
            return quotient if (a < 0) == (b < 0) else -quotient
    if _nonnegative(a, b):
        return D.floordiv(a, b)
    exact = D.floordiv(a, b)
    return exact if D.modulo(a, b) == 0 else None


def _exact_div(a: DimLike, b: DimLike) -> DimLike | None:
    """Division of floats that hold sizes: known only where it leaves no fraction."""
    return None if b == 0 or D.modulo(a, b) != 0 else D.floordiv(a, b)


def _mod(a: DimLike, b: DimLike) -> DimLike | None:
    return None if b == 0 else D.modulo(a, b)


def _fmod(a: DimLike, b: DimLike) -> DimLike | None:
    return D.modulo(a, b) if b != 0 and _nonnegative(a, b) else None


def _pow(a: DimLike, b: DimLike) -> DimLike | None:
    if not isinstance(b, int) or not 0 <= b <= 4:
        return None
    return D.product([a] * b)


def _abs(a: DimLike) -> DimLike | None:
    if isinstance(a, int):
        return abs(a)
    return a if _nonnegative(a) else None


def _equal(a: DimLike, b: DimLike) -> DimLike:
    """1 or 0; where symbols decide it, an expression that is one of them."""
    if a == b:
        return 1
    if D.proves_le(a + 1, b) or D.proves_le(b + 1, a):
        return 0
    return D.maximum(1 - D.maximum(a - b, b - a), 0)


def _less(a: DimLike, b: DimLike) -> DimLike:
    if D.proves_le(a + 1, b):
        return 1
    return 0 if D.proves_le(b, a) else D.minimum(D.maximum(b - a, 0), 1)


def _where(condition: DimLike, a: DimLike, b: DimLike) -> DimLike | None:
    return None if not isinstance(condition, int) else a if condition else b


def _sign(a: DimLike) -> DimLike | None:
    if isinstance(a, int):
        return (a > 0) - (a < 0)
    low = D.lower_bound(a)
    return 1 if low is not None and low > 0 else None


def _both(a: DimLike, b: DimLike) -> DimLike:
    return D.minimum(a, b)


def _either(a: DimLike, b: DimLike) -> DimLike:
    return D.maximum(a, b)


def _clip(a: DimLike, low: DimLike | None = None, high: DimLike | None = None) -> DimLike:
    if low is not None:
        a = D.maximum(a, low)
    return a if high is None else D.minimum(a, high)


def _same(a: DimLike) -> DimLike:
    return a


#: What these operators do to one element. Float tensors that hold sizes use the same table, except for ``Div``.
_SCALARS: Mapping[str, Scalar] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _div,
    "Pow": _pow,
    "Neg": lambda a: -a,
    "Abs": _abs,
    "Sign": _sign,
    "Floor": _same,
    "Ceil": _same,
    "Round": _same,
    "Relu": lambda a: D.maximum(a, 0),
    "Max": D.maximum,
    "Min": D.minimum,
    "Sum": lambda *a: sum(a[1:], a[0]),
    "Equal": _equal,
    "Less": _less,
    "Greater": lambda a, b: _less(b, a),
    "LessOrEqual": lambda a, b: _less(a, b + 1),
    "GreaterOrEqual": lambda a, b: _less(b, a + 1),
    "And": _both,
    "Or": _either,
    "Xor": lambda a, b: (a + b) % 2,
    "Not": lambda a: 1 - a,
}


def combine(
    function: Scalar | None, dtype: ir.DataType | None, shape: Shape | None, facts: Sequence[TensorFact]
) -> TensorFact:
    """The result of an elementwise operator, with its elements where ``function`` can tell them."""
    if function is None or shape is None or len(shape) > 1:
        return TensorFact(dtype, shape)
    if (facts[-1].dtype in FLOATS or dtype in FLOATS) and all(f.data is None for f in facts):
        return TensorFact(dtype, shape)
    columns: list[tuple[DimLike, ...]] = []
    for fact in facts:
        items = elements(fact)
        if items is None:
            return TensorFact(dtype, shape)
        columns.append(items)
    size = 1
    for items in columns:
        size = len(items) if size == 1 else size
    out: list[DimLike] = []
    for i in range(size):
        item = function(*(c[i] if len(c) > 1 else c[0] for c in columns))
        if item is None:
            return TensorFact(dtype, shape)
        out.append(item)
    return with_elements(dtype, shape, out)


# unary -----------------------------------------------------------------------------------------------------------

_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
    "LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan "
    "Tanh ThresholdedRelu"
).split()


@operator(*_UNARY)
def unary(n: Inference) -> list[Fact]:
    """Same dtype and shape as the input."""
    x = n.tensor(0)
    function = _SCALARS.get(n.node.op_type)
    if function is None or x.shape is None or len(x.shape) > 1:
        return [x.with_shape(x.shape) if x.const is not None or x.data is not None else x]
    return [combine(function, x.dtype, x.shape, (x,))]


@operator("IsNaN", "IsInf", "RegexFullMatch")
def test(n: Inference) -> list[Fact]:
    """Bool, same shape."""
    x = n.tensor(0)
    if n.node.op_type == "IsNaN" and x.data is not None:
        return [with_elements(BOOL, x.shape, [0] * len(x.data))]
    return [TensorFact(BOOL, x.shape)]


@operator("Not")
def logical_not(n: Inference) -> list[Fact]:
    """Bool, same shape."""
    _require_bool(n, 0)
    x = n.tensor(0)
    return [combine(_SCALARS["Not"], BOOL, x.shape, (x,))]


@operator("Clip")
def clip(n: Inference) -> list[Fact]:
    """Same dtype and shape as the input; the limits are scalars of its dtype."""
    dtype = same_dtype(n, 0, 1, 2)
    x = n.tensor(0)
    if x.shape is None or len(x.shape) > 1 or (x.data is None and (x.const is None or x.dtype in FLOATS)):
        return [TensorFact(dtype, x.shape)]
    limits: list[DimLike | None] = []
    for i in (1, 2):
        items = elements(n.tensor(i)) if n.has(i) else None
        if n.has(i) and (items is None or len(items) != 1):
            return [TensorFact(dtype, x.shape)]
        limits.append(None if items is None else items[0])
    return [combine(lambda a: _clip(a, *limits), dtype, x.shape, (x,))]


@operator("Dropout")
def dropout(n: Inference) -> list[Fact]:
    """The data's fact and a mask of the same shape, which is bool since opset 10."""
    x = n.tensor(0)
    return [x.with_shape(x.shape), TensorFact(BOOL if n.opset >= 10 else x.dtype, x.shape)]


# binary ----------------------------------------------------------------------------------------------------------


def _require_bool(n: Inference, *indices: int) -> None:
    for i in indices:
        dtype = n.tensor(i).dtype
        if dtype is not None and dtype is not BOOL:
            raise n.error("input has the wrong dtype", expected="BOOL", found=dtype.name, value=i)


def _pair(n: Inference, a: TensorFact, b: TensorFact) -> Shape | None:
    # Before opset 7 attributes align the second input, which never makes the first one larger.
    if a.shape is b.shape or a.shape == b.shape or "broadcast" in n.node.attributes:
        return a.shape
    return n.broadcast(a.shape, b.shape)


@operator("Add", "Sub", "Mul", "Div", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", inputs=2)
def arithmetic(n: Inference) -> list[Fact]:
    """Two inputs of one dtype, broadcast."""
    a, b = n.tensor(0), n.tensor(1)
    if a.dtype is not b.dtype:
        same_dtype(n, 0, 1)
    dtype = a.dtype if a.dtype is not None else b.dtype
    shape = _pair(n, a, b)
    if shape is None or len(shape) > 1:
        return [TensorFact(dtype, shape)]
    op = n.node.op_type
    function = _exact_div if op == "Div" and dtype in FLOATS else _SCALARS.get(op)
    return [combine(function, dtype, shape, (a, b))]


@operator("Mod", inputs=2)
def mod(n: Inference) -> list[Fact]:
    """Two inputs of one dtype, broadcast; the sign of the divisor, of the dividend with ``fmod``."""
    dtype = same_dtype(n, 0, 1)
    a, b = n.tensor(0), n.tensor(1)
    function = _fmod if n.attr("fmod", 0) else _mod
    return [combine(function, dtype, _pair(n, a, b), (a, b))]


@operator("Pow", inputs=2)
def power(n: Inference) -> list[Fact]:
    """The base's dtype; the exponent may have another."""
    a, b = n.tensor(0), n.tensor(1)
    return [combine(_pow, a.dtype, _pair(n, a, b), (a, b))]


@operator("PRelu", inputs=2)
def prelu(n: Inference) -> list[Fact]:
    """The input's shape, which the slope broadcasts to."""
    dtype = same_dtype(n, 0, 1)
    x, slope = n.tensor(0), n.tensor(1)
    if x.shape is not None and slope.shape is not None and n.opset >= 7:
        n.require(
            len(slope.shape) <= len(x.shape),
            "slope has more axes than the input",
            expected=f"at most {len(x.shape)}",
            found=len(slope.shape),
            value=1,
        )
        for d, s in zip(reversed(x.shape), reversed(slope.shape), strict=False):
            if isinstance(d, int) and isinstance(s, int) and s not in (1, d):
                raise n.error("slope does not broadcast to the input", expected=f"1 or {d}", found=s, value=1)
            n.agree(d, s, "sizes of input and slope", ones=True)
    return [TensorFact(dtype, x.shape)]


@operator("SwiGLU", inputs=2)
def swiglu(n: Inference) -> list[Fact]:
    """Two inputs of one dtype and one shape."""
    dtype = same_dtype(n, 0, 1)
    a, b = n.tensor(0).shape, n.tensor(1).shape
    if a is None or b is None:
        return [TensorFact(dtype, a if b is None else b)]
    equal = len(a) == len(b) and all(
        x == y for x, y in zip(a, b, strict=True) if isinstance(x, int) and isinstance(y, int)
    )
    n.require(equal, "inputs must have one shape", expected=list(a), found=list(b), value=1)
    for x, y in zip(a, b, strict=True):
        n.agree(x, y, "sizes of the inputs")
    return [TensorFact(dtype, tuple(y if isinstance(y, int) else x for x, y in zip(a, b, strict=True)))]


@operator("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", inputs=2)
def compare(n: Inference) -> list[Fact]:
    """Bool, two inputs of one dtype, broadcast."""
    same_dtype(n, 0, 1)
    a, b = n.tensor(0), n.tensor(1)
    shape = _pair(n, a, b)
    if a.dtype in FLOATS and a.data is None and b.data is None:
        return [TensorFact(BOOL, shape)]
    return [combine(_SCALARS[n.node.op_type], BOOL, shape, (a, b))]


@operator("And", "Or", "Xor", inputs=2)
def logical(n: Inference) -> list[Fact]:
    """Bool, two bool inputs, broadcast."""
    _require_bool(n, 0, 1)
    a, b = n.tensor(0), n.tensor(1)
    return [combine(_SCALARS[n.node.op_type], BOOL, _pair(n, a, b), (a, b))]


@operator("StringConcat", inputs=2)
def string_concat(n: Inference) -> list[Fact]:
    """String, two inputs, broadcast."""
    return [TensorFact(same_dtype(n, 0, 1), _pair(n, n.tensor(0), n.tensor(1)))]


# more inputs -----------------------------------------------------------------------------------------------------


@operator("Max", "Min", "Mean", "Sum")
def variadic(n: Inference) -> list[Fact]:
    """Any number of inputs of one dtype, broadcast."""
    count = len(n.inputs)
    dtype = same_dtype(n, *range(count))
    facts = [n.tensor(i) for i in range(count)]
    return [combine(_SCALARS.get(n.node.op_type), dtype, n.broadcast(*(f.shape for f in facts)), facts)]


@operator("Where", inputs=3)
def where(n: Inference) -> list[Fact]:
    """The dtype of the two values; all three inputs broadcast."""
    _require_bool(n, 0)
    dtype = same_dtype(n, 1, 2)
    c, x, y = (n.tensor(i) for i in range(3))
    shape = c.shape if c.shape == x.shape == y.shape else n.broadcast(c.shape, x.shape, y.shape)
    return [combine(_where, dtype, shape, (c, x, y))]


# dtypes ----------------------------------------------------------------------------------------------------------


@operator("Cast", required=("to",))
def cast(n: Inference) -> list[Fact]:
    """The dtype of ``to``, same shape."""
    return [_converted(n.tensor(0), required_dtype(n, "to"))]


@operator("CastLike", inputs=2)
def cast_like(n: Inference) -> list[Fact]:
    """The dtype of the second input, the shape of the first."""
    return [_converted(n.tensor(0), n.tensor(1).dtype)]


def _converted(x: TensorFact, dtype: ir.DataType | None) -> TensorFact:
    """Content survives a cast between dtypes that hold the same integers; a fraction does not reach this table."""
    if dtype is x.dtype:
        return x
    if x.table is not None and dtype is not BOOL and (content := table_of(x)) is not None:
        return with_table(dtype, content)
    if x.shape is None or len(x.shape) > 1 or (x.data is None and x.const is None):
        return TensorFact(dtype, x.shape)
    items = elements(x)
    if items is not None and dtype is BOOL:
        if not all(isinstance(i, int) for i in items):
            return TensorFact(dtype, x.shape)
        items = tuple(int(i != 0) for i in items)
    if items is None and x.const is not None and x.const.size <= MAX_ELEMENTS:
        return _truncated(x, dtype)
    return with_elements(dtype, x.shape, items)


def _truncated(x: TensorFact, dtype: ir.DataType | None) -> TensorFact:
    """A short float constant cast to int64 or int32: its whole part, if it has one."""
    if dtype not in (ir.DataType.INT64, ir.DataType.INT32) or x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return TensorFact(dtype, x.shape)
    values = x.numpy()
    if not (np.isfinite(values).all() and (np.abs(values) < 2.0**31).all()):
        return TensorFact(dtype, x.shape)
    return constant_fact(np.asarray(np.trunc(values), dtype.numpy()))


@operator("BitCast", required=("to",))
def bit_cast(n: Inference) -> list[Fact]:
    """The dtype of ``to``, which has the width of the input's dtype; same shape."""
    x = n.tensor(0)
    to = required_dtype(n, "to")
    if x.dtype is not None and x.dtype is not ir.DataType.UNDEFINED:
        n.require(STRING not in (x.dtype, to), "strings have no bits", expected="another dtype", found="STRING")
        n.require(
            x.dtype.bitwidth == to.bitwidth,
            "dtypes have different widths",
            expected=f"{x.dtype.bitwidth} bits",
            found=f"{to.bitwidth} bits",
        )
    return [TensorFact(to, x.shape)]


@operator("StringNormalizer")
def string_normalizer(n: Inference) -> list[Fact]:
    """Strings; the last axis shrinks where there are stop words to remove."""
    str_attr(n, "case_change_action", "NONE", among=("LOWER", "UPPER", "NONE"))
    shape = n.tensor(0).shape
    if shape is not None:
        n.require(len(shape) in (1, 2), "input has the wrong rank", expected="1 or 2", found=len(shape), value=0)
        if n.attr("stopwords"):
            shape = (*shape[:-1], n.fresh(lower=1))
    return [TensorFact(STRING, shape)]


@operator("StringSplit")
def string_split(n: Inference) -> list[Fact]:
    """Substrings in a new last axis, and how many there are."""
    shape = n.tensor(0).shape
    pieces = None if shape is None else (*shape, n.fresh())
    return [TensorFact(STRING, pieces), TensorFact(ir.DataType.INT64, shape)]
