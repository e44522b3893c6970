"""The process that a candidate is timed in, and the process that judges it: ``python -m accord.workbench.runner``.

It answers requests that come as JSON through a socket. The clock is taken before any file of the user's is imported;
who asked holds what it says against a clock of its own.
"""

from __future__ import annotations

import time

#: The clock, before anything else was imported.
CLOCK = time.perf_counter_ns
#: What must be the same afterwards: kernels that replace the clock are found by it, and by the other process's clock.
_TIMERS = {
    n: getattr(time, n) for n in dir(time) if n.startswith(("perf_counter", "monotonic", "time", "process_time"))
}

import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import secrets  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Mapping, Sequence  # noqa: E402
from multiprocessing.connection import Connection  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from accord.contract.contract import Contract  # noqa: E402
from accord.errors import AccordError, ExecutionError  # noqa: E402
from accord.workbench.arrays import Array, aligned, read_arrays, write_arrays  # noqa: E402

__all__ = ["CLOCK", "main"]

#: Calls before times are taken: at least so many, and for so long.
_WARM_UP, _WARM_UP_NS = 5, 100_000_000
#: Sets of inputs whose bytes together are more than every cache holds, so that a set has left it when its turn comes.
_COLD_BYTES = 96 << 20
_MOST_SETS = 4096
#: A result that was not there when the kernel returned is looked at again after so many seconds.
_LATER = 0.05


class Runner:
    """Answers requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contract: Contract | None = None
        self.author: Any = None
        self.candidate: Any = None
        self.timed: _Timed | None = None
        self.calibrator: Any = None

    # the process that judges

    def describe(self, load: Sequence[str], op: str | None) -> dict[str, Any]:
        """Contracts of an operator, or of all that the files declare."""
        from accord.contract.serial import as_json
        from accord.workbench.author import code_digest
        from accord.workbench.loading import find_contract, load_files

        loaded = load_files(load)
        contracts = [find_contract(op)] if op is not None else loaded
        self.contract = contracts[0] if contracts else None
        digests = [{k.name: code_digest(c, k) for k in c.kernels} for c in contracts]
        return {"contracts": [as_json(c) for c in contracts], "digests": digests}

    def prepare(
        self, sizes: Mapping[str, Sequence[int]], attributes: Mapping[str, Any], dtype: str | None, seed: int
    ) -> dict[str, Any]:
        """Draw inputs, compute what is right, write both; see :meth:`accord.workbench.author.Author.prepare`."""
        from accord.workbench.arguments import make_arguments
        from accord.workbench.author import Author

        arguments = make_arguments(_known(self.contract), sizes, attributes, dtype, seed)
        self.author = Author(_known(self.contract), arguments, self.folder)
        prepared: dict[str, Any] = self.author.prepare()
        return prepared

    def judge(self, name: str) -> dict[str, Any]:
        """Judge what another process wrote."""
        return {"wrong": self.author.judge(name)}

    def architectures(self) -> dict[str, Any]:
        """Compile the kernels for GPUs, for every architecture; no GPU is needed."""
        from accord.kernels.architectures import compile_report

        contract = _known(self.contract)
        compiled = [
            {"kernel": k.name, "architecture": c.architecture, "faults": list(c.faults), "spills": c.spills}
            for k in contract.kernels
            if k.kind in ("triton", "cuda")
            for c in compile_report(contract, k)
        ]
        return {"kernels": [k.name for k in contract.kernels if k.device == "cuda"], "compiled": compiled}

    # the process that is timed

    def open(self, load: Sequence[str], op: str, spec: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Make the candidate and call it for the first time; its outputs are written for the judge."""
        from accord.workbench.candidate import open_candidate

        if spec["what"] != "peer":
            from accord.workbench.loading import find_contract, load_files

            load_files(load)
            self.contract = find_contract(op)
        inputs = read_arrays(self.folder / "inputs")
        began = CLOCK()
        self.candidate = open_candidate(spec, self.contract, self.folder)
        made = CLOCK()
        call = self.candidate.call(inputs)
        ready = CLOCK()
        result = call()
        called = CLOCK()
        outputs = _copied(call.outputs(result))
        write_arrays(self.folder / key, [*inputs, *outputs])
        self.timed = _Timed(self.candidate, inputs, self.contract, self.folder, key)
        _check_timers()
        return {"load": (made - began) * 1e-9, "first": (called - ready) * 1e-9, "facts": self.candidate.facts}

    def warm(self) -> dict[str, Any]:
        """Call the candidate on the shapes that are measured until what is done once has been done."""
        seconds = _ready(self.timed).warm_up() * 1e-9
        return {"seconds": seconds, "facts": self.candidate.facts}

    def run(self, runs: int, cold: bool, audits: int, calibrate: bool = False) -> dict[str, Any]:
        """Time some runs, and as many of each calibration kernel."""
        found = _ready(self.timed).block(runs, cold, audits)
        if calibrate:
            for kind in ("arithmetic", "copy"):
                found[kind] = self._calibrated(kind, runs)
            found["ended"] = CLOCK()
        _check_timers()
        return found

    def calibrate(self, nbytes: int, seconds: float, threads: int, size: Mapping[str, Any] | None) -> dict[str, Any]:
        """Make the calibration kernels, of a size that is given or that fits a kernel."""
        from accord.workbench.calibration import Calibrator, as_calibration

        if size is not None:
            self.calibrator = Calibrator(as_calibration(size))
        else:
            self.calibrator = Calibrator.sized(nbytes, seconds, threads, _middle)
        return {"size": self.calibrator.size.data()}

    def _calibrated(self, kind: str, runs: int) -> list[int]:
        times = []
        for _ in range(3):
            self.calibrator.run(kind)
        for _ in range(runs):
            start = CLOCK()
            self.calibrator.run(kind)
            times.append(CLOCK() - start)
        return times


class _Timed:
    """A candidate with the sets of inputs that it is timed on."""

    def __init__(
        self, candidate: Any, inputs: list[Array | None], contract: Contract | None, folder: Path, key: str
    ) -> None:
        self._candidate = candidate
        self._folder, self._key = folder, key
        self._original = [None if x is None else x.copy() for x in inputs]
        self._random = np.random.default_rng(secrets.randbits(64))
        self._free = [i for i, x in enumerate(inputs) if x is not None and x.size > 1 and _may_change(contract, i, x)]
        self._sets: list[tuple[list[Array | None], Any]] = [(inputs, candidate.call(inputs))]
        self._cold: list[tuple[list[Array | None], Any]] | None = None
        self._audits = 0

    def warm_up(self) -> int:
        """See :meth:`Runner.warm`; nanoseconds that the fastest call took."""
        call, until, count, best = self._sets[0][1], CLOCK() + _WARM_UP_NS, 0, 1 << 62
        while count < _WARM_UP or CLOCK() < until:
            start = CLOCK()
            call()
            best = min(best, CLOCK() - start)
            count += 1
        return best

    def block(self, runs: int, cold: bool, audits: int) -> dict[str, Any]:
        """Time runs; some of them, which nobody knows of before, are looked at closely."""
        sets = self._cold_sets() if cold else self._sets
        watched = set(self._random.choice(runs, min(audits, runs), replace=False).tolist())
        times, written = [], []
        collecting = gc.isenabled()
        gc.disable()
        try:
            if not cold:
                sets[0][1]()
            began = CLOCK()
            for i in range(runs):
                inputs, call = sets[i % len(sets)]
                fresh = i in watched and self._audits % 2 == 0
                if fresh:
                    self._renew(inputs, call)
                else:
                    self._touch(inputs)
                start = CLOCK()
                result = call()
                took = CLOCK() - start
                if i in watched:
                    written.append(self._audit(inputs, call, result))
                    if not cold:
                        call()  # looking has filled the caches with something else
                if not fresh:
                    times.append(took)
            ended = CLOCK()
        finally:
            if collecting:
                gc.enable()
        return {"began": began, "ended": ended, "times": times, "audits": written}

    def _cold_sets(self) -> list[tuple[list[Array | None], Any]]:
        """So many copies of the inputs that one is in no cache when its turn comes."""
        if self._cold is None:
            outputs = read_arrays(self._folder / "expected")
            nbytes = sum(x.nbytes for x in (*self._original, *outputs) if x is not None)
            count = max(2, min(_MOST_SETS, -(-_COLD_BYTES // max(nbytes, 1))))
            self._cold = []
            for _ in range(count):
                inputs = [None if x is None else _copy(x) for x in self._original]
                self._cold.append((inputs, self._candidate.call(inputs)))
        return self._cold

    def _touch(self, inputs: list[Array | None]) -> None:
        """Change one element of each input, so that no content comes twice."""
        for i in self._free:
            x, pool = inputs[i], self._original[i]
            if x is not None and pool is not None:
                at, source = self._random.integers(0, x.size, 2)
                x.reshape(-1)[at] = pool.reshape(-1)[source]

    def _renew(self, inputs: list[Array | None], call: Any) -> None:
        """Change all elements, and spoil what the kernel has to write."""
        for i in self._free:
            x, pool = inputs[i], self._original[i]
            if x is not None and pool is not None:
                x.reshape(-1)[:] = np.roll(pool.reshape(-1), int(self._random.integers(1, x.size)))
        call.poison()

    def _audit(self, inputs: list[Array | None], call: Any, result: Any) -> str:
        """Write what a timed run was given and gave, as it is at this moment."""
        outputs = _copied(call.outputs(result))
        name = f"{self._key}-audit{self._audits}"
        self._audits += 1
        write_arrays(self._folder / name, [*inputs, *outputs])
        time.sleep(_LATER)
        later = _copied(call.outputs(result))
        if any(a.tobytes() != b.tobytes() for a, b in zip(outputs, later, strict=True)):
            raise ExecutionError(
                "the result changed after the kernel had returned: its time is not the time of the work",
                expected="outputs that are complete when the kernel returns",
                found="memory that something wrote to afterwards",
                remedy="Wait for threads and streams before returning.",
            )
        return name


def _may_change(contract: Contract | None, i: int, x: Array) -> bool:
    """Whether other elements of the same input may take the place of some."""
    if x.dtype.kind not in "iub":
        return (
            contract is None
            or not contract.semantic.inputs[min(i, len(contract.semantic.inputs) - 1)].values.increasing
        )
    if contract is None or contract.semantic.examples is not None or i >= len(contract.semantic.inputs):
        return False  # indices, shapes, lengths: nobody knows which of them go together
    p = contract.semantic.inputs[i]
    return p.sizes is not None and not p.values.increasing


def _copy(x: Array) -> Array:
    made = aligned(x.shape, x.dtype)
    made[...] = x
    return made


def _copied(outputs: Sequence[Any]) -> list[Array]:
    """The bytes of outputs as they are now.

    Raises:
        ExecutionError: an output is no plain array, so that work may be left for whoever looks at it.
    """
    found = []
    for i, x in enumerate(outputs):
        if type(x) is not np.ndarray:
            raise ExecutionError(
                f"output {i} is no NumPy array: its elements may be computed when somebody asks for them",
                expected="numpy.ndarray, and no class derived from it",
                found=f"{type(x).__module__}.{type(x).__qualname__}",
                remedy="Return plain arrays whose elements are computed.",
            )
        found.append(x.copy())
    return found


def _check_timers() -> None:
    """Raise if a clock was replaced."""
    for name, timer in _TIMERS.items():
        if getattr(time, name, None) is not timer:
            raise ExecutionError(
                f"time.{name} was replaced: times that a kernel can set are no times",
                expected="Python's own clock",
                found=repr(getattr(time, name, None)),
                remedy="Remove the patch (a mock, or a library that freezes time) from the file with the operator.",
            )


def _middle(call: Callable[[], None], runs: int = 15) -> float:
    """Seconds of the middle call."""
    times = []
    for _ in range(runs):
        start = CLOCK()
        call()
        times.append(CLOCK() - start)
    return sorted(times)[runs // 2] * 1e-9


def _known(contract: Contract | None) -> Contract:
    if contract is None:
        raise AccordError("no operator was named")
    return contract


def _ready(timed: _Timed | None) -> _Timed:
    if timed is None:
        raise AccordError("no candidate was made")
    return timed


# serving

_FACTS = ("node", "op", "value", "expected", "found", "remedy")
_REQUESTS = ("describe", "prepare", "judge", "architectures", "open", "warm", "run", "calibrate")


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, AccordError):
        facts = {n: str(v) for n in _FACTS if (v := getattr(error, n)) is not None}
        return {"type": type(error).__name__, "message": error.message, **facts}
    return {"type": "ExecutionError", "message": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def main(arguments: Sequence[str]) -> None:
    """Answer requests until the other side closes.

    Args:
        arguments: Number of the open socket, and the folder for files.
    """
    connection = Connection(int(arguments[0]))
    runner = Runner(Path(arguments[1]))
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            break
        name = request.pop("do")
        try:
            if name not in _REQUESTS:
                raise AccordError(f"there is no request '{name}'")
            answer = getattr(runner, name)(**request)
        except Exception as error:  # noqa: BLE001  a kernel may raise anything; who asked decides
            answer = {"error": _failure(error)}
        connection.send_bytes(json.dumps(answer).encode())
    sys.stdout.flush()
    os._exit(0)  # a kernel's threads do not keep the process


if __name__ == "__main__":
    main(sys.argv[1:])
