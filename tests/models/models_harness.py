"""The table's models in ONNX Runtime and in Accord, and how their outputs are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from benchmarks.models import ALL, Entry, make_feed, source

onnxruntime.set_default_logger_severity(4)

RTOL, ATOL = 1e-3, 1e-4
#: Of a quantised network: root of the mean square of the differences, against that of the outputs.
QUANTISED_RMS = 0.05
#: Loads, and runs at all shapes, in well under a second: tested in every way by default.
QUICK = (
    "pp-ocr-cls",
    "magika",
    "silero-vad",
    "squeezenet",
    "shufflenet",
    "silero-vad-op15",
    "silero-vad-sequence",
    "silero-vad-half",
    "silero-vad-op18",
    "silero-vad-openvino",
)
#: Hundreds of megabytes of weights, or a second and more for a run: only in the slow tier.
HUGE = ("vgg19", "bvlc_alexnet", "zfnet512", "ddddocr-old")

Run = Callable[[Mapping[str, Any]], Sequence[Any]]


def marked(name: str, *values: Any, quick: bool) -> Any:
    """Parameters of a test of model ``name``; it is in the slow tier unless ``quick``."""
    marks = [] if ALL[name].light else [pytest.mark.network]
    return pytest.param(name, *values, marks=[*marks, *([] if quick else [pytest.mark.slow])])


@functools.lru_cache(maxsize=1)
def content(name: str) -> Path | bytes:
    """What a runtime loads; the last one is kept, since tests of one model follow each other."""
    return source(ALL[name])


def peer(model: Path | bytes) -> Run:
    """ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )
    return lambda feed: session.run(None, dict(feed))


@functools.cache
def feeds(name: str) -> list[dict[str, Any]]:
    """The inputs of every case."""
    return [make_feed(ALL[name], case) for case in range(len(ALL[name].shapes))]


@functools.cache
def expected(name: str) -> list[Sequence[Any]]:
    """ONNX Runtime's outputs in every case."""
    run = peer(content(name))
    return [run(feed) for feed in feeds(name)]


def check(name: str, run: Run) -> None:
    """``run`` gives ONNX Runtime's outputs in every case."""
    for shapes, feed, want in zip(ALL[name].shapes, feeds(name), expected(name), strict=True):
        got = run(feed)
        assert len(got) == len(want)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            compare(a, b, ALL[name], f"{name} {dict(shapes)}, output {i}")


def compare(got: Any, want: Any, entry: Entry, where: str) -> None:
    """The arrays are of one dtype and shape, and equal but for rounding; integers are equal."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), where
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    if entry.quantised:
        assert np.linalg.norm(got - want) <= QUANTISED_RMS * np.linalg.norm(want), where
        np.testing.assert_array_equal(got.argmax(-1), want.argmax(-1), err_msg=where)
        return
    # probabilities of a thousand classes are small: against those the usual tolerance would prove little
    atol = ATOL * min(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(got, want, rtol=RTOL, atol=atol, err_msg=where)
