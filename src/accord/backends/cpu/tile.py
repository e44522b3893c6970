"""The register tile that every contraction ends in: ``C[m, n] = epilogue(sum over k of A[k, m] * B[k, n])``.

A tile has ``rows`` rows of C and ``vectors`` vectors of columns; its sums stay in registers for the whole length of k.
One element of A is broadcast against each vector of B (Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.expr.lang import Expr
from accord.expr.math import expand

__all__ = ["ROWS", "VECTORS", "Epilogue", "Extra", "emit_rows", "tile_functions"]

#: Tile heights, highest first; a block of rows is cut greedily. 8 rows x 3 vectors use 24 of 32 registers.
ROWS = (8, 4, 2, 1)
VECTORS = (3, 2, 1)


@dataclass(frozen=True, slots=True)
class Extra:
    """An operand of the epilogue: "row" has one element a row of C, "column" one a column, "tile" one for each."""

    kind: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What is stored: ``expr`` of the sum (operand 0) and the extras (operands 1...)."""

    expr: Expr
    extras: tuple[Extra, ...] = ()

    @property
    def key(self) -> str:
        """A text for the code's name."""
        return f"{self.expr.key};{self.extras}"


def _arguments(epilogue: Epilogue) -> str:
    extras = "".join(f", ptr %e{i}, i64 %es{i}" for i in range(len(epilogue.extras)))
    return (
        "ptr noalias readonly %a, i64 %a_row, i64 %a_col, ptr noalias readonly %b, i64 %b_row, i64 %k, "
        f"ptr %c, i64 %c_row, i64 %columns{extras}"
    )


def _name(rows: int, vectors: int, masked: bool) -> str:
    return f"tile_{rows}x{vectors}{'m' if masked else ''}"


def tile_functions(dtype: str, width: int, epilogue: Epilogue) -> list[Builder]:
    """Functions for every height and width, with whole vectors of B and with a masked last one."""
    return [
        _tile(dtype, width, rows, vectors, masked, epilogue)
        for rows in ROWS
        for vectors in VECTORS
        for masked in (False, True)
    ]


def _tile(dtype: str, width: int, rows: int, vectors: int, masked: bool, epilogue: Epilogue) -> Builder:
    b = Builder(_name(rows, vectors, masked), _arguments(epilogue), internal=True)
    type_ = vector(dtype, width)
    printer = Printer(b, width)
    b.declare(f"declare {type_} @llvm.fma.{_suffix(dtype, width)}({type_}, {type_}, {type_})")
    last = b.sub("%columns", (vectors - 1) * width)
    row_address = [b.address("%a", dtype, b.mul(r, "%a_row") if r else 0) for r in range(rows)]
    zero = tuple((type_, "zeroinitializer") for _ in range(rows * vectors))
    with b.loop_carrying(0, "%k", 1, zero) as (i, sums, following):
        line = b.address("%b", dtype, b.mul(i, "%b_row"))
        columns = []
        for v in range(vectors):
            at = b.address(line, dtype, v * width)
            if masked and v == vectors - 1:
                columns.append(printer.load_masked(dtype, at, last))
            else:
                columns.append(printer.load(dtype, at))
        step = b.mul(i, "%a_col")
        for r in range(rows):
            element = b.op(f"load {scalar(dtype)}, ptr {b.address(row_address[r], dtype, step)}")
            spread = printer.splat(dtype, element, width)
            for v in range(vectors):
                following.append(
                    b.op(
                        f"call {type_} @llvm.fma.{_suffix(dtype, width)}"
                        f"({type_} {spread}, {type_} {columns[v]}, {type_} {sums[r * vectors + v]})"
                    )
                )
    final = expand(epilogue.expr)
    for r in range(rows):
        target = b.address("%c", dtype, b.mul(r, "%c_row") if r else 0)
        for v in range(vectors):
            # each tile element has its own operands, so values are not shared between printers
            edge = masked and v == vectors - 1
            values = [following[r * vectors + v]]
            for e, extra in enumerate(epilogue.extras):
                values.append(_extra(b, extra, e, r, v * width, width, last if edge else None))
            result = Printer(b, width).value(final, values)
            at = b.address(target, dtype, v * width)
            if edge:
                printer.store_masked(dtype, result, at, last)
            else:
                printer.store(dtype, result, at)
    return b


def _extra(b: Builder, extra: Extra, e: int, row: int, column: int, width: int, count: str | None) -> str:
    one = Printer(b, 1)
    many = Printer(b, width)
    if extra.kind == "row":
        address = b.address(f"%e{e}", extra.dtype, row)
        return many.splat(extra.dtype, one.load(extra.dtype, address), width)
    base = f"%e{e}"
    if extra.kind == "tile" and row:
        base = b.address(base, extra.dtype, b.mul(row, f"%es{e}"))
    address = b.address(base, extra.dtype, column)
    return many.load(extra.dtype, address) if count is None else many.load_masked(extra.dtype, address, count)


def _suffix(dtype: str, width: int) -> str:
    return dtype if width == 1 else f"v{width}{dtype}"


def emit_rows(
    b: Builder,
    dtype: str,
    width: int,
    epilogue: Epilogue,
    *,
    rows: str,
    columns: str,
    a: str,
    a_row: str | int,
    a_col: str | int,
    right: str,
    right_row: str | int,
    k: str,
    c: str,
    c_row: str | int,
    extras: Sequence[tuple[str, str | int]] = (),
) -> None:
    """Cut a panel of at most ``VECTORS[0]`` vectors of columns into tiles and call their functions.

    Args:
        b: Where to write.
        dtype: Of A, B and C.
        width: Elements of a vector.
        epilogue: As given to :func:`tile_functions`.
        rows: Number of rows of C.
        columns: Number of columns of the panel.
        a: Address of A; ``a_row`` and ``a_col`` are elements from row to row and along k.
        a_row: See ``a``.
        a_col: See ``a``.
        right: Address of B's panel; ``right_row`` is elements along k.
        right_row: See ``right``.
        k: Length of the sum.
        c: Address of C's panel; ``c_row`` is elements from row to row.
        c_row: See ``c``.
        extras: Address at the panel's origin and row stride of each of the epilogue's operands.
    """

    def panel(vectors: int, edge: bool) -> None:
        done: str = "0"
        for height in ROWS:
            count = b.op(f"sdiv i64 {b.sub(rows, done)}, {height}")
            stop = b.add(done, b.mul(count, height))
            with b.loop(done, stop, height) as m:
                arguments = [
                    f"ptr {b.address(a, dtype, b.mul(m, a_row))}",
                    f"i64 {a_row}",
                    f"i64 {a_col}",
                    f"ptr {right}",
                    f"i64 {right_row}",
                    f"i64 {k}",
                    f"ptr {b.address(c, dtype, b.mul(m, c_row))}",
                    f"i64 {c_row}",
                    f"i64 {columns}",
                ]
                for extra, (address, stride) in zip(epilogue.extras, extras, strict=True):
                    at = address
                    if extra.kind == "row":
                        at = b.address(address, extra.dtype, m)
                    elif extra.kind == "tile":
                        at = b.address(address, extra.dtype, b.mul(m, stride))
                    arguments += [f"ptr {at}", f"i64 {stride}"]
                b.emit(f"call void @{_name(height, vectors, edge)}({', '.join(arguments)})")
            done = stop

    def choose(index: int) -> None:
        vectors = VECTORS[index]
        if index == len(VECTORS) - 1:
            split(vectors)
            return
        wide = b.compare("sgt", columns, VECTORS[index + 1] * width)
        b.branch(wide, lambda: split(vectors), lambda: choose(index + 1))

    def split(vectors: int) -> None:
        whole = b.compare("eq", columns, vectors * width)
        b.branch(whole, lambda: panel(vectors, False), lambda: panel(vectors, True))

    choose(0)
