"""Movement along the time axis of sequences of different lengths."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.loops.nest import merge_axes
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import bits
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["reverse_phase"]

#: Bytes that a task should move at least.
_TASK_BYTES = 65536


@record
class ReverseCode(KernelCode):
    """``out[t, b, ...] = x[length[b] - 1 - t if t < length[b] else t, b, ...]``; a length that does not fit is refused.

    Parameters: steps, batch, rows of a task, rows, offset and stride of the lengths, offsets of x and out, their
    strides along time and batch, then for each further axis its extent and both strides. A row is one (t, b).

    Attributes:
        word: Unsigned integer type of an element's size.
        axes: Number of further axes, at least one.
        unit: Both operands' elements follow each other along the last of them.
    """

    word: str
    axes: int
    unit: bool
    checks = True

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"reverse_{self.word}_{self.axes}{'u' if self.unit else ''}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        steps, batch, block, rows, lengths_at, lengths_step, x_at, out_at = (b.param(i) for i in range(8))
        x_time, out_time, x_batch, out_batch = (b.param(8 + i) for i in range(4))
        axes = [tuple(b.param(12 + 3 * a + i) for i in range(3)) for a in range(self.axes)]
        refused = b.op(f"getelementptr i64, ptr %params, i64 {12 + 3 * self.axes}")
        x = b.address(b.operand(0), self.word, x_at)
        lengths = b.address(b.operand(1), "i64", lengths_at)
        out = b.address(b.operand(2), self.word, out_at)
        with b.loop("%first", "%last") as task:
            first = b.mul(task, block)
            with b.loop(first, b.min(b.add(first, block), rows)) as row:
                t, entry = b.divmod(row, batch)
                length = b.op(f"load i64, ptr {b.address(lengths, 'i64', b.mul(entry, lengths_step))}")
                limited = b.max(b.min(length, steps), 0)
                wrong = b.compare("ne", limited, length)
                b.branch(wrong, functools.partial(b.emit, f"store i64 1, ptr {refused}"))
                mirrored = b.sub(b.sub(limited, 1), t)
                source = b.op(f"select i1 {b.compare('slt', t, limited)}, i64 {mirrored}, i64 {t}")
                origin = b.add(b.mul(source, x_time), b.mul(entry, x_batch))
                target = b.add(b.mul(t, out_time), b.mul(entry, out_batch))
                self._copy(b, axes, b.address(x, self.word, origin), b.address(out, self.word, target))
        return b.module()

    def _copy(self, b: Builder, axes: Sequence[tuple[str, ...]], source: str, target: str) -> None:
        extent, source_step, target_step = axes[0]
        if len(axes) == 1 and self.unit:
            b.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
            size = b.mul(extent, bits(self.word) // 8)
            b.emit(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")
            return
        with b.loop(0, extent) as i:
            here = b.address(source, self.word, b.mul(i, source_step))
            there = b.address(target, self.word, b.mul(i, target_step))
            if len(axes) > 1:
                self._copy(b, axes[1:], here, there)
            else:
                one = Printer(b, 1)
                one.store(self.word, one.load(self.word, here), there)


def reverse_phase(word: str, shape: Shape, time_axis: int, x: Access, lengths: Access, out: Access) -> Phase:
    """A phase for ReverseSequence; its operands are x, the lengths and the output.

    Args:
        word: Unsigned integer type of an element's size.
        shape: Of x; the first two axes are time and batch.
        time_axis: Which of them is time.
        x: How x lies.
        lengths: How the int64 lengths lie.
        out: How the output lies.
    """
    batch_axis = 1 - time_axis
    rest = [Access(a.strides[2:], 0) for a in (x, out)]
    extents, accesses, _ = merge_axes(shape[2:], rest)
    if not extents:
        extents, accesses = (1,), [Access((1,)), Access((1,))]
    unit = all(a.strides[-1] == 1 for a in accesses)
    dims: list[DimLike] = [
        shape[time_axis],
        shape[batch_axis],
        lengths.offset,
        lengths.strides[0],
        x.offset,
        out.offset,
    ]
    dims += [x.strides[time_axis], out.strides[time_axis], x.strides[batch_axis], out.strides[batch_axis]]
    for axis, extent in enumerate(extents):
        dims += [extent, *(a.strides[axis] for a in accesses)]
    code = ReverseCode(word, len(extents), unit)
    return Phase(code, (0, 1, 2), tuple(dims), functools.partial(_launch, bits(word) // 8))


def _launch(itemsize: int, sizes: Sequence[int]) -> Launch:
    steps, batch, *rest = sizes
    row = itemsize
    for extent in rest[8::3]:
        row *= extent
    rows = steps * batch
    block = max(1, _TASK_BYTES // max(1, row))
    return Launch((steps, batch, block, rows, *rest), -(-rows // block) if row else 0)
