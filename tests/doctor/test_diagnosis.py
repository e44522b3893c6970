"""Logs as they come, and the order in which causes and consequences are told."""

from __future__ import annotations

import io
import random
import tracemalloc

import pytest

from accord.doctor import diagnose, read_log
from accord.doctor.entries import known_errors
from accord.doctor.log import TAIL, blocks_of
from accord.errors import AccordError, InputError

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB "
    "of which 12.73 GiB is free. Of the allocated memory 9.08 GiB is allocated by PyTorch, and 9.35 GiB is reserved by "
    "PyTorch but unallocated."
)
CUBLAS = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
NODE = "Non-zero status code returned while running Gemm node. Name:'fc1' Status Message: x"


def ids(text):
    return [d.id for d in diagnose(text)]


# order


@pytest.mark.parametrize("lines", [(OOM, CUBLAS, NODE), (NODE, CUBLAS, OOM), (CUBLAS, NODE, OOM)])
def test_the_root_cause_comes_first_wherever_it_stands(lines):
    found = diagnose("\n".join(lines))
    order = [d.id for d in found]
    assert order[0] == "torch-cuda-oom"
    assert order.index("cublas-alloc") < order.index("ort-node-failed")
    explained = {d.id: d.consequence_of for d in found}
    assert explained["torch-cuda-oom"] == ()
    assert "torch-cuda-oom" in explained["cublas-alloc"]
    assert {"cublas-alloc", "torch-cuda-oom"} <= set(explained["ort-node-failed"])


def test_a_consequence_without_its_cause_names_what_it_often_follows_from():
    (d,) = diagnose(CUBLAS)
    assert d.consequence_of == ()
    assert "torch-cuda-oom" in d.often_because_of


def test_causes_act_through_others_that_the_log_does_not_show():
    # an engine that was not loaded because of its version; the line that says so about the engine is missing
    found = diagnose("Version tag does not match\nerror: creating server: Internal - failed to load all models\n")
    assert [d.id for d in found] == ["tensorrt-version-tag", "triton-server-load"]
    assert found[1].consequence_of == ("tensorrt-version-tag",)


def test_device_assert_before_all_that_dies_of_it():
    log = """CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(`
../aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: \
block: [1,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
RuntimeError: CUDA error: an illegal memory access was encountered
"""
    assert ids(log) == ["torch-device-assert", "cuda-illegal-access", "cublas-execution"]


def test_errors_come_before_warnings():
    warning = "UserWarning: Specified provider 'CUDAExecutionProvider' is not in available provider names."
    log = f"{warning}\nIllegal instruction\n"
    assert ids(log) == ["illegal-instruction", "ort-provider-unavailable"]


def test_whatever_matches_is_put_in_an_order_without_contradictions():
    rng = random.Random(0)
    examples = [text for e in known_errors().values() for text in e.examples]
    for _ in range(20):
        found = diagnose("\n".join(rng.sample(examples, 12)))
        order = [d.id for d in found]
        for d in found:
            assert all(order.index(c) < order.index(d.id) for c in d.consequence_of)


# what is kept of a match


def test_line_count_and_cases():
    log = "fine\n" + "".join(
        f"Could not find an implementation for Resize(13) node with name 'r{k % 3}'\nfine\n" for k in range(9)
    )
    (d,) = diagnose(log)
    assert (d.line, d.count) == (2, 9)
    assert d.evidence.endswith("name 'r0'")
    assert [d.details["node"], *(m["node"] for m in d.more)] == ["r0", "r1", "r2"]


def test_an_exception_and_its_causes():
    try:
        try:
            raise ValueError("CUDA error: an illegal memory access was encountered")
        except ValueError as error:
            raise RuntimeError("request failed") from error
    except RuntimeError as error:
        assert ids(error) == ["cuda-illegal-access"]
    assert diagnose(KeyError("x")) == []
    assert ids(AccordError("CUDA out of memory.")) == ["torch-cuda-oom"]


def test_something_else_is_an_input_error():
    with pytest.raises(InputError, match="text or an exception"):
        diagnose(3)


# logs


def test_empty():
    assert diagnose("") == []
    reading = read_log(io.BytesIO(b""))
    assert (reading.lines, reading.diagnoses, reading.suspects) == (0, (), ())


def test_bytes_that_are_no_text():
    rng = random.Random(1)
    noise = rng.randbytes(200_000)
    found = diagnose(noise + b"\nCUDA error: out of memory\n" + noise)
    assert [d.id for d in found] == ["cuda-oom"]
    assert diagnose(noise) == []


def test_evidence_is_printable():
    (d,) = diagnose(b"\xff\x00\x07 CUDA error: out of memory \x1b[31m\x1b]0;title\x07 end")
    assert d.evidence.isprintable()
    assert "\x1b" not in d.evidence


@pytest.mark.parametrize("shift", range(0, 64, 7))
def test_a_match_at_the_border_of_two_blocks_is_found_once(shift):
    line = b"x" * 99 + b"\n"
    text = b"Could not find an implementation for Trilu(14) node with name '/a/Trilu_1'\n"
    border = (1 << 20) - TAIL
    before = (line * (border // len(line) + 1))[: border - shift]
    stream = io.BytesIO(before + b"\n" + text + line * 20_000)
    (d,) = read_log(stream).diagnoses
    assert (d.count, d.details["node"]) == (1, "/a/Trilu_1")
    assert d.line == before.count(b"\n") + 2


def test_blocks_cover_the_log_once():
    data = b"".join(b"line %d\r\n" % k for k in range(300_000))
    clean = data.replace(b"\r\n", b"\n")
    covered = [(b.offset, b.data[: b.end]) for b in blocks_of(io.BytesIO(data))]
    assert b"".join(piece for _, piece in covered) == clean
    assert len(covered) > 2
    assert all(clean[at : at + len(piece)] == piece for at, piece in covered)


class Endless(io.RawIOBase):
    """A stream of many megabytes that is nowhere in memory."""

    def __init__(self, megabytes):
        self.left = megabytes
        self.piece = (b"2026-11-29 10:00:00 INFO request served in 12.3 ms, queue 0\n" * 20_000)[: 1 << 20]

    def readable(self):
        return True

    def read(self, size=-1):
        if not self.left:
            return b""
        self.left -= 1
        return self.piece if self.left else self.piece + b"\nCUDA error: out of memory\n"


def test_memory_does_not_grow_with_the_log():
    peaks = []
    for megabytes in (4, 16):
        tracemalloc.start()
        reading = read_log(Endless(megabytes))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert [d.id for d in reading.diagnoses] == ["cuda-oom"]
    assert peaks[1] < 1.5 * peaks[0] < 30e6


def test_one_endless_line():
    assert ids(b"x" * 3_000_000 + b" CUDA error: out of memory " + b"y" * 3_000_000) == ["cuda-oom"]


def test_unknown_errors_are_shown_as_such():
    lines = [f"INFO step {k} of 100, 0 errors" for k in range(100)]
    lines[40] = "ERROR: the frobnicator has fallen over"
    lines[41] = "Traceback (most recent call last):"
    lines[90] = "FrobError: it fell"
    reading = read_log(io.BytesIO("\n".join(lines).encode()))
    assert reading.diagnoses == ()
    assert reading.suspects == ((41, lines[40]), (42, lines[41]), (91, lines[90]))


def test_of_many_suspects_the_first_and_the_last_are_kept():
    text = "".join(f"error number {k}\n" for k in range(2000)) + "fine\n"
    suspects = read_log(io.BytesIO(text.encode())).suspects
    assert [n for n, _ in suspects[:3]] == [1, 2, 3]
    assert len(suspects) <= 10
