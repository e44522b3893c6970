"""A piece of advice, and the words that its figures are told in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accord.profile.profile import Profile
    from accord.profile.steps import StepRecord

__all__ = ["Advice", "bandwidth_text", "counted", "named", "names_of", "part_of", "rate_text", "time_text"]


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice.

    Attributes:
        rule: Which rule gave it.
        text: What was found, with its figures, and what to do about it.
        share: Part of the run's time that it is about.
        nodes: The nodes that it is about.
        figures: The numbers in it.
    """

    rule: str
    text: str
    share: float
    nodes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


def named(s: StepRecord) -> str:
    """A step with its kernel."""
    return f"{s.node} ({s.kernel})"


def names_of(steps: Iterable[StepRecord]) -> tuple[str, ...]:
    """The nodes of steps."""
    return tuple(s.node for s in steps)


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number of things."""
    return f"{count} {one}" if count == 1 else f"{count} {many or one + 's'}"


def part_of(p: Profile, seconds: float) -> str:
    """A time against that of a run."""
    return f"{time_text(seconds)} of {time_text(p.total)} ({p.share(seconds):.0%})"


def time_text(seconds: float) -> str:
    """A time in the unit that suits it."""
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def rate_text(per_second: float) -> str:
    """Operations a second."""
    return f"{per_second / 1e9:.3g} GFLOP/s"


def bandwidth_text(per_second: float) -> str:
    """Bytes a second."""
    return f"{per_second / 1e9:.3g} GB/s"
