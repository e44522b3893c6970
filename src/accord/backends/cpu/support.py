"""Functions that LLVM calls where the processor has no instruction, written in LLVM's language.

LLVM expects them from the C library and its own runtime library. Machine code here refers to nothing outside itself, so
what a kernel calls is linked into its blob. On processors with AVX2, FMA and F16C nothing but the copying of memory is
ever called; speed matters little.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FUNCTIONS", "support_text"]

_MEMORY: Final = """
define ptr @memcpy(ptr %to, ptr %from, i64 %n) #0 {
entry:
  %whole = and i64 %n, -16
  br label %wide
wide:
  %i = phi i64 [ 0, %entry ], [ %i.next, %wide.body ]
  %more = icmp ult i64 %i, %whole
  br i1 %more, label %wide.body, label %narrow
wide.body:
  %source = getelementptr i8, ptr %from, i64 %i
  %target = getelementptr i8, ptr %to, i64 %i
  %block = load <16 x i8>, ptr %source, align 1
  store <16 x i8> %block, ptr %target, align 1
  %i.next = add i64 %i, 16
  br label %wide
narrow:
  %j = phi i64 [ %whole, %wide ], [ %j.next, %narrow.body ]
  %some = icmp ult i64 %j, %n
  br i1 %some, label %narrow.body, label %done
narrow.body:
  %s = getelementptr i8, ptr %from, i64 %j
  %t = getelementptr i8, ptr %to, i64 %j
  %byte = load i8, ptr %s
  store i8 %byte, ptr %t
  %j.next = add i64 %j, 1
  br label %narrow
done:
  ret ptr %to
}

; upwards, 16 bytes at a time, is right unless the target starts inside the source
define ptr @memmove(ptr %to, ptr %from, i64 %n) #0 {
entry:
  %a = ptrtoint ptr %to to i64
  %b = ptrtoint ptr %from to i64
  %apart = sub i64 %a, %b
  %upwards = icmp uge i64 %apart, %n
  br i1 %upwards, label %copy, label %down
copy:
  %same = call ptr @memcpy(ptr %to, ptr %from, i64 %n)
  ret ptr %to
down:
  %i = phi i64 [ %n, %entry ], [ %i.next, %body ]
  %more = icmp ne i64 %i, 0
  br i1 %more, label %body, label %done
body:
  %i.next = sub i64 %i, 1
  %s = getelementptr i8, ptr %from, i64 %i.next
  %t = getelementptr i8, ptr %to, i64 %i.next
  %byte = load i8, ptr %s
  store i8 %byte, ptr %t
  br label %down
done:
  ret ptr %to
}

define ptr @memset(ptr %to, i32 %value, i64 %n) #0 {
entry:
  %byte = trunc i32 %value to i8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %t = getelementptr i8, ptr %to, i64 %i
  store i8 %byte, ptr %t
  %i.next = add i64 %i, 1
  br label %head
done:
  ret ptr %to
}
"""

#: Rounding to an integer: adding 2^(digits - 1) and taking it away rounds the magnitude to nearest even.
_ROUNDING: Final = """
define internal {T} @{T}.near({T} %a) alwaysinline nounwind {{
  %small = fcmp olt {T} %a, {limit}
  %up = fadd {T} %a, {limit}
  %back = fsub {T} %up, {limit}
  %r = select i1 %small, {T} %back, {T} %a
  ret {T} %r
}}

define {T} @roundeven{s}({T} %x) #0 {{
  %a = call {T} @llvm.fabs.{t}({T} %x)
  %n = call {T} @{T}.near({T} %a)
  %r = call {T} @llvm.copysign.{t}({T} %n, {T} %x)
  ret {T} %r
}}

define {T} @rint{s}({T} %x) #0 {{
  %r = call {T} @roundeven{s}({T} %x)
  ret {T} %r
}}

define {T} @nearbyint{s}({T} %x) #0 {{
  %r = call {T} @roundeven{s}({T} %x)
  ret {T} %r
}}

define {T} @trunc{s}({T} %x) #0 {{
  %a = call {T} @llvm.fabs.{t}({T} %x)
  %n = call {T} @{T}.near({T} %a)
  %over = fcmp ogt {T} %n, %a
  %less = fsub {T} %n, 1.0
  %m = select i1 %over, {T} %less, {T} %n
  %r = call {T} @llvm.copysign.{t}({T} %m, {T} %x)
  ret {T} %r
}}

define {T} @floor{s}({T} %x) #0 {{
  %n = call {T} @roundeven{s}({T} %x)
  %over = fcmp ogt {T} %n, %x
  %less = fsub {T} %n, 1.0
  %m = select i1 %over, {T} %less, {T} %n
  %r = call {T} @llvm.copysign.{t}({T} %m, {T} %x)
  ret {T} %r
}}

define {T} @ceil{s}({T} %x) #0 {{
  %n = call {T} @roundeven{s}({T} %x)
  %under = fcmp olt {T} %n, %x
  %more = fadd {T} %n, 1.0
  %m = select i1 %under, {T} %more, {T} %n
  %r = call {T} @llvm.copysign.{t}({T} %m, {T} %x)
  ret {T} %r
}}

declare {T} @llvm.fabs.{t}({T})
declare {T} @llvm.copysign.{t}({T}, {T})
"""

#: The product of two f32 is exact in f64; the sum is rounded to odd, so that rounding it to f32 is right (Boldo and
#: Melquiond, "Emulation of FMA and correctly rounded sums", 2008). In f64 the sum is made of 128-bit integers: the
#: product's 106 bits stand at bit 18, the addend is aligned to them, and bits that fall off leave a mark in bit 0.
_FUSED: Final = """
define float @fmaf(float %x, float %y, float %z) #0 {
  %a = fpext float %x to double
  %b = fpext float %y to double
  %c = fpext float %z to double
  %p = fmul double %a, %b
  %s = fadd double %p, %c
  %c.part = fsub double %s, %p
  %p.part = fsub double %s, %c.part
  %p.lost = fsub double %p, %p.part
  %c.lost = fsub double %c, %c.part
  %lost = fadd double %p.lost, %c.lost
  %inexact = fcmp one double %lost, 0.0
  %bits = bitcast double %s to i64
  %low = trunc i64 %bits to i1
  %even = xor i1 %low, true
  %change = and i1 %inexact, %even
  %lost.bits = bitcast double %lost to i64
  %signs = xor i64 %bits, %lost.bits
  %away = icmp sge i64 %signs, 0
  %step = select i1 %away, i64 1, i64 -1
  %odd = add i64 %bits, %step
  %chosen = select i1 %change, i64 %odd, i64 %bits
  %wide = bitcast i64 %chosen to double
  %r = fptrunc double %wide to float
  ret float %r
}

; mantissa and exponent of a finite number that is not zero
define internal { i64, i64 } @parts(i64 %bits) alwaysinline nounwind {
  %field = lshr i64 %bits, 52
  %e = and i64 %field, 2047
  %m = and i64 %bits, 4503599627370495
  %normal = icmp ne i64 %e, 0
  %hidden = or i64 %m, 4503599627370496
  %mantissa = select i1 %normal, i64 %hidden, i64 %m
  %biased = select i1 %normal, i64 %e, i64 1
  %exponent = sub i64 %biased, 1075
  %r0 = insertvalue { i64, i64 } poison, i64 %mantissa, 0
  %r1 = insertvalue { i64, i64 } %r0, i64 %exponent, 1
  ret { i64, i64 } %r1
}

; %v shifted right, with bit 0 set if any bit fell off
define internal i128 @jam(i128 %v, i64 %count) alwaysinline nounwind {
  %far = icmp ugt i64 %count, 127
  %bounded = select i1 %far, i64 127, i64 %count
  %by = zext i64 %bounded to i128
  %kept = lshr i128 %v, %by
  %again = shl i128 %kept, %by
  %differs = icmp ne i128 %again, %v
  %mark = zext i1 %differs to i128
  %r = or i128 %kept, %mark
  ret i128 %r
}

define double @fma(double %x, double %y, double %z) #0 {
entry:
  %xb = bitcast double %x to i64
  %yb = bitcast double %y to i64
  %zb = bitcast double %z to i64
  %xa = and i64 %xb, 9223372036854775807
  %ya = and i64 %yb, 9223372036854775807
  %za = and i64 %zb, 9223372036854775807
  %x1 = sub i64 %xa, 1
  %y1 = sub i64 %ya, 1
  %x.odd = icmp uge i64 %x1, 9218868437227405311
  %y.odd = icmp uge i64 %y1, 9218868437227405311
  %z.odd = icmp uge i64 %za, 9218868437227405312
  %xy.odd = or i1 %x.odd, %y.odd
  %odd = or i1 %xy.odd, %z.odd
  br i1 %odd, label %special, label %finite
special:
  %product = fmul double %x, %y
  %plain = fadd double %product, %z
  ret double %plain
finite:
  %z.zero = icmp eq i64 %za, 0
  br i1 %z.zero, label %multiply, label %align
multiply:
  %alone = fmul double %x, %y
  ret double %alone
align:
  %xp = call { i64, i64 } @parts(i64 %xb)
  %yp = call { i64, i64 } @parts(i64 %yb)
  %zp = call { i64, i64 } @parts(i64 %zb)
  %xm = extractvalue { i64, i64 } %xp, 0
  %ym = extractvalue { i64, i64 } %yp, 0
  %zm = extractvalue { i64, i64 } %zp, 0
  %xe = extractvalue { i64, i64 } %xp, 1
  %ye = extractvalue { i64, i64 } %yp, 1
  %ze = extractvalue { i64, i64 } %zp, 1
  %xw = zext i64 %xm to i128
  %yw = zext i64 %ym to i128
  %zw = zext i64 %zm to i128
  %pw = mul i128 %xw, %yw
  %p0 = shl i128 %pw, 18
  %pe = add i64 %xe, %ye
  %e0 = sub i64 %pe, 18
  %shift = sub i64 %ze, %e0
  %z.above = icmp sgt i64 %shift, 72
  %z.below = icmp slt i64 %shift, 0
  %excess = sub i64 %shift, 72
  %p.right = select i1 %z.above, i64 %excess, i64 0
  %p = call i128 @jam(i128 %p0, i64 %p.right)
  %e = add i64 %e0, %p.right
  %left = sub i64 %shift, %p.right
  %left0 = select i1 %z.below, i64 0, i64 %left
  %left.wide = zext i64 %left0 to i128
  %z.left = shl i128 %zw, %left.wide
  %down = sub i64 0, %shift
  %z.right = select i1 %z.below, i64 %down, i64 0
  %zz = call i128 @jam(i128 %z.left, i64 %z.right)
  %p.sign = xor i64 %xb, %yb
  %differ = xor i64 %p.sign, %zb
  %subtract = icmp slt i64 %differ, 0
  %sum = add i128 %p, %zz
  %p.larger = icmp uge i128 %p, %zz
  %pz = sub i128 %p, %zz
  %zp.minus = sub i128 %zz, %p
  %difference = select i1 %p.larger, i128 %pz, i128 %zp.minus
  %total = select i1 %subtract, i128 %difference, i128 %sum
  %larger.sign = select i1 %p.larger, i64 %p.sign, i64 %zb
  %sign = and i64 %larger.sign, -9223372036854775808
  %nothing = icmp eq i128 %total, 0
  br i1 %nothing, label %zero, label %round
zero:
  ret double 0.0
round:
  %lz = call i128 @llvm.ctlz.i128(i128 %total, i1 true)
  %lz64 = trunc i128 %lz to i64
  %cut = sub i64 75, %lz64
  %unit = add i64 %e, %cut
  %biased = add i64 %unit, 1075
  %tiny = icmp slt i64 %biased, 1
  %missing = sub i64 1, %biased
  %more = select i1 %tiny, i64 %missing, i64 0
  %r = add i64 %cut, %more
  %field = select i1 %tiny, i64 0, i64 %unit
  %field.bias = select i1 %tiny, i64 0, i64 1074
  %exponent = add i64 %field, %field.bias
  %grow = icmp slt i64 %r, 2
  %widen = sub i64 2, %r
  %up = select i1 %grow, i64 %widen, i64 0
  %up.wide = zext i64 %up to i128
  %scaled = shl i128 %total, %up.wide
  %r2 = add i64 %r, %up
  %guard = sub i64 %r2, 2
  %quarters = call i128 @jam(i128 %scaled, i64 %guard)
  %q4 = trunc i128 %quarters to i64
  %q = lshr i64 %q4, 2
  %rest = and i64 %q4, 3
  %q.low = and i64 %q, 1
  %high = icmp ugt i64 %rest, 1
  %not.tie = icmp ne i64 %rest, 2
  %q.odd = icmp ne i64 %q.low, 0
  %decided = or i1 %not.tie, %q.odd
  %round.up = and i1 %high, %decided
  %one = zext i1 %round.up to i64
  %rounded = add i64 %q, %one
  %exponent.bits = shl i64 %exponent, 52
  %magnitude = add i64 %exponent.bits, %rounded
  %huge = icmp sgt i64 %exponent, 2045
  %bounded = select i1 %huge, i64 9218868437227405312, i64 %magnitude
  %bits = or i64 %bounded, %sign
  %result = bitcast i64 %bits to double
  ret double %result
}

declare i128 @llvm.ctlz.i128(i128, i1)
"""

_HALF: Final = """
define float @__extendhfsf2(half %x) #0 {
  %h = bitcast half %x to i16
  %u = zext i16 %h to i32
  %s = and i32 %u, 32768
  %sign = shl i32 %s, 16
  %rest = and i32 %u, 32767
  %m = shl i32 %rest, 13
  %f = bitcast i32 %m to float
  %scaled = fmul float %f, 0x46F0000000000000 ; 2^112, the difference of the exponents' biases
  %finite.bits = bitcast float %scaled to i32
  %finite = icmp ult i32 %rest, 31744
  %infinite = or i32 %m, 2139095040
  %nan = icmp ugt i32 %rest, 31744
  %quiet = select i1 %nan, i32 4194304, i32 0
  %special = or i32 %infinite, %quiet
  %magnitude = select i1 %finite, i32 %finite.bits, i32 %special
  %bits = or i32 %magnitude, %sign
  %r = bitcast i32 %bits to float
  ret float %r
}

define half @__truncsfhf2(float %x) #0 {
  %bits = bitcast float %x to i32
  %a = and i32 %bits, 2147483647
  %s = lshr i32 %bits, 16
  %sign = and i32 %s, 32768
  %f = bitcast i32 %a to float
  %aligned = fadd float %f, 0.5 ; its last place is that of the smallest half
  %aligned.bits = bitcast float %aligned to i32
  %subnormal = sub i32 %aligned.bits, 1056964608
  %last = lshr i32 %a, 13
  %odd = and i32 %last, 1
  %nudge = add i32 %odd, 4095
  %nudged = add i32 %a, %nudge
  %biased = sub i32 %nudged, 939524096
  %normal = lshr i32 %biased, 13
  %is.small = icmp ult i32 %a, 947912704
  %finite = select i1 %is.small, i32 %subnormal, i32 %normal
  %overflows = icmp uge i32 %a, 1199570944
  %bounded = select i1 %overflows, i32 31744, i32 %finite
  %is.nan = icmp ugt i32 %a, 2139095040
  %payload = and i32 %last, 1023
  %nan = or i32 %payload, 32256
  %magnitude = select i1 %is.nan, i32 %nan, i32 %bounded
  %all = or i32 %magnitude, %sign
  %h = trunc i32 %all to i16
  %r = bitcast i16 %h to half
  ret half %r
}
"""

_ROUNDED: Final = ("roundeven", "rint", "nearbyint", "trunc", "floor", "ceil")

#: What :func:`support_text` defines.
FUNCTIONS: Final = frozenset(
    ["memcpy", "memmove", "memset", "fma", "fmaf", "__extendhfsf2", "__truncsfhf2"]
    + [name + suffix for name in _ROUNDED for suffix in ("", "f")]
)


def support_text() -> str:
    """The text of a module that defines :data:`FUNCTIONS`."""
    rounding = [
        _ROUNDING.format(T="float", t="f32", s="f", limit="0x4160000000000000"),
        _ROUNDING.format(T="double", t="f64", s="", limit="0x4330000000000000"),
    ]
    return "\n".join([_MEMORY, *rounding, _FUSED, _HALF, 'attributes #0 = { nounwind "no-builtins" }\n'])
