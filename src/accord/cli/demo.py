"""``accord demo``: read a line of text from an image with the packaged model."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accord.cli.common import Screen, Verb, line, seconds_text, size_text

if TYPE_CHECKING:
    from rich.console import Console

    from accord.runtime.model import Model

__all__ = ["command"]


@click.command("demo", cls=Verb, examples=("accord demo", "accord demo line.png", "accord demo line.npy --json"))
@click.argument("image", required=False, type=click.Path(path_type=Path))
@click.pass_obj
def command(screen: Screen, image: Path | None) -> None:
    """Read one line of text from IMAGE (PNG, JPEG or .npy; a packaged sample if none is given).

    The model is small (about 1 MB), was trained by scripts/train_demo.py, and holds a user operator, ChannelShuffle.
    """
    import accord.demo.operators  # noqa: F401  declares the model's own operator
    from accord.demo.reader import MODEL, SAMPLE, ctc_decode, load_image, preprocess
    from accord.runtime.model import load

    source = image if image is not None else SAMPLE.with_suffix(".npy")
    pixels = preprocess(load_image(source))
    with screen.progress("compiling the reader"):
        began = time.perf_counter()
        model = load(MODEL)
        load_time = time.perf_counter() - began
    model(pixels)  # machine code is generated with the first run
    began = time.perf_counter()
    text = ctc_decode(model(pixels)[0])[0]
    run_time = time.perf_counter() - began
    plan = _plan(model, pixels.shape)

    def draw(console: Console) -> None:
        line(console, text, style="bold")
        line(console, f"{source.name}: {pixels.shape[3]}×{pixels.shape[2]} pixels, {seconds_text(run_time)}")
        for row in plan:
            line(console, row)

    screen.show(
        {"text": text, "image": str(source), "load_seconds": load_time, "run_seconds": run_time, "plan": plan}, draw
    )


def _plan(model: Model, shape: tuple[int, ...]) -> list[str]:
    """The plan in five lines."""
    compiled = model.compiled
    backends = Counter(s.placement.backend for s in compiled.plan.steps)
    memory = model.memory({model.inputs[0].name: shape})
    rules = Counter(p.rule for p in compiled.log.patches)
    composed = Counter(p.op for p in compiled.log.patches if p.rule == "compose-operators")
    own = ", ".join(f"{n} × {op}" for op, n in composed.items())
    saved = 1 - memory["arena"] / memory["unshared"] if memory["unshared"] else 0.0
    return [
        f"graph    {sum(1 for _ in compiled.model.graph)} nodes after {len(compiled.log.patches)} rewrites"
        f" ({', '.join(f'{n} {r}' for r, n in rules.most_common(2))})",
        f"steps    {', '.join(f'{n} on {b}' for b, n in backends.most_common())}",
        f"memory   {size_text(memory['arena'])} in one arena, {saved:.0%} less than a buffer for each value",
        f"weights  {size_text(memory['constants'])}",
        f"operator {own}, declared in accord/demo/operators.py and compiled",
    ]
