"""Linear attention in Triton: a program has some columns of one head's state in registers and walks all steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from accord.backends.cuda.code import CudaLaunch, KernelText
from accord.backends.cuda.lines import HEAD, NEXT, WAIT, Code, ceildiv, power_of_two
from accord.backends.cuda.printer import TYPES
from accord.backends.matrix_state import LinearAttention
from accord.record import record

__all__ = ["NAMES", "LinearAttentionKernel", "linear_attention_launch"]

#: Integers of a launch, in order.
NAMES: Final = ("images", "steps", "heads", "group", "size", "width", "decays", "betas")
#: Columns of a program's state.
_COLUMNS: Final = 32


@record
class LinearAttentionKernel(KernelText):
    """Pointers: queries, keys, values, the past state, decay and rate if there are, results, state. All without gaps.

    Attributes:
        asked: What is computed.
    """

    asked: LinearAttention

    @property
    def symbol(self) -> str:
        """Name by content."""
        return f"linear_attention_{hashlib.sha256(repr(self.asked).encode()).hexdigest()[:24]}"

    @property
    def _names(self) -> list[tuple[str, str]]:
        a = self.asked
        found = [(n, a.dtype) for n in ("q", "k", "v")]
        found += [("past", a.state)] * a.past + [("g", a.dtype)] * a.decay + [("beta", a.dtype)] * a.delta
        return [*found, ("y", a.dtype), *([("kept", a.state)] * a.kept)]

    @property
    def pointers(self) -> tuple[str, ...]:
        """Element types of the operands."""
        return tuple(dtype for _, dtype in self._names)

    def text(self) -> str:
        """The module."""
        a, code = self.asked, Code()
        code(
            "block = tl.program_id(0)",
            "head = tl.program_id(1)",
            "image = tl.program_id(2).to(tl.int64)",
            "i = tl.arange(0, SIZE)",
            "j = block * COLUMNS + tl.arange(0, COLUMNS)",
            "i_in = i < size",
            "j_in = j < width",
            "inside = i_in[:, None] & j_in[None, :]",
            "place = ((image * heads + head) * size + i)[:, None] * width + j[None, :]",
            WAIT,
        )
        if a.past:
            code("state = tl.load(past + place, mask=inside, other=0.0).to(tl.float32)")
        else:
            code("state = tl.zeros([SIZE, COLUMNS], tl.float32)")
        with code.indented("for t in range(steps):"):
            code(
                "row = image * steps + t",
                "key = tl.load(k + (row * heads + head) * size + i, mask=i_in, other=0.0).to(tl.float32)",
                "value = tl.load(v + (row * heads + head) * width + j, mask=j_in, other=0.0).to(tl.float32)",
            )
            if a.decay:
                with code.indented("if decays == heads * size:"):
                    code("rate = tl.load(g + (row * heads + head) * size + i, mask=i_in, other=0.0).to(tl.float32)")
                with code.indented("else:"):
                    code("rate = tl.load(g + row * decays + head + i * 0).to(tl.float32)")
                code("state = state * tl.exp(rate)[:, None]")
            if a.delta:
                code(
                    "held = tl.sum(state * key[:, None], 0)",
                    "each = tl.load(beta + row * betas + tl.minimum(head, betas - 1)).to(tl.float32)",
                    "value = each * (value - held)",
                )
            code("state += key[:, None] * value[None, :]")
            with code.indented("for member in range(group):"):
                code(
                    "asked = (row * heads + head) * group + member",
                    "query = tl.load(q + asked * size + i, mask=i_in, other=0.0).to(tl.float32)",
                    f"found = tl.sum(state * (query * {a.scale!r})[:, None], 0)",
                    f"tl.store(y + asked * width + j, found.to({TYPES[a.dtype]}), mask=j_in)",
                )
        code(NEXT)
        if a.kept:
            code(f"tl.store(kept + place, state.to({TYPES[a.state]}), mask=inside)")
        parameters = [*(n for n, _ in self._names), *NAMES, "SIZE: tl.constexpr", "COLUMNS: tl.constexpr"]
        return HEAD + code.function(self.symbol, parameters)


def linear_attention_launch(sizes: Sequence[int]) -> CudaLaunch:
    """The launch for the values of :data:`NAMES`."""
    images, _, heads, _, size, width, *_ = sizes
    grid = (ceildiv(width, _COLUMNS), heads, images)
    constants = (("SIZE", power_of_two(max(size, 1))), ("COLUMNS", _COLUMNS))
    tasks = grid[0] * heads * images
    return CudaLaunch(tuple(sizes), tasks, grid, constants, ("",) * len(NAMES))
