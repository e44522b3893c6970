"""Advice in words. Each piece follows from figures of a profile, which it names; if nothing stands out, there is none.

A rule is a function from a profile to pieces of advice. What is worth a word is a share of the run's time: whoever
follows it can win no more than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from accord.backends.cpu.machine import machine
from accord.profile.gpu_advice import RULES as GPU_RULES
from accord.profile.steps import StepRecord
from accord.profile.words import Advice, bandwidth_text, counted, named, names_of, part_of, rate_text, time_text

if TYPE_CHECKING:
    from accord.profile.profile import Profile

__all__ = ["Advice", "advise"]

#: Share of the run that a step must take to be worth a word of its own.
_HOT: Final = 0.10
#: The same for what can be avoided altogether: fall-backs and copies.
_AVOIDABLE: Final = 0.05
#: Share of the run for what many small causes add up to.
_MANY: Final = 0.20
#: A step below this part of what the machine can is slow; above the other, nothing but less work can help.
_SLOW, _GOOD = 0.5, 0.7
#: Shorter steps are mostly start and end.
_TINY: Final = 2e-6
#: Share of the run outside its steps.
_OUTSIDE: Final = 0.15
_MICROSECOND: Final = 1e-6
#: Times of a run that are worth no word.
_NEGLIGIBLE: Final = 20e-6
#: Speed-up for each further thread below which threads are not worth their cores.
_SCALES: Final = 0.3
#: The middle run is this many times as long as the least: something else was running.
_DISTURBED: Final = 1.3
#: Vectors that are filled no further than this explain a slow product.
_FILLED: Final = 0.75
#: Nodes named as examples.
_EXAMPLES: Final = 3
_CONTRACTIONS: Final = frozenset({"Conv", "MatMul", "Gemm"})


def advise(profile: Profile) -> list[Advice]:
    """All advice, what concerns most of the time first."""
    rules = (*_ANYWHERE, *(_HOST_RULES if profile.device is None else GPU_RULES))
    return sorted((a for rule in rules for a in rule(profile)), key=lambda a: -a.share)


# rules


def _fallbacks(p: Profile) -> Iterator[Advice]:
    """Steps that only a slow backend could run."""
    groups: dict[tuple[str, str, str], list[StepRecord]] = {}
    for s in p.steps:
        if s.fallback:
            groups.setdefault((s.op, s.backend, s.reason), []).append(s)
    for (op, backend, reason), steps in groups.items():
        seconds = sum(s.median for s in steps)
        share = p.share(seconds)
        if share < _AVOIDABLE:
            continue
        known = [s.bound.seconds for s in steps if s.bound is not None]
        least = f" The machine needs {time_text(sum(known))} for its bytes." if known else ""
        yield Advice(
            "fallback",
            f"{op} runs on the slow backend '{backend}' in {counted(len(steps), 'step')} and takes "
            f"{part_of(p, seconds)}, because {reason}.{least} Give the operator a kernel, or write it in operators "
            f"that have one; --strict makes a fall-back an error.",
            share,
            names_of(steps),
            {"seconds": seconds, "reason": reason},
        )


def _slow_steps(p: Profile) -> Iterator[Advice]:
    """Steps far below what the machine can, with what in their shapes explains it."""
    for s in p.steps:
        share, efficiency = p.share(s.median), s.efficiency
        if s.fallback or s.is_copy or efficiency is None or s.bound is None:
            continue
        if share < _HOT or efficiency >= _SLOW or s.median / s.calls < _TINY:
            continue
        if s.limit == "arithmetic":
            can = (s.operations or 0) / s.bound.seconds
            speed = f"{rate_text(s.rate or 0)}, {efficiency:.0%} of what the machine can ({rate_text(can)})"
        else:
            can = s.nbytes / s.bound.seconds
            speed = (
                f"{bandwidth_text(s.bandwidth or 0)}, {efficiency:.0%} of what {s.limit} gives ({bandwidth_text(can)})"
            )
        causes = list(_causes(p, s))
        text = "; ".join(c for c, _ in causes) or "its shapes do not explain it"
        todo = " ".join(t for _, t in causes if t) or (
            "Compare with `accord bench --against`; if others are faster, that is worth a report with op_profile.json."
        )
        yield Advice(
            "slow",
            f"{named(s)} takes {share:.0%} of the run at {speed}: {text}. {todo}",
            share,
            (s.node,),
            {"seconds": s.median, "efficiency": efficiency, "limit": s.limit, "attainable_seconds": s.bound.seconds},
        )


def _causes(p: Profile, s: StepRecord) -> Iterator[tuple[str, str]]:
    """What in a step's figures explains its speed, and what to do about it."""
    shape = _contraction(s)
    if shape is not None:
        rows, columns, depth = shape
        width = machine().width(64 if s.dtype == "f64" else 32)
        lanes = math.ceil(columns / width) * width
        if columns <= _FILLED * lanes:
            yield (
                f"its {columns} output channels fill {columns} of {lanes} lanes of the vectors",
                f"Channels in multiples of {width} use them all.",
            )
        if depth < 32:
            yield f"each of its sums has only {depth} terms, so storing results takes much of the time", ""
        if rows < 8:
            yield (
                f"only {rows} {'row shares' if rows == 1 else 'rows share'} each weight that is read",
                "More inputs at once (a larger batch) share them.",
            )
    gain = _gain(p, s)
    if gain is not None and gain < 1 + _SCALES * (p.threads - 1):
        yield f"{p.threads} threads make it {gain:.2f} times as fast as one", ""
    if s.calls > 1:
        yield f"it runs {s.calls} times, {time_text(s.median / s.calls)} each", ""


def _bound_by_memory(p: Profile) -> Iterator[Advice]:
    """Steps that move their bytes as fast as the machine can."""
    for s in p.steps:
        share, efficiency = p.share(s.median), s.efficiency
        if share < _HOT or efficiency is None or efficiency < _GOOD or s.limit in (None, "arithmetic"):
            continue
        neighbours = ", ".join(dict.fromkeys((*s.sources, *s.readers))) or "none in this plan"
        kept = [f"{k.rule} left it alone: {k.reason}" for k in p.skipped() if k.node == s.node and "fuse" in k.rule]
        why = f" {'; '.join(dict.fromkeys(kept))}." if kept else ""
        yield Advice(
            "memory-bound",
            f"{named(s)} takes {share:.0%} of the run and moves {bandwidth_text(s.bandwidth or 0)}, {efficiency:.0%} "
            f"of what {s.limit} gives: only computing it together with its neighbours ({neighbours}) can help.{why}",
            share,
            (s.node,),
            {"seconds": s.median, "efficiency": efficiency, "level": s.limit, "bytes": s.nbytes},
        )


def _copies(p: Profile) -> Iterator[Advice]:
    """Values that are brought into another order of axes."""
    copies = sorted((s for s in p.steps if s.is_copy), key=lambda s: -s.median)
    seconds = sum(s.median for s in copies)
    share = p.share(seconds)
    if share < _AVOIDABLE:
        return
    listed = "; ".join(
        f"{s.node.removesuffix('.reorder')} ({s.written / 1e6:.3g} MB, {time_text(s.median)}) "
        f"from {', '.join(s.sources) or 'the inputs'} to {', '.join(s.readers) or 'the outputs'}"
        for s in copies[:_EXAMPLES]
    )
    yield Advice(
        "reorders",
        f"{counted(len(copies), 'value is', 'values are')} brought into another order of axes, which takes "
        f"{part_of(p, seconds)}: {listed}. The operators on both sides want different layouts: a step of another "
        f"backend or an output of the model between them may be the cause.",
        share,
        names_of(copies),
        {"seconds": seconds, "copies": len(copies), "bytes": sum(s.nbytes for s in copies)},
    )


def _tiny(p: Profile) -> Iterator[Advice]:
    """Many steps that are over before they have begun."""
    tiny = [s for s in p.steps if s.bound is not None and 0 < s.median / s.calls < _TINY]
    seconds = sum(s.median for s in tiny)
    share = p.share(seconds)
    if len(tiny) < 10 or share < _MANY:
        return
    yield Advice(
        "tiny",
        f"{len(tiny)} of {len(p.steps)} steps take less than {time_text(_TINY)} each, together {share:.0%} of the run: "
        f"the model is small for this machine. {_batches(p)}",
        share,
        (),
        {"steps": len(tiny), "seconds": seconds},
    )


def _outside(p: Profile) -> Iterator[Advice]:
    """Time between steps, and around them."""
    share = p.share(p.outside)
    if share < _OUTSIDE or p.outside < 5 * _MICROSECOND:
        return
    python = [s for s in p.steps if s.fallback or s.late or s.bound is None]
    among = f", and between the {counted(len(python), 'step')} that Python starts" if python else ""
    yield Advice(
        "outside",
        f"{part_of(p, p.outside)} pass outside the steps: checking inputs, making outputs"
        f"{among}. Model.run_into, or an IOBinding, gives outputs memory once and for all. {_batches(p)}",
        share,
        (),
        {"seconds": p.outside, "python_steps": len(python)},
    )


def _threads(p: Profile) -> Iterator[Advice]:
    """Threads that do not pay."""
    if p.single is None or not p.least or p.least < _NEGLIGIBLE:
        return
    gain = p.single / p.least
    if gain >= 1 + _SCALES * (p.threads - 1):
        return
    lost = sorted((s for s in p.steps if s.single is not None), key=lambda s: (s.single or 0) / p.threads - s.least)
    own = 0.0 if p.peaks is None else p.peaks.scaling
    shared = f" ({own:.2f} times for plain arithmetic: they share cores, or other programs use them)"
    machine_gain = shared if 0 < own < 1 + _SCALES * (p.threads - 1) else ""
    worst = "; ".join(
        f"{s.node} ({p.share(s.median):.0%} of the run) {g:.2f} times" for s in lost[:_EXAMPLES] if (g := _gain(p, s))
    )
    yield Advice(
        "threads",
        f"{p.threads} threads make the run {gain:.2f} times as fast as one{machine_gain}. Most is lost in: {worst}. "
        f"With threads=1 a run takes {time_text(p.single)}, and the other cores are free for other runs.",
        1 - gain / p.threads,
        names_of(lost[:_EXAMPLES]),
        {"threads": p.threads, "gain": gain, "one_thread_least": p.single},
    )


def _control(p: Profile) -> Iterator[Advice]:
    """What starting the bodies of control flow takes."""
    for s in p.steps:
        share = p.share(s.median)
        if s.backend != "runtime" or share < _HOT or s.median < _NEGLIGIBLE:
            continue
        inner = [r for r in p.steps if s.node in r.within]
        times = max((r.calls for r in inner), default=0) / s.calls
        yield Advice(
            "control-flow",
            f"{named(s)} takes {share:.0%} of the run ({time_text(s.median)}) besides the steps of its bodies, which "
            f"run up to {times:.0f} times: each start of a body goes through Python. An operator that does the whole "
            f"of it (LSTM or Attention instead of a loop), or a loop unrolled at export, needs no start.",
            share,
            (s.node,),
            {"seconds": s.median, "body_runs": times},
        )


def _late(p: Profile) -> Iterator[Advice]:
    """Native steps that are prepared in each run."""
    late = [s for s in p.steps if s.late and not s.fallback and s.bound is not None]
    seconds = sum(s.median for s in late)
    share = p.share(seconds)
    if share < _HOT or seconds < _NEGLIGIBLE:
        return
    yield Advice(
        "late",
        f"{counted(len(late), 'step takes', 'steps take')} {part_of(p, seconds)} and must be prepared anew in each "
        f"run, because sizes depend on data or are not known. Shapes declared in the file, or padding to a fixed size, "
        f"make them known.",
        share,
        names_of(late),
        {"seconds": seconds, "steps": len(late)},
    )


def _double(p: Profile) -> Iterator[Advice]:
    """Arithmetic in float64."""
    steps = [s for s in p.steps if s.dtype == "f64"]
    seconds = sum(s.median for s in steps)
    share = p.share(seconds)
    if share < _HOT:
        return
    yield Advice(
        "float64",
        f"{counted(len(steps), 'step computes', 'steps compute')} in float64 and take {part_of(p, seconds)}: it has "
        f"half the lanes and twice the bytes of float32. Cast to float32 if that is exact enough.",
        share,
        names_of(steps),
        {"seconds": seconds},
    )


def _noise(p: Profile) -> Iterator[Advice]:
    """Times that are not worth much."""
    quiet = min(p.least, p.total)
    if p.runs < 3 or p.median < _DISTURBED * quiet:
        return
    yield Advice(
        "noise",
        f"The middle run took {time_text(p.median)}, {p.median / quiet:.1f} times as long as what it is made of "
        f"({time_text(quiet)}): something else ran on the machine. Measure again when it is quiet, or with more runs.",
        1 - quiet / p.median,
        (),
        {"median": p.median, "quiet": quiet},
    )


#: Rules for every device.
_ANYWHERE: Final[tuple[Callable[[Profile], Iterable[Advice]], ...]] = (
    _fallbacks,
    _copies,
    _control,
    _late,
    _double,
    _noise,
)
#: Rules for what the host computes.
_HOST_RULES: Final[tuple[Callable[[Profile], Iterable[Advice]], ...]] = (
    _slow_steps,
    _bound_by_memory,
    _tiny,
    _outside,
    _threads,
)


# figures


def _contraction(s: StepRecord) -> tuple[int, int, int] | None:
    """Rows, columns and depth of a matrix product, or of a convolution as one."""
    out = s.outputs[0].shape if s.outputs and s.outputs[0] is not None else None
    if s.op.split("+")[0] not in _CONTRACTIONS or not out or not s.operations:
        return None
    columns = out[1] if s.op.startswith("Conv") and len(out) > 1 else out[-1]
    elements = math.prod(out) * s.calls
    if not elements:
        return None
    return math.prod(out) // columns, columns, round(s.operations / (2 * elements))


def _gain(p: Profile, s: StepRecord) -> float | None:
    """How many times as fast all threads are as one."""
    return None if s.single is None or not s.least or p.threads == 1 else s.single / s.least


def _batches(p: Profile) -> str:
    if p.symbolic:
        free = ", ".join(f"'{name}'" for name in p.symbolic[:_EXAMPLES])
        return f"Several inputs at once cost less each; the sizes {free} are free."
    return "The file fixes all sizes; exported with a free batch axis, it could take several inputs at once."
