"""Matrix products: batched, broadcast, with any strides of A and rows or columns of B contiguous.

A task is one panel of columns of one matrix of the batch. If there are enough rows to pay for it, the panel of B is
first copied to scratch memory where its lines follow each other.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.nest import merge_axes
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.tile import VECTORS, Epilogue, emit_rows, tile_functions
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import bits
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access

__all__ = ["MatMulCode", "matmul_phase", "panel_bytes"]

#: From this many rows on a panel of B is packed.
_PACK_ROWS = 24


@dataclass(frozen=True)
class MatMulCode(KernelCode):
    """Parameters: m, n, k; A's row and column strides; B's; panels; then for each batch axis its extent and the strides
    of A, B and C. Operands: A, B, the extras, C, scratch.
    """

    dtype: str
    batch_axes: int
    unit_columns: bool
    epilogue: Epilogue

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = f"{self.dtype};{self.batch_axes};{self.unit_columns};{self.epilogue.key}"
        return "matmul_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        dtype = self.dtype
        width = machine().width(bits(dtype))
        wide = VECTORS[0] * width
        m, n, k, a_row, a_col, b_row, b_col, panels = (b.param(i) for i in range(8))
        extras = self.epilogue.extras
        left, right = b.operand(0), b.operand(1)
        extra_at = [b.operand(2 + i) for i in range(len(extras))]
        out, scratch = b.operand(2 + len(extras)), b.operand(3 + len(extras))
        panel = b.op(f"getelementptr i8, ptr {scratch}, i64 {b.mul('%thread', b.param(8))}")
        packs = b.compare("sge", m, _PACK_ROWS) if self.unit_columns else "true"
        with b.loop("%first", "%last") as task:
            rest, position = b.divmod(task, panels)
            a, bb, c = left, right, out
            tile_extras = list(extra_at)
            for axis in reversed(range(self.batch_axes)):
                at = 9 + 4 * axis
                extent, step_a, step_b, step_c = (b.param(at + i) for i in range(4))
                rest, index = b.divmod(rest, extent)
                a = b.address(a, dtype, b.mul(index, step_a))
                bb = b.address(bb, dtype, b.mul(index, step_b))
                c = b.address(c, dtype, b.mul(index, step_c))
                tile_extras = [
                    b.address(t, e.dtype, b.mul(index, step_c)) if e.kind == "tile" else t
                    for t, e in zip(tile_extras, extras, strict=True)
                ]
            column = b.mul(position, wide)
            columns = b.min(b.sub(n, column), wide)
            source = b.address(bb, dtype, b.mul(column, b_col))
            placed = [
                (b.address(t, e.dtype, column) if e.kind in ("column", "tile") else t, n)
                for t, e in zip(tile_extras, extras, strict=True)
            ]
            arguments = {
                "rows": m,
                "columns": columns,
                "a": a,
                "a_row": a_row,
                "a_col": a_col,
                "k": k,
                "c": b.address(c, dtype, column),
                "c_row": n,
            }

            def packed(
                source: str = source,
                columns: str = columns,
                arguments: dict[str, str] = arguments,
                placed: list[tuple[str, str]] = placed,
            ) -> None:
                _pack(b, dtype, width, source, b_row, None if self.unit_columns else b_col, k, columns, panel)
                emit_rows(b, dtype, width, self.epilogue, right=panel, right_row=wide, extras=placed, **arguments)

            def direct(
                source: str = source,
                arguments: dict[str, str] = arguments,
                placed: list[tuple[str, str]] = placed,
            ) -> None:
                emit_rows(b, dtype, width, self.epilogue, right=source, right_row=b_row, extras=placed, **arguments)

            if self.unit_columns:
                b.branch(packs, packed, direct)
            else:
                packed()
        return b.module(*tile_functions(dtype, width, self.epilogue))


def _pack(
    b: Builder,
    dtype: str,
    width: int,
    source: str,
    row: str,
    column: str | None,
    k: str,
    columns: str,
    panel: str,
) -> None:
    """Copy ``k`` lines of ``columns`` elements to ``panel``, whose lines have the widest tile's length.

    ``column`` is the distance of neighbouring columns, None for 1.
    """
    wide = VECTORS[0] * width
    printer = Printer(b, width)
    with b.loop(0, k) as i:
        line = b.address(source, dtype, b.mul(i, row))
        target = b.address(panel, dtype, b.mul(i, wide))
        if column is not None:
            one = Printer(b, 1)
            with b.loop(0, columns) as j:
                value = one.load(dtype, b.address(line, dtype, b.mul(j, column)))
                one.store(dtype, value, b.address(target, dtype, j))
        else:
            full = b.mul(b.op(f"sdiv i64 {columns}, {width}"), width)
            with b.loop(0, full, width) as j:
                printer.store(dtype, printer.load(dtype, b.address(line, dtype, j)), b.address(target, dtype, j))
            left = b.sub(columns, full)
            value = printer.load_masked(dtype, b.address(line, dtype, full), left)
            printer.store_masked(dtype, value, b.address(target, dtype, full), left)


def panel_bytes(k: DimLike, dtype: str) -> DimLike:
    """Scratch memory that one thread needs for a packed panel of length ``k``."""
    return k * (VECTORS[0] * machine().width(bits(dtype)) * bits(dtype) // 8)


def matmul_phase(
    dtype: str,
    m: DimLike,
    n: DimLike,
    k: DimLike,
    a: tuple[DimLike, DimLike],
    b: tuple[DimLike, DimLike],
    batch: Shape,
    batch_strides: tuple[Sequence[DimLike], Sequence[DimLike], Sequence[DimLike]],
    epilogue: Epilogue,
    operands: tuple[int, ...],
) -> Phase:
    """A phase for a batch of products.

    Args:
        dtype: "f32" or "f64".
        m: Rows of A and C.
        n: Columns of B and C.
        k: Columns of A and rows of B.
        a: A's strides along m and k.
        b: B's strides along k and n.
        batch: Batch axes.
        batch_strides: Of A, B and C along the batch axes.
        epilogue: What is stored.
        operands: A, B, the epilogue's extras, C, scratch.
    """
    sizes, accesses, _ = merge_axes(batch, [Access(tuple(s)) for s in batch_strides])
    code = MatMulCode(dtype, len(sizes), b[1] == 1, epilogue)
    dims: list[DimLike] = [m, n, k, *a, *b, panel_bytes(k, dtype)]
    for axis, size in enumerate(sizes):
        dims += [size, *(x.strides[axis] for x in accesses)]
    wide = VECTORS[0] * machine().width(bits(dtype))
    return Phase(code, operands, tuple(dims), functools.partial(_launch, wide))


def _launch(wide: int, sizes: Sequence[int]) -> Launch:
    m, n, k, a_row, a_col, b_row, b_col, scratch, *batch = sizes
    panels = -(-n // wide)
    tasks = panels if m else 0
    for extent in batch[::4]:
        tasks *= extent
    return Launch((m, n, k, a_row, a_col, b_row, b_col, panels, scratch, *batch), tasks)
