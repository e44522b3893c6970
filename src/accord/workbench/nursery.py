"""The process that kernels' processes are forked from.

It has NumPy and Accord loaded, but no user's code and no threads, so each child is fresh and starts in milliseconds.
It ends, and its children with it, when the process that made it closes its end of the channel.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import socket
import subprocess
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from accord.errors import AccordError
from accord.workbench.wire import ClosedError, receive, send

__all__ = ["BROKEN", "Born", "Nursery"]

#: Seconds until the first child may be asked for.
_START = 60.0
#: Bytes of private memory that a kernel's process may have.
_MEMORY = 4 << 30
#: Exit code of a process in which the harness itself failed.
BROKEN = 86
#: Every block from malloc is filled with the complement of this byte, and with it when freed: memory that nobody wrote
#: holds no results of anybody.
_PERTURB = "90"
#: Triton reads its switch when it is imported.
_INTERPRETING = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True)
class Born:
    """A new process.

    Attributes:
        pid: Its number.
        channel: To it.
        page: File of a page that it shares with its parent (see :mod:`accord.workbench.traps`).
        output: File that takes its standard output.
        errors: File that takes its standard error.
    """

    pid: int
    channel: socket.socket
    page: int
    output: int
    errors: int


class Nursery:
    """The parent's side.

    Args:
        interprets: Its children run Triton kernels in Triton's interpreter, and see no GPU.
    """

    def __init__(self, *, interprets: bool = False) -> None:
        if not hasattr(os, "memfd_create"):
            raise AccordError("kernels can be checked on Linux only", found=sys.platform)
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            "MALLOC_PERTURB_": _PERTURB,
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            **(_INTERPRETING if interprets else {}),
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "accord.workbench.nursery", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        self._channel = ours
        self._channel.settimeout(_START)

    def born(self) -> Born:
        """A new process that serves :mod:`accord.workbench.worker`."""
        ours, theirs = socket.socketpair()
        files = [os.memfd_create(name) for name in ("page", "stdout", "stderr")]
        os.ftruncate(files[0], resource.getpagesize())
        with theirs:
            message = self._ask({"do": "fork"}, (theirs.fileno(), *files))
        return Born(message["pid"], ours, *files)

    def buried(self, pid: int) -> int:
        """End a process and return how it ended: its exit code, or less than 0 for a signal."""
        return int(self._ask({"do": "bury", "pid": pid})["status"])

    def close(self) -> None:
        """End it and its children."""
        self._channel.close()
        self._process.wait()

    def _ask(self, message: dict[str, Any], files: tuple[int, ...] = ()) -> dict[str, Any]:
        try:
            send(self._channel, message, files)
            return receive(self._channel)[0]
        except (ClosedError, TimeoutError) as error:
            raise AccordError(
                "no process can be made to run kernels in", found=f"it ended with {self._process.poll()}"
            ) from error


def _serve(channel: socket.socket) -> None:
    """The nursery's own loop."""
    import accord.contract.operator
    import accord.kernels.library
    import accord.runtime.pipeline  # noqa: F401
    from accord.workbench.traps import Trap
    from accord.workbench.worker import work

    if _INTERPRETING.items() <= os.environ.items():
        importlib.import_module("accord.kernels.interpreter")
        importlib.import_module("triton.language")
        importlib.import_module("triton.runtime.interpreter")
    trap = Trap()
    while True:
        message, files = receive(channel)
        if message["do"] == "bury":
            send(channel, {"status": _buried(message["pid"])})
            continue
        pid = os.fork()
        if pid == 0:
            channel.close()
            own, page, output, errors = files
            os.dup2(output, 1)
            os.dup2(errors, 2)
            _tie_to_parent()
            trap.set(page)
            try:
                work(socket.socket(fileno=own))
            except BaseException:  # noqa: BLE001 - the parent reads what is written here
                traceback.print_exc()
                os._exit(BROKEN)
            os._exit(0)
        for f in files:
            os.close(f)
        send(channel, {"pid": pid})


def _tie_to_parent() -> None:
    """Die with the nursery, leave no core file, take no more memory than a kernel may need."""
    import ctypes

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = min(_MEMORY, os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() // 2)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _buried(pid: int) -> int:
    """Exit status of a child; one that still runs after it closed its channel is ended."""
    import time

    for _ in range(100):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    with contextlib.suppress(ClosedError, KeyboardInterrupt):
        _serve(socket.socket(fileno=int(sys.argv[1])))
