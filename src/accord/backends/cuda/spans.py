"""Which arrays lie side by side in the host's memory, so that one copy brings them to a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

__all__ = ["spans_of", "whole"]

#: Bytes to which arrays on a device are aligned, and those between two arrays that are not worth a copy of their own.
_ALIGNMENT: Final = 256
_GAP: Final = 1 << 16


def spans_of(arrays: Sequence[Any]) -> tuple[list[tuple[int, int, Any]], list[int]]:
    """Pieces of the host's memory that hold arrays: start, end and owner; and which of them each array is in."""
    spans: list[tuple[int, int, Any]] = []
    places = [-1] * len(arrays)
    addresses = [a.ctypes.data for a in arrays]
    for k in sorted(range(len(arrays)), key=addresses.__getitem__):
        start, stop = addresses[k], addresses[k] + arrays[k].nbytes
        if start == stop:
            continue
        first, last, owner = spans[-1] if spans else (0, 0, None)
        root = _root(arrays[k])
        # what lies between is read too, so it has to be the same owner's
        if root is owner and start <= last + _GAP and (start - first) % _ALIGNMENT == 0:
            spans[-1] = first, max(last, stop), root
        else:
            spans.append((start, stop, root))
        places[k] = len(spans) - 1
    return spans, places


def _root(array: Any) -> Any:
    """The object whose memory an array shows."""
    while True:
        base = getattr(array, "base", None)
        if base is None:
            return array
        array = base


def whole(nbytes: int) -> int:
    """Bytes rounded up to where the next array may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
