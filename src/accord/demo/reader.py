"""Before and after the demo model: images to its input, its output to text.

The model takes ``image``, float32 [N, 1, 32, W] with values in 0..1, and returns ``log_probs``, float32
[T, N, 96], for :func:`ctc_decode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError

import numpy as np

from accord.demo.charset import BLANK, CLASSES, decode
from accord.errors import InputError

__all__ = ["HEIGHT", "MIN_WIDTH", "MODEL", "SAMPLE", "ctc_decode", "load_image", "pad_batch", "preprocess"]

HEIGHT = 32
"""Rows of the model's input."""

MIN_WIDTH = 16
"""Fewest columns of the model's input."""

MAX_WIDTH = 8192
"""Most columns that :func:`preprocess` makes; a longer image is not one line of text."""

MAX_PIXELS = 1 << 26
"""Most pixels that :func:`load_image` decodes."""

MODEL = Path(__file__).with_name("reader.onnx")
"""The packaged model file."""

SAMPLE = Path(__file__).with_name("sample.png")
"""A packaged image of one line."""

FORMATS = ("PNG", "JPEG")
"""Image formats that :func:`load_image` decodes."""

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def load_image(path: str | Path) -> np.ndarray:
    """Read an image file.

    Args:
        path: A ``.npy`` array of ``uint8`` [H, W] or [H, W, 3], or a PNG or JPEG file, for which Pillow is needed.

    Returns:
        ``uint8`` [H, W] for a grey image, else [H, W, 3]. What is transparent becomes white.

    Raises:
        InputError: The file is missing, is no image, or is too large; or it needs Pillow, which is not installed.
    """
    path = Path(path)
    try:
        if path.suffix.lower() == ".npy":
            # A memory map checks the size that the header claims against the file before memory is taken.
            return np.array(_checked(np.lib.format.open_memmap(path, mode="r")))
        return _decode_file(path)
    except (OSError, ValueError, SyntaxError, EOFError, TokenError) as error:
        raise InputError(
            f"cannot read the image '{path}': {error}.", remedy="Give a PNG, JPEG or .npy file."
        ) from error


def _decode_file(path: Path) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(
            f"Pillow is needed to read '{path.name}'.",
            remedy='Install it with: pip install "accord[demo]" (or give a .npy file).',
        ) from error
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise InputError(
                    f"the image '{path}' is too large.",
                    expected=f"at most {MAX_PIXELS} pixels",
                    found=f"{image.width} x {image.height}",
                )
            if image.mode in {"1", "L"}:
                return np.asarray(image.convert("L"))
            if not image.has_transparency_data:
                return np.asarray(image.convert("RGB"))
            layer = image.convert("RGBA")
            paper = Image.new("RGBA", layer.size, "white")
            return np.asarray(Image.alpha_composite(paper, layer).convert("RGB"))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"the image '{path}' is too large: {error}.") from error


def _checked(image: np.ndarray) -> np.ndarray:
    right_shape = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not right_shape or 0 in image.shape:
        raise InputError(
            "this is not an image.", expected="uint8 [H, W] or [H, W, 3]", found=f"{image.dtype} {list(image.shape)}"
        )
    return image


def preprocess(image: np.ndarray) -> np.ndarray:
    """Turn an image of one text line into the model's input.

    The image becomes grey, loses wide margins, and is resized to 32 rows with its aspect kept. Light text on
    a dark ground stays as it is: the model reads both.

    Args:
        image: ``uint8`` [H, W] or [H, W, 3].

    Returns:
        ``float32`` [1, 1, 32, W'] in 0..1 with W' >= 16.

    Raises:
        InputError: Wrong dtype or shape, an empty image, or one far too long for a line.
    """
    image = _checked(image)
    grey = image.astype(np.float32) if image.ndim == 2 else image.astype(np.float32) @ _LUMA
    line = _trim(grey / np.float32(255.0))
    width = max(1, round(line.shape[1] * HEIGHT / line.shape[0]))
    if width > MAX_WIDTH:
        raise InputError(
            "the image is too long for one line of text.",
            expected=f"at most {MAX_WIDTH // HEIGHT} times as wide as high",
            found=f"{line.shape[1]} x {line.shape[0]} without margins",
        )
    line = _resample(_resample(line, HEIGHT).T, width).T
    return pad_batch([line])


def pad_batch(lines: Sequence[np.ndarray]) -> np.ndarray:
    """Put lines of several widths into one model input, each continued to the right by its own background.

    Put lines of similar width together: the model was trained on little padding, and a line that is continued
    to many times its width is read a little less well.

    Args:
        lines: Arrays [32, W], ``uint8`` in 0..255 or floating point in 0..1; at least one.

    Returns:
        ``float32`` [N, 1, 32, max(W, 16)] in 0..1.

    Raises:
        InputError: No line, or one that does not have 32 rows and at least one column.
    """
    if not lines or any(line.ndim != 2 or line.shape[0] != HEIGHT or not line.shape[1] for line in lines):
        raise InputError(
            "the batch cannot be made.",
            expected=f"one or more arrays [{HEIGHT}, W]",
            found=[list(line.shape) for line in lines],
        )
    batch = np.empty((len(lines), 1, HEIGHT, max(MIN_WIDTH, *(line.shape[1] for line in lines))), np.float32)
    for index, line in enumerate(lines):
        scale = np.float32(255.0 if line.dtype == np.uint8 else 1.0)
        batch[index, 0, :, : line.shape[1]] = line / scale
        batch[index, 0, :, line.shape[1] :] = np.float32(_background(line)) / scale
    return batch


def _background(line: np.ndarray) -> float:
    """Return the median of the outermost pixels: margins are background in every image of a line."""
    return float(np.median(np.concatenate([line[0], line[-1], line[:, 0], line[:, -1]])))


def _trim(grey: np.ndarray) -> np.ndarray:
    """Cut margins so that the ink fills at least half of the rows, the share that the model is trained on."""
    contrast = np.abs(grey - _background(grey))
    limit = 0.4 * float(contrast.max())
    if limit < 0.02:
        return grey
    ink = contrast > limit
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    # Fewer than 16 rows would blow a line of dots or dashes up to the size of letters.
    height = max(2 * int(rows[-1] + 1 - rows[0]), 16)
    spare = (height - int(rows[-1] + 1 - rows[0])) // 2
    top, bottom = max(0, int(rows[0]) - spare), int(rows[-1]) + 1 + spare
    left, right = max(0, int(columns[0]) - height // 2), int(columns[-1]) + 1 + height // 2
    return grey[top:bottom, left:right]


def _resample(image: np.ndarray, size: int) -> np.ndarray:
    """Resize the first axis to ``size`` with a triangle filter, widened when shrinking so that nothing is skipped.

    Args:
        image: ``float32`` [L, M].
        size: The new length of the first axis.

    Returns:
        ``float32`` [size, M]; ``image`` itself when the length stays.
    """
    length = image.shape[0]
    if size == length:
        return image
    scale = length / size
    support = max(scale, 1.0)
    centers = (np.arange(size) + 0.5) * scale - 0.5
    taps = np.floor(centers - support).astype(np.int64)[:, None] + np.arange(int(np.ceil(2 * support)) + 2)
    weights = np.clip(1.0 - np.abs(taps - centers[:, None]) / support, 0.0, None).astype(np.float32)
    weights[(taps < 0) | (taps >= length)] = 0.0
    weights /= weights.sum(1, keepdims=True)
    result = np.zeros((size, image.shape[1]), np.float32)
    for tap, weight in zip(np.clip(taps, 0, length - 1).T, weights.T, strict=True):
        result += weight[:, None] * image[tap]
    return result


def ctc_decode(logits: np.ndarray) -> list[str]:
    """Read the most probable path: best class of each step, repeats merged, blanks dropped.

    Method: best path decoding, Graves et al., "Connectionist Temporal Classification" (ICML 2006), section 3.2.

    Args:
        logits: Floating point [T, N, 96]: logits or log-probabilities; class 0 is the blank.

    Returns:
        N texts.

    Raises:
        InputError: Another shape, or an integer dtype.
    """
    if logits.ndim != 3 or logits.shape[2] != CLASSES or not np.issubdtype(logits.dtype, np.floating):
        raise InputError(
            "these are not the demo model's logits.",
            expected=f"floating point [T, N, {CLASSES}]",
            found=f"{logits.dtype} {list(logits.shape)}",
        )
    best = logits.argmax(2)
    fresh = np.ones(best.shape, bool)
    fresh[1:] = best[1:] != best[:-1]
    return [decode(path[keep].tolist()) for path, keep in zip(best.T, (fresh & (best != BLANK)).T, strict=True)]
