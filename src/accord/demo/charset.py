"""The characters that the demo model can read, and their class indices.

Class 0 is the CTC blank; class ``i`` is ``CHARACTERS[i - 1]``.
"""

from __future__ import annotations

from collections.abc import Iterable

from accord.errors import InputError

__all__ = ["BLANK", "CHARACTERS", "CLASSES", "decode", "encode"]

CHARACTERS = "".join(map(chr, range(0x20, 0x7F)))
"""The 95 printable ASCII characters, in code order."""

BLANK = 0
"""Class of the CTC blank (Graves et al. 2006, section 3)."""

CLASSES = len(CHARACTERS) + 1
"""Number of classes: the characters and the blank."""

_CLASS_OF = {character: index for index, character in enumerate(CHARACTERS, start=1)}


def encode(text: str) -> list[int]:
    """Return the class of each character of ``text``.

    Args:
        text: Any string over :data:`CHARACTERS`.

    Returns:
        One class in ``1..95`` for each character.

    Raises:
        InputError: A character is not in the charset.
    """
    strangers = sorted(set(text) - _CLASS_OF.keys())
    if strangers:
        raise InputError(
            "the text has characters that the demo model does not know.",
            expected="printable ASCII",
            found=" ".join(map(repr, strangers)),
        )
    return [_CLASS_OF[character] for character in text]


def decode(classes: Iterable[int]) -> str:
    """Return the text of a sequence of classes in ``1..95``; the blank is not among them."""
    return "".join(CHARACTERS[index - 1] for index in classes)
