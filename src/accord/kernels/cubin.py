"""Machine code for NVIDIA GPUs as a file: what each kernel in a cubin takes, read without a GPU and without tools.

A cubin is an ELF file. Its sections ``.nv.info`` hold records (format, attribute, size, content); those about registers
and stack name a kernel by its place in the symbol table. Static shared memory is the section ``.nv.shared.NAME``, of
which nothing is stored but its size; from sm_90 on it holds a kilobyte of the system's too. The numbers are those that
``cuobjdump -res-usage`` prints; a test holds them beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from accord.errors import CompileError

__all__ = ["Resources", "read_resources"]

_FRAME_SIZE, _REGISTERS = 0x11, 0x2F
#: Format of a record whose content follows its head.
_SIZED = 0x04
_SYMBOL_TABLE = 2
#: Bytes of a block's shared memory that the system takes.
_SYSTEM_SHARED = 1024


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes.

    Attributes:
        registers: Of a thread.
        stack: Bytes of local memory of a thread: registers that were spilled, and arrays that did not fit.
        shared: Bytes of static shared memory of a block that the author declared.
        spills: Bytes of registers that a thread spills, where the compiler said it; else None.
    """

    registers: int
    stack: int
    shared: int
    spills: int | None = None


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def read_resources(cubin: bytes) -> dict[str, Resources]:
    """By name of the kernel.

    Raises:
        CompileError: this is no cubin.
    """
    try:
        return _read(cubin)
    except (struct.error, IndexError, KeyError, ValueError, StopIteration) as error:
        raise CompileError(f"the compiler's output is no cubin: {error}") from error


def _read(cubin: bytes) -> dict[str, Resources]:
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no 64-bit ELF file")
    sections = _sections(cubin)
    table = next(s for s in sections if s.kind == _SYMBOL_TABLE)
    names = [
        _text(cubin, sections[table.link].offset + struct.unpack_from("<I", cubin, at)[0])
        for at in range(table.offset, table.offset + table.size, 24)
    ]
    found: dict[int, dict[str, int]] = {}
    for s in sections:
        if s.name == ".nv.info":
            for symbol, attribute, value in _records(cubin[s.offset : s.offset + s.size]):
                found.setdefault(symbol, {})[attribute] = value
    shared = {s.name.removeprefix(".nv.shared."): s.size for s in sections if s.name.startswith(".nv.shared.")}
    system = _SYSTEM_SHARED if any(s.name == ".nv.shared.reserved.0" for s in sections) else 0
    code = {s.name.removeprefix(".text.") for s in sections if s.name.startswith(".text.")}
    return {
        names[i]: Resources(f["registers"], f.get("stack", 0), max(0, shared.get(names[i], 0) - system))
        for i, f in found.items()
        if "registers" in f and names[i] in code
    }


def _sections(cubin: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, strings = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    return [_Section(_text(cubin, heads[strings][4] + h[0]), h[1], h[4], h[5], h[6]) for h in heads]


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _records(data: bytes) -> Iterator[tuple[int, str, int]]:
    """Symbol, what is said of it, how much."""
    known = {_FRAME_SIZE: "stack", _REGISTERS: "registers"}
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != _SIZED:
            continue
        if attribute in known:
            symbol, value = struct.unpack_from("<II", data, at)
            yield symbol, known[attribute], value
        at += size
