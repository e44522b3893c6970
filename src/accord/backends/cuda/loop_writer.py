"""The Triton text of loop programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from accord.backends.cuda.lines import HEAD, NEXT, WAIT
from accord.backends.cuda.printer import TYPES, TritonPrinter, short_of
from accord.backends.loops.values import Form, Result, form_of
from accord.expr.lang import INTS, Expr

if TYPE_CHECKING:
    from accord.backends.cuda.loops import LoopKernel, Stream

__all__ = ["LoopWriter"]


class LoopWriter:
    """Writes the module of a kernel."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.k = kernel
        self.lines: list[str] = []
        self.helpers: list[str] = []
        self.depth = 1
        #: The type of 16 bits to which all results are rounded, see :class:`TritonPrinter`.
        self.short = short_of(s.dtype for s in kernel.outputs)
        self.forms: list[Form] = [form_of(r) for r in kernel.reductions]
        self.results: dict[int, list[str]] = {}  # of reductions, by part
        self.count = 0

    def emit(self, text: str) -> None:
        """One more line, at the depth where it stands."""
        self.lines.append("    " * self.depth + text)

    def module(self) -> str:
        """The text of the module."""
        k = self.k
        names = [f"p{i}" for i, s in enumerate(k.streams) if s.memory]
        names += ["refusal"] if k.refuses else []
        names += k.names
        self._kept()
        if k.reduced:
            self._rows()
        else:
            self._flat()
        constants = "BM: tl.constexpr, BR: tl.constexpr, WHOLE: tl.constexpr, WIDE: tl.constexpr"
        body = "\n".join(self.lines)
        return f"{HEAD}{''.join(self.helpers)}@triton.jit\ndef {k.symbol}({', '.join(names)}, {constants}):\n{body}\n"

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
        self.emit(WAIT)
        printer = self._printer()
        names = self._values(lambda i, s: (f"b{i}", "some"))
        self.emit(NEXT)
        for j, expr in enumerate(self.k.results):
            value = printer.value(expr, names)
            stream = len(self.k.streams) - len(self.k.outputs) + j
            self._store(stream, value, names, f"b{stream}", "some")

    # rows

    def _rows(self) -> None:
        k = self.k
        if not k.reductions:
            self.emit("r = tl.program_id(1).to(tl.int64 if WIDE else tl.int32) * BR + tl.arange(0, BR)")
            self._piece()
            self.emit(WAIT)
            names = self._tile_values()
            self.emit(NEXT)
            self._full_outputs(names)
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
        self.emit(WAIT)
        names = self._tile_values() if held else []
        levels = [k.reduction_level(i) for i in range(len(k.reductions))]
        for level in range(max(levels) + 1):
            chosen = [i for i, at in enumerate(levels) if at == level and not k.is_running(i)]
            if held:
                self._scan(level, names, {})
                for i in chosen:
                    self._reduce(i, self._added(i, names, self._start(i)))
                continue
            if not chosen:
                continue
            states = {i: self._named(self._start(i)) for i in chosen}
            carried = self._carried(level)
            with self._walk():
                names = self._tile_values()
                self._scan(level, names, carried)
                for i in chosen:
                    for state, value in zip(states[i], self._added(i, names, states[i]), strict=True):
                        self.emit(f"{state} = {value}")
            for i in chosen:
                self._reduce(i, states[i])
        self.emit(NEXT)
        full = [k.stores_full(j) for j in range(len(k.outputs))]
        # an output may lie where an operand does: nothing of a row is loaded once something of it is stored
        row = names if held or all(full) else self._row_values()
        if held:
            self._full_outputs(names)
        elif any(full):
            carried = self._carried(max(levels))
            with self._walk():
                names = self._tile_values()
                self._scan(max(levels), names, carried)
                self._full_outputs(names)
        if not all(full):
            self._row_outputs(row)

    def _carried(self, level: int) -> dict[int, str]:
        """What running reductions that a walk needs have come to before its first piece."""
        k = self.k
        running = [i for i in range(len(k.reductions)) if k.is_running(i) and k.reduction_level(i) <= level]
        return {i: self._named([self._start(i, 1)[0]])[0] for i in running}

    def _scan(self, level: int, names: Sequence[str], carried: dict[int, str]) -> None:
        """Running reductions up to a level, on a tile; a row that is walked in pieces goes on from what is carried."""
        k = self.k
        for i, reduction in enumerate(k.reductions):
            known = not carried and i in self.results
            if not k.is_running(i) or k.reduction_level(i) > level or known:
                continue
            (value,) = self._added(i, names, self._start(i))
            merge = self._merge(i)
            dtype = reduction.args[0].dtype
            if reduction.kind == "add" and (reduction.running == "inclusive" or dtype in INTS):
                (scanned,) = self._named([f"tl.cumsum({value}, 1).to({TYPES[dtype]})"])
                if reduction.running == "exclusive":
                    (scanned,) = self._named([f"{scanned} - {value}"])
            elif reduction.running == "exclusive":
                (scanned,) = self._named([self._before(i, value, merge)])
            else:
                (scanned,) = self._named([f"tl.associative_scan({value}, 1, {merge})"])
            if carried:
                before = carried[i]
                (scanned,) = self._named([f"{merge}(tl.broadcast_to({before}, [BM, BR]), {scanned})"])
                self.emit(f"{before} = {merge}({before}, tl.reduce({value}, 1, {merge})[:, None])")
            self.results[i] = [scanned]

    def _before(self, index: int, value: str, merge: str) -> str:
        """A running reduction without the element itself: states are that of all elements, and of all but the last."""
        name = f"before{index}"
        if not any(h.startswith(f"@triton.jit\ndef {name}(") for h in self.helpers):
            body = f"return {merge}(a0, b0), {merge}(a0, b1)"
            self.helpers.append(f"@triton.jit\ndef {name}(a0, a1, b0, b1):\n    {body}\n\n\n")
        return f"tl.associative_scan(({value}, {self._start(index)[0]}), 1, {name})[1]"

    @contextmanager
    def _walk(self) -> Iterator[None]:
        self.emit("for start in range(0, length, BR):")
        with self._indented():
            self.emit("r = start + tl.arange(0, BR).to(tl.int64 if WIDE else tl.int32)")
            self._piece()
            yield

    def _start(self, index: int, columns: int | str = "BR") -> list[str]:
        return [f"tl.full([BM, {columns}], {_number(e)}, {TYPES[e.dtype]})" for e in self.forms[index].start]

    def _named(self, values: Sequence[str]) -> list[str]:
        names = []
        for v in values:
            self.count += 1
            names.append(f"q{self.count}")
            self.emit(f"{names[-1]} = {v}")
        return names

    def _added(self, index: int, names: Sequence[str], state: Sequence[str]) -> list[str]:
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
        return self._named([f"tl.where(inside, {v}, {b})" for v, b in zip(found, before, strict=True)])

    def _reduce(self, index: int, state: Sequence[str]) -> None:
        """Join the tile's states along a row."""
        form = self.forms[index]
        name = self._merge(index)
        parts = [f"j{index}_{p}" for p in range(len(state))]
        given = state[0] if len(state) == 1 else f"({', '.join(state)})"
        self.emit(f"{', '.join(parts)} = tl.reduce({given}, 1, {name})")
        columns = self._named([f"{p}[:, None]" for p in parts])
        printer = self._printer()
        self.results[index] = [printer.value(e, columns) for e in form.final]

    def _merge(self, index: int) -> str:
        """The function that joins two states of a reduction."""
        name = f"merge{index}"
        if not any(h.startswith(f"@triton.jit\ndef {name}(") for h in self.helpers):
            self.helpers.append(_helper(name, self.forms[index]))
        return name

    # operands and outputs

    def _tile_values(self) -> list[str]:
        def place(i: int, s: Stream) -> tuple[str, str]:
            if any(c != "0" for c in s.kinds[self.k.kept :]):
                return f"t{i}", "inside"
            return f"b{i}[:, None]", "inside" if self.k.is_stream_full(s) else "some[:, None]"

        return self._values(place)

    def _values(self, place: Callable[[int, Stream], tuple[str, str]]) -> list[str]:
        """Names of all values; those of reductions that are not computed yet are empty."""
        names: list[str] = []
        number = 0
        for v in self.k.values:
            if isinstance(v, Result):
                names.append(self.results.get(v.reduction, [""] * (v.part + 1))[v.part])
                continue
            names.append(self._loaded(number, v, *place(number, v), names))
            number += 1
        return names

    def _loaded(self, number: int, stream: Stream, at: str, mask: str, names: Sequence[str]) -> str:
        """A value of an operand, which may look its place up by values before it."""
        if not stream.memory:
            return self._named([f"({at}).to(tl.int64)"])[0]
        at, mask, whole = self._looked_up(number, stream, at, mask, names)
        other = "" if whole else f", other={_other(stream)}"
        loaded = f"tl.load(p{number} + {at}, mask={mask}{other})"
        return self._named([f"({loaded}) != 0" if stream.dtype == "bool" else loaded])[0]

    def _looked_up(
        self, number: int, stream: Stream, at: str, mask: str, names: Sequence[str]
    ) -> tuple[str, str, bool]:
        """Place and mask with the computed parts; and whether nothing is skipped."""
        for j, p in enumerate(stream.places):
            printer = self._printer()
            (index,) = self._named([printer.value(p.index, names)])
            if printer.constant:  # one number for the whole block
                (index,) = self._named([f"{index} + ({mask}).to(tl.int64) * 0"])
            size = f"n{number}_{j}"
            if not p.skip:
                (index,) = self._named([f"tl.where({index} < 0, {index} + {size}, {index})"])
            (good,) = self._named([f"({index} >= 0) & ({index} < {size})"])
            if not p.skip:
                (bad,) = self._named([f"({mask}) & ({good} == 0)"])
                self.emit(f"tl.store(refusal + {bad}.to(tl.int32) * 0, 1, mask={bad})")
            (mask,) = self._named([f"({mask}) & {good}"])
            (step,) = self._named([f"tl.where({good}, {index}, 0).to(tl.int64 if WIDE else tl.int32)"])
            at = f"{at} + {step} * g{number}_{j}"
        return at, mask, not stream.places

    def _with_results(self, names: Sequence[str]) -> list[str]:
        """``names`` with the reductions that were computed since."""
        return [
            self.results[v.reduction][v.part] if isinstance(v, Result) and v.reduction in self.results else n
            for v, n in zip(self.k.values, names, strict=True)
        ]

    def _row_outputs(self, names: Sequence[str]) -> None:
        first = len(self.k.streams) - len(self.k.outputs)
        names = self._with_results(names)
        for j, expr in enumerate(self.k.results):
            if not self.k.stores_full(j):
                value = self._printer().value(expr, names)
                self._store(first + j, value, names, f"b{first + j}[:, None]", "some[:, None]")

    def _row_values(self) -> list[str]:
        """Values that are the same all along a row; others are empty."""
        names: list[str] = []
        number = 0
        for index, v in enumerate(self.k.values):
            if isinstance(v, Result):
                names.append(self.results[v.reduction][v.part])
                continue
            full = self.k._full(index)
            names.append("" if full else self._loaded(number, v, f"b{number}[:, None]", "some[:, None]", names))
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
            own = any(c != "0" for c in self.k.outputs[j].kinds[self.k.kept :])
            self._store(stream, value, names, f"t{stream}" if own else f"b{stream}[:, None]", "inside")

    def _store(self, stream: int, value: str, names: Sequence[str], at: str, mask: str) -> None:
        out = self.k.streams[stream]
        at, mask, _ = self._looked_up(stream, out, at, mask, names)
        function = f"tl.atomic_{out.combine}" if out.combine else "tl.store"
        order = ', sem="relaxed"' if out.combine else ""
        self.emit(f"{function}(p{stream} + {at}, {_stored(value, out.dtype)}, mask={mask}{order})")

    def _printer(self) -> TritonPrinter:
        self.count += 1
        return TritonPrinter(_Lines(self), f"x{self.count}_", short=self.short)


class _Lines(list[str]):
    """Lines of an expression, at the writer's depth."""

    def __init__(self, writer: LoopWriter) -> None:
        super().__init__()
        self._writer = writer

    def append(self, text: str) -> None:
        self._writer.emit(text)


def _number(e: Expr) -> str:
    value = e.value
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(int(value) if isinstance(value, bool) else value)


def _other(stream: Stream) -> str:
    value = stream.other
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


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
