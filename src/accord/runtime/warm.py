"""What can be made ready before the first run: measured ways to start kernels, frames, memory, graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from accord.backends.protocol import ChosenLaunch, NativeKernel
from accord.errors import InputError
from accord.ir import dims as D
from accord.plan.plan import Plan, Step
from accord.runtime.executor import Executor

__all__ = ["choices", "example", "run_warm", "tune"]

#: Runs with each shape: a graph is captured when a shape has recurred.
_RUNS = 4


def choices(executor: Executor, keys: Sequence[tuple[int, ...]] = ()) -> list[tuple[Step, ChosenLaunch]]:
    """The launches of kernels that can be started in several ways, with their steps.

    Args:
        executor: Of the plan.
        keys: Values of the plan's symbols; without any, kernels whose sizes are known.
    """
    plan = executor.plan
    found: list[tuple[Step, ChosenLaunch]] = []
    evaluated = [plan.sizes(key).steps for key in keys]
    for index, step in enumerate(plan.steps):
        start = 0
        for phase in step.kernel.phases if isinstance(step.kernel, NativeKernel) else ():
            stop = start + len(phase.dims)
            if isinstance(phase.launch, ChosenLaunch):
                sizes = [e[index][start:stop] for e in evaluated if index in e] if phase.dims else [()]
                with executor.device.active():
                    bound = [phase.launch.bound(s) for s in sizes]
                found += [(step, b) for b in bound if isinstance(b, ChosenLaunch)]
            start = stop
    return found


def tune(executor: Executor, keys: Sequence[tuple[int, ...]] = (), *, wait: bool) -> None:
    """Have the ways to start kernels measured, see :meth:`accord.backends.protocol.Backend.tune`.

    Args:
        executor: Of the plan; bodies of its control flow are included, as far as their sizes are known.
        keys: As for :func:`choices`.
        wait: Return when it is done.
    """
    found: dict[str, list[ChosenLaunch]] = {}
    for step, launch in choices(executor, keys):
        found.setdefault(step.placement.backend, []).append(launch)
    for backend, launches in found.items():
        executor.backends[backend].tune(launches, wait=wait)
    for child in executor.children.values():
        tune(child, wait=wait)


def run_warm(executor: Executor, feeds: Sequence[Sequence[Any]], *, measure: bool) -> None:
    """Have all that runs with inputs of these shapes need.

    Args:
        executor: Of the plan.
        feeds: For each kind of run its inputs, as the executor takes them.
        measure: Measure ways to start kernels.
    """
    if measure:
        sizes = [executor.environment(inputs) for inputs in feeds]
        tune(executor, [tuple(env[s] for s in executor.plan.symbols) for env in sizes], wait=True)
    for runs in (1, _RUNS):  # after the first of each, memory has its place for all of them
        for inputs in feeds:
            for _ in range(runs):
                executor.run(inputs)


def example(plan: Plan, given: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs for a plan: zeros and empty texts where ``given`` has a shape, or the plan says it.

    Raises:
        InputError: a shape is missing.
    """
    found = dict(given)
    for i in plan.inputs:
        slot = plan.slots[i]
        shape = given.get(slot.name, slot.shape)
        left_out = slot.name not in given and i in plan.defaults
        if slot.dtype is None or left_out or not isinstance(shape, (list, tuple)):
            continue
        if not D.is_known(shape):
            sizes = f"{len(shape)} sizes: [{', '.join(map(str, shape))}]"
            raise InputError("its shape is needed for a warm-up", value=slot.name, expected=sizes)
        found[slot.name] = np.full(shape, "", object) if slot.dtype.hasobject else np.zeros(shape, slot.dtype)
    return found
