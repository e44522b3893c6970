"""How a model is compiled."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from accord.errors import AccordError
from accord.model.limits import Limits

__all__ = ["MAX_LEVEL", "PRECISIONS", "Options", "disabled_tuple", "thread_count"]

#: The highest optimisation level.
MAX_LEVEL = 3
#: What a float32 model may be computed in.
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is compiled.

    Attributes:
        device: "cpu", "cuda", "cuda:1", "null", or what an installed backend serves.
        level: 0 (rewrite nothing) to 3 (all rules).
        disabled_rules: Names of rules that must not run.
        strict: A node that only a fall-back backend can run is an error.
        threads: Threads for one run; None: as many as the process may use.
        stop_after: Apply at most this many patches (for finding one at fault).
        reference: Use the reference backend only.
        base_dir: Folder of external data; None: the folder of the model's path.
        limits: How large the model may be; None: the defaults of :class:`accord.model.limits.Limits`.
        precision: What a float32 model may be computed in; see :func:`accord.load`.
        choices: Pairs of a node and the alternative that its kernel shall take; other nodes follow the rule. None: what
            ``accord tune`` has found for this model, if it has.
    """

    device: str = "cpu"
    level: int = MAX_LEVEL
    disabled_rules: tuple[str, ...] = ()
    strict: bool = False
    threads: int | None = None
    stop_after: int | None = None
    reference: bool = False
    base_dir: str | os.PathLike[str] | None = None
    limits: Limits | None = None
    precision: str = "float32"
    choices: tuple[tuple[str, str], ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.level <= MAX_LEVEL:
            raise AccordError("unknown optimisation level", expected=f"0 to {MAX_LEVEL}", found=self.level)
        if self.precision not in PRECISIONS:
            raise AccordError("unknown precision", expected=" or ".join(PRECISIONS), found=self.precision)
        if self.disabled_rules:
            from accord.passes.phases import rule_names  # not before it is needed: rules need the graph's library

            unknown = set(self.disabled_rules) - set(rule_names())
            if unknown:
                raise AccordError(
                    f"unknown rule {', '.join(sorted(unknown))}", expected=f"names among {', '.join(rule_names())}"
                )


def thread_count(requested: int | None) -> int:
    """Threads to use: what was asked for, else what affinity and the container's CPU quota allow.

    Raises:
        AccordError: fewer than one was asked for.
    """
    from accord.backends.cpu.machine import usable_cores

    if requested is None:
        return usable_cores()
    if requested < 1:
        raise AccordError("the number of threads must be at least 1", found=requested)
    return requested


def disabled_tuple(rules: Collection[str] | str) -> tuple[str, ...]:
    """Rule names as a tuple; a single name may be given as a string."""
    return (rules,) if isinstance(rules, str) else tuple(rules)
