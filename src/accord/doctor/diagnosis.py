"""From a log or an exception to what is known about it: the root cause first, then what followed from it."""

from __future__ import annotations

import io
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from accord.doctor.entries import Entry, known_errors
from accord.doctor.log import Block, blocks_of, looks_like_error, text_of
from accord.errors import InputError

__all__ = ["Diagnosis", "Reading", "diagnose", "read_log"]

#: Different cases of one error that are kept: other nodes, other sizes.
_CASES = 5
#: Lines that look like errors that are kept where nothing is known.
_SUSPECTS = 8
_EVIDENCE = 300


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A known error that a log shows.

    Attributes:
        id: Of the entry.
        runtime: Whose error it is.
        severity: "error" or "warning".
        title: What happened.
        cause: Why.
        confirm: How to make sure.
        remedy: What to do.
        details: What the log says of it: node, operator, sizes, versions.
        more: The same of other cases of this error in the log, the first few.
        line: Number of the line where it was found first, from 1.
        evidence: That line.
        count: How often it was found.
        consequence_of: Ids of other diagnoses of this log that explain it.
        often_because_of: Ids of entries that explain it often.
        related: Ids of entries worth reading with it.
        seen: Public reports, ``owner/repository#number``.
    """

    id: str
    runtime: str
    severity: str
    title: str
    cause: str
    confirm: str
    remedy: str
    details: Mapping[str, str]
    more: tuple[Mapping[str, str], ...]
    line: int
    evidence: str
    count: int
    consequence_of: tuple[str, ...]
    often_because_of: tuple[str, ...]
    related: tuple[str, ...]
    seen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found in a log.

    Attributes:
        diagnoses: Known errors: the root causes first, what follows from them behind.
        lines: Lines of the log.
        suspects: Where nothing is known: number and text of lines that look like errors, the first ones and the last.
    """

    diagnoses: tuple[Diagnosis, ...]
    lines: int
    suspects: tuple[tuple[int, str], ...]


def diagnose(problem: str | bytes | BaseException) -> list[Diagnosis]:
    """What is known about an error.

    Args:
        problem: Text of a log or of an error, or an exception, whose causes are looked at too.

    Returns:
        Diagnoses, root causes first; empty if nothing is known about it.

    Raises:
        InputError: ``problem`` is something else.
    """
    if isinstance(problem, BaseException):
        problem = "".join(traceback.format_exception(problem))
    if isinstance(problem, str):
        problem = problem.encode(errors="replace")
    if not isinstance(problem, bytes):
        raise InputError("cannot diagnose this", expected="text or an exception", found=type(problem).__name__)
    return list(read_log(io.BytesIO(problem)).diagnoses)


def read_log(stream: BinaryIO) -> Reading:
    """Read a log to its end; memory is bounded, however long it is.

    Args:
        stream: Opened in binary mode; escape sequences, any line ends, UTF-16 and bytes that are no text may be in it.
    """
    found: dict[str, _Found] = {}
    suspects = _Suspects()
    block = None
    for block in blocks_of(stream):
        present = _Words(block.lower)
        for entry in known_errors().values():
            for pattern in entry.patterns:
                if not all(present[word] for word in pattern.literals):
                    continue
                for match in pattern.regex.finditer(block.lower):
                    if match.start() >= block.end:
                        break  # belongs to the next block
                    if match.end() > match.start():
                        found.setdefault(entry.id, _Found(entry)).add(block, match)
        if not found:
            suspects.look(block)
    lines = 0 if block is None else block.lines
    return Reading(_ordered(found), lines, () if found else suspects.all())


class _Words(dict[bytes, bool]):
    """Which words are in a text; each is looked for once."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def __missing__(self, word: bytes) -> bool:
        self[word] = found = word in self._text
        return found


@dataclass(slots=True)
class _Found:
    """An entry that matched, and where."""

    entry: Entry
    starts: set[int] = field(default_factory=set)
    cases: dict[tuple[tuple[str, str], ...], None] = field(default_factory=dict)
    count: int = 0
    last: int = -1
    offset: int = -1
    line: int = 0
    evidence: str = ""

    def add(self, block: Block, match: Any) -> None:
        start = block.offset + match.start()
        line_start = block.line_start(match.start()) + block.offset
        if line_start != self.last:  # several patterns of one entry may match one line
            self.count += line_start not in self.starts
            self.last = line_start
            if len(self.starts) < 10_000:
                self.starts.add(line_start)
        if self.offset < 0 or start < self.offset:
            self.offset = start
            self.line = block.line_number(match.start())
            self.evidence = text_of(block.line(match.start()))[:_EVIDENCE]
        if len(self.cases) < _CASES:
            groups = ((g, match.span(g)) for g in match.re.groupindex)
            case = tuple((g, text_of(block.data[a:b]).strip()) for g, (a, b) in groups if a >= 0 and b > a)
            if case:
                self.cases[case] = None

    def details(self) -> list[dict[str, str]]:
        """What the groups held, the fullest first; a case that says less than another is left out."""
        cases = sorted((dict(c) for c in self.cases), key=len, reverse=True)
        kept: list[dict[str, str]] = []
        for case in cases:
            if not any(case.items() <= other.items() for other in kept):
                kept.append(case)
        return kept


class _Suspects:
    """The first lines that look like errors, and the last."""

    def __init__(self) -> None:
        self._first: list[tuple[int, str]] = []
        self._last: tuple[int, str] | None = None

    def look(self, block: Block) -> None:
        for position in looks_like_error(block):
            here = (block.line_number(position), text_of(block.line(position)).strip()[:_EVIDENCE])
            if len(self._first) < _SUSPECTS:
                if here not in self._first:
                    self._first.append(here)
            else:
                self._last = here
                return

    def all(self) -> tuple[tuple[int, str], ...]:
        last = [self._last] if self._last is not None and self._last not in self._first else []
        return tuple(self._first + last)


def _ordered(found: Mapping[str, _Found]) -> tuple[Diagnosis, ...]:
    """Diagnoses so that no cause comes after its consequence; otherwise errors before warnings, and as in the log."""
    causes = {name: [c for c in _all_causes(name) if c in found] for name in found}
    ranked = sorted(found, key=lambda n: (found[n].entry.severity != "error", found[n].offset))
    placed: list[str] = []
    waiting = ranked
    while waiting:  # causes form no circle, so each round places some
        ready = next(n for n in waiting if all(c in placed for c in causes[n]))
        placed.append(ready)
        waiting = [n for n in waiting if n != ready]
    roots_first = sorted(placed, key=lambda n: bool(causes[n]))  # stable
    return tuple(_diagnosis(found[n], causes[n]) for n in roots_first)


def _all_causes(name: str) -> list[str]:
    """Ids of all that ``name`` may follow from, directly or through others, the nearest first."""
    known = known_errors()
    seen: dict[str, None] = {}
    level: Sequence[str] = known[name].because_of
    while level:
        seen.update(dict.fromkeys(level))
        level = [c for parent in level for c in known[parent].because_of if c not in seen]
    return list(seen)


def _diagnosis(found: _Found, causes: Sequence[str]) -> Diagnosis:
    entry, cases = found.entry, found.details()
    details = cases[0] if cases else {}
    return Diagnosis(
        id=entry.id,
        runtime=entry.runtime,
        severity=entry.severity,
        title=entry.text("title", details),
        cause=entry.text("cause", details),
        confirm=entry.text("confirm", details),
        remedy=entry.text("remedy", details),
        details=details,
        more=tuple(cases[1:]),
        line=found.line,
        evidence=found.evidence.strip(),
        count=found.count,
        consequence_of=tuple(causes),
        often_because_of=entry.because_of,
        related=entry.related,
        seen=entry.seen,
    )
