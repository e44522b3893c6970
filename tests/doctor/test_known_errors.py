"""The tables of known errors: sound, linked, each example found, and other lines of their kinds; healthy logs never."""

from __future__ import annotations

import copy
import io
import re
import time
import tomllib
from collections import Counter

import pytest
from logs import HEALTHY, VARIANTS, WORDINGS

from accord.doctor import diagnose, read_log
from accord.doctor.entries import entries_of, known_errors
from accord.errors import AccordError

ENTRIES = list(known_errors().values())
EXAMPLES = [(e.id, k, text) for e in ENTRIES for k, text in enumerate(e.examples)]
CLASSIC = [
    "ort-no-kernel", "ort-wrong-rank", "torch-cuda-oom", "cuda-oom", "memory-fragmentation", "fusion-absent",
    "not-contiguous", "driver-too-old", "ort-provider-library", "dtype-unsupported-graph", "graph-cycle",
    "cuda-launch-timeout", "cuda-device-lost",
]  # fmt: skip


def by_id(text):
    return {d.id: d for d in diagnose(text)}


def test_there_are_enough_of_each_runtime_and_from_public_reports():
    counts = Counter(e.runtime for e in ENTRIES)
    assert counts.keys() >= {
        "ONNX Runtime", "PyTorch", "TensorRT", "Triton (compiler)", "Triton Inference Server", "CUDA", "OpenVINO"
    }  # fmt: skip
    assert sum(bool(e.seen) for e in ENTRIES if e.id not in CLASSIC) >= 45
    assert set(CLASSIC) <= known_errors().keys()


@pytest.mark.parametrize(("name", "number", "text"), EXAMPLES, ids=[f"{n}-{k}" for n, k, _ in EXAMPLES])
def test_each_example_is_found_by_its_entry(name, number, text):
    found = diagnose(text)
    ids = [d.id for d in found]
    assert name in ids
    mine = found[ids.index(name)]
    assert ids[0] == name or ids[0] in mine.consequence_of, "what comes before is its cause"
    for words in (mine.title, mine.cause, mine.confirm, mine.remedy):
        assert not re.search(r"\{\w+\|", words)


@pytest.mark.parametrize(("name", "number", "text"), EXAMPLES, ids=[f"{n}-{k}" for n, k, _ in EXAMPLES])
def test_each_example_is_found_in_any_dress(name, number, text):
    prefix = "2026-11-29T10:00:00.123Z triton-1  | (Worker pid=73) ERROR 01-28 17:37:45 [core.py:866] "
    coloured = "\x1b[1m\x1b[31m" + text.replace(" ", " \x1b[0m", 1) + "\x1b[0m"
    dressed = {
        "prefix": prefix + text,
        "colours": coloured,
        "carriage returns": text.replace("\n", "\r\n") + "\r\n",
        "capitals": text.upper(),
        "traceback": f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nError: {text}\n\nmore\n',
    }
    for kind, log in dressed.items():
        assert name in by_id(log), kind
    for encoding in ("utf-16", "utf-16-le", "utf-8-sig"):
        assert name in by_id(text.encode(encoding)), encoding


@pytest.mark.parametrize(("text", "name", "details"), VARIANTS, ids=[f"{k}-{v[1]}" for k, v in enumerate(VARIANTS)])
def test_other_lines_of_the_same_kind(text, name, details):
    found = by_id(text)
    assert name in found
    assert details.items() <= found[name].details.items()


def test_messages_that_a_terminal_wrapped_are_found():
    wrapped = "CUDA error: no kernel image is available\n   for execution on\nthe device"
    assert [d.id for d in diagnose(wrapped)] == ["cuda-arch-missing"]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WORDINGS.items() for text in texts])
def test_other_wordings(name, text):
    assert name in by_id(text)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_gives_nothing(name):
    reading = read_log(io.BytesIO(HEALTHY[name].encode()))
    assert reading.diagnoses == ()
    assert reading.lines == HEALTHY[name].count("\n")


def test_what_the_log_says_is_put_into_the_texts():
    (d,) = diagnose("Could not find an implementation for Trilu(14) node with name '/decoder/Trilu_1'")
    assert d.title == "No kernel for operator Trilu of opset 14, node /decoder/Trilu_1"
    assert "no implementation of Trilu" in d.cause
    (d,) = diagnose("Could not find an implementation for the node Mul(6)")
    assert d.title == "No kernel for operator Mul of opset 6"


def test_no_pattern_is_slow_on_any_text():
    texts = [
        c.encode() * (20_000 // len(c)) for c in ("a", "1", "a1:./_-", " ", "'", "[(", "the cat ", "\n", ": ", "node ")
    ]
    for entry in ENTRIES:
        for pattern in entry.patterns:
            began = time.perf_counter()
            for text in texts:
                list(pattern.regex.finditer(text))
            assert time.perf_counter() - began < 1, (entry.id, pattern.regex.pattern)


# tables that are damaged

GOOD = """
runtime = "X"
[[entry]]
id = "a-b"
title = "t {n|?}"
patterns = ['''failed (?P<n>\\d+) times''']
cause = "c"
confirm = "c"
remedy = "r"
examples = ["failed 3 times"]
"""


def test_a_good_table_is_read():
    (entry,) = entries_of(tomllib.loads(GOOD), "x.toml")
    assert (entry.id, entry.runtime, entry.severity, entry.seen) == ("a-b", "X", "error", ())
    assert entry.patterns[0].literals == (b"failed", b"times")
    assert entry.text("title", {"n": "3"}) == "t 3"
    assert entry.text("title", {}) == "t ?"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"title": None}, "missing title"),
        ({"colour": "red"}, "unknown colour"),
        ({"id": "A b"}, "lower case with hyphens"),
        ({"severity": "bad"}, "severity"),
        ({"patterns": []}, "needs a pattern"),
        ({"examples": []}, "and an example"),
        ({"patterns": ["(open"]}, "pattern '\\(open'"),
        ({"patterns": ["Upper"]}, "must be in lower case"),
        ({"title": "{m|?}"}, "no pattern has a group m"),
        ({"seen": ["somewhere"]}, "owner/repository#number"),
        ({"cause": ""}, "not empty"),
        ({"cause": 3}, "must be strings"),
    ],
)
def test_a_damaged_entry_is_an_error_that_says_where(change, words):
    data = tomllib.loads(GOOD)
    entry = copy.deepcopy(data["entry"][0]) | change
    data["entry"][0] = {k: v for k, v in entry.items() if v is not None}
    with pytest.raises(AccordError, match=words):
        entries_of(data, "x.toml")


def test_a_table_with_something_else_in_it_is_an_error():
    with pytest.raises(AccordError, match=r"x\.toml"):
        entries_of({"entry": []}, "x.toml")


def test_literals_are_in_whatever_matches():
    for entry in ENTRIES:
        for text in entry.examples:
            low = text.encode().lower()
            for pattern in entry.patterns:
                if pattern.regex.search(low):
                    assert all(word in low for word in pattern.literals), (entry.id, pattern.literals)
