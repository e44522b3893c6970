"""``accord explain``: what the compiler did with a model, and why it did not do more."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accord.cli.common import (
    Choices,
    Screen,
    Verb,
    check_rule,
    compile_options,
    line,
    model_argument,
    plural,
    seconds_text,
    shape_options,
    size_text,
    table,
    wrong_use,
)
from accord.cli.sources import load_option

_WIDE = ("node", "operator", "because")

if TYPE_CHECKING:
    import onnx_ir as ir
    from rich.console import Console

    from accord.ir.infer import Analyzer
    from accord.passes.manager import PassLog
    from accord.plan.plan import Plan
    from accord.runtime.model import Model

#: Nodes named as examples of one reason.
_EXAMPLES = 3


@click.command(
    "explain",
    cls=Verb,
    examples=(
        "accord explain model.onnx",
        "accord explain model.onnx --shape x=8x3x224x224",
        "accord explain model.onnx --dump stages",
        "accord explain model.onnx --rule fold-batch-norm",
    ),
)
@model_argument
@shape_options
@click.option(
    "--dump",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write each stage to, as 00-loaded.onnx, 01-normalised.onnx and so on.",
)
@click.option("--rule", metavar="RULE", help="Show every patch and every reason of one rewrite rule.")
@load_option
@compile_options
@click.pass_obj
def command(
    screen: Screen,
    model: Path,
    shape: tuple[str, ...],
    seed: int,
    dump: Path | None,
    rule: str | None,
    choices: Choices,
) -> None:
    """Compile MODEL and print the stages, the rewrites, the placement and the memory plan.

    Nothing is run. Memory is planned for the shapes given.
    """
    from accord.cli.placed import backend_counts, chosen, copies, fallback_text, fallbacks, remarks, rounded, streams

    if rule is not None:
        check_rule("--rule", rule)
    if dump is not None:
        _make_folder(dump)
    stages = _Stages(dump)
    compiled = choices.compile(model, screen, on_stage=stages.record)
    plan, log = compiled.plan, compiled.compiled.log
    memory = _memory(compiled, shape, seed)
    data: dict[str, Any] = {
        "model": str(model),
        "inputs": [dataclasses.asdict(v) for v in compiled.inputs],
        "outputs": [dataclasses.asdict(v) for v in compiled.outputs],
        "stages": stages.data(compiled.compiled.seconds),
        "notes": list(compiled.compiled.notes),
        "patches": [dataclasses.asdict(p) for p in log.patches if rule in (None, p.rule)],
        "skipped": [
            {"rule": s.rule, "node": s.node, "op": s.op, "reason": str(s.reason)}
            for s in log.skipped
            if rule in (None, s.rule)
        ],
        "backends": backend_counts(plan),
        "declined": _declined(plan),
        "fallbacks": fallbacks(plan),
        "precision": rounded(plan),
        "wide": [{"node": s.node, "op": s.op, "reason": str(s.reason)} for s in log.skipped if s.rule == "store-half"],
        "remarks": remarks(plan),
        "tuned": chosen(plan, dict(compiled.options.choices or ())),
        "copies": copies(plan),
        "streams": streams(plan),
        "memory": memory,
        "dumped": stages.written,
    }

    def draw(console: Console) -> None:
        for value in (*compiled.inputs, *compiled.outputs):
            line(console, f"{'input ' if value in compiled.inputs else 'output'} {value}")
        _draw_stages(console, data["stages"])
        _draw_rules(console, log, rule)
        _draw_placement(console, data)
        line(console, fallback_text(plan), style="yellow" if data["fallbacks"] else None)
        if data["copies"]:
            copied = [(c["step"], c["because"]) for c in data["copies"]]
            table(console, "Copies into another order of axes", ("step", "because"), copied)
        else:
            line(console, "no copy into another order of axes")
        if data["precision"]:
            rows = [(r["node"], r["op"], r["precision"]) for r in data["precision"]]
            table(console, "Products of rounded operands, as asked for", ("node", "operator", "precision"), rows)
        if data["wide"]:
            rows = [(r["node"], r["op"], r["reason"]) for r in data["wide"]]
            table(console, f"What stays float32 though {compiled.options.precision} is asked for", _WIDE, rows)
        if data["remarks"]:
            said = [(len(r["nodes"]), r["op"], r["remark"], r["nodes"][0]) for r in data["remarks"]]
            table(console, "How kernels compute", (">steps", "operator", "remark", "first"), said)
        if data["tuned"]:
            by_tuning = [(t["node"], t["op"], t["alternative"], t["rule"]) for t in data["tuned"]]
            table(console, "Kernels chosen by accord tune", ("node", "operator", "alternative", "by rule"), by_tuning)
        if data["streams"]:
            on = [(s["step"], s["op"], s["stream"], ", ".join(s["waits_for"])) for s in data["streams"]]
            table(console, "Streams", ("step", "operator", ">stream", "waits for an event of"), on)
        if memory is None:
            line(console, "Memory: the model leaves shapes open; --shape gives them")
        else:
            _draw_memory(console, memory)
        for path in stages.written:
            line(console, f"wrote {path}")

    screen.show(data, draw)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise wrong_use(f"--dump {folder}: {error.strerror or error}") from error


# stages


class _Stages:
    """Counts nodes after each stage, and writes the stage if there is a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._counts: dict[str, int] = {}
        self.written: list[str] = []

    def record(self, stage: str, model: ir.Model, analyzer: Analyzer | None) -> None:
        """As the compiler's hook."""
        from accord.runtime.pipeline import STAGES
        from accord.runtime.save import save_stage

        self._counts[stage] = sum(1 for _ in model.graph.all_nodes())
        if self._folder is not None and stage in STAGES:
            path = self._folder / f"{STAGES.index(stage):02d}-{stage}.onnx"
            save_stage(model, analyzer, path)
            self.written.append(str(path))

    def data(self, seconds: Mapping[str, float]) -> list[dict[str, Any]]:
        """One entry a stage."""
        return [{"stage": name, "nodes": count, "seconds": seconds[name]} for name, count in self._counts.items()]


def _draw_stages(console: Console, stages: Iterable[Mapping[str, Any]]) -> None:
    rows = [(s["stage"], s["nodes"], seconds_text(s["seconds"])) for s in stages]
    table(console, "Stages", ("stage", ">nodes", ">time"), rows)


# rewrites


def _draw_rules(console: Console, log: PassLog, rule: str | None) -> None:
    if rule is not None:
        rows = [(f"#{p.serial}", p.node, p.op, p.note) for p in log.patches if p.rule == rule]
        table(console, f"Patches of {rule}", (">number", "node", "operator", "what"), rows)
        reasons = [(s.node, s.op, str(s.reason)) for s in log.skipped if s.rule == rule]
        table(console, f"Where {rule} did not fire", ("node", "operator", "reason"), reasons)
        return
    counts = Counter((p.phase, p.rule) for p in log.patches)
    table(console, "Patches", ("phase", "rule", ">patches"), [(*key, n) for key, n in counts.items()])
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for s in log.skipped:
        grouped[s.rule, str(s.reason).replace(s.node, "…")].append(s.node)  # equal but for the name: one line
    summary = [
        (name, reason, len(nodes), ", ".join(nodes[:_EXAMPLES]) + (", ..." if len(nodes) > _EXAMPLES else ""))
        for (name, reason), nodes in sorted(grouped.items())
    ]
    table(console, "Rules that did not fire", ("rule", "reason", ">nodes", "for example"), summary)


# placement


def _declined(plan: Plan) -> list[dict[str, Any]]:
    """Why better backends did not take steps, grouped."""
    from accord.plan.plan import all_steps

    grouped: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for step in all_steps(plan):
        p = step.placement
        for backend, reason in p.declined:
            grouped[p.op, p.backend, backend, str(reason)].append(p.node)
    return [
        {"op": op, "taken_by": taken, "declined_by": backend, "reason": reason, "nodes": nodes}
        for (op, taken, backend, reason), nodes in sorted(grouped.items())
    ]


def _draw_placement(console: Console, data: Mapping[str, Any]) -> None:
    table(console, "Placement", ("backend", ">steps"), list(data["backends"].items()))
    rows = [(d["op"], len(d["nodes"]), d["taken_by"], f"{d['declined_by']}: {d['reason']}") for d in data["declined"]]
    if rows:
        table(console, "Not the first choice", ("operator", ">steps", "runs on", "because"), rows)


# memory


def _memory(model: Model, shapes: tuple[str, ...], seed: int) -> dict[str, Any] | None:
    """Bytes for a run with these shapes, and how memory is shared; None if no shapes were given and some are open."""
    from accord.backends.protocol import ViewKernel
    from accord.cli.feeds import make_feed
    from accord.plan.plan import all_plans, all_steps

    try:
        feed = make_feed(model, (), shapes, seed)
    except click.UsageError:
        if shapes:
            raise
        return None
    given = {name: list(value.shape) for name, value in feed.items() if hasattr(value, "shape")}
    nbytes = model.memory(given)
    plan = model.plan
    plans = list(all_plans(plan))
    nbytes["constants"] = sum(array.nbytes for p in plans for array in p.constants.values())
    shared = sum(1 for p in plans for i, slot in enumerate(p.slots) if slot.root != i)
    views = sum(1 for step in all_steps(plan) if isinstance(step.kernel, ViewKernel))
    saved = max(0.0, 1 - nbytes["arena"] / nbytes["unshared"]) if nbytes["unshared"] else 0.0
    return {
        "shapes": given,
        "assumed": feed.assumed,
        **nbytes,
        "saved": saved,
        "peak": nbytes["arena"] + nbytes["staging"] + nbytes["constants"],
        "views": views,
        "in_place": max(0, shared - views),
        "late_values": sum(1 for p in plans for slot in p.slots if slot.storage.value == "late"),
        "bodies": len(plans) - 1,
    }


def _draw_memory(console: Console, memory: Mapping[str, Any]) -> None:
    shapes = ", ".join(f"{name} {'×'.join(map(str, s)) or 'scalar'}" for name, s in memory["shapes"].items())
    assumed = ", ".join(f"{name} = {size}" for name, size in memory["assumed"].items())
    rows = [
        ("intermediate values, planned arena", size_text(memory["arena"])),
        ("the same with one buffer for each value", size_text(memory["unshared"])),
        ("saved by sharing", f"{memory['saved']:.0%}"),
        ("weights", size_text(memory["constants"])),
        ("staging between memories", size_text(memory["staging"])),
        ("peak: all of these but one buffer for each", size_text(memory["peak"])),
        ("views, which move no data", plural(memory["views"], "step")),
        ("computed in place", plural(memory["in_place"], "value")),
        ("sized while running", plural(memory["late_values"], "value")),
        ("control flow, each body with an arena of its own", f"{memory['bodies']} bodies"),
    ]
    table(console, f"Memory for {shapes}" + (f" ({assumed} assumed)" if assumed else ""), ("", ">"), rows)
