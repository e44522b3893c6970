"""The known errors: tables in ``known/*.toml``, one a runtime, checked when they are read.

A pattern is a regular expression on lower-case text. A blank in it stands for any white space, so that a message which
a terminal or a logger broke into lines is found all the same. Its named groups (a node, a size, a version) are put into
the entry's texts, where ``{node|?}`` is the group ``node``, or ``?`` if the log does not say. Text within ``[[ ]]`` is
left out if the log says none of its groups.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accord.errors import AccordError

__all__ = ["SEVERITIES", "Entry", "Pattern", "entries_of", "known_errors"]

SEVERITIES = ("error", "warning")
_FOLDER = Path(__file__).with_name("known")
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SEEN = re.compile(r"[\w.-]+/[\w.-]+#\d+")
_HOLE = re.compile(r"\{(\w+)\|([^{}]*)\}")
_OPTIONAL = re.compile(r"\[\[(.*?)\]\]")
_TEXTS = ("title", "cause", "confirm", "remedy")
_LISTS = ("patterns", "examples", "because_of", "related", "seen")
#: Parts of a regular expression: escapes, classes, beginnings of groups, repetitions, single characters.
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<\w+>|\(\?<?[:=!]|\{\d*,?\d*\}\??|[+*?]\??|.")
_CLASS = re.compile(r"\\[wdsWDS]|\[.+\]")
#: Most repetitions of one character.
_MOST = 300


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way in which an error appears.

    Attributes:
        regex: Applied to lower-case bytes.
        literals: Texts all of which are in whatever matches; looking for them first is what makes long logs quick.
    """

    regex: re.Pattern[bytes]
    literals: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A known error.

    Attributes:
        id: Unique, for people and programs.
        runtime: Whose error it is.
        severity: "error", or "warning" for what is slower or less than was asked for.
        title: What happened, in one line.
        patterns: Ways in which it appears in logs.
        cause: Why it happens.
        confirm: How to make sure, as commands or checks.
        remedy: What to do.
        because_of: Ids of errors whose consequence it often is.
        related: Ids of errors that are worth reading with it.
        seen: Public reports, ``owner/repository#number``.
        examples: Lines of logs that it is for.
    """

    id: str
    runtime: str
    severity: str
    title: str
    patterns: tuple[Pattern, ...]
    cause: str
    confirm: str
    remedy: str
    because_of: tuple[str, ...]
    related: tuple[str, ...]
    seen: tuple[str, ...]
    examples: tuple[str, ...]

    def text(self, name: str, details: Mapping[str, str]) -> str:
        """The text ``name`` ("title", "cause" ...) with ``details`` put in."""

        def part(match: re.Match[str]) -> str:
            return match[1] if any(details.get(hole) for hole, _ in _HOLE.findall(match[1])) else ""

        return _HOLE.sub(lambda m: details.get(m[1]) or m[2], _OPTIONAL.sub(part, getattr(self, name)))


@functools.cache
def known_errors() -> Mapping[str, Entry]:
    """All entries by id.

    Raises:
        AccordError: a table is damaged.
    """
    found: list[Entry] = []
    for path in sorted(_FOLDER.glob("*.toml")):
        found += entries_of(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    return _linked(found)


def entries_of(data: Mapping[str, Any], name: str) -> list[Entry]:
    """The entries of one table.

    Args:
        data: What a TOML file holds.
        name: Its name, for messages.

    Raises:
        AccordError: a field is missing, unknown or of the wrong kind, a pattern is no regular expression or is slow,
            or a text uses a group that no pattern has.
    """
    runtime = data.get("runtime")
    if not isinstance(runtime, str) or set(data) != {"runtime", "entry"}:
        raise AccordError(f"{name}: a table of known errors has 'runtime' and entries, and nothing else")
    return [_entry(raw, runtime, name) for raw in data["entry"]]


def _entry(raw: Mapping[str, Any], runtime: str, name: str) -> Entry:
    where = f"{name}, entry '{raw.get('id', '?')}'"
    wanted = {"id", *_TEXTS, "patterns", "examples"}
    if missing := wanted - set(raw):
        raise AccordError(f"{where}: missing {', '.join(sorted(missing))}")
    if unknown := set(raw) - wanted - {"severity", *_LISTS}:
        raise AccordError(f"{where}: unknown {', '.join(sorted(unknown))}")
    lists: dict[str, tuple[str, ...]] = {field: tuple(raw.get(field, ())) for field in _LISTS}
    texts: dict[str, str] = {field: raw[field] for field in _TEXTS}
    if not all(isinstance(v, str) and v for v in (raw["id"], *texts.values(), *(v for f in lists.values() for v in f))):
        raise AccordError(f"{where}: texts must be strings and not empty")
    if not _ID.fullmatch(raw["id"]):
        raise AccordError(f"{where}: an id is words in lower case with hyphens")
    if raw.get("severity", "error") not in SEVERITIES:
        raise AccordError(f"{where}: severity", expected=" or ".join(SEVERITIES), found=raw["severity"])
    if not lists["patterns"] or not lists["examples"]:
        raise AccordError(f"{where}: an entry needs a pattern and an example")
    if wrong := [s for s in lists["seen"] if not _SEEN.fullmatch(s)]:
        raise AccordError(f"{where}: seen", expected="owner/repository#number", found=wrong[0])
    patterns = tuple(_pattern(p, where) for p in lists["patterns"])
    groups = {g for p in patterns for g in p.regex.groupindex}
    if unfilled := {hole for text in texts.values() for hole, _ in _HOLE.findall(text)} - groups:
        raise AccordError(f"{where}: no pattern has a group {', '.join(sorted(unfilled))}")
    return Entry(
        id=raw["id"],
        runtime=runtime,
        severity=raw.get("severity", "error"),
        title=texts["title"],
        patterns=patterns,
        cause=texts["cause"],
        confirm=texts["confirm"],
        remedy=texts["remedy"],
        because_of=lists["because_of"],
        related=lists["related"],
        seen=lists["seen"],
        examples=lists["examples"],
    )


def _pattern(source: str, where: str) -> Pattern:
    if source != source.lower() and re.sub(r"\\.|\(\?P<", "", source) != re.sub(r"\\.|\(\?P<", "", source).lower():
        raise AccordError(f"{where}: pattern {source!r} must be in lower case: it is applied to lower-case text")
    try:
        return Pattern(re.compile(_compiled(source).encode()), _literals(source))
    except re.error as error:
        raise AccordError(f"{where}: pattern {source!r}: {error}") from error


def _compiled(source: str) -> str:
    """``source`` as :mod:`re` wants it.

    A blank becomes white space. Every repetition gets a bound, and one that begins the pattern begins where a run of
    such characters begins, so that matching takes time in proportion to the text whatever the text is.
    """
    tokens = [m[0] for m in _TOKEN.finditer(source)]
    written: list[str] = []
    at_start = True
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if token in "+*" or token in ("+?", "*?"):
            written.append(f"{{{int(token[0] == '+')},{_MOST}}}{token[1:]}")
            continue
        if token == " " and following[:1] not in ("?", "*", "+", "{"):
            written.append(rf"\s{{1,{_MOST}}}")
        elif at_start and following[:1] in ("+", "*", "{") and _CLASS.fullmatch(token):
            written.append(f"(?<!{token}){token}")
        else:
            written.append(token)
        at_start = at_start and token.startswith("(")
    return "".join(written)


def _literals(source: str) -> tuple[bytes, ...]:
    """Words that are in whatever ``source`` matches, the longest two: those outside classes, choices and repetition."""
    tokens = [m[0] for m in _TOKEN.finditer(source)]
    groups: list[tuple[str, list[str]]] = [("", [""])]  # how each open group begins, and its words
    choices = [False]
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        words = groups[-1][1]
        plain = token[1:] if token[0] == "\\" and not token[1].isalnum() else token
        if token.startswith("(") and token != "\\(":
            groups.append((token, [""]))
            choices.append(False)
        elif token == ")":
            begin, inner = groups.pop()
            always = not choices.pop() and following[:1] not in ("?", "*", "{") and begin[-1] in "(:>"
            groups[-1][1].extend(["", *inner, ""] if always else [""])
        elif token == "|":
            choices[-1] = True
        elif len(plain) > 1 or (plain == token and plain in " .^$+*?") or following[:1] in ("?", "*", "{"):
            words.append("")
        else:
            words[-1] += plain
    found = set() if choices[0] else {w for w in groups[0][1] if len(w) > 2}
    return tuple(w.encode() for w in sorted(found, key=lambda w: (-len(w), w))[:2])


def _linked(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Entries by id, whose links lead somewhere and whose causes form no cycle."""
    known: dict[str, Entry] = {}
    for entry in entries:
        if entry.id in known:
            raise AccordError(f"two entries have the id '{entry.id}'")
        known[entry.id] = entry
    for entry in known.values():
        for link in (*entry.because_of, *entry.related):
            if link not in known or link == entry.id:
                raise AccordError(f"entry '{entry.id}' links to '{link}', which is not another entry")
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise AccordError(f"causes in a circle: {' because of '.join((*path, name))}")
        if name not in done:
            for cause in known[name].because_of:
                visit(cause, (*path, name))
            done.add(name)

    for name in known:
        visit(name, ())
    return known
