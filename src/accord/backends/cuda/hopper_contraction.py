"""Contractions for Hopper's warp groups, as Gluon text: the second text of :class:`ContractionKernel`.

A block has three groups of warps. One asks the bulk copy engine for steps of A and B, which go through a ring of shared
memory; two multiply. They either make one tile *together*, each the upper or the lower half of its rows, so that a step
of B serves both; or take *turns*: each has a tile of its own, and while one finishes a tile and stores it the other has
the tensor cores. A block walks several tiles, so that copies for the next one start early.

Results pass through shared memory, a part of the columns at a time, and are stored by the copy engine where their rows
allow it.

Where rows of A are no matrix (images of a convolution), those of a tile are a *box*: so many images, lines and pixels.
The copy engine reads it once for each tap, moved by the tap, and puts zeros where it lies outside of the image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from accord.backends.cuda.code import KernelText, TensorMap
from accord.backends.cuda.contraction import BATCH, COLUMNS, DEPTH, ROWS, ContractionKernel
from accord.backends.cuda.contraction_writer import Writer
from accord.backends.cuda.lines import NEXT, WAIT
from accord.backends.cuda.printer import as_gluon
from accord.backends.cuda.walks import Side, Walk, box_of, order_of, stored_by_copies
from accord.expr.lang import bits
from accord.record import record

__all__ = ["PIECES", "HopperContraction", "has_registers", "shares_of"]

#: What is compiled in beside the width ``v`` of each pattern; ``BM`` is of the rows of one group of warps.
_CONSTANTS = ("BM", "BN", "BK", "STAGES", "GROUP", "VM", "VN", "VK")
#: Sums that a thread finishes at once.
_AT_ONCE = 64
#: Pieces of results that a group of warps has in shared memory.
PIECES = 2
#: Registers of a thread of a group of warps, by their number.
_REGISTERS = {2: 240, 3: 160}
#: Registers of a thread beside its sums with which all that finishes them is read ahead, one piece of it, or a row;
#: and with which operands of as many elements as there are results are read.
_FREE, _FREE_ONE, _FREE_ROW, _FREE_ROWS = 140, 100, 48, 64
#: Operands that are read so far ahead.
_FEW = 2


def shares_of(rows: int, columns: int, *, turns: bool) -> tuple[int, int, tuple[int, ...]]:
    """Groups of warps, rows of a group's tile, and its columns as powers of two, the largest first."""
    groups = 3 if rows % 3 == 0 else 2
    most = 256 if groups == 2 else 128  # three groups have no registers for 256 at once
    wholes, rest = divmod(columns, most)
    widths = (most,) * wholes + tuple(1 << i for i in range(most.bit_length() - 2, -1, -1) if rest >> i & 1)
    return groups, rows if turns else rows // groups, widths


def has_registers(kernel: ContractionKernel, rows: int, columns: int, *, turns: bool) -> bool:
    """Whether sums of a tile leave registers for what finishes them: operands of as many elements take more."""
    free = _free(*shares_of(rows, columns, turns=turns))
    by_row = any(p.kinds[1].strip("0") and p.kinds[2].strip("0") for p in kernel.extras)
    return free >= (_FREE_ROWS if by_row else 32)


def _free(groups: int, rows: int, widths: Sequence[int]) -> int:
    """Registers of a thread beside its sums."""
    return _REGISTERS[groups] - rows * sum(widths) // 128


@record
class HopperContraction(KernelText):
    """The Gluon text of one pattern of contractions; its parameters are those of the pattern.

    Attributes:
        kernel: The pattern.
        groups: Groups of warps that multiply.
        rows: Of a tile of such a group.
        widths: Columns of a tile, as powers of two.
        turns: Each group of warps has a tile of its own.
        copied: The copy engine stores results.
        piece: Columns that are stored at once.
        box: The rows of a group's tile, along each row axis; empty where rows are a matrix.
    """

    kernel: ContractionKernel
    groups: int
    rows: int
    widths: tuple[int, ...]
    turns: bool
    copied: bool
    piece: int
    box: tuple[Side, ...] = ()

    @staticmethod
    def of(
        kernel: ContractionKernel, sizes: Sequence[int], rows: int, columns: int, spare: int, *, turns: bool
    ) -> HopperContraction:
        """The text for tiles of so many rows and columns.

        Args:
            kernel: The pattern.
            sizes: Values of its ``names``.
            rows: Of a tile.
            columns: Of a tile, a multiple of 16 that is a sum of few powers of two.
            spare: Bytes of shared memory beside the steps of A and B.
            turns: Each group has a tile of its own.
        """
        groups, rows, widths = shares_of(rows, columns, turns=turns)
        piece = widths[-1]
        # where sums take most registers, few are finished at once
        free = _free(groups, rows, widths)
        most = _AT_ONCE if free >= _FREE_ONE else _AT_ONCE // 2
        while PIECES * groups * rows * piece * bits(kernel.out.dtype) // 8 > spare or rows * piece > 128 * most:
            piece //= 2
        copied, box = stored_by_copies(kernel, sizes), box_of(kernel, sizes, rows)
        return HopperContraction(kernel, groups, rows, widths, turns, copied, piece, box)

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = f"{self.kernel.symbol};{self.groups};{self.rows};{self.widths};{self.turns};{self.copied};{self.piece}"
        text += f";{self.box}" if self.box else ""
        return f"hopper_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def pointers(self) -> tuple[str, ...]:
        """See :class:`~accord.backends.cuda.code.KernelText`."""
        return self.kernel.pointers

    def maps(self, sizes: Sequence[int], step: int) -> tuple[TensorMap, ...]:
        """How the copy engine walks A, B and perhaps the result, with ``step`` elements of depth at once.

        Args:
            sizes: Values of the kernel's ``names``.
            step: Elements of the depth in a step.
        """
        return _Module(self).maps(sizes, step)

    def text(self) -> str:
        """The module."""
        return _Module(self).text()


_HEAD = """import triton
import triton.language as triton_language
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


"""


class _Module:
    """Writes the functions of a module."""

    def __init__(self, kernel: HopperContraction) -> None:
        self.h, self.k = kernel, kernel.kernel
        self.parts = range(len(kernel.widths))
        self.shares = 1 if kernel.turns else kernel.groups  # of A in a step
        self.last = len(self.k.patterns) - 1
        pointers = [*(f"p{i}" for i in range(self.last + 1)), "work"]
        b_maps = [f"b{p}_map" for p in self.parts]
        maps = ["a_map", *b_maps, *(["y_map"] if kernel.copied else [])]
        names = [*pointers, *self.k.integers]
        constants = [*self.k.sized, *_CONSTANTS, *(f"v{i}" for i in range(self.last + 1))]
        typed = [f"{n}: tl.constexpr" for n in constants]
        self.head, self.whole_head = (", ".join([*n, *typed]) for n in (names, [*pointers, *maps, *self.k.integers]))
        self.arguments = ", ".join([*names, *constants])
        b_tiles = ", ".join(f"b{p}_tiles" for p in self.parts)
        self.of_a, self.of_b = "a_map, a_tiles", f"{', '.join(b_maps)}, {b_tiles}"
        self.rings = "y_map, " * kernel.copied + f"a_tiles, {b_tiles}, y_tiles, full, empty" + ", turn" * kernel.turns
        writer = Writer(self.k, "")
        extras = range(self.last - len(self.k.extras), self.last)
        free = _free(kernel.groups, kernel.rows, kernel.widths)
        #: Extras that are read before they are needed, and so many pieces before.
        self.ahead = sum(kernel.widths) // kernel.piece if free >= _FREE and len(extras) <= _FEW else 1
        self.early = [i for i in extras if free >= (_FREE_ROW if writer.repeats(i, ROWS) else _FREE_ONE)]
        self.given = "".join(f", e{i}_" for i in self.early)

    def text(self) -> str:
        """All of them."""
        layout = "layout: tl.constexpr"
        written = {
            f"{self.h.symbol}({self.whole_head})": self.begin,
            f"produce_a({self.of_a}, full, empty, {self.head})": self.produce_a,
            f"produce_b({self.of_b}, full, empty, {self.head})": self.produce_b,
            f"consume({self.rings}, WHO: tl.constexpr, {self.head})": self.consume,
            f"early(which, row, column, WIDTH: tl.constexpr, {layout}, {self.head})": self.read_early,
            f"finished(acc{self.given}, which, row, column, {layout}, {self.head})": self.finished,
            f"keep(value, which, row, column, {layout}, {self.head})": self.keep,
        }
        texts = []
        for heading, write in written.items():
            writer = Writer(self.k, self.arguments)
            write(writer)
            texts.append(f"@gluon.jit\ndef {heading}:\n" + "\n".join(writer.lines))
        return as_gluon(_HEAD + "\n\n\n".join(texts) + "\n")

    # how the copy engine walks tensors

    def block(self, w: Writer, i: int, extents: Mapping[int, Any]) -> list[Any]:
        """A block of a tensor with so many rows, columns, or elements of depth."""
        sides: list[Any] = [1] * len(w.steps(i, BATCH))
        rows = [side.rows for side in self.h.box]
        if self.h.box and i == 0:
            return [*sides, *rows, *[1] * len(self.still), extents[DEPTH]]
        if self.h.box and i == self.last:
            return [*sides, *rows, extents[COLUMNS]]
        if self.h.box and len(w.axes[DEPTH]) > 1:
            sides.append(1)
        return sides + [extents[g] for g in order_of(self.k, i)]

    @property
    def still(self) -> list[int]:
        """Numbers of the depth axes, but the last, that move no rows."""
        return sorted(set(range(self.k.axes[DEPTH] - 1)) - {side.tap for side in self.h.box})

    def maps(self, sizes: Sequence[int], step: int) -> tuple[TensorMap, ...]:
        """In the order of parameters."""
        w, boxes = Writer(self.k, ""), bool(self.h.box)
        of_a = Walk.of_boxes(self.k, sizes) if boxes else Walk.of_matrix(self.k, 0, sizes)
        of_b = Walk.of_taps(self.k, sizes) if boxes else Walk.of_matrix(self.k, 1, sizes)
        assert of_a is not None and of_b is not None  # see suits_hopper

        def made(i: int, walk: Walk, extents: Mapping[int, int]) -> TensorMap:
            block = tuple(self.block(w, i, extents))
            return TensorMap(i, walk.offset, self.k.patterns[i].dtype, walk.shape, walk.strides, block, walk.steps)

        found = [made(0, of_a, {ROWS: self.h.rows, DEPTH: step})]
        found += [made(1, of_b, {DEPTH: step, COLUMNS: width}) for width in self.h.widths]
        if self.h.copied:
            of_y = Walk.of_matrix(self.k, self.last, sizes, rows=boxes)
            found.append(made(self.last, of_y, {ROWS: self.h.rows, COLUMNS: self.h.piece}))
        return tuple(found)

    def place(self, w: Writer, i: int, at: Mapping[int, str], spot: str = "at") -> str:
        """Where a block of a tensor is.

        Args:
            w: Writes the function.
            i: Number of the tensor.
            at: Where it is in a group.
            spot: What the names of a box's place begin with.
        """
        found = ["which" if a < 0 else f"c{a}" for a, _ in w.steps(i, BATCH)]
        if self.h.box and i == 0:
            for axis, side in zip(w.axes[ROWS], self.h.box, strict=True):
                tap = f" + c{w.axes[DEPTH][side.tap]} * {side.dilation}" if side.tap >= 0 else ""
                found.append(f"{spot}{axis} * {side.step}{tap} - {side.pad}")
            found += [f"c{w.axes[DEPTH][n]}" for n in self.still]
            return ", ".join([*found, at[DEPTH]])
        if self.h.box and i == self.last:
            return ", ".join([*found, *(f"{spot}{a}" for a in w.axes[ROWS]), at[COLUMNS]])
        if self.h.box and len(w.axes[DEPTH]) > 1:
            found.append("tap")
        return ", ".join([*found, *(at[g] for g in order_of(self.k, i))])

    def spots(self, w: Writer, row: str, spot: str = "at") -> None:
        """Where the box with a row begins."""
        if not self.h.box:
            return
        w.emit(f"rest = ({row}) // BM")
        axes = [(axis, side.rows) for axis, side in zip(w.axes[ROWS], self.h.box, strict=True)]
        for axis, side in axes[:0:-1]:
            w.emit(f"{spot}{axis} = rest % tl.cdiv(e{axis}, {side}) * {side}")
            w.emit(f"rest = rest // tl.cdiv(e{axis}, {side})")
        w.emit(f"{spot}{axes[0][0]} = rest * {axes[0][1]}")

    def seen(self, w: Writer, i: int, tile: str, extents: Mapping[int, str]) -> str:
        """A block of A or of B in shared memory as a matrix."""
        order = [ROWS, DEPTH] if self.h.box and i == 0 else order_of(self.k, i)
        turned = ".permute([1, 0])" * (order != [g for g in w.shares[i] if g != BATCH])
        return f"{tile}.reshape([{', '.join(extents[g] for g in order)}]){turned}"

    # functions

    def begin(self, w: Writer) -> None:
        """Shared memory, barriers, and who does what."""
        tiles = [("a", f"{self.shares} * STAGES", self.block(w, 0, {ROWS: "BM", DEPTH: "BK"}))]
        for p, width in enumerate(self.h.widths):
            tiles.append((f"b{p}", "STAGES", self.block(w, 1, {DEPTH: "BK", COLUMNS: width})))
        if self.h.copied:
            tiles.append(
                ("y", str(PIECES * self.h.groups), self.block(w, self.last, {ROWS: "BM", COLUMNS: self.h.piece}))
            )
        for name, count, block in tiles:
            shape = ", ".join([count, *map(str, block)])
            w.emit(f"{name}_tiles = tl.allocate_shared_memory({name}_map.dtype, [{shape}], {name}_map.layout)")
        if not self.h.copied:
            w.emit(f"y_type: tl.constexpr = p{self.last}.dtype.element_ty")
            w.emit(f"y_layout: tl.constexpr = tl.NVMMASharedLayout.get_default_for([BM, {self.h.piece}], y_type)")
            w.emit(
                f"y_tiles = tl.allocate_shared_memory(y_type, [{PIECES * self.h.groups}, BM, {self.h.piece}], y_layout)"
            )
        barriers = {"full": ("STAGES", 2), "empty": ("STAGES", self.shares)} | (
            {"turn": ("2", 1)} if self.h.turns else {}
        )
        for name, (count, arrivals) in barriers.items():
            w.emit(f"{name} = tl.allocate_shared_memory(tl.int64, [{count}, 1], mbarrier.MBarrierLayout())")
            with w.indented(f"for i in tl.static_range({count}):"):
                w.emit(f"mbarrier.init({name}.index(i), count={arrivals})")
        w.emit("fence_async_shared()")
        w.emit("tl.warp_specialize(")
        w.emit("    [")
        for who in range(self.h.groups):
            w.emit(f"        (consume, ({self.rings}, tl.constexpr({who}), {self.arguments})),")
        w.emit(f"        (produce_a, ({self.of_a}, full, empty, {self.arguments})),")
        w.emit(f"        (produce_b, ({self.of_b}, full, empty, {self.arguments})),")
        w.emit("    ],")
        multiplying = self.h.groups - 1
        w.emit(f"    {[4] * multiplying + [1, 1]},")
        w.emit(f"    {[_REGISTERS[self.h.groups]] * multiplying + [24, 24]},")
        w.emit(")")

    def sizes(self, w: Writer) -> None:
        """What a walk over tiles needs."""
        w.sizes()
        *taps, last = w.axes[DEPTH]
        w.emit(f"K = e{last} // VK * VK")
        w.emit("blocks = tl.cdiv(K, BK)")
        w.emit(" * ".join(["steps = blocks", *(f"e{a}" for a in taps)]))
        if self.h.box:
            counts = (f"tl.cdiv(e{a}, {side.rows})" for a, side in zip(w.axes[ROWS], self.h.box, strict=True))
            w.emit(f"M = {' * '.join(counts)} * BM")
        w.emit("products = " + (" * ".join(f"e{a}" for a in w.axes[BATCH]) or "1"))
        w.emit(f"HEIGHT: tl.constexpr = {self.shares} * BM")
        w.emit("tiles = products * tl.cdiv(M, HEIGHT) * tl.cdiv(N, BN)")

    def produce_a(self, w: Writer) -> None:
        """Ask for all steps of A of all tiles."""
        self.sizes(w)
        copies = []
        for share in range(self.shares):
            at = self.place(w, 0, {ROWS: f"row + {share} * BM", DEPTH: "start"}, f"at{share}_")
            copies.append(("a_map", at, f"a_tiles.index(stage * {self.shares} + {share})"))

        def begin() -> None:
            for share in range(self.shares):
                self.spots(w, f"row + {share} * BM", f"at{share}_")

        self.produce(w, "HEIGHT", copies, begin)
        w.emit(NEXT)  # all that this block multiplies is on its way

    def produce_b(self, w: Writer) -> None:
        """Ask for all steps of B of all tiles."""
        self.sizes(w)
        copies, first = [], 0
        for p, width in enumerate(self.h.widths):
            at = self.place(w, 1, {DEPTH: "start", COLUMNS: f"column + {first}"})
            copies.append((f"b{p}_map", at, f"b{p}_tiles.index(stage)"))
            first += width
        self.produce(w, "BN", copies)

    def produce(
        self, w: Writer, height: str, copies: Sequence[tuple[str, str, str]], begin: Callable[[], None] = lambda: None
    ) -> None:
        """Start ``copies`` (descriptor, place, tile) of each step; ``begin`` writes what a tile needs before."""
        w.emit(WAIT)
        w.emit("step = 0")
        with w.indented("for t in range(tl.program_id(0), tiles, tl.num_programs(0)):"):
            w.emit("tile = t")
            w.locate("HEIGHT")
            w.coordinates(BATCH)
            begin()
            with w.indented("for i in range(steps):"):
                w.emit("stage = step % STAGES")
                w.emit("mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)")
                w.emit(f"mbarrier.expect(full.index(stage), {height} * BK * {bits(self.k.product) // 8})")
                self.taps(w)
                for name, at, target in copies:
                    w.emit(f"load_tile({name}, [{at}], full.index(stage), {target})")
                w.emit("step += 1")

    def taps(self, w: Writer) -> None:
        """Where a step is along the axes of depth."""
        *taps, _ = w.axes[DEPTH]
        if not taps:
            w.emit("start = i * BK")
            return
        w.emit("start = i % blocks * BK")
        w.emit("tap = i // blocks")
        rest = "tap"
        for axis in taps[:0:-1]:
            w.emit(f"c{axis} = {rest} % e{axis}")
            w.emit(f"t{axis} = {rest} // e{axis}")
            rest = f"t{axis}"
        w.emit(f"c{taps[0]} = {rest}")

    def consume(self, w: Writer) -> None:
        """Multiply all steps of the tiles of a group of warps, and store."""
        who, every, share = ("WHO", 2, "stage") if self.h.turns else ("0", 1, f"stage * {self.shares} + WHO")
        self.sizes(w)
        w.emit(f"step = {who} * steps")
        if self.h.turns:
            w.emit("number = 0")
        width = self.h.widths[0]
        while width >= self.h.piece:
            w.emit(f"layout{width}: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16])")
            width //= 2
        if not self.h.copied:
            w.emit(f"across_rows: tl.constexpr = {self.coalesced()}")
        w.emit(WAIT)
        first = f"tl.program_id(0) + {who} * tl.num_programs(0)"
        sums = [f"sum{p}" for p in self.parts]
        with w.indented(f"for t in range({first}, tiles, {every} * tl.num_programs(0)):"):
            w.emit("tile = t")
            w.locate("HEIGHT")
            w.coordinates(BATCH)
            if not self.h.turns:
                w.emit("row += WHO * BM")
            if self.h.copied:
                self.spots(w, "row")
            for s, width in zip(sums, self.h.widths, strict=True):
                w.emit(f"{s} = tl.zeros([BM, {width}], tl.float32, layout=layout{width})")
            self.read_ahead(w, range(self.ahead))
            if (
                self.h.turns
            ):  # a barrier tells apart only the step that it waits for and the one before in the same place
                w.emit("mbarrier.wait(turn.index(WHO), (number & 1) ^ (1 - WHO))")
                w.emit("number += 1")
            with w.indented("for i in range(steps):"):
                w.emit("stage = step % STAGES")
                w.emit("mbarrier.wait(full.index(stage), (step // STAGES) & 1)")
                w.emit(f"a = {self.seen(w, 0, f'a_tiles.index({share})', {ROWS: 'BM', DEPTH: 'BK'})}")
                for p, (s, width) in enumerate(zip(sums, self.h.widths, strict=True)):
                    tile = self.seen(w, 1, f"b{p}_tiles.index(stage)", {DEPTH: "BK", COLUMNS: str(width)})
                    w.emit(f"b = {tile}")
                    w.emit(f"{s} = warpgroup_mma(a, b, {s}, use_acc=i > 0, is_async=True)")
                every_sum = ", ".join(sums)
                w.emit(f"{every_sum} = warpgroup_mma_wait({len(sums)}, deps=[{every_sum}])  # the step before was read")
                w.emit("mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=i > 0)")
                w.emit("step += 1")
            if self.h.turns:
                w.emit("mbarrier.arrive(turn.index(1 - WHO), count=1)")
            w.emit(f"{every_sum} = warpgroup_mma_wait(0, deps=[{every_sum}])")
            w.emit("mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)")
            if self.h.turns:
                w.emit("step += steps")
            first_column = 0
            for s, width in zip(sums, self.h.widths, strict=True):
                self.hand_on(w, s, first_column, width)
                first_column += width
        if self.h.copied:
            w.emit("tma.store_wait(0)")

    def read_ahead(self, w: Writer, pieces: Iterable[int]) -> None:
        """Ask for what finishes these pieces, those of them that exist."""
        for column in (p * self.h.piece for p in pieces):
            if self.early and column < sum(self.h.widths):
                names = ", ".join(f"e{i}_{column}" for i in self.early)
                place = f"which, row, column + {column}, {self.h.piece}, layout{self.h.piece}"
                w.emit(f"{names} = early({place}, {self.arguments})")

    def hand_on(self, w: Writer, name: str, first: int, width: int) -> None:
        """Store sums whose columns begin at ``first``, the first half of them first."""
        if width > self.h.piece:
            width //= 2
            w.emit(f"{name}0, {name}1 = tl.split(tl.permute(tl.reshape({name}, [BM, 2, {width}]), [0, 2, 1]))")
            for half in (0, 1):
                w.emit(f"{name}{half} = tl.convert_layout({name}{half}, layout{width})")
                self.hand_on(w, f"{name}{half}", first + half * width, width)
            return
        number, count = first // width, sum(self.h.widths) // width
        self.read_ahead(w, [number + self.ahead])
        column = f"column + {first}"
        given = "".join(f", e{i}_{first}" for i in self.early)
        w.emit(f"value = finished({name}{given}, which, row, {column}, layout{width}, {self.arguments})")
        w.emit(f"piece = y_tiles.index(WHO * {PIECES} + {number % 2})")
        plain = f"piece.reshape([BM, {width}])"
        if not self.h.copied:
            w.emit(f"{plain}.store(value)")
            w.emit(f"keep({plain}.load(across_rows), which, row, {column}, across_rows, {self.arguments})")
            return
        # what was stored from this piece of memory has been read
        w.emit(f"tma.store_wait({0 if number == 0 and count % 2 else 1})")
        w.emit(f"{plain}.store(value)")
        w.emit("fence_async_shared()")
        w.emit(f"store_tile(y_map, [{self.place(w, self.last, {ROWS: 'row', COLUMNS: column})}], piece)")

    def coalesced(self) -> str:
        """How warps hold results so that they store neighbours together."""
        if self.k.out.kinds[1].endswith("1"):
            return "tl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])"
        return "tl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])"

    def read_early(self, w: Writer) -> None:
        """Extras of a part of a tile that are the same in all rows."""
        self.here(w, "BM", "WIDTH")
        w.begin(self.early)
        w.emit(f"return {', '.join(map(w.extra, self.early)) or '0'}")

    def finished(self, w: Writer) -> None:
        """What is stored of a part of the sums."""
        self.here(w, "acc.shape[0]", "acc.shape[1]")
        value = w.finished({i: f"e{i}_" for i in self.early})
        if self.k.expr.dtype == "bool":
            value = f"({value}).to(tl.int8)"
        w.emit(f"return {value}")

    def keep(self, w: Writer) -> None:
        """Store a part of the results through pointers."""
        self.here(w, "value.shape[0]", "value.shape[1]")
        w.keep("value")

    def here(self, w: Writer, rows: str, columns: str) -> None:
        """The rows and columns of a part."""
        w.sizes()
        w.emit(f"n = column + tl.arange(0, {columns}, layout=tl.SliceLayout(0, layout))")
        w.emit("n_in = n < N")
        w.emit(f"m = tl.arange(0, {rows}, layout=tl.SliceLayout(1, layout))")
        if self.h.box:
            self.inside(w)
        else:
            w.emit("m = row + m")
            w.emit("m_in = m < M")

    def inside(self, w: Writer) -> None:
        """From places ``m`` in a box, coordinates, and the rows that these are."""
        self.spots(w, "row")
        axes = [(axis, side.rows) for axis, side in zip(w.axes[ROWS], self.h.box, strict=True)]
        for axis, side in axes[::-1]:
            w.emit(f"c{axis} = at{axis} + m % {side}")
            w.emit(f"m = m // {side}")
        w.emit(f"m = c{axes[0][0]}")
        for axis, _ in axes[1:]:
            w.emit(f"m = m * e{axis} + c{axis}")
        w.emit("m_in = " + " & ".join(f"(c{a} < e{a})" for a, _ in axes))
        w.placed = True
