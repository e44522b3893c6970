"""Streams that runs borrow from a device, and events that go with their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accord.backends.cuda.driver import Device

__all__ = ["Events", "Lanes", "borrowed"]


class Events:
    """Events that go with their owner."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._all: list[int] = []

    def new(self) -> int:
        """Another one."""
        self._all.append(self._gpu.event())
        return self._all[-1]

    def __del__(self) -> None:
        for event in self._all:
            self._gpu.forget_event(event)


class Lanes:
    """Streams that one run at a time uses; the device gets them back from a ``with``.

    Attributes:
        origin: Stream 0, of higher priority than the others.
    """

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.origin = gpu.stream(first=True)
        self._sides: dict[int, int] = {}
        self._mark = gpu.event()

    def side(self, number: int) -> int:
        """Another one."""
        if number not in self._sides:
            self._sides[number] = self._gpu.stream()
        return self._sides[number]

    def arrive(self, stream: int, other: int) -> None:
        """Have what is put on ``stream`` from now on wait for what is on another one, which may be anybody's."""
        if other != stream:
            self._gpu.record(self._mark, other)
            self._gpu.follow(stream, self._mark)

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._gpu.lost is None:  # what was started uses memory that others get next
            self.wait()
        self._gpu.idle.append(self)

    def wait(self) -> None:
        """Until everything on all of them is done."""
        for stream in (self.origin, *self._sides.values()):
            self._gpu.wait(stream)


def borrowed(gpu: Device) -> Lanes:
    """Streams that nobody else uses while they are entered; as many are kept as were ever used at the same time.

    Raises:
        ExecutionError: the device was lost before.
    """
    gpu.enter()
    try:
        lanes: Lanes = gpu.idle.pop()
    except IndexError:
        lanes = Lanes(gpu)
    return lanes
