"""Where the steps of a plan run, counted for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accord.backends.protocol import NativeKernel
from accord.cli.common import line, seconds_text, table
from accord.plan.plan import Plan, all_plans, all_steps

if TYPE_CHECKING:
    from rich.console import Console

    from accord.runtime.model import Model

__all__ = [
    "backend_counts",
    "chosen",
    "copies",
    "draw_measured",
    "fallback_counts",
    "fallback_text",
    "fallbacks",
    "measured",
    "remarks",
    "rounded",
    "streams",
]


def backend_counts(plan: Plan) -> dict[str, int]:
    """Number of steps by backend, the most first."""
    return dict(Counter(step.placement.backend for step in all_steps(plan)).most_common())


def fallbacks(plan: Plan) -> list[dict[str, Any]]:
    """Each step that a slow-but-right backend took, with the reasons."""
    return [
        {"node": p.node, "op": p.op, "backend": p.backend, "reason": p.reason}
        for step in all_steps(plan)
        if (p := step.placement).fallback
    ]


def rounded(plan: Plan) -> list[dict[str, Any]]:
    """Each step that computes with less than its inputs' precision, because that was asked for."""
    return [
        {"node": step.placement.node, "op": step.placement.op, "precision": precision}
        for step in all_steps(plan)
        if (precision := getattr(step.kernel, "precision", ""))
    ]


def remarks(plan: Plan) -> list[dict[str, Any]]:
    """What kernels say of how they compute, the most frequent first: operator, remark and nodes."""
    found: dict[tuple[str, str], list[str]] = {}
    for step in all_steps(plan):
        if isinstance(step.kernel, NativeKernel) and step.kernel.note:
            found.setdefault((step.placement.op, step.kernel.note), []).append(step.placement.node)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [{"op": op, "remark": note, "nodes": nodes} for (op, note), nodes in ordered]


def chosen(plan: Plan, choices: Mapping[str, str]) -> list[dict[str, str]]:
    """Each step whose kernel is the alternative that ``choices``, by node, asks for."""
    kernels = [(s.placement, s.kernel) for s in all_steps(plan) if isinstance(s.kernel, NativeKernel)]
    return [
        {"node": p.node, "op": p.op, "alternative": k.alternative, "rule": k.alternatives[0]}
        for p, k in kernels
        if k.alternative and choices.get(p.node) == k.alternative
    ]


def measured(model: Model, shapes: Mapping[str, Sequence[int]] | None) -> list[dict[str, Any]]:
    """Each kernel that can be started in several ways, and what is known of them.

    Args:
        model: The model.
        shapes: Of its inputs; None: kernels whose sizes depend on them are left out.
    """
    from accord.runtime.warm import choices

    env = None if shapes is None else model.environment(shapes)
    keys = [] if env is None else [tuple(env[s] for s in model.plan.symbols)]
    with model.executor.device.active():
        return [
            {"node": step.placement.node, "op": step.placement.op, **facts}
            for step, launch in choices(model.executor, keys)
            if (facts := launch.facts()) is not None
        ]


def draw_measured(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what :func:`measured` gives, equal rows as one."""
    shown: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        seconds = row["seconds"]
        times = f"{seconds_text(seconds[row['way']])} of {len(seconds)}" if row["way"] in seconds else "by rule"
        rule = f"{seconds_text(seconds[row['rule']])}" if row["rule"] in seconds else ""
        refused = "; ".join(f"{way}: {why}" for way, why in row["refused"].items())
        shown[row["op"], row["way"], times, row["rule"] if row["rule"] != row["way"] else "", rule, refused] += 1
    columns = (">kernels", "operator", "way", ">time", "by rule", ">time", "not measured")
    table(console, "Ways to start kernels", columns, [(str(n), *row) for row, n in shown.items()])
    for remark in dict.fromkeys(row["lacking"] for row in rows if row["lacking"]):
        line(console, remark)


def copies(plan: Plan) -> list[dict[str, str]]:
    """Each step that only copies a value into another order of axes, and for whom."""
    found = [step.placement for step in all_steps(plan) if step.placement.copies]
    return [{"step": p.node, "because": p.copies} for p in found]


def streams(plan: Plan) -> list[dict[str, Any]]:
    """Each step of a program with several streams: its own, and the steps on others that it waits for."""
    return [
        {
            "step": p.steps[i].placement.node,
            "op": p.steps[i].placement.op,
            "stream": p.steps[i].stream,
            "waits_for": [p.steps[w].placement.node for w in p.steps[i].waits],
        }
        for p in all_plans(plan)
        for run in p.native_runs
        if any(p.steps[i].stream for i in run.steps)
        for i in run.steps
    ]


def fallback_counts(plan: Plan) -> dict[str, int]:
    """Number of fall-backs by operator, the most first."""
    return dict(Counter(f["op"] for f in fallbacks(plan)).most_common())


def fallback_text(plan: Plan) -> str:
    """One line that lists fall-backs by operator."""
    counts = fallback_counts(plan)
    if not counts:
        return "no fall-back: every step runs on a native backend, in the plan or in the runtime"
    backend = fallbacks(plan)[0]["backend"]
    return f"fall-back to '{backend}' (slow) for {', '.join(f'{op} ×{n}' for op, n in counts.items())}"
