"""What is found out once for runs on the same memory of a device."""

from __future__ import annotations

from collections.abc import Mapping

from accord.backends.memory import DeviceArray
from accord.record import record

__all__ = ["Binding"]


@record
class Binding:
    """A run that reads and writes no memory of the host but that of its own.

    Attributes:
        key: Of the frame.
        env: Values of symbols.
        arrays: Where inputs and outputs are, by root slot. Nothing here keeps that memory alive.
        outputs: The outputs among them, in order.
        arrivals: Streams on which inputs are made, or outputs still used.
    """

    key: tuple[int, ...]
    env: dict[str, int]
    arrays: Mapping[int, DeviceArray]
    outputs: tuple[DeviceArray, ...]
    arrivals: tuple[int, ...]
