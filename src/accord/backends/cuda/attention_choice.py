"""The tiles of attention as a choice, between both of its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from accord.backends.cuda.attention import AttentionKernel, Tiles, candidates, geometry
from accord.backends.cuda.choices import Choice, Operand, Started
from accord.backends.cuda.code import EXACT, CudaLaunch, hints_of
from accord.backends.cuda.hopper import (
    HopperAttention,
    HopperTiles,
    hopper_candidates,
    hopper_geometry,
    suits_hopper,
)
from accord.record import record

__all__ = ["AttentionChoice", "attention_choice", "plain_launch", "plain_tiles"]

#: Integers that stay parameters even if they are always the same: constant terms of places in memory would be added in
#: each step, after all else, and a constant number of few steps is unrolled, which takes registers.
_PASSED = frozenset({"keys", "m_n", *(f"{t}_o" for t in "qkvym"), *(f"{t}_{a}" for t in "kv" for a in "bh")})

Way: TypeAlias = Tiles | HopperTiles


@record
class AttentionChoice(Choice):
    """The tiles of one attention whose keys are not split.

    Attributes:
        kernel: The pattern.
        sizes: Values of its ``names``.
        hints: What is known of these for all sizes, see :func:`~accord.backends.cuda.code.exact_hints`.
        rule: The tiles by rule.
    """

    kernel: AttentionKernel
    sizes: tuple[int, ...]
    hints: tuple[str, ...]
    rule: Way

    kinds = (Tiles, HopperTiles)

    @property
    def content(self) -> str:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        return repr((self.kernel.symbol, self.sizes, self.hints))

    def ways(self) -> Sequence[Way]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        if self.kernel.valid:  # how many keys count is in memory: numbers that are made up say nothing of the time
            return (self.rule,)
        plain = [t for t in candidates(self.kernel, _architecture(), self.sizes) if not t.descriptors]
        others = hopper_candidates(self.kernel) if _has_hopper(self.kernel, self.sizes) else ()
        return tuple(dict.fromkeys((self.rule, *plain, *others)))

    def started(self, way: Way) -> tuple[Started, ...]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        if isinstance(way, Tiles):
            return (Started(self.kernel, plain_launch(self.kernel, way, self.hints, self.sizes)),)
        from accord.backends.cuda.driver import device

        shape = hopper_geometry(self.kernel, way, self.sizes, device().processors)
        launch = CudaLaunch(
            self.sizes,
            shape.grid,
            (shape.grid, 1, 1),
            tuple(shape.constants.items()),
            tuple(map(_loose, self.hints, self.sizes)),
            _is_wide(self.sizes),
            shape.warps,
            1,
        )
        return (Started(HopperAttention(self.kernel), launch),)

    def operands(self) -> tuple[Operand, ...]:
        """See :class:`~accord.backends.cuda.choices.Choice`."""
        k = self.kernel
        v = dict(zip(k.names, self.sizes, strict=True))
        extents = {
            "q": (v["images"], v["heads"], v["length"], k.size),
            "k": (v["images"], v["groups"], v["keys"], k.size),
            "v": (v["images"], v["groups"], v["keys"], k.value_size),
            "y": (v["images"], v["heads"], v["length"], k.value_size),
            "m": (v["images"], v["heads"], v["length"], v["keys"]),
            "n": (v["images"], 1, 1, 1),
        }
        found = []
        for name, dtype in zip(k.memory, k.pointers, strict=True):
            if name == "n":
                strides: tuple[int, ...] = (v["valid_step"], 0, 0, 0)
            elif name == "m":
                kinds = zip("bhld", k.mask_kinds, strict=True)
                strides = tuple(0 if kind == "0" else 1 if kind == "1" else v[f"m_{a}"] for a, kind in kinds)
            else:
                strides = (*(v[f"{name}_{a}"] for a in "bhl"), 1)
            steps = sum(abs(s) * (n - 1) for s, n in zip(strides, extents[name], strict=True))
            found.append(Operand(dtype, v.get(f"{name}_o", 0) + steps + 1, written=name == "y"))
        return tuple(found)


def attention_choice(kernel: AttentionKernel, hints: tuple[str, ...], sizes: Sequence[int]) -> AttentionChoice | None:
    """The choice for values of the kernel's integer parameters; None if the result is empty."""
    known = tuple(sizes)
    images, heads, _, length, keys = known[:5]
    if 0 in (images, heads, length):
        return None
    # with few keys or few blocks of queries the plain kernel's smaller tiles win (measured on one H200)
    enough = keys >= 2048 and images * heads * length >= 128 * 132
    hopper = enough and _has_hopper(kernel, known)
    rule = hopper_candidates(kernel)[0] if hopper else plain_tiles(kernel, known)
    return AttentionChoice(kernel, known, hints, rule)


def plain_tiles(kernel: AttentionKernel, sizes: Sequence[int]) -> Tiles:
    """The tiles of the Triton text by rule."""
    return next(t for t in candidates(kernel, _architecture(), sizes) if not t.descriptors)


def plain_launch(kernel: AttentionKernel, tiles: Tiles, hints: tuple[str, ...], sizes: Sequence[int]) -> CudaLaunch:
    """How the Triton text is started."""
    shape = geometry(kernel, tiles, sizes, hints)
    known = tuple(
        _loose(hint, size) if name in _PASSED else hint
        for name, size, hint in zip(kernel.names, sizes, hints, strict=True)
    )
    made = CudaLaunch.of(
        kernel.names, sizes, known, (*shape.grid, 1), shape.constants,
        wide=_is_wide(sizes), warps=tiles.warps, stages=tiles.stages,
    )  # fmt: skip
    return replace(made, registers=tiles.registers)


def _loose(hint: str, size: int) -> str:
    """The hint of an integer that stays a parameter even if it is always the same."""
    return hints_of([size])[0] if hint == EXACT else hint


def _has_hopper(kernel: AttentionKernel, sizes: Sequence[int]) -> bool:
    return _architecture() == 90 and suits_hopper(kernel, sizes)


def _is_wide(sizes: Sequence[int]) -> bool:
    return any(abs(n) >= 1 << 31 for n in sizes)


def _architecture() -> int:
    from accord.backends.cuda.driver import device

    return device().architecture
