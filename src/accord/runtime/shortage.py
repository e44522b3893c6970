"""Errors of runs and models for which there is not enough memory: what was asked, what there is, what takes most."""

from __future__ import annotations

import math
from collections.abc import Mapping

from accord.backends.memory import HOST, MemoryFullError
from accord.errors import ExecutionError
from accord.plan.plan import Plan, Storage

__all__ = ["no_memory", "no_memory_for_constants", "no_memory_for_run"]

#: Tensors that an error names.
_MOST_NAMED = 3


def no_memory(error: MemoryError) -> ExecutionError:
    """The error of a run in which something asked for too much."""
    return ExecutionError(
        "there was not enough memory for the run",
        found=str(error) or None,
        remedy="Give smaller inputs, or split the batch; the model can go on running others.",
    )


def no_memory_for_run(error: MemoryError, plan: Plan, key: tuple[int, ...]) -> ExecutionError:
    """The same, with the largest tensors of a plan for the values ``key`` of its symbols."""
    failure = no_memory(error)
    space = error.space if isinstance(error, MemoryFullError) else HOST
    shapes = {
        i: shape
        for i, shape in plan.sizes(key).shapes.items()
        if plan.slots[i].root == i and plan.slots[i].space == space and plan.slots[i].storage is not Storage.CONSTANT
    }
    if shapes:
        failure.found = f"{failure.found or 'no memory'}; the largest tensors are {_largest(plan, shapes)}"
    return failure


def no_memory_for_constants(error: MemoryError, plan: Plan, space: str) -> ExecutionError:
    """The error of a model whose constants do not fit into a memory."""
    shapes = {i: a.shape for i, a in plan.constants.items() if plan.slots[i].space == space}
    return ExecutionError(
        "there was not enough memory for the model's constants",
        found=f"{error}; the largest are {_largest(plan, shapes)}",
        remedy="Load it for a device with more memory, or free some (`trim` of other models and sessions).",
    )


def _largest(plan: Plan, shapes: Mapping[int, tuple[int, ...]]) -> str:
    """The slots that take most memory, for people."""
    slots = plan.slots
    nbytes = {i: math.prod(n) * d.itemsize for i, n in shapes.items() if (d := slots[i].dtype) is not None}
    first = sorted(nbytes, key=lambda i: -nbytes[i])[:_MOST_NAMED]
    return ", ".join(f"'{slots[i].name}' {slots[i].dtype}{list(shapes[i])} of {nbytes[i]:,} bytes" for i in first)
