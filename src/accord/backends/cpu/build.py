"""Modules → blobs: compiling and linking, one module or many at once on all cores."""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable, Sequence

from accord.backends.cpu.compiler import Compiler
from accord.backends.cpu.link import Blob, link, undefined
from accord.backends.cpu.machine import Machine
from accord.backends.cpu.support import FUNCTIONS, support_text
from accord.errors import CompileError

__all__ = ["build", "build_all"]

_SUPPORT: dict[str, bytes] = {}
_SUPPORT_LOCK = threading.Lock()


def build(text: str, machine: Machine, compiler: Compiler | None = None) -> Blob:
    """The blob of one module.

    Args:
        text: LLVM text.
        machine: What to compile for.
        compiler: One for that machine, to use again.

    Raises:
        CompileError: LLVM refuses the text, or it calls a function that does not exist.
    """
    compiler = compiler or Compiler(machine)
    code = compiler.object_code(text)
    missing = undefined(code)
    if not missing:
        return link([code])
    if not missing <= FUNCTIONS:
        raise CompileError(
            "the generated code calls functions that do not exist", found=", ".join(sorted(missing - FUNCTIONS))
        )
    with _SUPPORT_LOCK:
        support = _SUPPORT.get(machine.key)
        if support is None:
            support = _SUPPORT[machine.key] = compiler.object_code(support_text())
    return link([code, support])


class _Batch:
    """Texts that wait for a compiler, longest first, so that no long one is left for the end."""

    def __init__(self, count: int, machine: Machine, done: Callable[[int, Blob], None]) -> None:
        self.machine = machine
        self.done = done
        self.blobs: list[Blob | None] = [None] * count
        self.failure: BaseException | None = None
        self._waiting: list[tuple[int, int, str]] = []
        self._open = True
        self._changed = threading.Condition()

    def add(self, index: int, text: str) -> None:
        with self._changed:
            heapq.heappush(self._waiting, (-len(text), index, text))
            self._changed.notify()

    def close(self) -> None:
        """No more texts will come."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def stop(self, failure: BaseException) -> None:
        """Leave the rest undone."""
        with self._changed:
            self.failure = self.failure or failure
            self._waiting.clear()
        self.close()

    def _next(self) -> tuple[int, str] | None:
        with self._changed:
            while not self._waiting and self._open:
                self._changed.wait()
            return heapq.heappop(self._waiting)[1:] if self._waiting else None

    def work(self) -> None:
        """Compile until nothing is left."""
        try:
            compiler = Compiler(self.machine)
            while (job := self._next()) is not None:
                index, text = job
                blob = build(text, self.machine, compiler)
                self.blobs[index] = blob
                self.done(index, blob)
        except BaseException as error:  # noqa: BLE001  raised again by the thread that waits
            self.stop(error)


def build_all(
    texts: Sequence[Callable[[], str]], machine: Machine, done: Callable[[int, Blob], None], threads: int | None = None
) -> list[Blob]:
    """Blobs of many modules.

    Args:
        texts: Write the modules; called in order by the calling thread, while other threads compile.
        machine: What to compile for.
        done: Called by some thread as soon as a module is ready, with its number.
        threads: How many compile; None: as many as there are cores.

    Raises:
        CompileError: see :func:`build`; the rest is then not compiled.
    """
    batch = _Batch(len(texts), machine, done)
    count = min(threads or machine.cores, len(texts))
    helpers = [threading.Thread(target=batch.work, name=f"accord-compile-{k}") for k in range(1, count)]
    try:
        with contextlib.suppress(RuntimeError):  # the system has no more threads: those that there are do it all
            for h in helpers:
                h.start()
        for k, write in enumerate(texts):
            if batch.failure is not None:
                break
            batch.add(k, write())
        batch.close()
        batch.work()
    except BaseException as error:
        batch.stop(error)
        raise
    finally:
        for h in helpers:
            if h.ident is not None:
                h.join()
    if batch.failure is not None:
        raise batch.failure
    return [b for b in batch.blobs if b is not None]
