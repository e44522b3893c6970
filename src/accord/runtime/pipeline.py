"""The pipeline: from a loaded model to a plan, stage by stage.

==========  ===========================================================================
stage       what holds after it
==========  ===========================================================================
loaded      the file's graph, checked
normalised  one operator version, functions inlined, every value has a fact
declutter   constants folded, no-ops and duplicates gone
fuse        operators joined into model-local functions
==========  ===========================================================================

Each of these is a valid ONNX model and can be dumped. Then come ``placed`` (a kernel for each node) and ``planned``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import onnx_ir as ir

import accord.ops.catalog  # noqa: F401  registers shape rules and expansions
from accord.backends.discovery import backends_for
from accord.backends.protocol import Backend
from accord.errors import AccordError
from accord.ir.infer import Analyzer
from accord.model.limits import DEFAULT_LIMITS, Limits
from accord.model.load import load_model
from accord.model.normalise import normalise
from accord.model.operands import check_operands, declared_outputs
from accord.passes.manager import PassLog, PassManager
from accord.passes.phases import MAX_LEVEL, phases, rule_names
from accord.placement.placer import Placer
from accord.plan.builder import PlanBuilder
from accord.plan.plan import Plan
from accord.runtime.evaluate import evaluate_node

__all__ = ["STAGES", "Compiled", "Options", "StageHook", "compile_model"]

#: Called after a stage with its name, the model and the facts (None before there are any).
StageHook: TypeAlias = Callable[[str, ir.Model, Analyzer | None], None]

STAGES = ("loaded", "normalised", "declutter", "fuse")


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is compiled.

    Attributes:
        device: "cpu", "null", or what an installed backend serves.
        level: 0 (rewrite nothing) to 3 (all rules).
        disabled_rules: Names of rules that must not run.
        strict: A node that only a fall-back backend can run is an error.
        threads: Threads for one run; None: as many as the process may use.
        stop_after: Apply at most this many patches (for finding one at fault).
        reference: Use the reference backend only.
        base_dir: Folder of external data; None: the folder of the model's path.
        limits: How large the model may be; None: the defaults of :class:`accord.model.limits.Limits`.
    """

    device: str = "cpu"
    level: int = MAX_LEVEL
    disabled_rules: tuple[str, ...] = ()
    strict: bool = False
    threads: int | None = None
    stop_after: int | None = None
    reference: bool = False
    base_dir: str | os.PathLike[str] | None = None
    limits: Limits | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.level <= MAX_LEVEL:
            raise AccordError("unknown optimisation level", expected=f"0 to {MAX_LEVEL}", found=self.level)
        unknown = set(self.disabled_rules) - set(rule_names())
        if unknown:
            raise AccordError(
                f"unknown rule {', '.join(sorted(unknown))}", expected=f"names among {', '.join(rule_names())}"
            )


@dataclass(slots=True)
class Compiled:
    """A compiled model.

    Attributes:
        model: The graph after the last rewrite.
        plan: What runs.
        backends: By name.
        device: The backend that makes output arrays.
        log: Patches and reasons.
        notes: What ``normalise`` did.
        seconds: Time for each stage.
    """

    model: ir.Model
    plan: Plan
    backends: dict[str, Backend]
    device: Backend
    log: PassLog
    notes: Sequence[str]
    seconds: dict[str, float] = field(default_factory=dict)


def compile_model(source: Any, options: Options, *, on_stage: StageHook | None = None) -> Compiled:
    """Run all stages.

    Args:
        source: Path, bytes, ``ModelProto``, ``onnx_ir.Model`` or a binary file object.
        options: How to compile.
        on_stage: Called after each stage with its name, the model and the facts; it must not change the model.

    Raises:
        ModelError: the model is wrong.
        UnsupportedError: nothing can run it.
    """
    seconds: dict[str, float] = {}
    start = time.perf_counter()

    def done(stage: str, model: ir.Model, analyzer: Analyzer | None) -> None:
        nonlocal start
        seconds[stage] = time.perf_counter() - start
        if on_stage is not None:
            on_stage(stage, model, analyzer)
        start = time.perf_counter()

    model = load_model(source, limits=options.limits or DEFAULT_LIMITS, base_dir=options.base_dir)
    done("loaded", model, None)
    chosen = backends_for(options.device, reference_only=options.reference)
    declared = declared_outputs(model)
    result = normalise(model, evaluator=evaluate_node)
    analyzer = result.analyzer
    check_operands(model, analyzer.facts, analyzer.opsets, declared)
    done("normalised", model, analyzer)
    manager = PassManager(model, analyzer, disabled=options.disabled_rules, stop_after=options.stop_after)
    for phase in phases():
        manager.run_phase(phase.name, phase.rules, options.level)
        done(phase.name, model, analyzer)
    placer = Placer(chosen, analyzer, strict=options.strict)
    plan = PlanBuilder(placer, analyzer, threads=thread_count(options.threads)).build(model.graph)
    done("planned", model, analyzer)
    return Compiled(
        model, plan, {b.name: b for b in chosen}, chosen[0], manager.log, [str(n) for n in result.notes], seconds
    )


def thread_count(requested: int | None) -> int:
    """Threads to use: what was asked for, else what affinity and the container's CPU quota allow.

    Raises:
        AccordError: fewer than one was asked for.
    """
    from accord.backends.cpu.machine import usable_cores

    if requested is None:
        return usable_cores()
    if requested < 1:
        raise AccordError("the number of threads must be at least 1", found=requested)
    return requested


def disabled_tuple(rules: Collection[str] | str) -> tuple[str, ...]:
    """Rule names as a tuple; a single name may be given as a string."""
    return (rules,) if isinstance(rules, str) else tuple(rules)
