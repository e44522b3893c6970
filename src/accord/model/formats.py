"""What a file is that is no ONNX model, and what its owner can do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Format", "recognise", "recognise_folder", "recognise_message"]


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    Attributes:
        name: What people call it, with an article.
        remedy: What to do.
    """

    name: str
    remedy: str


_UNPACK = "Unpack it and load the .onnx file inside."
_EXPORT = "Export the model to ONNX first."
_TORCH = "Load it with PyTorch and export it: torch.onnx.export(module, example_inputs, 'model.onnx')."
_TF = "Convert it: python -m tf2onnx.convert --help."
_WEIGHTS = "It holds weights without a graph: load them into the model's code, and export that to ONNX."
_COMPILED = "It is compiled for another runtime and cannot be converted back: load the ONNX file that it was made from."
_DOWNLOAD = "The download did not deliver the model; fetch it again and compare its size with the source's."

#: (offset, first bytes, format). The most specific come first.
_MAGIC: tuple[tuple[int, bytes, Format], ...] = (
    (0, b"\x1f\x8b", Format("a gzip archive", _UNPACK)),
    (0, b"BZh", Format("a bzip2 archive", _UNPACK)),
    (0, b"\xfd7zXZ\x00", Format("an xz archive", _UNPACK)),
    (0, b"\x28\xb5\x2f\xfd", Format("a zstd archive", _UNPACK)),
    (0, b"7z\xbc\xaf\x27\x1c", Format("a 7z archive", _UNPACK)),
    (0, b"Rar!", Format("a rar archive", _UNPACK)),
    (257, b"ustar", Format("a tar archive", _UNPACK)),
    (0, b"\x89HDF\r\n\x1a\n", Format("an HDF5 file (Keras or MATLAB)", _TF)),
    (4, b"TFL3", Format("a TensorFlow Lite model", "Convert it: python -m tf2onnx.convert --tflite model.tflite.")),
    (4, b"ORTM", Format("a model in ONNX Runtime's .ort format", _COMPILED)),
    (4, b"ET1", Format("an ExecuTorch program", _COMPILED)),
    (0, b"GGUF", Format("a GGUF file", _WEIGHTS)),
    (0, b"ptrt", Format("a TensorRT engine", _COMPILED)),
    (0, b"ftrt", Format("a TensorRT engine", _COMPILED)),
    (0, b"RKNN", Format("an RKNN model", _COMPILED)),
    (0, b"7767517", Format("an ncnn .param file", _COMPILED)),
    (0, b"\x93NUMPY", Format("a NumPy array file", "It is data, not a model: read it with numpy.load.")),
    (0, b"\x89PNG", Format("a PNG image", "It is data, not a model.")),
    (0, b"\xff\xd8\xff", Format("a JPEG image", "It is data, not a model.")),
    (0, b"\x7fELF", Format("a compiled library or program", _EXPORT)),
    (0, b"PAR1", Format("a Parquet file", "It is data, not a model.")),
    (0, b"%PDF", Format("a PDF document", "It is no model.")),
    (0, b"SQLite format 3", Format("an SQLite database", "It is no model.")),
)

_LFS = Format(
    "a Git-LFS pointer, not the file that it stands for", "Fetch the file itself: run `git lfs pull` in its checkout."
)
_TEXT_FORMATS: tuple[tuple[re.Pattern[str], Format], ...] = (
    (re.compile(r"version https://git-lfs"), _LFS),
    (re.compile(r"<\s*ir_version\s*:"), Format("ONNX in text form", "Parse it: onnx.parser.parse_model(text).")),
    (
        re.compile(r"(ir_version|producer_name|graph|opset_import)\s*[:{]"),
        Format("ONNX as protobuf text", "Parse it: google.protobuf.text_format.Parse(text, onnx.ModelProto())."),
    ),
    (
        re.compile(r"(<\?xml[^>]*>\s*)?<net\s", re.IGNORECASE),
        Format("an OpenVINO model", "Load the ONNX file that it was made from."),
    ),
    (
        re.compile(r"(<!--.*?-->\s*)?<(!doctype|html|head|body)", re.IGNORECASE | re.DOTALL),
        Format("a web page", _DOWNLOAD),
    ),
    (re.compile(r"<\?xml|<Error>", re.IGNORECASE), Format("an XML document", _DOWNLOAD)),
    (re.compile(r'\{\s*"(error|message|detail)'), Format("a JSON error message", _DOWNLOAD)),
    (
        re.compile(r'\{[^{]*"(irVersion|opsetImport|producerName)'),
        Format("ONNX as JSON", "Parse it: google.protobuf.json_format.Parse(text, onnx.ModelProto())."),
    ),
    (re.compile(r"[\[{]"), Format("a JSON document (a configuration or TensorFlow.js)", _EXPORT)),
    (re.compile(r"(node|layer|name|input)\s*[:{]"), Format("a protobuf text file (Caffe or TensorFlow)", _EXPORT)),
    (re.compile(r"(import|from|def|class|#!|\"\"\")\s*"), Format("a program", _EXPORT)),
)


def recognise(data: bytes | memoryview) -> Format | None:
    """The format of ``data`` where it cannot be an ONNX model, else None."""
    head = bytes(data[:4096])
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip(bytes(data[:1024]), bytes(data[-4096:]))
    for offset, magic, found in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return found
    if len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return Format(
            "a Python pickle (a PyTorch checkpoint or scikit-learn model)", f"{_TORCH} Accord runs no pickles."
        )
    if len(head) >= 10 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 27:
        return Format("a safetensors file", _WEIGHTS)
    if not head.strip(b"\0"):
        return Format("a file of zeros", _DOWNLOAD)
    return _text(head)


def _zip(head: bytes, tail: bytes) -> Format:
    names = head + tail
    if b"data.pkl" in names or b"archive_format" in names or b"constants.pkl" in names:
        return Format("a PyTorch file (.pt or .pth)", _TORCH)
    if b"model.weights.h5" in names or b"keras" in names:
        return Format("a Keras model", _TF)
    if b".npy" in names:
        return Format("a NumPy archive", "It is data, not a model: read it with numpy.load.")
    return Format("a zip archive", _UNPACK)


def _text(head: bytes) -> Format | None:
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    try:
        text = head.decode(encoding)
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None
        text = head[: error.start].decode(encoding)
    # A model's first byte is a protobuf key below 0x20, which text begins with only where it is white space.
    if any(ord(c) < 32 and c not in "\t\n\r\f" for c in text):
        return None
    text = text.lstrip("\ufeff \t\r\n\f")
    for pattern, found in _TEXT_FORMATS:
        if pattern.match(text):
            return found
    first = text.split("\n", 1)[0][:60]
    return Format(f"text that begins with {first!r}", _EXPORT) if len(text) > 3 else None


def recognise_message(data: bytes | memoryview) -> Format | None:
    """What a protobuf message is that parses as an ONNX model without a graph."""
    import onnx
    from google.protobuf.message import DecodeError

    head = bytes(data[:256])
    if re.match(rb"\x08\x01\x12.{1,5}\x0a", head, re.DOTALL) and b"serve" in bytes(data[:65536]):
        return Format("a TensorFlow SavedModel", _TF)
    if re.match(rb"\x0a.{1,3}\x0a.{1,64}?\x12.(Placeholder|Const|[A-Z]\w+)", head, re.DOTALL):
        return Format("a TensorFlow graph", _TF)
    for kind, needed, found in (
        (
            onnx.TensorProto,
            "data_type",
            Format("an ONNX tensor, not a model", "Read it: onnx.numpy_helper.to_array(onnx.load_tensor(path))."),
        ),
        (
            onnx.GraphProto,
            "node",
            Format("an ONNX graph without its model", "Wrap it: onnx.helper.make_model(graph, opset_imports=...)."),
        ),
    ):
        probe = kind()
        try:
            probe.ParseFromString(data)
        except DecodeError:
            continue
        value = getattr(probe, needed)
        if (
            value in _TENSOR_TYPES if needed == "data_type" else any(n.op_type for n in value)
        ) and probe.name.__class__ is str:
            return found
    return None


_TENSOR_TYPES = range(1, 32)


def recognise_folder(path: Path) -> Format:
    """What the folder ``path`` is, and which of its files to load."""
    if (path / "saved_model.pb").is_file():
        return Format("the folder of a TensorFlow SavedModel", _TF)
    inside = sorted(path.glob("*.onnx")) or sorted(path.glob("*/*.onnx"))
    if inside:
        names = ", ".join(str(p.relative_to(path)) for p in inside[:5])
        return Format("a folder", f"Load a file in it: {names}.")
    return Format("a folder", "Give the path of an .onnx file; there is none in it.")
