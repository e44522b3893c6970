"""What follows a user's C function, as a function that it calls on each block of its result.

``void finish(const void *context, void *data, int64_t first, int64_t count)`` computes the elements
``[first, first + count)`` of the row-major output, which lie at ``data``, in place. The context is two pointers: the
caller's parameters and operands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.epilogue import Epilogue
from accord.expr.lang import bits
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.record import record

__all__ = ["FinishCode", "finish_words"]


@record
class FinishCode(KernelCode):
    """See the module's text.

    Attributes:
        epilogue: What is computed; its dtype is that of the root.
        rank: Of the output.
        words: Number of the first parameter: sizes of the output, then of each extra its offset and strides.
        extras: Operands of the extras.
    """

    epilogue: Epilogue
    rank: int
    words: int
    extras: tuple[int, ...]

    @property
    def symbol(self) -> str:
        """Name by content."""
        ends = [repr(e.access.strides[-1:]) for e in self.epilogue.extras]
        types = [e.dtype for e in self.epilogue.extras]
        text = f"{self.epilogue.expr.key};{ends};{types};{self.rank};{self.words};{self.extras}"
        return f"finish_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name, "ptr %context, ptr %data, i64 %begin, i64 %count")
        b.emit("%params = load ptr, ptr %context")
        table = b.op("getelementptr ptr, ptr %context, i64 1")
        b.emit(f"%operands = load ptr, ptr {table}")
        sizes = [b.param(self.words + a) for a in range(self.rank)]
        length = b.max(sizes[-1], 1) if sizes else "1"
        end = b.add("%begin", "%count")
        first = b.op(f"udiv i64 %begin, {length}")
        last = b.op(f"udiv i64 {b.add(end, b.sub(length, 1))}, {length}")
        extras = self._places(b)
        dtype = self.epilogue.expr.dtype
        width = machine().width(bits(dtype))
        with b.loop(first, last) as row:
            low = b.max(b.mul(row, length), "%begin")
            high = b.min(b.mul(b.add(row, 1), length), end)
            column = b.sub(low, b.mul(row, length))
            starts = self._starts(b, extras, sizes, row, column)
            count = b.sub(high, low)
            data = b.address("%data", dtype, b.sub(low, "%begin"))
            with b.loop(0, count, width) as i:
                left = b.min(b.sub(count, i), width)
                p = Printer(b, width)
                values = [p.load_masked(dtype, b.address(data, dtype, i), left)]
                for extra, (start, inner) in zip(self.epilogue.extras, starts, strict=True):
                    if inner:
                        values.append(p.load_masked(extra.dtype, b.address(start, extra.dtype, i), left))
                    else:
                        one = Printer(b, 1).load(extra.dtype, start)
                        values.append(p.splat(extra.dtype, one, width))
                p.store_masked(dtype, p.value(self.epilogue.expr, values), b.address(data, dtype, i), left)
        return b.module()

    def _places(self, b: Builder) -> list[tuple[str, str, list[str]]]:
        """Address, offset and strides of each extra."""
        found, word = [], self.words + self.rank
        for number in self.extras:
            offset, *strides = (b.param(word + k) for k in range(1 + self.rank))
            found.append((b.operand(number), offset, strides))
            word += 1 + self.rank
        return found

    def _starts(
        self, b: Builder, extras: Sequence[tuple[str, str, list[str]]], sizes: Sequence[str], row: str, column: str
    ) -> list[tuple[str, bool]]:
        """Where each extra starts in a row, and whether it moves along it."""
        index: list[str] = []
        rest = row
        for a in range(self.rank - 2, -1, -1):
            rest, here = b.divmod(rest, b.max(sizes[a], 1)) if a else ("0", rest)
            index.insert(0, here)
        starts = []
        for extra, (base, offset, strides) in zip(self.epilogue.extras, extras, strict=True):
            at = offset
            for i, s in zip(index, strides, strict=False):
                at = b.add(at, b.mul(i, s))
            inner = bool(extra.access.strides) and extra.access.strides[-1] == 1
            starts.append((b.address(base, extra.dtype, b.add(at, column) if inner else at), inner))
        return starts


def finish_words(epilogue: Epilogue, shape: Shape, dtype: str) -> list[DimLike] | Reason:
    """The parameters of :class:`FinishCode`, or why it cannot compute an epilogue."""
    if epilogue.expr.dtype != dtype:
        return Reason(f"what follows gives {epilogue.expr.dtype}, and the C function's blocks are {dtype}")
    words: list[DimLike] = list(shape)
    for extra in epilogue.extras:
        if extra.access.strides and extra.access.strides[-1] not in (0, 1):
            return Reason("an operand of what follows does not lie in rows")
        words += [extra.access.offset, *extra.access.strides]
    return words
