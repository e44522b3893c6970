"""Damage to the bytes of a serialised model."""

from __future__ import annotations

import random


def flip_bits(data: bytearray, rng: random.Random, other: bytes) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(data: bytearray, rng: random.Random, other: bytes) -> None:
    at = rng.randrange(len(data))
    length = rng.choice((1, 2, 4, 16))
    data[at : at + length] = bytes(rng.choice((0, 255, 127, 128, rng.randrange(256))) for _ in range(length))


def truncate(data: bytearray, rng: random.Random, other: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def delete(data: bytearray, rng: random.Random, other: bytes) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 8, 64))]


def insert(data: bytearray, rng: random.Random, other: bytes) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 2, 8, 64)))


def splice(data: bytearray, rng: random.Random, other: bytes) -> None:
    at, start = rng.randrange(len(data)), rng.randrange(len(other))
    length = rng.choice((4, 16, 64, 256))
    data[at : at + length] = other[start : start + length]


BYTES = (flip_bits, overwrite, truncate, delete, insert, splice)
