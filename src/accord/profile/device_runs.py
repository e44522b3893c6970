"""Runs of an executor while CUPTI records what its GPU does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from accord.backends.memory import DeviceArray
from accord.backends.protocol import HostKernel, NativeKernel
from accord.profile.device import DeviceProfile, Expected, Key, RunWindows, Window, analyse
from accord.profile.device_peaks import limits_of
from accord.runtime.watch import Running, Watch, watched

if TYPE_CHECKING:
    from accord.backends.cuda import CudaBackend
    from accord.runtime.executor import Executor
    from accord.runtime.frame import Segment

__all__ = ["Windows", "gpu_of", "recorded"]

#: Runs after recording began that do not count: CUPTI looks at a graph the first time that it is replayed.
_WARM_UP: Final = 3


class Windows(Watch):
    """Notes when the host executes which segment.

    Args:
        now: The clock.
        backend: Name of the device's backend.

    Attributes:
        runs: Those that were watched.
    """

    def __init__(self, now: Callable[[], int], backend: str) -> None:
        self.runs: list[RunWindows] = []
        self._backend = backend
        self._now = now
        self._depth = 0
        self._launches: dict[tuple[int, tuple[int, ...], int], tuple[Expected, ...]] = {}

    def run(self, run: Running) -> None:
        """Execute the segments."""
        noted = self.runs[-1]
        if not self._depth:
            noted.addresses = _addresses(run)
        self._depth += 1
        try:
            for segment in run.frame.segments:
                place = len(noted.windows)
                noted.windows.append(Window((), 0, 0, False))
                start = self._now()
                run.execute(segment)
                noted.windows[place] = self._window(run, segment, start, self._now())
        finally:
            self._depth -= 1

    def _window(self, run: Running, segment: Segment, start: int, end: int) -> Window:
        executor = id(run.executor)
        steps = [segment] if isinstance(segment, int) else segment[1]
        if isinstance(segment, int) or run.step(steps[0]).placement.backend != self._backend:
            return Window(tuple(dict.fromkeys((executor, i) for i in steps)), start, end, host=True)
        key = (executor, run.frame.key, steps[0])
        if key not in self._launches:
            self._launches[key] = _expected(run, steps)
        return Window(tuple(dict.fromkeys((executor, i) for i in steps)), start, end, False, self._launches[key])


def _expected(run: Running, steps: Sequence[int]) -> tuple[Expected, ...]:
    """What a native segment launches, in order."""
    from accord.backends.cuda.code import CudaLaunch, KernelText
    from accord.backends.cuda.program import TransferCode

    found = []
    for index in dict.fromkeys(steps):
        kernel = run.step(index).kernel
        assert isinstance(kernel, NativeKernel)
        launches = kernel.launches(run.frame.sizes.steps[index])
        for phase, launch in zip(kernel.phases, launches, strict=True):
            if launch.tasks:
                copied = isinstance(phase.code, TransferCode)
                nbytes = int(launch.params[0]) if copied else None  # type: ignore[call-overload]
                text = (launch.text or phase.code) if isinstance(launch, CudaLaunch) else None
                name = text.symbol if isinstance(text, KernelText) else None
                found.append(Expected((id(run.executor), index), nbytes, name))
    return tuple(found)


def _addresses(run: Running) -> dict[str, int]:
    """Where the caller's memory on the device and the arenas are."""
    slots = run.executor.plan.slots
    found = {f"'{slots[i].name}'": a.address for i, a in run.arrays.items() if isinstance(a, DeviceArray)}
    return found | {f"the arena in {space}": b.address for space, b in run.arena.blocks.items()}


def gpu_of(executor: Executor) -> CudaBackend | None:
    """The CUDA backend that steps of a plan run on; None if none do."""
    from accord.backends.cuda import CudaBackend

    names = {s.placement.backend for s in executor.plan.steps}
    return next((b for n, b in executor.backends.items() if n in names and isinstance(b, CudaBackend)), None)


def recorded(executor: Executor, values: Sequence[Any], runs: int) -> DeviceProfile:
    """What the GPU does in runs that go as they always do, graphs included.

    Args:
        executor: Whose runs are recorded; one that has run these inputs before.
        values: Inputs in the plan's order.
        runs: How many.

    Raises:
        BackendError: CUPTI cannot record; or no step runs on a GPU.
    """
    from accord.backends.cuda.cupti import recording
    from accord.errors import BackendError

    backend = gpu_of(executor)
    if backend is None:
        raise BackendError("no step of the plan runs on a GPU")
    gpu = backend.gpu
    gpu.enter()
    with recording() as activity:
        watch = Windows(activity.now, backend.name)
        for _ in range(_WARM_UP + runs):
            watch.runs.append(RunWindows(activity.now()))
            with watched(watch):
                executor.run(values)
            watch.runs[-1].end = activity.now()

    plans = {id(e): e.plan for e in _executors(executor)}

    def computes(step: Key) -> bool:
        return isinstance(plans[step[0]].steps[step[1]].kernel, HostKernel)

    return analyse(activity, watch.runs[_WARM_UP:], gpu.name, limits_of(gpu), computes)


def _executors(executor: Executor) -> list[Executor]:
    return [executor, *(e for child in executor.children.values() for e in _executors(child))]
