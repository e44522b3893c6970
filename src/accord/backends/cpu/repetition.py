"""Rounds of a loop in machine code: ``repetition.ll``, and the words that it reads."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from accord.backends.cpu import jit
from accord.backends.protocol import Array, Rounds

__all__ = ["run_rounds"]

#: What there is to know, in this order, a word each; the first is how many rounds are wanted, then how many were done.
_WORDS: Final = {
    "wanted": "i64",
    "walk": "ptr",
    "rows": "ptr",
    "phases": "i64",
    "pool": "ptr",
    "threads": "i64",
    "table": "ptr",
    "table.bytes": "i64",
    "first.words": "ptr",
    "second.words": "ptr",
    "counters": "ptr",
    "counters.count": "i64",
    "before": "ptr",
    "before.count": "i64",
    "first.after": "ptr",
    "first.after.count": "i64",
    "second.after": "ptr",
    "second.after.count": "i64",
    "collected": "ptr",
    "collected.count": "i64",
    "checks": "ptr",
    "checks.count": "i64",
    "condition": "ptr",
}


class _Source:
    """The module."""

    symbol = "accord_rounds"

    @functools.cached_property
    def key(self) -> bytes:
        """What its machine code is kept under."""
        return jit.text_key(self.module(self.symbol))

    def module(self, name: str) -> str:
        """LLVM text."""
        loads = [
            f"  %{word}.at = getelementptr i64, ptr %given, i64 {k}\n  %{word} = load {kind}, ptr %{word}.at"
            for k, (word, kind) in enumerate(_WORDS.items())
        ]
        words = {"rounds": name, "loads": "\n".join(loads)}
        template = Path(__file__).with_name("repetition.ll").read_text()
        return re.sub(r"\$\{(\w+)\}", lambda found: words[found[1]], template)


@functools.cache
def _function() -> Callable[[int], None]:
    source = _Source()
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(jit.entries(source)[source.symbol])


def run_rounds(
    program: tuple[int, int, int, int], walk: int, rounds: Rounds, checks: Sequence[Sequence[int]], count: int
) -> int:
    """Run rounds of a program.

    Args:
        program: Its rows, how many, the pool, and threads.
        walk: The address of the function that walks them.
        rounds: What is done between.
        checks: Addresses of words that are not zero where a phase refused its data.
        count: The most rounds.

    Returns:
        How many were done: fewer where the condition was false or data was refused.
    """
    lists = [rounds.counters, rounds.before, *rounds.after, rounds.collected, checks]
    table, turns = rounds.table, rounds.words
    words = [count, walk, *program, _address(table), table.nbytes, *map(_address, turns)]
    flat = [[word for entry in entries for word in entry] for entries in lists]
    given = (ctypes.c_int64 * (len(_WORDS) + sum(map(len, flat))))()
    at = ctypes.addressof(given)
    end = at + 8 * len(_WORDS)
    for entries, content in zip(lists, flat, strict=True):
        words += [end, len(entries)]
        end += 8 * len(content)
    given[:] = [*words, rounds.condition, *(word for content in flat for word in content)]
    _function()(at)
    return given[0]


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
