"""External data: weights in files beside the model, read only from within the model's folder.

A model file is untrusted. Its locations are opened folder by folder without following a link that an attacker could
place, and what was checked is what is read: the open file, mapped into memory once, not its name.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from accord.errors import ExternalDataError

__all__ = ["ExternalFiles"]

_NUMBER = re.compile(r"[0-9]{1,18}")


class ExternalFiles:
    """The files beside one model.

    Args:
        folder: The model's folder; None where the model came without one.
        opened: Gets path, size and time of change (nanoseconds) of each file that is opened.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, opened: list[tuple[str, int, int]] | None = None) -> None:
        self.folder = None if folder is None else Path(os.path.realpath(folder))
        self.opened = [] if opened is None else opened
        self._open: dict[str, memoryview] = {}

    def entries(self, proto: Any, needed: int, where: str) -> memoryview:
        """The bytes of a ``TensorProto`` whose data is external.

        Args:
            proto: The tensor.
            needed: Bytes that its dtype and shape need.
            where: Its name for messages.

        Raises:
            ExternalDataError: as :meth:`read`, or the entries are malformed.
        """
        found: dict[str, str] = {}
        for entry in proto.external_data:
            if entry.key in found:
                raise ExternalDataError(f"'{entry.key}' is given twice", value=where)
            found[entry.key] = entry.value
        numbers: dict[str, int | None] = {"offset": None, "length": None}
        for key in numbers:
            text = found.get(key)
            if text is None:
                continue
            if not isinstance(text, str) or not _NUMBER.fullmatch(text):
                raise ExternalDataError(
                    f"the {key} is no number", value=where, expected="a decimal number of bytes", found=repr(text)[:60]
                )
            numbers[key] = int(text)
        location = found.get("location", "")
        return self.read(location, numbers["offset"], numbers["length"], needed, where)

    def read(self, location: Any, offset: int | None, length: int | None, needed: int, where: str) -> memoryview:
        """Bytes of a file, mapped rather than read.

        Args:
            location: Path of the file, relative to the model's folder.
            offset: First byte; None for 0.
            length: Number of bytes as the model states it, or None.
            needed: Number of bytes that the tensor needs.
            where: Its name for messages.

        Raises:
            ExternalDataError: the file is outside the folder, is no file, is missing or is too short, or ``length``
                is not what the tensor needs.
        """
        if self.folder is None:
            raise ExternalDataError(
                f"its data is in the file '{_short(location)}', but the model came without a folder",
                value=where,
                remedy="Load the model by its path, or pass base_dir= with the folder of its data files.",
            )
        start = offset or 0
        if start < 0 or (length is not None and length < 0):
            raise ExternalDataError("a negative position", value=where, found=f"offset {offset}, length {length}")
        if length is not None and length != needed:
            raise ExternalDataError(
                "the length does not fit dtype and shape",
                value=where,
                expected=f"{needed} bytes",
                found=f"{length} bytes of '{_short(location)}'",
                remedy="The model file and its data do not belong together: export the model again.",
            )
        data = self._file(self._parts(location, where), location, where)
        if start + needed > len(data):
            raise ExternalDataError(
                f"the file '{_short(location)}' ends too early",
                value=where,
                expected=f"at least {start + needed} bytes",
                found=f"{len(data)} bytes",
                remedy="It is truncated or belongs to another model: copy or download it again.",
            )
        return data[start : start + needed]

    def _parts(self, location: Any, where: str) -> tuple[str, ...]:
        """The components of a location that may be opened."""
        if not isinstance(location, str) or not location:
            raise ExternalDataError(
                "no location is given", value=where, expected="a path relative to the model's folder"
            )
        if "\0" in location or len(location) > 4096:
            raise ExternalDataError("the location is no path", value=where, found=repr(location[:60]))
        path = PurePosixPath(location)
        if path.is_absolute() or re.match(r"[A-Za-z]:|[\\/]|\w+://", location):
            raise self._outside("an absolute path", location, where)
        if ".." in path.parts or ".." in location.split("\\"):
            raise self._outside("'..' in the path", location, where)
        if not path.parts:
            raise ExternalDataError("the location is a folder", value=where, found=repr(location))
        return path.parts

    def _outside(self, what: str, location: str, where: str) -> ExternalDataError:
        return ExternalDataError(
            f"{what} of its data file: '{_short(location)}'",
            value=where,
            expected="a path within the model's folder",
            remedy="A model may read only from its own folder: put the data file there and correct the location.",
        )

    def _file(self, parts: tuple[str, ...], location: str, where: str) -> memoryview:
        """The file at ``parts``, opened and mapped once."""
        key = "/".join(parts)
        if key not in self._open:
            self._open[key] = self._map(self._resolve(parts, location, where), location, where)
        return self._open[key]

    def _resolve(self, parts: tuple[str, ...], location: str, where: str) -> tuple[str, ...]:
        """``parts`` after a link of the file itself, which must stay in the folder; links of folders are refused."""
        assert self.folder is not None
        current = self.folder
        for part in parts[:-1]:
            current /= part
            if current.is_symlink():
                raise self._outside(f"the folder '{part}' is a link, on the way", location, where)
        path = current / parts[-1]
        if not path.is_symlink():
            return parts
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(self.folder) or target == self.folder:
            raise self._outside("a link that leads outside the model's folder, in place", location, where)
        return target.relative_to(self.folder).parts

    def _map(self, parts: tuple[str, ...], location: str, where: str) -> memoryview:
        """Open ``parts`` one by one, none of them a link any more, and map the file."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        assert self.folder is not None
        try:
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for i, part in enumerate(parts):
                last = i == len(parts) - 1
                outer, handle = handle, -1
                try:
                    # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
                    handle = os.open(part, flags | (os.O_NONBLOCK if last else os.O_DIRECTORY), dir_fd=outer)
                finally:
                    os.close(outer)
        except OSError as error:
            raise self._cannot_open(error, location, where) from error
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "a device or pipe"
                raise ExternalDataError(
                    f"'{_short(location)}' is {kind}", value=where, expected="a file in the model's folder"
                )
            self.opened.append((str(self.folder.joinpath(*parts)), facts.st_size, facts.st_mtime_ns))
            if facts.st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(handle, facts.st_size, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise self._cannot_open(error, location, where) from error
        finally:
            os.close(handle)

    def _cannot_open(self, error: Exception, location: str, where: str) -> ExternalDataError:
        if isinstance(error, FileNotFoundError):
            return ExternalDataError(
                f"its data file '{_short(location)}' is missing",
                value=where,
                expected=f"the file in {self.folder}",
                remedy="Copy it beside the model file: both belong together.",
            )
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return ExternalDataError(f"its data file '{_short(location)}' cannot be opened: {reason}", value=where)


def _short(location: Any) -> str:
    text = str(location)
    return text if len(text) <= 80 else text[:77] + "..."
