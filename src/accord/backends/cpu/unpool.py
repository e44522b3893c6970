"""Putting elements back into an image: by index (MaxUnpool), and as sums of columns (Col2Im). One element at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from accord.backends.cpu.images import Outside, Params, accumulator
from accord.backends.cpu.llvm import Builder, scalar
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.images import Axis
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import cast, const, operand
from accord.expr.math import expand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["FoldCode", "UnpoolCode", "fold_phase", "unpool_phase"]


def _moved(b: Builder, dtype: str, base: str, strides: Sequence[str], index: Sequence[str]) -> str:
    for stride, i in zip(strides, index, strict=True):
        base = b.address(base, dtype, b.mul(i, stride))
    return base


@record
class UnpoolCode(KernelCode):
    """Operands: elements, indices, output. A task is one channel of one image.

    Parameters: sizes of the input, sizes of the image that indices count, sizes of the output; then offset and strides
    of each operand. An index outside of the image is refused.
    """

    word: str
    rank: int
    checks = True

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"unpool_{self.word}_{self.rank}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b, word, axes = Builder(name), self.word, self.rank + 2
        params = Params(b)
        sizes, whole, out = (params.take(axes) for _ in range(3))
        places = []
        for k, dtype in enumerate((word, "i64", word)):
            offset, *strides = params.take(1 + axes)
            places.append((b.address(b.operand(k), dtype, offset), strides))
        refusal = b.op(f"getelementptr i64, ptr %params, i64 {params.index}")
        (source, source_strides), (indices, index_strides), (target, target_strides) = places
        total = functools.reduce(b.mul, whole)

        def put(number: str, value: str) -> None:
            rest, position = number, []
            for size in reversed(whole[1:]):
                rest, at = b.divmod(rest, size)
                position.append(at)
            position = [*position, rest][::-1]
            inside = "true"
            for at, size in zip(position, out, strict=True):
                inside = b.op(f"and i1 {inside}, {b.compare('slt', at, size)}")
            with b.when(inside):
                Printer(b, 1).store(word, value, _moved(b, word, target, target_strides, position))

        def element(index: list[str]) -> None:
            number = Printer(b, 1).load("i64", _moved(b, "i64", indices, index_strides, index))
            value = Printer(b, 1).load(word, _moved(b, word, source, source_strides, index))
            b.branch(
                b.compare("ult", number, total),
                functools.partial(put, number, value),
                functools.partial(b.emit, f"store i64 1, ptr {refusal}"),
            )

        def nested(index: list[str]) -> None:
            if len(index) == axes:
                element(index)
                return
            with b.loop(0, sizes[len(index)]) as i:
                nested([*index, i])

        with b.loop("%first", "%last") as task:
            nested(list(b.divmod(task, sizes[1])))
        return b.module()


def unpool_phase(
    word: str,
    sizes: Shape,
    whole: Shape,
    out: Shape,
    accesses: tuple[Access, Access, Access],
    operands: tuple[int, int, int],
) -> Phase:
    """A phase that puts elements where their indices say; the rest of the output is left as it is.

    Args:
        word: Element type.
        sizes: Of elements and indices.
        whole: Of the image that indices count.
        out: Of the output; what lies beyond it is left out.
        accesses: Of elements, indices, output.
        operands: Elements, indices, output.
    """
    dims = [*sizes, *whole, *out]
    for a in accesses:
        dims += [a.offset, *a.strides]
    return Phase(UnpoolCode(word, len(sizes) - 2), operands, tuple(dims), _launch_planes)


def _launch_planes(sizes: Sequence[int]) -> Launch:
    return Launch(tuple(sizes), sizes[0] * sizes[1])


@record
class FoldCode(KernelCode):
    """``out[n, c, o] = sum over the columns that hold it``. Operands: columns [N, C * taps, positions], image.

    Parameters: images, channels; for each spatial axis its :class:`~accord.backends.cpu.windows.Axis`, where "out" is
    the number of positions and "size" that of the image; offset and strides of columns and image. A task is one row.
    """

    dtype: str
    rank: int

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"fold_{self.dtype}_{self.rank}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b, dtype, acc = Builder(name), self.dtype, accumulator(self.dtype)
        params = Params(b)
        channels = params.take(2)[1]
        axes = [params.take(6) for _ in range(self.rank)]
        offset, *column = params.take(4)
        columns = b.address(b.operand(0), dtype, offset)
        offset, *strides = params.take(3 + self.rank)
        image = b.address(b.operand(1), dtype, offset)
        taps = functools.reduce(b.mul, (a[2] for a in axes))
        narrow = expand(cast(operand(0, acc), dtype))
        with b.loop("%first", "%last") as task:
            rest, position = task, []
            for _, size, *_ in reversed(axes[:-1]):
                rest, at = b.divmod(rest, size)
                position.append(at)
            n, c = b.divmod(rest, channels)
            row = _moved(b, dtype, image, strides[:-1], [n, c, *reversed(position)])
            plane = _moved(b, dtype, columns, column[:2], [n, b.mul(c, taps)])
            with b.loop(0, axes[-1][1]) as x:
                total = self._sum(b, axes, [*reversed(position), x], plane, column, (acc, "0", "0", "true", _zero(acc)))
                value = Printer(b, 1).value(narrow, [total])
                Printer(b, 1).store(dtype, value, _moved(b, dtype, row, strides[-1:], [x]))
        return b.module()

    def _sum(
        self,
        b: Builder,
        axes: Sequence[Sequence[str]],
        position: Sequence[str],
        plane: str,
        column: Sequence[str],
        state: tuple[str, str, str, str, str],
    ) -> str:
        """Loops over the taps of the axes that are left; ``state``: type, tap, place, whether inside, sum so far."""
        dtype = self.dtype
        acc, tap, place, inside, total = state
        if not axes:
            address = _moved(b, dtype, plane, column[1:], [tap, place])
            x = Printer(b, 1).load(dtype, Outside(inside, const(0.0, dtype)).instead(b, address))
            return b.op(f"fadd {scalar(acc)} {total}, {Printer(b, 1).value(expand(cast(operand(0, dtype), acc)), [x])}")
        count, _, kernel, stride, pad, dilation = axes[0]
        with b.loop_carrying(0, kernel, 1, ((scalar(acc), total),)) as (k, sums, following):
            start = b.sub(b.add(position[0], pad), b.mul(k, dilation))
            index = b.op(f"udiv i64 {b.max(start, 0)}, {stride}")
            here = b.op(f"and i1 {inside}, {b.compare('eq', b.mul(index, stride), start)}")
            here = b.op(f"and i1 {here}, {b.compare('slt', index, count)}")
            after = (acc, b.add(b.mul(tap, kernel), k), b.add(b.mul(place, count), index), here, sums[0])
            following.append(self._sum(b, axes[1:], position[1:], plane, column, after))
        return following[0]


def _zero(acc: str) -> str:
    return Printer(Builder(""), 1).value(const(0.0, acc), [])


def fold_phase(
    dtype: str, images: DimLike, channels: DimLike, axes: Sequence[Axis], accesses: tuple[Access, Access]
) -> Phase:
    """A phase that adds columns back into an image.

    Args:
        dtype: A float.
        images: Batch size.
        channels: Of the image.
        axes: "out" is the number of positions, "size" that of the image.
        accesses: Of the columns [N, C * taps, positions] and of the image.
    """
    dims: list[DimLike] = [images, channels]
    for a in axes:
        dims += [a.out, a.size, a.kernel, a.stride, a.pad, a.dilation]
    for access in accesses:
        dims += [access.offset, *access.strides]
    rows = D.product([images, channels, *(a.size for a in axes[:-1])])
    return Phase(FoldCode(dtype, len(axes)), (0, 1), (*dims, rows), _launch_rows)


def _launch_rows(sizes: Sequence[int]) -> Launch:
    return Launch(tuple(sizes[:-1]), sizes[-1])
