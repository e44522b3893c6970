"""Which rewrite, or which kernel, makes a result wrong.

Outputs are compared with those of the reference backend on the graph as it was loaded. Where they differ, the number
of patches is halved until one is left after which the result is wrong while it was right before it. Then that patch's
graph is computed with reference kernels: if that is wrong too, the rule is at fault; if not, the kernels that the patch
led to, which are found by checking each step of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import onnx_ir as ir

from accord.backends.discovery import backends_for
from accord.errors import AccordError
from accord.ir import dims as D
from accord.ir.dims import Dim
from accord.ir.infer import Analyzer
from accord.passes.manager import AppliedPatch
from accord.placement.placer import Placer
from accord.plan.builder import PlanBuilder
from accord.plan.plan import Plan
from accord.profile.difference import Bounds, Difference, differences
from accord.profile.stepwise import StepChecker, StepFault
from accord.runtime.executor import Executor
from accord.runtime.inputs import match_inputs
from accord.runtime.options import Options
from accord.runtime.pipeline import Compiled, compile_model
from accord.runtime.stored import model_key
from accord.runtime.tuned import tuned
from accord.runtime.watch import watched

__all__ = ["Verdict", "bisect"]

_QUANTISING: Final = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})


@dataclass(frozen=True, slots=True)
class Trial:
    """The result after a number of patches.

    Attributes:
        patches: How many were applied.
        worst: The output that is furthest from the right one.
    """

    patches: int
    worst: Difference | None

    @property
    def is_right(self) -> bool:
        """Whether all outputs are within the tolerance."""
        return self.worst is None or not self.worst.is_fault

    def data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "patches": self.patches,
            "right": self.is_right,
            "worst": None if self.worst is None else self.worst.data(),
        }


@dataclass(slots=True)
class Verdict:
    """What was found.

    Attributes:
        fault: "none"; "patch" (its graph is wrong); "normalise" (the graph is wrong before any patch: the choice of
            branches for the sizes at hand); "kernel" (the graph is right, a step is not); "memory" (a step's
            input was changed after it had been made); "rounding" (each step is within the tolerance, but not the
            result); "random" (the model draws random numbers, so results cannot be compared).
        patches: Of the whole compilation.
        trials: What was tried, in order.
        patch: The patch that makes the result wrong; None if it is wrong without any.
        step: The step that is wrong.
        reference_agrees: Whether the graph after the patch is right when reference kernels compute it; None if that was
            not, or could not be, tried.
        without: The worst output with the patch's rule switched off; None if that was not tried.
        unchecked: Nodes that could not be checked.
        quantising: Nodes that round to few bits while the model runs: the least error can become a whole level there.
    """

    fault: str
    patches: int
    trials: list[Trial] = field(default_factory=list)
    patch: AppliedPatch | None = None
    step: StepFault | None = None
    reference_agrees: bool | None = None
    without: Trial | None = None
    unchecked: tuple[str, ...] = ()
    quantising: int = 0

    @property
    def worst(self) -> Difference | None:
        """The worst output of the model as it is compiled by default."""
        return self.trials[0].worst if self.trials else None

    def data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "fault": self.fault,
            "patches": self.patches,
            "trials": [t.data() for t in self.trials],
            "patch": None if self.patch is None else asdict(self.patch),
            "step": None if self.step is None else self.step.data(),
            "reference_agrees": self.reference_agrees,
            "without": None if self.without is None else self.without.data(),
            "unchecked": list(self.unchecked),
            "quantising": self.quantising,
        }


def bisect(
    source: Any,
    inputs: Mapping[str, Any],
    options: Options,
    bounds: Bounds | None = None,
    advance: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """Find the first patch, or the kernel, that makes an output of a model wrong.

    Args:
        source: Path, or bytes.
        inputs: By name.
        options: How the model is compiled where it is wrong.
        bounds: What outputs may differ by; by default what contracts declare for their dtypes.
        advance: Called with what comes next.

    Raises:
        InputError: the inputs do not fit the model.
        ModelError: the model is wrong.
        ExecutionError: a kernel failed.
    """
    return _Search(source, inputs, options, bounds or Bounds(), advance).verdict()


@dataclass(frozen=True, slots=True)
class _Made:
    """A compiled model with the facts of its graph."""

    compiled: Compiled
    analyzer: Analyzer


class _Search:
    """The state of one search."""

    def __init__(
        self, source: Any, inputs: Mapping[str, Any], options: Options, bounds: Bounds, advance: Callable[[str], None]
    ) -> None:
        self.source = source
        self.inputs = inputs
        self.options = tuned(options, model_key(source, options))
        self.bounds = bounds
        self.advance = advance
        self.names: list[str] = []
        self.expected: list[Any] = []
        self.trials: list[Trial] = []
        self.env: Mapping[str, int] | None = None

    def verdict(self) -> Verdict:
        self.advance("reference")
        oracle = self._compile(replace(self.options, reference=True, strict=False, level=0))
        plan = oracle.compiled.plan
        values = match_inputs(plan, len(plan.inputs), (), self.inputs)
        self.env = self._executor(plan, oracle.compiled).environment(values)
        self.names = [v.name or f"output{k}" for k, v in enumerate(oracle.compiled.model.graph.outputs)]
        self.expected = self._run(oracle.compiled.plan, oracle.compiled)
        self.advance("all patches")
        whole = self._compile(self.options)
        total = len(whole.compiled.log.patches)
        if self._try(total, whole).is_right:
            return Verdict("none", total, self.trials)
        again = differences(self.names, self.expected, self._run(oracle.compiled.plan, oracle.compiled), self.bounds)
        if again and again[0].is_fault:
            return Verdict("random", total, self.trials)
        right, wrong, made = 0, total, whole
        if total:
            self.advance("no patches")
            first = self._at(0)
            if not self._try(0, first).is_right:
                wrong, made = 0, first
        while wrong - right > 1:
            middle = (right + wrong) // 2
            self.advance(f"{middle} patches")
            tried = self._at(middle)
            if self._try(middle, tried).is_right:
                right = middle
            else:
                wrong, made = middle, tried
        return self._explain(total, wrong, made)

    def _explain(self, total: int, wrong: int, made: _Made) -> Verdict:
        """What is at fault in a compilation whose last patch makes it wrong."""
        patch = made.compiled.log.patches[wrong - 1] if wrong else None
        verdict = Verdict("rounding", total, self.trials, patch)
        self.advance("reference kernels")
        verdict.reference_agrees = self._reference_agrees(made)
        if patch is not None:
            self.advance(f"without {patch.rule}")
            disabled = (*self.options.disabled_rules, patch.rule)
            without = self._compile(replace(self.options, disabled_rules=disabled))
            outputs = self._run(without.compiled.plan, without.compiled)
            verdict.without = Trial(len(without.compiled.log.patches), self._worst(outputs))
        if verdict.reference_agrees is False:
            verdict.fault = "patch" if patch is not None else "normalise"
            return verdict
        self.advance("steps")
        checker = self._check_steps(made)
        verdict.step, verdict.unchecked = checker.fault, tuple(checker.unchecked)
        verdict.quantising = sum(n.op_type in _QUANTISING for n in made.compiled.model.graph.all_nodes())
        if checker.fault is not None:
            verdict.fault = "memory" if checker.fault.memory else "kernel"
        return verdict

    # compiling and running

    def _compile(self, options: Options) -> _Made:
        analyzers: list[Analyzer] = []

        def note(stage: str, model: ir.Model, analyzer: Analyzer | None) -> None:
            del stage, model
            if analyzer is not None:
                analyzers.append(analyzer)

        decide = None if self.env is None else self._decide
        compiled = compile_model(self.source, options, on_stage=note, decide=decide)
        return _Made(compiled, analyzers[-1])

    def _decide(self, condition: Dim) -> bool:
        """Branches are chosen as :class:`~accord.runtime.model.Model` does for these inputs."""
        assert self.env is not None
        return bool(D.evaluate(condition, self.env))

    def _at(self, patches: int) -> _Made:
        return self._compile(replace(self.options, stop_after=patches))

    def _executor(self, plan: Plan, compiled: Compiled, *, stepwise: bool = False) -> Executor:
        return Executor(plan, compiled.backends, compiled.device, stepwise=stepwise)

    def _run(self, plan: Plan, compiled: Compiled) -> list[Any]:
        values = match_inputs(plan, len(plan.inputs), (), self.inputs)
        return self._executor(plan, compiled).run(values)

    def _worst(self, outputs: Sequence[Any]) -> Difference | None:
        return next(iter(differences(self.names, self.expected, outputs, self.bounds)), None)

    def _try(self, patches: int, made: _Made) -> Trial:
        trial = Trial(patches, self._worst(self._run(made.compiled.plan, made.compiled)))
        self.trials.append(trial)
        return trial

    def _reference_agrees(self, made: _Made) -> bool | None:
        """Whether the graph is right when reference kernels compute it; None where they cannot."""
        chosen = backends_for(self.options.device, reference_only=True)
        try:
            placer = Placer(chosen, made.analyzer)
            plan = PlanBuilder(placer, made.analyzer).build(made.compiled.model.graph)
            found = Executor(plan, {b.name: b for b in chosen}, chosen[0])
            outputs = found.run(match_inputs(plan, len(plan.inputs), (), self.inputs))
        except AccordError:
            return None
        worst = self._worst(outputs)
        return worst is None or not worst.is_fault

    def _check_steps(self, made: _Made) -> StepChecker:
        plan = made.compiled.plan
        executor = self._executor(plan, made.compiled, stepwise=True)
        checker = StepChecker(executor, made.compiled.model.graph, made.analyzer, self.bounds)
        with watched(checker):
            executor.run(match_inputs(plan, len(plan.inputs), (), self.inputs))
        return checker
