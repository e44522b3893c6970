"""RapidOCR, an application written for ONNX Runtime, reads a page with Accord's session as it does with its own.

Needs what RapidOCR imports: ``pip install "accord[test-models]"``.
"""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest

import accord

#: Only code with this content is run.
PINNED = "rapidocr-onnxruntime==1.4.4 --hash=sha256:971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf\n"
LINES = (
    "The contract of an operator",
    "Batch 32, sequence 128",
    "PLAN - PLACE - RUN",
    "0123456789",
    "one arena, no copies",
    "Upside down",
)
UPSIDE_DOWN = 5

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture(scope="module")
def rapidocr(tmp_path_factory):
    """The package, without its dependencies: it would bring an OpenCV that needs a display."""
    folder = tmp_path_factory.mktemp("rapidocr")
    (folder / "requirements.txt").write_text(PINNED)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--ignore-requires-python", "--require-hashes", "--target", folder, "-r", folder / "requirements.txt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("rapidocr_onnxruntime")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def page():
    """A page with lines of text of several sizes, the last one upside down; uint8 [H, W, 3]."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (900, 640), (248, 246, 240))
    for i, text in enumerate(LINES):
        font = ImageFont.load_default(size=28 + 6 * (i % 3))
        strip = Image.new("RGB", (800, 64), (248, 246, 240))
        ImageDraw.Draw(strip).text((10, 8), text, font=font, fill=(20, 30, 60))
        image.paste(strip.rotate(180) if i == UPSIDE_DOWN else strip, (50, 30 + 100 * i))
    return np.asarray(image)


def read(rapidocr, page):
    result, _ = rapidocr.RapidOCR()(page)
    boxes, texts, scores = zip(*result, strict=True)
    return np.array(boxes), list(texts), np.array(scores, float)


# rapidocr passes options of ONNX Runtime's memory arena, which Accord says that it does not use
@pytest.mark.filterwarnings("ignore:Options of provider 'CPUExecutionProvider' have no effect")
def test_a_page_reads_the_same(rapidocr, page, monkeypatch):
    boxes, texts, scores = read(rapidocr, page)
    assert [t.replace(" ", "") for t in texts] == [t.replace(" ", "") for t in LINES]
    # what "import accord as onnxruntime" would do
    engine = importlib.import_module("rapidocr_onnxruntime.utils.infer_engine")
    names = ("GraphOptimizationLevel", "InferenceSession", "SessionOptions", "get_available_providers", "get_device")
    for name in names:
        monkeypatch.setattr(engine, name, getattr(accord, name))
    our_boxes, our_texts, our_scores = read(rapidocr, page)
    assert our_texts == texts
    np.testing.assert_array_equal(our_boxes, boxes)
    np.testing.assert_allclose(our_scores, scores, rtol=0, atol=1e-3)
