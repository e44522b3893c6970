"""``accord profile``: where the time of a run goes, what the machine could do, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accord.cli.common import (
    Choices,
    Given,
    Screen,
    Verb,
    compile_options,
    feed_options,
    line,
    model_argument,
    plural,
    seconds_text,
    size_text,
    table,
    wrong_use,
)
from accord.cli.sources import load_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.profile.device import DeviceProfile
    from accord.profile.peaks import Peaks
    from accord.profile.profile import Profile
    from accord.profile.steps import StepRecord

__all__ = ["command"]

#: Columns of the chart of the arena's use.
_BARS = "▁▂▃▄▅▆▇█"
_CHART = 60
#: Operators in the table of totals.
_KINDS = 10
#: Seconds that Nsight Compute may take.
_NCU_LIMIT = 300
#: Seconds of a run below which steps are shown in microseconds.
_SHORT = 2e-3


@click.command(
    "profile",
    cls=Verb,
    examples=(
        "accord profile model.onnx",
        "accord profile model.onnx --out profile --shape x=1x3x640x640",
        "accord profile model.onnx --threads 1 --runs 100 --top 50",
    ),
)
@model_argument
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for op_profile.json and trace.json (for Perfetto or chrome://tracing).",
)
@feed_options
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, help="Timed runs.")
@click.option("--top", type=click.IntRange(0), default=20, show_default=True, help="Steps to list; 0 for all.")
@click.option("--counters", is_flag=True, help="Ask Nsight Compute (ncu) what the GPU counted, in one more run.")
@click.option("--once", is_flag=True, hidden=True, help="Run once and end: what Nsight Compute looks at.")
@click.option("--peaks", is_flag=True, help="Measure what the machine can do again, instead of using what is known.")
@load_option
@compile_options
@click.pass_obj
def command(
    screen: Screen,
    model: Path,
    out: Path | None,
    given: Given,
    runs: int,
    top: int,
    counters: bool,
    once: bool,
    peaks: bool,
    choices: Choices,
) -> None:
    """Time each step of MODEL, hold it against what the machine can do, and say what stands out.

    The least time that the machine needs for a step is that of its operations at the measured peak, or of its bytes
    at the measured bandwidth of the memory that holds them, whichever is longer; "of peak" is that time against the
    measured one. Inputs that are not given are random.
    """
    from accord.profile.profile import profile
    from accord.profile.trace import chrome_trace

    if out is not None:
        _make_folder(out)
    compiled = choices.compile(model, screen)
    feed = given.feed(compiled, screen)
    if once:
        compiled(dict(feed))
        return
    with screen.progress(f"profiling {model.name}", 3) as advance:
        measured = profile(compiled, dict(feed), runs=runs, again=peaks, advance=advance)
    if counters:
        measured.device = _counted(measured)
    options = {"device": choices.device, "level": choices.level, "disabled_rules": list(choices.disabled_rules)}
    data = {"model": str(model), "options": options, **measured.data()}
    written: list[str] = []
    if out is not None:
        written = _write(out, {"op_profile.json": data, "trace.json": chrome_trace(measured)})

    def draw(console: Console) -> None:
        _draw_summary(console, model.name, measured)
        if measured.peaks is not None:
            _draw_peaks(console, measured.peaks, measured.gpu)
        _draw_steps(console, measured, top)
        if measured.device is not None:
            _draw_device(console, measured, measured.device, top)
        elif measured.without_device:
            text = "kernels were started one by one, with events between them, so times hold their starts too"
            line(console, f"{text}: {measured.without_device}", style="yellow")
        _draw_totals(console, measured, data["by_operator"])
        _draw_memory(console, measured)
        line(console, "Advice", style="bold")
        for advice in data["advice"]:
            line(console, f"- {advice['text']}")
        if not data["advice"]:
            line(console, "nothing stands out")
        for path in written:
            line(console, f"wrote {path}")

    screen.show({**data, "written": written}, draw)


def _counted(p: Profile) -> DeviceProfile:
    """What the GPU did, with counters that Nsight Compute reads while this command runs the model once."""
    from accord.profile.nsight import counters_of, with_counters

    if p.device is None:
        raise wrong_use("--counters is for models that run on a GPU, and needs CUPTI")
    again = [a for a in sys.argv[1:] if a != "--counters"]
    return with_counters(p.device, counters_of([sys.executable, "-m", "accord", *again, "--once"], _NCU_LIMIT))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise wrong_use(f"--out {folder}: {error.strerror or error}") from error


def _write(folder: Path, files: Mapping[str, Any]) -> list[str]:
    """Write JSON files; each is complete or absent.

    Raises:
        click.UsageError: the folder cannot be written to.
    """
    written = []
    try:
        for name, content in files.items():
            unfinished = folder / f".{name}.unfinished"
            unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
            unfinished.replace(folder / name)
            written.append(str(folder / name))
    except OSError as error:
        raise wrong_use(f"--out {folder}: {error.strerror or error}") from error
    return written


# tables


def _draw_summary(console: Console, name: str, p: Profile) -> None:
    shapes = ", ".join(f"{n} {'×'.join(map(str, s)) or 'scalar'}" for n, s in p.shapes.items() if s is not None)
    line(console, f"{name}: {shapes}; {plural(p.threads, 'thread')}, {plural(p.runs, 'run')}")
    parts = [f"median {seconds_text(p.median)}, least {seconds_text(p.least)}"]
    if p.single is not None:
        parts.append(f"on one thread {seconds_text(p.single)}")
    parts.append(f"{seconds_text(p.in_steps)} in {plural(len(p.steps), 'step')}, {seconds_text(p.outside)} outside")
    if p.operations:
        parts.append(f"{p.operations / 1e9:.3g} GFLOP at {p.operations / p.median / 1e9:.3g} GFLOP/s")
    if p.peaks is not None and p.median:
        parts.append(f"{p.bound / p.median:.0%} of the roofline")
    line(console, "; ".join(parts))


def _draw_peaks(console: Console, peaks: Peaks, gpu: str) -> None:
    unit, factor = ("TFLOP/s", 1e12) if gpu else ("GFLOP/s", 1e9)
    multiply = ", ".join(f"{d} {r.best / factor:.0f}" for d, r in peaks.multiply.items())
    levels = ", ".join(f"{x.name} {x.read.best / 1e9:.0f} / {x.copy.best / 1e9:.0f}" for x in peaks.levels)
    if gpu:
        line(console, f"{gpu}: {unit} {multiply} (units × clock); GB/s read / copy {levels} (measured)")
        return
    threads = plural(peaks.threads, "thread")
    line(console, f"This machine on {threads}, measured: {unit} {multiply}; GB/s read / copy {levels}")
    if peaks.disturbed:
        gain = f"{peaks.threads} threads reach {peaks.scaling:.2f} times one; " if peaks.threads > 1 else ""
        text = f"{gain}something else ran meanwhile, so these may be too low; --peaks measures again"
        line(console, text, style="yellow")


def _draw_device(console: Console, p: Profile, device: DeviceProfile, top: int) -> None:
    """What the GPU did: kernels by time, copies, gaps by cause."""
    span = max(device.span, 1e-12)
    done = f"{plural(len(device.kernels), 'kernel')}, {plural(len(device.copies), 'copy', 'copies')}"
    line(
        console,
        f"{device.device}: {seconds_text(device.span)} from the first kernel to the end of the last, busy "
        f"{device.busy / span:.0%}; {done}",
        style="bold",
    )
    kernels = sorted(device.kernels, key=lambda k: -k.seconds)
    columns = ("node", ">µs", ">blocks", ">threads", ">registers", ">shared", ">local", ">occupancy", "by", ">waves")
    rows = [
        (
            p.node_of(k.step) or k.name,
            f"{k.seconds * 1e6:.2f}",
            "×".join(str(n) for n in k.grid if n > 1) or "1",
            k.threads,
            k.registers,
            k.shared,
            k.local or "",
            f"{k.occupancy.share:.0%}" + ("" if k.achieved is None else f" ({k.achieved:.0%} achieved)"),
            k.occupancy.limit,
            f"{k.occupancy.waves:.2f}",
        )
        for k in (kernels[:top] if top else kernels)
    ]
    table(console, "Kernels by time", columns, rows)
    if device.copies:
        copies = [
            (
                p.node_of(c.step) or "",
                c.direction,
                "pageable" if c.pageable else "pinned" if "host" in c.direction else "",
                _number(c.nbytes / 1e6),
                f"{c.seconds * 1e6:.2f}",
                _number(c.nbytes / c.seconds / 1e9 if c.seconds else None),
            )
            for c in device.copies
        ]
        table(console, "Copies", ("node", "direction", "memory", ">MB", ">µs", ">GB/s"), copies)
    causes = [(cause, f"{seconds * 1e6:.2f}", f"{p.share(seconds):.1%}") for cause, seconds in device.causes().items()]
    table(console, "What the GPU waits for", ("cause", ">µs", ">share"), causes)


def _draw_steps(console: Console, p: Profile, top: int) -> None:
    steps = sorted(p.steps, key=lambda s: -s.median)
    shown = steps[:top] if top else steps
    columns = (
        "node",
        "operators",
        "kernel",
        f">{_unit(p)[0]}",
        ">share",
        ">MB",
        ">MFLOP",
        ">GFLOP/s",
        ">GB/s",
        ">of peak",
        "limit",
    )
    table(console, "Steps by time", columns, [_cells(p, s) for s in shown])
    rest = steps[len(shown) :]
    if rest:
        seconds = sum(s.median for s in rest)
        line(console, f"and {plural(len(rest), 'step')} that take {seconds_text(seconds)} ({p.share(seconds):.1%})")


def _cells(p: Profile, s: StepRecord) -> tuple[str, ...]:
    name = f"{s.node} ×{s.calls}" if s.calls > 1 else s.node
    return (
        name,
        s.op,
        f"{s.kernel} ({s.backend})" if s.fallback else s.kernel,
        _duration(p, s.median),
        f"{p.share(s.median):.1%}",
        _number(s.nbytes / 1e6 if s.bound is not None else None),
        _number(None if s.operations is None else s.operations / 1e6),
        _number(None if s.rate is None else s.rate / 1e9),
        _number(None if s.bandwidth is None else s.bandwidth / 1e9),
        "" if s.efficiency is None else f"{s.efficiency:.0%}",
        s.limit or "",
    )


def _unit(p: Profile) -> tuple[str, float]:
    """The unit of all durations in a table, so that they can be compared at a glance; and how many are a second."""
    return ("µs", 1e6) if p.total < _SHORT else ("ms", 1e3)


def _duration(p: Profile, seconds: float) -> str:
    return f"{seconds * _unit(p)[1]:.3f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _draw_totals(console: Console, p: Profile, totals: list[dict[str, Any]]) -> None:
    rows = [(t["name"], t["steps"], _duration(p, t["seconds"]), f"{t['share']:.1%}") for t in totals[:_KINDS]]
    table(console, "By operator", ("operators", ">steps", f">{_unit(p)[0]}", ">share"), rows)


def _draw_memory(console: Console, p: Profile) -> None:
    m = p.memory
    line(
        console,
        f"Memory: arena {size_text(m.arena)}, weights {size_text(m.constants)}, outputs {size_text(m.outputs)}",
        style="bold",
    )
    if m.arena and m.live:
        most = max(m.live)
        columns = min(_CHART, len(m.live))
        ends = [len(m.live) * k // columns for k in range(columns + 1)]
        heights = [max(m.live[a:b]) for a, b in pairwise(ends)]
        chart = "".join(_BARS[min(len(_BARS) - 1, len(_BARS) * h // (most + 1))] for h in heights)
        line(console, f"in use by step {chart} at most {size_text(most)}")
