"""Linking: relocatable ELF object code → one position-independent piece of memory that needs nothing else.

LLVM's object code of a kernel has the code in one section, constants in others, and relocations between them, all
relative to the place where they stand once the code is compiled position-independent. So everything is laid out in one
blob, the relocations are resolved once, and the blob runs wherever it is mapped. (System V ABI, chapters 4 and 5; its
AMD64 supplement, section 4.4.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from accord.errors import CompileError
from accord.record import record

__all__ = ["ALIGNMENT", "LINKABLE", "Blob", "link", "undefined"]

#: A blob must be mapped at a multiple of this: a cache line, and the longest vector.
ALIGNMENT: Final = 64

#: Processors whose relocations are known here.
LINKABLE: Final = frozenset({"x86_64"})

_MACHINES: Final = {62: "x86_64", 183: "aarch64"}
_RELA, _NOBITS = 4, 8
_WRITE, _ALLOC, _TLS = 1, 2, 0x400
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_GLOBAL, _WEAK = 1, 2
_FUNCTION = 2

#: Relocations of x86-64 by what they write: 32 or 64 bits of "symbol + addend - place".
_RELATIVE: Final = {2: ("PC32", 32), 4: ("PLT32", 32), 24: ("PC64", 64)}

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")


@record
class Blob:
    """Machine code that runs wherever it is mapped, at a multiple of :data:`ALIGNMENT`.

    Attributes:
        code: Instructions and constants.
        entries: Name of each function that can be called from outside → its offset.
    """

    code: bytes
    entries: dict[str, int]


@record
class _Section:
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


@record
class _Symbol:
    name: str
    binding: int
    type: int
    section: int
    value: int


class _Object:
    """A parsed object file.

    Raises:
        CompileError: it is not what LLVM makes for x86-64.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
            raise CompileError("the object code is not a 64-bit little-endian ELF file")
        header = _HEADER.unpack_from(data)
        machine, start, size, count = header[2], header[6], header[11], header[12]
        if _MACHINES.get(machine) not in LINKABLE:
            raise CompileError(
                "object code for this processor cannot be linked yet",
                expected=", ".join(sorted(LINKABLE)),
                found=_MACHINES.get(machine, f"ELF machine {machine}"),
                remedy="Load the model with the reference backend, which runs on every processor.",
            )
        self.sections = [self._section(start + k * size) for k in range(count)]
        table = next((s for s in self.sections if s.type == 2), None)
        self.symbols = list(self._symbols(table)) if table is not None else []

    def _section(self, at: int) -> _Section:
        _, type_, flags, _, offset, size, link_, info, align, _ = _SECTION.unpack_from(self.data, at)
        return _Section(type_, flags, offset, size, link_, info, max(1, align))

    def _symbols(self, table: _Section) -> Iterator[_Symbol]:
        strings = self.sections[table.link].offset
        for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
            name, info, _, section, value, _ = _SYMBOL.unpack_from(self.data, at)
            end = self.data.index(b"\0", strings + name)
            yield _Symbol(self.data[strings + name : end].decode(), info >> 4, info & 15, section, value)

    def loaded(self) -> Iterator[tuple[int, _Section]]:
        """Sections that are part of the program, with their numbers; tables for unwinding are not."""
        for k, s in enumerate(self.sections):
            if not s.flags & _ALLOC or not s.size or s.type == 0x70000001:
                continue
            if s.flags & (_WRITE | _TLS) or s.type == _NOBITS:
                raise CompileError("a kernel must not have variables of its own", remedy="Use operands or scratch.")
            if s.align > ALIGNMENT:
                raise CompileError(f"a constant is aligned to {s.align} bytes", expected=f"at most {ALIGNMENT}")
            yield k, s


def undefined(data: bytes) -> set[str]:
    """Names of the functions that object code ``data`` calls and lacks."""
    symbols = _Object(data).symbols
    return {s.name for s in symbols if s.section == _UNDEFINED and s.name}


def link(objects: Sequence[bytes]) -> Blob:
    """One blob of all ``objects``, which may call each other's functions.

    Args:
        objects: ELF files. Only the global functions of the first become entries.

    Raises:
        CompileError: a function is missing or defined twice, the code has variables, or it is not position-independent.
    """
    parsed = [_Object(data) for data in objects]
    code = bytearray()
    places: list[dict[int, int]] = []
    for o in parsed:
        place: dict[int, int] = {}
        for k, s in o.loaded():
            code += bytes(-len(code) % (s.align if place else ALIGNMENT))
            place[k] = len(code)
            code += o.data[s.offset : s.offset + s.size]
        places.append(place)
    names: dict[str, int] = {}
    entries: dict[str, int] = {}
    for o, place in zip(parsed, places, strict=True):
        for symbol in o.symbols:
            if symbol.binding not in (_GLOBAL, _WEAK) or symbol.section not in place:
                continue
            if symbol.name in names:
                raise CompileError(f"function {symbol.name} is defined twice")
            names[symbol.name] = place[symbol.section] + symbol.value
            if o is parsed[0] and symbol.type == _FUNCTION:
                entries[symbol.name] = names[symbol.name]
    for o, place in zip(parsed, places, strict=True):
        _relocate(o, place, names, code)
    return Blob(bytes(code), entries)


def _relocate(o: _Object, place: dict[int, int], names: dict[str, int], code: bytearray) -> None:
    """Resolve all relocations of one object."""
    for section in o.sections:
        if section.type != _RELA or section.info not in place:
            continue
        for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(o.data, at)
            kind, symbol = info & 0xFFFFFFFF, o.symbols[info >> 32]
            if kind not in _RELATIVE:
                raise CompileError(f"relocation {kind} of {symbol.name or 'a section'} is not position-independent")
            if symbol.section in place:
                target = place[symbol.section] + symbol.value
            elif symbol.section in (_UNDEFINED, _COMMON, _ABSOLUTE) and symbol.name in names:
                target = names[symbol.name]
            else:
                raise CompileError(f"the generated code calls {symbol.name}, which does not exist")
            where = place[section.info] + offset
            name, size = _RELATIVE[kind]
            value = target + addend - where
            if not -(1 << (size - 1)) <= value < 1 << (size - 1):
                raise CompileError(f"relocation {name} of {symbol.name} does not fit")
            code[where : where + size // 8] = value.to_bytes(size // 8, "little", signed=True)
