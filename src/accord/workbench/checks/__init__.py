"""The checks: one file a family of faults."""

from __future__ import annotations

from accord.workbench.lab import Check

__all__ = ["all_checks"]


def all_checks() -> tuple[Check, ...]:
    """All checks, in the order in which they run."""
    from accord.workbench.checks import history, meaning, memory, offsets, surroundings

    return (
        *surroundings.OWN_CODE,
        *meaning.CHECKS,
        *memory.CHECKS,
        *history.CHECKS,
        *surroundings.CHECKS,
        *offsets.CHECKS,
    )
