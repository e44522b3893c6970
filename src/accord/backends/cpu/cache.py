"""A folder of byte strings by key, shared by processes: machine code that was compiled before.

An entry is one file, written beside its place and renamed into it, so a reader finds all of it or nothing, whenever the
writer is killed. The file holds its key and a checksum, so one that is damaged, cut short or put in another's place is
taken for missing, and the next compilation replaces it. Since the content is executed, nothing is read that somebody
else may have written: files and the folder must belong to this user (or root) and be writable by nobody else.

Entries are spread over 256 folders by key. Each is kept under its share of the limit when something is added to it:
entries that were used least recently go first (the time of a file is when it was last used, to the hour).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import time
from pathlib import Path
from typing import Final

__all__ = ["DEFAULT_LIMIT", "DiskCache"]

#: Bytes that a cache takes at most, by default.
DEFAULT_LIMIT: Final = 512 << 20

_MAGIC: Final = b"accord code 1\0\0\0"
_HEADER: Final = struct.Struct("<16s32s32sQ")  # magic, key, checksum of the content, its size
_FOLDERS: Final = 256
_HOUR: Final = 3600.0
_FLAGS: Final = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class DiskCache:
    """See the module's text. Nothing here raises for what is wrong with the disk: it is then a miss, or not stored.

    Args:
        folder: Where; made when the first entry is added. None: a cache that is always empty.
        limit: Bytes to take at most.
    """

    def __init__(self, folder: Path | None, limit: int = DEFAULT_LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self._readable = folder is not None and _is_trusted_folder(folder)
        self._writable = folder is not None and (self._readable or not os.path.lexists(folder))

    def get(self, key: bytes) -> bytes | None:
        """The content stored under a key of 32 bytes, or None."""
        if not self._readable:
            return None
        path = self._path(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)  # a pipe that stands there must not hold us up
        except OSError:
            return None
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or not _is_ours(info) or not self._fits(info.st_size):
                return None
            data = os.read(fd, info.st_size)
        except OSError:
            return None
        finally:
            os.close(fd)
        content = _content(key, data)
        if content is not None and time.time() - info.st_mtime > _HOUR:
            with contextlib.suppress(OSError):  # a cache that cannot be written has no order of use
                os.utime(path)
        return content

    def put(self, key: bytes, content: bytes) -> None:
        """Store ``content`` under a key of 32 bytes, replacing what was there."""
        size = _HEADER.size + len(content)
        if not self._writable or not self._fits(size):
            return
        path = self._path(key)
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
        try:
            self._make_folder(path.parent)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o644)
            try:
                header = _HEADER.pack(_MAGIC, key, hashlib.sha256(content).digest(), len(content))
                data = header + content
                while data:
                    data = data[os.write(fd, data) :]
            finally:
                os.close(fd)
            temporary.replace(path)
        except OSError:  # full, read-only or taken away: go on without
            self._writable = False
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._evict(path.parent)

    def _path(self, key: bytes) -> Path:
        assert self.folder is not None
        text = key.hex()
        return self.folder / text[:2] / text[2:]

    def _fits(self, size: int) -> bool:
        return _HEADER.size <= size <= self.limit // _FOLDERS

    def _make_folder(self, folder: Path) -> None:
        if not self._readable:  # there was none
            assert self.folder is not None
            self.folder.mkdir(0o755, parents=True, exist_ok=True)
            if not _is_trusted_folder(self.folder):
                raise PermissionError(f"{self.folder} is writable by others")
            self._readable = True
        folder.mkdir(0o755, exist_ok=True)

    def _evict(self, folder: Path) -> None:
        """Bring one folder under its share, and remove what killed writers left in it."""
        now = time.time()
        entries: list[tuple[float, int, str]] = []
        total = 0
        with contextlib.suppress(OSError), os.scandir(folder) as files:  # another process may be removing them too
            for file in files:
                info = file.stat(follow_symlinks=False)
                if file.name.startswith("."):
                    if now - info.st_mtime > _HOUR:
                        Path(file.path).unlink()
                    continue
                entries.append((info.st_mtime, info.st_size, file.path))
                total += info.st_size
        share = self.limit // _FOLDERS
        if total <= share:
            return
        # clocks of file systems are coarse: of what was written at the same time, the largest goes first
        for _, size, path in sorted(entries, key=lambda e: (e[0], -e[1])):
            if total <= share * 3 // 4:
                break
            with contextlib.suppress(OSError):
                Path(path).unlink()
            total -= size


def _content(key: bytes, data: bytes) -> bytes | None:
    """The content of an entry's file, None where the file is not what was written for ``key``."""
    if len(data) < _HEADER.size:
        return None
    magic, written, checksum, size = _HEADER.unpack_from(data)
    content = data[_HEADER.size :]
    if magic != _MAGIC or written != key or size != len(content) or hashlib.sha256(content).digest() != checksum:
        return None
    return content


def _is_ours(info: os.stat_result) -> bool:
    """Whether only this user (or root) can have written it."""
    return info.st_uid in (os.geteuid(), 0) and not info.st_mode & 0o022


def _is_trusted_folder(folder: Path) -> bool:
    try:
        info = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and _is_ours(info)
