"""Machine code in this process: what is asked for is found in memory, in the cache on disk, or compiled.

LLVM is loaded only when something has to be compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from accord.backends.cpu.cache import DEFAULT_LIMIT, DiskCache
from accord.backends.cpu.link import ALIGNMENT, Blob
from accord.backends.cpu.machine import Machine, machine
from accord.backends.cpu.memory import executable
from accord.errors import CompileError
from accord.storage import cache_folder, cache_limit

__all__ = [
    "KERNEL_TYPE",
    "Machine",
    "Source",
    "cache_key",
    "compile_function",
    "entries",
    "load",
    "loaded",
    "machine",
    "text_key",
]

KERNEL_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Source(Protocol):
    """Something that can write a module of LLVM text."""

    @property
    def symbol(self) -> str:
        """A name by content: equal names mean equal modules, for one version of the generators and one machine."""

    def module(self, name: str) -> str:
        """The text of a module that defines function ``name``."""


class _State:
    """What this process has loaded. The lock serialises compilations: each of them uses all cores."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.entries: dict[str, Mapping[str, int]] = {}


_STATE = _State()


def _after_fork() -> None:
    _STATE.lock = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


def entries(source: Source) -> Mapping[str, int]:
    """Name of each global function of the source's module → its address in this process."""
    symbol = source.symbol
    found = _STATE.entries.get(symbol)
    if found is None:
        load([source])
        found = _STATE.entries[symbol]
    return found


def load(sources: Iterable[Source]) -> None:
    """Have the machine code of ``sources`` in memory; what is in no cache is compiled on all cores.

    Raises:
        CompileError: LLVM refuses a text, or the system does not let new code be executed.
    """
    wanted = {s.symbol: s for s in sources}
    if wanted.keys() <= _STATE.entries.keys():
        return
    with _STATE.lock:
        missing = [(symbol, s) for symbol, s in wanted.items() if symbol not in _STATE.entries]
        if not missing:
            return
        cache = _cache()
        blobs: dict[str, Blob] = {}
        rest: list[tuple[str, Source]] = []
        # code that was compiled before, or whose key is of its text, is what it is whatever became of the generators
        if cache is not None and not all(_has_key(s) for _, s in missing) and _changed_since(_started()):
            cache = None
        for symbol, source in missing:
            content = None if cache is None else cache.get(_key(symbol, source))
            if content is None:
                rest.append((symbol, source))
            else:
                blobs[symbol] = _unpack(content)
        if rest:
            blobs |= _compile(rest, cache)
        _map(blobs)


def loaded() -> int:
    """How many pieces of machine code are in memory; the number only grows."""
    return len(_STATE.entries)


def compile_function(name: str, text: str) -> int:
    """Address of function ``name`` of the module ``text``, which no cache keeps."""
    from accord.backends.cpu.build import build

    with _STATE.lock:
        if name not in _STATE.entries:
            _map({name: build(text, machine())})
        found = _STATE.entries[name].get(name)
    if found is None:
        raise CompileError(f"function {name} is missing from its module")
    return found


# compiling


def _compile(sources: Sequence[tuple[str, Source]], cache: DiskCache | None) -> dict[str, Blob]:
    from accord.backends.cpu.build import build_all

    stored = cache if cache is not None and not _changed_since(_started()) else None

    def done(index: int, blob: Blob) -> None:
        symbol, source = sources[index]
        if symbol not in blob.entries:
            raise CompileError(f"function {symbol} is missing from its module")
        if stored is not None:
            stored.put(_key(symbol, source), _pack(blob))

    texts = [functools.partial(source.module, symbol) for symbol, source in sources]
    blobs = build_all(texts, machine(), done)
    return {symbol: blob for (symbol, _), blob in zip(sources, blobs, strict=True)}


# mapping


def _map(blobs: Mapping[str, Blob]) -> None:
    """Put blobs into executable memory and note the addresses of their functions."""
    code = bytearray()
    starts: dict[str, int] = {}
    for symbol, blob in blobs.items():
        code += bytes(-len(code) % ALIGNMENT)
        starts[symbol] = len(code)
        code += blob.code
    base = executable(bytes(code))
    for symbol, blob in blobs.items():
        _STATE.entries[symbol] = {name: base + starts[symbol] + at for name, at in blob.entries.items()}


# the cache on disk

_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<QH")


def _pack(blob: Blob) -> bytes:
    parts = [_COUNT.pack(len(blob.entries))]
    for name, offset in blob.entries.items():
        encoded = name.encode()
        parts += [_ENTRY.pack(offset, len(encoded)), encoded]
    return b"".join([*parts, blob.code])


def _unpack(content: bytes) -> Blob:
    (count,) = _COUNT.unpack_from(content)
    at = _COUNT.size
    found: dict[str, int] = {}
    for _ in range(count):
        offset, size = _ENTRY.unpack_from(content, at)
        at += _ENTRY.size + size
        found[content[at - size : at].decode()] = offset
    return Blob(content[at:], found)


@functools.cache
def _cache() -> DiskCache | None:
    folder = cache_folder()
    if folder is None:
        return None
    return DiskCache(folder / "code", min(DEFAULT_LIMIT, cache_limit()))


def cache_key(source: Source) -> bytes:
    """What the machine code of ``source`` is kept under."""
    return _key(source.symbol, source)


def _key(symbol: str, source: Source) -> bytes:
    if _has_key(source):
        return bytes(source.key)  # type: ignore[attr-defined]
    text = f"{_version()} {_origin(type(source))} {machine().key} {symbol}"
    return hashlib.sha256(text.encode()).digest()


def _has_key(source: Source) -> bool:
    return isinstance(getattr(source, "key", None), bytes)


def text_key(text: str) -> bytes:
    """A key for a source whose text is at hand: of the text, of what makes machine code of it, and of the machine."""
    here = Path(__file__)
    digest = hashlib.sha256(f"{_llvm()} {machine().key}".encode())
    for name in ("build", "compiler", "link", "support"):
        digest.update(here.with_name(f"{name}.py").read_bytes())
    digest.update(text.encode())
    return digest.digest()


@functools.cache
def _version() -> str:
    """A digest of all that decides what code a source becomes: the generators, and LLVM."""
    digest = hashlib.sha256(_llvm().encode())
    for path in _generator_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _llvm() -> str:
    """A digest of LLVM's version."""
    digest = hashlib.sha256()
    spec = importlib.util.find_spec("llvmlite")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in (Path(folder) / "_version.py", *sorted((Path(folder) / "binding").glob("libllvmlite*"))):
            with contextlib.suppress(OSError):
                digest.update(path.read_bytes() if path.suffix == ".py" else str(path.stat().st_size).encode())
    return digest.hexdigest()


@functools.cache
def _generator_files() -> tuple[Path, ...]:
    """The files whose code decides what the text of a module is."""
    here = Path(__file__).parent
    folders = (here, here / "families", here.parents[1] / "expr")
    return tuple(sorted(f for folder in folders for f in folder.iterdir() if f.suffix in (".py", ".ll")))


@functools.cache
def _origin(kind: type) -> str:
    """A digest of the file that a source's class comes from, where that is none of Accord's generators."""
    if kind.__module__.startswith("accord.backends.cpu."):
        return ""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
    except OSError:
        return hashlib.sha256(os.urandom(32)).hexdigest()  # written at a prompt: never the same twice


def _changed_since(moment: float) -> bool:
    """Whether a generator's file is newer: this process may then run an older version of it than is on disk.

    Times in the future tell nothing.
    """
    now = time.time()
    try:
        return any(moment < path.stat().st_mtime <= now for path in _generator_files())
    except OSError:
        return True


@functools.cache
def _started() -> float:
    """When this process started, in seconds since 1970; the present where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        age = 0.0
    return time.time() - age
