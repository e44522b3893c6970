"""Contractions for Hopper's warp groups, as Gluon text: the second text of :class:`ContractionKernel`.

A block has three groups of warps. One asks the bulk copy engine for steps of A and B, which go through a ring of shared
memory; two multiply. They either make one tile *together*, each the upper or the lower half of its rows, so that a step
of B serves both; or take *turns*: each has a tile of its own, and while one finishes a tile and stores it the other has
the tensor cores. A block walks several tiles, so that copies for the next one start early.

Results pass through shared memory, a part of the columns at a time, and are stored by the copy engine where their rows
allow it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from accord.backends.cuda.code import KernelText
from accord.backends.cuda.contraction import BATCH, COLUMNS, DEPTH, ROWS, ContractionKernel
from accord.backends.cuda.contraction_writer import Writer, uses_sum
from accord.expr.lang import bits
from accord.record import record

__all__ = ["CONSTANTS", "HopperContraction", "suits_hopper"]

#: What is compiled in beside the width ``v`` of each pattern; ``BM`` is of the rows of one group of warps.
CONSTANTS = ("BM", "BN", "BK", "STAGES", "GROUP", "VM", "VN", "VK")
#: Bytes of a part of a group's tile that is on its way to memory.
STORED = 8192
#: Axes that the copy engine walks.
_MOST_AXES = 5
_CACHE_LINE = 8


def suits_hopper(kernel: ContractionKernel, sizes: Sequence[int]) -> bool:
    """Whether the kernel exists for a pattern, with values of its integers that the copy engine takes.

    The memory's addresses have to be whole 16 bytes too.
    """
    if kernel.product not in ("f16", "bf16") or not kernel.describable or not uses_sum(kernel):
        return False
    factors = (kernel.a, kernel.b)
    if any(f.expr.op != "operand" or len(f.own.kinds[0].replace("0", "")) + 2 > _MOST_AXES for f in factors):
        return False
    values = dict(zip(kernel.names, sizes, strict=True))
    strides = [values[f"s{i}_{j}"] for i, f in enumerate(factors) for j in range(f.own.strides)]
    whole = all(n % _CACHE_LINE == 0 for n in (*strides, values["o0"], values["o1"]))
    return whole and min(*strides, *sizes[: sum(kernel.axes)]) > 0


def _stored_by_copies(kernel: ContractionKernel, sizes: Sequence[int]) -> bool:
    """Whether the copy engine can store the results."""
    out, last = kernel.out, len(kernel.patterns) - 1
    if out.kinds[1:] != ("s", "1") or out.dtype == "bool" or "0" in out.kinds[0]:
        return False
    values = dict(zip(kernel.names, sizes, strict=True))
    numbers = [values[f"s{last}_{j}"] for j in range(out.strides)]
    item = 128 // bits(out.dtype)
    return (
        min(numbers) > 0 and all(n % item == 0 for n in (*numbers, values[f"o{last}"])) and len(out.kinds[0]) + 2 <= 5
    )


@record
class HopperContraction(KernelText):
    """The Gluon text of one pattern of contractions; its parameters are those of the pattern.

    Attributes:
        kernel: The pattern.
        turns: Each group of warps has a tile of its own.
        pieces: Parts of the columns of a tile that are stored one after the other; a power of two.
        copied: The copy engine stores results.
    """

    kernel: ContractionKernel
    turns: bool
    pieces: int
    copied: bool

    @staticmethod
    def of(kernel: ContractionKernel, sizes: Sequence[int], m: int, n: int, *, turns: bool) -> HopperContraction:
        """The text for tiles of ``m`` rows of a group of warps and ``n`` columns."""
        pieces = max(1, m * n * bits(kernel.out.dtype) // (8 * STORED))
        return HopperContraction(kernel, turns, pieces, _stored_by_copies(kernel, sizes))

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = f"{self.kernel.symbol};{self.turns};{self.pieces};{self.copied}"
        return f"hopper_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def pointers(self) -> tuple[str, ...]:
        """See :class:`~accord.backends.cuda.code.KernelText`."""
        return self.kernel.pointers

    def text(self) -> str:
        """The module."""
        return _Module(self).text()


_HEAD = """import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


"""


class _Module:
    """Writes the functions of a module."""

    tiles = "a_tiles, b_tiles, full, empty"

    def __init__(self, kernel: HopperContraction) -> None:
        self.h, self.k = kernel, kernel.kernel
        self.shared = 1 if kernel.turns else 2  # parts of A in a step
        self.names = [*(f"p{i}" for i in range(len(self.k.patterns))), "work", *self.k.integers]
        constants = [*self.k.sized, *CONSTANTS, *(f"v{i}" for i in range(len(self.k.patterns)))]
        self.head = ", ".join([*self.names, *(f"{n}: tl.constexpr" for n in constants)])
        self.arguments = ", ".join([*self.names, *constants])

    def text(self) -> str:
        """All of them."""
        turn = ", turn" * self.h.turns
        written = {
            f"{self.h.symbol}({self.head})": self.begin,
            f"produce({self.tiles}, {self.head})": self.produce,
            f"consume(y_tiles, {self.tiles}{turn}, WHO: tl.constexpr, {self.head})": self.consume,
            f"finished(acc, which, row, column, layout: tl.constexpr, {self.head})": self.finished,
            f"keep(value, which, row, column, layout: tl.constexpr, {self.head})": self.keep,
        }
        parts = []
        for heading, write in written.items():
            writer = Writer(self.k, self.arguments)
            write(writer)
            parts.append(f"@gluon.jit\ndef {heading}:\n" + "\n".join(writer.lines))
        return _HEAD + "\n\n\n".join(parts) + "\n"

    # descriptors

    def walk(self, w: Writer, i: int, block: tuple[str, str]) -> tuple[str, str, str]:
        """How the copy engine walks a tensor: its shape, its strides, a block; the last axis has neighbours."""
        sizes = {ROWS: "M", COLUMNS: "N", DEPTH: "K"}
        batch = w.steps(i, BATCH)
        groups = [g for g in w.shares[i] if g != BATCH]
        if w.steps(i, groups[1])[0][1] != "1":
            groups, block = groups[::-1], block[::-1]
        shape = [*("products" if a < 0 else f"e{a}" for a, _ in batch), *(sizes[g] for g in groups)]
        strides = [*(s for _, s in batch), w.steps(i, groups[0])[0][1], "1"]
        return ", ".join(shape), ", ".join(strides), ", ".join([*["1"] * len(batch), *block])

    def describe(self, w: Writer, i: int, name: str, block: tuple[str, str], layout: str) -> None:
        """Make the descriptor ``name``."""
        shape, strides, size = self.walk(w, i, block)
        w.emit(f"{name} = tma.make_tensor_descriptor(p{i} + o{i}, [{shape}], [{strides}], [{size}], {layout})")

    def place(self, w: Writer, i: int, at: tuple[str, str]) -> str:
        """Where a block of a tensor is."""
        group = w.shares[i][2]
        order = at if w.steps(i, group)[0][1] == "1" else at[::-1]
        return ", ".join([*("which" if a < 0 else f"c{a}" for a, _ in w.steps(i, BATCH)), *order])

    def seen(self, w: Writer, i: int, tile: str, block: tuple[str, str]) -> str:
        """A block of A or of B in shared memory as a matrix."""
        if w.steps(i, w.shares[i][2])[0][1] == "1":
            return f"{tile}.reshape([{', '.join(block)}])"
        return f"{tile}.reshape([{', '.join(block[::-1])}]).permute([1, 0])"

    # functions

    def sizes(self, w: Writer, group: str) -> None:
        """What a walk over tiles needs."""
        w.sizes()
        w.emit(f"K = e{w.axes[DEPTH][0]} // VK * VK")
        w.emit("steps = tl.cdiv(K, BK)")
        w.emit("products = " + (" * ".join(f"e{a}" for a in w.axes[BATCH]) or "1"))
        w.emit(f"HEIGHT: tl.constexpr = {self.shared} * BM")
        w.emit("tiles = products * tl.cdiv(M, HEIGHT) * tl.cdiv(N, BN)")
        w.emit(group)

    def begin(self, w: Writer) -> None:
        """Shared memory, barriers, and who does what."""
        blocks = [self.walk(w, i, b)[2] for i, b in enumerate((("BM", "BK"), ("BK", "BN")))]
        rank = len(w.steps(len(self.k.patterns) - 1, BATCH)) if self.h.copied else 0
        blocks.append(", ".join([*["1"] * rank, "BM", f"BN // {self.h.pieces}"]))
        kinds = ("p0", "p1", f"p{len(self.k.patterns) - 1}")
        counts = (f"{self.shared} * STAGES", "STAGES", "4")
        for name, block, kind, count in zip("aby", blocks, kinds, counts, strict=True):
            w.emit(f"{name}_type: tl.constexpr = {kind}.dtype.element_ty")
            w.emit(f"{name}_layout: tl.constexpr = tl.NVMMASharedLayout.get_default_for([{block}], {name}_type)")
            w.emit(f"{name}_tiles = tl.allocate_shared_memory({name}_type, [{count}, {block}], {name}_layout)")
        for name in ("full", "empty"):
            w.emit(f"{name} = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
        with w.indented("for i in tl.static_range(STAGES):"):
            w.emit("mbarrier.init(full.index(i), count=1)")
            w.emit(f"mbarrier.init(empty.index(i), count={self.shared})")
        if self.h.turns:
            w.emit("turn = tl.allocate_shared_memory(tl.int64, [2, 1], mbarrier.MBarrierLayout())")
            with w.indented("for i in tl.static_range(2):"):
                w.emit("mbarrier.init(turn.index(i), count=1)")
        w.emit("fence_async_shared()")
        w.emit("tl.warp_specialize(")
        w.emit("    [")
        turn = ", turn" * self.h.turns
        for who in (0, 1):
            w.emit(f"        (consume, (y_tiles, {self.tiles}{turn}, tl.constexpr({who}), {self.arguments})),")
        w.emit(f"        (produce, ({self.tiles}, {self.arguments})),")
        w.emit("    ],")
        w.emit("    [4, 1],")
        w.emit("    [240, 24],")
        w.emit(")")

    def produce(self, w: Writer) -> None:
        """Ask for all steps of all tiles."""
        self.sizes(w, "step = 0")
        self.describe(w, 0, "a", ("BM", "BK"), "a_tiles.layout")
        self.describe(w, 1, "b", ("BK", "BN"), "b_tiles.layout")
        w.emit(f"BYTES: tl.constexpr = (HEIGHT + BN) * BK * {bits(self.k.product) // 8}")
        with w.indented("for t in range(tl.program_id(0), tiles, tl.num_programs(0)):"):
            w.emit("tile = t")
            w.locate("HEIGHT")
            w.coordinates(BATCH)
            with w.indented("for i in range(steps):"):
                w.emit("stage = step % STAGES")
                w.emit("mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)")
                w.emit("mbarrier.expect(full.index(stage), BYTES)")
                w.emit("start = i * BK")
                for part in range(self.shared):
                    at = self.place(w, 0, (f"row + {part} * BM", "start"))
                    tile = f"a_tiles.index(stage * {self.shared} + {part})"
                    w.emit(f"load_tile(a, [{at}], full.index(stage), {tile})")
                at = self.place(w, 1, ("start", "column"))
                w.emit(f"load_tile(b, [{at}], full.index(stage), b_tiles.index(stage))")
                w.emit("step += 1")

    def consume(self, w: Writer) -> None:
        """Multiply all steps of the tiles of a group of warps, and store."""
        last = len(self.k.patterns) - 1
        who, every, part = ("WHO", 2, "stage") if self.h.turns else ("0", 1, "stage * 2 + WHO")
        self.sizes(w, f"step = {who} * steps")
        if self.h.turns:
            w.emit("number = 0")
        parts = 1
        while parts <= self.h.pieces:
            layout = f"tl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN // {parts}, 16])"
            w.emit(f"layout{parts}: tl.constexpr = {layout}")
            parts *= 2
        if self.h.copied:
            self.describe(w, last, "results", ("BM", f"BN // {self.h.pieces}"), "y_tiles.layout")
        else:
            w.emit(f"across_rows: tl.constexpr = {self.coalesced()}")
        first = f"tl.program_id(0) + {who} * tl.num_programs(0)"
        with w.indented(f"for t in range({first}, tiles, {every} * tl.num_programs(0)):"):
            w.emit("tile = t")
            w.locate("HEIGHT")
            w.coordinates(BATCH)
            w.emit("acc = tl.zeros([BM, BN], tl.float32, layout=layout1)")
            if self.h.turns:  # a barrier tells apart only the step that it waits for and the one before in the same place
                w.emit("mbarrier.wait(turn.index(WHO), (number & 1) ^ (1 - WHO))")
                w.emit("number += 1")
            with w.indented("for i in range(steps):"):
                w.emit("stage = step % STAGES")
                w.emit("mbarrier.wait(full.index(stage), (step // STAGES) & 1)")
                w.emit(f"x = {self.seen(w, 0, f'a_tiles.index({part})', ('BM', 'BK'))}")
                w.emit(f"y = {self.seen(w, 1, 'b_tiles.index(stage)', ('BK', 'BN'))}")
                w.emit("acc = warpgroup_mma(x, y, acc, use_acc=i > 0, is_async=True)")
                w.emit("acc = warpgroup_mma_wait(1, deps=[acc])  # the step before has been read")
                w.emit("mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=i > 0)")
                w.emit("step += 1")
            if self.h.turns:
                w.emit("mbarrier.arrive(turn.index(1 - WHO), count=1)")
            w.emit("acc = warpgroup_mma_wait(0, deps=[acc])")
            w.emit("mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)")
            if self.h.turns:
                w.emit("step += steps")
            else:
                w.emit("row += WHO * BM")
            self.hand_on(w, "acc", 1, 0)
        if self.h.copied:
            w.emit("tma.store_wait(0)")

    def hand_on(self, w: Writer, name: str, parts: int, number: int) -> None:
        """Store part ``number`` of ``parts`` of the columns, the first half of it first."""
        if parts < self.h.pieces:
            width = f"BN // {2 * parts}"
            w.emit(f"{name}0, {name}1 = tl.split(tl.permute(tl.reshape({name}, [BM, 2, {width}]), [0, 2, 1]))")
            for half in (0, 1):
                w.emit(f"{name}{half} = tl.convert_layout({name}{half}, layout{2 * parts})")
                self.hand_on(w, f"{name}{half}", 2 * parts, 2 * number + half)
            return
        layout = f"layout{parts}"
        column = f"column + {number} * (BN // {parts})"
        w.emit(f"value = finished({name}, which, row, {column}, {layout}, {self.arguments})")
        w.emit(f"piece = y_tiles.index(WHO * 2 + {number % 2})")
        plain = f"piece.reshape([BM, BN // {parts}])"
        if self.h.copied:
            w.emit(f"tma.store_wait({min(1, parts - 1)})  # what was stored from this piece has been read")
            w.emit(f"{plain}.store(value)")
            w.emit("fence_async_shared()")
            at = self.place(w, len(self.k.patterns) - 1, ("row", column))
            w.emit(f"store_tile(results, [{at}], piece)")
            return
        w.emit(f"{plain}.store(value)")
        w.emit(f"keep({plain}.load(across_rows), which, row, {column}, across_rows, {self.arguments})")

    def coalesced(self) -> str:
        """How warps hold results so that they store neighbours together."""
        if self.k.out.kinds[1].endswith("1"):
            return "tl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])"
        return "tl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])"

    def finished(self, w: Writer) -> None:
        """What is stored of a part of the sums."""
        self.here(w, "acc")
        value = w.finished()
        if self.k.expr.dtype == "bool":
            value = f"({value}).to(tl.int8)"
        w.emit(f"return {value}")

    def keep(self, w: Writer) -> None:
        """Store a part of the results through pointers."""
        self.here(w, "value")
        w.keep("value")

    def here(self, w: Writer, of: str) -> None:
        """The rows and columns of a part."""
        w.sizes()
        w.emit(f"m = row + tl.arange(0, {of}.shape[0], layout=tl.SliceLayout(1, layout))")
        w.emit(f"n = column + tl.arange(0, {of}.shape[1], layout=tl.SliceLayout(0, layout))")
        w.emit("m_in = m < M")
        w.emit("n_in = n < N")
