"""What follows a user's Triton kernel, as a function that it calls on blocks of its result before it stores them.

``epilogue(value, place, mask, extras)`` gives what is stored for elements whose places in the row-major output are
``place``. The further operands are read inside, where ``mask`` says that there is an element.
"""

from __future__ import annotations

import hashlib

from accord.backends.cuda.code import KernelText
from accord.backends.cuda.lines import HEAD, Code
from accord.backends.cuda.printer import TYPES, TritonPrinter
from accord.backends.epilogue import Epilogue, Extra
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import contiguous
from accord.record import record

__all__ = ["FinishText", "finish_of"]

#: Element types of expressions as NumPy names what is in memory.
_MEMORY = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "bool": "int8",
    **{f"{s[0]}{n}": f"{s}{n}" for s in ("int", "uint") for n in (8, 16, 32, 64)},
}  # fmt: skip


@record
class FinishText(KernelText):
    """See the module's text; ``extras`` are the pointers of ``elements``, then as many integers as ``numbers`` says.

    Attributes:
        source: Lines of the function.
        elements: NumPy's name of the elements behind each pointer.
        numbers: Sizes that are only known when it runs.
    """

    source: str
    elements: tuple[str, ...]
    numbers: int

    @property
    def symbol(self) -> str:
        """See :class:`~accord.backends.cuda.code.KernelText`."""
        return f"finish_{hashlib.sha256(self.source.encode()).hexdigest()[:24]}"

    @property
    def pointers(self) -> tuple[str, ...]:
        """It is no kernel of its own."""
        return ()

    def text(self) -> str:
        """See :class:`~accord.backends.cuda.code.KernelText`."""
        return f"{HEAD}@triton.jit\ndef {self.symbol}(value, place, mask, extras):\n{self.source}\n"


def finish_of(epilogue: Epilogue, shape: Shape, dtype: str) -> tuple[FinishText, tuple[DimLike, ...]] | Reason:
    """The function of an epilogue and the sizes that it is given, or why there is none.

    Args:
        epilogue: What follows.
        shape: Of the kernel's result, which is row-major.
        dtype: Its elements'.
    """
    if epilogue.expr.dtype != dtype:
        return Reason(f"what follows gives {epilogue.expr.dtype}, and the kernel's blocks are {dtype}")
    writer = _Writer(shape, len(epilogue.extras))
    values = [writer.line(f"value.to({TYPES[dtype]})")]
    values += [writer.loaded(k, extra) for k, extra in enumerate(epilogue.extras)]
    result = TritonPrinter(writer.code).value(epilogue.expr, values)
    writer.code(f"return {result}")
    elements = tuple(_MEMORY[e.dtype] for e in epilogue.extras)
    return FinishText("\n".join(writer.code), elements, len(writer.words)), tuple(writer.words)


class _Writer:
    def __init__(self, shape: Shape, pointers: int) -> None:
        self.code = Code()
        self.words: list[DimLike] = []
        self._shape = shape
        self._pointers = pointers
        self._count = 0
        self._axes: dict[int, str] = {}

    def line(self, text: str) -> str:
        """A new value."""
        self._count += 1
        self.code(f"w{self._count} = {text}")
        return f"w{self._count}"

    def loaded(self, number: int, extra: Extra) -> str:
        """The elements of an operand that belong to the places."""
        access = extra.access
        mask = ", mask=mask"
        if access.strides == contiguous(self._shape):
            at = "place"
        else:
            moved = [(a, s) for a, s in enumerate(access.strides) if s != 0 and self._shape[a] != 1]
            at = " + ".join(self._times(self._axis(a), s) for a, s in moved)
            if not at:
                at, mask = "0", ""
        if access.offset != 0:
            at = f"{at} + {self._number(access.offset)}"
        found = self.line(f"tl.load(extras[{number}] + ({at}){mask})")
        return self.line(f"{found} != 0") if extra.dtype == "bool" else found

    def _axis(self, axis: int) -> str:
        """Coordinates of the places along an axis."""
        if axis not in self._axes:
            inner = D.product(self._shape[axis + 1 :])
            at = "place" if inner == 1 else f"place // {self._number(D.maximum(inner, 1))}"
            outermost = all(d == 1 for d in self._shape[:axis])
            self._axes[axis] = self.line(at if outermost else f"({at}) % {self._number(self._shape[axis])}")
        return self._axes[axis]

    def _times(self, name: str, stride: DimLike) -> str:
        return name if stride == 1 else f"{name} * {self._number(stride)}"

    def _number(self, value: DimLike) -> str:
        if isinstance(value, int):
            return str(value)
        if value not in self.words:
            self.words.append(value)
        return f"extras[{self._pointers + self.words.index(value)}]"
