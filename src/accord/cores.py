"""Work that is shared among the cores while a model loads; runs have a pool of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

__all__ = ["on_all_cores"]

#: Threads at most: what is shared is limited by memory.
_MOST = 8


def on_all_cores(work: Callable[[int], None], count: int) -> None:
    """Call ``work(0)``, ``work(1)`` ... ``work(count - 1)``, each once, in any order, from several threads.

    Args:
        work: What lets go of the interpreter's lock for most of its time, as NumPy does.
        count: How many calls.

    Raises:
        Exception: what a call raised first; the others may then be left out.
    """
    numbers = iter(range(count))  # threads take turns: taking the next one is a single step of the interpreter
    failures: list[Exception] = []

    def serve() -> None:
        try:
            for k in numbers:
                if failures:
                    return
                work(k)
        except Exception as error:  # noqa: BLE001  raised below, in the thread that waits
            failures.append(error)

    helpers = [threading.Thread(target=serve) for _ in range(min(count, len(os.sched_getaffinity(0)), _MOST) - 1)]
    for helper in helpers:
        helper.start()
    serve()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
