"""Files that are no ONNX models are recognised, and the error says what to do."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import onnx
import pytest
from google.protobuf import json_format, text_format
from model_builders import linear
from onnx import numpy_helper

from accord.errors import ModelFormatError
from accord.model.load import load_model


def zipped(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return stream.getvalue()


def tarred() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        info = tarfile.TarInfo("model.onnx")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"abcd"))
    return stream.getvalue()


def numpy_archive() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, a=np.ones(3))
    return stream.getvalue()


def graph_def() -> bytes:
    node = b"\x0a\x05input\x12\x0bPlaceholder"
    return b"\x0a" + bytes([len(node)]) + node


def saved_model() -> bytes:
    meta = b"\x0a\x07\x22\x05serve" + b"\x12\x04abcd"
    return b"\x08\x01\x12" + bytes([len(meta)]) + meta


HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()

CASES = {
    "gzip": (gzip.compress(b"model"), "gzip archive", "Unpack"),
    "zip": (zipped(model_dot_onnx=b"abc"), "zip archive", "Unpack"),
    "torch": (zipped(archive__data_dot_pkl=b"\x80\x02}q."), "PyTorch file", "torch.onnx.export"),
    "torchscript": (zipped(m__constants_dot_pkl=b"\x80\x02)."), "PyTorch file", "torch.onnx.export"),
    "keras": (zipped(model_dot_weights_dot_h5=b"\x89HDF"), "Keras", "tf2onnx"),
    "npz": (numpy_archive(), "NumPy archive", "numpy.load"),
    "tar": (tarred(), "tar archive", "Unpack"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5", "tf2onnx"),
    "tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(64), "TensorFlow Lite", "--tflite"),
    "saved model": (saved_model(), "SavedModel", "tf2onnx"),
    "frozen graph": (graph_def(), "TensorFlow graph", "tf2onnx"),
    "safetensors": (struct.pack("<Q", len(HEADER)) + HEADER + bytes(4), "safetensors", "weights without a graph"),
    "gguf": (b"GGUF\x03\x00\x00\x00" + bytes(16), "GGUF", "weights without a graph"),
    "pickle": (pickle.dumps({"state": [1, 2]}, protocol=4), "pickle", "runs no pickles"),
    "json": (b'{"format": "graph-model", "generatedBy": "2.0"}', "JSON", "Export"),
    "json error": (b'{"error": "not found"}', "JSON error", "fetch it again"),
    "onnx json": (json_format.MessageToJson(linear()).encode(), "ONNX as JSON", "json_format"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n",
        "Git-LFS pointer",
        "git lfs pull",
    ),
    "html": (b"\n<!DOCTYPE html>\n<html><body>404</body></html>", "web page", "fetch it again"),
    "onnx text": (onnx.printer.to_text(linear()).encode(), "ONNX in text form", "onnx.parser"),
    "protobuf text": (text_format.MessageToString(linear()).encode(), "protobuf text", "text_format"),
    "openvino": (b'<?xml version="1.0"?>\n<net name="m" version="11"><layers/></net>', "OpenVINO", "made from"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML", "fetch it again"),
    "tensorrt": (b"ftrt" + bytes(60), "TensorRT engine", "made from"),
    "ort": (b"\x18\x00\x00\x00ORTM" + bytes(64), ".ort format", "made from"),
    "executorch": (b"\x18\x00\x00\x00ET12" + bytes(64), "ExecuTorch", "made from"),
    "ncnn": (b"7767517\n3 3\nInput data 0 1 data\n", "ncnn", "made from"),
    "numpy": (b"\x93NUMPY\x01\x00v\x00" + bytes(100), "NumPy array file", "numpy.load"),
    "image": (b"\x89PNG\r\n\x1a\n" + bytes(40), "PNG", "not a model"),
    "python": (b"import torch\nmodel = torch.nn.Linear(3, 4)\n", "program", "Export"),
    "text": ("kein Modell, nur Text äöü".encode(), "text that begins with 'kein Modell", "Export"),
    "utf-16": ("no model at all".encode("utf-16"), "text that begins with 'no model", "Export"),
    "zeros": (bytes(1000), "file of zeros", "fetch it again"),
    "tensor": (
        numpy_helper.from_array(np.arange(100, dtype=np.float32), "input").SerializeToString(),
        "ONNX tensor",
        "numpy_helper",
    ),
    "graph": (linear().graph.SerializeToString(), "ONNX graph without its model", "make_model"),
}


@pytest.mark.parametrize("name", CASES)
def test_recognised(name):
    data, kind, remedy = CASES[name]
    with pytest.raises(ModelFormatError) as caught:
        load_model(data)
    text = str(caught.value)
    assert kind in text
    assert remedy in text


def test_empty():
    with pytest.raises(ModelFormatError, match="the file is empty"):
        load_model(b"")


def test_random_bytes():
    data = np.random.default_rng(3).integers(0, 256, 5000, np.uint8).tobytes()
    with pytest.raises(ModelFormatError, match="not an ONNX model"):
        load_model(b"\xff" + data)


def test_external_data_file_names_its_model(tmp_path):
    (tmp_path / "net.onnx").write_bytes(linear().SerializeToString())
    (tmp_path / "other.onnx").write_bytes(b"x")
    data = tmp_path / "net.onnx.data"
    data.write_bytes(np.random.default_rng(1).standard_normal(1000).astype(np.float32).tobytes())
    with pytest.raises(ModelFormatError) as caught:
        load_model(data)
    assert "external data of 'net.onnx'" in str(caught.value)
