"""Messages between processes: JSON with open files beside it. What a kernel prints cannot get in between."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["ClosedError", "receive", "send"]

_HEADER = struct.Struct("<Q")
_MOST_FILES = 64


class ClosedError(Exception):
    """The other side is gone."""


def send(channel: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message.

    Raises:
        ClosedError: nobody reads it.
    """
    data = json.dumps(message).encode()
    try:
        socket.send_fds(channel, [_HEADER.pack(len(data))], files)
        channel.sendall(data)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ClosedError from error


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its files, which the caller closes.

    Raises:
        ClosedError: the other side ended.
        TimeoutError: nothing came within the channel's time-out.
    """
    try:
        head, files, _, _ = socket.recv_fds(channel, _HEADER.size, _MOST_FILES)
        try:
            head += _exactly(channel, _HEADER.size - len(head)) if head else b""
            if not head:
                raise ClosedError
            message: dict[str, Any] = json.loads(_exactly(channel, _HEADER.unpack(head)[0]))
        except BaseException:
            for f in files:
                os.close(f)
            raise
    except ConnectionResetError as error:
        raise ClosedError from error
    return message, files


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise ClosedError
        parts += part
    return bytes(parts)
