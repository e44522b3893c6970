"""Whose error it is that a step raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from accord.backends.memory import DeviceArray
from accord.errors import AccordError, ExecutionError
from accord.plan.plan import Step
from accord.runtime.shortage import no_memory

__all__ = ["blame"]


def blame(step: Step, error: Exception, arguments: Sequence[Any]) -> NoReturn:
    """Raise ``error`` as one of a step that is computed from ``arguments``.

    Raises:
        AccordError: always; ``error`` itself if it is one.
    """
    placement = step.placement
    if isinstance(error, AccordError):
        if error.node is None:
            error.node, error.op = placement.node, placement.op
        raise error
    if isinstance(error, MemoryError):
        failure = no_memory(error)
    else:
        shapes = ", ".join(_describe(a) for a in arguments)
        message = f"{placement.backend} kernel failed: {type(error).__name__}: {error}"
        failure = ExecutionError(message, found=f"inputs {shapes}")
    failure.node, failure.op = placement.node, placement.op
    raise failure from error


def _describe(value: Any) -> str:
    if isinstance(value, (np.ndarray, DeviceArray)):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__
