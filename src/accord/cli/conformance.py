"""``accord conformance``: ONNX's own test suites through Accord."""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from accord.cli.common import (
    FAILED,
    Choices,
    Screen,
    Verb,
    compile_options,
    line,
    plural,
    seconds_text,
    table,
    wrong_use,
)

if TYPE_CHECKING:
    from rich.console import Console

    from accord.cli.suites import Case

__all__ = ["command"]

_SUITES = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
#: Everything but the large networks.
_DEFAULT = _SUITES[:-1]
#: Cases named as examples of one reason.
_EXAMPLES = 3


@click.command(
    "conformance",
    cls=Verb,
    examples=(
        "accord conformance",
        "accord conformance --suite node --filter '^conv'",
        "accord conformance --suite light --strict --json",
    ),
)
@click.option(
    "--suite", "suites", multiple=True, type=click.Choice(_SUITES), help="A suite; repeatable. [default: all but light]"
)
@click.option("--filter", "pattern", default="", metavar="REGEX", help="Only cases whose name matches.")
@compile_options
@click.pass_context
def command(ctx: click.Context, suites: tuple[str, ...], pattern: str, choices: Choices) -> None:
    """Run the test suites of the installed onnx package and compare every output.

    Cases with random operators are judged by shape, dtype and distribution. Where a step ran on a slow-but-right
    backend, the operator and the reason are listed.
    """
    from accord.cli.suites import load_suite

    screen: Screen = ctx.obj
    try:
        re.compile(pattern)
    except re.error as error:
        raise wrong_use(f"--filter {pattern}: not a regular expression: {error}") from error
    chosen = list(dict.fromkeys(suites or _DEFAULT))
    with screen.progress("reading suites", len(chosen)) as advance:
        cases: list[Case] = []
        for suite in chosen:
            cases += load_suite(suite, pattern)
            advance(suite)
    if not cases:
        raise wrong_use(f"no case of {', '.join(chosen)} matches '{pattern}'.")
    results = []
    with screen.progress("conformance", len(cases)) as advance:
        for case in cases:
            results.append(_run(case, choices))
            advance(case.name)
    failed = [r for r in results if r["error"] is not None]
    data: dict[str, Any] = {
        "suites": {suite: _totals([r for r in results if r["suite"] == suite]) for suite in chosen},
        "failures": [{k: r[k] for k in ("suite", "name", "error")} for r in failed],
        "fallbacks": _fallbacks(results),
        "random": [r["name"] for r in results if r["random"]],
        "slowest": [
            {k: r[k] for k in ("suite", "name", "seconds")} for r in sorted(results, key=lambda r: -r["seconds"])[:5]
        ],
    }

    def draw(console: Console) -> None:
        rows = [
            (
                suite,
                t["passed"],
                t["failed"],
                f"{t['native']} ({t['native'] / max(1, t['passed'] + t['failed']):.1%})",
                ", ".join(f"{b} {n}" for b, n in t["steps"].items()),
            )
            for suite, t in data["suites"].items()
        ]
        columns = ("suite", ">passed", ">failed", ">without fall-back", "steps by backend")
        table(console, "Conformance", columns, rows)
        if data["fallbacks"]:
            found = [
                (f["op"], len(f["cases"]), f["reason"], ", ".join(f["cases"][:_EXAMPLES])) for f in data["fallbacks"]
            ]
            table(console, "Fall-backs", ("operator", ">cases", "because", "for example"), found)
        if failed:
            table(console, "Failures", ("suite", "case", "error"), [list(f.values()) for f in data["failures"]])
        slow = ", ".join(f"{s['name']} {seconds_text(s['seconds'])}" for s in data["slowest"])
        line(console, f"slowest: {slow}")
        if data["random"]:
            line(console, f"judged by distribution: {plural(len(data['random']), 'case')}: {', '.join(data['random'])}")

    screen.show(data, draw)
    if failed:
        ctx.exit(FAILED)


def _totals(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps: Counter[str] = Counter()
    for r in results:
        steps.update(r["steps"])
    failed = sum(1 for r in results if r["error"] is not None)
    native = sum(1 for r in results if r["error"] is None and not r["fallbacks"])
    return {"passed": len(results) - failed, "failed": failed, "native": native, "steps": dict(steps.most_common())}


def _fallbacks(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Operators and reasons with the cases that they concern, the most first."""
    cases: dict[tuple[str, str], list[str]] = defaultdict(list)
    for r in results:
        for op, reason in r["fallbacks"]:
            cases[op, reason].append(r["name"])
    ordered = sorted(cases.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"op": op, "reason": reason, "cases": names} for (op, reason), names in ordered]


def _run(case: Case, choices: Choices) -> dict[str, Any]:
    """Run all data of one case."""
    from accord.backends.reference.compare import judge
    from accord.cli.placed import backend_counts, fallbacks
    from accord.cli.suites import is_random
    from accord.errors import FallbackWarning
    from accord.onnx_backend import AccordRep
    from accord.runtime.model import Model

    result: dict[str, Any] = {"suite": case.suite, "name": case.name, "error": None, "random": False, "steps": {}}
    found: dict[tuple[str, str], None] = {}
    began = time.perf_counter()
    try:
        proto = case.model()
        compiled = Model(proto, choices.options())
        result["steps"] = backend_counts(compiled.plan)
        found.update(((f["op"], f["reason"]), None) for f in fallbacks(compiled.plan))
        for inputs, expected in case.data(proto):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                actual = list(AccordRep(compiled).run(inputs))
            late = (str(w.message).partition(": ") for w in caught if issubclass(w.category, FallbackWarning))
            found.update(((kernel, why), None) for kernel, _, why in late)
            result["random"] |= judge(expected, actual, case.rtol, case.atol, random=is_random(proto))
    except Exception as error:  # noqa: BLE001  whatever a case raises is its result
        result["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    result["fallbacks"] = list(found)
    result["seconds"] = time.perf_counter() - began
    return result
