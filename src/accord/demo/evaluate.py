"""How well the demo model reads: character and line accuracy over lines with known text.

The model is a function from images to log-probabilities, so the same figures can be taken from any runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accord.demo.reader import ctc_decode, preprocess
from accord.demo.render import Line

__all__ = ["Accuracy", "edit_distance", "load_lines", "measure", "save_lines"]

Logits = Callable[[np.ndarray], np.ndarray]
"""The model: ``image`` float32 [N, 1, 32, W] to logits or log-probabilities, floating point [T, N, 96]."""


@dataclass(frozen=True)
class Accuracy:
    """Result of :func:`measure`.

    Attributes:
        characters: One minus the summed edit distances over the summed text lengths.
        lines: Share of lines read without any error.
        misread: Each wrong line as (truth, reading).
    """

    characters: float
    lines: float
    misread: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"characters {self.characters:.2%}, whole lines {self.lines:.2%}"


def measure(logits: Logits, lines: Sequence[Line]) -> Accuracy:
    """Read ``lines`` one at a time, as a caller of the demo does, and compare with their texts.

    Args:
        logits: The model.
        lines: At least one line.

    Returns:
        The accuracy over all lines.
    """
    readings = [ctc_decode(logits(preprocess(line.image)))[0] for line in lines]
    pairs = [(line.text, reading) for line, reading in zip(lines, readings, strict=True)]
    misread = tuple(pair for pair in pairs if pair[0] != pair[1])
    errors = sum(edit_distance(*pair) for pair in misread)
    return Accuracy(1 - errors / sum(len(line.text) for line in lines), 1 - len(misread) / len(lines), misread)


def edit_distance(one: str, two: str) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions from one to two."""
    row = list(range(len(two) + 1))
    for i, left in enumerate(one, start=1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(two, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def save_lines(path: Path, lines: Sequence[Line]) -> None:
    """Write lines as one compressed ``.npz``: the images side by side, their widths, texts and fonts."""
    np.savez_compressed(
        path,
        pixels=np.concatenate([line.image for line in lines], 1),
        widths=np.array([line.image.shape[1] for line in lines], np.int32),
        texts=np.array([line.text for line in lines]),
        fonts=np.array([line.font for line in lines]),
    )


def load_lines(path: Path) -> list[Line]:
    """Read the lines that :func:`save_lines` wrote."""
    with np.load(path, allow_pickle=False) as data:
        images = np.split(data["pixels"], np.cumsum(data["widths"])[:-1], axis=1)
        parts = zip(data["texts"].tolist(), images, data["fonts"].tolist(), strict=True)
        return [Line(*part) for part in parts]
