"""Command line: ``python -m tests.fuzz.run --count 10000 --seed 1 --jobs 2``.

Prints how many mutants ended how, and the failures by cause, each with the number of a mutant that shows it. That
mutant is run again with ``--show INDEX``, and written to a file with ``--write PATH``.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

import onnx

from . import seeds as seed_models
from .mutate import mutant
from .pool import outcomes
from .trial import STAGES, Outcome, execute, trial


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="mutants to run")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=1, help="number of the campaign")
    parser.add_argument("--jobs", type=int, default=2, help="processes at the same time")
    parser.add_argument("--stage", choices=STAGES, default="run", help="how far mutants are taken")
    parser.add_argument("--reference", action="store_true", help="use the reference backend only")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this time")
    parser.add_argument("--show", type=int, metavar="INDEX", help="run one mutant here, with its traceback")
    parser.add_argument("--write", type=Path, metavar="PATH", help="with --show: write the model there")
    options = parser.parse_args(arguments)
    models = seed_models.collect()
    if options.show is not None:
        return show(models, options)
    start = time.monotonic()
    indices = iter(range(options.first, options.first + options.count))
    results = outcomes(
        models, options.seed, indices, options.jobs, options.stage,
        reference=options.reference, until=start + options.minutes * 60,
    )  # fmt: skip
    return report(list(results), options.seed, time.monotonic() - start)


def report(results: list[tuple[int, Outcome]], seed: int, seconds: float) -> int:
    """Print the summary; 1 if anything failed."""
    kinds = Counter((o.kind, o.stage, o.what if o.kind == "error" else "") for _, o in results)
    say(f"{len(results)} mutants of seed {seed} in {seconds:.0f} s")
    for (kind, stage, what), n in sorted(kinds.items()):
        say(f"  {n:7} {kind} {what} {'in ' + stage if stage else ''}")
    causes: dict[tuple[str, str, str], list[tuple[int, Outcome]]] = defaultdict(list)
    for index, outcome in results:
        if outcome.failed:
            causes[outcome.kind, outcome.what, outcome.where].append((index, outcome))
    for (kind, what, where), cases in sorted(causes.items(), key=lambda c: -len(c[1])):
        numbers = ", ".join(str(i) for i, _ in sorted(cases, key=lambda c: c[0])[:4])
        say(f"{kind}: {what} at {where}: {len(cases)} mutants ({numbers}): {cases[0][1].message[:160]}")
    return 1 if causes else 0


def show(models: list[bytes], options: argparse.Namespace) -> int:
    """Run one mutant in this process."""
    data, applied = mutant(models, options.seed, options.show)
    say("mutations:", ", ".join(applied))
    if options.write:
        options.write.write_bytes(data)
    try:
        say(onnx.printer.to_text(onnx.ModelProto.FromString(data))[:4000])
    except Exception as error:  # noqa: BLE001  a mutant need not be printable
        say(f"(not printable: {error})")
    outcome = trial(data, options.stage, reference=options.reference)
    say(outcome)
    if outcome.failed:
        try:
            execute(data, options.stage, options.reference, [])
        except Exception:  # noqa: BLE001  its traceback is what was asked for
            traceback.print_exc()
    return 1 if outcome.failed else 0


def say(*parts: object) -> None:
    sys.stdout.write(" ".join(map(str, parts)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
