"""String operators and the n-gram vectoriser."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require, require_room, strings


@implements("StringConcat")
def string_concat(_op: OpNode, a: Array, b: Array) -> Array:
    """Join strings element by element, with broadcasting."""
    left, right = np.broadcast_arrays(a, b)
    return strings([x + y for x, y in zip(left.reshape(-1), right.reshape(-1), strict=True)], left.shape)


@implements("StringSplit")
def string_split(op: OpNode, x: Array) -> tuple[Array, Array]:
    """Split strings at a delimiter or at white space; short rows are filled with empty strings."""
    limit = -1 if op["maxsplit"] is None else op["maxsplit"]
    parts = [str(text).split(op["delimiter"] or None, limit) for text in x.reshape(-1)]
    if op["delimiter"]:
        parts = [[] if not text else row for text, row in zip(x.reshape(-1), parts, strict=True)]
    counts = np.array([len(row) for row in parts], dtype=np.int64).reshape(x.shape)
    width = max((len(row) for row in parts), default=0)
    cells = [cell for row in parts for cell in [*row, *[""] * (width - len(row))]]
    return strings(cells, (*x.shape, width)), counts


@implements("StringNormalizer")
def string_normalizer(op: OpNode, x: Array) -> Array:
    """Remove stop words from a row of strings, then change their case."""
    require(x.ndim == 1 or (x.ndim == 2 and x.shape[0] == 1), f"shape {x.shape} is neither [C] nor [1, C]")
    action = op["case_change_action"]
    change: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    require(action in change, f"case_change_action '{action}' is unknown")
    fold: Callable[[str], str] = str if op["is_case_sensitive"] else str.lower
    stops = {fold(word) for word in op["stopwords"] or []}
    words = [change[action](word) for word in x.reshape(-1) if fold(word) not in stops]
    return strings(words or [""], (1, -1) if x.ndim == 2 else (-1,))


_POSIX_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7F",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1F\\x7F",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\n\\v\\f\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}


def _python_pattern(pattern: str) -> str:
    """Rewrite what RE2 spells differently from Python: literal runs, the end anchor and POSIX classes."""
    literal = re.sub(r"\\Q(.*?)(?:\\E|$)", lambda m: re.escape(m.group(1)), pattern, flags=re.DOTALL)
    ends = re.sub(r"(?<!\\)((?:\\\\)*)\\z", r"\1\\Z", literal)
    return re.sub(r"\[:(\w+):\]", lambda m: _POSIX_CLASSES.get(m.group(1), m.group(0)), ends)


@implements("RegexFullMatch")
def regex_full_match(op: OpNode, x: Array) -> Array:
    """Tell which strings match a pattern as a whole; classes of characters are ASCII, as in RE2."""
    try:
        pattern = re.compile(_python_pattern(op["pattern"] or ""), re.ASCII)
    except re.error as error:
        raise ValueError(f"pattern '{op['pattern']}' is malformed: {error}") from error
    matches = [pattern.fullmatch(text) is not None for text in x.reshape(-1)]
    return np.array(matches, dtype=bool).reshape(x.shape)


def _ngrams(op: OpNode, pool: list[Any]) -> dict[tuple[Any, ...], int]:
    """Each n-gram of an admitted length, and its number in the pool."""
    grams: dict[tuple[Any, ...], int] = {}
    number = 0
    bounds = [*op["ngram_counts"], len(pool)]
    for index, (start, end) in enumerate(pairwise(bounds)):
        size = index + 1
        require(start <= end <= len(pool) and (end - start) % size == 0, "ngram_counts do not fit the pool")
        for at in range(start, end, size):
            if op["min_gram_length"] <= size <= op["max_gram_length"]:
                grams[tuple(pool[at : at + size])] = number
            number += 1
    return grams


@implements("TfIdfVectorizer")
def tfidf_vectorizer(op: OpNode, x: Array) -> Array:
    """Count n-grams, with up to ``max_skip_count`` elements left out between neighbours."""
    require(x.ndim in (1, 2), f"a tensor of rank {x.ndim} is neither a sequence nor a batch of them")
    pool = op["pool_strings"] or op["pool_int64s"] or []
    grams = _ngrams(op, list(pool))
    indexes = op["ngram_indexes"]
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    require(min(indexes) >= 0, "an n-gram index is negative")
    require_room((len(rows), max(indexes) + 1))
    counts = np.zeros((len(rows), max(indexes) + 1), dtype=np.float64)
    for row, tokens in enumerate(rows.tolist()):
        # No gram is longer than its row, and none skips more than the row holds.
        for size in range(op["min_gram_length"], min(op["max_gram_length"], len(tokens)) + 1):
            # Skipping makes no difference to single tokens, so they count once.
            distances = range(1, (min(op["max_skip_count"], len(tokens)) if size > 1 else 0) + 2)
            for distance in distances:
                for start in range(len(tokens) - distance * (size - 1)):
                    gram = tuple(tokens[start : start + distance * (size - 1) + 1 : distance])
                    if gram in grams:
                        counts[row, indexes[grams[gram]]] += 1
    require(op["mode"] in ("TF", "IDF", "TFIDF"), f"mode '{op['mode']}' is unknown")
    if op["mode"] == "IDF":
        counts = np.minimum(counts, 1)
    if op["mode"] != "TF" and op["weights"]:
        factors = np.ones(counts.shape[1])
        factors[indexes] = op["weights"]
        counts = counts * factors
    result = counts.astype(np.float32)
    return result[0] if x.ndim == 1 else result
