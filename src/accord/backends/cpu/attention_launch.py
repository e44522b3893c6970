"""From strides and sizes to the phases of attention."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping, Sequence

from accord.backends.cpu.attention import (
    AREAS,
    BLOCK_PANELS,
    FEW,
    KEY_VECTORS,
    TILES,
    AttentionCode,
    Mask,
    block_rows,
)
from accord.backends.cpu.dot import DotCode, dot_heights, pays
from accord.backends.cpu.jit import machine
from accord.backends.cpu.tile import TileCode, most_rows, next_heights, tile_heights
from accord.backends.cpu.transpose import TransposeCode
from accord.backends.heads import Features, Heads
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import bits
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["attention_phase", "attention_workspace", "value_vectors"]

#: Blocks of rows that a task has at most: its sums stay in the second cache.
_MOST_BLOCKS = 8
#: Tasks to aim at.
_TASKS = 16
_LINE = 64


def value_vectors(dtype: str, size: int) -> int:
    """Vectors in a panel of values, such that a row of them is whole panels if it is whole vectors."""
    count = -(-size // machine().width(bits(dtype)))
    return 2 if count % 2 == 0 else 3 if count % 3 == 0 else 1


def _areas(dtype: str, size: int, value_size: int, chunk: int) -> list[int]:
    """Bytes of each part of a thread's scratch memory."""
    width, rows = machine().width(bits(dtype)), block_rows(dtype)
    panel = KEY_VECTORS * width
    block = BLOCK_PANELS * panel
    pitch = -(-size // width) * width
    wide = value_vectors(dtype, value_size) * width
    values = -(-value_size // wide) * wide
    padded = -(-chunk // rows) * rows
    counts = [padded * pitch, padded * values, padded, padded, padded]
    counts += [BLOCK_PANELS * rows * panel, block * FEW, pitch * block, values * block]
    # a vector after each may be touched
    return [-(-(c + width) * (bits(dtype) // 8) // _LINE) * _LINE for c in counts]


def attention_workspace(dtype: str, size: int, value_size: int, rows: DimLike) -> int:
    """Bytes of scratch memory for each thread."""
    most = _MOST_BLOCKS * block_rows(dtype)
    return sum(_areas(dtype, size, value_size, min(rows, most) if isinstance(rows, int) else most))


def attention_phase(
    query: Heads,
    key: Heads,
    value: Heads,
    out: Heads,
    sizes: Mapping[str, DimLike],
    features: Features,
    value_size: int,
    *,
    shared: DimLike,
    operands: tuple[int, ...],
) -> Phase:
    """The phase that computes attention.

    Args:
        query: ``[images, heads, length, size]``.
        key: ``[images, groups, keys, size]``; each group serves ``heads / groups`` query heads in a row.
        value: ``[images, groups, keys, value size]``.
        out: ``[images, heads, length, value size]``.
        sizes: "images", "heads", "groups", "length", "keys", "size", "value.size".
        value_size: The last of these.
        features: What is done to scores.
        shared: Bytes at the start of the workspace that are not this phase's.
        operands: Queries, keys, values, mask and numbers of keys if there are, result, workspace.
    """
    sums = "f64" if query.dtype == "f64" else "f32"
    mask = features.mask
    code = AttentionCode(
        sums,
        query.dtype,
        key.dtype,
        value.dtype,
        out.dtype,
        (query.unit, key.unit, value.unit, out.unit),
        None if mask is None else Mask(mask.dtype, "1" if mask.unit else "s"),
        features.softcap != 0,
        features.causal,
        features.left >= 0,
        features.right >= 0,
        features.valid is not None,
        value_vectors(sums, value_size),
        features.score,
    )
    values: dict[str, DimLike] = {}
    for name, tensor in (("q", query), ("k", key), ("v", value), ("y", out), ("m", mask)):
        if tensor is not None:
            values[f"{name}.o"] = tensor.access.offset
            values.update(zip((f"{name}.{a}" for a in "bhld"), tensor.access.strides, strict=True))
    if mask is not None:
        values["m.n"] = features.mask_keys
    number = "<d" if sums == "f64" else "<f"
    word = "<q" if sums == "f64" else "<i"
    for name, real in (("scale", features.scale * math.log2(math.e)), ("cap", features.softcap)):
        values[name] = struct.unpack(word, struct.pack(number, real))[0]
    values |= {"offset": features.offset, "left": features.left, "right": features.right, "shared": shared}
    values["valid.step"] = 0 if features.valid is None else features.valid
    values |= sizes
    values["direct.type"] = int(value.dtype == sums and value.unit)
    plan = _Plan(code.names, tuple(values), sums, key.dtype, code.value_vectors)
    return Phase(code, operands, tuple(values.values()), functools.partial(_launch, plan))


@record
class _Plan:
    """What a launch needs beside the values of ``names``; ``params`` are those of the code in order."""

    params: tuple[str, ...]
    names: tuple[str, ...]
    sums: str
    key: str
    vectors: int


def _launch(plan: _Plan, sizes: Sequence[int]) -> Launch:
    v = dict(zip(plan.names, sizes, strict=True))
    rows_of_block = block_rows(plan.sums)
    group = v["heads"] // max(1, v["groups"])
    rows, pairs = group * v["length"], v["images"] * v["groups"]
    if not (rows and pairs and v["value.size"]):
        return Launch((), 0)
    few = rows <= FEW and pays(plan.sums, rows, v["size"])
    chunks = (
        1 if few else max(-(-rows // (_MOST_BLOCKS * rows_of_block)), min(-(-rows // rows_of_block), _TASKS // pairs))
    )
    chunks = max(1, chunks)
    tile = most_rows(plan.sums, KEY_VECTORS)
    chunk = rows if chunks == 1 else -(-math.ceil(rows / chunks) // tile) * tile
    chunks = -(-rows // chunk)
    width = machine().width(bits(plan.sums))
    areas = _areas(plan.sums, v["size"], v["value.size"], chunk)
    v |= {"group": group, "rows": rows, "chunk": chunk, "chunks": chunks, "few": int(few)}
    v["heads"] = v["groups"]
    v["scratch"] = sum(areas)
    v |= {f"area{i}": n for i, n in enumerate(areas[: AREAS - 1])}
    v["direct"] = int(v["direct.type"] and v["value.size"] % (plan.vectors * width) == 0)
    heights = [tile_heights(plan.sums, KEY_VECTORS), tile_heights(plan.sums, plan.vectors)]
    heights.append(dot_heights(plan.sums, rows) if few else (1,))
    v |= {f"high.{t}": h[0] for t, h in zip(TILES, heights, strict=True)}
    tables = [n for h in heights for n in next_heights(h)]
    functions = {
        "tile.k": TileCode(plan.sums, KEY_VECTORS),
        "tile.v": TileCode(plan.sums, plan.vectors),
        "tile.few": DotCode(plan.sums, rows) if few else 0,
        "turn": TransposeCode(plan.key, plan.sums, width),
    }
    params = v | functions
    return Launch((*(params[name] for name in plan.params), *tables), pairs * chunks)
