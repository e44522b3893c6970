"""Attention without softmax, as a recurrence over a matrix state that stays in the first cache.

A column of the state meets no other column, so a task has some columns of one head and walks all steps with them:
``S = exp(g) S``, ``S += k (beta (v - Sᵀ k))ᵀ``, ``o = scale Sᵀ q`` (Yang et al., "Gated Delta Networks" (2024)).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, vector
from accord.backends.cpu.panels import clear
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import Expr, call, cast, operand
from accord.expr.math import expand
from accord.expr.primitives import fma
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.record import record

__all__ = ["LinearAttentionCode", "linear_attention_phase", "linear_attention_workspace"]

#: From a row's number, its vectors and what is carried to the row's new vectors, if it changes, and what is carried on.
_Body: TypeAlias = Callable[[str, list[str], list[str]], "tuple[list[str] | None, list[str]]"]
#: Vectors of columns of a task.
_VECTORS: Final = 4
_NAMES: Final = (
    "steps",
    "heads",
    "group",
    "size",
    "value.size",
    "blocks",
    "decays",
    "betas",
    "scale",
    "scratch",
)


@record
class LinearAttentionCode(KernelCode):
    """Operands: queries, keys, values, the past state, decay and rate if there are, results, state, scratch memory.

    All lie without gaps.

    Attributes:
        dtype: Of all but states.
        state: Of the states.
        past: There is a past state.
        decay: The state decays.
        delta: What the state holds of a key already is taken off its value.
        kept: The state is a result.
    """

    dtype: str
    state: str
    past: bool
    decay: bool
    delta: bool
    kept: bool

    @property
    def symbol(self) -> str:
        """Name by content."""
        flags = "".join("01"[x] for x in (self.past, self.decay, self.delta, self.kept))
        return f"linear_attention_{self.dtype}_{self.state}_{flags}"

    def module(self, name: str) -> str:
        """LLVM text."""
        return _Writer(self, name).write()


class _Writer:
    def __init__(self, code: LinearAttentionCode, name: str) -> None:
        self.code = code
        self.b = Builder(name)
        self.width = machine().width(32)
        self.columns = _VECTORS * self.width
        self.type = vector("f32", self.width)

    def write(self) -> str:
        b, code = self.b, self.code
        self.p = {n: b.param(i) for i, n in enumerate(_NAMES)}
        p = self.p
        names = ["q", "k", "v", *(n for n, on in (("past", code.past), ("g", code.decay), ("beta", code.delta)) if on)]
        names += ["y", *(["kept"] if code.kept else []), "scratch"]
        self.operand = {n: b.operand(i) for i, n in enumerate(names)}
        at = b.address(self.operand["scratch"], "u8", b.mul("%thread", p["scratch"]))
        padded = b.add(p["size"], self.width)
        places = []
        for count in (b.mul(p["size"], self.columns), padded, padded, padded):
            places.append(at)
            at = b.address(at, "f32", count)
        self.state, self.keys, self.gates, self.queries = places
        with b.loop("%first", "%last") as task:
            rest, block = b.divmod(task, p["blocks"])
            image, head = b.divmod(rest, p["heads"])
            column = b.mul(block, self.columns)
            count = b.min(b.sub(p["value.size"], column), self.columns)
            matrix = b.add(b.mul(rest, b.mul(p["size"], p["value.size"])), column)
            if code.past:
                self._move_state(b.address(self.operand["past"], code.state, matrix), count, load=True)
            else:
                clear(b, "f32", self.state, b.mul(p["size"], self.columns))
            with b.loop(0, p["steps"]) as t:
                self._step(b.add(b.mul(image, p["steps"]), t), head, column, count)
            if code.kept:
                self._move_state(b.address(self.operand["kept"], code.state, matrix), count, load=False)
        return b.module()

    def _lanes(self, count: str, part: int) -> str:
        """How many of the first ``count`` columns are in vector ``part``."""
        b = self.b
        return b.max(b.min(b.sub(count, part * self.width), self.width), 0)

    def _converted(self, x: str, source: str, target: str, width: int = 0) -> str:
        expr = expand(cast(operand(0, source), target))
        return Printer(self.b, width or self.width).value(expr, [x])

    def _move_state(self, memory: str, count: str, *, load: bool) -> None:
        b, code, w = self.b, self.code, self.width
        with b.loop(0, self.p["size"]) as i:
            row = b.address(memory, code.state, b.mul(i, self.p["value.size"]))
            own = b.address(self.state, "f32", b.mul(i, self.columns))
            for part in range(_VECTORS):
                many, lanes = Printer(b, w), self._lanes(count, part)
                outside, inside = b.address(row, code.state, part * w), b.address(own, "f32", part * w)
                if load:
                    x = many.load_masked(code.state, outside, lanes)
                    many.store("f32", self._converted(x, code.state, "f32"), inside)
                else:
                    x = self._converted(many.load("f32", inside), "f32", code.state)
                    many.store_masked(code.state, x, outside, lanes)

    def _row(self, name: str, index: str, count: str | int, element: str) -> str:
        """Address of an element of a packed tensor's row ``index``, which has ``count`` elements."""
        b = self.b
        return b.address(self.operand[name], self.code.dtype, b.add(b.mul(index, count), element))

    def _copy(self, source: str, target: str, expr: Expr, *more: str) -> None:
        """``size`` elements through an expression of each and of numbers that are the same for all."""
        b, w, size = self.b, self.width, self.p["size"]
        many = Printer(b, w)
        same = [many.splat("f32", x, w) for x in more]
        lowered = expand(expr)
        with b.loop(0, size, w) as i:
            x = Printer(b, w).load_masked(
                self.code.dtype, b.address(source, self.code.dtype, i), b.min(b.sub(size, i), w)
            )
            many.store("f32", Printer(b, w).value(lowered, [x, *same]), b.address(target, "f32", i))

    def _scalar(self, address: str) -> str:
        return self._converted(Printer(self.b, 1).load(self.code.dtype, address), self.code.dtype, "f32", 1)

    def _step(self, row: str, head: str, column: str, count: str) -> None:
        b, p, code, w = self.b, self.p, self.code, self.width
        x = cast(operand(0, code.dtype), "f32")
        inner = b.mul(p["heads"], p["size"])
        self._copy(self._row("k", row, inner, b.mul(head, p["size"])), self.keys, x)
        gate = None
        if code.decay:
            each = b.compare("eq", p["decays"], inner)
            single = self._row("g", row, p["decays"], head)

            def by_feature() -> None:
                source = self._row("g", row, p["decays"], b.mul(head, p["size"]))
                self._copy(source, self.gates, call("exp", x))

            def by_head() -> None:
                factor = Printer(b, 1).value(expand(call("exp", operand(0, "f32"))), [self._scalar(single)])
                spread = Printer(b, w).splat("f32", factor, w)
                with b.loop(0, p["size"], w) as i:
                    Printer(b, w).store("f32", spread, b.address(self.gates, "f32", i))

            b.branch(each, by_feature, by_head)
            gate = self.gates
        wide = b.mul(p["heads"], p["value.size"])
        source = self._row("v", row, wide, b.add(b.mul(head, p["value.size"]), column))
        values = []
        for part in range(_VECTORS):
            loaded = Printer(b, w).load_masked(
                code.dtype, b.address(source, code.dtype, part * w), self._lanes(count, part)
            )
            values.append(self._converted(loaded, code.dtype, "f32"))
        if gate is not None or code.delta:
            held = self._decayed(gate)
            if code.delta:
                values = self._corrected(values, held, row, head)
        first = b.mul(head, p["group"])
        self._query(row, first)
        self._store(self._written(values), row, first, column, count)
        with b.loop(1, p["group"]) as g:
            member = b.add(first, g)
            self._query(row, member)
            self._store(self._read(), row, member, column, count)

    def _query(self, row: str, head: str) -> None:
        """The query of a head, times the scale."""
        b, p = self.b, self.p
        width = b.mul(b.mul(p["heads"], p["group"]), p["size"])
        low = b.op(f"trunc i64 {p['scale']} to i32")
        scale = b.op(f"bitcast i32 {low} to float")
        expr = cast(operand(0, self.code.dtype), "f32") * operand(1, "f32")
        self._copy(self._row("q", row, width, b.mul(head, p["size"])), self.queries, expr, scale)

    # one step over the rows of the state

    def _rows(self, carried: Sequence[str], body: _Body) -> list[str]:
        """Walk the rows of the state with values that are carried from one to the next; returns the last ones."""
        b, w = self.b, self.width
        start = tuple((self.type, c) for c in carried)
        with b.loop_carrying(0, self.p["size"], 1, start) as (i, inside, following):
            line = b.address(self.state, "f32", b.mul(i, self.columns))
            places = [b.address(line, "f32", part * w) for part in range(_VECTORS)]
            state = [Printer(b, w).load("f32", at) for at in places]
            changed, later = body(i, state, inside)
            if changed is not None:
                for x, at in zip(changed, places, strict=True):
                    Printer(b, w).store("f32", x, at)
            following.extend(later)
        return following

    def _factor(self, buffer: str, i: str) -> str:
        """An element of a buffer in all lanes."""
        b = self.b
        return Printer(b, self.width).splat("f32", Printer(b, 1).load("f32", b.address(buffer, "f32", i)), self.width)

    def _fma(self, a: str, x: Sequence[str], sums: Sequence[str]) -> list[str]:
        expr = fma(operand(0, "f32"), operand(1, "f32"), operand(2, "f32"))
        return [Printer(self.b, self.width).value(expr, [a, v, s]) for v, s in zip(x, sums, strict=True)]

    @property
    def _zeros(self) -> list[str]:
        return ["zeroinitializer"] * _VECTORS

    def _decayed(self, gate: str | None) -> list[str]:
        """Let the state decay; what it then holds of the key."""

        def body(i: str, state: list[str], carried: list[str]) -> tuple[list[str] | None, list[str]]:
            if gate is not None:
                factor = self._factor(gate, i)
                state = [self.b.op(f"fmul {self.type} {s}, {factor}") for s in state]
            held = self._fma(self._factor(self.keys, i), state, carried) if self.code.delta else []
            return (None if gate is None else state), held

        return self._rows(self._zeros if self.code.delta else [], body)

    def _corrected(self, values: Sequence[str], held: Sequence[str], row: str, head: str) -> list[str]:
        """``rate * (value - held)``."""
        b, p = self.b, self.p
        own = b.min(head, b.sub(p["betas"], 1))
        rate = Printer(b, self.width).splat("f32", self._scalar(self._row("beta", row, p["betas"], own)), self.width)
        differences = [b.op(f"fsub {self.type} {v}, {h}") for v, h in zip(values, held, strict=True)]
        return [b.op(f"fmul {self.type} {d}, {rate}") for d in differences]

    def _written(self, values: Sequence[str]) -> list[str]:
        """Write values under the key; what the state then holds of the query."""

        def body(i: str, state: list[str], carried: list[str]) -> tuple[list[str] | None, list[str]]:
            state = self._fma(self._factor(self.keys, i), values, state)
            return state, self._fma(self._factor(self.queries, i), state, carried)

        return self._rows(self._zeros, body)

    def _read(self) -> list[str]:
        """What the state holds of the query."""

        def body(i: str, state: list[str], carried: list[str]) -> tuple[list[str] | None, list[str]]:
            return None, self._fma(self._factor(self.queries, i), state, carried)

        return self._rows(self._zeros, body)

    def _store(self, values: Sequence[str], row: str, head: str, column: str, count: str) -> None:
        b, p, dtype, w = self.b, self.p, self.code.dtype, self.width
        wide = b.mul(b.mul(p["heads"], p["group"]), p["value.size"])
        target = self._row("y", row, wide, b.add(b.mul(head, p["value.size"]), column))
        for part, x in enumerate(values):
            place = b.address(target, dtype, part * w)
            Printer(b, w).store_masked(dtype, self._converted(x, "f32", dtype), place, self._lanes(count, part))


def linear_attention_workspace(size: DimLike) -> DimLike:
    """Bytes of scratch memory for each thread."""
    width = machine().width(32)
    return (size * (_VECTORS * width) + (D.maximum(size, 1) + width) * 3) * 4


def linear_attention_phase(
    code: LinearAttentionCode, sizes: Mapping[str, DimLike], scale: float, operands: tuple[int, ...]
) -> Phase:
    """The phase that does all steps.

    Args:
        code: Types and rule.
        sizes: "images", "steps", "heads" (of keys), "group" (query heads of each), "size" (of keys), "value.size",
            "decays" and "betas" (elements of a row of them).
        scale: Of the results.
        operands: Those of the code, the last one a workspace of :func:`linear_attention_workspace` bytes a thread.
    """
    bits_of_scale = struct.unpack("<i", struct.pack("<f", scale))[0]
    values = {**sizes, "scale": bits_of_scale, "scratch": linear_attention_workspace(sizes["size"])}
    launch = functools.partial(_launch, tuple(values))
    return Phase(code, operands, tuple(values.values()), launch)


def _launch(names: tuple[str, ...], sizes: Sequence[int]) -> Launch:
    v = dict(zip(names, sizes, strict=True))
    v["blocks"] = -(-v["value.size"] // (_VECTORS * machine().width(32)))
    return Launch(tuple(v[n] for n in _NAMES), v["images"] * v["heads"] * v["blocks"])
