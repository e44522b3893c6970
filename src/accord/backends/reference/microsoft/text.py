"""Strings: splitting into tokens, hashing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require
from accord.ops.microsoft.schemas import DOMAIN

_START, _END = "\x02", "\x03"


def _split(text: str, separator: re.Pattern[str], shortest: int) -> Iterator[str]:
    """The parts of ``text`` between matches; an empty match stands before the character that it precedes."""
    start = 0
    while (match := separator.search(text, start)) is not None and start <= len(text):
        part = text[start : match.start()]
        if part and len(part) >= shortest:
            yield part
        start = match.end() if match.end() > match.start() else match.start() + 1
    rest = text[start:]
    if rest and len(rest) >= shortest:
        yield rest


def _by_separators(op: OpNode) -> Callable[[str], list[str]]:
    separators = [re.compile(s) for s in op["separators"]]
    shortest = op["mincharnum"]

    def tokenize(text: str) -> list[str]:
        parts = [text]
        for separator in separators:
            parts = [token for part in parts for token in _split(part, separator, shortest)]
        return parts

    return tokenize


def _by_expression(op: OpNode) -> Callable[[str], list[str]]:
    pattern, shortest = re.compile(op["tokenexp"]), op["mincharnum"]
    return lambda text: [m.group() for m in pattern.finditer(text) if m.group() and len(m.group()) >= shortest]


@implements("Tokenizer", domain=DOMAIN)
def tokenizer(op: OpNode, x: Array) -> Array:
    """Tokens of each string of ``[C]`` or ``[N, C]``, padded to the longest, as a new last axis."""
    require(x.ndim in (1, 2), f"strings of rank {x.ndim}, not 1 or 2")
    separators, expression = op["separators"], op["tokenexp"]
    require((separators is None) != (expression is None), "either separators or tokenexp must be given")
    tokenize: Callable[[str], list[str]]
    if separators == [""] or expression == ".":
        require(op["mincharnum"] < 2, "single characters cannot be of a greater length")
        tokenize = list
    else:
        tokenize = _by_expression(op) if separators is None else _by_separators(op)
    rows = [tokenize(text) for text in x.reshape(-1).tolist()]
    width = max((len(row) for row in rows), default=0)
    if not width:
        return np.empty((*x.shape, 0), dtype=object)
    if op["mark"]:
        rows = [[_START, *row, _END] for row in rows]
        width += 2
    padded = [row + [op["pad_value"]] * (width - len(row)) for row in rows]
    return np.array(padded, dtype=object).reshape(*x.shape, -1)


_MASK = 0xFFFFFFFF


def _rotated(x: int, by: int) -> int:
    return ((x << by) | (x >> (32 - by))) & _MASK


def murmur3(data: bytes, seed: int) -> int:
    """MurmurHash3_x86_32. Appleby, public domain (2011)."""
    h = seed & _MASK
    whole = len(data) - len(data) % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * 0xCC9E2D51 & _MASK
        h ^= _rotated(k, 15) * 0x1B873593 & _MASK
        h = (_rotated(h, 13) * 5 + 0xE6546B64) & _MASK
    tail = int.from_bytes(data[whole:], "little")
    if tail or len(data) % 4:
        h ^= _rotated(tail * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    h ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ (h >> shift)) * factor & _MASK
    return h


@implements("MurmurHash3", domain=DOMAIN, defaults={"positive": 1, "seed": 0})
def murmur_hash_3(op: OpNode, x: Array) -> Array:
    """Hash of each element's bytes, as uint32, or as int32 with ``positive=0``; texts are hashed as UTF-8."""
    elements: Iterator[Any]
    if x.dtype.kind == "O":
        elements = (str(v).encode("utf-8") for v in x.reshape(-1))
    else:
        elements = (v.tobytes() for v in np.ascontiguousarray(x).reshape(-1))
    hashes = np.array([murmur3(e, op["seed"]) for e in elements], dtype=np.uint32).reshape(x.shape)
    return hashes if op["positive"] else hashes.view(np.int32)
