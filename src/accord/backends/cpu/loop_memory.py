"""Operands of a loop program while its code is written: where they lie, and values in registers at one place."""

from __future__ import annotations

from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.printer import Printer
from accord.expr.lang import Expr, bits
from accord.record import record

__all__ = ["Function", "Place", "Slot", "load_slot", "store_slot"]

#: Bytes up to which a row is fetched while the one before it is walked, and how far on in a longer one. The machine
#: itself looks ahead only along lines of one page.
_SHORT_ROW, _FAR = 16384, 4096


class Function(Builder):
    """A function with variables: stack slots, which the optimiser turns into registers."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._variables: list[str] = []

    def variable(self, type_: str, count: int = 1) -> str:
        """Address of ``count`` values of ``type_``, the same for the whole call."""
        name = self.fresh("var")
        self._variables.append(f"  {name} = alloca [{count} x {type_}], align 64")
        return name

    def definition(self) -> str:
        """The function's text."""
        self._lines[:0] = self._variables
        self._variables = []
        return super().definition()


@record
class Slot:
    """An operand.

    Attributes:
        dtype: Element type.
        strides: For each axis a number or the name of one.
        base: Address of the first element, or its position.
        memory: False: its value is its position.
    """

    dtype: str
    strides: tuple[str | int, ...]
    base: str
    memory: bool

    def advance(self, b: Builder, at: str, axis: int, index: str | int) -> str:
        """Address or position after ``index`` steps along ``axis`` from ``at``."""
        stride = self.strides[axis]
        if stride == 0 or index in (0, "0"):
            return at
        step = b.mul(index, stride)
        return b.address(at, self.dtype, step) if self.memory else b.add(at, step)

    def ahead(self, b: Builder, axis: int, length: str) -> str:
        """Bytes from an element to the one to fetch meanwhile, in rows of ``length`` elements along ``axis``."""
        size = bits(self.dtype) // 8
        short = b.compare("sle", b.mul(length, size), _SHORT_ROW)
        return b.op(f"select i1 {short}, i64 {b.mul(self.strides[axis], size)}, i64 {_FAR}")

    def prefetch(self, b: Builder, at: str, ahead: str, count: int) -> None:
        """Ask for ``count`` elements ``ahead`` bytes after ``at``."""
        b.prefetch(b.op(f"getelementptr i8, ptr {at}, i64 {ahead}"), count * bits(self.dtype) // 8)


class Place:
    """Values in vectors of one width at one place of a function.

    Attributes:
        printer: Writes expressions.
        names: SSA name of each value that is known here.
        dtypes: Their types.
    """

    def __init__(self, b: Builder, width: int, count: int) -> None:
        self.b = b
        self.width = width
        self.printer = Printer(b, width)
        self.names: dict[int, str] = {}
        self.dtypes: dict[int, str] = {}
        self._count = count

    def put(self, number: int, dtype: str, name: str) -> None:
        """Note that value ``number`` is ``name``."""
        self.names[number] = name
        self.dtypes[number] = dtype

    def copy(self) -> Place:
        """Another place of the same values, whose expressions are written anew."""
        other = Place(self.b, self.width, self._count)
        other.names.update(self.names)
        other.dtypes.update(self.dtypes)
        return other

    def value(self, expr: Expr) -> str:
        """SSA name of ``expr``; all of its operands must be known here."""
        return self.printer.value(expr, [self.names.get(n, "") for n in range(self._count)])

    def compute(self, number: int, expr: Expr) -> None:
        """Make value ``number`` stand for ``expr``."""
        self.put(number, expr.dtype, self.value(expr))


def load_slot(place: Place, slot: Slot, at: str, axis: int | None, count: str | None = None) -> str:
    """The elements of ``slot`` from ``at`` on.

    Args:
        place: Where they are needed.
        slot: The operand.
        at: Address or position of the first.
        axis: The axis along which the lanes lie; None: all lanes are the one element.
        count: How many lanes there are; None: all. The rest is some number, and no other memory is read for it.
    """
    stride = 0 if axis is None else slot.strides[axis]
    p, width = place.printer, place.width
    if not slot.memory:
        return _position(place, at, stride)
    if stride == 0 or width == 1:
        return p.splat(slot.dtype, Printer(place.b, 1).load(slot.dtype, at), width)
    if stride == 1:
        return p.load(slot.dtype, at) if count is None else p.load_masked(slot.dtype, at, count)
    return p.gather(slot.dtype, at, stride) if count is None else _gather_first(place, slot, at, stride, count)


def _position(place: Place, at: str, stride: str | int) -> str:
    p, b, width = place.printer, place.b, place.width
    first = p.splat("i64", at, width)
    if stride == 0 or width == 1:
        return first
    type_ = vector("i64", width)
    steps = "<" + ", ".join(f"i64 {k}" for k in range(width)) + ">"
    if stride != 1:
        steps = b.op(f"mul {type_} {steps}, {p.splat('i64', str(stride), width)}")
    return b.op(f"add {type_} {first}, {steps}")


def _gather_first(place: Place, slot: Slot, at: str, stride: str | int, count: str) -> str:
    """A gather of ``count`` elements; the last one stands for the lanes after it."""
    b, dtype = place.b, slot.dtype
    memory = "u8" if dtype == "bool" else dtype
    type_ = vector(memory, place.width)
    last = b.sub(count, 1)
    x = "poison"
    for k in range(place.width):
        where = b.address(at, dtype, b.mul(b.min(k, last), stride))
        element = b.op(f"load {scalar(memory)}, ptr {where}, align {bits(dtype) // 8}")
        x = b.op(f"insertelement {type_} {x}, {scalar(memory)} {element}, i64 {k}")
    return b.op(f"icmp ne {type_} {x}, zeroinitializer") if dtype == "bool" else x


def store_slot(place: Place, slot: Slot, at: str, axis: int | None, value: str, count: str | None = None) -> None:
    """Write ``value`` to ``slot`` from ``at`` on; see :func:`load_slot`. Nothing after ``count`` lanes is touched."""
    stride = 1 if axis is None else slot.strides[axis]
    p, b = place.printer, place.b
    if stride == 1 or place.width == 1:
        if count is None:
            p.store(slot.dtype, value, at)
        else:
            p.store_masked(slot.dtype, value, at, count)
        return
    if count is None:
        p.scatter(slot.dtype, value, at, stride)
        return
    one = Printer(b, 1)
    with b.loop(0, count) as k:
        element = b.op(f"extractelement {vector(slot.dtype, place.width)} {value}, i64 {k}")
        one.store(slot.dtype, element, b.address(at, slot.dtype, b.mul(k, stride)))
