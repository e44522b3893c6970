"""Advice for models that run on a GPU: what its timeline, its copies and its kernels say, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from accord.profile.device import KernelTime, Key
from accord.profile.words import Advice, bandwidth_text, counted, names_of, part_of, rate_text, time_text

if TYPE_CHECKING:
    from accord.profile.profile import Profile
    from accord.profile.steps import StepRecord

__all__ = ["RULES"]

#: Share of the run that is worth a word; that of many small causes together; that of what can be avoided.
_HOT, _MANY, _AVOIDABLE = 0.10, 0.15, 0.02
#: Kernels below this part of what the device can are slow.
_SLOW: Final = 0.5
#: A shorter kernel takes hardly longer than it takes to start the next.
_TINY: Final = 3e-6
#: Fewer resident threads than this share hide little of the memory's latency, unless a kernel is made for it.
_LOW: Final = 0.25
#: The part of its time that a kernel may lose to a last wave that is not full.
_WASTED: Final = 0.2
#: Named as examples.
_EXAMPLES: Final = 3


def _host_steps(p: Profile) -> Iterator[Advice]:
    """Steps that ran on the host, and what the copies around them cost."""
    assert p.device is not None
    device_backend = {s.backend for s in p.steps if s.is_transfer}
    steps = [s for s in p.steps if s.backend not in (*device_backend, "plan", "runtime") and s.bound is None]
    steps = [s for s in steps if s.kernel != "control flow"]
    if not steps or not device_backend:
        return
    nodes = {s.node for s in steps}
    copies = [s for s in p.steps if s.is_transfer and not nodes.isdisjoint((*s.sources, *s.readers))]
    waited = sum(g.seconds for g in p.device.gaps if g.cause == "a step runs on the host")
    own, copied = sum(s.median for s in steps), sum(s.median for s in copies)
    seconds = max(own + copied, waited)
    share = p.share(seconds)
    if share < _AVOIDABLE:
        return
    reasons = dict.fromkeys(f"{s.op} ({s.reason})" for s in sorted(steps, key=lambda s: -s.median))
    listed = "; ".join(list(reasons)[:_EXAMPLES])
    moved = sum(s.written for s in copies)
    yield Advice(
        "host-steps",
        f"{counted(len(steps), 'step runs', 'steps run')} on the host: {listed}. They take {time_text(own)}, "
        f"{counted(len(copies), 'copy', 'copies')} of {moved / 1e6:.3g} MB around them {time_text(copied)}, and the "
        f"GPU waits {time_text(waited)} for them: {share:.0%} of the run. Give these operators a kernel for the GPU, "
        f"or compute them before or after the model.",
        share,
        names_of(steps),
        {"seconds": own, "copies": copied, "waited": waited, "bytes": moved},
    )


def _findings(p: Profile) -> Iterator[Advice]:
    """Launches on the default stream, hidden synchronisation, pageable copies."""
    assert p.device is not None
    kinds = {
        "default stream": ("default-stream", "is started on the default stream, which all others wait for"),
        "synchronisation": ("synchronisation", "makes the host wait within the run"),
        "pageable copy": ("pageable-copies", "copies from or to memory that is not pinned, through the driver's own"),
    }
    for kind, (rule, words) in kinds.items():
        found = [f for f in p.device.findings if f.kind == kind]
        if not found:
            continue
        seconds = sum(f.seconds for f in found)
        shown = []
        for f in found[:_EXAMPLES]:
            node = p.node_of(f.step)
            where = f" in {node}" if node else " outside the steps"
            shown.append(f"{f.what}{where} ({f.times:.3g} a run, {time_text(f.seconds)})")
        remedies = dict.fromkeys(f.remedy for f in found[:_EXAMPLES])
        what = "; ".join(shown)
        yield Advice(
            rule,
            f"{what} {words}. What to do: {'; '.join(remedies)}.",
            p.share(seconds),
            tuple(n for f in found if (n := p.node_of(f.step))),
            {"seconds": seconds, "times": sum(f.times for f in found)},
        )


def _without_graph(p: Profile) -> Iterator[Advice]:
    """Kernels that are started one by one."""
    assert p.device is not None
    if p.device.without_graph:
        gaps = sum(s for c, s in p.device.causes().items() if c in ("the host starts it late", "between two launches"))
        yield Advice(
            "no-graph",
            f"{p.device.without_graph}. The gaps between them take {part_of(p, gaps)}. A run whose memory stays where "
            f"it is becomes one launch: give the same arrays each time (Model.run_into, an IOBinding).",
            p.share(gaps),
            (),
            {"seconds": gaps},
        )


def _gaps(p: Profile) -> Iterator[Advice]:
    """What the device waits for."""
    assert p.device is not None
    causes = p.device.causes()
    tiny = [k for k in p.device.kernels if k.seconds < _TINY]
    between = sum(causes.get(c, 0.0) for c in ("between two kernels of a graph", "between two launches"))
    seconds = sum(k.seconds for k in tiny) + between
    if tiny and p.share(seconds) >= _MANY:
        yield Advice(
            "tiny-kernels",
            f"{len(tiny)} of {len(p.device.kernels)} kernels take less than {time_text(_TINY)} each; they and the gaps "
            f"between kernels ({time_text(between)}) take {part_of(p, seconds)}: starting is most of it. Only fewer "
            f"kernels or more work in each can help: a larger batch, or operators that fuse with their neighbours.",
            p.share(seconds),
            (),
            {"kernels": len(tiny), "seconds": seconds, "gaps": between},
        )
    for cause, remedy in (
        ("the host prepares the run", "Model.run_into with arrays on the device, or an IOBinding, leaves least to do"),
        ("the host ends the run", "outputs that stay on the device need no copy and no wait"),
        ("it waits for another stream", "the branches are of unequal length, so the longest one decides"),
    ):
        seconds = causes.get(cause, 0.0)
        if p.share(seconds) >= _HOT:
            text = f"The GPU does nothing for {part_of(p, seconds)} because {cause}. {remedy[0].upper()}{remedy[1:]}."
            yield Advice("idle", text, p.share(seconds), (), {"seconds": seconds, "cause": cause})


def _kernels(p: Profile) -> Iterator[Advice]:
    """Kernels far below what the device can, with what their resources say about it."""
    assert p.device is not None
    groups: dict[str, list[StepRecord]] = {}
    for s in p.steps:
        if s.bound is not None and not s.is_transfer:
            groups.setdefault(s.kernel, []).append(s)
    keys: dict[str, list[Key]] = {}
    for key, place in p.keys.items():
        keys.setdefault(p.steps[place].kernel, []).append(key)
    for kernel, steps in groups.items():
        seconds = sum(s.median for s in steps)
        least = sum(s.bound.seconds for s in steps if s.bound is not None)
        share = p.share(seconds)
        if share < _HOT or not least or least / seconds >= _SLOW:
            continue
        launches = [k for k in p.device.kernels if k.step in keys[kernel]]
        if launches and sum(k.seconds for k in launches) / len(launches) < _TINY:
            continue
        longest = max(steps, key=lambda s: s.median)
        speed = f"{bandwidth_text(longest.bandwidth or 0)}"
        if longest.limit == "arithmetic":
            speed = rate_text(longest.rate or 0)
        causes = list(_resources(launches)) or ["its registers, shared memory and grid do not explain it"]
        yield Advice(
            "slow-kernels",
            f"{counted(len(steps), 'step')} of kernel '{kernel}' take {part_of(p, seconds)} at {least / seconds:.0%} "
            f"of what the device can for their operations and bytes (the longest, {longest.node}: {speed}): "
            f"{'; '.join(causes)}. Compare with `accord tune`, and with `accord bench --against`.",
            share,
            names_of(steps),
            {"seconds": seconds, "efficiency": least / seconds},
        )


def _resources(launches: Iterable[KernelTime]) -> Iterator[str]:
    """What in a kernel's resources explains that it is slow, of its longest launch."""
    k = max(launches, key=lambda k: k.seconds, default=None)
    if k is None:
        return
    o = k.occupancy
    if k.local:
        yield f"each thread spills or indexes {k.local} bytes of local memory"
    if o.share < _LOW and o.limit != "grid":
        lets = "lets" if o.limit == "shared memory" else "let"
        yield f"{o.limit} {lets} only {o.blocks} blocks run at once ({o.share:.0%} of the threads)"
    if o.waves < 1:
        blocks = k.grid[0] * k.grid[1] * k.grid[2]
        yield f"its {blocks} blocks fill {o.waves:.0%} of the device"
    elif o.wasted >= _WASTED:
        yield f"its last wave is not full ({o.waves:.2f} waves: {o.wasted:.0%} of the time is lost)"


def _spills(p: Profile) -> Iterator[Advice]:
    """Kernels whose threads have more than their registers hold."""
    assert p.device is not None
    found = [k for k in p.device.kernels if k.local]
    seconds = sum(k.seconds for k in found)
    if p.share(seconds) < _AVOIDABLE:
        return
    worst = max(found, key=lambda k: k.seconds)
    node = p.node_of(worst.step) or worst.name
    yield Advice(
        "spills",
        f"{counted(len(found), 'kernel')} with {worst.local} bytes and more of local memory a thread take "
        f"{part_of(p, seconds)}, the longest is {node} ({worst.registers} registers). Smaller tiles or more warps "
        f"need fewer registers a thread.",
        p.share(seconds),
        tuple(n for k in found if (n := p.node_of(k.step))),
        {"seconds": seconds, "local": max(k.local for k in found)},
    )


RULES: Final[tuple[Callable[[Profile], Iterable[Advice]], ...]] = (
    _host_steps,
    _findings,
    _without_graph,
    _gaps,
    _kernels,
    _spills,
)
