"""exp and what follows from it: sigmoid, tanh and the activations that are made of them."""

from __future__ import annotations

from accord.expr.functions import tables
from accord.expr.functions.common import LN2, LOG2E, exp_reduced, horner, ldexp, rint
from accord.expr.functions.logarithm import log1p, log1p_unit
from accord.expr.lang import Expr
from accord.expr.primitives import abs_, copysign, fma, lt, max_, min_, select

__all__ = ["cosh", "exp", "exp2", "expm1", "gelu_tanh", "mish", "sigmoid", "silu", "sinh", "softplus", "tanh"]

#: v = x (a + b x**2) of gelu_tanh: a = 2 sqrt(2 / pi) with a first part of few bits, b = 0.044715 a.
_GELU_A = (1.59375, 0.00201912160573071176)
_GELU_B = {"f32": (0.07135481387376785, 2.3988323959931356e-9), "f64": (0.07135481627260025, -6.1751499181553155e-19)}

#: Outside these arguments exp is 0 and infinity.
_EXP_RANGE = {"f32": (-104.0, 89.0), "f64": (-746.0, 710.0)}
#: Above this exp(x) / (1 + exp(x)) is 1.
_ONE_FROM = {"f32": 20.0, "f64": 40.0}


def _clamped(x: Expr, low: float, high: float) -> Expr:
    return max_(low, min_(high, x))


def _exp_parts(x: Expr) -> tuple[Expr, Expr]:
    """P in [0.7, 1.42] and n with exp(x) = p * 2**n, for x of moderate size."""
    n, r = exp_reduced(x)
    return horner(r, (1.0, 1.0, *tables.EXP[x.dtype])), n


def exp(x: Expr) -> Expr:
    """e**x."""
    p, n = _exp_parts(_clamped(x, *_EXP_RANGE[x.dtype]))
    return ldexp(p, n)


def exp2(x: Expr) -> Expr:
    """2**x."""
    low, high = {"f32": (-151.0, 129.0), "f64": (-1076.0, 1025.0)}[x.dtype]
    x = _clamped(x, low, high)
    n = rint(x)
    return ldexp(horner(x - n, (1.0, *tables.EXP2[x.dtype])), n)


def _expm1_reduced(n: Expr, r: Expr) -> Expr:
    """2**n exp(r) - 1, relative to its own size."""
    p = fma(r * r, horner(r, tables.EXPM1[r.dtype]), r)
    scale = ldexp(1.0, n)
    return fma(scale, p, scale + -1.0)


def expm1(x: Expr) -> Expr:
    """e**x - 1, accurate near 0."""
    low, high = {"f32": (-18.0, 89.0), "f64": (-40.0, 710.0)}[x.dtype]
    limited = _clamped(x, low, high)
    n, r = exp_reduced(limited)
    p = fma(r * r, horner(r, tables.EXPM1[x.dtype]), r)
    half = ldexp(0.5, n)  # 2**n itself could overflow where the result does not
    y = fma(half, p, half + -0.5)
    return copysign(abs_(y + y), x)


def _logistic_parts(n: Expr, r: Expr) -> tuple[Expr, Expr, Expr]:
    """The parts of 1 / (1 + exp(-x)) = s / (above + rest), where x = n log(2) + r.

    s = 2**n is exact, above = s + 1, and rest is exp(-r) - 1 and what that sum lost. Only the last sum rounds: the
    quotient has two roundings, where one of exp(x) and exp(x) + 1 has three.
    """
    s = ldexp(1.0, n)
    above = s + 1.0
    lost = s - (above + -1.0)
    return s, above, fma(r, _exp_ratio_of_minus(r), lost)


def _exp_ratio_of_minus(r: Expr) -> Expr:
    """(exp(-r) - 1) / r."""
    ratio = tables.EXP_RATIO["f32"] if r.dtype == "f32" else (1.0, *tables.EXP["f64"])
    return horner(r, [-c * (-1.0) ** k for k, c in enumerate(ratio)])


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)), accurate where it is small too."""
    n, r = exp_reduced(_clamped(x, _EXP_RANGE[x.dtype][0], _ONE_FROM[x.dtype]))
    s, above, rest = _logistic_parts(n, r)
    return s / (above + rest)


#: Below these arguments the product of x and sigmoid(x) is 0; above the others its exponential would overflow.
_GATE_RANGE = {"f32": (-120.0, 87.0), "f64": (-760.0, 700.0)}


def silu(x: Expr) -> Expr:
    """The product of x and sigmoid(x); the power of two comes last, so that small results are not rounded twice."""
    low, high = _GATE_RANGE[x.dtype]
    limited = max_(low, x)
    n, r = exp_reduced(min_(high, limited))
    _, above, rest = _logistic_parts(n, r)
    return ldexp(limited / (above + rest), n)


def mish(x: Expr) -> Expr:
    """The product of x and tanh(softplus(x)).

    With s = 2**n and e = exp(-r) the second factor is s / (s + e - s e / (s + 2 e)), which is summed up as for silu.
    """
    limited = max_(_GATE_RANGE[x.dtype][0], x)
    n, r = exp_reduced(min_(_ONE_FROM[x.dtype], limited))
    s, above, rest = _logistic_parts(n, r)
    e = fma(r, _exp_ratio_of_minus(r), 1.0)
    return ldexp(limited / (above + (rest - s * e / fma(e, 2.0, s))), n)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-abs(x)))."""
    p, n = _exp_parts(max_(_EXP_RANGE[x.dtype][0], -abs_(x)))
    z = ldexp(p, n)
    return max_(0.0, x) + (log1p_unit(z) if x.dtype == "f32" else log1p(z))


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent."""
    size = abs_(x)
    if x.dtype == "f64":
        limited = min_(20.0, size)
        n, r = exp_reduced(limited, scale=2.0)
        y = _expm1_reduced(n, r + r)
        return copysign(y / (y + 2.0), x)
    limited = min_(9.02, size)
    n = rint(limited * (2.0 * LOG2E))
    # one constant is enough: the error of exp(2 x) counts less, the larger n is
    r = fma(n, -LN2["f32"][0] / 2.0, limited)
    coefficients = (1.0, *tables.EXP_SHORT["f32"])
    e = ldexp(horner(r, [c * 2.0**k for k, c in enumerate(coefficients)]), n)
    large = 1.0 - 2.0 / (e + 1.0)
    square = limited * limited
    small = fma(horner(square, tables.TANH["f32"]), square * limited, limited)
    return copysign(select(lt(limited, 0.65), small, large), x)


def _half_exp(size: Expr) -> Expr:
    """exp(size) / 2, which overflows later than exp."""
    limited = min_({"f32": 90.0, "f64": 711.0}[size.dtype], size)
    p, n = _exp_parts(limited)
    return ldexp(p, n + -1.0)


def sinh(x: Expr) -> Expr:
    """Hyperbolic sine."""
    size = abs_(x)
    e = _half_exp(size)
    square = size * size
    small = fma(horner(square, tables.SINH[x.dtype]), square * size, size)
    return copysign(select(lt(size, 1.0), small, e - 0.25 / e), x)


def cosh(x: Expr) -> Expr:
    """Hyperbolic cosine."""
    e = _half_exp(abs_(x))
    return e + 0.25 / e


def gelu_tanh(x: Expr) -> Expr:
    """X / (1 + exp(-v)), v = x (a + b x**2): the usual approximation of gelu.

    v is computed to about twice the precision: its error counts abs(v) times in the result.
    """
    low, high = {"f32": (-11.0, 11.0), "f64": (-22.0, 22.0)}[x.dtype]
    b, b_low = _GELU_B[x.dtype]
    limited = max_(low, x)
    c = min_(high, limited)
    square = c * c
    square_low = fma(c, c, -square)
    q = fma(square, b, _GELU_A[0])
    q_low = fma(square, b, _GELU_A[0] - q) + fma(square_low, b, fma(square, b_low, _GELU_A[1]))
    v = c * q
    v_low = fma(c, q, -v) + c * q_low
    n, r = exp_reduced(min_(_GATE_RANGE[x.dtype][1], v))
    _, above, rest = _logistic_parts(n, r + v_low)
    return ldexp(limited / (above + rest), n)
