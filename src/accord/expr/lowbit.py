"""Element types below 8 bits and 8-bit floats: codes of one byte ↔ numbers.

A printer knows nothing of them: in memory and between operators they are u8, which :func:`decode` and :func:`encode`
turn into numbers and back. A float of ``e`` exponent and ``m`` mantissa bits becomes an f32 by moving its bits to
where f32 has them and multiplying by a power of two, which is right for subnormal numbers too. In the other direction
the mantissa is rounded in integers; where the result is subnormal, the addition of a power of two rounds it.

ONNX, "Float stored in 8 bits" and "Float stored in 4 bits"; Open Compute Project, "Microscaling Formats" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from accord.expr.lang import Expr, cast, const
from accord.expr.primitives import abs_, bitcast, eq, ge, gt, isnan, lt, ne, select, shl, shr

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["LowBit", "decode", "encode", "limited", "low_bit"]


@dataclass(frozen=True, slots=True)
class LowBit:
    """A type whose elements take one byte or less.

    Attributes:
        bits: Of an element.
        mantissa: Bits of the mantissa; None for integers.
        bias: Of the exponent.
        most: Code of the largest finite magnitude; for integers the largest value.
        nan: Code of NaN; None if there is none.
        infinity: Code of infinity; None if there is none.
        zeros: There is a zero of either sign. If not, the code of the negative one is NaN.
        signed: Of integers.
    """

    bits: int
    mantissa: int | None = None
    bias: int = 0
    most: int = 0
    nan: int | None = None
    infinity: int | None = None
    zeros: bool = True
    signed: bool = False

    @property
    def is_float(self) -> bool:
        """True for floats."""
        return self.mantissa is not None

    @property
    def least(self) -> int:
        """Smallest value of an integer type."""
        return -self.most - 1 if self.signed else 0


_E8M0: Final = LowBit(8, 0, 127, 254, nan=255)

_TYPES: Final = {
    "FLOAT8E4M3FN": LowBit(8, 3, 7, 0x7E, nan=0x7F),
    "FLOAT8E4M3FNUZ": LowBit(8, 3, 8, 0x7F, nan=0x80, zeros=False),
    "FLOAT8E5M2": LowBit(8, 2, 15, 0x7B, nan=0x7E, infinity=0x7C),
    "FLOAT8E5M2FNUZ": LowBit(8, 2, 16, 0x7F, nan=0x80, zeros=False),
    "FLOAT8E8M0": _E8M0,
    "FLOAT6E2M3": LowBit(6, 3, 1, 0x1F),
    "FLOAT6E3M2": LowBit(6, 2, 3, 0x1F),
    "FLOAT4E2M1": LowBit(4, 1, 1, 0x7),
    "INT4": LowBit(4, most=7, signed=True),
    "UINT4": LowBit(4, most=15),
    "INT2": LowBit(2, most=1, signed=True),
    "UINT2": LowBit(2, most=3),
}


def low_bit(dtype: ir.DataType) -> LowBit | None:
    """The low-bit type that ``dtype`` is, or None."""
    return _TYPES.get(dtype.name)


def decode(code: Expr, kind: LowBit) -> Expr:
    """The number that a code (u8) stands for: f32, or i32 for integers."""
    if kind.mantissa is None:
        low = cast(code, "i32") & ((1 << kind.bits) - 1)
        sign = 1 << (kind.bits - 1)
        return (low ^ sign) - sign if kind.signed else low
    wide = cast(code, "u32")
    nan = const(float("nan"), "f32")
    if kind is _E8M0:
        power = select(eq(wide, 0), 1 << 22, shl(wide, 23))
        return select(eq(wide, 255), nan, bitcast(power, "f32"))
    sign = 1 << (kind.bits - 1)
    magnitude = wide & (sign - 1)
    number = bitcast(shl(magnitude, 23 - kind.mantissa), "f32") * 2.0 ** (127 - kind.bias)
    if kind.infinity is not None:
        number = select(eq(magnitude, kind.infinity), float("inf"), number)
    if kind.nan is not None and kind.zeros:
        number = select(gt(magnitude, kind.most if kind.infinity is None else kind.infinity), nan, number)
    number = bitcast(bitcast(number, "u32") | shl(wide & sign, 32 - kind.bits), "f32")
    return number if kind.zeros else select(eq(wide, sign), nan, number)


def encode(x: Expr, kind: LowBit, *, saturate: bool = True, round_mode: str = "up") -> Expr:
    """The code (u8) of a number.

    Args:
        x: Of any type. A float becomes an integer by truncation; an integer that does not fit keeps its low bits.
        kind: The type.
        saturate: Numbers out of a float type's range become its largest finite number; if not, infinity or NaN.
        round_mode: Of E8M0: "up", "down" or "nearest"; other types round to nearest, ties to even.
    """
    if kind.mantissa is None:
        return cast(cast(x, "i64") & ((1 << kind.bits) - 1), "u8")
    single = _single(x)
    word = bitcast(single, "u32")
    magnitude = word & 0x7FFF_FFFF
    if kind is _E8M0:
        if x.dtype == "f64":  # rounded to odd, the largest f32
            magnitude = select(ge(abs_(x), 2.0**128), 0x7F80_0000, magnitude)
        return cast(_power(magnitude, saturate, round_mode), "u8")
    drop = 23 - kind.mantissa
    odd = shr(magnitude, drop) & 1
    rounded = shr(magnitude + ((1 << (drop - 1)) - 1) + odd, drop) - ((127 - kind.bias) << kind.mantissa)
    step = 2.0 ** (1 - kind.bias - kind.mantissa + 23)  # its last bit is the unit of subnormal numbers
    small = bitcast(bitcast(magnitude, "f32") + step, "u32") - bitcast(const(step, "f32"), "u32")
    code = select(lt(magnitude, (128 - kind.bias) << 23), small, rounded)
    beyond = kind.most if saturate or kind.nan is None else kind.nan if kind.infinity is None else kind.infinity
    code = select(gt(code, kind.most), beyond, code)
    sign = shl(shr(word, 31), kind.bits - 1)
    not_a_number = gt(magnitude, 0x7F80_0000)
    if kind.nan is None:  # as the types' makers do: the zero of the other sign
        return cast(select(not_a_number, sign ^ (1 << (kind.bits - 1)), code | sign), "u8")
    if not kind.zeros:
        code = select(eq(code, 0) | eq(code, kind.nan), code, code | sign)
        return cast(select(not_a_number, kind.nan, code), "u8")
    return cast(select(not_a_number, kind.nan, code) | sign, "u8")


def _power(magnitude: Expr, saturate: bool, round_mode: str) -> Expr:
    """Code of the power of two that a positive f32 (its bits) becomes.

    Numbers below 2**-126 have their leading bit lower: down to 2**-128 that decides whether the code is 0.
    """
    fraction = magnitude & 0x7F_FFFF

    def up(part: Expr, half: int) -> Expr:
        if round_mode == "down":
            return const(0, "u32")
        more = gt(part, 0) if round_mode == "up" else ge(part, half)
        return cast(more, "u32")

    # one more than the code, so that it is never negative
    normal = shr(magnitude, 23) + 1 + up(fraction, 1 << 22)
    below = 1 + up(magnitude & 0x3F_FFFF, 1 << 21)  # from 2**-127 on
    far = cast(gt(magnitude, 1 << 21), "u32") if round_mode == "up" else up(magnitude & 0x1F_FFFF, 1 << 20)
    far = select(ge(magnitude, 1 << 21), far, 0)
    code = select(ge(magnitude, 1 << 23), normal, select(ge(magnitude, 1 << 22), below, far))
    infinite = eq(magnitude, 0x7F80_0000)
    code = select(infinite, 256, code)
    if saturate:
        limited_ = select(gt(code, 255), 255, code)
        code = select(eq(code, 0), 0, limited_ - 1)
    else:
        code = select(eq(code, 0) | gt(code, 255), 255, code - 1)
    return select(gt(magnitude, 0x7F80_0000), 255, code)


def _single(x: Expr) -> Expr:
    """``x`` as f32 such that rounding it again gives what rounding ``x`` once would: f64 is rounded to odd.

    Boldo and Melquiond, "When double rounding is odd" (2005).
    """
    if x.dtype in ("f16", "bf16", "f32", "bool", "i8", "u8", "i16", "u16"):
        return cast(x, "f32")
    wide = cast(x, "f64")
    near = cast(wide, "f32")
    back = cast(near, "f64")
    word = bitcast(near, "u32") - cast(gt(abs_(back), abs_(wide)), "u32")
    inexact = ne(back, wide) & ~isnan(wide)
    return bitcast(select(inexact, word | 1, word), "f32")


def limited(x: Expr, kind: LowBit) -> Expr:
    """``x`` (f32) brought into the range of an integer type, as i32; NaN counts as 0."""
    low, high = float(kind.least), float(kind.most)
    number = select(isnan(x), 0.0, x)
    inside = select(gt(number, low), number, low)
    return cast(select(lt(inside, high), inside, high), "i32")
