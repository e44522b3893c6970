"""Writes the kernels of :mod:`accord.backends.cuda.attention`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accord.backends.cuda.attention import JOINED, AttentionKernel
from accord.backends.cuda.lines import HEAD, NEXT, WAIT, Code, power_of_two
from accord.backends.cuda.printer import TYPES, TritonPrinter

__all__ = ["LOG2E", "AttentionWriter", "write_bounds", "write_scores"]

LOG2E = math.log2(math.e)
#: The least finite float32.
LEAST_SCORE = -3.4028234663852886e38
#: Least sides of what tensor cores multiply.
_LEAST = 16


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
    unit = 1.0 if k.score is not None else LOG2E
    if k.softcap:  # c tanh(s / c) = c (1 - 2 / (1 + exp(2 s / c)))
        cap = k.softcap * unit
        code(f"s = {cap!r} - {2 * cap!r} / (1.0 + tl.exp2(s * {2 * LOG2E * k.scale / k.softcap!r}))")
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
    code(
        f"score = {TritonPrinter(code, prefix).value(k.score, ['s', *operands])}",
        f"more = score * {LOG2E!r}",
        _finite("more", "score"),
    )


def _finite(scaled: str, natural: str) -> str:
    """Scores in units of log(2) that are finite if they were: a row that sees only the least number is no empty one."""
    return f's = tl.where(({scaled} < {LEAST_SCORE!r}) & ({natural} > float("-inf")), {LEAST_SCORE!r}, {scaled})'


class AttentionWriter:
    """Writes the module of a kernel."""

    def __init__(self, kernel: AttentionKernel) -> None:
        self.k = kernel
        self.code = Code()
        self.sizes = _split_size(kernel.size)
        self.value_sizes = _split_size(kernel.value_size)
        self.product = kernel.query if kernel.query == kernel.key else "f32"
        self.precision = "tf32" if kernel.tf32 else "ieee"
        self.loops = 0
        self.block = self.tail = ""  # the side of a step, and the function for the last keys

    def module(self) -> str:
        """The text."""
        constants = ("BLOCK_Q", "BLOCK_K", "TAIL", "PACKED", "PARTS", "DESCRIPTORS")
        self._begin()
        self.code("first = tl.program_id(0) * 0 + first")
        if self.k.valid:  # the bounds are read
            self.code(WAIT)
        write_bounds(self.code, self.k)
        if self.k.split:
            self._part()
        self.code("place = pos + here")
        self._start()
        self._walk()
        self._end()
        kernel = self.code.function(self.k.symbol, [*self.k.memory, *self.k.names, *map(_constant, constants)])
        return f"{HEAD}{self.tail}{kernel}"

    # where

    def _begin(self) -> None:
        """Which queries they are: ``inside`` says whether one is there, ``pos`` and ``head`` which it is."""
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
        code("group = group.to(tl.int64)")

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
        if not k.valid:
            code(WAIT)
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
                        f"{t}_head, [limit, {size}], [image * 0 + {t}_l, 1], [BLOCK_K, {side}])"
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
        code, k = self.code, self.k
        last = ("tl.maximum(low, tl.maximum(all_low, all_high))", "high")
        if k.left:
            self._loop("low", "tl.minimum(high, all_low)", full=False)
        self._loop("tl.maximum(low, all_low)", "tl.minimum(high, all_high)", full=True)
        with code.indented("if TAIL == BLOCK_K:"):
            self._loop(*last, full=False)
        if k.tailed:
            with code.indented("elif TAIL:"):
                code(self._tail())

    def _tail(self) -> str:
        """Write the function for the last keys, which are less than a block; how it is called."""
        k = self.k
        sums = ", ".join([*(f"sums{i}" for i in range(len(self.value_sizes))), "total", "peak"])
        names = [f"{n}{i}" for n in "qd" for i in range(len(self.sizes))]
        names += [f"e{i}" for i in range(len(self.value_sizes))]
        names += ["k_head", "v_head", *["mask_row"] * (k.mask is not None), "place", "head", "all_high", "limit"]
        names, constants = [*names, *k.names], ["BLOCK_Q", "TAIL"]
        outer, self.code = self.code, Code()
        self._places("all_high", "TAIL")
        self.code("at = all_high", "j = at + column")
        self._load("k", "d", self.sizes, full=False, copied=False)
        self._load("v", "e", self.value_sizes, full=False, copied=False)
        self._multiply()
        self._probabilities(full=False)
        self._add()
        self.code(f"return {sums}")
        function = f"{k.symbol}_tail"
        self.tail = self.code.function(function, [sums, *names, *map(_constant, constants)]) + "\n\n"
        self.code = outer
        return f"{sums} = {function}({', '.join([sums, *names, *constants])})"

    def _loop(self, low: str, high: str, *, full: bool) -> None:
        """Walk keys; ``full``: every query sees every one of them, but for the mask."""
        code, k = self.code, self.k
        code(f"start = {low}", f"stop = {high}")
        if full and k.tailed:
            with code.indented(
                "if TAIL < BLOCK_K:  # otherwise sums would be zeros or products, which are serialised then"
            ):
                code("tl.assume(start < stop)")
        self._places("start", "BLOCK_K")
        with code.indented("for at in range(start, stop, BLOCK_K):"):
            if not full or k.mask is not None or k.score is not None:
                code("j = at + column")
            self._load("k", "d", self.sizes, full=full)
            self._multiply()
            self._probabilities(full=full)
            self._load("v", "e", self.value_sizes, full=full)
            self._add()
            for t, sizes in (("k", self.sizes), ("v", self.value_sizes)):
                code(*(f"{t}_at{i} += BLOCK_K * {t}_l" for i in range(len(sizes))))

    def _places(self, start: str, block: str) -> None:
        """Where a block of keys and their values are."""
        self.loops += 1
        self.block = block
        self.code(f"column = tl.arange(0, {block})")
        for t, letter, sizes in (("k", "d", self.sizes), ("v", "e", self.value_sizes)):
            for i, (first, _, _) in enumerate(sizes):
                along = f"({first} + {letter}{i})"
                along, down = (
                    (f"{along}[:, None]", "column[None, :]") if t == "k" else (f"{along}[None, :]", "column[:, None]")
                )
                self.code(f"{t}_at{i} = {t}_head + {start}.to(tl.int64) * {t}_l + ({down} * {t}_l + {along})")

    def _multiply(self) -> None:
        """The products ``s`` of queries and a block of keys."""
        for i in range(len(self.sizes)):
            added = "" if i == 0 else ", s"
            self.code(f's = tl.dot(q{i}, k{i}{added}, input_precision="{self.precision}")')

    def _add(self) -> None:
        """Values by their probabilities to the sums."""
        for i in range(len(self.value_sizes)):
            self.code(f"s{i} = p.to({TYPES[self.k.value]})")
            self.code(f'sums{i} = tl.dot(s{i}, v{i}, sums{i}, input_precision="{self.precision}")')
        self.code("peak = higher")

    def _load(
        self, t: str, letter: str, sizes: Sequence[tuple[int, int, int]], *, full: bool, copied: bool = True
    ) -> None:
        """Parts of a block of keys, turned, or of values; zeros for what is beyond the last.

        ``copied``: the bulk copy engine may bring them.
        """
        code = self.code
        cast = _cast(self.k.key, self.product) if t == "k" else ""
        along, down = ("[:, None]", "[None, :]") if t == "k" else ("[None, :]", "[:, None]")
        pointed = []
        for i, (_, count, side) in enumerate(sizes):
            bounds = [] if full else [f"(at + column < limit){down}"]
            bounds += [] if count == side else [f"({letter}{i} < {count}){along}"]
            mask = f", mask={' & '.join(bounds)}, other=0" if bounds else ""
            pointed.append(f"{t}{i} = tl.load({t}_at{i}{mask}){cast}")
        if not (copied and self._has_descriptors()):
            code(*pointed)
            return
        with code.indented("if DESCRIPTORS:"):
            code(f"{t}0 = {t}_tiles.load([at, 0]){'.T' if t == 'k' else ''}")
        with code.indented("else:"):
            code(*pointed)

    def _probabilities(self, *, full: bool) -> None:
        """From products ``s`` to ``p``, the total, and the maximum so far, ``higher``; the sums are weighted."""
        code, k = self.code, self.k
        plain = k.mask is None and k.score is None and not k.softcap
        weighted = ["total = total * kept + tl.sum(p, 1)"]
        weighted += [f"sums{i} *= kept[:, None]" for i in range(len(self.value_sizes))]
        if full and plain and k.scale > 0:
            # the greatest product is the greatest score, and one FMA makes the exponent
            factor = repr(k.scale * LOG2E)
            code(
                f"higher = tl.maximum(peak, tl.max(s, 1) * {factor})",
                f"p = tl.exp2(s * {factor} - higher[:, None])",
                "kept = tl.exp2(peak - higher)",
                *weighted,
            )
            return
        write_scores(code, k, f"x{self.loops}_", "head.to(tl.float32)[:, None]")
        if k.score is not None:
            code(f"s = tl.broadcast_to(s, [BLOCK_Q, {self.block}])")
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
        code(f"p = tl.exp2(s - {base}[:, None])", f"kept = tl.exp2(peak - {base})", *weighted)

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
            code(f"added = tl.load({at}{bound}).to(tl.float32)", f"more = s + added * {LOG2E!r}")
            code(_finite("more", "tl.minimum(s, added)"))

    # the end

    def _end(self) -> None:
        """Sums divided by the totals; a row that saw nothing gives zeros."""
        code, k = self.code, self.k
        code(NEXT)
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

    def joining(self, symbol: str, parameters: Sequence[str]) -> str:
        """The second kernel's module: parts are weighted by their maxima."""
        k = self.k
        code = self.code = Code()
        code(
            "rows = images * heads * length",
            f"row = tl.program_id(0).to(tl.int64) * {JOINED} + tl.arange(0, {JOINED})",
            "inside = row < rows",
            f'peak = tl.full([{JOINED}], float("-inf"), tl.float32)',
            f"total = tl.zeros([{JOINED}], tl.float32)",
        )
        for i, (_, _, side) in enumerate(self.value_sizes):
            code(f"e{i} = tl.arange(0, {side})", f"all{i} = tl.zeros([{JOINED}, {side}], tl.float32)")
        code(WAIT)
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
            NEXT,
            "inverse = 1.0 / tl.where(total == 0.0, 1.0, total)",
            "image = row // (heads * length)",
            "y_row = y + y_o + image * y_b + row // length % heads * y_h + row % length * y_l",
        )
        for i, (first, count, side) in enumerate(self.value_sizes):
            self._store("y_row[:, None]", f"(all{i} * inverse[:, None]).to({TYPES[k.out]})", i, first, count < side)
        return HEAD + code.function(symbol, [*parameters, _constant("PARTS")])


def _constant(name: str) -> str:
    return f"{name}: tl.constexpr"


def _cast(source: str, target: str) -> str:
    return "" if source == target else f".to({TYPES[target]})"
