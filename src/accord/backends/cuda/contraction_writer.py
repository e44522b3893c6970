"""The Triton text of contractions.

A tile's sums are made in steps of ``BK`` elements of the last depth axis, with one number for each other depth axis, so
that an element's place within a step is the same in all of them: only a scalar moves. Short last axes (three channels
of an image) are taken together with the others instead (``FLAT``).

Names: ``c0 ...`` coordinates along the axes, ``m n k which`` positions in the groups of rows, columns, depth and batch;
``b`` the first element of a tensor for this product, ``r`` what a row or a column adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from accord.backends.cuda.contraction import (
    BATCH,
    COLUMNS,
    DEPTH,
    MOST_BITS,
    ROWS,
    ContractionKernel,
    FactorPattern,
)
from accord.backends.cuda.lines import NEXT, WAIT
from accord.backends.cuda.printer import TYPES, TritonPrinter, short_of
from accord.expr.lang import FLOATS, topological

__all__ = ["CONSTANTS", "Writer", "module_of", "uses_sum"]

#: What is compiled in beside ``ContractionKernel.sized`` and the width ``v`` of each pattern.
CONSTANTS: Final = (
    "BM",
    "BN",
    "BK",
    "GROUP",
    "SPLITS",
    "PARTS",
    "DESCRIBED",
    "COPIED",
    "FLAT",
    "EVEN_M",
    "EVEN_N",
    "EVEN_K",
    "VM",
    "VN",
    "VK",
)
#: Taps up to which products of elements are written out.
_UNROLLED: Final = 49
_FLAT_NAMES: Final = ("which", "m", "n", "k")
_SIDE: Final = {ROWS: "[:, None]", COLUMNS: "[None, :]"}


def module_of(kernel: ContractionKernel) -> str:
    """The module: the function that multiplies, the one that adds parts, and what both do with sums."""
    names = [*(f"p{i}" for i in range(len(kernel.patterns))), "work", *kernel.integers]
    constants = [*kernel.sized, *CONSTANTS, *(f"v{i}" for i in range(len(kernel.patterns)))]
    head = ", ".join([*names, *(f"{n}: tl.constexpr" for n in constants)])
    parts = ["import triton\nimport triton.language as tl"]
    store = f"finish(acc, which, m, m_in, column, BC: tl.constexpr, {head})"
    writers = {
        store: Writer.finish,
        f"{kernel.symbol}({head})": Writer.multiply,
        f"{kernel.parts.symbol}({head})": Writer.add_parts,
    }
    for heading, write in writers.items():
        writer = Writer(kernel, ", ".join([*names, *constants]))
        write(writer)
        parts.append(f"@triton.jit\ndef {heading}:\n" + "\n".join(writer.lines))
    return "\n\n\n".join(parts) + "\n"


class _Lines(list[str]):
    """Lines at the depth that a writer is at."""

    depth = 1

    def append(self, text: str) -> None:
        super().append("    " * self.depth + text)


class Writer:
    """Writes the functions of one kernel.

    Args:
        kernel: The kernel.
        arguments: What a function hands on to another.
    """

    def __init__(self, kernel: ContractionKernel, arguments: str) -> None:
        self.k = kernel
        self.arguments = arguments
        self.lines = _Lines()
        self.emit = self.lines.append
        self.count = 0
        #: The coordinates of rows are known.
        self.placed = False
        ends = [sum(kernel.axes[:g]) for g in range(5)]
        self.axes = [list(range(ends[g], ends[g + 1])) for g in range(4)]
        self.shares = kernel.shares

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """What is emitted meanwhile belongs to ``head``, a line that ends with a colon."""
        self.emit(head)
        self.lines.depth += 1
        yield
        self.lines.depth -= 1

    def printer(self) -> TritonPrinter:
        """Of expressions at this place."""
        self.count += 1
        return TritonPrinter(self.lines, f"x{self.count}_", short=short_of([self.k.out.dtype]))

    # strides

    def kinds(self, i: int, group: int) -> str:
        """Of a tensor's axes of a group that it has."""
        return self.k.patterns[i].kinds[self.shares[i].index(group)]

    def repeats(self, i: int, group: int) -> bool:
        """Whether a tensor is the same all along a group."""
        return not self.kinds(i, group).strip("0")

    def steps(self, i: int, group: int) -> list[tuple[int, str]]:
        """Of a tensor's walk along a group: the axis, or -1 for all as one, and the stride's name, or "1"."""
        pattern, place = self.k.patterns[i], self.shares[i].index(group)
        number = "".join(pattern.kinds[:place]).count("s")
        kinds, found = pattern.kinds[place], []
        for axis, kind in zip(self.axes[group], kinds, strict=False):
            name = "1" if kind == "1" else f"s{i}_{number}"
            number += kind == "s"
            if kind != "0":
                found.append((-1 if len(kinds) < len(self.axes[group]) or len(kinds) == 1 else axis, name))
        return found

    def terms(self, i: int, group: int, *, scalar: bool = False) -> list[str]:
        """What the coordinates of a group add to a tensor's offset."""
        names = [(_FLAT_NAMES[group] if axis < 0 else f"c{axis}", stride) for axis, stride in self.steps(i, group)]
        wide = "tl.cast({}, tl.int64) * {}" if scalar else "{}.to(tl.int64) * {}"
        return [name if stride == "1" else wide.format(name, stride) for name, stride in names]

    def apart(self, group: int) -> bool:
        """Whether anything asks for the coordinates of a group one by one."""
        if len(self.axes[group]) < 2:
            return False
        if self.k.windows and group in (ROWS, DEPTH):
            return True
        owners = [i for i, share in enumerate(self.shares) if group in share]
        return any(axis >= 0 for i in owners for axis, _ in self.steps(i, group))

    def coordinates(self, group: int) -> None:
        """Coordinates from the position in a group."""
        if group == ROWS and self.placed:
            return
        rest, axes = _FLAT_NAMES[group], self.axes[group]
        if self.apart(group):
            for axis in axes[:0:-1]:
                self.emit(f"c{axis} = {rest} % e{axis}")
                self.emit(f"t{axis} = {rest} // e{axis}")
                rest = f"t{axis}"
        if axes:
            self.emit(f"c{axes[0]} = {rest}")

    # where a program is

    def sizes(self) -> None:
        """Multiples that are known by promise, then sizes of the groups."""
        for i, p in enumerate(self.k.patterns):
            for name in (f"o{i}", *(f"s{i}_{j}" for j in range(p.strides))):
                self.emit(f"{name} = {name} // v{i} * v{i}")
        for name, group, width in (("M", ROWS, "VM"), ("N", COLUMNS, "VN")):
            self.emit(f"{name} = {' * '.join(f'e{a}' for a in self.axes[group])} // {width} * {width}")

    def place(self) -> None:
        """The tile of a program."""
        self.sizes()
        self.emit("tile = tl.program_id(0)")
        self.locate("BM")
        self.emit("m = row + tl.arange(0, BM)")
        self.emit("n = column + tl.arange(0, BN)")
        self.emit("m_in = tl.full([BM], 1, tl.int1) if EVEN_M else m < M")
        self.emit("n_in = tl.full([BN], 1, tl.int1) if EVEN_N else n < N")

    def locate(self, height: str) -> None:
        """The product, and the first row and column, of a tile by its number."""
        self.emit("products = " + (" * ".join(f"e{a}" for a in self.axes[BATCH]) or "1"))
        self.emit(f"down = tl.cdiv(M, {height})")
        self.emit("across = tl.cdiv(N, BN)")
        self.emit("which = 0")
        if self.axes[BATCH]:
            self.emit("which = tile // (down * across)")
            self.emit("tile = tile % (down * across)")
        # tiles of GROUP rows go together, so that what they read stays in the cache
        self.emit("first = tile // (GROUP * across) * GROUP")
        self.emit("high = tl.minimum(down - first, GROUP)")
        self.emit("tile = tile % (GROUP * across)")
        self.emit(f"row = (first + tile % high) * {height}")
        self.emit("column = tile // high * BN")

    def begin(self, tensors: Sequence[int]) -> None:
        """Where tensors begin in a tile."""
        for group in (BATCH, ROWS, COLUMNS):
            self.coordinates(group)
        for i in tensors:
            moved = self.terms(i, BATCH) if BATCH in self.shares[i] else []
            self.emit(f"b{i} = " + " + ".join([f"tl.cast(o{i}, tl.int64)", *moved]))
            for group in (ROWS, COLUMNS):
                if group in self.shares[i] and (terms := self.terms(i, group)):
                    self.emit(f"r{i}_{group} = {' + '.join(terms)}")

    # sums

    def multiply(self) -> None:
        """The function that makes sums, and what follows them where they are whole."""
        self.place()
        self.begin(range(len(self.shares) - 1 - len(self.k.extras)))
        acc = TYPES[self.k.sums]
        self.emit(f"acc = tl.zeros([BM, BN], {acc})")
        if self.k.across:
            self.sum_across()
        elif self.k.describable:
            with self.indented("if DESCRIBED:"):
                self.sum(flat=False, described=True)
            with self.indented("else:"):
                self.sum(flat=False)
        elif len(self.axes[DEPTH]) == 1:
            self.sum(flat=False)
        else:
            with self.indented("if FLAT:"):
                self.sum(flat=True)
            with self.indented("else:"):
                self.sum(flat=False)
        self.emit(NEXT)
        with self.indented("if SPLITS == 1:"):
            self.store()
        with self.indented("else:"):
            self.emit(f"tl.store(work + {self.part('tl.program_id(1)')}, acc, mask=m_in[:, None] & n_in[None, :])")

    def part(self, number: str) -> str:
        """Where a part of this tile lies in the workspace."""
        which = f"({number}).to(tl.int64) * products" + (" + which" if self.axes[BATCH] else "")
        return f"(({which}) * M + m)[:, None] * N + n[None, :]"

    def sum(self, *, flat: bool, described: bool = False) -> None:
        """Sums in steps; ``described``: A and B are read by the unit that copies tiles."""
        axes, last = self.axes[DEPTH], f"e{self.axes[DEPTH][-1]}"
        several = len(axes) > 1
        outer = " * ".join(f"e{a}" for a in axes[:-1]) or "1"
        self.emit(f"K = {outer} * {last}" if flat else f"K = {last} // VK * VK")
        self.emit("blocks = (K + BK - 1) // BK")
        self.emit("total = blocks" if flat or not several else f"total = {outer} * blocks")
        self.emit("step = tl.arange(0, BK)")
        owners = [i for i, share in enumerate(self.shares) if DEPTH in share]
        if not flat:
            for i in owners:
                stride = self.inner(i)
                if stride:
                    self.emit(f"d{i} = " + ("step" if stride == "1" else f"step.to(tl.int64) * {stride}"))
                self.emit(f"a{i} = p{i} + ({self.within(i, flat=False)})")
        if described:
            self.describe()
        kept = {} if flat else self.kept_rows()
        self.emit("begin = 0 if SPLITS == 1 else total * tl.program_id(1) // SPLITS")
        self.emit("end = total if SPLITS == 1 else total * (tl.program_id(1) + 1) // SPLITS")
        self.emit(WAIT)
        with self.indented("for number in range(begin, end):"):
            if flat:
                self.emit("k = number * BK + step")
                self.emit("k_in = tl.full([BK], 1, tl.int1) if EVEN_K else k < K")
                self.coordinates(DEPTH)
                for i in owners:
                    if terms := self.terms(i, DEPTH):
                        self.emit(f"d{i} = {' + '.join(terms)}")
            else:
                self.scalars(last, owners)
            rows = [f"(taps{w} & (1 << c{axis}) != 0)" for w, axis in kept.items()] or ["m_in"]
            self.emit(f"a_in = ({' & '.join(rows)})[:, None] & k_in[None, :]")
            self.emit("b_in = k_in[:, None] & n_in[None, :]")
            self.windows("a_in", lambda axis: self.step_taps(axis, flat=flat), kept)
            if self.k.tail:
                place = f"k % {last}" if flat else "start + step"
                self.emit(f"counts = ({place} < {last} - {self.k.tail})[None, :]")
                with self.indented("if COPIED:"):
                    self.emit("a_in = a_in & counts")
            a = self.factor(self.k.a, 0, lambda i: self.read(i, "a_in", flat=flat, described=described), "a_in")
            if self.k.tail:  # what passes through registers is read in larger pieces than what a mask lets through
                with self.indented("if not COPIED:"):
                    self.emit(f"{a} = tl.where(counts, {a}, 0).to({a}.dtype)")
            b = self.factor(self.k.b, 1, lambda i: self.read(i, "b_in", flat=flat, described=described), "b_in")
            precision = f', input_precision="{self.k.precision}"' if self.k.product == "f32" else ""
            if self.k.precision == "whole":
                self.emit(f"acc += tl.dot({a}, {b}, out_dtype=tl.float32).to(tl.int32)")
            else:
                self.emit(f"acc = tl.dot({a}, {b}, acc, out_dtype={TYPES[self.k.sums]}{precision})")

    def inner(self, i: int) -> str | None:
        """The name of a tensor's stride along the last depth axis; None if it repeats."""
        last = self.axes[DEPTH][-1]
        return next((s for axis, s in self.steps(i, DEPTH) if axis in (-1, last)), None)

    def step_taps(self, axis: int, *, flat: bool) -> tuple[str, str]:
        """The numbers of a step along a depth axis, and how they are spread over A's tile."""
        if flat:
            return f"c{axis}", "[None, :]"
        return (f"c{axis} + step", "[None, :]") if axis == self.axes[DEPTH][-1] else (f"c{axis}", "")

    def scalars(self, last: str, owners: Sequence[int]) -> None:
        """Of a step along the last axis: the coordinates along the others, and where tensors are read."""
        axes = self.axes[DEPTH]
        if len(axes) == 1:
            self.emit("start = number * BK")
            self.emit("k = start")
        else:
            self.emit("start = number % blocks * BK")
            self.emit("rest = number // blocks")
            self.emit(f"k = rest * {last} + start")
            for axis in axes[-2:0:-1]:
                self.emit(f"c{axis} = rest % e{axis}")
                self.emit(f"rest = rest // e{axis}")
            self.emit(f"c{axes[0]} = rest")
        self.emit(f"c{axes[-1]} = start")
        self.emit("k_in = tl.full([BK], 1, tl.int1) if EVEN_K else start + step < K")
        for i in owners:
            if terms := self.terms(i, DEPTH, scalar=True):
                self.emit(f"f{i} = {' + '.join(terms)}")

    def sum_across(self) -> None:
        """Products of elements: a row of B with a tile of A for each number of the depth axes."""
        self.emit(f"TAPS: tl.constexpr = {' * '.join(f'e{a}' for a in self.axes[DEPTH])}")
        self.emit("a_in = m_in[:, None] & n_in[None, :]")
        self.emit(WAIT)
        for head in (f"if TAPS <= {_UNROLLED}:", "else:"):
            taps = "tl.static_range(TAPS)" if head[:2] == "if" else "range(TAPS)"
            with self.indented(head), self.indented(f"for tap in {taps}:"):
                self.tap()

    def tap(self) -> None:
        """One number of the depth axes."""
        acc = TYPES[self.k.sums]
        self.emit("k = tl.zeros([], tl.int32) + tap")
        self.coordinates(DEPTH)
        for i, share in enumerate(self.shares):
            if DEPTH in share and (terms := self.terms(i, DEPTH)):
                self.emit(f"f{i} = {' + '.join(terms)}")
        self.emit("there = a_in")
        self.windows("there", lambda axis: (f"c{axis}", ""))
        a = self.factor(self.k.a, 0, lambda i: self.load_across(i, "there"), "there")
        b = self.factor(self.k.b, 1, lambda i: self.load_across(i, "n_in[None, :]"), "n_in[None, :]")
        self.emit(f"acc += {a}.to({acc}) * {b}.to({acc})")

    def load_across(self, i: int, mask: str) -> str:
        """The name of a tile of A, or of a row of B."""
        base = f"b{i}" if self.repeats(i, DEPTH) else f"b{i} + f{i}"
        groups = [(g, name) for g, name in ((ROWS, "m"), (COLUMNS, "n")) if g in self.shares[i]]
        parts = [f"{name} * 0" if self.repeats(i, g) else f"r{i}_{g}" for g, name in groups]
        within = " + ".join(f"({part}){_SIDE[g]}" for part, (g, _) in zip(parts, groups, strict=True))
        return self.loaded(i, f"p{i} + ({base}) + ({within})", mask)

    def kept_rows(self) -> dict[int, int]:
        """Of windows whose tap is a scalar in each step, for each row the taps that count, as bits: window → axis."""
        kept = {}
        for w, window in enumerate(self.k.windows):
            if not window.few or window.depth < 0 or window.depth == len(self.axes[DEPTH]) - 1:
                continue
            kept[w] = self.axes[DEPTH][window.depth]
            row = f"c{self.axes[ROWS][window.row]}" if window.row >= 0 else "m * 0"
            self.emit(f"y{w} = {row} * w{w}_step - w{w}_pad")
            for name, end in (("high", f"w{w}_size - y{w}"), ("low", f"0 - y{w}")):  # taps before an end
                taps = f"tl.cdiv(tl.maximum({end}, 0), w{w}_dilation)"
                self.emit(f"{name} = (1 << tl.minimum({taps}, {MOST_BITS})) - 1")
            self.emit(f"taps{w} = tl.where(m_in, high & ~low, 0)")
        return kept

    def windows(self, mask: str, tap: Callable[[int], tuple[str, str]], done: Container[int] = ()) -> None:
        """Take from ``mask`` the elements of A that do not count.

        Args:
            mask: Its name.
            tap: The numbers along a depth axis, and how they are spread over a tile.
            done: Windows that it knows already.
        """
        for w, window in enumerate(self.k.windows):
            if w in done:
                continue
            at = f"tl.zeros([1, 1], tl.int32) - w{w}_pad"
            if window.row >= 0:
                at = f"(c{self.axes[ROWS][window.row]} * w{w}_step - w{w}_pad)[:, None]"
            if window.depth >= 0:
                numbers, spread = tap(self.axes[DEPTH][window.depth])
                at += f" + (({numbers}) * w{w}_dilation){spread}"
            self.emit(f"y{w} = {at}")
            self.emit(f"{mask} = {mask} & (y{w} >= 0) & (y{w} < w{w}_size)")

    def factor(self, f: FactorPattern, own: int, load: Callable[[int], str], mask: str) -> str:
        """The name of what is multiplied of A or of B."""
        loaded = [load(i) for i in (own, *self.extras_of(own))]
        if f.expr.op == "operand":
            return loaded[0]
        value = self.printer().value(f.expr, loaded)
        zero = "0.0" if f.expr.dtype in FLOATS else "0"
        # of an element that does not count the expression may be anything
        return self.named(f"tl.where({mask}, {value}, {zero}).to({TYPES[f.expr.dtype]})")

    def extras_of(self, own: int) -> range:
        """Numbers of the extras of A (0) or B (1)."""
        first = 2 + len(self.k.a.extras) * own
        return range(first, first + len((self.k.b if own else self.k.a).extras))

    def describe(self) -> None:
        """Descriptors of A and B; what lies outside of them is read as 0."""
        for i, (sizes, block) in enumerate(((("M", "K"), ("BM", "BK")), (("K", "N"), ("BK", "BN")))):
            group, stride = next(
                (g, s) for g in (ROWS, COLUMNS, DEPTH) if g in self.shares[i] for _, s in self.steps(i, g) if s != "1"
            )
            order = slice(None) if group == (DEPTH if i else ROWS) else slice(None, None, -1)
            self.emit(
                f"t{i} = tl.make_tensor_descriptor(p{i} + b{i}, shape=[{', '.join(sizes[order])}], "
                f"strides=[tl.cast({stride}, tl.int64), 1], block_shape=[{', '.join(block[order])}])"
            )

    def read(self, i: int, mask: str, *, flat: bool, described: bool) -> str:
        """The name of a step of a tensor."""
        return self.tile(i) if described and i < 2 else self.step(i, mask, flat=flat)

    def tile(self, i: int) -> str:
        """The name of a step of A or of B that is read through its descriptor."""
        pattern = self.k.patterns[i]
        at = ("start", "column") if i else ("row", "start")
        if pattern.kinds[2] == "1":  # neighbours lie along the tile's second axis
            return self.named(f"t{i}.load([{', '.join(at)}])")
        return self.named(f"t{i}.load([{', '.join(at[::-1])}]).T")

    def step(self, i: int, mask: str, *, flat: bool) -> str:
        """The name of a step of a tensor that is read through pointers."""
        if flat:
            return self.loaded(i, f"p{i} + ({self.within(i, flat=True)})", mask)
        return self.loaded(i, f"a{i}" if self.repeats(i, DEPTH) else f"a{i} + f{i}", mask)

    def within(self, i: int, *, flat: bool) -> str:
        """Where the elements of a step are; if not ``flat``, but for what is the same for all of them."""
        left = self.shares[i] == (BATCH, ROWS, DEPTH)
        group, sides = (ROWS, ("[:, None]", "[None, :]")) if left else (COLUMNS, ("[None, :]", "[:, None]"))
        parts = []
        if not self.repeats(i, group):
            parts.append(f"r{i}_{group}{sides[0]}")
        if not self.repeats(i, DEPTH) if flat else self.inner(i):
            parts.append(f"d{i}{sides[1]}")
        within = " + ".join(parts) or "0"
        if len(parts) < 2:
            shape = "[BM, BK]" if left else "[BK, BN]"
            within = f"tl.broadcast_to({within}, {shape})" if parts else f"tl.zeros({shape}, tl.int32)"
        return f"b{i} + ({within})"

    def loaded(self, i: int, at: str, mask: str) -> str:
        """The name of what is read of a tensor where ``mask`` is true, which is 0 elsewhere."""
        dtype = self.k.patterns[i].dtype
        other = "0.0" if dtype in FLOATS else "0"
        text = f"tl.load({at}, mask={mask}, other={other})" if mask else f"tl.load({at})"
        return self.named(f"{text} != 0" if dtype == "bool" else text)

    def named(self, text: str) -> str:
        """A name for a value."""
        self.count += 1
        self.emit(f"q{self.count} = {text}")
        return f"q{self.count}"

    # results

    def add_parts(self) -> None:
        """The function that adds parts."""
        self.place()
        acc = TYPES[self.k.sums]
        self.emit(f"acc = tl.zeros([BM, BN], {acc})")
        self.emit("inside = m_in[:, None] & n_in[None, :]")
        self.emit(WAIT)
        with self.indented("for number in range(SPLITS):"):
            at = self.part("tl.zeros([], tl.int32) + number")
            self.emit(f"acc += tl.load(work + {at}, mask=inside, other=0)")
        self.emit(NEXT)
        self.store()

    def store(self) -> None:
        """Hand on the sums; a part of the columns at a time, if many: what is read beside them takes registers."""
        with self.indented("if PARTS == 1:"):
            self.emit(f"finish(acc, which, m, m_in, column, BN, {self.arguments})")
        with self.indented("else:"):
            self.halve("acc", "column", 2)

    def halve(self, acc: str, column: str, parts: int) -> None:
        """Hand on the halves of ``acc``, which begin at ``column``, or their halves."""
        self.emit(f"{acc}0, {acc}1 = tl.split(tl.permute(tl.reshape({acc}, [BM, 2, BN // {parts}]), [0, 2, 1]))")
        for half, first in ((f"{acc}0", column), (f"{acc}1", f"{column} + BN // {parts}")):
            whole = f"finish({half}, which, m, m_in, {first}, BN // {parts}, {self.arguments})"
            if parts == 4:
                self.emit(whole)
                continue
            with self.indented("if PARTS == 2:"):
                self.emit(whole)
            with self.indented("else:"):
                self.halve(half, first, 4)

    def finish(self) -> None:
        """The function that stores the expression of the sums."""
        self.sizes()
        self.emit("n = column + tl.arange(0, BC)")
        self.emit("n_in = tl.full([BC], 1, tl.int1) if EVEN_N else n < N")
        value = self.finished()
        if not uses_sum(self.k):
            value = f"tl.broadcast_to({value}, [BM, BC])"
        self.keep(value)

    def finished(self, known: Mapping[int, str] = MappingProxyType({})) -> str:
        """The value of the expression of the sums ``acc``; ``known`` are names of extras that were read before."""
        last = len(self.k.patterns) - 1
        extras = range(last - len(self.k.extras), last)
        self.begin([i for i in extras if i not in known])
        return self.printer().value(self.k.expr, ["acc", *(known.get(i) or self.extra(i) for i in extras)])

    def keep(self, value: str) -> None:
        """Store results."""
        last = len(self.k.patterns) - 1
        self.begin([last])
        if self.k.expr.dtype == "bool":
            value = f"({value}).to(tl.int8)"
        for group, name in ((ROWS, "m"), (COLUMNS, "n")):
            if self.repeats(last, group):  # of one element
                self.emit(f"r{last}_{group} = {name} * 0")
        at = f"p{last} + b{last} + (r{last}_{ROWS}[:, None] + r{last}_{COLUMNS}[None, :])"
        self.emit(f"tl.store({at}, {value}, mask=m_in[:, None] & n_in[None, :])")

    def extra(self, i: int) -> str:
        """The name of a further operand's values: a tile, a column, a row, or one."""
        sides = [g for g in (ROWS, COLUMNS) if not self.repeats(i, g)]
        parts = [f"r{i}_{g}{_SIDE[g]}" for g in sides]
        masks = [{ROWS: "m_in", COLUMNS: "n_in"}[g] + _SIDE[g] for g in sides]
        at = f"p{i} + b{i}" + (f" + ({' + '.join(parts)})" if parts else "")
        return self.loaded(i, at, " & ".join(masks))


def uses_sum(kernel: ContractionKernel) -> bool:
    """Whether what is stored depends on the sums."""
    return any(n.op == "operand" and n.value == 0 for n in topological((kernel.expr,)))
