"""Attention for Hopper's warp groups, as Gluon text: Shah et al., "FlashAttention-3", 2024.

A block has three groups of warps. One asks the bulk copy engine for queries, keys and values; two have 64 queries each.
Such a group starts the products of the next keys and those of its last probabilities with their values, and computes
probabilities while these run; the groups take turns in starting products, so that the tensor cores are busy with one
while the other computes exponentials. A block walks several tiles, so that copies for the next one start early.

Gluon is Triton's language of layouts and barriers; it has no interpreter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from accord.backends.cuda.attention import AttentionKernel
from accord.backends.cuda.attention_writer import LOG2E, write_bounds, write_scores
from accord.backends.cuda.code import KernelText
from accord.backends.cuda.lines import NEXT, WAIT, Code, ceildiv
from accord.backends.cuda.printer import as_gluon
from accord.record import record

__all__ = ["HopperAttention", "HopperGeometry", "HopperTiles", "hopper_candidates", "hopper_geometry", "suits_hopper"]

#: Queries of a block, and of one of its groups.
ROWS, _GROUP = 128, 64
_WARPS = 4


@record
class HopperTiles:
    """How the kernel is compiled and started.

    Attributes:
        keys: Of a step.
        stages: Steps whose keys and values are in shared memory at once.
        turns: The groups take turns.
        persistent: A block for each multiprocessor; otherwise one for each tile.
    """

    keys: int = 128
    stages: int = 2
    turns: bool = True
    persistent: bool = True


@record
class HopperGeometry:
    """How the kernel is started.

    Attributes:
        grid: Blocks.
        constants: Compile-time parameters.
        warps: Of the first group; the compiler adds the others.
    """

    grid: int
    constants: Mapping[str, int | bool]
    warps: int = _WARPS


@record
class HopperAttention(KernelText):
    """The Gluon text of one pattern of attention; parameters are those of the pattern."""

    kernel: AttentionKernel

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"hopper_{hashlib.sha256(self.kernel.symbol.encode()).hexdigest()[:24]}"

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of its memory."""
        return self.kernel.pointers

    def text(self) -> str:
        """The module."""
        k = self.kernel
        own = ", ".join((*(["n"] if k.valid else []), "length", "keys", "offset", *_windows(k)))
        parameters = [*k.memory, *k.names, *(f"{c}: tl.constexpr" for c in _CONSTANTS)]
        values = {
            "BOUNDS": own,
            "NAME": self.symbol,
            "PARAMETERS": ", ".join(parameters),
            "SIZE": k.size,
            "HAS_LEFT": k.left,
            "LEFT": "left" if k.left else 0,
            "RIGHT": "right" if k.right else 0,
            "WAIT": WAIT,
            "NEXT": NEXT,
        }
        text = _TEMPLATE
        for name, value in values.items():
            text = text.replace(f"<{name}>", str(value))
        return as_gluon(f"{text}\n\n{_bounds(k, own)}\n\n{_softmax(k)}")


_CONSTANTS = ("BLOCK_K", "STAGES", "TURNS", "IN_PAIRS")


def suits_hopper(kernel: AttentionKernel, sizes: Sequence[int]) -> bool:
    """Whether the kernel exists for a pattern, with values of its integer parameters that the copy engine takes.

    The memory's addresses have to be whole 16 bytes too.
    """
    values = dict(zip(kernel.names, sizes, strict=True))
    strides = [values[f"{t}_{a}"] for t in "qkvy" for a in "obhl"]
    return (
        kernel.fast
        and len({kernel.query, kernel.key, kernel.value, kernel.out}) == 1
        and kernel.size == kernel.value_size in (64, 128)
        and kernel.mask is None
        and not kernel.split
        and all(s % 8 == 0 for s in strides)
        and all(values[f"{t}_l"] > 0 for t in "qkvy")
        and min(values[n] for n in ("images", "heads", "length", "keys")) > 0
    )


def hopper_candidates(kernel: AttentionKernel) -> tuple[HopperTiles, ...]:
    """Tiles worth a measurement, the likely best first."""
    first = HopperTiles(stages=2 if kernel.size == 128 else 4)
    others = [(128, first.stages, False, True), (128, first.stages, True, False), (64, 4, True, True)]
    return (first, *(HopperTiles(*o) for o in others))


def hopper_geometry(
    kernel: AttentionKernel, tiles: HopperTiles, sizes: Sequence[int], processors: int
) -> HopperGeometry:
    """The launch for values of the kernel's integer parameters on a GPU with so many multiprocessors."""
    images, heads, _, length, _ = sizes[:5]
    count = ceildiv(length, ROWS) * images * heads
    programs = min(count, processors) if tiles.persistent else count
    constants: dict[str, int | bool] = {"BLOCK_K": tiles.keys, "STAGES": tiles.stages, "TURNS": tiles.turns}
    # one tile after the other wastes 13 % of 132 multiprocessors' time with 64 heads of 4096 causal queries
    constants["IN_PAIRS"] = kernel.causal and programs < count
    return HopperGeometry(programs, constants)


def _windows(k: AttentionKernel) -> list[str]:
    return [n for n, present in (("left", k.left), ("right", k.right), ("valid_step", k.valid)) if present]


def _bounds(k: AttentionKernel, own: str) -> str:
    """Blocks of keys that queries from ``first`` to ``last`` see, and where the first query is."""
    code = Code()
    write_bounds(code, k)
    code("return low // BLOCK_K, tl.cdiv(high, BLOCK_K), all_low // BLOCK_K, all_high // BLOCK_K, here, limit")
    return code.function("bounds", ["first", "last", "image", own, "BLOCK_K: tl.constexpr"], "gluon")


def _softmax(k: AttentionKernel) -> str:
    """From products to probabilities."""
    code = Code()
    code("j = at + tl.arange(0, BLOCK_K, layout=tl.SliceLayout(0, layout))")
    plain = k.score is None and not k.softcap and k.scale > 0
    factor = f" * {k.scale * LOG2E!r}" if plain else ""
    if not plain:
        write_scores(code, k, "x", "head.to(tl.float32)")
    with code.indented("if EDGE:"):
        seen = ["(j < limit)[None, :]"]
        seen += ["(j[None, :] <= place[:, None])"] * k.causal
        seen += ["(place[:, None] - j[None, :] <= left)"] * k.left
        seen += ["(j[None, :] - place[:, None] <= right)"] * k.right
        code(f's = tl.where({" & ".join(seen)}, s, float("-inf"))')
    code(f"higher = tl.maximum(peak, tl.max(s, 1){factor})", "base = higher")
    with code.indented(f"if EDGE or {k.score is not None}:"):
        code('base = tl.where(higher == float("-inf"), 0.0, higher)')
    code(
        f"p = tl.exp2(s{factor} - base[:, None])",
        "kept = tl.exp2(peak - base)",
        "return p, higher, total * kept + tl.sum(p, 1), kept",
    )
    names = ["s", "peak", "total", "place", "head", "heads", "at", "limit", "left", "right"]
    constants = [f"{n}: tl.constexpr" for n in ("BLOCK_K", "EDGE", "layout")]
    return code.function("softmax", [*names, *constants], "gluon")


_TEMPLATE = """import triton
import triton.language as triton_language
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def <NAME>(<PARAMETERS>):
    dtype: tl.constexpr = q.dtype.element_ty
    SIZE: tl.constexpr = <SIZE>
    q_layout: tl.constexpr = tl.NVMMASharedLayout.get_default_for([1, 1, 64, SIZE], dtype)
    k_layout: tl.constexpr = tl.NVMMASharedLayout.get_default_for([1, 1, BLOCK_K, SIZE], dtype)
    q_tiles = tl.allocate_shared_memory(dtype, [2, 1, 1, 64, SIZE], q_layout)
    y_tiles = tl.allocate_shared_memory(dtype, [2, 1, 1, 64, SIZE], q_layout)
    k_tiles = tl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_K, SIZE], k_layout)
    v_tiles = tl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_K, SIZE], k_layout)
    q_full = tl.allocate_shared_memory(tl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = tl.allocate_shared_memory(tl.int64, [1], mbarrier.MBarrierLayout())
    k_full = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = tl.allocate_shared_memory(tl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_empty, count=2)
    for i in tl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    mbarrier.init(turn.index(0), count=1)
    mbarrier.init(turn.index(1), count=1)
    fence_async_shared()
    members = heads // groups
    blocks = tl.cdiv(length, 128)
    tiles = images * heads * blocks
    tl.warp_specialize(
        [
            (consume, (
                y + y_o, y_b, y_h, y_l, q_tiles, y_tiles, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full,
                v_empty, turn, images, heads, blocks, tiles, <BOUNDS>,
                tl.constexpr(0), BLOCK_K, STAGES, TURNS, IN_PAIRS)),
            (consume, (
                y + y_o, y_b, y_h, y_l, q_tiles, y_tiles, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full,
                v_empty, turn, images, heads, blocks, tiles, <BOUNDS>,
                tl.constexpr(1), BLOCK_K, STAGES, TURNS, IN_PAIRS)),
            (produce, (
                q + q_o, q_b, q_h, q_l, k + k_o, k_b, k_h, k_l, v + v_o, v_b, v_h, v_l, q_tiles, k_tiles, v_tiles,
                q_full, q_empty, k_full, k_empty, v_full, v_empty, images, heads, groups, members, blocks, tiles,
                <BOUNDS>, BLOCK_K, STAGES, IN_PAIRS)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def tiles_of_block(tiles, IN_PAIRS: tl.constexpr):
    # how many tiles a block has
    if IN_PAIRS:
        return tl.cdiv(tl.maximum(tl.cdiv(tiles, 2) - tl.program_id(0), 0), tl.num_programs(0)) * 2
    return tl.cdiv(tl.maximum(tiles - tl.program_id(0), 0), tl.num_programs(0))


@gluon.jit
def tile_of(tile, heads, blocks, tiles, IN_PAIRS: tl.constexpr):
    # image, head, and first query; the tile that sees most keys of a head is followed by the one that sees fewest
    if IN_PAIRS:
        number = tile // 2 * tl.num_programs(0) + tl.program_id(0)
        t = tl.minimum(number * 2 + tile % 2, tiles - 1)  # of an odd number the last one is made twice
        place = t % blocks
        block = tl.where(place % 2 == 0, blocks - 1 - place // 2, place // 2)
    else:
        t = tile * tl.num_programs(0) + tl.program_id(0)
        block = blocks - 1 - t % blocks
    pair = t // blocks
    return pair // heads, pair % heads, block * 128


@gluon.jit
def produce(
    q, q_b, q_h, q_l, k, k_b, k_h, k_l, v, v_b, v_h, v_l, q_tiles, k_tiles, v_tiles,
    q_full, q_empty, k_full, k_empty, v_full, v_empty, images, heads, groups, members, blocks, tiles, <BOUNDS>,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, IN_PAIRS: tl.constexpr,
):
    SIZE: tl.constexpr = q_tiles.shape[4]
    BYTES: tl.constexpr = BLOCK_K * SIZE * 2
    queries = tma.make_tensor_descriptor(
        q, [images, heads, length, SIZE], [q_b, q_h, q_l, 1], [1, 1, 64, SIZE], q_tiles.layout)
    all_keys = tma.make_tensor_descriptor(
        k, [images, groups, keys, SIZE], [k_b, k_h, k_l, 1], [1, 1, BLOCK_K, SIZE], k_tiles.layout)
    values = tma.make_tensor_descriptor(
        v, [images, groups, keys, SIZE], [v_b, v_h, v_l, 1], [1, 1, BLOCK_K, SIZE], v_tiles.layout)
    <WAIT>
    step = 0
    for tile in range(tiles_of_block(tiles, IN_PAIRS)):
        image, head, first = tile_of(tile, heads, blocks, tiles, IN_PAIRS)
        group = head // members
        low, high, all_low, all_high, here, limit = bounds(
            first, tl.minimum(first + 128, length) - 1, image, <BOUNDS>, BLOCK_K)
        mbarrier.wait(q_empty, (tile & 1) ^ 1)
        mbarrier.expect(q_full, 256 * SIZE)
        load_tile(queries, [image, head, first, 0], q_full, q_tiles.index(0))
        load_tile(queries, [image, head, first + 64, 0], q_full, q_tiles.index(1))
        for i in range(high - 1, low - 1, -1):
            stage = step % STAGES
            phase = (step // STAGES) & 1
            mbarrier.wait(k_empty.index(stage), phase ^ 1)
            mbarrier.expect(k_full.index(stage), BYTES)
            load_tile(all_keys, [image, group, i * BLOCK_K, 0], k_full.index(stage), k_tiles.index(stage))
            mbarrier.wait(v_empty.index(stage), phase ^ 1)
            mbarrier.expect(v_full.index(stage), BYTES)
            load_tile(values, [image, group, i * BLOCK_K, 0], v_full.index(stage), v_tiles.index(stage))
            step += 1
    <NEXT>


@gluon.jit
def consume(
    y, y_b, y_h, y_l, q_tiles, y_tiles, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty, turn,
    images, heads, blocks, tiles, <BOUNDS>,
    WHO: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, TURNS: tl.constexpr, IN_PAIRS: tl.constexpr,
):
    SIZE: tl.constexpr = q_tiles.shape[4]
    s_layout: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_K, 16])
    o_layout: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIZE, 16])
    row_layout: tl.constexpr = tl.SliceLayout(1, s_layout)
    results = tma.make_tensor_descriptor(
        y, [images, heads, length, SIZE], [y_b, y_h, y_l, 1], [1, 1, 64, SIZE], q_tiles.layout)
    q = q_tiles.index(WHO).reshape([64, SIZE])
    <WAIT>
    step = 0
    for tile in range(tiles_of_block(tiles, IN_PAIRS)):
        image, head, first = tile_of(tile, heads, blocks, tiles, IN_PAIRS)
        low, high, all_low, all_high, here, limit = bounds(
            first, tl.minimum(first + 128, length) - 1, image, <BOUNDS>, BLOCK_K)
        first += WHO * 64
        _, _, all_low, all_high, here, limit = bounds(
            first, tl.minimum(first + 64, length) - 1, image, <BOUNDS>, BLOCK_K)
        place = here + first + tl.arange(0, 64, layout=row_layout)
        peak = tl.full([64], float("-inf"), tl.float32, layout=row_layout)
        total = tl.full([64], 0.0, tl.float32, layout=row_layout)
        o = tl.zeros([64, SIZE], tl.float32, layout=o_layout)
        mbarrier.wait(q_full, tile & 1)
        if low < high:
            top = high - 1
            stage = step % STAGES
            s = start_scores(q, k_tiles, k_full, turn, step, WHO, BLOCK_K, STAGES, TURNS, s_layout)
            if TURNS:
                mbarrier.arrive(turn.index(1 - WHO), count=1)
            s = warpgroup_mma_wait(0, deps=[s])
            mbarrier.arrive(k_empty.index(stage), count=1)
            p, peak, total, kept = softmax(
                s, peak, total, place, head, heads, top * BLOCK_K, limit, <LEFT>, <RIGHT>, BLOCK_K, True, s_layout)
            p = tl.convert_layout(p.to(q.dtype), tl.DotOperandLayout(0, o_layout, 2))
            for i in range(top - 1, tl.maximum(all_high, low) - 1, -1):
                o, p, peak, total, step = add_block(
                    q, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, turn, o, p, peak, total, step,
                    place, head, heads, i * BLOCK_K, limit, <LEFT>, <RIGHT>,
                    WHO, BLOCK_K, STAGES, TURNS, True, s_layout, o_layout)
            for i in range(tl.minimum(top, all_high) - 1, tl.maximum(all_low, low) - 1, -1):
                o, p, peak, total, step = add_block(
                    q, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, turn, o, p, peak, total, step,
                    place, head, heads, i * BLOCK_K, limit, <LEFT>, <RIGHT>,
                    WHO, BLOCK_K, STAGES, TURNS, False, s_layout, o_layout)
            if <HAS_LEFT>:
                for i in range(tl.minimum(top, tl.minimum(all_high, all_low)) - 1, low - 1, -1):
                    o, p, peak, total, step = add_block(
                        q, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, turn, o, p, peak, total, step,
                        place, head, heads, i * BLOCK_K, limit, <LEFT>, <RIGHT>,
                        WHO, BLOCK_K, STAGES, TURNS, True, s_layout, o_layout)
            mbarrier.arrive(q_empty, count=1)  # the next tile's may come
            stage = step % STAGES
            mbarrier.wait(v_full.index(stage), (step // STAGES) & 1)
            o = warpgroup_mma(p, v_tiles.index(stage).reshape([BLOCK_K, SIZE]), o, is_async=True)
            o = warpgroup_mma_wait(0, deps=[o])
            mbarrier.arrive(v_empty.index(stage), count=1)
            step += 1
        else:
            mbarrier.arrive(q_empty, count=1)
        inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
        o = o * tl.convert_layout(inverse, tl.SliceLayout(1, o_layout))[:, None]
        tma.store_wait(0)  # the last tile's
        y_tiles.index(WHO).reshape([64, SIZE]).store(o.to(q.dtype))
        fence_async_shared()
        store_tile(results, [image, head, first, 0], y_tiles.index(WHO))
    tma.store_wait(0)


@gluon.jit
def start_scores(
    q, k_tiles, k_full, turn, step,
    WHO: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, TURNS: tl.constexpr, s_layout: tl.constexpr,
):
    stage = step % STAGES
    mbarrier.wait(k_full.index(stage), (step // STAGES) & 1)
    if TURNS:
        mbarrier.wait(turn.index(WHO), (step & 1) ^ (1 - WHO))
    k = k_tiles.index(stage).reshape([BLOCK_K, q.shape[1]]).permute([1, 0])
    return warpgroup_mma(
        q, k, tl.zeros([64, BLOCK_K], tl.float32, layout=s_layout), use_acc=False, is_async=True)


@gluon.jit
def add_block(
    q, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, turn, o, p, peak, total, step,
    place, head, heads, at, limit, left, right,
    WHO: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, TURNS: tl.constexpr, EDGE: tl.constexpr,
    s_layout: tl.constexpr, o_layout: tl.constexpr,
):
    stage = step % STAGES
    phase = (step // STAGES) & 1
    step += 1
    next_stage = step % STAGES
    s = start_scores(q, k_tiles, k_full, turn, step, WHO, BLOCK_K, STAGES, TURNS, s_layout)
    mbarrier.wait(v_full.index(stage), phase)
    o = warpgroup_mma(p, v_tiles.index(stage).reshape([BLOCK_K, q.shape[1]]), o, is_async=True)
    if TURNS:
        mbarrier.arrive(turn.index(1 - WHO), count=1)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(next_stage), count=1)
    p, peak, total, kept = softmax(
        s, peak, total, place, head, heads, at, limit, left, right, BLOCK_K, EDGE, s_layout)
    p = tl.convert_layout(p.to(q.dtype), tl.DotOperandLayout(0, o_layout, 2))
    mbarrier.wait(v_full.index(stage), phase)  # passes at once; the assembler moves nothing from before it behind it
    o = warpgroup_mma_wait(0, deps=[o])
    mbarrier.arrive(v_empty.index(stage), count=1)
    o = o * tl.convert_layout(kept, tl.SliceLayout(1, o_layout))[:, None]
    return o, p, peak, total, step
"""
