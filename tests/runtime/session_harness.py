"""One model in Accord and in ONNX Runtime, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import parser

import accord

onnxruntime.set_default_logger_severity(4)

#: A required input, one with a default, one with an unnamed size; three outputs of different kinds.
MODEL = """
<ir_version: 8, opset_import: ["":17], producer_name: "maker", producer_version: "1.2", domain: "shop",
 model_version: 7, doc_string: "what it does", metadata_props: ["key": "value"]>
g (float[N,3] x, int64[1] k = {2}, float[?,M] y) => (float[N,3] a, float[?,M] b, int64[1] c)
<float[3] w = {1,2,3}> { a = Add(x, w)  b = Neg(y)  c = Identity(k) }
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.ones((1, 4), np.float32)
FEED = {"x": X, "y": Y}


def model_bytes(text: str = MODEL) -> bytes:
    """The model that ``text`` describes, as a file's content."""
    content: bytes = parser.parse_model(text).SerializeToString()
    return content


def ours(text: str = MODEL, **options: Any) -> accord.InferenceSession:
    """The model in Accord."""
    return accord.InferenceSession(model_bytes(text), **options)


def theirs(text: str = MODEL, **options: Any) -> onnxruntime.InferenceSession:
    """The model in ONNX Runtime."""
    options.setdefault("providers", ["CPUExecutionProvider"])
    return onnxruntime.InferenceSession(model_bytes(text), **options)


def check_same(left: list[Any], right: list[Any]) -> None:
    """Equal outputs: shape, dtype and content."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        if isinstance(b, list):
            assert isinstance(a, list)
            check_same(a, b)
        else:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_array_equal(a, b)


def graph_of(path: Any) -> onnx.GraphProto:
    """The graph in a file that is a valid ONNX model."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return model.graph
