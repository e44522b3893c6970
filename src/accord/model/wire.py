"""The protobuf encoding, read only as far as needed to say where a file is damaged and how many parts it has.

Parsing turns two bytes of a hostile file into a hundred bytes of memory, and its errors name no place. One pass over
the encoded bytes, which allocates nothing, answers both.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

from accord.errors import LimitError

__all__ = ["MAX_DEPTH", "Damage", "scan"]

#: Messages within messages that protobuf's parser accepts.
MAX_DEPTH = 100

_Fields: TypeAlias = "dict[int, tuple[str, tuple[int, ...], Any]]"  # number → name, wire types, message or None


@dataclass(frozen=True, slots=True)
class Damage:
    """Where and how the encoding breaks.

    Attributes:
        offset: Byte at which the broken field starts.
        path: The field, from the top ("graph.node.attribute").
        reason: What is wrong there.
        missing: Bytes that the file lacks where it ends too early; 0 where it is damaged in another way.
    """

    offset: int
    path: str
    reason: str
    missing: int = 0


@functools.cache
def _fields(message: str) -> _Fields:
    """The fields of an ONNX message by number."""
    import onnx

    wire = {1: 1, 2: 5, 6: 1, 7: 5, 15: 5, 16: 1, 9: 2, 11: 2, 12: 2}  # field type → wire type; the others are varints
    found: _Fields = {}
    for f in _descriptor(onnx.ModelProto.DESCRIPTOR, message).fields:
        own = wire.get(f.type, 0)
        types = (own, 2) if own != 2 and f.is_repeated else (own,)  # packed or not, both are legal
        found[f.number] = (f.name, types, f.message_type.full_name if f.message_type is not None else None)
    return found


def _descriptor(root: Any, full_name: str) -> Any:
    return root.file.pool.FindMessageTypeByName(full_name)


def scan(data: bytes | memoryview, message: str = "onnx.ModelProto", *, max_messages: int) -> Damage | None:
    """The first damage in ``data``, or None.

    Args:
        data: The encoded message.
        message: Its full name.
        max_messages: Messages within it that are accepted.

    Raises:
        LimitError: more messages than that.
    """
    messages = 0
    # Each entry: where to go on, where the message ends, its fields, its name.
    stack: list[tuple[int, int, _Fields, str]] = [(0, len(data), _fields(message), "")]
    while stack:
        pos, end, fields, name = stack.pop()
        while pos < end:
            start = pos
            key, pos = _varint(data, pos, end)
            if pos < 0:
                return _damage(stack, name, start, "a field's key runs past the end", 1 if end == len(data) else 0)
            number, wire = key >> 3, key & 7
            field, types, child = fields.get(number, ("", (), None))
            label = field or f"field {number}"
            if number == 0 or wire not in (0, 1, 2, 5) or (types and wire not in types):
                return _damage(stack, name, start, f"{label} has the impossible wire type {wire}", 0)
            if wire == 0:
                _, pos = _varint(data, pos, end)
                stop = pos if pos >= 0 else end + 1
            elif wire == 2:
                length, pos = _varint(data, pos, end)
                stop = pos + length if pos >= 0 else end + 1
            else:
                stop = pos + (8 if wire == 1 else 4)
            if stop > end:
                missing = stop - len(data)
                text = f"{label} needs {stop - end} bytes more than its message has"
                if missing > 0:
                    text = f"{label} needs {missing} bytes more than there are"
                return _damage([*stack, (0, 0, fields, name)], label, start, text, max(missing, 0))
            if wire == 2 and child is not None:
                messages += 1
                if messages > max_messages:
                    raise LimitError(
                        "the file has too many parts", expected=f"at most {max_messages}", remedy="Raise `Limits`."
                    )
                if len(stack) >= MAX_DEPTH:
                    raise LimitError("messages are nested too deeply", expected=f"at most {MAX_DEPTH} levels")
                stack.append((stop, end, fields, name))
                end, fields, name = stop, _fields(child), field
            else:
                pos = stop
    return None


def _varint(data: bytes | memoryview, pos: int, end: int) -> tuple[int, int]:
    """The number at ``pos`` and where it ends; -1 for the latter where it does not end."""
    value = shift = 0
    while pos < end and shift < 70:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
        shift += 7
    return 0, -1


def _damage(stack: list[tuple[int, int, _Fields, str]], name: str, start: int, reason: str, missing: int) -> Damage:
    path = ".".join(n for *_, n in stack if n)
    return Damage(start, ".".join(p for p in (path, name) if p), reason, missing)
