"""Tables of taps as a Triton kernel, with the expressions of the CPU's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from accord.backends.cpu.taptables import Positions, Taps, tap_count, tap_words
from accord.backends.cpu.taptables_writer import tap
from accord.backends.cuda.code import KernelText
from accord.backends.cuda.lines import HEAD, WAIT, Code
from accord.backends.cuda.printer import TYPES, TritonPrinter
from accord.expr.lang import operand
from accord.record import record

__all__ = ["TableKernel", "table_kernel"]


@record
class TableKernel(KernelText):
    """The Triton text that makes the table of a resampled axis, with the expressions of the CPU's.

    Parameters: pointers of indices (int64) and, if there are any, weights; positions, taps of one, and the bits of six
    numbers (:func:`~accord.backends.cpu.taptables.tap_words`). Compile-time: BLOCK.

    Attributes:
        taps: What is written.
        dtype: Of the weights.
    """

    taps: Taps
    dtype: str

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"taps_{hashlib.sha256(f'{self.taps};{self.dtype}'.encode()).hexdigest()[:24]}"

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of indices and weights."""
        return ("i64", self.dtype) if self.taps.weighted else ("i64",)

    def text(self) -> str:
        """The module."""
        code, taps = Code(), self.taps
        index, weight = tap(taps)
        code("x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "some = x < positions")
        code(*(f"v{i} = (w{i} + tl.zeros([BLOCK], tl.int64)).to(tl.float64, bitcast=True)" for i in range(6)))
        names = ["x.to(tl.float64)", *(f"v{i}" for i in range(6))]
        code(f"v = {names[0]}")
        names[0] = "v"

        def each(body: Callable[[], None]) -> None:
            with code.indented("for k in range(count):"):
                code("tap = (k + tl.zeros([BLOCK], tl.int32)).to(tl.float64)")
                body()

        def first() -> None:
            value = TritonPrinter(code, "a").value(index, [*names, "tap"])
            code(f"tl.store(indices + x * count + k, {value}, mask=some)")
            if weight is not None and taps.normal:
                code(f"total += {TritonPrinter(code, 'b').value(weight, [*names, 'tap'])}")

        def second() -> None:
            assert weight is not None
            printer = TritonPrinter(code, "c")
            value = printer.value(weight / operand(8, "f64") if taps.normal else weight, [*names, "tap", "total"])
            code(f"tl.store(weights + x * count + k, {value}.to({TYPES[self.dtype]}), mask=some)")

        code("total = tl.zeros([BLOCK], tl.float64)", WAIT)
        each(first)
        if weight is not None:
            each(second)
        memory = ["indices", *(["weights"] if weight is not None else [])]
        words = [f"w{i}" for i in range(6)]
        return HEAD + code.function(self.symbol, [*memory, "positions", "count", *words, "BLOCK: tl.constexpr"])


def table_kernel(
    taps: Taps, positions: Positions, dtype: str, source: int, target: int, shift: int = 0
) -> tuple[TableKernel, tuple[int, ...]]:
    """The kernel for a table, and its integer parameters.

    Args:
        taps: What is written.
        positions: Where the elements lie.
        dtype: Of the weights.
        source: Length of the axis in the source.
        target: Positions.
        shift: Elements in front, for positions of mode "shift".
    """
    count = tap_count(taps, positions, source, target)
    assert isinstance(count, int)
    return TableKernel(taps, dtype), (target, count, *tap_words(taps, positions, source, target, shift))
