"""Non-maximum suppression: candidates sorted by score once, each compared with the boxes kept so far, in vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accord.backends.boxes import corners, overlaps
from accord.backends.cpu.host import start
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.search import any_lane, append_vector
from accord.backends.cpu.sorting import COUNTS, SLACK, call_sort, scratch_bytes, sort_function
from accord.backends.ordering import order_key
from accord.backends.protocol import Array
from accord.expr.lang import operand
from accord.expr.math import expand
from accord.record import record

__all__ = ["SuppressionCode", "suppress"]

_COORDINATES = 5  # of a kept box: y1, x1, y2, x2, area


@record
class SuppressionCode(KernelCode):
    """A task is one class of one image; tasks run in order, since each appends to one list.

    Parameters: boxes, classes, most boxes of a class, overlap threshold and score threshold (bits of f32). Operands:
    boxes, scores, scratch memory, list of (image, class, box), its length.

    Attributes:
        center: Boxes are center and size, not two corners.
        least: There is a score threshold.
    """

    center: bool
    least: bool

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"suppression_{'center' if self.center else 'corners'}_{'least' if self.least else 'all'}"

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Writer:
    def __init__(self, code: SuppressionCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        self.width = machine().width(32)
        self.order = order_key("f32", descending=False)
        self.overlaps = expand(overlaps([operand(i, "f32") for i in range(11)]))

    def write(self) -> str:
        b, w = self.b, self.width
        self.count, self.classes, self.limit = (b.param(i) for i in range(3))
        self.threshold, self.least = (self._real(3 + i) for i in range(2))
        self.boxes, self.scores, self.scratch, self.list, self.length = (b.operand(i) for i in range(5))
        entries = b.add(self.count, SLACK)
        at = b.address(self.scratch, "u8", COUNTS)
        places = []
        for _ in range(4):
            places.append(at)
            at = b.address(at, "i32", entries)
        self.sorting = places
        self.keys, self.index = places[0], places[1]
        self.kept = [b.address(at, "f32", b.mul(entries, k)) for k in range(_COORDINATES)]
        self.number = b.op("alloca i64")
        self.place = b.op("alloca i64")
        with b.loop("%first", "%last") as task:
            image, label = b.divmod(task, self.classes)
            scores = b.address(self.scores, "f32", b.mul(task, self.count))
            b.emit(f"store i64 0, ptr {self.number}")
            with b.loop(0, self.count, w) as j:
                self._candidates(scores, j)
            found = b.op(f"load i64, ptr {self.number}")
            call_sort(b, "f32", places, found, self.scratch)
            boxes = b.address(self.boxes, "f32", b.mul(image, b.mul(self.count, 4)))
            self._choose(boxes, found, image, label)
        return b.module(sort_function("f32"))

    def _real(self, index: int) -> str:
        b = self.b
        return b.op(f"bitcast i32 {b.op(f'trunc i64 {b.param(index)} to i32')} to float")

    def _candidates(self, scores: str, j: str) -> None:
        b, w = self.b, self.width
        printer = Printer(b, w)
        count = b.min(b.sub(self.count, j), w)
        x = printer.load_masked("f32", b.address(scores, "f32", j), count)
        type_, kind = vector("f32", w), vector("bool", w)
        lanes = b.op(f"icmp ult <{w} x i32> <{', '.join(f'i32 {k}' for k in range(w))}>, {self._spread_count(count)}")
        mask = lanes
        if self.code.least:
            above = b.op(f"fcmp ogt {type_} {x}, {printer.splat('f32', self.least, w)}")
            mask = b.op(f"and {kind} {lanes}, {above}")

        def append() -> None:
            keys = printer.value(self.order, [b.op(f"fneg {type_} {x}")])  # NaN comes last
            first = b.op(f"trunc i64 {j} to i32")
            steps = ", ".join(f"i32 {k}" for k in range(w))
            numbers = b.op(f"add <{w} x i32> {printer.splat('i32', first, w)}, <{steps}>")
            held = b.op(f"load i64, ptr {self.number}")
            columns = [("u32", keys, self.keys), ("i32", numbers, self.index)]
            b.emit(f"store i64 {append_vector(b, w, mask, columns, held)}, ptr {self.number}")

        b.branch(any_lane(b, mask, w), append)

    def _spread_count(self, count: str) -> str:
        return Printer(self.b, self.width).splat("i32", self.b.op(f"trunc i64 {count} to i32"), self.width)

    def _choose(self, boxes: str, found: str, image: str, label: str) -> None:
        """Walk the candidates, best first, until enough are kept."""
        b = self.b
        b.emit(f"store i64 0, ptr {self.number}")
        b.emit(f"store i64 0, ptr {self.place}")
        head, inside, end = (b.fresh("candidate").lstrip("%") for _ in range(3))
        b.emit(f"br label %{head}")
        b.label(head)
        i, kept = (b.op(f"load i64, ptr {slot}") for slot in (self.place, self.number))
        going = b.op(f"and i1 {b.compare('slt', i, found)}, {b.compare('slt', kept, self.limit)}")
        b.emit(f"br i1 {going}, label %{inside}, label %{end}")
        b.label(inside)
        b.emit(f"store i64 {b.add(i, 1)}, ptr {self.place}")
        number = b.op(f"load i32, ptr {b.address(self.index, 'i32', i)}")
        number = b.op(f"zext i32 {number} to i64")
        box = self._box(b.address(boxes, "f32", b.mul(number, 4)))
        free = self._is_free(box, kept)
        b.branch(free, lambda: self._keep(box, kept, (image, label, number)))
        b.emit(f"br label %{head}")
        b.label(end)

    def _box(self, address: str) -> list[str]:
        """Ordered corners and area of the box at ``address``."""
        b = self.b
        p = Printer(b, 1)
        raw = [p.load("f32", b.address(address, "f32", k)) for k in range(4)]
        return [p.value(expand(e), raw) for e in corners(center=self.code.center)]

    def _is_free(self, box: Sequence[str], kept: str) -> str:
        """True unless a kept box overlaps too much; lanes past the last kept box overlap nothing."""
        b, w = self.b, self.width
        printer = Printer(b, w)
        spread = [printer.splat("f32", v, w) for v in (*box, self.threshold)]
        head, inside, after, end = (b.fresh("kept").lstrip("%") for _ in range(4))
        before = b.block
        j, following = b.fresh("j"), b.fresh("j")
        b.emit(f"br label %{head}")
        b.label(head)
        b.emit(f"{j} = phi i64 [ 0, %{before} ], [ {following}, %{after} ]")
        b.emit(f"br i1 {b.compare('slt', j, kept)}, label %{inside}, label %{end}")
        b.label(inside)
        others = [printer.load("f32", b.address(k, "f32", j)) for k in self.kept]
        hit = any_lane(b, Printer(b, w).value(self.overlaps, [*others, *spread]), w)
        b.emit(f"br i1 {hit}, label %{end}, label %{after}")
        found = b.block
        b.label(after)
        b.emit(f"{following} = add nsw i64 {j}, {w}")
        b.emit(f"br label %{head}")
        b.label(end)
        return b.op(f"phi i1 [ true, %{head} ], [ false, %{found} ]")

    def _keep(self, box: Sequence[str], kept: str, entry: Sequence[str]) -> None:
        b, w = self.b, self.width
        many, one = Printer(b, w), Printer(b, 1)
        start_of_vector = b.compare("eq", b.op(f"urem i64 {kept}, {w}"), 0)
        infinity = "0x7FF0000000000000"

        def clear() -> None:  # a box that meets none: its upper corner is below any other's lower one
            for k, address in enumerate(self.kept):
                value = "0.0" if k == _COORDINATES - 1 else infinity if k < 2 else "0xFFF0000000000000"
                many.store("f32", many.splat("f32", value, w), b.address(address, "f32", kept))

        b.branch(start_of_vector, clear)
        for value, address in zip(box, self.kept, strict=True):
            one.store("f32", value, b.address(address, "f32", kept))
        length = b.op(f"load i64, ptr {self.length}")
        row = b.address(self.list, "i64", b.mul(length, 3))
        for k, value in enumerate(entry):
            one.store("i64", value, b.address(row, "i64", k))
        b.emit(f"store i64 {b.add(length, 1)}, ptr {self.length}")
        b.emit(f"store i64 {b.add(kept, 1)}, ptr {self.number}")


def suppress(boxes: Array, scores: Array, limit: int, threshold: float, least: float | None, *, center: bool) -> Array:
    """Boxes that are kept.

    Args:
        boxes: f32 ``[images, boxes, 4]`` without gaps.
        scores: f32 ``[images, classes, boxes]`` without gaps.
        limit: Most boxes of one class.
        threshold: Boxes that overlap a better one by more are left out.
        least: Boxes with a score not above it are left out.
        center: Boxes are (x, y, width, height) of their centers, not two corners (y, x).

    Returns:
        int64 ``[kept, 3]``: image, class, box.
    """
    images, classes, count = scores.shape
    rows = np.empty((images * classes * min(limit, count), 3), np.int64)
    length = np.zeros(1, np.int64)
    scratch = np.empty(COUNTS + (count + SLACK) * (scratch_bytes("f32") + 4 * _COORDINATES), np.uint8)
    words = [int(v) for v in np.array([threshold, 0.0 if least is None else least], np.float32).view(np.int32)]
    params = (count, classes, limit, *words)
    code = SuppressionCode(center, least is not None)
    start(code, params, (boxes, scores, scratch, rows, length), images * classes)
    return rows[: int(length[0])].copy()
