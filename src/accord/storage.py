"""Storage: what was computed once and can be computed again, kept on disk between processes.

An entry is a file whose name is the hash of everything that it depends on. It is written beside its place and renamed,
so that a reader meets a whole entry or none, whatever kills the writer. A reader checks owner, permissions, length and
checksum; whatever is wrong makes the entry as if it were not there.

The folder is ``$ACCORD_CACHE``, else ``$XDG_CACHE_HOME/accord``, else ``~/.cache/accord``. ``ACCORD_CACHE=off`` keeps
nothing. A folder that others may write to is not trusted. ``ACCORD_CACHE_LIMIT`` bounds it, in bytes; entries that
were not used for longest go first.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
import stat
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from accord.cores import on_all_cores

__all__ = [
    "DEFAULT_LIMIT",
    "PAYLOAD",
    "Storage",
    "cache_folder",
    "cache_limit",
    "checksum_of",
    "code_digest",
    "digest_of",
    "digest_of_file",
]

DEFAULT_LIMIT = 4 << 30
_HEADER = struct.Struct(
    "<8sQ32s16x"
)  # magic, length and checksum of the payload; 64 bytes, so that the payload is aligned
#: Where the payload of an entry begins in its file.
PAYLOAD = _HEADER.size
_MAGIC = b"ACCORD\x00\x03"
_SUFFIX = ".entry"
#: Entries are removed until this share of the limit is left, so that it is not done at each write.
_KEEP = 0.8
#: Bytes that one thread hashes before it takes the next.
_PIECE = 1 << 20
#: Bytes that are read from a file at once: they stay in the second-level cache.
_READ = 1 << 18
#: The time of use is noted on disk no more often than this, in seconds.
_TOUCH = 3600


def cache_folder() -> Path | None:
    """The folder that entries are kept in; None if nothing is to be kept."""
    chosen = os.environ.get("ACCORD_CACHE", "")
    if chosen:
        return None if chosen.lower() == "off" else Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and Path(base).is_absolute():  # the XDG rules say to ignore a relative one
        return Path(base) / "accord"
    try:
        return Path.home() / ".cache" / "accord"
    except RuntimeError:  # no home
        return None


def cache_limit() -> int:
    """Bytes that the folder may hold; what cannot be read as a number is ignored."""
    try:
        return int(os.environ.get("ACCORD_CACHE_LIMIT", DEFAULT_LIMIT))
    except ValueError:
        return DEFAULT_LIMIT


def digest_of(content: memoryview) -> bytes:
    """A hash of ``content``, computed on all cores: SHA-256 of those of its pieces of a megabyte."""

    def piece(start: int, stop: int) -> bytes:
        return hashlib.sha256(content[start:stop]).digest()

    return _digest_of_pieces(len(content), piece)


def digest_of_file(file: int) -> bytes:
    """As :func:`digest_of`, of the content of an open file; a file that somebody shortens meanwhile does no harm.

    Raises:
        OSError: it cannot be read.
    """

    def piece(start: int, stop: int) -> bytes:
        found = hashlib.sha256()
        buffer = memoryview(bytearray(min(_READ, stop - start)))
        while start < stop:
            count = os.preadv(file, [buffer[: stop - start]], start)
            if not count:
                break
            found.update(buffer[:count])
            start += count
        return found.digest()

    return _digest_of_pieces(os.fstat(file).st_size, piece)


def checksum_of(content: memoryview) -> bytes:
    """32 bytes that tell whether ``content`` was damaged: a hash of the CRC-32 of each of its pieces of a megabyte."""

    def piece(start: int, stop: int) -> bytes:
        return zlib.crc32(content[start:stop]).to_bytes(4, "little")

    return _digest_of_pieces(len(content), piece)


@functools.cache
def code_digest() -> str:
    """A hash of Accord's version, Python's and NumPy's, and of its sources by their sizes and times of change."""
    import numpy as np

    import accord

    found = []
    folders = [os.path.dirname(accord.__file__)]  # noqa: PTH120  four times as quick as Path, for hundreds of files
    for folder in folders:
        with os.scandir(folder) as files:
            for file in files:
                if file.name.endswith((".py", ".ll")):
                    info = file.stat()
                    found.append((file.path, info.st_size, info.st_mtime_ns))
                elif file.is_dir() and file.name != "__pycache__":
                    folders.append(file.path)
    text = f"{accord.__version__}\0{sys.version}\0{np.__version__}\0{sorted(found)}"
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of_pieces(size: int, piece: Callable[[int, int], bytes]) -> bytes:
    """A hash of what ``piece`` makes of each piece, from its start and end; pieces are shared among all cores."""
    starts = range(0, size, _PIECE)
    digests: list[bytes] = [b""] * len(starts)

    def work(k: int) -> None:
        digests[k] = piece(starts[k], min(starts[k] + _PIECE, size))

    on_all_cores(work, len(starts))
    return hashlib.sha256(b"".join([size.to_bytes(8, "little"), *digests])).digest()


class Storage:
    """Entries of one kind.

    Args:
        kind: Name of the folder below the cache's own.
        folder: The cache's folder; by default :func:`cache_folder`'s.
        limit: Bytes that entries of this kind may take.
    """

    def __init__(self, kind: str, folder: Path | None = None, limit: int | None = None) -> None:
        root = folder if folder is not None else cache_folder()
        self._folder = None if root is None else root / kind
        self._limit = cache_limit() if limit is None else limit

    @property
    def folder(self) -> Path | None:
        """Where entries are; None if nothing is kept."""
        return self._folder

    def read(self, key: str) -> memoryview | None:
        """The payload of entry ``key``, mapped into memory and read-only; None if there is no sound one."""
        if self._folder is None or not _trusted(self._folder):
            return None
        path = self._folder / (key + _SUFFIX)
        try:
            with path.open("rb") as file:
                info = os.fstat(file.fileno())
                if not _own(info) or not stat.S_ISREG(info.st_mode) or info.st_size < _HEADER.size:
                    return None
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None
        magic, length, checksum = _HEADER.unpack_from(mapped)
        payload = memoryview(mapped)[_HEADER.size :]
        if magic != _MAGIC or length != len(payload) or checksum_of(payload) != checksum:
            return None
        if info.st_atime + _TOUCH < time.time():
            with contextlib.suppress(OSError):
                os.utime(path)
        return payload

    def write(self, key: str, parts: Iterable[bytes | memoryview]) -> bool:
        """Keep an entry; True if it is there afterwards. Never raises: a cache that cannot be written is no error."""
        if self._folder is None:
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _trusted(self._folder):
                return False
            self._place(self._folder / (key + _SUFFIX), parts)
            self._trim()
        except OSError:
            return False
        return True

    def _place(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        handle, name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
        try:
            with os.fdopen(handle, "w+b") as file:
                file.write(bytes(_HEADER.size))
                for part in parts:
                    file.write(part)
                file.flush()
                written = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                with written, memoryview(written) as whole, whole[_HEADER.size :] as payload:
                    header = _HEADER.pack(_MAGIC, len(payload), checksum_of(payload))
                file.seek(0)
                file.write(header)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise

    def _trim(self) -> None:
        """Remove what was not used for longest, and what killed writers left, until the limit is kept."""
        assert self._folder is not None
        entries: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                info = path.stat()
                if path.suffix == _SUFFIX:
                    entries.append((max(info.st_atime, info.st_mtime), info.st_size, path))
                elif path.name.startswith(".part-") and info.st_mtime + _TOUCH < time.time():
                    path.unlink()
        total = sum(size for _, size, _ in entries)
        if total <= self._limit:
            return
        # clocks of file systems are coarse: of what was used at the same time, the largest goes first
        for _, size, path in sorted(entries, key=lambda e: (e[0], -e[1])):
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
            if total <= self._limit * _KEEP:
                return


def _own(info: os.stat_result) -> bool:
    """Whether a file is this user's and nobody else may write to it."""
    mine = not hasattr(os, "getuid") or info.st_uid == os.getuid()
    return mine and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _trusted(folder: Path) -> bool:
    try:
        return _own(folder.stat())
    except OSError:
        return False
