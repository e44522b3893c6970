"""Whose error it is that a step raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from accord.backends.memory import DeviceArray
from accord.errors import AccordError, ExecutionError
from accord.plan.plan import Step
from accord.runtime.shortage import no_memory

__all__ = ["of_step"]


@contextmanager
def of_step(step: Step, arguments: Callable[[], Sequence[Any]]) -> Iterator[None]:
    """Errors within become those of a step.

    Args:
        step: The step.
        arguments: Gives what it is computed from.
    """
    placement = step.placement
    try:
        yield
    except AccordError as error:
        if error.node is None:
            error.node, error.op = placement.node, placement.op
        raise
    except MemoryError as error:
        failure = no_memory(error)
        failure.node, failure.op = placement.node, placement.op
        raise failure from error
    except Exception as error:
        shapes = ", ".join(_describe(a) for a in arguments())
        raise ExecutionError(
            f"{placement.backend} kernel failed: {type(error).__name__}: {error}",
            node=placement.node,
            op=placement.op,
            found=f"inputs {shapes}",
        ) from error


def _describe(value: Any) -> str:
    if isinstance(value, (np.ndarray, DeviceArray)):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__
