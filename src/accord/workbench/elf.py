"""Which libraries and functions a shared library needs: read from its file, nothing of it runs."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from accord.errors import ContractError

__all__ = ["Needs", "needs_of"]

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB = 1, 5


@dataclass(frozen=True, slots=True)
class Needs:
    """What a library takes from others.

    Attributes:
        libraries: Names of files.
        functions: Names that it does not define.
    """

    libraries: tuple[str, ...]
    functions: tuple[str, ...]


def needs_of(path: str | Path) -> Needs:
    """Read a 64-bit little-endian ELF file; others need nothing that is known.

    Raises:
        ContractError: the file cannot be read, or is damaged.
    """
    try:
        data = Path(path).read_bytes()
        return _read(data) if data[:6] == b"\x7fELF\x02\x01" else Needs((), ())
    except (OSError, struct.error, ValueError) as error:
        raise ContractError(f"the library {path} cannot be read: {error}") from error


def _read(data: bytes) -> Needs:
    start, sections = struct.unpack_from("<QQ", data, 32)
    size, count, section_size, section_count = struct.unpack_from("<HHHH", data, 54)
    loads, dynamic = [], None
    for i in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, start + i * size)
        if kind == _LOAD:
            loads.append((address, offset, length))
        elif kind == _DYNAMIC:
            dynamic = (offset, length)
    if dynamic is None:
        return Needs((), ())

    def place(address: int) -> int:
        found: int = next(o + address - a for a, o, n in loads if a <= address < a + n)
        return found

    tags: dict[int, int] = {}
    names: list[int] = []
    for at in range(dynamic[0], dynamic[0] + dynamic[1], 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        if tag == 0:
            break
        if tag == _NEEDED:
            names.append(value)
        tags[tag] = value
    table = place(tags[_STRTAB])

    def text(offset: int) -> str:
        return data[table + offset : data.index(b"\0", table + offset)].decode(errors="replace")

    symbols = _symbols(data, sections, section_size, section_count)
    return Needs(tuple(map(text, names)), tuple(text(n) for n in symbols))


def _symbols(data: bytes, start: int, size: int, count: int) -> list[int]:
    """Names of undefined dynamic symbols, by the section table."""
    dynsym = 11
    for i in range(count):
        _, kind, _, _, offset, length = struct.unpack_from("<IIQQQQ", data, start + i * size)
        if kind == dynsym:
            entries = (struct.unpack_from("<IBBHQQ", data, at) for at in range(offset + 24, offset + length, 24))
            return [name for name, _, _, section, _, _ in entries if section == 0]
    return []
