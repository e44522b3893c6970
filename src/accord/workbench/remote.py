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
#: What two clocks may differ by over a block: this part, and so many seconds for handing messages over.
_PART, _SECONDS = 0.1, 0.05
_LINES = 5


class Remote:
    """A process that a candidate runs in.

    Args:
        name: For people.
        folder: For files; also where what the process prints goes.
        threads: For one run; BLAS and OpenMP are told.
        limit: Seconds after which a request that was not answered is given up.
    """

    def __init__(self, name: str, folder: Path, threads: int = 1, limit: float = LIMIT) -> None:
        self.name = name
        self._limit = limit
        ours, theirs = socket.socketpair()
        self._log = folder / f"{len(list(folder.glob('*.log')))}.log"
        environment = {**os.environ}
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[variable] = str(threads)
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
        #: Seconds by the clock here, and as the process says, of all blocks.
        self._waited = self._claimed = 0.0
        self._sent = 0.0

    def send(self, do: str, **request: Any) -> None:
        """Ask; the answer is fetched with :meth:`receive`."""
        self._sent = time.perf_counter()
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
        waited = time.perf_counter() - self._sent
        if "error" in answer:
            raise _error(answer["error"], self.name)
        if "began" in answer:
            self._check_clock(waited, (answer["ended"] - answer["began"]) * 1e-9)
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

    def _check_clock(self, waited: float, claimed: float) -> None:
        """Hold what the process says that passed against what passed here."""
        self._waited += waited
        self._claimed += claimed
        allowed = _PART * self._waited + _SECONDS
        if not -allowed <= self._waited - self._claimed <= 2 * allowed + _PART * self._waited:
            raise ExecutionError(
                f"the clock in the process of {self.name} is not the clock outside it: its times are worth nothing",
                expected=f"{self._waited:.3f} s",
                found=f"{self._claimed:.3f} s",
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
