"""Attention as Triton kernels: softmax(scale * Q Kᵀ + mask) V without the matrix of scores.

A program holds a block of queries and walks the keys that some of them see (Dao, "FlashAttention-2", 2023, algorithm
1). Blocks of keys that all of them see take a path without comparisons. Scores are kept in units of log(2). Where there
are few queries, those of all heads that share keys form one block; where they are still few and the keys many, several
programs walk a part of the keys each, and a second kernel joins what they found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from accord.backends.cuda.code import EXACT, KernelText, exact_hints
from accord.backends.cuda.lines import ceildiv, power_of_two
from accord.backends.heads import Features, Heads
from accord.errors import CompileError
from accord.expr.lang import Expr
from accord.ir.dims import DimLike
from accord.record import record

__all__ = [
    "JOINED",
    "AttentionKernel",
    "Geometry",
    "JoiningKernel",
    "Tiles",
    "attention_kernel",
    "candidates",
    "geometry",
    "splits",
]

#: Windows are not larger than this, so that places can be added to them.
_FAR = 1 << 30
#: Least sides of what tensor cores multiply.
_LEAST = 16
#: Rows of partial results that a program of the second kernel joins.
JOINED = 16
#: Keys that are worth a program of their own, and programs to aim at.
_PART, _PROGRAMS = 256, 264


@record
class AttentionKernel(KernelText):
    """The Triton text of one pattern of attention.

    Elements of a head follow each other in queries, keys, values and results; all other strides are parameters.

    Attributes:
        query: Element type of the queries: "f32", "f16" or "bf16".
        key: Of the keys.
        value: Of the values.
        out: Of the result.
        size: Elements of a query and of a key.
        value_size: Elements of a value.
        scale: Of the products.
        softcap: Scores go through ``softcap * tanh(score / softcap)``; 0 for none.
        causal: A query sees no keys after its own place.
        left: There is a window before it.
        right: There is a window after it.
        valid: The number of keys is given for each image.
        mask: Type of the mask, "bool" or a float that is added, if there is one.
        mask_kinds: For images, heads, queries and keys "0" (the mask repeats), "1" (next element) or "s" (a stride).
        score: What becomes of a score (operand 0), given the places of query and key, the number of the head and how
            many there are (operands 1 to 4), all f32; None for nothing.
        tf32: Products of f32 may be of TF32.
        split: The keys are split, and a second kernel makes the result.
    """

    query: str
    key: str
    value: str
    out: str
    size: int
    value_size: int
    scale: float
    softcap: float = 0.0
    causal: bool = False
    left: bool = False
    right: bool = False
    valid: bool = False
    mask: str | None = None
    mask_kinds: str = ""
    score: Expr | None = None
    tf32: bool = False
    split: bool = False

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"attention_{hashlib.sha256(self._content().encode()).hexdigest()[:24]}"

    def _content(self) -> str:
        values = [self.query, self.key, self.value, self.out, self.size, self.value_size, self.scale, self.softcap]
        values += [self.causal, self.left, self.right, self.valid, self.mask, self.mask_kinds, self.tf32, self.split]
        return f"{values};{'' if self.score is None else self.score.key}"

    @property
    def memory(self) -> tuple[str, ...]:
        """Parameters of the kernel that are memory, in order: the operands, then what is written."""
        masks = [n for n, present in (("m", self.mask), ("n", self.valid)) if present]
        return ("q", "k", "v", *masks, *(("sums", "stats") if self.split else ("y",)))

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of these."""
        types = {"q": self.query, "k": self.key, "v": self.value, "m": self.mask or "", "n": "i64", "y": self.out}
        return tuple(types.get(n, "f32") for n in self.memory)

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters of the kernel that are integers, in order.

        ``q_b``, ``q_h``, ``q_l`` are strides along images, heads and positions, ``q_o`` is the first element; ``m_d``
        is the mask's along keys and ``m_n`` the number of keys it is for. ``offset`` is the place of the first query.
        """
        strides = [f"{t}_{a}" for t in ("q", "k", "v", "y") for a in "obhl"]
        if self.mask is not None:
            strides += [
                "m_o",
                *(f"m_{a}" for a, kind in zip("bhld", self.mask_kinds, strict=True) if kind == "s"),
                "m_n",
            ]
        windows = [
            n for n, present in (("left", self.left), ("right", self.right), ("valid_step", self.valid)) if present
        ]
        return ("images", "heads", "groups", "length", "keys", *strides, "offset", *windows)

    @property
    def tailed(self) -> bool:
        """Whether every program walks all keys, so that only those behind the last whole block are apart."""
        return not (self.causal or self.left or self.right or self.valid or self.split)

    @property
    def fast(self) -> bool:
        """Whether products are of halves, which tensor cores multiply at full rate."""
        return self.query == self.key != "f32" and self.value != "f32"

    def text(self) -> str:
        """The module."""
        from accord.backends.cuda.attention_writer import AttentionWriter  # what starts a stored kernel writes none

        return AttentionWriter(self).module()


@record
class JoiningKernel(KernelText):
    """The Triton text of the second kernel of attention whose keys are split.

    Attributes:
        first: The pattern.
    """

    first: AttentionKernel

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"{self.first.symbol}_joined"

    @property
    def memory(self) -> tuple[str, ...]:
        """Parameters that are memory, in order."""
        return ("sums", "stats", "y")

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of these."""
        return ("f32", "f32", self.first.out)

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters that are integers, in order; some of the first kernel's. The constant is PARTS."""
        return ("images", "heads", "length", "y_o", "y_b", "y_h", "y_l")

    def text(self) -> str:
        """The module."""
        from accord.backends.cuda.attention_writer import AttentionWriter

        return AttentionWriter(self.first).joining(self.symbol, [*self.memory, *self.names])


def attention_kernel(
    query: Heads,
    key: Heads,
    value: Heads,
    out: Heads,
    sizes: Mapping[str, DimLike],
    features: Features,
    *,
    tf32: bool = False,
    split: bool = False,
) -> tuple[AttentionKernel, tuple[DimLike, ...]]:
    """The kernel, and its integer parameters.

    Args:
        query: ``[images, heads, length, size]``.
        key: ``[images, groups, keys, size]``; each group serves ``heads / groups`` query heads in a row.
        value: ``[images, groups, keys, value size]``.
        out: ``[images, heads, length, value size]``.
        sizes: "images", "heads", "groups", "length", "keys", and as integers "size" and "value.size".
        features: What is done to scores.
        tf32: Products of f32 may be of TF32.
        split: The keys are split.

    Raises:
        CompileError: a type or stride is none that the kernel has.
    """
    tensors = {"q": query, "k": key, "v": value, "y": out}
    for t in tensors.values():
        if t.dtype not in ("f32", "f16", "bf16"):
            raise CompileError(f"attention on a GPU is of f32, f16 or bf16, not of {t.dtype}")
        if not t.unit:
            raise CompileError("attention on a GPU needs heads whose elements follow each other")
    size, value_size = sizes["size"], sizes["value.size"]
    if not isinstance(size, int) or not isinstance(value_size, int) or not size:
        raise CompileError("head sizes are only known at run time")
    mask = features.mask
    kinds = ""
    if mask is not None:
        kinds = "".join("0" if s == 0 else "1" if s == 1 else "s" for s in mask.access.strides)
    kernel = AttentionKernel(
        query.dtype,
        key.dtype,
        value.dtype,
        out.dtype,
        size,
        value_size,
        features.scale,
        features.softcap,
        features.causal,
        features.left >= 0,
        features.right >= 0,
        features.valid is not None,
        None if mask is None else mask.dtype,
        kinds,
        features.score,
        tf32,
        split,
    )
    values: dict[str, DimLike] = {n: sizes[n] for n in ("images", "heads", "groups", "length", "keys")}
    for name, tensor in tensors.items():
        values[f"{name}_o"] = tensor.access.offset
        values.update(zip((f"{name}_{a}" for a in "bhl"), tensor.access.strides, strict=False))
    if mask is not None:
        values |= {"m_o": mask.access.offset, "m_n": features.mask_keys}
        values.update(zip((f"m_{a}" for a in "bhld"), mask.access.strides, strict=True))
    values |= {"offset": features.offset, "left": min(features.left, _FAR), "right": min(features.right, _FAR)}
    values["valid_step"] = 0 if features.valid is None else features.valid
    return kernel, tuple(values[n] for n in kernel.names)


@record
class Tiles:
    """How a kernel is compiled.

    Attributes:
        rows: Queries of a program.
        keys: Of a step.
        warps: Of a program.
        stages: Steps whose keys and values are on their way at once.
        descriptors: Keys and values come through the bulk copy engine: their strides have to be whole 16 bytes.
        registers: Of a thread at most; 0: as many as it takes.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    descriptors: bool = False
    registers: int = 0


@record
class Geometry:
    """How a kernel is started.

    Attributes:
        grid: Programs: blocks of queries of all heads, and parts of the keys.
        constants: Compile-time parameters.
        joined: Programs of the second kernel; 0 if there is none.
        workspace: Floats of the sums and of the statistics that the first kernel leaves to it.
    """

    grid: tuple[int, int]
    constants: Mapping[str, int | bool]
    joined: int
    workspace: tuple[int, int]


def geometry(
    kernel: AttentionKernel, tiles: Tiles, sizes: Sequence[int], hints: Sequence[str] | None = None
) -> Geometry:
    """The launch for values of the kernel's integer parameters.

    Args:
        kernel: What is computed.
        tiles: How it is cut.
        sizes: Values of the kernel's ``names``.
        hints: What is known of these for all sizes, see :func:`~accord.backends.cuda.code.exact_hints`; None: they are
            always the same.
    """
    images, heads, groups, length, keys = sizes[:5]
    packed = length < tiles.rows and heads > groups
    pairs = images * (groups if packed else heads)
    blocks = ceildiv(length * (heads // groups if packed else 1), tiles.rows) * pairs
    constants: dict[str, int | bool] = {"BLOCK_Q": tiles.rows, "BLOCK_K": tiles.keys, "PACKED": packed}
    constants["TAIL"] = tiles.keys
    fixed = _fixed(kernel, sizes, hints)
    walked = min(keys, fixed.get("m_n", keys))
    if kernel.tailed and "keys" in fixed and (kernel.mask is None or "m_n" in fixed) and walked >= tiles.keys:
        rest = walked % tiles.keys
        constants["TAIL"] = min(tiles.keys, max(_LEAST, power_of_two(rest))) if rest else 0
    constants |= {"DESCRIPTORS": tiles.descriptors, "PARTS": 1}
    if not kernel.split:
        return Geometry((blocks, 1), constants, 0, (0, 0))
    constants["PARTS"] = parts = power_of_two(max(1, min(ceildiv(keys, _PART), _PROGRAMS // max(1, blocks))))
    rows = images * heads * length
    return Geometry(
        (blocks, parts), constants, ceildiv(rows, JOINED), (parts * rows * kernel.value_size, 2 * parts * rows)
    )


def _fixed(kernel: AttentionKernel, sizes: Sequence[int], hints: Sequence[str] | None) -> dict[str, int]:
    """The kernel's integers that are always the same."""
    known = exact_hints(sizes) if hints is None else hints
    return {n: v for n, v, hint in zip(kernel.names, sizes, known, strict=True) if hint == EXACT}


def splits(sizes: Sequence[int], rows: int) -> bool:
    """Whether programs for blocks of ``rows`` queries would leave most of a GPU idle while there are many keys."""
    images, heads, groups, length, keys = sizes[:5]
    blocks = images * (
        groups * ceildiv(length * (heads // groups), rows) if length < rows else heads * ceildiv(length, rows)
    )
    return blocks * 2 <= _PROGRAMS and keys >= 2 * _PART


def candidates(kernel: AttentionKernel, architecture: int, sizes: Sequence[int]) -> tuple[Tiles, ...]:
    """Tiles worth a measurement, the likely best first.

    Args:
        kernel: What is computed.
        architecture: 90 for sm_90.
        sizes: Values of the kernel's integer parameters.
    """
    heads, groups, length = sizes[1:4]
    rows = length * (heads // groups if length < 64 else 1)
    most = max(_LEAST, power_of_two(rows))
    widest = max(power_of_two(kernel.size), power_of_two(kernel.value_size))
    if not kernel.fast:
        found = (
            [Tiles(64, 32, 8, 2), Tiles(32, 32, 8, 2)] if widest <= 64 else [Tiles(32, 32, 8, 1), Tiles(16, 32, 4, 1)]
        )
    elif most < 64:
        found = [Tiles(most, 64, 4, 3), Tiles(most, 128, 4, 2)]
        if widest > 128:
            found = [Tiles(most, 32, 4, 2)]
    elif widest > 128:
        found = [Tiles(64, 32, 8, 2), Tiles(64, 64, 8, 2)]
    elif architecture in (90, 100):
        large = [Tiles(128, 64, 8, 3), Tiles(128, 128, 8, 2), Tiles(128, 64, 8, 3, descriptors=True)]
        large.append(Tiles(128, 128, 8, 2, descriptors=True))
        small = [Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2), Tiles(64, 128, 4, 2), Tiles(128, 64, 4, 3)]
        if widest <= 64:  # five programs to a multiprocessor instead of four
            small.append(Tiles(64, 64, 4, 2, registers=96))
        blocks = sizes[0] * heads * ceildiv(length, 128)
        found = [*small, *large] if widest <= 64 or blocks < _PROGRAMS else [*large, *small]
    else:
        found = [Tiles(128, 64, 8, 2), Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 3)]
        if widest <= 64:
            found = [Tiles(64, 64, 4, 3), *found]
    return tuple(t if t.rows <= most else Tiles(most, t.keys, t.warps, t.stages) for t in found)
