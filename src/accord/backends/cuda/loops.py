"""Loop programs as Triton kernels.

A program of the grid has a tile: ``BM`` elements of the kept axes by ``BR`` of the reduced ones. Where a row fits the
tile it is read once and everything is computed on it; longer rows are walked in pieces, once for each level of
reductions. Without reductions a tile is ``BM`` elements, or, where an operand has unit stride along another axis than
the output, a rectangle of both axes, so that both sides are read and written in whole sectors.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from accord.backends.cuda.code import CudaLaunch, KernelText, hints_of
from accord.backends.cuda.printer import TYPES, TritonPrinter
from accord.backends.loops.nest import magnitude, merge_axes
from accord.backends.loops.program import LoopProgram, Lowered, Operand
from accord.backends.loops.values import Form, Reduction, Result, form_of
from accord.backends.protocol import Phase
from accord.errors import CompileError
from accord.expr.lang import Expr, topological
from accord.ir.dims import DimLike
from accord.ir.strides import Access
from accord.record import record

__all__ = ["Geometry", "LoopKernel", "Stream", "geometry", "loop_kernel", "lower_loops"]

#: Elements of a tile of rows, and the longest row that is held as a whole.
_TILE, _LONGEST = 4096, 16384
#: Elements of a tile without reductions; sides of one that is turned.
_FLAT, _SIDE = 1024, 64


@record
class Stream:
    """An operand or output: for each axis "0" (repeats), "1" (next element) or "s" (a stride in the parameters).

    Without memory it is its own position.
    """

    dtype: str
    kinds: str
    memory: bool = True


@record
class LoopKernel(KernelText):
    """The Triton text of one pattern of a loop program.

    Parameters of the kernel: pointers of operands with memory and of outputs, sizes of all axes, then of each stream
    its offset and the strides that are "s". Compile-time ones: BM, BR, WHOLE (a row fits BR), WIDE (places need 64
    bits).

    Attributes:
        kept: Number of kept axes.
        reduced: Number of the axes that follow them: reduced ones, or the turned one.
        values: What operands of expressions stand for.
        reductions: In order.
        outputs: Where results go.
        results: One expression for each output.
    """

    kept: int
    reduced: int
    values: tuple[Stream | Result, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Stream, ...]
    results: tuple[Expr, ...]

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = (
            f"{self.kept};{self.reduced};{self.values};{self.outputs};"
            f"{[r.key for r in self.reductions]};{[e.key for e in self.results]}"
        )
        return f"loops_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def streams(self) -> list[Stream]:
        """Operands, then outputs."""
        return [*(v for v in self.values if isinstance(v, Stream)), *self.outputs]

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of operands with memory, then of outputs."""
        return tuple(s.dtype for s in self.streams if s.memory)

    def text(self) -> str:
        """The module."""
        return _Writer(self).module()

    def may_overwrite(self, output: int, number: int) -> bool:
        """Whether an output may take the memory of an operand that lies as it does.

        A program reads its elements before it stores them. What is constant along rows is read again for each piece of
        a row, after outputs of that kind were stored.
        """
        del number
        return self.stores_full(output) or not any(map(self.stores_full, range(len(self.outputs))))

    # what expressions depend on

    def is_full(self, expr: Expr) -> bool:
        """Whether an expression changes along the second side of the tile."""
        return any(self._full(n) for n in _operands(expr))

    def stores_full(self, output: int) -> bool:
        """Whether an output has elements along the second side of the tile."""
        return any(k != "0" for k in self.outputs[output].kinds[self.kept :])

    def _full(self, number: int) -> bool:
        v = self.values[number]
        return isinstance(v, Stream) and any(k != "0" for k in v.kinds[self.kept :])

    def level(self, expr: Expr) -> int:
        """The pass in which an expression can be computed: after that many levels of reductions."""
        return max((self._value_level(n) for n in _operands(expr)), default=0)

    def _value_level(self, number: int) -> int:
        v = self.values[number]
        return 0 if isinstance(v, Stream) else 1 + self.reduction_level(v.reduction)

    def reduction_level(self, index: int) -> int:
        """The pass in which a reduction is computed."""
        return max(map(self.level, self.reductions[index].args))


def _operands(expr: Expr) -> set[int]:
    return {int(n.value or 0) for n in topological((expr,)) if n.op == "operand"}


def loop_kernel(program: LoopProgram) -> tuple[LoopKernel, tuple[DimLike, ...]]:
    """The kernel for a program, and the sizes that its launch needs: extents, then offsets and strides of all streams.

    Raises:
        CompileError: it has a running reduction.
    """
    if any(r.running for r in program.reductions):
        raise CompileError("a running reduction has no kernel yet")
    order = _order(program)
    labels = [int(a in program.reduced) for a in order]
    accesses = [Access(tuple(a.strides[i] for i in order), a.offset) for a in program.accesses]
    extents, merged, groups = merge_axes(tuple(program.extents[i] for i in order), accesses, labels)
    kept = groups.count(0)
    if not kept:
        extents, kept = (1, *extents), 1
        merged = [Access((0, *a.strides), a.offset) for a in merged]
    if program.reductions and kept == len(extents):  # all reduced axes have size 1
        extents = (*extents, 1)
        merged = [Access((*a.strides, 0), a.offset) for a in merged]
    if not program.reduced and kept > 1:
        turned = _turned(merged, kept)
        if turned is not None:
            places = [i for i in range(kept) if i != turned] + [turned]
            extents = tuple(extents[i] for i in places)
            merged = [Access(tuple(a.strides[i] for i in places), a.offset) for a in merged]
            kept -= 1
    types = [(o.dtype, o.memory) for o in program.operands] + [(o.expr.dtype, True) for o in program.outputs]
    streams = [
        Stream(dtype, "".join("0" if s == 0 else "1" if s == 1 else "s" for s in a.strides), memory)
        for (dtype, memory), a in zip(types, merged, strict=True)
    ]
    found = iter(streams)
    values = tuple(next(found) if isinstance(v, Operand) else v for v in program.values)
    kernel = LoopKernel(
        kept,
        len(extents) - kept,
        values,
        program.reductions,
        tuple(streams[len(program.operands) :]),
        tuple(o.expr for o in program.outputs),
    )
    dims: list[DimLike] = list(extents)
    for stream, access in zip(streams, merged, strict=True):
        dims.append(access.offset)
        dims += [s for s, kind in zip(access.strides, stream.kinds, strict=True) if kind == "s"]
    return kernel, tuple(dims)


def _order(p: LoopProgram) -> list[int]:
    """Kept axes, then reduced ones, each from the outermost to the innermost in the memory that matters most."""
    outputs = [o.access for o in p.outputs]
    operands = [o.access for o in p.operands if o.memory]
    reference = max([*operands, *outputs] if p.reduced else outputs, key=lambda a: sum(s != 0 for s in a.strides))
    size = [magnitude(s) for s in reference.strides]
    for a in reversed(range(len(size))):  # an axis that the reference repeats stays outside the one after it
        if size[a] == 0:
            size[a] = size[a + 1] if a + 1 < len(size) else 0
    return sorted(range(len(p.extents)), key=lambda a: (a in p.reduced, -size[a]))


def _turned(accesses: Sequence[Access], kept: int) -> int | None:
    """An axis other than the innermost along which something has unit stride that has none along that."""
    for a in accesses:
        if a.strides[kept - 1] not in (0, 1) and 1 in a.strides[: kept - 1]:
            return a.strides.index(1)
    return None


def lower_loops(program: LoopProgram, sources: Sequence[int], targets: Sequence[int], scratch: int) -> Lowered:
    """A phase that runs ``program``; see :func:`accord.backends.loops.program.lowered`.

    Raises:
        CompileError: it has a running reduction.
    """
    del scratch
    kernel, dims = loop_kernel(program)
    launch = functools.partial(_launch, kernel, hints_of(dims))
    return Lowered(Phase(kernel, (*sources, *targets), dims, launch), 0, kernel.may_overwrite)


def _launch(kernel: LoopKernel, hints: tuple[str, ...], sizes: Sequence[int]) -> CudaLaunch:
    shape = geometry(kernel, sizes)
    extents = sizes[: kernel.kept + kernel.reduced]
    wide = _is_wide(kernel, sizes)
    constants = (("BM", shape.rows), ("BR", shape.columns), ("WHOLE", shape.whole), ("WIDE", wide))
    tasks = 0 if 0 in extents[: kernel.kept] else math.prod(shape.grid)
    return CudaLaunch(tuple(sizes), tasks, (*shape.grid, 1), constants, hints, wide, shape.warps)


def _is_wide(kernel: LoopKernel, sizes: Sequence[int]) -> bool:
    """Whether a place in a stream, or a number of elements, needs more than 31 bits."""
    axes = kernel.kept + kernel.reduced
    extents, rest = sizes[:axes], iter(sizes[axes:])
    reach = math.prod(extents)
    for s in kernel.streams:
        place = abs(next(rest))
        for n, kind in zip(extents, s.kinds, strict=True):
            place += abs(n - 1) * (0 if kind == "0" else 1 if kind == "1" else abs(next(rest)))
        reach = max(reach, place)
    return reach + 2 * _LONGEST >= 1 << 31


@record
class Geometry:
    """How a kernel is started.

    Attributes:
        grid: Programs.
        rows: BM.
        columns: BR.
        whole: WHOLE.
        warps: Of a program.
    """

    grid: tuple[int, int]
    rows: int
    columns: int
    whole: bool
    warps: int


def geometry(kernel: LoopKernel, sizes: Sequence[int]) -> Geometry:
    """The launch for given sizes of all axes."""
    kept = math.prod(sizes[: kernel.kept])
    length = math.prod(sizes[kernel.kept : kernel.kept + kernel.reduced])
    if not kernel.reduced:
        return Geometry((_ceil(kept, _FLAT), 1), _FLAT, 1, True, 4)
    if not kernel.reductions:
        return Geometry((_ceil(kept, _SIDE), _ceil(length, _SIDE)), _SIDE, _SIDE, False, 4)
    whole = length <= _LONGEST
    columns = min(_power(length), _LONGEST if whole else _TILE)
    if _columns_first(kernel):
        columns = min(columns, _TILE // _SIDE)
        whole = length <= columns
        return Geometry((_ceil(kept, _SIDE), 1), _SIDE, columns, whole, 4)
    rows = min(max(1, _TILE // columns), _power(max(1, kept // 264)))
    return Geometry((_ceil(kept, rows), 1), rows, columns, whole, 4 if columns * rows <= _TILE else 8)


def _columns_first(kernel: LoopKernel) -> bool:
    """Whether neighbours in memory are neighbours along a kept axis."""
    return any(s.memory and "1" in s.kinds[: kernel.kept] for s in kernel.streams[: -len(kernel.outputs)])


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


class _Writer:
    """Writes the module of a kernel."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.k = kernel
        self.lines: list[str] = []
        self.helpers: list[str] = []
        self.depth = 1
        self.forms: list[Form] = [form_of(r) for r in kernel.reductions]
        self.results: dict[int, list[str]] = {}  # of reductions, by part
        self.count = 0

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def module(self) -> str:
        k = self.k
        names = [f"p{i}" for i, s in enumerate(k.streams) if s.memory]
        names += [f"e{a}" for a in range(k.kept + k.reduced)]
        for i, s in enumerate(k.streams):
            names += [f"o{i}", *(f"s{i}_{a}" for a, kind in enumerate(s.kinds) if kind == "s")]
        self._kept()
        if k.reduced:
            self._rows()
        else:
            self._flat()
        constants = "BM: tl.constexpr, BR: tl.constexpr, WHOLE: tl.constexpr, WIDE: tl.constexpr"
        body = "\n".join(self.lines)
        head = "import triton\nimport triton.language as tl\n\n\n"
        return f"{head}{''.join(self.helpers)}@triton.jit\ndef {k.symbol}({', '.join(names)}, {constants}):\n{body}\n"

    # positions

    def _kept(self) -> None:
        """Coordinates along the kept axes, and where each stream begins in a row."""
        k = self.k
        self.emit("m = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BM + tl.arange(0, BM)")
        total = " * ".join(f"e{a}" for a in range(k.kept))
        self.emit(f"some = m < {total}")
        self._coordinates("m", 0, k.kept)
        for i, s in enumerate(k.streams):
            terms = [f"o{i}", *self._terms(i, s, 0, k.kept)]
            self.emit(f"b{i} = {' + '.join(terms)} + m * 0")
        if k.reduced:
            self.emit("length = " + " * ".join(f"e{a}" for a in range(k.kept, k.kept + k.reduced)))

    def _coordinates(self, flat: str, first: int, last: int) -> None:
        rest = flat
        for a in range(last - 1, first, -1):
            self.emit(f"c{a} = {rest} % e{a}")
            self.emit(f"r{a} = {rest} // e{a}")
            rest = f"r{a}"
        self.emit(f"c{first} = {rest}")

    @staticmethod
    def _terms(i: int, s: Stream, first: int, last: int) -> list[str]:
        forms = {"1": "c{a}", "s": "c{a} * s{i}_{a}"}
        return [forms[s.kinds[a]].format(a=a, i=i) for a in range(first, last) if s.kinds[a] != "0"]

    # without a second side

    def _flat(self) -> None:
        printer = self._printer()
        names = self._values(lambda i, s: (f"b{i}", "some"))
        for j, expr in enumerate(self.k.results):
            value = printer.value(expr, names)
            self._store(len(self.k.streams) - len(self.k.outputs) + j, value, expr.dtype, "", "some")

    # rows

    def _rows(self) -> None:
        k = self.k
        if not k.reductions:
            self.emit("r = tl.program_id(1).to(tl.int64 if WIDE else tl.int32) * BR + tl.arange(0, BR)")
            self._piece()
            self._full_outputs(self._tile_values())
            return
        self.emit("if WHOLE:")
        with self._indented():
            self.emit("r = tl.arange(0, BR).to(tl.int64 if WIDE else tl.int32)")
            self._piece()
            self._passes(held=True)
        self.emit("else:")
        with self._indented():
            self._passes(held=False)

    @contextmanager
    def _indented(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def _piece(self) -> None:
        """Positions of a tile whose second side is ``r``."""
        k = self.k
        self._coordinates("r", k.kept, k.kept + k.reduced)
        self.emit("inside = some[:, None] & (r < length)[None, :]")
        for i, s in enumerate(k.streams):
            terms = self._terms(i, s, k.kept, k.kept + k.reduced)
            if terms:
                self.emit(f"t{i} = b{i}[:, None] + ({' + '.join(terms)})[None, :]")

    def _passes(self, *, held: bool) -> None:
        """Levels of reductions, then what is left to store."""
        k = self.k
        self.results = {}
        names = self._tile_values() if held else []
        levels = [k.reduction_level(i) for i in range(len(k.reductions))]
        for level in range(max(levels) + 1):
            chosen = [i for i, at in enumerate(levels) if at == level]
            if held:
                for i in chosen:
                    self._reduce(i, self._added(i, names, self._start(i), masked=True))
                continue
            states = {i: self._named(self._start(i)) for i in chosen}
            with self._walk():
                names = self._tile_values()
                for i in chosen:
                    for state, value in zip(states[i], self._added(i, names, states[i], masked=True), strict=True):
                        self.emit(f"{state} = {value}")
            for i in chosen:
                self._reduce(i, states[i])
        self._row_outputs()
        if not any(map(k.stores_full, range(len(k.outputs)))):
            return
        if held:
            self._full_outputs(names)
            return
        with self._walk():
            self._full_outputs(self._tile_values())

    @contextmanager
    def _walk(self) -> Iterator[None]:
        self.emit("for start in range(0, length, BR):")
        with self._indented():
            self.emit("r = start + tl.arange(0, BR).to(tl.int64 if WIDE else tl.int32)")
            self._piece()
            yield

    def _start(self, index: int) -> list[str]:
        return [f"tl.full([BM, BR], {_number(e)}, {TYPES[e.dtype]})" for e in self.forms[index].start]

    def _named(self, values: Sequence[str]) -> list[str]:
        names = []
        for v in values:
            self.count += 1
            names.append(f"q{self.count}")
            self.emit(f"{names[-1]} = {v}")
        return names

    def _added(self, index: int, names: Sequence[str], state: Sequence[str], *, masked: bool) -> list[str]:
        """The state after a tile."""
        reduction, form = self.k.reductions[index], self.forms[index]
        names = self._with_results(names)
        before = self._named(state)
        printer = self._printer()
        arguments = [printer.value(a, names) for a in reduction.args]
        wide = [
            n if self.k.is_full(a) else self._named([f"tl.broadcast_to({n}, [BM, BR])"])[0]
            for n, a in zip(arguments, reduction.args, strict=True)
        ]
        after = self._printer()
        found = [after.value(e, [*before, *wide]) for e in form.add]
        del masked
        return self._named([f"tl.where(inside, {v}, {b})" for v, b in zip(found, before, strict=True)])

    def _reduce(self, index: int, state: Sequence[str]) -> None:
        """Join the tile's states along a row."""
        form = self.forms[index]
        name = f"merge{index}"
        if not any(h.startswith(f"@triton.jit\ndef {name}(") for h in self.helpers):
            self.helpers.append(_helper(name, form))
        parts = [f"j{index}_{p}" for p in range(len(state))]
        given = state[0] if len(state) == 1 else f"({', '.join(state)})"
        self.emit(f"{', '.join(parts)} = tl.reduce({given}, 1, {name})")
        columns = self._named([f"{p}[:, None]" for p in parts])
        printer = self._printer()
        self.results[index] = [printer.value(e, columns) for e in form.final]

    # operands and outputs

    def _tile_values(self) -> list[str]:
        return self._values(
            lambda i, s: (
                (f"t{i}", "inside")
                if any(c != "0" for c in s.kinds[self.k.kept :])
                else (f"b{i}[:, None]", "some[:, None]")
            )
        )

    def _values(self, place: functools.partial[tuple[str, str]] | object) -> list[str]:
        """Names of all values; those of reductions that are not computed yet are empty."""
        names, number = [], 0
        for v in self.k.values:
            if isinstance(v, Result):
                names.append(self.results.get(v.reduction, [""] * (v.part + 1))[v.part])
                continue
            at, mask = place(number, v)  # type: ignore[operator]
            if v.memory:
                loaded = f"tl.load(p{number} + {at}, mask={mask})"
                names += self._named([f"({loaded}) != 0" if v.dtype == "bool" else loaded])
            else:
                names += self._named([f"({at}).to(tl.int64)"])
            number += 1
        return names

    def _with_results(self, names: Sequence[str]) -> list[str]:
        """``names`` with the reductions that were computed since."""
        return [
            self.results[v.reduction][v.part] if isinstance(v, Result) and v.reduction in self.results else n
            for v, n in zip(self.k.values, names, strict=True)
        ]

    def _row_outputs(self) -> None:
        first = len(self.k.streams) - len(self.k.outputs)
        for j, expr in enumerate(self.k.results):
            if not self.k.stores_full(j):
                printer = self._printer()
                names = self._row_values()
                value = printer.value(expr, names)
                self._store(first + j, value, expr.dtype, "[:, None]", "some[:, None]")

    def _row_values(self) -> list[str]:
        """Values that are the same all along a row; others are empty."""
        names, number = [], 0
        for index, v in enumerate(self.k.values):
            if isinstance(v, Result):
                names.append(self.results[v.reduction][v.part])
                continue
            if self.k._full(index):
                names.append("")
            elif v.memory:
                loaded = f"tl.load(p{number} + b{number}[:, None], mask=some[:, None])"
                names += self._named([f"({loaded}) != 0" if v.dtype == "bool" else loaded])
            else:
                names += self._named([f"b{number}[:, None].to(tl.int64)"])
            number += 1
        return names

    def _full_outputs(self, names: Sequence[str]) -> None:
        first = len(self.k.streams) - len(self.k.outputs)
        names = self._with_results(names)
        for j, expr in enumerate(self.k.results):
            if not self.k.stores_full(j):
                continue
            value = self._printer().value(expr, names)
            stream = first + j
            if not self.k.is_full(expr):
                value = f"tl.broadcast_to({value}, [BM, BR])"
            self.emit(f"tl.store(p{stream} + t{stream}, {_stored(value, expr.dtype)}, mask=inside)")

    def _store(self, stream: int, value: str, dtype: str, shape: str, mask: str) -> None:
        self.emit(f"tl.store(p{stream} + b{stream}{shape}, {_stored(value, dtype)}, mask={mask})")

    def _printer(self) -> TritonPrinter:
        self.count += 1
        return TritonPrinter(_Lines(self), f"x{self.count}_")


class _Lines(list[str]):
    """Lines of an expression, at the writer's depth."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer

    def append(self, text: str) -> None:
        self._writer.emit(text)


def _number(e: Expr) -> str:
    value = e.value
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(int(value) if isinstance(value, bool) else value)


def _stored(value: str, dtype: str) -> str:
    return f"({value}).to(tl.int8)" if dtype == "bool" else value


def _helper(name: str, form: Form) -> str:
    """A function that joins two states."""
    parts = len(form.start)
    arguments = [f"{side}{p}" for side in "ab" for p in range(parts)]
    lines: list[str] = []
    printer = TritonPrinter(lines)
    results = [printer.value(e, arguments) for e in form.merge]
    body = "".join(f"    {line}\n" for line in lines)
    return f"@triton.jit\ndef {name}({', '.join(arguments)}):\n{body}    return {', '.join(results)}\n\n\n"
