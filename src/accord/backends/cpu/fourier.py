"""Fourier transforms along an axis, many side by side: each lane of a vector is a transform of its own.

A block of transforms is brought into planes (:mod:`.streams`), goes through the passes (:mod:`.butterflies`) from one
pair of planes to another and back, and is written out. What else there is to do:

- Real input of even length N is taken for N / 2 complex numbers; one more pass parts the spectra of the even and of the
  odd elements (Press et al., "Numerical Recipes", 3rd edition, section 12.3.2).
- An inverse transform is a forward one with real and imaginary parts exchanged before and after.
- A length with a large prime factor is a convolution with a chirp, which is done by transforms of another length
  (Bluestein, "A linear filtering approach to the computation of the discrete Fourier transform", 1970).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from accord.backends.butterflies import RADICES, factors
from accord.backends.cpu.butterflies import over_line, pass_function, pass_name
from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, scalar
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.streams import Kind, Planes, Stream
from accord.backends.protocol import Launch, Phase
from accord.errors import ExecutionError
from accord.expr.lang import Expr, bits, cast, operand
from accord.expr.primitives import fma
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.strides import Access
from accord.record import record

__all__ = ["FourierPlaces", "Setting", "fourier_phase", "fourier_scratch", "inner_length", "needed_radices"]

#: Elements of one plane that a block should not exceed, so that all four stay in the second cache.
_PLANE = 40960
#: Lines and passes that a task should have at least, as elements.
_TASK_ELEMENTS = 200_000
_SIZES = (
    "length",
    "points",
    "inner",
    "bins",
    "count",
    "out_count",
    "lanes",
    "lane_extent",
    "lane_in",
    "lane_out",
    "blocks",
    "total",
    "group",
    "plane",
    "passes",
    "multiplier",
    "in_at",
    "in_step",
    "in_part",
    "out_at",
    "out_step",
    "out_part",
    "window_at",
    "window_step",
    "table_at",
    "slots_at",
)


def inner_length(points: int) -> int:
    """Length of the transforms that a convolution with a chirp of ``points`` points takes: of small factors only."""
    least = 2 * points - 1
    best = 1 << (least - 1).bit_length()
    for odd in (3, 5, 9, 15, 25):
        size = odd
        while size < least:
            size *= 2
        best = min(best, size)
    return best


@record
class Setting:
    """What machine code knows of transforms.

    Attributes:
        source: Input.
        target: Output.
        dtype: Element type of the arithmetic: "f32" or "f64".
        window: The input is multiplied with a window.
        inverse: Of the inverse transform.
        hermitian: The input is the first half of a spectrum whose other half is its conjugate.
        whole: Of real input that is taken for pairs: all of the spectrum is written, not the first half.
        chirp: By a convolution.
        radices: Those that the passes have; 0 for any.
        axes: Number of batch axes besides the lanes.
    """

    source: Kind
    target: Kind
    dtype: str
    window: bool
    inverse: bool
    hermitian: bool
    whole: bool
    chirp: bool
    radices: tuple[int, ...]
    axes: int


@record
class FourierCode(KernelCode):
    """Transforms along an axis.

    Operands: input, window if there is one, table, output, scratch. The table has cosines and negative sines of the
    fractions of a turn that ``length`` makes; for a chirp the same for the inner length, then the transform of the
    chirp's conjugate over the inner length, and the chirp (real parts, then imaginary parts).
    """

    setting: Setting

    @property
    def symbol(self) -> str:
        """Name by content."""
        return "fourier_" + hashlib.sha256(repr(self.setting).encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        main = _Writer(self.setting, name).write()
        return main.module(
            _transform(self.setting), *(pass_function(r, self.setting.dtype) for r in self.setting.radices)
        )


def _transform(setting: Setting) -> Builder:
    """All passes: the result is in x if their number is even, else in y."""
    arguments = (
        "ptr %xr, ptr %xi, ptr %yr, ptr %yi, ptr %cos, ptr %sin, i64 %points, i64 %line, i64 %step, i64 %passes, "
        "ptr %plan"
    )
    b = Builder("transform", arguments, internal=True)
    initial = (("ptr", "%xr"), ("ptr", "%xi"), ("ptr", "%yr"), ("ptr", "%yi"))
    sizes = (("i64", "%points"), ("i64", "%line"), ("i64", "%step"))
    with b.loop_carrying(0, "%passes", 1, (*initial, *sizes)) as (i, carried, following):
        xr, xi, yr, yi, n, line, step = carried
        radix = b.op(f"load i64, ptr {b.op(f'getelementptr i64, ptr %plan, i64 {i}')}")
        m = b.op(f"udiv i64 {n}, {radix}")
        arguments = (
            f"ptr {xr}, ptr {xi}, ptr {yr}, ptr {yi}, ptr %cos, ptr %sin, i64 {radix}, i64 {m}, i64 {line}, i64 {step}"
        )

        def choose(index: int) -> None:
            own = setting.radices[index]
            call = functools.partial(b.emit, f"call void @{pass_name(own)}({arguments})")
            if index == len(setting.radices) - 1:
                call()
                return
            b.branch(b.compare("eq", radix, own), call, lambda: choose(index + 1))

        if setting.radices:
            choose(0)
        following.extend((yr, yi, xr, xi, m, b.mul(line, radix), b.mul(step, radix)))
    return b


class _Writer:
    def __init__(self, setting: Setting, name: str) -> None:
        self.setting = setting
        self.dtype = setting.dtype
        self.width = machine().width(bits(setting.dtype))
        self.b = b = Builder(name)
        self.p = {n: b.param(i) for i, n in enumerate(_SIZES)}
        operands = ["x", *(["window"] if setting.window else []), "table", "out", "scratch"]
        self.operand = {n: b.operand(i) for i, n in enumerate(operands)}
        self.plan = b.op(f"getelementptr i64, ptr %params, i64 {len(_SIZES) + 3 * setting.axes}")

    def write(self) -> Builder:
        b, p, setting = self.b, self.p, self.setting
        axes = [tuple(b.param(len(_SIZES) + 3 * a + i) for i in range(3)) for a in range(setting.axes)]
        x = b.address(self.operand["x"], setting.source.stored, p["in_at"])
        out = b.address(self.operand["out"], setting.target.stored, p["out_at"])
        slots = b.address(self.operand["scratch"], self.dtype, p["slots_at"])
        slot = b.address(slots, self.dtype, b.mul("%thread", b.mul(p["plane"], 4)))
        planes = [b.address(slot, self.dtype, b.mul(p["plane"], k) if k else 0) for k in range(4)]
        self._tables()
        with b.loop("%first", "%last") as task:
            first = b.mul(task, p["group"])
            with b.loop(first, b.min(b.add(first, p["group"]), p["total"])) as number:
                rest, block = b.divmod(number, p["blocks"])
                lane = b.mul(block, p["lanes"])
                source = b.address(x, setting.source.stored, b.mul(lane, p["lane_in"]))
                target = b.address(out, setting.target.stored, b.mul(lane, p["lane_out"]))
                for axis, (extent, in_step, out_step) in reversed(list(enumerate(axes))):
                    rest, index = b.divmod(rest, extent) if axis else (rest, rest)
                    source = b.address(source, setting.source.stored, b.mul(index, in_step))
                    target = b.address(target, setting.target.stored, b.mul(index, out_step))
                self.line = b.min(b.sub(p["lane_extent"], lane), p["lanes"])
                self._block(planes, source, target)
        return b

    def _tables(self) -> None:
        """Addresses of the parts of the table."""
        b, p = self.b, self.p
        at = b.address(self.operand["table"], self.dtype, p["table_at"])
        sizes = [p["length"]] * 2 + ([*[p["inner"]] * 4, *[p["points"]] * 2] if self.setting.chirp else [])
        parts = [at]
        for size in sizes[:-1]:
            parts.append(b.address(parts[-1], self.dtype, size))
        self.table = list(zip(parts[::2], parts[1::2], strict=True))

    # one block of transforms

    def _block(self, planes: list[str], source: str, target: str) -> None:
        p, setting = self.p, self.setting
        own, other = Planes(planes[0], planes[1], self.line), Planes(planes[2], planes[3], self.line)
        self._load(own, source)
        if setting.chirp:
            self._multiply(own, p["points"], self.table[3])
            found, free = self._passes(own, other, self.table[1], p["inner"], "1")
            self._multiply(found, p["inner"], self.table[2])
            swapped = [Planes(s.imaginary, s.real, self.line) for s in (found, free)]
            found, free = (
                Planes(s.imaginary, s.real, self.line)
                for s in self._passes(swapped[0], swapped[1], self.table[1], p["inner"], "1")
            )
            self._multiply(found, p["points"], self.table[3])
        else:
            found, free = self._passes(own, other, self.table[0], p["points"], p["multiplier"])
        if setting.source.halves:
            self._part(found, free)
            found = free
        self._store(found, target)

    def _passes(self, x: Planes, y: Planes, table: tuple[str, str], points: str, step: str) -> tuple[Planes, Planes]:
        """Transform ``x``; where the result is, and the other planes."""
        b = self.b
        passes = self.p["passes"]
        b.emit(
            f"call void @transform(ptr {x.real}, ptr {x.imaginary}, ptr {y.real}, ptr {y.imaginary}, "
            f"ptr {table[0]}, ptr {table[1]}, i64 {points}, i64 {self.line}, i64 {step}, i64 {passes}, ptr {self.plan})"
        )
        odd = b.op(f"trunc i64 {passes} to i1")

        def chosen(one: Planes, two: Planes) -> Planes:
            real = b.op(f"select i1 {odd}, ptr {one.real}, ptr {two.real}")
            return Planes(real, b.op(f"select i1 {odd}, ptr {one.imaginary}, ptr {two.imaginary}"), self.line)

        return chosen(y, x), chosen(x, y)

    # from memory and back

    def _load(self, planes: Planes, source: str) -> None:
        b, p, setting = self.b, self.p, self.setting
        if setting.inverse:
            planes = Planes(planes.imaginary, planes.real, planes.line)
        # lines that the input does not reach, or only half
        reached = b.op(f"lshr i64 {p['count']}, 1") if setting.source.in_pairs else p["count"]
        self._clear(planes.real, reached)
        self._clear(planes.imaginary, reached if setting.source.in_pairs else "0")
        stream = Stream(
            b, setting.source, self.dtype, self.width, source, p["lane_in"], p["in_step"], p["in_part"], self.line
        )
        stream.load(planes, p["count"], self._factor if setting.window else None)
        if setting.hermitian:
            self._mirror(planes)

    def _factor(self, element: str) -> str:
        """The window's factor of an element of the stream."""
        b, p, stored = self.b, self.p, self.setting.source.stored
        index = b.op(f"lshr i64 {element}, 1") if self.setting.source.paired else element
        at = b.address(self.operand["window"], stored, b.add(p["window_at"], b.mul(index, p["window_step"])))
        one = Printer(b, 1)
        return one.value(cast(operand(0, stored), self.dtype), [one.load(stored, at)])

    def _clear(self, plane: str, first: str) -> None:
        """Zeros in all lines of a plane from ``first`` on."""
        b = self.b
        at = b.mul(first, self.line)
        left = b.sub(b.mul(self.p["inner"], self.line), at)
        over_line(b, left, self.width, lambda q, count: self._put(self._zero(), plane, at, q, count))

    def _zero(self) -> str:
        return "zeroinitializer" if self.width > 1 else "0.0"

    def _mirror(self, planes: Planes) -> None:
        """The other half of a spectrum; imaginary parts that have no counterpart do not count."""
        b, dtype, n = self.b, self.dtype, self.p["length"]
        x = operand(0, dtype)
        half = b.op(f"lshr i64 {n}, 1")
        with b.loop(0, b.add(half, 1)) as k:
            back = b.op(f"urem i64 {b.sub(n, k)}, {n}")
            alone = b.compare("eq", back, k)
            line, mirrored = b.mul(k, self.line), b.mul(back, self.line)

            def body(q: str, count: str | None) -> None:
                printer = Printer(b, self.width)
                real, imaginary = (self._get(plane, line, q, count) for plane in (planes.real, planes.imaginary))
                self._put(real, planes.real, mirrored, q, count)
                self._put(printer.value(-x, [imaginary]), planes.imaginary, mirrored, q, count)

            def lonely(q: str, count: str | None) -> None:
                self._put(self._zero(), planes.imaginary, line, q, count)

            b.branch(
                alone,
                lambda: over_line(b, self.line, self.width, lonely),
                lambda: over_line(b, self.line, self.width, body),
            )

    def _store(self, planes: Planes, target: str) -> None:
        b, p, setting = self.b, self.p, self.setting
        scale = None
        if setting.inverse:
            planes = Planes(planes.imaginary, planes.real, planes.line)
            length = b.op(f"sitofp i64 {p['length']} to {scalar(self.dtype)}")
            scale = b.op(f"fdiv {scalar(self.dtype)} 1.0, {length}")
        stream = Stream(
            b, setting.target, self.dtype, self.width, target, p["lane_out"], p["out_step"], p["out_part"], self.line
        )
        stream.store(planes, p["out_count"], scale)

    # on planes

    def _get(self, plane: str, line: str, q: str, count: str | None) -> str:
        printer = Printer(self.b, self.width)
        at = self.b.address(plane, self.dtype, self.b.add(line, q))
        return printer.load(self.dtype, at) if count is None else printer.load_masked(self.dtype, at, count)

    def _put(self, value: str, plane: str, line: str, q: str, count: str | None) -> None:
        printer = Printer(self.b, self.width)
        at = self.b.address(plane, self.dtype, self.b.add(line, q))
        if count is None:
            printer.store(self.dtype, value, at)
        else:
            printer.store_masked(self.dtype, value, at, count)

    def _angle(self, table: tuple[str, str], at: str) -> list[str]:
        """An entry of a table in all lanes."""
        one, many = Printer(self.b, 1), Printer(self.b, self.width)
        loaded = [one.load(self.dtype, self.b.address(part, self.dtype, at)) for part in table]
        return [many.splat(self.dtype, x, self.width) for x in loaded]

    def _multiply(self, planes: Planes, count: str, table: tuple[str, str]) -> None:
        """Multiply lines with the entries of a table."""
        b, dtype = self.b, self.dtype
        ar, ai, wr, wi = (operand(k, dtype) for k in range(4))
        product = (fma(ar, wr, -(ai * wi)), fma(ar, wi, ai * wr))
        with b.loop(0, count) as k:
            angle, line = self._angle(table, k), b.mul(k, self.line)

            def body(q: str, left: str | None) -> None:
                printer = Printer(b, self.width)
                both = [self._get(plane, line, q, left) for plane in (planes.real, planes.imaginary)]
                values = [printer.value(e, [*both, *angle]) for e in product]
                for value, plane in zip(values, (planes.real, planes.imaginary), strict=True):
                    self._put(value, plane, line, q, left)

            over_line(b, self.line, self.width, body)

    def _part(self, z: Planes, out: Planes) -> None:
        """From the transform of pairs to that of the real numbers: E + w^k O, E and O of the even and the odd ones."""
        b, p = self.b, self.p
        exprs = _parted(self.dtype)
        points, n = p["points"], p["length"]
        with b.loop(0, b.add(points, 1)) as k:
            angle = self._angle(self.table[0], k)
            line = b.mul(b.op(f"urem i64 {k}, {points}"), self.line)
            mirrored = b.mul(b.op(f"urem i64 {b.sub(points, k)}, {points}"), self.line)
            target, opposite = b.mul(k, self.line), b.mul(b.sub(n, k), self.line)
            both = b.op(f"and i1 {b.compare('sgt', k, 0)}, {b.compare('slt', k, points)}")

            def body(q: str, count: str | None) -> None:
                printer = Printer(b, self.width)
                operands = [
                    self._get(plane, at, q, count) for at in (line, mirrored) for plane in (z.real, z.imaginary)
                ]
                real, imaginary = (printer.value(e, [*operands, *angle]) for e in exprs)
                self._put(real, out.real, target, q, count)
                self._put(imaginary, out.imaginary, target, q, count)
                if not self.setting.whole:
                    return
                negative = printer.value(-exprs[1], [*operands, *angle])

                def conjugate() -> None:
                    self._put(real, out.real, opposite, q, count)
                    self._put(negative, out.imaginary, opposite, q, count)

                b.branch(both, conjugate)

            over_line(b, self.line, self.width, body)


def _parted(dtype: str) -> tuple[Expr, Expr]:
    """Operands: Z[k], Z[N / 2 - k], w^k."""
    zr, zi, cr, ci, wr, wi = (operand(k, dtype) for k in range(6))
    even = (zr + cr) * 0.5, (zi - ci) * 0.5
    odd = (zi + ci) * 0.5, (cr - zr) * 0.5
    return fma(odd[0], wr, fma(-odd[1], wi, even[0])), fma(odd[0], wi, fma(odd[1], wr, even[1]))


@record
class FourierPlaces:
    """Where operands lie, in elements.

    Attributes:
        batch: Extents of the batch axes; those of an axis that lanes follow in memory come last.
        x: The input over the batch axes, the transform's axis and the parts.
        out: The output, as ``x``.
        window: The window over one axis; what is not there has any access.
        table: First element of the table.
        slots: First element of the threads' scratch memory.
    """

    batch: Shape
    x: Access
    out: Access
    window: Access
    table: DimLike
    slots: DimLike


def fourier_phase(
    setting: Setting, sizes: tuple[DimLike, DimLike, DimLike], places: FourierPlaces, operands: tuple[int, ...]
) -> Phase:
    """A phase of transforms.

    Args:
        setting: What is known; ``axes`` is one less than the number of batch axes.
        sizes: Length of the transform, elements along the input's axis, elements along the output's axis.
        places: Where operands lie.
        operands: As :class:`FourierCode` has them.
    """
    dims: list[DimLike] = [*sizes]
    for access in (places.x, places.out):
        dims += [access.offset, *access.strides[-2:]]
    dims += [places.window.offset, places.window.strides[0], places.table, places.slots]
    for axis, extent in enumerate(places.batch):
        dims += [extent, places.x.strides[axis], places.out.strides[axis]]
    return Phase(FourierCode(setting), operands, tuple(dims), functools.partial(_launch, setting))


def fourier_scratch(setting: Setting, length: DimLike, bins: DimLike) -> DimLike:
    """Elements of scratch memory that one thread needs for its planes."""
    rows = _rows(setting, length, bins)
    width = machine().width(bits(setting.dtype))
    return 4 * D.minimum(rows * width, D.maximum(rows, _PLANE))


def _inner(setting: Setting, length: DimLike) -> DimLike:
    """Length of the passes' transforms."""
    points = D.floordiv(length, 2) if setting.source.halves else length
    return inner_length(points) if setting.chirp and isinstance(points, int) else points


def _rows(setting: Setting, length: DimLike, bins: DimLike) -> DimLike:
    return D.maximum(_inner(setting, length), bins)


@functools.lru_cache(maxsize=256)
def _plan(inner: int, radices: tuple[int, ...]) -> tuple[int, ...]:
    """Radices of the passes; without a pass of any radix all of them must be among ``radices``."""
    found = factors(inner)
    if 0 not in radices and not set(found) <= set(radices):
        raise ExecutionError(f"no code was made for a transform of length {inner}")
    return tuple(found)


def _launch(setting: Setting, sizes: Sequence[int]) -> Launch:
    length, along, bins, *rest = sizes
    in_at, in_step, in_part, out_at, out_step, out_part, window_at, window_step, table, slots = rest[:10]
    axes = [tuple(rest[k : k + 3]) for k in range(10, len(rest), 3)]
    if length < 1:
        raise ExecutionError(f"a transform of length {length}", remedy="Give inputs without empty axes.")
    inner = int(D.evaluate(_inner(setting, length), {}))
    rows = int(D.evaluate(_rows(setting, length, bins), {}))
    if "lanes" not in (setting.source.way, setting.target.way):
        axes.sort(key=lambda axis: axis[0])  # lanes along the longest axis
    extent, lane_in, lane_out = axes.pop()
    width = machine().width(bits(setting.dtype))
    lanes = min(width, 1 << (max(1, _PLANE // rows).bit_length() - 1), max(1, extent))
    blocks = -(-extent // lanes)
    total = blocks
    for axis in axes:
        total *= axis[0]
    points = length // 2 if setting.source.halves else length
    taken = min(along, length // 2 + 1 if setting.hermitian else length)
    count = 2 * taken if setting.source.paired else taken
    plan = _plan(inner, setting.radices)
    group = max(1, _TASK_ELEMENTS // (rows * lanes * (len(plan) + 2)))
    params = {
        "length": length,
        "points": points,
        "inner": inner,
        "bins": bins,
        "count": count,
        "out_count": 2 * bins if setting.target.paired else bins,
        "lanes": lanes,
        "lane_extent": extent,
        "lane_in": lane_in,
        "lane_out": lane_out,
        "blocks": blocks,
        "total": total,
        "group": group,
        "plane": rows * lanes,
        "passes": len(plan),
        "multiplier": length // points,
        "in_at": in_at,
        "in_step": in_step,
        "in_part": in_part,
        "out_at": out_at,
        "out_step": out_step,
        "out_part": out_part,
        "window_at": window_at,
        "window_step": window_step,
        "table_at": table,
        "slots_at": slots,
    }
    flat = [n for axis in axes for n in axis]
    return Launch((*(params[n] for n in _SIZES), *flat, *plan), -(-total // group))


def needed_radices(setting: Setting, length: DimLike) -> tuple[int, ...]:
    """The radices that code must have: those of a known length, or all."""
    inner = _inner(setting, length)
    if not isinstance(inner, int):
        return (*RADICES, 0)
    found = set(factors(inner))
    own = tuple(r for r in RADICES if r in found)
    return (*own, 0) if found - set(RADICES) else own
