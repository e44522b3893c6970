"""The passes of a Fourier transform of any length: Stockham's algorithm in mixed radix.

A pass of radix r takes lengths n = r m apart. With p < m and a line of ``line`` elements that all have the same angle
(the transforms that run side by side, times those that earlier passes have made) it computes ::

    y[r p + j] = w_n^(p j) * sum over k of x[p + m k] * w_r^(j k)        w_n = exp(-2 pi i / n)

where each index selects a line. The result is in order after the last pass (Van Loan, "Computational Frameworks for
the Fast Fourier Transform", 1992, section 1.7). Real and imaginary parts lie in planes of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from accord.backends.butterflies import RADICES, butterfly, times
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.expr.lang import bits, operand
from accord.expr.primitives import fma

__all__ = ["over_line", "pass_function", "pass_name"]

#: Terms of one partial sum in the pass of any radix: rounding grows with their number.
_PARTIAL = 32


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
    exprs = butterfly(radix, dtype)
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


def _any_radix(b: Builder, dtype: str, width: int) -> None:
    """Sums of all terms, a few at a time so that roundings do not pile up."""
    type_ = vector(dtype, width)
    zero = "zeroinitializer" if width > 1 else "0.0"
    apart = b.mul("%m", "%line")
    # w_r^i is entry i * m * step of the table: %step is the table's length over n = r m
    stride = b.mul("%m", "%step")
    a, w, total = ((operand(k, dtype), operand(k + 1, dtype)) for k in (0, 2, 4))
    added = (fma(a[0], w[0], fma(-a[1], w[1], total[0])), fma(a[0], w[1], fma(a[1], w[0], total[1])))
    product = times(a, w)

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
