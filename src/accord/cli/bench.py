"""``accord bench``: time models, beside other runtimes if asked to."""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accord.cli.common import (
    FAILED,
    Choices,
    Screen,
    Verb,
    closest,
    compile_options,
    line,
    seconds_text,
    shape_options,
    table,
    wrong_use,
)
from accord.cli.sources import load_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.workbench.peers import Runner

__all__ = ["command"]

#: Peers may differ by rounding; a deeper network rounds more often than one operator.
_RTOL, _ATOL = 1e-2, 1e-3
_OWN = "accord"


@click.command(
    "bench",
    cls=Verb,
    examples=(
        "accord bench model.onnx",
        "accord bench a.onnx b.onnx --against onnxruntime,openvino --threads 2",
        "accord bench model.onnx --shape x=8x3x224x224 --runs 200 --output result.json",
    ),
)
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--against", default="", metavar="PEERS", help="Peers with commas between: onnxruntime, openvino.")
@click.option("--runs", type=click.IntRange(1), default=50, show_default=True, help="Timed runs of each runtime.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File for all times, as JSON.")
@shape_options
@load_option
@compile_options
@click.pass_context
def command(
    ctx: click.Context,
    models: tuple[Path, ...],
    against: str,
    runs: int,
    output: Path | None,
    shape: tuple[str, ...],
    seed: int,
    choices: Choices,
) -> None:
    """Time MODELS on random inputs.

    All runtimes get the same inputs and number of threads; their outputs are compared first; they take turns, so that
    what else the machine does meets all of them. A ratio above 1 means that Accord is faster.
    """
    from accord.runtime.options import thread_count

    screen: Screen = ctx.obj
    choices = replace(choices, tuning=choices.tuning or "full")  # what runs beside it would be timed too
    peers = _peers(against)
    threads = thread_count(choices.threads)
    if output is not None and not output.parent.is_dir():
        raise wrong_use(f"--output {output}: there is no folder '{output.parent}'.")
    results = [_measure(screen, model, peers, threads, runs, shape, seed, choices) for model in models]
    _check_shapes(shape, results)
    means = {p: m for p in peers if (m := _geometric_mean([r["ratios"][p] for r in results if p in r["ratios"]]))}
    data = {
        "threads": threads,
        "runs": runs,
        "machine": f"{platform.machine()} {platform.system()} Python {platform.python_version()}",
        "models": results,
        "geometric_means": means,
    }
    if output is not None:
        try:
            output.write_text(json.dumps(data, indent=1), encoding="utf-8")
        except OSError as error:
            raise wrong_use(f"--output {output}: {error.strerror or error}") from error

    screen.show({**data, "models": [{k: v for k, v in r.items() if k != "seconds"} for r in results]}, _drawn(data))
    if any(r["differences"] for r in results):
        ctx.exit(FAILED)


def _peers(text: str) -> list[str]:
    from accord.workbench.peers import PEERS, require_installed

    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in PEERS:
            raise wrong_use(f"--against {name}: no such peer.{closest(name, list(PEERS))}")
        require_installed(name)
    return names


def _check_shapes(shapes: Sequence[str], results: Sequence[Mapping[str, Any]]) -> None:
    """A name that no model knows is a mistake; one that only some know is not."""
    known = [name for r in results for name in r["names"]]
    for text in shapes:
        name = text.partition("=")[0]
        if name not in known:
            raise wrong_use(f"--shape {text}: no input or size '{name}'.{closest(name, known)}")


def _measure(
    screen: Screen,
    path: Path,
    peers: Sequence[str],
    threads: int,
    runs: int,
    shapes: Sequence[str],
    seed: int,
    choices: Choices,
) -> dict[str, Any]:
    """Everything measured about one model."""
    from accord.cli.feeds import make_feed, sizable
    from accord.errors import BackendError
    from accord.profile.profile import roofline
    from accord.workbench.peers import one_line, peer

    model = choices.compile(path, screen)
    names = sizable(model)
    feed = make_feed(model, (), [t for t in shapes if t.partition("=")[0] in names or "=" not in t], seed)
    inputs = dict(feed)
    if choices.device != "cpu":
        model.warm_up([inputs])
    runners: dict[str, Runner] = {_OWN: model}
    failures: dict[str, str] = {}
    for name in peers:
        try:
            runners[name] = peer(name, path, threads)
        except BackendError as error:
            failures[name] = str(error)
    differences: dict[str, str] = {}
    with screen.progress(f"comparing {path.name}", len(runners)) as advance:
        expected = list(runners[_OWN](inputs))
        for name in list(runners)[1:]:
            advance(name)
            try:
                difference = _difference(expected, list(runners[name](inputs)))
            except Exception as error:  # noqa: BLE001  a peer may raise anything; the others are still measured
                failures[name] = f"{name} failed: {one_line(error)}"
                del runners[name]
                continue
            if difference:
                differences[name] = difference
    seconds = _times(screen, path.name, runners, inputs, runs)
    summary = {name: _summary(times) for name, times in seconds.items()}
    return {
        "model": str(path),
        "shapes": {name: list(v.shape) for name, v in inputs.items() if hasattr(v, "shape")},
        "assumed": feed.assumed,
        "names": names,
        "summary": summary,
        "roofline": roofline(model, inputs, summary[_OWN]["median"]),
        "ratios": {name: s["median"] / summary[_OWN]["median"] for name, s in summary.items() if name != _OWN},
        "differences": differences,
        "failures": failures,
        "seconds": seconds,
    }


def _difference(expected: Sequence[Any], actual: Sequence[Any]) -> str:
    """How a peer's outputs differ from ours; "" if they agree."""
    from accord.backends.reference.compare import assert_outputs_match

    try:
        assert_outputs_match(expected, actual, rtol=_RTOL, atol=_ATOL)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def _times(
    screen: Screen, label: str, runners: Mapping[str, Runner], feed: Mapping[str, Any], runs: int
) -> dict[str, list[float]]:
    """Seconds of each run."""
    from accord.workbench.peers import take_turns

    seconds: dict[str, list[float]] = {}
    done = 0
    with screen.progress(f"measuring {label}", runs) as advance:
        for seconds in take_turns(runners, feed, runs):
            for _ in range(done, done := min(map(len, seconds.values()))):
                advance("")
    return seconds


def _summary(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)],
        "min": ordered[0],
    }


def _geometric_mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def _drawn(data: Mapping[str, Any]) -> Any:
    def draw(console: Console) -> None:
        rows = []
        for result in data["models"]:
            name = Path(result["model"]).name
            for runtime, s in result["summary"].items():
                ratio = result["ratios"].get(runtime)
                agrees = "" if ratio is None else "differ" if runtime in result["differences"] else "agree"
                rows.append(
                    (
                        name if runtime == _OWN else "",
                        runtime,
                        seconds_text(s["median"]),
                        seconds_text(s["p95"]),
                        "" if ratio is None else f"{ratio:.2f}",
                        agrees,
                    )
                )
        title = f"{data['runs']} runs, threads: {data['threads']}"
        table(console, title, ("model", "runtime", ">median", ">p95", ">ratio", "outputs"), rows)
        for result in data["models"]:
            if result["roofline"] is not None:
                line(console, f"{Path(result['model']).name}: {_roofline_text(result['roofline'])}")
            for name, size in result["assumed"].items():
                line(console, f"{Path(result['model']).name}: size '{name}' = {size} assumed")
            for text in result["failures"].values():
                line(console, text, style="yellow")
            for name, text in result["differences"].items():
                line(console, f"{Path(result['model']).name}: {name} differs: {text}", style="red")
        for name, mean in data["geometric_means"].items():
            line(console, f"geometric mean of the ratios, {name} to Accord: {mean:.2f}")

    return draw


def _roofline_text(found: Mapping[str, float]) -> str:
    rate = f"{found['operations'] / 1e9:.3g} GFLOP at {found['flops_per_second'] / 1e9:.3g} GFLOP/s"
    return f"{rate}, {found['peak']:.0%} of this machine's peak; {found['roofline']:.0%} of its roofline"
