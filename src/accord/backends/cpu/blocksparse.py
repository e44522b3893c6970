"""A sparse matrix of dense blocks times a dense one; a block of one element is the CSR format.

A task has a panel of columns and some rows of one row of blocks, whose sums stay in registers while its blocks are
walked: a line of the dense matrix is loaded once for all rows of a block, which is what blocks gain. Tasks of a panel
follow each other, so the part of the dense matrix that they read stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch
from accord.expr.lang import bits, operand
from accord.expr.primitives import fma
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["BlockSparseCode", "block_launch", "block_tile"]

#: Most vectors of columns in a panel.
_MOST_VECTORS = 8


def block_tile(dtype: str, rows: int, columns: DimLike) -> tuple[int, int]:
    """Rows of a block that one task has, and vectors in its panel, whose sums have to fit the registers.

    Of the numbers of vectors that do, the one whose panels cover the columns with the fewest instructions: a multiply
    and add for each sum, two of which start in a cycle, as do two loads.

    Args:
        dtype: "f32" or "f64".
        rows: Of a block.
        columns: Of the dense matrix; where they are not known, panels are as wide as fits.
    """
    wide = machine().vector_bits == 512
    most = 16 if wide else 8
    height = max(h for h in range(1, most + 1) if rows % h == 0)
    # besides the sums: a line of the dense matrix, and an element in all lanes
    vectors = max(1, min(_MOST_VECTORS, ((32 if wide else 16) - 2) // (height + 1)))
    if not isinstance(columns, int):
        return height, vectors
    total = max(1, -(-columns // machine().width(bits(dtype))))

    def work(v: int) -> int:
        return -(-total // v) * max(height * v, height + v)

    return height, min(range(vectors, 0, -1), key=work)


@record
class BlockSparseCode(KernelCode):
    """Operands: blocks, their columns (i64), starts of rows (i64), the dense matrix, the result, all row-major.

    Parameters: columns of the dense matrix, its rows, columns of a block, columns of blocks, blocks, rows of blocks,
    tasks of a row of blocks, rows of the result.

    Attributes:
        dtype: "f32" or "f64".
        rows: Rows of a block.
        height: Rows of a block that a task has.
        vectors: Vectors in a panel.
        single: A block has one column.
    """

    dtype: str
    rows: int
    height: int
    vectors: int
    single: bool

    checks = True

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"block_sparse_{self.dtype}_{self.rows}_{self.height}_{self.vectors}_{self.single}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        self._width = machine().width(bits(self.dtype))
        names = ("n", "k", "across", "block_columns", "blocks", "block_rows", "parts", "rows")
        p = {what: b.param(i) for i, what in enumerate(names)}
        # of a matrix without columns no block is read
        p["blocks"] = b.op(f"select i1 {b.compare('eq', p['k'], 0)}, i64 0, i64 {p['blocks']}")
        p["refusal"] = b.address("%params", "i64", len(names))
        operands = [b.operand(i) for i in range(5)]
        panel = self.vectors * self._width
        with b.loop("%first", "%last") as task:
            rest, part = b.divmod(task, p["parts"])
            number, row = b.divmod(rest, p["block_rows"])
            column = b.mul(number, panel)
            count = b.sub(p["n"], column)
            place = (row, b.mul(part, self.height), column)
            whole = b.compare("sge", count, panel)
            b.branch(
                whole,
                lambda: self._tile(b, p, operands, place, None),
                lambda: self._tile(b, p, operands, place, count),
            )
        return b.module()

    def _tile(
        self, b: Builder, p: dict[str, str], operands: Sequence[str], place: tuple[str, str, str], count: str | None
    ) -> None:
        """The sums of a task; ``count`` columns where the panel is not whole."""
        blocks, columns, starts, dense, out = operands
        row, part, column = place
        low, high = (self._start(b, p, b.address(starts, "i64", b.add(row, i))) for i in (0, 1))
        sums = tuple((vector(self.dtype, self._width), self._zero) for _ in range(self.height * self.vectors))
        with b.loop_carrying(low, high, 1, sums) as (e, carried, following):
            given = b.op(f"load i64, ptr {b.address(columns, 'i64', e)}")
            inside = b.compare("ult", given, p["block_columns"])
            b.branch(inside, lambda: None, lambda: b.emit(f"store i64 1, ptr {p['refusal']}"))
            first = b.mul(b.op(f"select i1 {inside}, i64 {given}, i64 0"), p["across"])
            line = b.address(dense, self.dtype, b.add(b.mul(first, p["n"]), column))
            at = b.mul(b.add(b.mul(e, self.rows), part), p["across"])
            block = b.address(blocks, self.dtype, at)
            if self.single:
                following.extend(self._products(b, p, block, line, "0", carried, count))
            else:
                depth = b.min(p["across"], b.sub(p["k"], first))
                start = tuple(zip((t for t, _ in sums), carried, strict=True))
                with b.loop_carrying(0, depth, 1, start) as (k, inner, later):
                    here = b.address(line, self.dtype, b.mul(k, p["n"]))
                    later.extend(self._products(b, p, block, here, k, inner, count))
                following.extend(later)
        first_row = b.add(b.mul(row, self.rows), part)
        target = b.address(out, self.dtype, b.add(b.mul(first_row, p["n"]), column))
        left = b.sub(p["rows"], first_row)
        for r in range(self.height):
            own = following[r * self.vectors : (r + 1) * self.vectors]
            here = b.address(target, self.dtype, b.mul(p["n"], r))
            with b.when(b.compare("sgt", left, r)):
                for v, value in enumerate(own):
                    self._store(b, value, here, v, count)

    def _start(self, b: Builder, p: dict[str, str], address: str) -> str:
        """The start of a row; one that is no place among the blocks is refused."""
        given = b.op(f"load i64, ptr {address}")
        wrong = b.compare("ugt", given, p["blocks"])
        with b.when(wrong):
            b.emit(f"store i64 1, ptr {p['refusal']}")
        return b.op(f"select i1 {wrong}, i64 {p['blocks']}, i64 {given}")

    @property
    def _zero(self) -> str:
        return "zeroinitializer" if self._width > 1 else "0.0"

    def _products(
        self, b: Builder, p: dict[str, str], block: str, line: str, k: str, sums: Sequence[str], count: str | None
    ) -> list[str]:
        """The sums after one column of a block."""
        w = self._width
        loaded = []
        for v in range(self.vectors):
            at = b.address(line, self.dtype, v * w)
            if count is None:
                loaded.append(Printer(b, w).load(self.dtype, at))
            else:
                loaded.append(Printer(b, w).load_masked(self.dtype, at, _left(b, count, v, w)))
        following = []
        total = fma(operand(0, self.dtype), operand(1, self.dtype), operand(2, self.dtype))
        for r in range(self.height):
            at = b.address(block, self.dtype, b.add(b.mul(p["across"], r), k))
            element = b.op(f"load {scalar(self.dtype)}, ptr {at}")
            spread = Printer(b, w).splat(self.dtype, element, w)
            for v, x in enumerate(loaded):
                following.append(Printer(b, w).value(total, [spread, x, sums[r * self.vectors + v]]))
        return following

    def _store(self, b: Builder, value: str, line: str, v: int, count: str | None) -> None:
        w = self._width
        at = b.address(line, self.dtype, v * w)
        if count is None:
            Printer(b, w).store(self.dtype, value, at)
        else:
            Printer(b, w).store_masked(self.dtype, value, at, _left(b, count, v, w))


def _left(b: Builder, count: str, v: int, width: int) -> str:
    """Elements of vector ``v`` that there are."""
    return b.max(b.min(b.sub(count, v * width), width), 0)


def block_launch(code: BlockSparseCode, sizes: Sequence[int]) -> Launch:
    """Sizes: columns and rows of the dense matrix, columns of a block, blocks, rows of blocks, rows of the result."""
    n, k, across, blocks, block_rows, rows = sizes
    parts = code.rows // code.height
    panel = code.vectors * machine().width(bits(code.dtype))
    params = (n, k, across, -(-k // max(1, across)), blocks, block_rows, parts, rows)
    return Launch(params, -(-n // panel) * block_rows * parts)
