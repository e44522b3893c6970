"""ImageDecoder: files in memory to arrays of pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from accord.backends.reference.registry import Array, OpNode, implements
from accord.backends.reference.tensors import require
from accord.errors import ExecutionError


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ExecutionError(
            "Decoding images needs Pillow, which is not installed.", remedy="Install accord[demo]."
        ) from None
    return Image


@implements("ImageDecoder")
def image_decoder(op: OpNode, stream: Array) -> Array:
    """Decode an image to (height, width, channels); a stream that cannot be decoded gives an empty tensor."""
    modes = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
    layout = op["pixel_format"]
    require(layout in modes, f"pixel_format '{layout}' is unknown")
    image_module = _pillow()
    try:
        with image_module.open(io.BytesIO(stream.tobytes())) as image:
            pixels = np.asarray(image.convert(modes[layout]), dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError):
        return np.zeros((0, 0, 1 if layout == "Grayscale" else 3), dtype=np.uint8)
    if layout == "Grayscale":
        return pixels[..., np.newaxis]
    return pixels[..., ::-1] if layout == "BGR" else pixels
