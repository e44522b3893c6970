"""Non-maximum suppression in Triton: a program has one class of one image and keeps its best box, again and again.

After each choice one pass over the candidates leaves out those that the box overlaps, and finds the best of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from accord.backends.boxes import corners, overlaps
from accord.backends.cuda.code import CudaLaunch, KernelText
from accord.backends.cuda.counted import CountedKernel
from accord.backends.cuda.lines import HEAD, NEXT, WAIT, Code
from accord.backends.cuda.printer import TritonPrinter
from accord.backends.loops.program import Lookup, LoopProgram, Operand, Output, program_phase
from accord.backends.loops.values import Reduction, Result
from accord.backends.memory import DeviceArray
from accord.backends.ordering import order_key
from accord.backends.protocol import NativeKernel, Phase
from accord.errors import ExecutionError
from accord.expr.lang import const, operand
from accord.expr.primitives import idiv, irem, lt, select
from accord.ir.strides import Access
from accord.record import record

__all__ = ["SuppressionKernel", "SuppressionText"]

#: Candidates that are looked at at once.
_BLOCK: Final = 1024
_NAMES: Final = ("count", "classes", "limit", "threshold", "least")


@record
class SuppressionText(KernelText):
    """Pointers: boxes, scores, ranks of all candidates, list of what is kept, numbers of them; all without gaps.

    A rank is the score's key and the candidate's number, so that the lowest is the best, the first of equal ones.

    Attributes:
        center: Boxes are center and size, not two corners.
        bounded: There is a score threshold.
    """

    center: bool
    bounded: bool

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"suppression_{'center' if self.center else 'corners'}_{'least' if self.bounded else 'all'}"

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of the operands."""
        return ("f32", "f32", "i64", "i64", "i64")

    def text(self) -> str:
        """The module."""
        code = Code()
        code(
            "row = tl.program_id(0).to(tl.int64)",
            "image = row // classes",
            "none = tl.full([BLOCK], 9223372036854775807, tl.int64)",
            "most = (threshold + tl.zeros([BLOCK], tl.int32)).to(tl.float32, bitcast=True)",
            "lowest = (least + tl.zeros([BLOCK], tl.int32)).to(tl.float32, bitcast=True)",
            "best = none",
            WAIT,
        )
        key = order_key("f32", descending=False)
        with code.indented("for start in range(0, count, BLOCK):"):
            code(
                "j = start + tl.arange(0, BLOCK)",
                "inside = j < count",
                "score = tl.load(scores + row * count + j, mask=inside, other=0.0)",
                "turned = score * -1.0",  # NaN comes last
            )
            found = TritonPrinter(code, "k").value(key, ["turned"])
            code(f"rank = ({found}.to(tl.int64) - 2147483648 << 32) | j")
            there = "inside & (score > lowest)" if self.bounded else "inside"
            code(
                f"rank = tl.where({there}, rank, none)",
                "tl.store(ranks + row * count + j, rank, mask=inside)",
                "best = tl.minimum(best, rank)",
            )
        code("chosen = tl.min(best, 0)", "kept = 0")
        with code.indented("while (kept < limit) & (chosen < 9223372036854775807):"):
            code(
                "number = chosen & 4294967295",
                "tl.store(found + row * limit + kept, number)",
                "best = none",
            )
            self._box(code, "a", "number + tl.zeros([BLOCK], tl.int64)", "")
            with code.indented("for start in range(0, count, BLOCK):"):
                code("j = start + tl.arange(0, BLOCK)", "inside = j < count")
                self._box(code, "b", "j", ", mask=inside, other=0.0")
                sides = [*(f"a{k}" for k in range(5)), *(f"b{k}" for k in range(5)), "most"]
                expr = overlaps([operand(i, "f32") for i in range(11)])
                hit = TritonPrinter(code, "o").value(expr, sides)
                code(
                    "rank = tl.load(ranks + row * count + j, mask=inside, other=9223372036854775807)",
                    f"rank = tl.where({hit} | (rank == chosen), none, rank)",
                    "tl.store(ranks + row * count + j, rank, mask=inside)",
                    "best = tl.minimum(best, rank)",
                )
            code("chosen = tl.min(best, 0)", "kept += 1")
        code(NEXT, "tl.store(counts + row, kept)")
        parameters = ["boxes", "scores", "ranks", "found", "counts", *_NAMES, "BLOCK: tl.constexpr"]
        return HEAD + code.function(self.symbol, parameters)

    def _box(self, code: Code, name: str, index: str, mask: str) -> None:
        """Corners and area of boxes as ``name`` 0 to 4."""
        code(f"at = boxes + (image * count + ({index})) * 4")
        code(*(f"{name}_{k} = tl.load(at + {k}{mask})" for k in range(4)))
        printer = TritonPrinter(code, f"{name}x")
        for k, expr in enumerate(corners(center=self.center)):
            code(f"{name}{k} = {printer.value(expr, [f'{name}_{i}' for i in range(4)])}")


def _launch(sizes: Sequence[int]) -> CudaLaunch:
    *numbers, programs = sizes
    constants = (("BLOCK", _BLOCK),)
    return CudaLaunch(tuple(numbers), programs, (programs, 1, 1), constants, ("",) * len(_NAMES))


@record
class SuppressionKernel(CountedKernel):
    """Boxes that are kept, image by image and class by class, best first.

    Attributes:
        center: See :class:`SuppressionText`.
    """

    center: bool = False

    hosted = (2, 3, 4)

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """int64 ``[kept, 3]``.

        Raises:
            ExecutionError: boxes and scores do not fit each other, or the overlap threshold lies outside [0, 1].
        """
        boxes, scores, *rest = inputs
        given = (*rest, None, None, None)[:3]
        limit, threshold, least = (None if v is None else np.asarray(v).reshape(()).item() for v in given)
        images, classes, count = scores.shape
        if boxes.shape != (images, count, 4):
            raise ExecutionError(f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not fit")
        if not 0 <= (threshold or 0.0) <= 1:
            raise ExecutionError(f"iou_threshold {threshold} is outside [0, 1]")
        programs, most = images * classes, min(max(0, int(limit or 0)), count)
        integers = np.dtype(np.int64)
        total = 0
        if programs and most:
            room = (programs * count, programs * most, 2 * programs + 1)
            ranks, found, counts = (DeviceArray.empty(boxes.memory, (n,), integers) for n in room)
            words = [int(v) for v in np.array([threshold or 0.0, least or 0.0], np.float32).view(np.int32)]
            text = SuppressionText(self.center, least is not None)
            sizes = (count, classes, most, *words, programs)

            def choosing() -> NativeKernel:
                chosen = Phase(text, (0, 1, 2, 3, 4), sizes, _launch)
                return NativeKernel("suppression", (chosen, _joined(programs)), (0, 1))

            self.start(("choose", images, *sizes, text), choosing, (boxes, scores, ranks, found, counts))
            total = int(counts.view((1,), 16 * programs).numpy()[0])
        result = DeviceArray.empty(boxes.memory, (total, 3), integers)
        if total:
            self.start(
                ("list", programs, classes, most, total),
                lambda: NativeKernel("suppression", (_listed(programs, classes, most, total),), (0, 1)),
                (found, counts, result),
            )
        return [result]


def _joined(programs: int) -> Phase:
    """What is kept before each program, behind the numbers of all of them; then what all keep."""
    own = operand(0, "i64")
    program = LoopProgram(
        (1, programs),
        frozenset({1}),
        (Operand("i64", Access((0, 1))), Result(0), Result(1)),
        (Reduction("add", (own,), "exclusive"), Reduction("add", (own,))),
        (Output(operand(1, "i64"), Access((0, 1), programs)), Output(operand(2, "i64"), Access((0, 0), 2 * programs))),
    )
    return program_phase(program, (4,), (4, 4))


def _listed(programs: int, classes: int, most: int, total: int) -> Phase:
    """The list without gaps: image, class, box."""
    row, place, kept, before, box, size = (operand(i, "i64") for i in range(6))
    at = select(lt(place, kept), before + place, const(-1, "i64"))
    values = (
        Operand("i64", Access((1, 0)), memory=False),
        Operand("i64", Access((0, 1)), memory=False),
        Operand("i64", Access((1, 0))),
        Operand("i64", Access((1, 0), programs)),
        Operand("i64", Access((most, 1))),
        Operand("i64", Access((0, 0), classes), memory=False),
    )
    outputs = tuple(
        Output(e, Access((0, 0), k), (Lookup(at, 3, total, "skip"),))
        for k, e in enumerate((idiv(row, size), irem(row, size), box))
    )
    program = LoopProgram((programs, most), frozenset(), values, (), outputs)
    return program_phase(program, (1, 1, 0), (2, 2, 2))
