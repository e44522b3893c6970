"""Attention as Triton kernels: softmax(scale * Q Kᵀ + mask) V without the matrix of scores.

A program holds a block of queries and walks the keys that some of them see (Dao, "FlashAttention-2", 2023, algorithm
1). Blocks of keys that all of them see take a path without comparisons. Scores are kept in units of log(2). Where there
are few queries, those of all heads that share keys form one block; where they are still few and the keys many, several
programs walk a part of the keys each, and a second kernel joins what they found.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

from accord.backends.cpu.attention_launch import Features, Heads
from accord.backends.cuda.code import Code, ceildiv, power_of_two
from accord.backends.cuda.printer import TYPES, TritonPrinter
from accord.errors import CompileError
from accord.expr.lang import Expr
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["AttentionKernel", "Geometry", "Tiles", "attention_kernel", "candidates", "geometry", "splits"]

_LOG2E = math.log2(math.e)
#: Windows are not larger than this, so that places can be added to them.
_FAR = 1 << 30
#: Least sides of what tensor cores multiply.
_LEAST = 16
#: Rows of partial results that a program of the second kernel joins.
_JOINED = 16
#: Keys that are worth a program of their own, and programs to aim at.
_PART, _PROGRAMS = 256, 264


@record
class AttentionKernel:
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
    def pointers(self) -> tuple[str, ...]:
        """Parameters of the kernel that are memory, in order: the operands, then what is written."""
        masks = [n for n, present in (("m", self.mask), ("n", self.valid)) if present]
        return ("q", "k", "v", *masks, *(("sums", "stats") if self.split else ("y",)))

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
    def fast(self) -> bool:
        """Whether products are of halves, which tensor cores multiply at full rate."""
        return self.query == self.key != "f32" and self.value != "f32"

    def text(self) -> str:
        """The module: the function ``symbol``, and ``symbol + "_joined"`` if keys are split."""
        return _Writer(self).module()


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
    """

    rows: int
    keys: int
    warps: int
    stages: int
    descriptors: bool = False


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


def geometry(kernel: AttentionKernel, tiles: Tiles, sizes: Sequence[int]) -> Geometry:
    """The launch for values of the kernel's integer parameters."""
    images, heads, groups, length, keys = sizes[:5]
    packed = length < tiles.rows and heads > groups
    pairs = images * (groups if packed else heads)
    blocks = ceildiv(length * (heads // groups if packed else 1), tiles.rows) * pairs
    constants: dict[str, int | bool] = {"BLOCK_Q": tiles.rows, "BLOCK_K": tiles.keys, "PACKED": packed}
    constants |= {"DESCRIPTORS": tiles.descriptors, "PARTS": 1}
    if not kernel.split:
        return Geometry((blocks, 1), constants, 0, (0, 0))
    constants["PARTS"] = parts = power_of_two(max(1, min(ceildiv(keys, _PART), _PROGRAMS // max(1, blocks))))
    rows = images * heads * length
    return Geometry(
        (blocks, parts), constants, ceildiv(rows, _JOINED), (parts * rows * kernel.value_size, 2 * parts * rows)
    )


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
        small = [Tiles(64, 64, 4, 3), Tiles(64, 128, 4, 2), Tiles(128, 64, 4, 3)]
        blocks = sizes[0] * heads * ceildiv(length, 128)
        found = [*small, *large] if widest <= 64 or blocks < _PROGRAMS else [*large, *small]
    else:
        found = [Tiles(128, 64, 8, 2), Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 3)]
        if widest <= 64:
            found = [Tiles(64, 64, 4, 3), *found]
    return tuple(t if t.rows <= most else Tiles(most, t.keys, t.warps, t.stages) for t in found)


def _split_size(size: int) -> list[tuple[int, int, int]]:
    """First element, elements and side of a tile: powers of two, at most two of them, that hold ``size`` elements."""
    whole = max(_LEAST, power_of_two(size))
    first = whole // 2
    if first < _LEAST or size <= first or first + max(_LEAST, power_of_two(size - first)) >= whole:
        return [(0, size, whole)]
    return [(0, first, first), (first, size - first, max(_LEAST, power_of_two(size - first)))]


def write_bounds(code: Code, k: AttentionKernel) -> None:
    """Keys that some queries between the positions ``first`` and ``last`` see, and those that all of them see.

    These go from ``low`` to ``high`` and from ``all_low`` to ``all_high``; all but ``high`` are multiples of
    ``BLOCK_K``. Positions become places: ``here`` is the place of position 0. No key from ``limit`` on is seen.
    """
    code("limit = first * 0 + keys", "here = offset")
    if k.valid:
        code(
            "given = tl.load(n + image * valid_step).to(tl.int32)",
            "here = given - length",
            "limit = tl.maximum(tl.minimum(limit, given), 0)",
        )
    if k.mask is not None:
        code("limit = tl.minimum(limit, m_n)")
    code("first += here", "last += here", "low = limit * 0", "high = limit", "all_low = low", "all_high = limit")
    if k.left:
        code("low = tl.maximum(first - left, 0) // BLOCK_K * BLOCK_K")
        code("all_low = tl.cdiv(tl.maximum(last - left, 0), BLOCK_K) * BLOCK_K")
    for end in ["1"] * k.causal + ["right + 1"] * k.right:
        code(f"high = tl.minimum(high, last + {end})", f"all_high = tl.minimum(all_high, first + {end})")
    code("all_high = tl.maximum(all_high, 0) // BLOCK_K * BLOCK_K")


def write_scores(code: Code, k: AttentionKernel, prefix: str, head: str) -> None:
    """From products ``s`` to scores in units of log(2), without the mask.

    Args:
        code: Where to; ``place``, ``j`` and ``heads`` are known there.
        k: The pattern.
        prefix: Of names.
        head: The number of the head as f32.
    """
    unit = 1.0 if k.score is not None else _LOG2E
    if k.softcap:  # c tanh(s / c) = c (1 - 2 / (1 + exp(2 s / c)))
        cap = k.softcap * unit
        code(f"s = {cap!r} - {2 * cap!r} / (1.0 + tl.exp2(s * {2 * _LOG2E * k.scale / k.softcap!r}))")
    else:
        code(f"s *= {k.scale * unit!r}")
    if k.score is None:
        return
    operands = {
        "i_real": "place.to(tl.float32)[:, None]",
        "j_real": "j.to(tl.float32)[None, :]",
        "h_real": head,
        "n_real": "tl.program_id(0).to(tl.float32) * 0.0 + heads",
    }
    code(*(f"{n} = {v}" for n, v in operands.items()))
    code(f"s = {TritonPrinter(code, prefix).value(k.score, ['s', *operands])} * {_LOG2E!r}")


class _Writer:
    """Writes the module of a kernel."""

    def __init__(self, kernel: AttentionKernel) -> None:
        self.k = kernel
        self.code = Code()
        self.sizes = _split_size(kernel.size)
        self.value_sizes = _split_size(kernel.value_size)
        self.product = kernel.query if kernel.query == kernel.key else "f32"
        self.precision = "tf32" if kernel.tf32 else "ieee"
        self.loops = 0

    def module(self) -> str:
        head = "import triton\nimport triton.language as tl\n\n\n"
        constants = ("BLOCK_Q", "BLOCK_K", "PACKED", "PARTS", "DESCRIPTORS")
        self._begin()
        self.code("first = tl.program_id(0) * 0 + first")
        write_bounds(self.code, self.k)
        if self.k.split:
            self._part()
        self.code("place = pos + here")
        self._start()
        self._walk()
        self._end()
        text = head + self.code.function(self.k.symbol, [*self.k.pointers, *self.k.names, *map(_constant, constants)])
        return f"{text}\n\n{self._joining()}" if self.k.split else text

    # where

    def _begin(self) -> None:
        """Which queries the program has: ``inside`` says whether one is there, ``pos`` and ``head`` which it is."""
        code = self.code
        code(
            "members = heads // groups",
            "count = length * members if PACKED else length",
            "blocks = tl.cdiv(count, BLOCK_Q)",
            "program = tl.program_id(0)",
            "block = blocks - 1 - program % blocks  # those that see most start first",
            "rest = program // blocks",
            "flat = block * BLOCK_Q + tl.arange(0, BLOCK_Q)",
            "inside = flat < count",
            "flat = tl.minimum(flat, count - 1)",
        )
        with code.indented("if PACKED:"):
            code(
                "image = (rest // groups).to(tl.int64)",
                "group = rest % groups",
                "head = group * members + flat // length",
                "pos = flat % length",
                "first = 0",
                "last = length - 1",
            )
        with code.indented("else:"):
            code(
                "image = (rest // heads).to(tl.int64)",
                "head = rest % heads",
                "group = head // members",
                "head = head + flat * 0",
                "pos = flat",
                "first = block * BLOCK_Q",
                "last = tl.minimum(first + BLOCK_Q, length) - 1",
            )
        code("group = group.to(tl.int64)", "column = tl.arange(0, BLOCK_K)")

    def _part(self) -> None:
        """The part of the keys that is the program's."""
        self.code(
            "part = tl.program_id(1)",
            "share = tl.cdiv(tl.cdiv(high - low, BLOCK_K), PARTS) * BLOCK_K",
            "low += part * share",
            "high = tl.minimum(high, low + share)",
        )

    def _start(self) -> None:
        """Queries, sums of nothing, and where keys, values and mask are."""
        code, k = self.code, self.k
        code("q_row = q + q_o + image * q_b + head.to(tl.int64) * q_h + pos.to(tl.int64) * q_l")
        code("k_head = k + k_o + image * k_b + group * k_h", "v_head = v + v_o + image * v_b + group * v_h")
        for i, (first, count, side) in enumerate(self.sizes):
            code(f"d{i} = tl.arange(0, {side})")
            mask = "" if count == side else f", mask=(d{i} < {count})[None, :], other=0"
            loaded = f"tl.load(q_row[:, None] + ({first} + d{i})[None, :]{mask})"
            code(f"q{i} = {loaded}{_cast(k.query, self.product)}")
        for i, (_, _, side) in enumerate(self.value_sizes):
            code(f"e{i} = tl.arange(0, {side})", f"sums{i} = tl.zeros([BLOCK_Q, {side}], tl.float32)")
        code("total = tl.zeros([BLOCK_Q], tl.float32)", 'peak = tl.full([BLOCK_Q], float("-inf"), tl.float32)')
        if self._has_descriptors():
            with code.indented("if DESCRIPTORS:"):
                for t, size, (_, _, side) in (("k", k.size, self.sizes[0]), ("v", k.value_size, self.value_sizes[0])):
                    code(
                        f"{t}_tiles = tl.make_tensor_descriptor("
                        f"{t}_head, [limit, {size}], [{t}_l.to(tl.int64), 1], [BLOCK_K, {side}])"
                    )
        if k.mask is not None:
            terms = ["m + m_o"] + [f"image * {self._mask_stride(0)}"] * (k.mask_kinds[0] != "0")
            terms += [f"head.to(tl.int64) * {self._mask_stride(1)}"] * (k.mask_kinds[1] != "0")
            terms += [f"pos.to(tl.int64) * {self._mask_stride(2)}"] * (k.mask_kinds[2] != "0")
            code(f"mask_row = {' + '.join(terms)}")

    def _has_descriptors(self) -> bool:
        return len(self.sizes) == len(self.value_sizes) == 1 and self.k.fast

    def _mask_stride(self, axis: int) -> str:
        return "1" if self.k.mask_kinds[axis] == "1" else f"m_{'bhld'[axis]}"

    # the keys

    def _walk(self) -> None:
        if self.k.left:
            self._loop("low", "tl.minimum(high, all_low)", full=False)
        self._loop("tl.maximum(low, all_low)", "tl.minimum(high, all_high)", full=True)
        self._loop("tl.maximum(low, tl.maximum(all_low, all_high))", "high", full=False)

    def _loop(self, low: str, high: str, *, full: bool) -> None:
        """Walk keys; ``full``: every query sees every one of them, but for the mask."""
        code, k = self.code, self.k
        self.loops += 1
        code(f"start = {low}", f"stop = {high}")
        for t, letter, sizes in (("k", "d", self.sizes), ("v", "e", self.value_sizes)):
            for i, (first, _, _) in enumerate(sizes):
                along = f"({first} + {letter}{i})"
                along, down = (
                    (f"{along}[:, None]", "column[None, :]") if t == "k" else (f"{along}[None, :]", "column[:, None]")
                )
                code(f"{t}_at{i} = {t}_head + start.to(tl.int64) * {t}_l + ({down} * {t}_l + {along})")
        with code.indented("for at in range(start, stop, BLOCK_K):"):
            if not full or k.mask is not None or k.score is not None:
                code("j = at + column")
            self._load("k", "d", self.sizes, full)
            for i in range(len(self.sizes)):
                added = "" if i == 0 else ", s"
                code(f's = tl.dot(q{i}, k{i}{added}, input_precision="{self.precision}")')
            self._probabilities(full)
            for i in range(len(self.value_sizes)):
                code(f"sums{i} *= kept[:, None]")
            self._load("v", "e", self.value_sizes, full)
            for i in range(len(self.value_sizes)):
                code(f"s{i} = p.to({TYPES[k.value]})")
                code(f'sums{i} = tl.dot(s{i}, v{i}, sums{i}, input_precision="{self.precision}")')
            code("peak = higher")
            for t, sizes in (("k", self.sizes), ("v", self.value_sizes)):
                code(*(f"{t}_at{i} += BLOCK_K * {t}_l" for i in range(len(sizes))))

    def _load(self, t: str, letter: str, sizes: Sequence[tuple[int, int, int]], full: bool) -> None:
        """Parts of a block of keys, turned, or of values; zeros for what is beyond the last."""
        code = self.code
        cast = _cast(self.k.key, self.product) if t == "k" else ""
        along, down = ("[:, None]", "[None, :]") if t == "k" else ("[None, :]", "[:, None]")
        pointed = []
        for i, (_, count, side) in enumerate(sizes):
            bounds = [] if full else [f"(at + column < limit){down}"]
            bounds += [] if count == side else [f"({letter}{i} < {count}){along}"]
            mask = f", mask={' & '.join(bounds)}, other=0" if bounds else ""
            pointed.append(f"{t}{i} = tl.load({t}_at{i}{mask}){cast}")
        if not self._has_descriptors():
            code(*pointed)
            return
        with code.indented("if DESCRIPTORS:"):
            code(f"{t}0 = {t}_tiles.load([at, 0]){'.T' if t == 'k' else ''}")
        with code.indented("else:"):
            code(*pointed)

    def _probabilities(self, full: bool) -> None:
        """From products ``s`` to ``p``, the sums' factor ``kept``, the total, and the maximum so far, ``higher``."""
        code, k = self.code, self.k
        plain = k.mask is None and k.score is None and not k.softcap
        if full and plain and k.scale > 0:
            # the greatest product is the greatest score, and one FMA makes the exponent
            factor = repr(k.scale * _LOG2E)
            code(
                f"higher = tl.maximum(peak, tl.max(s, 1) * {factor})",
                f"p = tl.exp2(s * {factor} - higher[:, None])",
                "kept = tl.exp2(peak - higher)",
                "total = total * kept + tl.sum(p, 1)",
            )
            return
        write_scores(code, k, f"x{self.loops}_", "head.to(tl.float32)[:, None]")
        if k.score is not None:
            code("s = tl.broadcast_to(s, [BLOCK_Q, BLOCK_K])")
        bounds = []
        if not full:
            bounds.append("(j < limit)[None, :]")
            bounds += ["(j[None, :] <= place[:, None])"] * k.causal
            bounds += ["(place[:, None] - j[None, :] <= left)"] * k.left
            bounds += ["(j[None, :] - place[:, None] <= right)"] * k.right
        if k.mask is not None:
            self._mask(full)
            bounds += ["seen"] * (k.mask == "bool")
        if bounds:
            code(f's = tl.where({" & ".join(bounds)}, s, float("-inf"))')
        code("higher = tl.maximum(peak, tl.max(s, 1))")
        base = "higher"
        if bounds or k.mask is not None or k.score is not None:
            code('base = tl.where(higher == float("-inf"), 0.0, higher)')
            base = "base"
        code(
            f"p = tl.exp2(s - {base}[:, None])",
            f"kept = tl.exp2(peak - {base})",
            "total = total * kept + tl.sum(p, 1)",
        )

    def _mask(self, full: bool) -> None:
        """Add a float mask; ``seen`` is one of bools."""
        code, k = self.code, self.k
        assert k.mask is not None
        step = {"0": "j * 0", "1": "j", "s": f"j * {self._mask_stride(3)}"}[k.mask_kinds[3]]
        every = k.mask_kinds[1:3] == "00"  # the same for all rows
        at = f"(mask_row + {step})[None, :]" if every else f"mask_row[:, None] + ({step})[None, :]"
        bound = "" if full else ", mask=(j < limit)[None, :], other=0"
        if k.mask == "bool":
            code(f"seen = tl.load({at}{bound}) != 0")
        else:
            code(f"s += tl.load({at}{bound}).to(tl.float32) * {_LOG2E!r}")

    # the end

    def _end(self) -> None:
        """Sums divided by the totals; a row that saw nothing gives zeros."""
        code, k = self.code, self.k
        if k.split:
            code("number = (part * images + image) * heads * length + head.to(tl.int64) * length + pos")
            code(
                "tl.store(stats + 2 * number, peak, mask=inside)",
                "tl.store(stats + 2 * number + 1, total, mask=inside)",
            )
            target = f"sums + number[:, None] * {k.value_size}"
        else:
            code("inverse = 1.0 / tl.where(total == 0.0, 1.0, total)")
            code("y_row = y + y_o + image * y_b + head.to(tl.int64) * y_h + pos.to(tl.int64) * y_l")
            target = "y_row[:, None]"
        for i, (first, count, side) in enumerate(self.value_sizes):
            value = f"sums{i}" if k.split else f"(sums{i} * inverse[:, None]).to({TYPES[k.out]})"
            self._store(target, value, i, first, count < side)

    def _store(self, target: str, value: str, i: int, first: int, cut: bool) -> None:
        bound = f" & (e{i} < {self.value_sizes[i][1]})[None, :]" if cut else ""
        self.code(f"tl.store({target} + ({first} + e{i})[None, :], {value}, mask=inside[:, None]{bound})")

    def _joining(self) -> str:
        """The second kernel: parts are weighted by their maxima."""
        k = self.k
        code = self.code = Code()
        code(
            "rows = images * heads * length",
            f"row = tl.program_id(0).to(tl.int64) * {_JOINED} + tl.arange(0, {_JOINED})",
            "inside = row < rows",
            f'peak = tl.full([{_JOINED}], float("-inf"), tl.float32)',
            f"total = tl.zeros([{_JOINED}], tl.float32)",
        )
        for i, (_, _, side) in enumerate(self.value_sizes):
            code(f"e{i} = tl.arange(0, {side})", f"all{i} = tl.zeros([{_JOINED}, {side}], tl.float32)")
        with code.indented("for part in range(PARTS):"):
            code(
                "number = row + part * rows",
                'own = tl.load(stats + 2 * number, mask=inside, other=float("-inf"))',
                "higher = tl.maximum(peak, own)",
                'base = tl.where(higher == float("-inf"), 0.0, higher)',
                "kept = tl.exp2(peak - base)",
                "weight = tl.exp2(own - base)",
                "total = total * kept + tl.load(stats + 2 * number + 1, mask=inside, other=0) * weight",
            )
            for i, (first, count, side) in enumerate(self.value_sizes):
                bound = "" if count == side else f" & (e{i} < {count})[None, :]"
                at = f"sums + number[:, None] * {k.value_size} + ({first} + e{i})[None, :]"
                code(f"found = tl.load({at}, mask=inside[:, None]{bound}, other=0)")
                code(f"all{i} = all{i} * kept[:, None] + found * weight[:, None]")
            code("peak = higher")
        code(
            "inverse = 1.0 / tl.where(total == 0.0, 1.0, total)",
            "image = row // (heads * length)",
            "y_row = y + y_o + image * y_b + row // length % heads * y_h + row % length * y_l",
        )
        for i, (first, count, side) in enumerate(self.value_sizes):
            self._store("y_row[:, None]", f"(all{i} * inverse[:, None]).to({TYPES[k.out]})", i, first, count < side)
        names = ["sums", "stats", "y", "images", "heads", "length", "y_o", "y_b", "y_h", "y_l"]
        return code.function(f"{k.symbol}_joined", [*names, _constant("PARTS")])


def _constant(name: str) -> str:
    return f"{name}: tl.constexpr"


def _cast(source: str, target: str) -> str:
    return "" if source == target else f".to({TYPES[target]})"
