"""The contraction kernel: ``C[m, n] = epilogue(sum over k of A[m, k] * B[k, n])`` for each of several groups.

Rows of A come from a :class:`Source` (a matrix, the patches of an image, the image itself), read in place or through a
panel that the source fills; B is packed at load where it is constant, else as it is needed. Blocks follow the caches
(Goto and van de Geijn; Van Zee and van de Geijn, "BLIS", 2015): a block of rows of A stays in the second level while
panels of B pass through the first. The sums go in and out of registers every so many steps along k, which is also what
keeps them accurate.
"""

from __future__ import annotations

import hashlib

from accord.backends.cpu.codes import Codes, CodesTileCode
from accord.backends.cpu.dot import DotCode
from accord.backends.cpu.halves import PAIRS
from accord.backends.cpu.jit import machine
from accord.backends.cpu.lanes import Lanes, lanes_for
from accord.backends.cpu.panels import Source
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.store import Pattern
from accord.backends.cpu.tile import TileCode
from accord.backends.cpu.transpose import TransposeCode, block_width
from accord.expr.lang import Expr, bits, topological
from accord.record import record

__all__ = ["CALL_FIELDS", "CHUNK_FIELDS", "GemmCode", "Right"]

#: Words of a chunk of k in the parameters: first k, length, first piece, end of pieces.
CHUNK_FIELDS = 4
#: Words of a call of a tile on a staged image: bytes from a row's start, first k, length, segments.
CALL_FIELDS = 4


@record
class Right:
    """B.

    Attributes:
        dtype: Element type in memory.
        step: Along k: "1", "s", "taps" where k counts taps and then channels but taps are next to each other, or
            "packed" for panels that were made at load, or "codes" for panels of a weight of a few bits.
        column: From column to column: "1" or "s".
        codes: How such a weight is coded.
        halves: How panels hold numbers that are rounded to bf16 (:mod:`accord.backends.cpu.halves`), if they are.
    """

    dtype: str
    step: str
    column: str = "1"
    codes: Codes | None = None
    halves: str = ""


@record
class GemmCode(KernelCode):
    """Code of a contraction. Operands: A, B, the extras, C, scratch. For the parameters see :attr:`names`.

    Attributes:
        dtype: In which sums are made: "f32" or "f64"; or "i32", where elements of panels and tiles are the lanes of
            :mod:`accord.backends.cpu.lanes`, while chunks of k are counted in elements of A.
        vectors: Vectors of a tile's row.
        few: Columns, where they are so few that tiles have vectors along k (:mod:`accord.backends.cpu.dot`); else 0.
        flat: A tile of few columns is stored as one line.
        left: A.
        right: B.
        group_axes: Number of axes of the groups, each with strides of all operands.
        row_axes: Number of axes of the rows.
        extras: Operands 1, 2 ... of the expression.
        out: C.
        expr: What is stored: operand 0 is the sum. The operand after the extras, where integers are multiplied, is the
            sum of A's row.
        padding: Which of the extras is what an image of integers has around it, a single element.
    """

    dtype: str
    vectors: int
    few: int
    flat: bool
    left: Source
    right: Right
    group_axes: int
    row_axes: int
    extras: tuple[Pattern, ...]
    out: Pattern
    expr: Expr
    padding: int | None = None

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.dtype};{self.vectors};{self.few};{self.flat};{self.left};{self.right};{self.group_axes};"
            f"{self.row_axes};{self.extras};{self.out};{self.expr.key};{self.padding}"
        )
        return "gemm_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def names(self) -> tuple[str, ...]:
        """What the parameters mean, in order.

        After them, for a whole panel and for the last one, the height of the next tile for each number of rows that
        are left, below that of the highest; then chunks of k (or calls), then the source's pieces.

        ``block`` rows share a panel of A; ``task_groups``, ``task_rows`` and ``task_panels`` are a task; ``run`` is the
        greatest length of a sum in registers; ``parts`` is 1 where sums of several chunks are kept apart; ``*_at`` are
        offsets of areas of a thread's scratch memory of ``scratch`` bytes, which begins after ``shared`` bytes.
        ``tile`` and ``high`` are the tiles for a whole panel and their greatest height, ``tile.last`` and ``high.last``
        those of the last one.
        """
        operands: list[str] = []
        for name, p in self.operands.items():
            operands += [f"{name}.offset", *([f"{name}.column"] if p.column == "s" else [])]
            operands += {"u": [f"{name}.row"], "t": [f"{name}.row{i}" for i in range(self.row_axes)]}.get(p.row, [])
        groups = [f"group{i}.{what}" for i in range(self.group_axes) for what in ("size", "a", "b", *self.operands)]
        column = ("b.column",) if self.right.column == "s" else ()
        right = {
            "packed": (),
            "codes": ("b.panel",),
            "1": column,
            "s": ("b.k", *column),
            "taps": ("b.k", "b.taps", *column),
        }
        return (
            *"groups m n k task_groups task_rows task_panels row_tasks column_tasks block panels chunks".split(),
            *"run parts direct pack_b pitch shared scratch a_at b_at stage_at tables_at rows_at".split(),
            *"tile high tile.last high.last a.offset b.offset".split(),
            *self.left.names,
            *right[self.right.step],
            *self.transposes,
            *operands,
            *groups,
            *(f"rows{i}" for i in range(1, self.row_axes)),
        )

    @property
    def operands(self) -> dict[str, Pattern]:
        """C and the extras by name."""
        return {"c": self.out, **{f"e{i}": e for i, e in enumerate(self.extras)}}

    @property
    def transposes(self) -> dict[str, tuple[str, str, int]]:
        """Functions of :mod:`accord.backends.cpu.transpose` that it calls: element types and width by name."""
        memory = "u8" if self.out.dtype == "bool" else self.out.dtype
        panel = self.lanes.left
        found = {"a.transpose": (self.left.dtype, panel, block_width(panel))} if self.left.transposes else {}
        if self.right.step in ("1", "taps") and not self.few:
            found["b.transpose"] = (self.right.dtype, self.dtype, block_width(self.dtype))
        if self.out.column == "s" and self.out.row == "1":
            found["c.transpose"] = (memory, memory, machine().width(bits(self.dtype)))
        return found

    @property
    def needs(self) -> tuple[KernelCode, ...]:
        """The tiles for a whole panel, and transpositions."""
        pairs = self.right.halves == PAIRS
        tile = DotCode(self.dtype, self.few) if self.few else TileCode(self.dtype, self.vectors, pairs)
        coded = () if self.right.codes is None else (CodesTileCode(self.right.codes, self.vectors),)
        return (tile, *coded, *(TransposeCode(*block) for block in self.transposes.values()))

    @property
    def lanes(self) -> Lanes:
        """What an element of a tile is."""
        return lanes_for(self.dtype)

    @property
    def sums_rows(self) -> bool:
        """Whether the expression has sums of A's rows."""
        return any(e.op == "operand" and e.value == 1 + len(self.extras) for e in topological((self.expr,)))

    @property
    def apart(self) -> int:
        """Bytes of an element of C if its columns are apart; else 0."""
        return max(1, bits(self.out.dtype) // 8) if self.out.column == "s" else 0

    @property
    def tables(self) -> tuple[str, ...]:
        """Operands whose rows are looked up."""
        return tuple(name for name, p in self.operands.items() if p.row == "t")

    def module(self, name: str) -> str:
        """LLVM text."""
        from accord.backends.cpu.gemm_writer import GemmWriter  # what starts a stored kernel writes none

        return GemmWriter(self, name).write()
