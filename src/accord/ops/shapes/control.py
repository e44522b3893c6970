"""Shape rules of control flow: If, Loop, Scan and SequenceMap infer their body graphs.

Bodies share the fact table of the graph around them. What a loop carries is found by iteration to a fixpoint: the
body is inferred with what is known before the first round, and every size, rank or content that the body changes is
given up (a size becomes a symbol of its own) until nothing changes any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import onnx_ir as ir

from accord.errors import ModelTypeError
from accord.ir import dims as D
from accord.ir.dims import Dim, DimLike, Shape
from accord.ir.facts import (
    Fact,
    OptionalFact,
    OtherFact,
    SequenceFact,
    TensorFact,
    constant_fact,
    fact_of_type,
    same_kind,
)
from accord.ir.infer import Inference
from accord.ops.shapes.common import (
    VARYING,
    axis_of,
    elements,
    graph_attr,
    int_attr,
    ints_attr,
    join,
    opened,
    operator,
    same_size,
)
from accord.ops.shapes.sequence import sequence_at

BOOL = ir.DataType.BOOL
INT64 = ir.DataType.INT64

#: Rounds after which a loop's carried shapes are given up altogether; models need two or three.
_ROUNDS = 8


def _infer(n: Inference, body: ir.Graph) -> list[Fact]:
    n.analyzer.infer_graph(body)
    return [n.analyzer.facts.get(o) for o in body.outputs]


@contextmanager
def _inner_symbols(n: Inference) -> Iterator[set[str]]:
    """Collects the names of symbols that are made inside: they mean nothing outside of the body."""
    analyzer = n.analyzer
    outer = analyzer.created
    inner: set[str] = set()
    analyzer.created = inner
    try:
        yield inner
    finally:
        analyzer.created = outer | inner


def _map_sizes(fact: Fact, change: Callable[[DimLike], DimLike]) -> Fact:
    """``fact`` with every size (of a tensor, of the elements of a sequence, of an optional) changed."""
    if isinstance(fact, TensorFact):
        shape = None if fact.shape is None else tuple(change(d) for d in fact.shape)
        data = None if fact.data is None else tuple(change(d) for d in fact.data)
        if shape == fact.shape and data == fact.data and fact.table is None:
            return fact
        # Elements are no sizes: one that changes is not worth a symbol.
        return TensorFact(fact.dtype, shape, const=fact.const, data=fact.data if data == fact.data else None)
    if isinstance(fact, SequenceFact):
        length = fact.length if fact.length is None or change(fact.length) == fact.length else None
        return SequenceFact(None if fact.element is None else _map_sizes(fact.element, change), length)
    if isinstance(fact, OptionalFact) and fact.element is not None:
        return OptionalFact(_map_sizes(fact.element, change))
    return fact


def _outward(n: Inference, fact: Fact, inner: Collection[str], known: dict[DimLike, DimLike] | None = None) -> Fact:
    """``fact`` without symbols of a body; equal sizes get the same new symbol where ``known`` is given."""

    def change(d: DimLike) -> DimLike:
        if isinstance(d, int) or D.symbols_of(d).isdisjoint(inner):
            return d
        if known is None:
            return n.fresh()
        if d not in known:
            known[d] = n.fresh()
        return known[d]

    if isinstance(fact, SequenceFact):
        return _map_sizes(fact, lambda d: d if isinstance(d, int) or D.symbols_of(d).isdisjoint(inner) else VARYING)
    return _map_sizes(fact, change)


# If --------------------------------------------------------------------------------------------------------------


@operator("If", required=("then_branch", "else_branch"), tensors=False)
def if_(n: Inference) -> list[Fact]:
    """What both branches agree on; the taken branch alone where the condition is constant."""
    branches = graph_attr(n, "then_branch"), graph_attr(n, "else_branch")
    for branch in branches:
        n.require(
            len(branch.outputs) == len(n.node.outputs) and not branch.inputs,
            "a branch has the wrong signature",
            expected=f"no inputs, {len(n.node.outputs)} outputs",
            found=f"{len(branch.inputs)} inputs, {len(branch.outputs)} outputs",
        )
    condition = n.tensor(0)
    n.require(condition.dtype in (None, BOOL), "condition has the wrong dtype", expected="BOOL", found=condition.dtype)
    decided = elements(condition)
    with _inner_symbols(n) as inner:
        if decided is not None and len(decided) == 1 and isinstance(decided[0], int):
            taken, other = branches if decided[0] else branches[::-1]
            # The other branch never runs; exporters write ones there that contradict the sizes at hand.
            with suppress(ModelTypeError):
                _infer(n, other)
            outs = _infer(n, taken)
        else:
            yes, no = (_infer(n, b) for b in branches)
            pairs: dict[tuple[DimLike, DimLike], DimLike] = {}

            def vary(a: DimLike, b: DimLike) -> DimLike:
                if (a, b) not in pairs:
                    pairs[a, b] = n.fresh()
                return pairs[a, b]

            outs = [join(n, a, b, vary) for a, b in zip(yes, no, strict=True)]
            inner -= {str(d) for d in pairs.values()}
    known: dict[DimLike, DimLike] = {}
    return [_outward(n, f, inner, known) for f in outs]


# loops -----------------------------------------------------------------------------------------------------------


def _start(fact: Fact, declared: ir.Value) -> Fact:
    """The fact of a carried value; its declared kind and dtype where nothing else is known."""
    return fact_of_type(declared.type, None, "") if isinstance(fact, OtherFact) else fact


def _given_up(fact: Fact) -> Fact:
    if isinstance(fact, TensorFact):
        return TensorFact(fact.dtype, None)
    return SequenceFact(None) if isinstance(fact, SequenceFact) else OtherFact()


def _fixpoint(
    n: Inference,
    body: ir.Graph,
    lead: Sequence[Fact],
    initial: Sequence[Fact],
    pinned: Collection[int] = (),
) -> tuple[list[Fact], list[Fact], set[str]]:
    """Facts of what ``body`` carries, of its outputs, and the symbols that hold inside of it only.

    Args:
        n: The loop's node.
        body: Its inputs are ``lead`` and the carried values; its outputs begin with the carried values.
        lead: Facts that are the same in every round.
        initial: Facts of the carried values before the first round.
        pinned: Carried values whose fact the body cannot change.
    """
    facts = n.analyzer.facts
    values = list(body.inputs)
    carried = values[len(lead) :]
    state = [_start(f, v) for f, v in zip(initial, carried, strict=True)]
    for value, fact in zip(values, (*lead, *state), strict=True):
        facts[value] = fact
    widened: set[str] = set()

    def vary(a: DimLike, b: DimLike) -> DimLike:
        if isinstance(a, Dim) and str(a) in widened:
            return a
        new = n.fresh()
        widened.add(str(new))
        return new

    with _inner_symbols(n) as inner:
        for _ in range(_ROUNDS):
            outs = _infer(n, body)
            new = [s if i in pinned else join(n, s, o, vary) for i, (s, o) in enumerate(zip(state, outs, strict=False))]
            if all(a is b for a, b in zip(state, new, strict=True)):
                break
            state = new
            for value, fact in zip(carried, state, strict=True):
                facts[value] = fact
        else:
            state = [f if i in pinned else _given_up(f) for i, f in enumerate(state)]
            for value, fact in zip(carried, state, strict=True):
                facts[value] = fact
            outs = _infer(n, body)
    return state, outs, inner | widened


def _collected(n: Inference, fact: Fact, inner: Collection[str], count: DimLike, axis: int = 0) -> TensorFact:
    """A scan output: one element per round on a new axis. Elements have one shape in all rounds."""
    if not isinstance(fact, TensorFact):
        raise n.error("scan outputs are tensors", expected="a tensor", found=str(fact))
    if fact.shape is None:
        return TensorFact(fact.dtype, None)
    shape = _outward(n, fact.with_shape(fact.shape), inner)
    axis = axis_of(n, axis, len(fact.shape) + 1)
    sizes: Shape = shape.shape if isinstance(shape, TensorFact) and shape.shape is not None else ()
    return TensorFact(fact.dtype, (*sizes[:axis], count, *sizes[axis:]))


@operator("Loop", inputs=0, required=("body",), tensors=False)
def loop(n: Inference) -> list[Fact]:
    """Carried values by fixpoint; scan outputs get the trip count as first axis."""
    body = graph_attr(n, "body")
    initial = n.inputs[2:]
    count = len(initial)
    scans = len(n.node.outputs) - count
    n.require(
        len(body.inputs) == count + 2 and len(body.outputs) == 1 + count + scans,
        "the body has the wrong signature",
        expected=f"{count + 2} inputs, {1 + count + scans} outputs",
        found=f"{len(body.inputs)} inputs, {len(body.outputs)} outputs",
    )
    limit = elements(n.tensor(0)) if n.has(0) else None
    condition = n.tensor(1) if n.has(1) else TensorFact(BOOL, ())
    n.require(condition.dtype in (None, BOOL), "condition has the wrong dtype", expected="BOOL", found=condition.dtype)
    # A round only begins while the condition holds. Without the input the body's condition may be anything.
    holds = constant_fact(np.ones([1] * len(condition.shape or ()), dtype=np.bool_))
    iteration = TensorFact(INT64, ())
    state, outs, inner = _fixpoint(n, body, [iteration], [holds, *initial], pinned={0} if n.has(1) else ())
    again = elements(outs[0]) if isinstance(outs[0], TensorFact) else None
    first = elements(condition) if n.has(1) else (1,)
    trips: DimLike
    if first is not None and first[:1] == (0,):
        trips = 0
    elif first is not None and first[:1] == (1,) and again == (1,) and limit is not None and len(limit) == 1:
        trips = D.maximum(limit[0], 0)
    else:
        trips = n.fresh()
    final = [_outward(n, _start(f, o), inner) for f, o in zip(state[1:], body.outputs[1:], strict=False)]
    return [*final, *(_collected(n, f, inner, trips) for f in outs[1 + count :])]


@operator("Scan", inputs=0, required=("body", "num_scan_inputs"), tensors=True)
def scan(n: Inference) -> list[Fact]:
    """States keep their shape; scan outputs get the length of the scan inputs on their axis.

    Version 8 has a leading input for sequence lengths, and a batch axis in front of everything.
    """
    body = graph_attr(n, "body")
    batched = n.opset < 9
    given = n.inputs[1:] if batched else n.inputs
    scanned = int_attr(n, "num_scan_inputs", 1, low=0)
    count = len(given) - scanned
    collected = len(n.node.outputs) - count
    n.require(
        count >= 0 and collected >= 0 and len(body.inputs) == len(given) and len(body.outputs) == len(n.node.outputs),
        "the body has the wrong signature",
        expected=f"{len(given)} inputs, {len(n.node.outputs)} outputs",
        found=f"{len(body.inputs)} inputs, {len(body.outputs)} outputs",
    )
    axes = ints_attr(n, "scan_input_axes", length=scanned) or (0,) * scanned
    out_axes = ints_attr(n, "scan_output_axes", length=collected) or (0,) * collected
    for name, length in (("scan_input_directions", scanned), ("scan_output_directions", collected)):
        for direction in ints_attr(n, name, length=length) or ():
            n.require(direction in (0, 1), f"attribute {name} is malformed", expected="0 or 1 each", found=direction)
    initial = list(given[:count])
    batch: DimLike | None = None
    parts: list[Fact] = []
    trips: DimLike | None = None
    for i, fact in enumerate(given[count:]):
        x = _as_tensor(fact)
        if x.shape is None:
            parts.append(TensorFact(x.dtype, None))
            continue
        shape = x.shape
        if batched:
            n.require(len(shape) >= 2, "input has the wrong rank", expected="at least 2", found=len(shape))
            batch = shape[0]
            shape = shape[1:]
        axis = axis_of(n, axes[i], len(shape))
        trips = shape[axis] if trips is None else same_size(n, trips, shape[axis], "lengths of the scan inputs")
        parts.append(TensorFact(x.dtype, shape[:axis] + shape[axis + 1 :]))
    if batched:
        initial = [_without_batch(f) for f in initial]
    # The specification wants one shape of each state in all rounds; only the content changes.
    state = [TensorFact(f.dtype, f.shape) for f in map(_as_tensor, initial)]
    for value, fact in zip(body.inputs, (*state, *parts), strict=True):
        n.analyzer.facts[value] = fact
    with _inner_symbols(n) as inner:
        outs = _infer(n, body)
    for before, after in zip(state, outs, strict=False):
        if not same_kind(before, after):
            raise n.error("a state changes from round to round", expected=str(before), found=str(after))
    steps: DimLike = n.fresh() if trips is None else trips
    out = [*state, *(_collected(n, f, inner, steps, axis) for f, axis in zip(outs[count:], out_axes, strict=True))]
    if batched:
        size: DimLike = n.fresh() if batch is None else batch
        out = [TensorFact(f.dtype, None if f.shape is None else (size, *f.shape)) for f in out]
    return list(out)


def _as_tensor(fact: Fact) -> TensorFact:
    return fact if isinstance(fact, TensorFact) else TensorFact(None, None)


def _without_batch(fact: Fact) -> Fact:
    return TensorFact(fact.dtype, fact.shape[1:]) if isinstance(fact, TensorFact) and fact.shape else fact


@operator("SequenceMap", required=("body",), tensors=False)
def sequence_map(n: Inference) -> list[Fact]:
    """One sequence per output of the body, as long as the first input."""
    body = graph_attr(n, "body")
    n.require(
        len(body.inputs) == len(n.inputs) and len(body.outputs) == len(n.node.outputs),
        "the body has the wrong signature",
        expected=f"{len(n.inputs)} inputs, {len(n.node.outputs)} outputs",
        found=f"{len(body.inputs)} inputs, {len(body.outputs)} outputs",
    )
    first = sequence_at(n, 0)
    with _inner_symbols(n) as inner:
        for value, fact in zip(body.inputs, (first, *n.inputs[1:]), strict=True):
            n.analyzer.facts[value] = opened(n, fact.element) if isinstance(fact, SequenceFact) else fact
        outs = _infer(n, body)
    plain = [TensorFact(f.dtype, f.shape) if isinstance(f, TensorFact) else f for f in outs]
    return [_outward(n, SequenceFact(f, first.length), inner) for f in plain]
