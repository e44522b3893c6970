"""Logs as they come: of any length, with escape sequences, any line ends, UTF-16, and bytes that are no text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["Block", "blocks_of", "looks_like_error", "text_of"]

#: Bytes read at once.
_READ = 1 << 20
#: What a match may be longer than is not found at the border of two blocks.
TAIL = 1 << 13
#: An escape sequence that is longer is no escape sequence.
_LONGEST_ESCAPE = 256
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
#: Words of lines that look like errors, in lower case.
_ALARM = re.compile(
    rb"\b(?:error|exception|fatal|fail(?:ed|ure)|traceback|segmentation fault|abort(?:ed)?|core dumped|killed|panic|"
    rb"critical|assertion|cannot|not found|unsupported|invalid)\b|\w(?:error|exception)\b|\[e\]"
)
#: What speaks of errors and is none.
_CALM = re.compile(
    rb"\b(?:0|no|zero|without) (?:\w+ )?(?:errors?|failures?|exceptions?)\b|"
    rb"\b(?:errors?|failures?|failed)\W{0,3}[:=]\W{0,3}(?:0\b|none|null|\[\])|"
    rb"error[_ ](?:rate|count|bound|bars?)|mean (?:squared|absolute) error|(?:max|relative|abs\w*) error"
)


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a log.

    Attributes:
        data: Cleaned bytes; it goes on beyond :attr:`end` so that matches are whole.
        lower: The same in lower case (ASCII), of the same length.
        end: Matches that start here or later belong to the next block.
        offset: Cleaned bytes before this block.
        before: Lines that ended before this block.
    """

    data: bytes
    lower: bytes
    end: int
    offset: int
    before: int

    def line_start(self, position: int) -> int:
        """Where the line of ``position`` begins, or the block."""
        return self.data.rfind(b"\n", 0, position) + 1

    def line(self, position: int) -> bytes:
        """The line of ``position``; of a very long line the part around it."""
        start = max(self.line_start(position), position - TAIL // 4)
        end = self.data.find(b"\n", position)
        return self.data[start : min(end if end >= 0 else len(self.data), position + TAIL // 2)]

    def line_number(self, position: int) -> int:
        """Number of the line of ``position``, from 1."""
        return self.before + self.data.count(b"\n", 0, position) + 1

    @property
    def lines(self) -> int:
        """Lines up to the end of :attr:`data`."""
        return self.before + self.data.count(b"\n") + (not self.data.endswith(b"\n") and bool(self.data))


def blocks_of(stream: BinaryIO) -> Iterator[Block]:
    """The log in pieces that overlap; only two of them are in memory at a time."""
    kept, offset, before = b"", 0, 0
    for piece in _cleaned(stream):
        data = kept + piece
        if len(data) <= 2 * TAIL:
            kept = data
            continue
        end = len(data) - TAIL
        yield Block(data, data.lower(), end, offset, before)
        before += data.count(b"\n", 0, end)
        offset += end
        kept = data[end:]
    if kept:
        yield Block(kept, kept.lower(), len(kept), offset, before)


def _cleaned(stream: BinaryIO) -> Iterator[bytes]:
    """UTF-8 without escape sequences, whose lines end with a line feed."""
    held = b""
    for piece in _utf8(stream):
        data = held + piece
        held = b""
        cut = max(data.rfind(b"\x1b", len(data) - _LONGEST_ESCAPE), len(data) - 1 if data.endswith(b"\r") else -1)
        if cut >= 0 and len(data) - cut < _LONGEST_ESCAPE:
            data, held = data[:cut], data[cut:]  # it may go on in the next piece
        yield _plain(data)
    yield _plain(held)


def _plain(data: bytes) -> bytes:
    if b"\x1b" in data:
        data = _ESCAPES.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data


def _utf8(stream: BinaryIO) -> Iterator[bytes]:
    """The stream in pieces, as UTF-8 if it is UTF-16, which PowerShell writes."""
    first = stream.read(_READ)
    encoding = _utf16(first)
    if encoding is None:
        while first:
            yield first
            first = stream.read(_READ)
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    while first:
        yield decoder.decode(first).lstrip("\ufeff").encode(errors="replace")
        first = stream.read(_READ)


def _utf16(start: bytes) -> str | None:
    """Which UTF-16 a text is in: it begins with the mark, or every other byte is 0."""
    if start.startswith(b"\xff\xfe"):
        return "utf-16-le"
    if start.startswith(b"\xfe\xff"):
        return "utf-16-be"
    sample = start[:512]
    if len(sample) >= 8:
        even, odd = sample[::2].count(0), sample[1::2].count(0)
        if odd > 0.9 * len(sample) / 2 and even == 0:
            return "utf-16-le"
        if even > 0.9 * len(sample) / 2 and odd == 0:
            return "utf-16-be"
    return None


def looks_like_error(block: Block) -> Iterator[int]:
    """Positions of lines that look like errors, one a line."""
    after = -1
    for match in _ALARM.finditer(block.lower, 0, block.end):
        if match.start() < after:
            continue
        after = block.data.find(b"\n", match.start()) + 1 or len(block.data)
        if not _CALM.search(block.lower, block.line_start(match.start()), after):
            yield match.start()


def text_of(data: bytes) -> str:
    """Bytes as text that a terminal can show."""
    text = data.decode(errors="replace")
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
