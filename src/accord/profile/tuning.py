"""Tuning: choices between kernels by measurement, which later loads of the same model find.

The model is compiled once for each alternative. Runs of all take turns, each step timed, so that whatever disturbs the
machine meets all of them; what a step gains is judged from the differences within each turn.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from accord.backends.protocol import NativeKernel
from accord.errors import AccordError
from accord.ir import dims as D
from accord.ir.dims import Dim
from accord.runtime.executor import Executor
from accord.runtime.model import Model
from accord.runtime.options import Options, disabled_tuple
from accord.runtime.pipeline import compile_model
from accord.runtime.stored import model_key
from accord.runtime.tuned import as_choices, write_choices
from accord.runtime.watch import Collector, Running, WatchedRun, watched
from accord.storage import cache_folder

__all__ = ["RUNS", "Tuned", "Tuning", "tune", "tune_with"]

#: Turns that are measured.
RUNS: Final = 24
#: Runs before: programs settle in the first three how many threads each of their phases gets.
_WARM_UP: Final = 4
#: An alternative is taken that is faster by this part of the time in three turns of four.
_LEAST_GAIN: Final = 0.02


@dataclass(frozen=True, slots=True)
class Tuned:
    """A node whose kernel has alternatives.

    Attributes:
        node: Its name.
        op: Its operator.
        rule: The alternative by rule.
        chosen: The alternative taken.
        seconds: By alternative, the middle time of what the node takes in a run.
    """

    node: str
    op: str
    rule: str
    chosen: str
    seconds: Mapping[str, float]

    @property
    def gain(self) -> float:
        """Seconds that the choice saves in a run."""
        return self.seconds[self.rule] - self.seconds[self.chosen]


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was found.

    Attributes:
        nodes: Those whose kernels have alternatives, in order of execution.
        runs: How many turns were measured.
    """

    nodes: tuple[Tuned, ...]
    runs: int

    @property
    def choices(self) -> dict[str, str]:
        """By node, the alternative taken, where it is not the one by rule."""
        return {n.node: n.chosen for n in self.nodes if n.chosen != n.rule}

    @property
    def gain(self) -> float:
        """Seconds that all choices save in a run."""
        return sum(n.gain for n in self.nodes)

    def data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        nodes = [{**asdict(n), "gain": n.gain} for n in self.nodes]
        return {"runs": self.runs, "nodes": nodes, "choices": self.choices, "gain": self.gain}


def tune(
    model: str | os.PathLike[str] | bytes,
    inputs: Mapping[str, Any],
    *,
    runs: int = RUNS,
    level: int = 3,
    disabled_rules: Collection[str] | str = (),
    threads: int | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    precision: str = "float32",
) -> Tuning:
    """Choose by measurement between kernels of which each is right, and remember it.

    :func:`accord.load` of the same content with the same options then makes the same choices, in this process and in
    others, until machine or version of Accord change, or the model is tuned again. Results may differ from those before
    within the operators' tolerances.

    Args:
        model: Path of an ONNX file, or its bytes.
        inputs: By name, arrays of the shapes to measure with; any values of the kind that the model is made for.
        runs: How many runs of each alternative are measured.
        level: As for :func:`accord.load`, and so are the options that follow.
        disabled_rules: Names of rewrite rules that must not run.
        threads: Threads for one run.
        base_dir: Folder of external data.
        precision: What operands of float32 products are rounded to.

    Raises:
        AccordError: nothing can be remembered (the cache is off or cannot be written to, the model is no file), or the
            model cannot be compiled.
        InputError: inputs are wrong.
    """
    rules = disabled_tuple(disabled_rules)
    options = Options("cpu", level, rules, threads=threads, base_dir=base_dir, precision=precision)
    return tune_with(model, lambda loaded: inputs, options, runs)


def tune_with(
    source: Any,
    make_inputs: Callable[[Model], Mapping[str, Any]],
    options: Options,
    runs: int = RUNS,
    advance: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """As :func:`tune`.

    Args:
        source: Path or bytes.
        make_inputs: Gives the inputs for the loaded model.
        options: How to compile.
        runs: How many runs of each alternative are measured.
        advance: Called with what comes next.
    """
    if runs < 1:
        raise AccordError("at least one run must be measured", found=runs)
    key = _key(source, options)
    model = Model(source, replace(options, choices=()))
    inputs = make_inputs(model)
    executor, values = model.executor_for(inputs)
    offered = _offered(executor, values)
    found = _measured(source, options, executor, values, offered, runs, advance) if offered else ()
    tuning = Tuning(found, runs)
    if not write_choices(key, as_choices(tuning.choices)):
        raise AccordError(
            "the choices could not be remembered",
            expected="a folder that belongs to this user and that nobody else may write to",
            found=cache_folder(),
            remedy="Let ACCORD_CACHE name such a folder.",
        )
    return tuning


def _key(source: Any, options: Options) -> str:
    """The name of the entry; an error where there would be none."""
    if cache_folder() is None:
        raise AccordError(
            "nothing could be remembered: the cache is off",
            expected="a folder to keep the choices in",
            found=f"ACCORD_CACHE={os.environ.get('ACCORD_CACHE', '')}",
            remedy="Unset ACCORD_CACHE, or let it name a folder.",
        )
    if options.device != "cpu":
        raise AccordError("there is nothing to choose", expected="device 'cpu'", found=f"device '{options.device}'")
    key = model_key(source, options)
    if key is None:
        raise AccordError(
            "nothing could be remembered: loads could not tell that it is the same model",
            expected="the path of a file, or bytes, and no operator of ONNX's own that is declared anew",
            found=source if isinstance(source, (str, os.PathLike)) else type(source).__name__,
        )
    return key


# measuring


@dataclass(frozen=True, slots=True)
class _Offer:
    op: str
    alternatives: tuple[str, ...]


class _Times(Collector):
    """Collects the times of steps and does not look at their operands."""

    def __init__(self) -> None:
        super().__init__(_nothing)


def _nothing(run: Running, index: int) -> Callable[[], None]:
    del run, index
    return lambda: None


def _offered(executor: Executor, values: Sequence[Any]) -> dict[str, _Offer]:
    """By node, the alternatives of the kernels that a run executes."""
    times = _Times()
    with watched(times):
        executor.run(values)
    steps = [t.step for t in times.runs[0].times]
    return {
        s.placement.node: _Offer(s.placement.op, s.kernel.alternatives)
        for s in steps
        if isinstance(s.kernel, NativeKernel) and len(s.kernel.alternatives) > 1
    }


def _measured(
    source: Any,
    options: Options,
    first: Executor,
    values: Sequence[Any],
    offered: Mapping[str, _Offer],
    runs: int,
    advance: Callable[[str], None],
) -> tuple[Tuned, ...]:
    """Times of all alternatives, and what is taken."""
    env = first.environment(values)

    def decide(condition: Dim) -> bool:
        return bool(D.evaluate(condition, env))

    executors = [first]
    for k in range(1, max(len(o.alternatives) for o in offered.values())):
        advance(f"compiling alternative {k}")
        chosen = {node: o.alternatives[k] for node, o in offered.items() if k < len(o.alternatives)}
        compiled = compile_model(source, replace(options, choices=as_choices(chosen)), decide=decide)
        executors.append(Executor(compiled.plan, compiled.backends, compiled.device))
    advance("measuring")
    collectors = [_Times() for _ in executors]
    for executor in executors:
        for _ in range(_WARM_UP):
            executor.run(values)
    for turn in range(runs):
        for k in range(len(executors)):
            which = (turn + k) % len(executors)  # nobody always runs after the same one
            with watched(collectors[which]):
                executors[which].run(values)
    advance("")
    times = [[_by_node(run) for run in c.runs] for c in collectors]
    return tuple(_choice(node, o, _times_of(node, o, times)) for node, o in offered.items())


def _times_of(node: str, offer: _Offer, times: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, list[float]]:
    """By alternative, the seconds of ``node`` in each run that has it."""
    by_alternative = zip(offer.alternatives, times, strict=False)
    return {a: [t[node] for t in runs] for a, runs in by_alternative if all(node in t for t in runs)}


def _by_node(run: WatchedRun) -> dict[str, float]:
    """Seconds by node."""
    seconds: dict[str, float] = defaultdict(float)
    for t in run.times:
        seconds[t.step.placement.node] += (t.own or 0) * 1e-9
    return seconds


def _choice(node: str, offer: _Offer, times: Mapping[str, Sequence[float]]) -> Tuned:
    """The fastest alternative, if it is faster than the one by rule by more than the noise."""
    middle = {a: statistics.median(t) for a, t in times.items()}
    rule = offer.alternatives[0]
    best = min(middle, key=lambda a: middle[a])
    differences = np.subtract(times[rule], times[best])
    # faster in three turns of four, where no difference would give two of four
    surely = best != rule and np.quantile(differences, 0.25) > _LEAST_GAIN * middle[rule]
    return Tuned(node, offer.op, rule, best if surely else rule, middle)
