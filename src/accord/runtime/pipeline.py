"""The pipeline: from a loaded model to a plan, stage by stage.

==========  ===========================================================================
stage       what holds after it
==========  ===========================================================================
loaded      the file's graph, checked
normalised  one operator version, functions inlined, every value has a fact
integers    contractions of dequantised tensors are products of integers
declutter   constants folded, no-ops and duplicates gone
recognise   operators that an exporter took apart are whole again
precision   values are stored in 16 bits where that was asked for and contracts allow it
fuse        elementwise operators computed on the results of contractions and windows
join        other connected operators in one loop nest
==========  ===========================================================================

Each of these is a valid ONNX model and can be dumped. Then come ``placed`` (a kernel for each node) and ``planned``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import onnx_ir as ir

import accord.ops.catalog  # noqa: F401  registers shape rules and expansions
from accord.backends.discovery import backends_for
from accord.backends.protocol import Backend
from accord.backends.view import NodeView
from accord.ir.dims import Dim
from accord.ir.infer import Analyzer
from accord.ir.reason import Reason
from accord.model.limits import DEFAULT_LIMITS
from accord.model.load import load_model
from accord.model.normalise import Decide, normalise
from accord.model.operands import check_operands, declared_outputs
from accord.passes.manager import PassLog, PassManager
from accord.passes.phases import phases
from accord.placement.placer import Placer
from accord.plan.builder import PlanBuilder
from accord.plan.plan import Plan
from accord.runtime.evaluate import evaluate_node
from accord.runtime.interface import Interface
from accord.runtime.options import MAX_LEVEL, Options, thread_count
from accord.runtime.signature import complete, declared_interface

__all__ = ["STAGES", "Compiled", "StageHook", "check_model", "compile_model"]

#: Called after a stage with its name, the model and the facts (None before there are any).
StageHook: TypeAlias = Callable[[str, ir.Model, Analyzer | None], None]

STAGES = ("loaded", "normalised", "integers", "declutter", "recognise", "precision", "fuse", "join")


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
        interface: What the file says of inputs, outputs and origin.
        external: Path, size and time of change of each file with external data.
        decisions: What was taken to be so of sizes: expressions and their values.
        operators: Domain and name of each operator in the file.
    """

    model: ir.Model
    plan: Plan
    backends: dict[str, Backend]
    device: Backend
    log: PassLog
    notes: Sequence[str]
    interface: Interface
    seconds: dict[str, float] = field(default_factory=dict)
    external: tuple[tuple[str, int, int], ...] = ()
    decisions: tuple[tuple[Dim, int], ...] = ()
    operators: frozenset[tuple[str, str]] = frozenset()


def compile_model(
    source: Any, options: Options, *, on_stage: StageHook | None = None, decide: Decide | None = None
) -> Compiled:
    """Run all stages.

    Args:
        source: Path, bytes, ``ModelProto``, ``onnx_ir.Model`` or a binary file object.
        options: How to compile.
        on_stage: Called after each stage with its name, the model and the facts; it must not change the model.
        decide: Which branch to take where the sizes of inputs decide; see :func:`~accord.model.normalise.normalise`.

    Raises:
        ModelError: the model is wrong.
        UnsupportedError: nothing can run it.
    """
    chosen = backends_for(options.device, reference_only=options.reference)
    with chosen[0].active():
        return _compile_for(chosen, source, options, on_stage, decide)


def _compile_for(
    chosen: Sequence[Backend], source: Any, options: Options, on_stage: StageHook | None, decide: Decide | None
) -> Compiled:
    seconds: dict[str, float] = {}
    start = time.perf_counter()

    def done(stage: str, model: ir.Model, analyzer: Analyzer | None) -> None:
        nonlocal start
        seconds[stage] = time.perf_counter() - start
        if on_stage is not None:
            on_stage(stage, model, analyzer)
        start = time.perf_counter()

    opened: list[tuple[str, int, int]] = []
    model = load_model(source, limits=options.limits or DEFAULT_LIMITS, base_dir=options.base_dir, opened=opened)
    interface = declared_interface(model)
    graphs = (model.graph, *(f.graph for f in model.functions.values()))
    operators = frozenset((n.domain, n.op_type) for g in graphs for n in ir.traversal.RecursiveGraphIterator(g))
    done("loaded", model, None)
    declared = declared_outputs(model)
    decisions: dict[Dim, int] = {}

    def noted(condition: Dim) -> bool | None:
        truth = None if decide is None else decide(condition)
        if truth is not None:
            decisions[condition] = int(truth)
        return truth

    result = normalise(model, evaluator=evaluate_node, decide=None if decide is None else noted)
    analyzer = result.analyzer
    halves = options.precision == "float16" or (options.precision == "bfloat16" and chosen[0].stores_halves)
    analyzer.storage = options.precision if halves else None
    analyzer.precision = "float32" if halves else options.precision
    analyzer.choices = dict(options.choices or ())
    analyzer.device = chosen[0].device
    check_operands(model, analyzer.facts, analyzer.opsets, declared)
    done("normalised", model, analyzer)
    own = [b for b in chosen if b.device == chosen[0].device]
    manager = PassManager(
        model,
        analyzer,
        disabled=options.disabled_rules,
        stop_after=options.stop_after,
        fuses=lambda node: chosen[0].fuses(NodeView(node, analyzer)),
        joins=lambda nodes: chosen[0].joins([NodeView(n, analyzer) for n in nodes]),
        runs=lambda node: _runs(own, NodeView(node, analyzer)),
        device=chosen[0].device,
    )
    for phase in phases():
        level = MAX_LEVEL if phase.asked and analyzer.storage is not None else options.level
        manager.run_phase(phase.name, phase.rules, level, native=phase.native)
        done(phase.name, model, analyzer)
    placer = Placer(chosen, analyzer, strict=options.strict)
    plan = PlanBuilder(placer, analyzer, threads=thread_count(options.threads)).build(model.graph)
    done("planned", model, analyzer)
    return Compiled(
        model,
        plan,
        {b.name: b for b in chosen},
        chosen[0],
        manager.log,
        [str(n) for n in result.notes],
        complete(interface, plan),
        seconds,
        tuple(opened),
        tuple(decisions.items()),
        operators,
    )


def _runs(backends: Sequence[Backend], view: NodeView) -> Reason | None:
    """None if a backend that is no fall-back has a kernel for a node (or if there are none but fall-backs)."""
    native = [b for b in backends if not b.fallback]
    refused: Reason | None = None
    for backend in native:
        kernel = backend.select(view)
        if not isinstance(kernel, Reason):
            return None
        refused = refused or kernel
    return refused


def check_model(source: Any, options: Options) -> None:
    """Look for what is wrong in a model, in all branches.

    Raises:
        ModelError: the model is wrong.
    """
    model = load_model(source, limits=options.limits or DEFAULT_LIMITS, base_dir=options.base_dir)
    declared = declared_outputs(model)
    result = normalise(model, evaluator=evaluate_node)
    check_operands(model, result.analyzer.facts, result.analyzer.opsets, declared)
