"""The passes of a Fourier transform of any length: Stockham's algorithm in mixed radix.

A pass of radix r takes lengths n = r m apart. With p < m and a line of ``line`` elements that all have the same angle
(the transforms that run side by side, times those that earlier passes have made) it computes ::

    y[r p + j] = w_n^(p j) * sum over k of x[p + m k] * w_r^(j k)        w_n = exp(-2 pi i / n)

where each index selects a line. The result is in order after the last pass (Van Loan, "Computational Frameworks for
the Fast Fourier Transform", 1992, section 1.7). Real and imaginary parts lie in planes of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.expr.lang import Expr, bits, operand
from accord.expr.primitives import fma

__all__ = ["RADICES", "factors", "over_line", "pass_function", "pass_name"]

#: Radices with a pass of their own; 0 stands for the pass of any radix.
RADICES = (8, 4, 5, 3, 2)
#: Terms of one partial sum in the pass of any radix: rounding grows with their number.
_PARTIAL = 32

_Complex = tuple[Expr, Expr]


def factors(n: int) -> list[int]:
    """The radices of a transform of length ``n``, in the order of the passes; ones without a pass come as they are.

    Small ones come first, as in NumPy: sums that cancel then leave remainders like those in the standard's test cases.
    """
    found = []
    for radix in (4, 2, 3, 5):
        while n % radix == 0:
            found.append(radix)
            n //= radix
    # eight is two passes fewer than four and two, and three fours are two eights
    fours, twos = found.count(4), found.count(2)
    if fours and twos:
        found.remove(4)
        found.remove(2)
        found.insert(0, 8)
        fours -= 1
    while fours >= 3:
        for _ in range(3):
            found.remove(4)
        found[:0] = [8, 8]
        fours -= 3
    divisor = 7
    while n > 1:
        if divisor * divisor > n:
            divisor = n
        while n % divisor == 0:
            found.append(divisor)
            n //= divisor
        divisor += 2
    return found


def over_line(b: Builder, count: str, width: int, body: Callable[[str, str | None], None]) -> None:
    """Call ``body`` for each vector of a line: its first element, and the number of elements if it is not whole."""
    if machine().vector_bits == 512:  # a mask costs nothing, a second body costs time to compile
        with b.loop(0, count, width) as q:
            body(q, b.min(b.sub(count, q), width))
        return
    whole = b.mul(b.op(f"sdiv i64 {count}, {width}"), width)
    with b.loop(0, whole, width) as q:
        body(q, None)
    left = b.sub(count, whole)
    b.branch(b.compare("sgt", left, 0), lambda: body(whole, left))


def pass_name(radix: int) -> str:
    """Name of the function of a pass."""
    return f"pass_{radix}" if radix in RADICES else "pass_any"


_ARGUMENTS = (
    "ptr noalias readonly %xr, ptr noalias readonly %xi, ptr noalias %yr, ptr noalias %yi, "
    "ptr noalias readonly %cos, ptr noalias readonly %sin, i64 %radix, i64 %m, i64 %line, i64 %step"
)


def pass_function(radix: int, dtype: str) -> Builder:
    """The function of one pass; 0 for any radix.

    Its arguments are the planes of x and y, the table's cosines and (negative) sines, the radix, m, the line, and how
    many entries of the table one step of p is.
    """
    b = Builder(pass_name(radix), _ARGUMENTS, internal=True)
    width = machine().width(bits(dtype))
    if radix not in RADICES:
        _any_radix(b, dtype, width)
        return b
    exprs = _butterfly(radix, dtype)
    apart = b.mul("%m", "%line")
    with b.loop(0, "%m") as p:
        many = Printer(b, width)
        twiddles = []
        for j in range(1, radix):
            at = b.mul(b.mul(p, j), "%step")
            for table in ("%cos", "%sin"):
                twiddles.append(many.splat(dtype, Printer(b, 1).load(dtype, b.address(table, dtype, at)), width))
        first, target = b.mul(p, "%line"), b.mul(b.mul(p, radix), "%line")

        def body(q: str, count: str | None, first: str = first, target: str = target, w: list[str] = twiddles) -> None:
            printer = Printer(b, width)
            operands = []
            for k in range(radix):
                at = b.add(b.add(first, b.mul(apart, k) if k else 0), q)
                operands += [_load(printer, dtype, b.address(plane, dtype, at), count) for plane in ("%xr", "%xi")]
            operands += w
            values = [printer.value(e, operands) for pair in exprs for e in pair]
            for j in range(radix):
                at = b.add(b.add(target, b.mul("%line", j) if j else 0), q)
                for part, plane in enumerate(("%yr", "%yi")):
                    _store(printer, dtype, values[2 * j + part], b.address(plane, dtype, at), count)

        over_line(b, "%line", width, body)
    return b


def _load(printer: Printer, dtype: str, address: str, count: str | None) -> str:
    return printer.load(dtype, address) if count is None else printer.load_masked(dtype, address, count)


def _store(printer: Printer, dtype: str, value: str, address: str, count: str | None) -> None:
    if count is None:
        printer.store(dtype, value, address)
    else:
        printer.store_masked(dtype, value, address, count)


# complex arithmetic on expressions


def _add(a: _Complex, b: _Complex) -> _Complex:
    return a[0] + b[0], a[1] + b[1]


def _sub(a: _Complex, b: _Complex) -> _Complex:
    return a[0] - b[0], a[1] - b[1]


def _times(a: _Complex, w: _Complex) -> _Complex:
    return fma(a[0], w[0], -(a[1] * w[1])), fma(a[0], w[1], a[1] * w[0])


def _scaled(a: _Complex, factor: float) -> _Complex:
    return a[0] * factor, a[1] * factor


def _plus_scaled(a: _Complex, b: _Complex, factor: float) -> _Complex:
    return fma(b[0], factor, a[0]), fma(b[1], factor, a[1])


def _turned(a: _Complex) -> _Complex:
    """A quarter turn back: ``-i a``."""
    return a[1], -a[0]


def _two(a: Sequence[_Complex]) -> list[_Complex]:
    return [_add(a[0], a[1]), _sub(a[0], a[1])]


def _three(a: Sequence[_Complex]) -> list[_Complex]:
    total, difference = _add(a[1], a[2]), _sub(a[1], a[2])
    middle, side = _plus_scaled(a[0], total, -0.5), _turned(_scaled(difference, math.sin(math.pi / 3)))
    return [_add(a[0], total), _add(middle, side), _sub(middle, side)]


def _four(a: Sequence[_Complex]) -> list[_Complex]:
    even, odd = _two((a[0], a[2])), _two((a[1], a[3]))
    side = _turned(odd[1])
    return [_add(even[0], odd[0]), _add(even[1], side), _sub(even[0], odd[0]), _sub(even[1], side)]


def _five(a: Sequence[_Complex]) -> list[_Complex]:
    outer, inner = _two((a[1], a[4])), _two((a[2], a[3]))
    c, s = (tuple(f(2 * math.pi * k / 5) for k in (1, 2)) for f in (math.cos, math.sin))
    first = _plus_scaled(_plus_scaled(a[0], outer[0], c[0]), inner[0], c[1])
    second = _plus_scaled(_plus_scaled(a[0], outer[0], c[1]), inner[0], c[0])
    first_side = _turned(_plus_scaled(_scaled(outer[1], s[0]), inner[1], s[1]))
    second_side = _turned(_plus_scaled(_scaled(outer[1], s[1]), inner[1], -s[0]))
    return [
        _add(a[0], _add(outer[0], inner[0])),
        _add(first, first_side),
        _add(second, second_side),
        _sub(second, second_side),
        _sub(first, first_side),
    ]


def _eight(a: Sequence[_Complex]) -> list[_Complex]:
    even, odd = _four(a[::2]), _four(a[1::2])
    half = math.sqrt(0.5)
    turned = _turned(odd[1]), _turned(odd[3])
    odd[1] = _scaled(_add(odd[1], turned[0]), half)
    odd[2] = _turned(odd[2])
    odd[3] = _scaled(_sub(turned[1], odd[3]), half)
    return [_add(e, o) for e, o in zip(even, odd, strict=True)] + [_sub(e, o) for e, o in zip(even, odd, strict=True)]


_SMALL: dict[int, Callable[[Sequence[_Complex]], list[_Complex]]] = {2: _two, 3: _three, 4: _four, 5: _five, 8: _eight}


def _butterfly(radix: int, dtype: str) -> list[_Complex]:
    """Outputs of a pass; operands are the inputs' parts, then those of the angles of outputs 1, 2, ..."""
    pairs = [(operand(2 * k, dtype), operand(2 * k + 1, dtype)) for k in range(2 * radix - 1)]
    sums = _SMALL[radix](pairs[:radix])
    return [sums[0], *(_times(s, w) for s, w in zip(sums[1:], pairs[radix:], strict=True))]


def _any_radix(b: Builder, dtype: str, width: int) -> None:
    """Sums of all terms, a few at a time so that roundings do not pile up."""
    type_ = vector(dtype, width)
    zero = "zeroinitializer" if width > 1 else "0.0"
    apart = b.mul("%m", "%line")
    # w_r^i is entry i * m * step of the table: %step is the table's length over n = r m
    stride = b.mul("%m", "%step")
    a, w, total = ((operand(k, dtype), operand(k + 1, dtype)) for k in (0, 2, 4))
    added = (fma(a[0], w[0], fma(-a[1], w[1], total[0])), fma(a[0], w[1], fma(a[1], w[0], total[1])))
    product = _times(a, w)

    def angle(at: str) -> list[str]:
        one, many = Printer(b, 1), Printer(b, width)
        return [many.splat(dtype, one.load(dtype, b.address(t, dtype, at)), width) for t in ("%cos", "%sin")]

    with b.loop(0, "%m") as p, b.loop(0, "%radix") as j:
        first = b.mul(p, "%line")
        target = b.mul(b.add(b.mul(p, "%radix"), j), "%line")
        twiddle = angle(b.mul(b.mul(p, j), "%step"))

        def body(q: str, count: str | None) -> None:
            sums = ((type_, zero), (type_, zero))
            with b.loop_carrying(0, "%radix", _PARTIAL, (*sums, ("i64", "0"))) as (k0, outer, after):
                stop = b.min(b.add(k0, _PARTIAL), "%radix")
                with b.loop_carrying(k0, stop, 1, (*sums, ("i64", outer[2]))) as (k, inner, following):
                    printer = Printer(b, width)
                    at = b.add(b.add(first, b.mul(k, apart)), q)
                    x = [_load(printer, dtype, b.address(plane, dtype, at), count) for plane in ("%xr", "%xi")]
                    operands = [*x, *angle(b.mul(inner[2], stride)), *inner[:2]]
                    following.extend(printer.value(e, operands) for e in added)
                    turn = b.add(inner[2], j)
                    over = b.sub(turn, "%radix")
                    wraps = b.compare("sge", over, 0)
                    following.append(b.op(f"select i1 {wraps}, i64 {over}, i64 {turn}"))
                after.extend(b.op(f"fadd {type_} {x}, {y}") for x, y in zip(outer[:2], following[:2], strict=True))
                after.append(following[2])
            printer = Printer(b, width)
            values = [printer.value(e, [*after[:2], *twiddle]) for e in product]
            for value, plane in zip(values, ("%yr", "%yi"), strict=True):
                _store(printer, dtype, value, b.address(plane, dtype, b.add(target, q)), count)

        over_line(b, "%line", width, body)
