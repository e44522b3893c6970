"""``accord doctor``: what is wrong here, and what an error of some runtime means."""

from __future__ import annotations

import dataclasses
import io
import os
import select
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from accord.cli.common import FAILED, Screen, Verb, line, plural, size_text, wrong_use

if TYPE_CHECKING:
    from rich.console import Console

    from accord.doctor.diagnosis import Diagnosis, Reading
    from accord.doctor.environment import Environment
    from accord.doctor.findings import Finding

__all__ = ["command"]

#: Seconds that text on a pipe is waited for, where none was asked for.
_PATIENCE = 0.5
_STYLE = {"broken": "bold red", "error": "bold red", "warning": "bold yellow", "note": "bold"}


@click.command(
    "doctor",
    cls=Verb,
    examples=(
        "accord doctor",
        "accord doctor --log server.log",
        "python serve.py 2>&1 | accord doctor --log -",
        "accord doctor --log build.log --json",
    ),
)
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Explain the errors of a log of ONNX Runtime, PyTorch, TensorRT, Triton, CUDA or OpenVINO; - is standard "
    "input, which is also read if something is piped in.",
)
@click.pass_context
def command(ctx: click.Context, log: Path | None) -> None:
    """Report on this machine and its packages, or explain the errors of a log.

    Exit codes: the report ends with 1 if something is broken. With a log, 0 means that known errors were found, 1 that
    none was.
    """
    screen: Screen = ctx.obj
    stream = _piped() if log is None else _opened(log)
    if stream is not None:
        from accord.doctor.diagnosis import read_log

        with stream, screen.progress("reading"):
            reading = read_log(stream)
        if log is not None or reading.lines:  # a pipe that was closed at once is as good as none
            _show_reading(screen, reading)
            ctx.exit(0 if reading.diagnoses else FAILED)
    from accord.doctor.environment import look
    from accord.doctor.findings import judge

    with screen.progress("looking"):
        environment = look()
        findings = judge(environment)
    data = {
        "environment": dataclasses.asdict(environment),
        "findings": [dataclasses.asdict(f) for f in findings],
        "ok": all(f.severity != "broken" for f in findings),
    }
    screen.show(data, lambda console: _draw_environment(console, environment, findings))
    ctx.exit(0 if data["ok"] else FAILED)


# input


def _opened(path: Path) -> BinaryIO:
    if str(path) == "-":
        return sys.stdin.buffer
    try:
        return path.open("rb")
    except OSError as error:
        raise wrong_use(f"--log {path}: {error.strerror or error}") from error


def _piped() -> BinaryIO | None:
    """Standard input if something is redirected into it; a pipe on which nothing comes is left alone."""
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError, AttributeError, io.UnsupportedOperation):
        return None
    if stat.S_ISREG(mode):
        return sys.stdin.buffer if os.fstat(number).st_size else None
    if stat.S_ISFIFO(mode) and select.select([number], [], [], _PATIENCE)[0]:
        return sys.stdin.buffer
    return None


# a log


def _show_reading(screen: Screen, reading: Reading) -> None:
    data = {
        "lines": reading.lines,
        "diagnoses": [dataclasses.asdict(d) for d in reading.diagnoses],
        "suspects": [{"line": n, "text": text} for n, text in reading.suspects],
    }
    screen.show(data, lambda console: _draw_reading(console, reading))


def _draw_reading(console: Console, reading: Reading) -> None:
    if not reading.lines:
        line(console, "the log is empty")
        return
    if not reading.diagnoses:
        line(console, f"No known error in {plural(reading.lines, 'line')}.", style="bold")
        if not reading.suspects:
            line(console, "No line looks like an error either.")
            return
        line(console, "Lines that look like errors:")
        for number, text in reading.suspects:
            line(console, f"  {number}: {text}")
        return
    titles = {d.id: d.title for d in reading.diagnoses}
    for number, diagnosis in enumerate(reading.diagnoses, 1):
        _draw_diagnosis(console, number, diagnosis, titles)
    known = plural(len(reading.diagnoses), "known error")
    roots = sum(1 for d in reading.diagnoses if not d.consequence_of)
    line(console, f"{known} in {plural(reading.lines, 'line')}; {roots} of them explained by no other: begin there")


def _draw_diagnosis(console: Console, number: int, d: Diagnosis, titles: Mapping[str, str]) -> None:
    line(console, f"{number}. {d.title}", style=_STYLE[d.severity])
    times = f", {d.count} times" if d.count > 1 else ""
    line(console, f"   [{d.id}] {d.runtime}, {d.severity}, line {d.line}{times}")
    line(console, f"   > {d.evidence}")
    for name, text in (("cause", d.cause), ("confirm", d.confirm), ("remedy", d.remedy)):
        line(console, f"   {name + ':':<9}{text}")
    for case in d.more:
        line(console, f"   also:    {', '.join(f'{k} {v}' for k, v in case.items())}")
    if d.consequence_of:
        causes = "; ".join(f"{c} ({titles[c]})" for c in d.consequence_of)
        line(console, f"   follows from: {causes}")
    elif d.often_because_of:
        line(console, f"   often follows from, not seen here: {', '.join(d.often_because_of)}")
    if d.related:
        line(console, f"   see also: {', '.join(d.related)}")
    if d.seen:
        line(console, f"   reported: {', '.join(d.seen)}")
    line(console, "")


# the environment


def _draw_environment(console: Console, e: Environment, findings: list[Finding]) -> None:
    for name, value in _rows(e):
        line(console, f"{name:<10}{value}")
    line(console, "")
    for f in findings:
        line(console, f"{f.severity}: {f.what}", style=_STYLE[f.severity])
        line(console, f"  why:    {f.why}")
        line(console, f"  remedy: {f.remedy}")
    if not findings:
        line(console, "nothing is wrong")


def _rows(e: Environment) -> list[tuple[str, str]]:
    def size(value: int | None) -> str:
        return "unknown" if value is None else size_text(value)

    cpu, limits, gpu, cache = e.cpu, e.limits, e.nvidia, e.cache
    shown = [f for f in cpu.features if f.startswith(("avx", "amx", "neon", "sve", "fma", "dotprod", "i8mm", "bf16"))]
    caches = " / ".join(size_text(c) for c in cpu.caches)
    quota = f", {cpu.quota:g} cores' worth of time" if cpu.quota is not None else ""
    driver = f"driver {gpu.module or gpu.library or 'not found'}, {plural(len(gpu.devices), 'device')}"
    known = f", knows CUDA {gpu.cuda // 1000}.{gpu.cuda % 1000 // 10}" if gpu.cuda is not None else ""
    rows = [
        ("system", f"{e.system}, {e.libc}" + (f", in {e.container}" if e.container else "")),
        ("Python", f"{e.python}, {e.executable}"),
        ("CPU", f"{cpu.model} ({cpu.arch}), {cpu.vector_bits}-bit vectors, caches {caches}"),
        ("", ", ".join(shown) or "no vector extensions"),
        (
            "cores",
            f"{cpu.allowed_cores} of {cpu.host_cores} allowed ({cpu.physical_cores} physical){quota}; "
            f"Accord uses {plural(cpu.runtime_threads, 'thread')}",
        ),
        ("memory", f"{size(limits.memory)}, {size(limits.available)} available")
        if limits.container_memory is None
        else (
            "memory",
            f"{size(limits.container_memory)} in this container of {size(limits.memory)}, "
            f"{size(limits.available)} available",
        ),
        ("/dev/shm", f"{size(limits.shared)}, {size(limits.shared_free)} free"),
        ("packages", ", ".join(f"{n} {v}" for n, v in e.packages.items() if not n.startswith("nvidia-"))),
        ("backends", ", ".join(f"{n} ({d})" for n, d in e.backends.items()) or "none"),
        ("NVIDIA", driver + known),
        ("", ", ".join(f"{n} in {f}" for n, f in gpu.libraries.items()) or "no CUDA libraries"),
        (
            "cache",
            "off" if cache.folder is None else f"{cache.folder}, {size_text(cache.size)} of {size_text(cache.limit)}",
        ),
    ]
    if e.variables:
        rows.append(("variables", ", ".join(f"{n}={v}" for n, v in e.variables.items())))
    return rows
