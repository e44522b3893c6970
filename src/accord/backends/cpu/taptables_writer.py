"""Writes the kernels of :mod:`accord.backends.cpu.taptables`."""

from __future__ import annotations

import functools

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.taptables import BLOCK, Taps
from accord.backends.positions import cubic, fold
from accord.expr.lang import Expr, call, cast, const, operand
from accord.expr.math import expand
from accord.expr.primitives import abs_, ge, gt, lt, max_, min_, ne, select

__all__ = ["TableWriter", "tap"]


#: Operands of the expressions: position, a, b, d, source length, stretch of the kernel, its reach, tap.
_X, _A, _B, _D, _LENGTH, _STRETCH, _REACH, _TAP = (operand(i, "f64") for i in range(8))
_NUMERATOR = _X * _A + _B


def _clipped(index: Expr) -> Expr:
    return max_(min_(_LENGTH - 1.0, index), 0.0)


def _nearest(taps: Taps) -> Expr:
    floor, ceil = (functools.partial(call, name) for name in ("floor", "ceil"))
    twice = _NUMERATOR * 2.0
    return {
        "floor": floor(_NUMERATOR / _D),
        "ceil": ceil(_NUMERATOR / _D),
        "round_prefer_floor": ceil((twice - _D) / (_D * 2.0)),
        "round_prefer_ceil": floor((twice + _D) / (_D * 2.0)),
    }[taps.rounding]


def _single(taps: Taps) -> Expr:
    """Index of the only tap."""
    if taps.kind == "reflect":
        period = max_((_LENGTH - 1.0) * 2.0, 1.0)
        inside = fold(_NUMERATOR, period)
        return _clipped(min_(inside, period - inside))
    if taps.kind == "wrap":
        return fold(_NUMERATOR, _LENGTH)
    return _clipped(_nearest(taps))


def _weighted(taps: Taps) -> tuple[Expr, Expr]:
    """Index and weight of a tap."""
    index = call("floor", _NUMERATOR / _D - _REACH) + 1.0 + _TAP
    t = abs_(index * _D - _NUMERATOR) / _D * _STRETCH
    weight = cubic(t, taps.coefficient) if taps.kind == "cubic" else max_(const(1.0, "f64") - t, 0.0)
    if taps.exclude:
        weight = select(ge(index, 0.0) & lt(index, _LENGTH), weight, 0.0)
    # a tap of weight zero must not turn the sum into NaN by being infinite
    near = select(ne(weight, 0.0), index, call("floor", _NUMERATOR / _D))
    return _clipped(near), weight


def tap(taps: Taps) -> tuple[Expr, Expr | None]:
    """Index (i64) and weight (f64) of a tap; no weight where there is one tap.

    Operands, all f64: position, ``a``, ``b`` and ``d`` of :meth:`Positions.affine`, source length, stretch of the
    kernel, its reach, number of the tap.
    """
    index, weight = _weighted(taps) if taps.weighted else (_single(taps), None)
    if taps.outside:
        outside = lt(_NUMERATOR, 0.0) | gt(_NUMERATOR, (_LENGTH - 1.0) * _D)
        index = select(outside, -1.0, index)
    return cast(index, "i64"), weight


class TableWriter:
    """Writes the code of a :class:`~accord.backends.cpu.taptables.TableCode`."""

    def __init__(self, taps: Taps, dtype: str) -> None:
        self.taps, self.dtype = taps, dtype

    def module(self, name: str) -> str:
        """LLVM text."""
        b, width = Builder(name), machine().width(64)
        positions, count, index_at, weight_at = (b.param(i) for i in range(4))
        numbers = [b.op(f"bitcast i64 {b.param(4 + i)} to double") for i in range(6)]
        constants = [Printer(b, width).splat("f64", n, width) for n in numbers]
        base = b.operand(0)
        indices = b.op(f"getelementptr i8, ptr {base}, i64 {index_at}")
        weights = b.op(f"getelementptr i8, ptr {base}, i64 {weight_at}")
        with b.loop("%first", "%last") as task:
            start = b.mul(task, BLOCK)
            stop = b.min(b.add(start, BLOCK), positions)
            with b.loop(start, stop, width) as x:
                here = b.min(b.sub(stop, x), width)
                lanes = [_spread(b, width, x), *constants]
                place = b.mul(x, count)
                self._block(b, width, lanes, here, count, (indices, weights, place))
        return b.module()

    def _block(
        self, b: Builder, width: int, lanes: list[str], here: str, count: str, table: tuple[str, str, str]
    ) -> None:
        """The taps of ``here`` positions."""
        indices, weights, place = table
        index, weight = tap(self.taps)
        if weight is None:
            number = Printer(b, width).value(expand(index), lanes)
            _put(b, "i64", width, number, b.address(indices, "i64", place), 1, here)
            return
        type_ = vector("f64", width)
        zero = "zeroinitializer" if width > 1 else "0.0"
        with b.loop_carrying(0, count, 1, ((type_, zero),)) as (k, sums, following):
            operands = [*lanes, _spread(b, width, k, 0)]
            printer = Printer(b, width)
            number = printer.value(expand(index), operands)
            share = printer.value(expand(weight), operands)
            following.append(b.op(f"fadd {type_} {sums[0]}, {share}"))
            at = b.add(place, k)
            _put(b, "i64", width, number, b.address(indices, "i64", at), count, here)
            if not self.taps.normal:
                share = Printer(b, width).value(expand(cast(operand(0, "f64"), self.dtype)), [share])
                _put(b, self.dtype, width, share, b.address(weights, self.dtype, at), count, here)
        if not self.taps.normal:
            return
        total = following[0]
        share_of = expand(cast(weight / operand(8, "f64"), self.dtype))
        with b.loop(0, count) as k:
            share = Printer(b, width).value(share_of, [*lanes, _spread(b, width, k, 0), total])
            at = b.add(place, k)
            _put(b, self.dtype, width, share, b.address(weights, self.dtype, at), count, here)


def _spread(b: Builder, width: int, start: str, step: int = 1) -> str:
    """``start``, ``start + step`` ... as float64."""
    type_ = vector("f64", width)
    first = Printer(b, width).splat("f64", b.op(f"sitofp i64 {start} to double"), width)
    if not step or width == 1:
        return first
    return b.op(f"fadd {type_} {first}, <{', '.join(f'double {k}.0' for k in range(width))}>")


def _put(b: Builder, dtype: str, width: int, value: str, address: str, stride: str | int, count: str) -> None:
    """Store the first ``count`` elements ``stride`` apart."""
    if width == 1:
        Printer(b, 1).store(dtype, value, address)
        return
    element = vector(dtype, 1)
    for k in range(width):

        def one(k: int = k) -> None:
            x = b.op(f"extractelement {vector(dtype, width)} {value}, i64 {k}")
            b.emit(f"store {element} {x}, ptr {b.address(address, dtype, b.mul(k, stride) if k else 0)}")

        b.branch(b.compare("sgt", count, k), one)
