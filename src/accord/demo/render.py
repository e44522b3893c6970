"""Random text lines as images: the data that the demo model is trained and measured on.

Everything is a function of a ``numpy.random.Generator``, so a seed names a data set. Texts fall into two
splits by checksum (:func:`split_of`): a text that was trained on can never be in a held-out set, whatever the
seeds. Needs Pillow: ``pip install "accord[demo]"``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from accord.demo.charset import CHARACTERS
from accord.demo.reader import HEIGHT
from accord.demo.words import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from PIL import ImageFont

__all__ = [
    "MAX_LENGTH",
    "MIN_LENGTH",
    "PILLOW_FONT",
    "Line",
    "load_font",
    "random_line",
    "random_text",
    "render",
    "split_of",
]

MIN_LENGTH = 3
MAX_LENGTH = 25
SIZES = (16, 29)
"""Smallest and largest font size drawn, in pixels per em."""

PILLOW_FONT = "Pillow"
"""Name of the font inside Pillow, which has no file."""

Split = Literal["train", "heldout"]

_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"]
_MONTHS += ["November", "December"]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_ONSETS = [*"bcdfghjklmnp", "qu", *"rstvwxyz"]
_ONSETS += [
    "bl",
    "br",
    "ch",
    "cl",
    "cr",
    "dr",
    "fl",
    "fr",
    "gr",
    "pl",
    "pr",
    "sc",
    "sh",
    "sl",
    "sp",
    "st",
    "th",
    "tr",
    "wh",
]
_NUCLEI = [*"aeiou", "ai", "ea", "ee", "ie", "oa", "oo", "ou", "y"]
_CODAS = ["", "", "", "b", "ck", "d", "g", "l", "ll", "m", "n", "ng", "nt", "p", "r", "rd", "s", "ss", "st", "t", "x"]
_ALPHANUMERIC = "".join(filter(str.isalnum, CHARACTERS))


def split_of(text: str) -> Split:
    """Return the split that ``text`` belongs to: one text in sixteen, by CRC-32, is held out."""
    return "heldout" if zlib.crc32(text.encode("ascii")) % 16 == 0 else "train"


# --- text ---------------------------------------------------------------------------------------------------


def _pick(rng: np.random.Generator, items: Sequence[str]) -> str:
    return items[int(rng.integers(len(items)))]


def _digits(rng: np.random.Generator, low: int, high: int) -> str:
    return "".join(str(digit) for digit in rng.integers(0, 10, int(rng.integers(low, high + 1))))


def _word(rng: np.random.Generator) -> str:
    """Return a common word, or an invented one so that the model cannot lean on a vocabulary alone."""
    if rng.random() < 0.6:
        word = _pick(rng, WORDS)
    else:
        syllables = int(rng.integers(1, 4))
        word = "".join(_pick(rng, _ONSETS) + _pick(rng, _NUCLEI) + _pick(rng, _CODAS) for _ in range(syllables))
    case = rng.random()
    if case < 0.5:
        return word
    if case < 0.75:
        return word.capitalize()
    if case < 0.9:
        return word.upper()
    return "".join(
        letter.upper() if up else letter for letter, up in zip(word, rng.random(len(word)) < 0.5, strict=True)
    )


def _words(rng: np.random.Generator) -> str:
    separator = _pick(rng, "         -_./&+")
    text = separator.join(_word(rng) for _ in range(int(rng.integers(1, 5))))
    return text + _pick(rng, ["", "", "", ".", ",", "!", "?", ":", ";", "..."])


def _sentence(rng: np.random.Generator) -> str:
    pair = _pick(rng, ["()", "[]", "{}", "<>", '""', "''", "``", "**", "//", "||"])
    parts = [_word(rng) for _ in range(int(rng.integers(2, 4)))]
    place = int(rng.integers(len(parts)))
    parts[place] = pair[0] + parts[place] + pair[1]
    return _pick(rng, [" ", " ", ", ", ": ", "; ", " - ", " & "]).join(parts)


def _number(rng: np.random.Generator) -> str:
    whole, part = _digits(rng, 1, 6), _digits(rng, 1, 4)
    value = int(rng.integers(0, 10**7))
    return _pick(
        rng,
        [
            whole + part,
            f"{whole}.{part}",
            f"{value:,}",
            f"{_pick(rng, '+-~=<>')}{whole}.{part}",
            f"{whole}%",
            f"{value:#x}",
            f"#{value:06X}",
            f"{whole}.{part}e{_pick(rng, '+-')}{_digits(rng, 1, 2)}",
            f"+{_digits(rng, 1, 2)} ({_digits(rng, 3, 3)}) {_digits(rng, 3, 3)}-{_digits(rng, 4, 4)}",
            f"{whole} {_pick(rng, '*/+-x^=')} {part}",
            f"{_pick(rng, ['No.', 'ID', 'Ref', 'Qty', '#', 'p.', 'v'])} {whole}",
            f"{whole}{_pick(rng, ['kg', 'mm', 'GB', 'ms', ' km', 'W', 'V', ' lb'])}",
        ],
    )


def _date(rng: np.random.Generator) -> str:
    year, month, day = (int(rng.integers(low, high)) for low, high in ((1900, 2100), (1, 13), (1, 29)))
    hour, minute, second = (int(rng.integers(0, high)) for high in (24, 60, 60))
    name = _pick(rng, _MONTHS)
    return _pick(
        rng,
        [
            f"{year}-{month:02}-{day:02}",
            f"{day:02}/{month:02}/{year}",
            f"{day}.{month}.{year % 100:02}",
            f"{day} {name} {year}",
            f"{name[:3]} {day}, {year}",
            f"{_pick(rng, _DAYS)[:3]} {day} {name[:3]}",
            f"{hour:02}:{minute:02}:{second:02}",
            f"{hour % 12 + 1}:{minute:02} {_pick(rng, ['AM', 'PM', 'am', 'pm'])}",
            f"{year}-{month:02}-{day:02} {hour:02}:{minute:02}",
            f"{_pick(rng, _DAYS)}, {hour:02}:{minute:02}",
        ],
    )


def _price(rng: np.random.Generator) -> str:
    amount = f"{int(rng.integers(0, 10 ** int(rng.integers(1, 6)))):,}.{_digits(rng, 2, 2)}"
    return _pick(
        rng,
        [
            f"${amount}",
            f"USD {amount}",
            f"{amount} EUR",
            f"Total: ${amount}",
            f"{_word(rng)} ${amount}",
            f"-{_digits(rng, 1, 2)}% ${amount}",
            f"{_digits(rng, 1, 1)} x ${amount}",
            f"({amount})",
        ],
    )


def _address(rng: np.random.Generator) -> str:
    one, two = _word(rng).lower(), _word(rng).lower()
    ending = _pick(rng, ["com", "org", "net", "io", "de", "co.uk", "txt", "py", "onnx"])
    return _pick(
        rng,
        [
            f"{one}@{two}.{ending}",
            f"www.{one}{two}.{ending}",
            f"https://{one}.{ending}",
            f"/{one}/{two}.{ending}",
            f"~/{one}_{two}",
            f"C:\\{one}\\{two}",
            f"{one}-{_digits(rng, 1, 3)}.{ending}",
            ".".join(_digits(rng, 1, 3) for _ in range(4)),
        ],
    )


def _code(rng: np.random.Generator) -> str:
    one, two = _word(rng), _word(rng)
    number = _digits(rng, 1, 3)
    return _pick(
        rng,
        [
            f"{one}[{number}] = {two};",
            f"if ({one} != {number}) {{",
            f"{one}->{two}()",
            f"{one} += {two} * {number}",
            f"<{one}>{number}</{one}>",
            f"{{'{one}': {number}}}",
            f'"{one}", `{two}`',
            f"{one} | {two} > {number}",
            f"$ {one} --{two}={number}",
            f"@{one}(#{two})",
            f"{one}?.{two} ^ ~{number}",
            f"%{one}% && !{two}",
        ],
    )


def _any(rng: np.random.Generator, alphabet: str) -> str:
    length = int(rng.integers(MIN_LENGTH, 17))
    return "".join(alphabet[index] for index in rng.integers(0, len(alphabet), length))


_KINDS: tuple[tuple[float, Callable[[np.random.Generator], str]], ...] = (
    (0.34, _words),
    (0.10, _sentence),
    (0.10, _number),
    (0.09, _date),
    (0.07, _price),
    (0.06, _address),
    (0.07, _code),
    (0.07, lambda rng: _any(rng, _ALPHANUMERIC)),
    (0.10, lambda rng: _any(rng, CHARACTERS)),
)
_KIND_EDGES = np.cumsum([share for share, _ in _KINDS])


def random_text(rng: np.random.Generator, split: Split) -> str:
    """Draw one text of ``split``: words, numbers, dates, prices, addresses, code and random strings.

    Args:
        rng: Source of all randomness.
        split: The split to which the text shall belong.

    Returns:
        3 to 25 printable ASCII characters; no space at either end and no two in a row, since an image does not
        show them, and at least one letter or digit, which fixes the line's scale.
    """
    while True:
        kind = min(int(np.searchsorted(_KIND_EDGES, rng.random(), side="right")), len(_KINDS) - 1)
        text = " ".join(_KINDS[kind][1](rng).split())
        # A cut keeps the start, which is where the fixed parts are, so half of the cuts keep the end instead.
        text = (text[:MAX_LENGTH] if rng.random() < 0.5 else text[-MAX_LENGTH:]).strip()
        if len(text) >= MIN_LENGTH and any(map(str.isalnum, text)) and split_of(text) == split:
            return text


# --- image --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Line:
    """One rendered line.

    Attributes:
        text: What the line says.
        image: ``uint8`` [32, W]: grey, 0 black.
        font: File name of the font, or :data:`PILLOW_FONT`.
    """

    text: str
    image: np.ndarray
    font: str


@lru_cache(maxsize=4096)
def load_font(path: str | Path | None, size: int) -> ImageFont.FreeTypeFont:
    """Open a TrueType or OpenType font.

    Args:
        path: A font file, or None for the one inside Pillow, which needs nothing installed.
        size: Pixels per em.

    Returns:
        The font with Pillow's basic layout: no ligatures, and the same result in every build of Pillow.
    """
    from PIL import ImageFont

    if path is None:
        font = ImageFont.load_default(size)
        assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
        return font
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def _draw(text: str, font: ImageFont.FreeTypeFont, rng: np.random.Generator) -> np.ndarray:
    """Return the text's coverage, float32 [32, W] in 0..1, bent, blurred and placed at random."""
    from PIL import Image, ImageDraw, ImageFilter

    left, top, right, bottom = font.getbbox(text, anchor="ls")
    border = 12
    width, height = int(right - left) + 2 * border, int(bottom - top) + 2 * border
    canvas = Image.new("L", (width, height), 0)
    ImageDraw.Draw(canvas).text((border - left, border - top), text, fill=255, font=font, anchor="ls")

    stretch = float(rng.uniform(0.88, 1.18))
    # A turned line climbs: the limit keeps the climb near three pixels, or it would leave the 32 rows.
    slope = float(rng.uniform(-1, 1)) * min(0.03, 3.0 / width) if rng.random() < 0.5 else 0.0
    shear = float(rng.uniform(-0.2, 0.2)) if rng.random() < 0.3 else 0.0
    wide, middle_x, middle_y = int(width * stretch), width / 2, height / 2
    # Output pixel (x, y) reads input pixel (a x + b y + c, d x + e y + f).
    a, b, d, e = 1 / stretch, shear, slope / stretch, 1.0
    c, f = middle_x - a * wide / 2 - b * middle_y, middle_y - d * wide / 2 - e * middle_y
    canvas = canvas.transform((wide, height), Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BICUBIC)
    if rng.random() < 0.5:
        canvas = canvas.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.2, 0.9))))
    ink = np.asarray(canvas, np.float32) / 255.0

    rows, columns = np.flatnonzero(ink.max(1) > 0.2), np.flatnonzero(ink.max(0) > 0.2)
    if not rows.size:
        raise ValueError(f"the font drew nothing for {text!r}")
    ink = ink[:, max(columns[0] - 2, 0) : columns[-1] + 3]
    free = HEIGHT - (rows[-1] + 1 - rows[0])
    shift = int(np.clip(round(free / 2 + rng.normal(0, 2.0)), min(free, 0), max(free, 0)))
    before, after = (int(margin) for margin in rng.integers(1, 13, 2))
    line = np.zeros((HEIGHT, before + ink.shape[1] + after), np.float32)
    first = max(rows[0] - shift, 0)
    target = max(shift - rows[0], 0)
    count = min(HEIGHT - target, ink.shape[0] - first)
    line[target : target + count, before : before + ink.shape[1]] = ink[first : first + count]
    return line


def render(text: str, font: str | Path | None, rng: np.random.Generator) -> np.ndarray:
    """Draw ``text`` as one line with random size, place, turn, shear, blur, contrast, shade and noise.

    Args:
        text: Printable ASCII.
        font: A font file, or None for Pillow's own font.
        rng: Source of all randomness.

    Returns:
        ``uint8`` [32, W]: dark on light in seven cases of ten, else light on dark.

    Raises:
        ValueError: The font has no visible glyph for the text.
    """
    ink = _draw(text, load_font(font, int(rng.integers(SIZES[0], SIZES[1] + 1))), rng)
    height, width = ink.shape
    paper = float(rng.uniform(0.6, 1.0))
    pen = float(rng.uniform(0.0, paper - 0.35))
    shade = np.float32(paper) * np.ones((height, width), np.float32)
    if rng.random() < 0.3:
        tilt_x, tilt_y = (float(tilt) for tilt in rng.uniform(-0.12, 0.12, 2))
        shade += tilt_x * np.linspace(-0.5, 0.5, width, dtype=np.float32)
        shade += tilt_y * np.linspace(-0.5, 0.5, height, dtype=np.float32)[:, None]
    image = shade + ink * (pen - shade)
    if rng.random() < 0.5:
        image += np.float32(rng.uniform(0.0, 0.05)) * rng.standard_normal((height, width), np.float32)
    if rng.random() < 0.3:
        image = 1.0 - image
    return np.asarray(np.clip(image * 255.0 + 0.5, 0, 255), np.uint8)


def random_line(rng: np.random.Generator, fonts: list[str | None], split: Split) -> Line:
    """Draw a random text of ``split`` in a random font of ``fonts``."""
    text = random_text(rng, split)
    font = fonts[int(rng.integers(len(fonts)))]
    return Line(text, render(text, font, rng), PILLOW_FONT if font is None else Path(font).name)
