"""The other side of :mod:`accord.workbench.runner`: a process that is asked, watched, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from accord import errors
from accord.errors import AccordError, ExecutionError

__all__ = ["Remote"]

#: Seconds without an answer after which a process is taken to hang.
LIMIT: Final = 120.0
#: Nanoseconds that the clocks of two processes of one system may differ by: it is one clock.
_APART: Final = 1_000_000
_LINES = 5


class Remote:
    """A process that a candidate runs in.

    Args:
        name: For people.
        folder: For files; also where what the process prints goes.
        threads: For one run; BLAS and OpenMP are told.
        limit: Seconds after which a request that was not answered is given up.
        steady: The C library keeps freed memory: whether it returns a block to the system, to take it back at the next
            call page by page, depends on what happens to lie behind the block.
    """

    def __init__(
        self, name: str, folder: Path, threads: int = 1, limit: float = LIMIT, *, steady: bool = False
    ) -> None:
        self.name = name
        self._limit = limit
        ours, theirs = socket.socketpair()
        self._log = folder / f"{len(list(folder.glob('*.log')))}.log"
        environment = {**os.environ}
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[variable] = str(threads)
        if steady:
            environment |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
        package = str(Path(errors.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, environment.get("PYTHONPATH")]))
        with self._log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "accord.workbench.runner", str(theirs.fileno()), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        self._connection = Connection(ours.detach())
        self._sent = 0

    def send(self, do: str, **request: Any) -> None:
        """Ask; the answer is fetched with :meth:`receive`."""
        self._sent = time.perf_counter_ns()
        try:
            self._connection.send_bytes(json.dumps({"do": do, **request}).encode())
        except (BrokenPipeError, ConnectionError) as error:
            raise self._ended() from error

    def receive(self) -> dict[str, Any]:
        """The answer.

        Raises:
            AccordError: what was asked for failed there, or the process ended, hangs, or has a wrong clock.
        """
        try:
            if not self._connection.poll(self._limit):
                self.close()
                raise ExecutionError(
                    f"{self.name} gave no answer for {self._limit:g} s and was stopped",
                    remedy="Look for a loop without end or a lock; give smaller sizes if it is only slow.",
                )
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error
        received = time.perf_counter_ns()
        if "error" in answer:
            raise _error(answer["error"], self.name)
        if "began" in answer:
            self._check_clock(answer["began"], answer["ended"], received)
        return answer

    def call(self, do: str, **request: Any) -> dict[str, Any]:
        """Ask and wait; errors are those of :meth:`receive`."""
        self.send(do, **request)
        return self.receive()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _check_clock(self, began: int, ended: int, received: int) -> None:
        """What the process timed lies between question and answer; a clock that stops or runs slower falls behind."""
        if not self._sent - _APART <= began <= ended <= received + _APART:
            raise ExecutionError(
                f"the clock in the process of {self.name} is not the clock outside it: its times are worth nothing",
                expected=f"a block within {(received - self._sent) * 1e-9:.6f} s",
                found=f"from {(began - self._sent) * 1e-9:.6f} s to {(ended - self._sent) * 1e-9:.6f} s",
                remedy="Something in the file with the operator, or in its kernel, replaces Python's clock.",
            )

    def _ended(self) -> ExecutionError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        self.close()
        how = f"with code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = f"by signal {signal.Signals(-code).name}"
        text = " | ".join(self._log.read_text(errors="replace").strip().splitlines()[-_LINES:])
        return ExecutionError(
            f"the process of {self.name} ended {how}",
            found=text or None,
            remedy="`accord op check` says at which input, and what it wrote outside its memory.",
        )


def _error(data: dict[str, str], name: str) -> AccordError:
    kind = getattr(errors, data["type"], AccordError)
    facts = {k: v for k, v in data.items() if k not in ("type", "message")}
    made: AccordError = (kind if issubclass(kind, AccordError) else AccordError)(f"{name}: {data['message']}", **facts)
    return made
