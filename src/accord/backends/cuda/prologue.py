"""Where in machine code a kernel waits for those in front of it: after what it can work out before.

The assembler orders instructions as their values need each other. To wait needs none, and takes long, so it puts that
first, and all places in memory are worked out after it, while nothing else remains to be waited for.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["WAITING", "hold"]

#: The instruction.
WAITING: Final = "griddepcontrol.wait"
#: Where another block of instructions begins.
_BORDER: Final = re.compile(r"^\$L__BB|^\{|\bbra\b")
#: The registers that an instruction writes. Parameters are read where they are needed.
_WRITES: Final = re.compile(r"\s*(?:@!?%p\d+\s+)?(?!ld\.param)[a-z][\w.:]*\s+(\{[^}]*\}|%\w+)")
_REGISTER: Final = re.compile(r"%(?:r|rd)\d+\b")
#: Any number: if by chance the values come to it, the kernel waits a little earlier, which is as right.
_UNLIKELY: Final = 0x9E3779B9


def hold(ptx: str) -> str:
    """A kernel that waits when all that it has worked out before in the same block, and needs afterwards, is there.

    In front of each instruction that waits stands one more, under a condition that depends on these values and is
    hardly ever true; the assembler keeps the two in order.

    Args:
        ptx: The assembler's text, as LLVM writes it: each register has one width.
    """
    lines = ptx.splitlines()
    held = []
    for number, line in enumerate(lines):
        if WAITING in line:
            used = set(_REGISTER.findall("\n".join(lines[number + 1 :])))
            held += _condition([r for r in _written(lines[:number]) if r in used])
        held.append(line)
    return "\n".join(held) + "\n"


def _written(lines: list[str]) -> list[str]:
    """Registers that are written in the block which the last of the lines belongs to."""
    found: dict[str, None] = {}
    for line in reversed(lines):
        if _BORDER.search(line):
            break
        writes = _WRITES.match(line)
        if writes:
            found |= dict.fromkeys(_REGISTER.findall(writes[1]))
    return [*reversed(found)]


def _condition(values: list[str]) -> list[str]:
    """Lines that wait if the values come to a certain number."""
    if not values:
        return []
    lines = ["{", ".reg .b32 held, low;", ".reg .pred never;", "mov.b32 held, 0;"]
    for v in values:
        if v.startswith("%rd"):
            lines += [f"cvt.u32.u64 low, {v};", "xor.b32 held, held, low;"]
        else:
            lines.append(f"xor.b32 held, held, {v};")
    return [f"\t{line}" for line in (*lines, f"setp.eq.b32 never, held, {_UNLIKELY};", f"@never {WAITING};", "}")]
