"""The time loop of an LSTM whose recurrence weights are 8-bit.

At the beginning of a step the hidden states of the whole batch are quantised by their range, which is one for all of
them. So a task is one direction, and its block is the batch. A row of codes is multiplied with panels whose elements
are lanes (:mod:`accord.backends.cpu.lanes`); the exact sums become floats where a unit's gates are computed.

An entry's states are followed by its codes, and by one vector whose first element is their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from accord.backends.cpu.lanes import lanes
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.recurrence import Place, RecurrenceCode, RecurrenceWriter, state_elements
from accord.backends.gates import Cell, Pass
from accord.expr.lang import bits, cast, const, operand
from accord.expr.onnx_quantize import data_range, quantized
from accord.expr.primitives import gt, lt, select
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["CheckedQuantizedRecurrenceCode", "QuantizedRecurrenceCode", "quantized_state_elements"]


@record
class QuantizedRecurrenceCode(RecurrenceCode):
    """As :class:`RecurrenceCode`, with 8-bit products.

    Further operands: "inputs" are the projected inputs [steps, batch, directions, gates, hidden]; "columns" are i32,
    the sums of the weights' columns less their zero points; "scales" are f32; "zeros" are i32 zero points, left out
    where all are zero after they were moved. The last three are [directions, panels, gates, units].

    Attributes:
        whole: No panel has more units than there are.
        moved: What was added to the weights.
    """

    further: ClassVar[tuple[tuple[str, str], ...]] = (
        ("columns", "columns_at"),
        ("scales", "scales_at"),
        ("zeros", "zeros_at"),
    )

    whole: bool
    moved: int

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"lanes_{super().symbol}_{self.whole}_{self.moved}"

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class CheckedQuantizedRecurrenceCode(QuantizedRecurrenceCode):
    """A time loop that reads sequence lengths: one outside [0, steps] is refused."""

    checks = True


def quantized_state_elements(cell: Cell, units: int, panels: DimLike) -> DimLike:
    """Elements of scratch memory that one batch entry of one direction needs."""
    return state_elements(cell, units, panels) + panels * (units * bits(lanes().left) // 32) + units


class _Writer(RecurrenceWriter):
    """Writes the kernel."""

    code: QuantizedRecurrenceCode

    def __init__(self, code: QuantizedRecurrenceCode, name: str) -> None:
        super().__init__(code, name)
        b, p = self.b, self.p
        self.inputs = b.address(self.tensor["inputs"], "f32", p["inputs_at"])
        for operand_, start in code.further:
            if operand_ in self.tensor:
                self.tensor[operand_] = b.address(self.tensor[operand_], "i32", p[start])
        count, size = lanes().count, bits(lanes().left)
        self.codes_at = self.entry_size
        self.row_sum_at = b.add(self.codes_at, b.op(f"udiv i64 {b.mul(self.padded, size)}, 32"))
        self.entry_size = b.add(self.row_sum_at, code.units)
        self.summed = "i32"
        self.depth = b.op(f"udiv i64 {b.add(p['hidden'], count - 1)}, {count}")

    def _multiplied(self, pass_: Pass, old: str) -> str:
        del pass_, old
        return self.codes_at

    # quantising

    def _begin_part(self) -> None:
        one, at = Printer(self.b, 1), self.rounds.handed
        self.scale = one.splat("f32", one.load("f32", at), self.width)
        self.zero = one.splat("i32", one.load("i32", self.b.address(at, "i32", 1)), self.width)

    def _prepare(self, step: str, old: str) -> None:
        """Quantise the hidden states; scale and zero point are handed on."""
        b, width = self.b, self.width
        low, high = self._range(step, old)
        one = Printer(b, 1)
        scale, zero = (one.value(x, [low, high]) for x in data_range(operand(0, "f32"), operand(1, "f32")))
        scales, codes = one.splat("f32", scale, width), one.splat("u8", zero, width)
        wide = one.value(cast(operand(0, "u8"), "i32"), [zero])
        one.store("f32", scale, self.rounds.handed)
        one.store("i32", wide, b.address(self.rounds.handed, "i32", 1))
        code = quantized(operand(0, "f32") / operand(1, "f32"), operand(2, "u8"), "u8")
        total = f"<{width} x i32>"
        with b.loop(0, self.count) as row:
            states = self.entry(row)
            source = b.address(states, "f32", old)
            target = b.address(states, "f32", self.codes_at)
            with b.loop_carrying(0, self.padded, width, ((total, "zeroinitializer"),)) as (u, (before,), following):
                printer = Printer(b, width)
                operands = [self._load("f32", b.address(source, "f32", u), u), scales, codes]
                stored = printer.value(cast(code, lanes().left), operands)
                printer.store(lanes().left, stored, b.address(target, lanes().left, u))
                wider = printer.value(cast(code, "i32"), operands) if "zeros" in self.tensor else "zeroinitializer"
                following.append(b.op(f"add {total} {before}, {wider}"))
            if "zeros" in self.tensor:
                b.declare(f"declare i32 @llvm.vector.reduce.add.v{width}i32({total})")
                sum_ = b.op(f"call i32 @llvm.vector.reduce.add.v{width}i32({total} {following[0]})")
                # units that there are not have the code of zero
                more = b.op(f"trunc i64 {b.sub(self.padded, self.p['hidden'])} to i32")
                sum_ = b.op(f"sub i32 {sum_}, {b.op(f'mul i32 {more}, {wide}')}")
                one.store("i32", sum_, b.address(states, "i32", self.row_sum_at))

    def _range(self, step: str, old: str) -> tuple[str, str]:
        """Least and greatest element of the hidden states, and 0, as scalars."""
        b, width = self.b, self.width
        type_ = f"<{width} x float>"
        x, least, greatest = (operand(i, "f32") for i in range(3))
        start = ((type_, "zeroinitializer"), (type_, "zeroinitializer"))
        with b.loop_carrying(0, self.count, 1, start) as (row, extremes, following):
            source = b.address(self.entry(row), "f32", old)
            stop = self.p["hidden"]
            if "lengths" in self.tensor:  # a sequence that has ended counts as zeros; before the first step, none has
                made = b.compare("sge", self._length(row), step)
                stop = b.op(f"select i1 {made}, i64 {stop}, i64 0")
            inner = tuple((type_, e) for e in extremes)
            with b.loop_carrying(0, stop, width, inner) as (u, (low, high), later):
                operands = [self._load("f32", b.address(source, "f32", u), u), low, high]
                printer = Printer(b, width)
                later.append(printer.value(select(lt(x, least), x, least), operands))
                later.append(printer.value(select(gt(x, greatest), x, greatest), operands))
            following.extend(later)
        names = []
        for extreme, value in zip(("fmin", "fmax"), following, strict=True):
            b.declare(f"declare float @llvm.vector.reduce.{extreme}.v{width}f32({type_})")
            names.append(b.op(f"call nnan float @llvm.vector.reduce.{extreme}.v{width}f32({type_} {value})"))
        return names[0], names[1]

    def _load(self, dtype: str, at: str, first: str) -> str:
        """A vector of units from ``first`` on, zeros for those that there are not."""
        printer = Printer(self.b, self.width)
        if self.code.whole:
            return printer.load(dtype, at)
        return printer.load_masked(dtype, at, self.b.min(self.b.sub(self.p["hidden"], first), self.width))

    # a unit's gates

    def _sums(self, pass_: Pass, place: Place, sums: Sequence[str]) -> list[str]:
        b, width, units = self.b, self.width, self.code.units
        number = b.add(b.mul(self.direction, self.p["panels"]), place.panel)
        line = b.add(b.mul(number, self.cell.gates * units), place.part * width)
        total = operand(0, "i32") - operand(1, "i32") * operand(2, "i32")
        parts = ["columns", "scales"]
        if "zeros" in self.tensor:
            parts.append("zeros")
            total = total - (operand(5, "i32") + const(self.code.moved, "i32")) * operand(6, "i32")
            one = Printer(b, 1)
            row = one.load("i32", b.address(self.entry(place.row), "i32", self.row_sum_at))
            row_sum = one.splat("i32", row, width)
        result = cast(total, "f32") * (operand(3, "f32") * operand(4, "f32"))
        values = []
        for i, at in enumerate(sums):
            printer = Printer(b, width)
            column, scale, *zero = (
                printer.load(
                    "f32" if n == "scales" else "i32", b.address(self.tensor[n], "i32", b.add(line, i * units))
                )
                for n in parts
            )
            operands = [printer.load("i32", at), self.zero, column, self.scale, scale]
            values.append(printer.value(result, [*operands, *zero, row_sum] if zero else operands))
        return values

    def _input(self, place: Place, line: str, gate: int, first: str) -> str:
        del place
        at = self.b.add(self.b.mul(self.p["hidden"], gate) if gate else "0", first)
        return self._load("f32", self.b.address(line, "f32", at), first)
