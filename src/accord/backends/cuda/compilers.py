"""Processes that compile kernels side by side: much of Triton is Python, of which a process runs one thread at a time.

One process imports Triton while the model is still being read. It has no GPU and a single thread, so that others can be
forked from it, which serve a variant at a time and end when nobody holds the other end of their channel.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Final

from accord.backends.cuda.code import Binary, Variant, WrittenText, binary_of, compile_variant
from accord.backends.cuda.lines import HEAD
from accord.errors import AccordError, CompileError

__all__ = ["Compilers", "compile_all", "compilers"]

#: Variants that are worth processes of their own; fewer are compiled by threads of this one.
_WORTH: Final = 3
#: Processes at most.
_MOST: Final = 16
#: A kernel that nobody runs. Compiling it takes a process through what it does only once: imports of Triton and of its
#: back end, a digest of its files, LLVM's tables.
_FIRST: Final = f"""{HEAD}@triton.jit
def first(a, b):
    at = tl.arange(0, 32)
    tile = tl.load(a + at[:, None] * 32 + at[None, :])
    total = tl.dot(tile, tile)
    tl.store(b + at, tl.sum(tl.exp(total - tl.max(total, 1)[:, None]), 1))
"""


class Compilers:
    """The processes, seen from the one that wants machine code.

    Args:
        lowly: They yield to everything else on the machine.
    """

    def __init__(self, *, lowly: bool = False) -> None:
        self._control, theirs = socket.socketpair()
        path = os.pathsep.join(p for p in sys.path if p)
        environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(int(lowly))],
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt at the terminal is for the process that wants the code
            )

    def worker(self) -> Worker:
        """A new process that compiles."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        return Worker(Connection(ours.detach()))

    def close(self) -> None:
        """End the first process; the others end with their channels."""
        self._control.close()
        self._process.kill()
        self._process.wait()


class Worker:
    """One process that compiles."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel

    def compile(self, variant: Variant, target: int) -> Binary:
        """Machine code of a variant.

        Raises:
            CompileError: the kernel does not compile.
            OSError: the process is gone.
        """
        stored = Variant(variant.kernel.as_stored(), *variant.settings)
        try:
            self._channel.send((stored, target))
            made = self._channel.recv()
        except EOFError as error:
            raise ConnectionError from error
        if isinstance(made, Binary):
            return made
        message, facts = made
        raise CompileError(message, **facts)

    def close(self) -> None:
        """End it."""
        self._channel.close()


_LOCK = threading.Lock()
_SHARED: list[Compilers] = []
_USERS = [0]


@contextlib.contextmanager
def compilers() -> Iterator[Compilers | None]:
    """The processes that compile for whoever is inside; None where processes cannot be started."""
    with _LOCK:
        if not _SHARED:
            # without them everything is slower, but right
            with contextlib.suppress(OSError):
                _SHARED.append(Compilers())
        _USERS[0] += 1
        shared = _SHARED[0] if _SHARED else None
    try:
        yield shared
    finally:
        with _LOCK:
            _USERS[0] -= 1
            gone = _SHARED[:] if not _USERS[0] else []
            if gone:
                _SHARED.clear()
        for one in gone:
            one.close()


def compile_all(variants: Sequence[Variant], target: int) -> None:
    """Compile variants that are in no cache, several at a time, and have their machine code in memory.

    Raises:
        BackendError: Triton is needed and not installed.
        CompileError: a kernel does not compile.
    """
    if len(variants) < _WORTH:
        for variant in variants:
            binary_of(variant, target)
        return
    with compilers() as shared:
        serve_all(shared, variants, target)


def serve_all(
    shared: Compilers | None,
    variants: Sequence[Variant],
    target: int,
    *,
    share: float = 1.0,
    failures: dict[Variant, AccordError] | None = None,
    stopped: Callable[[], bool] = bool,
) -> None:
    """Compile variants, in as many processes as there are cores.

    Args:
        shared: Makes the processes; without it, threads of this one compile.
        variants: What to compile.
        target: 90 for sm_90.
        share: Part of the cores to use.
        failures: Takes what does not compile; None: it is raised.
        stopped: Asked between variants whether the rest is to be left out.

    Raises:
        BackendError: Triton is needed and not installed.
        CompileError: a kernel does not compile; the others may then be left out.
    """
    from accord.backends.cpu.machine import usable_cores

    # the longest first, so that none is left for the end; threads take turns: taking one is a step of the interpreter
    lengths = {kernel: len(kernel.text()) for kernel in {v.kernel for v in variants}}
    rest = iter(sorted(variants, key=lambda v: -lengths[v.kernel]))
    raised: list[Exception] = []

    def serve() -> None:
        worker: Worker | None = None
        try:
            with contextlib.suppress(OSError):
                worker = None if shared is None else shared.worker()
            for variant in rest:
                if raised or stopped():
                    return
                try:
                    worker = _served(worker, variant, target)
                except AccordError as error:
                    if failures is None:
                        raise
                    failures[variant] = error
        except Exception as error:  # noqa: BLE001  raised below, in the thread that waits
            raised.append(error)
        finally:
            if worker is not None:
                worker.close()

    count = min(len(variants), max(1, int(share * usable_cores())), _MOST)
    threads = [threading.Thread(target=serve) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def _served(worker: Worker | None, variant: Variant, target: int) -> Worker | None:
    """Compile one variant; the worker for the next, None if it is gone and this process has to do it."""
    if worker is None or variant.kernel.foreign:  # others know nothing of what the user declared in this process
        binary_of(variant, target)
        return worker
    try:
        binary_of(variant, target, worker.compile)
    except OSError:
        worker.close()
        return _served(None, variant, target)
    return worker


# the other side


def _main(channel: int, *, lowly: bool) -> None:
    """The first process: it forks others until its channel ends."""
    if lowly:
        os.nice(19)
    _warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how the others ended
    with socket.socket(fileno=channel) as control:
        while True:
            data, files, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                return
            if os.fork() == 0:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the assembler is waited for
                try:
                    _work(Connection(files[0]))
                finally:
                    os._exit(0)
            os.close(files[0])


def _warm_up() -> None:
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # what its cache holds would teach nothing
    kernel = WrittenText("first", ("f16", "f32"), refusing=False, written=_FIRST)
    try:
        kernel.compile(Variant(kernel, (), (), wide=False, aligned=True, warps=4, stages=2), 90)
    except (AccordError, ImportError):  # the first variant says what is wrong
        pass
    finally:
        del os.environ["TRITON_ALWAYS_COMPILE"]


def _work(channel: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            variant, target = channel.recv()
            try:
                made: object = compile_variant(variant, target)
            except CompileError as error:
                made = error.message, {n: getattr(error, n) for n in ("op", "found", "remedy")}
            except Exception as error:  # noqa: BLE001  the compiler's own, of any kind
                made = f"{type(error).__name__}: {error}", {}
            channel.send(made)


if __name__ == "__main__":
    _main(int(sys.argv[1]), lowly=sys.argv[2] == "1")
