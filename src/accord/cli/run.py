"""``accord run``: run a model once and look at its outputs."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
    table,
    wrong_use,
)
from accord.cli.sources import load_option

if TYPE_CHECKING:
    from rich.console import Console

    from accord.profile.overflow import Overflow
    from accord.runtime.model import Model

__all__ = ["command"]


@click.command(
    "run",
    cls=Verb,
    examples=(
        "accord run model.onnx",
        "accord run model.onnx --input image=photo.npy --output results",
        "accord run model.onnx --shape x=1x3x320x320 --seed 7",
        "accord run model.onnx --input rate=16000 --strict --json",
        "accord run model.onnx --precision float16 --check-range",
    ),
)
@model_argument
@feed_options
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder to save the outputs in.")
@click.option(
    "--check-range", is_flag=True, help="Also name the first operator whose values leave the range of their type."
)
@load_option
@compile_options
@click.pass_obj
def command(
    screen: Screen,
    model: Path,
    given: Given,
    output: Path | None,
    check_range: bool,
    choices: Choices,
) -> None:
    """Run MODEL once and print what comes out.

    Inputs that are not given are random: real numbers in [0, 1), 8-bit integers over their range, wider integers 0
    or 1.
    """
    from accord.cli.placed import fallback_counts, fallback_text

    began = time.perf_counter()
    compiled = choices.compile(model, screen)
    compile_time = time.perf_counter() - began
    feed = given.feed(compiled, screen)
    with screen.progress(f"running {model.name}"):
        began = time.perf_counter()
        outputs = compiled(dict(feed))
        run_time = time.perf_counter() - began
    overflow = _overflow(compiled, dict(feed)) if check_range else None
    fields = [f for name, value in outputs.items() for f in _fields(name, value)]
    saved = _save(output, [(f["name"], f.pop("value")) for f in fields]) if output is not None else []
    for field in fields:
        field.pop("value", None)
    plan = compiled.plan
    fed = [{"name": n, "dtype": _dtype(v), "shape": _shape(v), "from": feed.sources[n]} for n, v in feed.items()]
    data = {
        "model": str(model),
        "inputs": fed,
        "outputs": fields,
        "saved": saved,
        "steps": len(plan.steps),
        "fallbacks": fallback_counts(plan),
        "seconds": {"compile": compile_time, "run": run_time},
        **({"overflow": None if overflow is None else overflow.data()} if check_range else {}),
    }

    def draw(console: Console) -> None:
        line(
            console,
            f"{model.name}: {plural(len(plan.steps), 'step')}, compiled in {seconds_text(compile_time)}, "
            f"ran in {seconds_text(run_time)}",
        )
        line(console, fallback_text(plan), style="yellow" if data["fallbacks"] else None)
        table(console, "", ("input", "dtype", "shape", "from"), [[_cell(v) for v in i.values()] for i in fed])
        titles = ("output", "dtype", "shape", ">min", ">mean", ">max", ">NaN")
        table(console, "", titles, [[_cell(f[key]) for key in _KEYS] for f in fields])
        if check_range:
            text = "all values stay in the range of their types" if overflow is None else f"out of range: {overflow}"
            line(console, text, style=None if overflow is None else "yellow")
        for path in saved:
            line(console, f"saved {path}")

    screen.show(data, draw)


def _overflow(compiled: Model, feed: dict[str, Any]) -> Overflow | None:
    from accord.profile.overflow import first_overflow

    return first_overflow(compiled, feed)


_KEYS = ("name", "dtype", "shape", "min", "mean", "max", "nan")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _dtype(value: Any) -> str:
    return str(value.dtype) if hasattr(value, "dtype") else type(value).__name__


def _shape(value: Any) -> list[int] | None:
    return list(value.shape) if hasattr(value, "shape") else None


def _fields(name: str, value: Any) -> Iterator[dict[str, Any]]:
    """One description an array; sequences and maps give one an element."""
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _fields(f"{name}[{i}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _fields(f"{name}[{key!r}]", item)
    else:
        yield _field(name, value)


def _field(name: str, value: Any) -> dict[str, Any]:
    import numpy as np

    if value is None:
        return dict(zip(_KEYS, (name, "absent", None, None, None, None, None), strict=True)) | {"value": None}
    array = np.asarray(value)
    low = mean = high = nan = None
    if array.dtype.kind not in "OUSc" and array.size:
        numbers = array.astype(np.float64)
        missing = np.isnan(numbers)
        nan = int(missing.sum())
        if nan < numbers.size:
            known = numbers[~missing]
            low, mean, high = float(known.min()), float(known.mean()), float(known.max())
    dtype = "string" if array.dtype.kind in "OUS" else str(array.dtype)
    return dict(zip(_KEYS, (name, dtype, list(array.shape), low, mean, high, nan), strict=True)) | {"value": array}


def _save(folder: Path, arrays: list[tuple[str, Any]]) -> list[str]:
    """Write each array to ``folder``; a file is complete or absent.

    Raises:
        click.UsageError: the folder cannot be used.
    """
    import numpy as np

    saved = []
    used: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in arrays:
            if value is None:
                continue
            stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or "output"
            while stem in used:
                stem += "_"
            used.add(stem)
            # NumPy's file format has no strings of any length, and none of the narrow types.
            array = value.astype(str) if value.dtype.kind == "O" else value
            array = array.astype(np.float32) if array.dtype.kind == "V" else array
            path = folder / f"{stem}.npy"
            unfinished = folder / f".{stem}.unfinished"
            with unfinished.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            unfinished.replace(path)
            saved.append(str(path))
    except OSError as error:
        raise wrong_use(f"--output {folder}: {error.strerror or error}") from error
    return saved
