"""Memory: layouts, places that are taken, inputs that are absent, calls that are not accepted, offsets past 2³¹."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from accord.contract.contract import Parameter
from accord.errors import AccordError
from accord.workbench.buffers import Layout
from accord.workbench.cases import Case, dtype_of, input_shapes, output_shapes
from accord.workbench.checks.judge import finding, judged
from accord.workbench.findings import Finding
from accord.workbench.lab import Check, Lab, Trial
from accord.workbench.subject import REFUSALS, UnusableError

__all__ = ["CHECKS"]


# layouts


def _layouts(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    writes = "strided" in lab.subject.memory.layouts and lab.subject.writes
    s = lab.contract.semantic
    for turn in itertools.count():
        base = (e.typical if turn % 3 == 0 else e.case)(types=e.types()[turn % len(e.types())], seed=turn)
        if base is None:
            return
        rng = lab.rng(base)
        shapes = dict(zip((p.name for p in s.inputs), input_shapes(s, base), strict=True))
        if writes:
            shapes |= dict(zip((p.name for p in s.outputs), output_shapes(s, base), strict=True))
        ranks = {n: len(x) for n, x in shapes.items() if x is not None and len(x) > 0}
        outputs = {p.name for p in s.outputs}
        if not ranks:
            return
        # one tensor by itself, in each of the ways; then all of them in any
        for n, rank in ranks.items() if turn < 2 else ():
            for layout in _ways(rank, output=n in outputs):
                yield base.but(layouts={n: layout})
        chosen = {n: _any(rng, r, output=n in outputs) for n, r in ranks.items() if rng.random() < 0.7}
        if chosen:
            yield base.but(layouts=chosen, side=("end", "begin")[turn % 2])


def _ways(rank: int, *, output: bool) -> list[Layout]:
    last = rank - 1
    found = [Layout(gaps=tuple(2 if a == last else 1 for a in range(rank)))]
    if rank > 1:
        found += [Layout(order=tuple(reversed(range(rank)))), Layout(gaps=(1,) * (rank - 2) + (1, 1))]
        found += [Layout(gaps=tuple(3 if a == 1 else 1 for a in range(rank)), order=(*range(1, rank), 0))]
        found[2] = Layout(gaps=tuple(2 if a == rank - 2 else 1 for a in range(rank)))
    if not output:
        found += [Layout(flip=(last,)), Layout(flip=(0,)), Layout(repeat=(last,)), Layout(repeat=(0,))]
    return found


def _any(rng: np.random.Generator, rank: int, *, output: bool) -> Layout:
    axes = range(rank)
    order = tuple(map(int, rng.permutation(rank))) if rng.random() < 0.6 else ()
    gaps = tuple(map(int, rng.integers(1, 4, rank))) if rng.random() < 0.6 else ()
    flip = tuple(a for a in axes if rng.random() < 0.3) if not output else ()
    repeat = tuple(a for a in axes if rng.random() < 0.2) if not output else ()
    return Layout(order, gaps, flip, repeat)


def _strided(lab: Lab, case: Case) -> Finding | None:
    """Declared layouts give the right results; others give them too, or are refused."""
    trial = lab.trial(case)
    if trial is None or not case.layouts:
        return None
    trial = _repeated(lab, trial)
    if trial is None:
        return None
    outcome = lab.call(trial)
    declared = "strided" in lab.subject.memory.layouts
    if not declared and outcome.status in REFUSALS:
        return None
    found = judged(lab, trial, outcome)
    if found is None or lab.knows(found) or not lab.sound(trial):
        return None
    accepted = "declared" if declared else "not declared, and has to be refused"
    return finding(
        lab, "execution.layouts",
        f"{', '.join(case.layouts)} with other strides: {found.what}", faults=(14, 18) if not declared else (14,),
        case=case, expected=f"{found.expected} (this layout is {accepted})", found=found.found,
        remedy="Use the strides that are given, or refuse the call (raise, or status 1).",
    )  # fmt: skip


def _repeated(lab: Lab, trial: Trial) -> Trial | None:
    """Along an axis of stride 0 all elements are the same."""
    inputs = list(trial.inputs)
    changed = False
    for i, p in enumerate(lab.contract.semantic.inputs):
        layout, x = trial.case.layouts.get(p.name), inputs[i]
        if layout is None or x is None or not layout.repeat or x.size == 0:
            continue
        index = tuple(slice(0, 1) if a in layout.repeat else slice(None) for a in range(x.ndim))
        inputs[i] = np.ascontiguousarray(np.broadcast_to(x[index], x.shape))
        changed = True
    return lab.expect(trial, inputs) if changed else trial


def _outputs_of_stride_0(lab: Lab) -> Iterator[Case]:
    base = lab.explorer.typical()
    if base is None:
        return
    for p, shape in zip(lab.contract.semantic.outputs, output_shapes(lab.contract.semantic, base), strict=True):
        for axis, n in enumerate(shape or ()):
            if n > 1:
                yield base.but(layouts={p.name: Layout(repeat=(axis,))})


def _overlapping(lab: Lab, case: Case) -> Finding | None:
    outputs = {p.name for p in lab.contract.semantic.outputs}
    if not any(n in outputs and x.repeat for n, x in case.layouts.items()):
        return None
    trial = lab.trial(case)
    if trial is None:
        return None
    outcome = lab.call(trial)
    if outcome.status in REFUSALS:
        return None
    return finding(
        lab, "execution.layouts", "an output whose elements share memory (stride 0) is not refused", faults=(18,),
        case=case, expected="status 1", found="status 0" if outcome.ok else outcome.text,
        remedy="Return status 1 where a stride of an output is 0 and its axis is longer than 1.",
    )  # fmt: skip


# absent inputs


def _absent(lab: Lab) -> Iterator[Case]:
    s, e = lab.contract.semantic, lab.explorer
    optional = [p.name for p in s.inputs if p.option == "optional"]
    groups: list[tuple[str, ...]] = [(n,) for n in optional]
    if len(optional) > 1:
        groups += [tuple(optional), *itertools.combinations(optional, 2)]
    for nulls, types in itertools.product(groups, e.types()):
        middling = e.case(types=types, sizes=dict.fromkeys(e.names, 33))
        for base in (e.typical(types=types), e.case(types=types), middling):
            if base is not None:
                yield base.but(nulls=nulls)


def _nulls(lab: Lab, case: Case) -> Finding | None:
    if not case.nulls:
        return None
    trial = lab.trial(case)
    if trial is None:
        return None
    outcome = lab.call(trial)
    declared = set(case.nulls) <= set(lab.subject.memory.nullable)
    if not declared and outcome.status in REFUSALS:
        return None
    found = judged(lab, trial, outcome)
    if found is None or lab.knows(found) or _wrong_anyway(lab, case.but(nulls=())):
        return None
    names = ", ".join(case.nulls)
    return finding(
        lab, "execution.nullable", f"without {names}: {found.what}", faults=(22, 39), case=case,
        expected=f"{found.expected} ({names} is {'nullable' if declared else 'optional; if not nullable: status 1'})",
        found=found.found, remedy="Treat a null pointer (None) as the reference does.",
    )  # fmt: skip


def _wrong_anyway(lab: Lab, case: Case) -> bool:
    trial = lab.trial(case)
    return trial is not None and not lab.sound(trial)


# in place


def _in_place(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    for pair in (*lab.subject.memory.in_place, *lab.subject.memory.state):
        for types in e.types():
            for base in (e.typical(types=types), e.case(types=types), e.case(types=types)):
                if base is not None:
                    yield base.but(in_place=(tuple(pair),))


def _placed(lab: Lab, case: Case) -> Finding | None:
    trial = lab.trial(case)
    if trial is None or not case.in_place:
        return None
    for o, i in case.in_place:
        x = trial.inputs[i]
        if x is None or x.shape != trial.expected[o].own.shape or x.dtype.name != _dtype(lab, o, case):
            return None
    # in a new process: a kernel that is tuned by running it several times does so at first
    subject = lab.fresh()
    try:
        found = judged(lab, trial, lab.call(trial, subject)) or judged(lab, trial, lab.call(trial, subject))
    finally:
        subject.child.close()
    if found is None or lab.knows(found) or not lab.sound(trial):
        return None
    return finding(
        lab, "execution.in_place", f"in place: {found.what}", faults=(5, 34), case=case,
        expected=found.expected, found=found.found,
        remedy="Read each element before it is overwritten, or do not declare it.",
    )  # fmt: skip


def _dtype(lab: Lab, o: int, case: Case) -> str:
    port: Parameter = lab.contract.semantic.outputs[o]
    return dtype_of(port, case)


# what is not accepted


def _outside(lab: Lab) -> Iterator[Case]:
    """Cases in which one condition of the contract does not hold."""
    s, e = lab.contract.semantic, lab.explorer
    rng = np.random.default_rng(lab.seed)
    numbers = [a.name for a in s.attributes.values() if a.kind == "INT"]
    for k, condition in enumerate(s.constraints):
        rest = [c for i, c in enumerate(s.constraints) if i != k]
        count = 0
        for _ in range(200):
            base = e.case()
            if base is None:
                break
            sizes = {n: int(rng.integers(0, 12)) if rng.random() < 0.5 else v for n, v in base.sizes.items()}
            given = {n: int(rng.integers(1, 8)) for n in numbers if n in condition and rng.random() < 0.5}
            case = base.but(sizes=sizes, attributes={**base.attributes, **given})
            if not _holds(lab, [condition], case) and _holds(lab, rest, case):
                count += 1
                yield case
            if count == 4:
                break


def _holds(lab: Lab, conditions: Sequence[str], case: Case) -> bool:
    from accord.workbench.cases import holds

    try:
        input_shapes(lab.contract.semantic, case)
        return holds(lab.contract, conditions, case)
    except AccordError:
        return False


def _refused(lab: Lab, case: Case) -> Finding | None:
    """A call of a Python kernel that breaks a condition, and in which an exception is raised that does not come out.

    The runtime refuses such calls before any kernel sees them, so no kernel need look again; but one that gives a
    result in spite of an exception hides errors.
    """
    broken = [c for c in lab.contract.semantic.constraints if not _holds(lab, [c], case)]
    if not broken:
        return None
    try:
        inputs = lab.oracle.inputs(case)
    except (AccordError, UnusableError):
        return None  # no inputs have such sizes
    try:
        lab.oracle.expected(case, inputs, lab.subject.memory)
    except UnusableError:
        pass
    except AccordError:
        return None
    else:
        return None  # the reference does not mind
    outcome = lab.subject.call(case, inputs, None, traced=True)
    lab.tried += 1
    if not outcome.ok or not outcome.reply.get("raised") or not any(o is not None and o.size for o in outcome.outputs):
        return None
    return finding(
        lab, "semantic.constraints", "a call that the contract does not accept hides an exception", faults=(30,),
        case=case, expected=f"the exception, because '{broken[0]}' does not hold",
        found="success, with results that mean nothing", remedy="Let exceptions pass.",
    )  # fmt: skip


CHECKS = (
    Check("absent inputs", _absent, _nulls,
          lambda lab: any(p.option == "optional" for p in lab.contract.semantic.inputs), least=6),
    Check("layouts", _layouts, _strided,
          lambda lab: not lab.graph and ("strided" in lab.subject.memory.layouts or lab.subject.kind != "library"),
          least=40),
    Check("overlapping outputs", _outputs_of_stride_0, _overlapping,
          lambda lab: lab.subject.writes and "strided" in lab.subject.memory.layouts, share=0.2),
    Check("in place", _in_place, _placed, lambda lab: lab.subject.writes, share=0.5, least=3),
    Check("conditions", _outside, _refused,
          lambda lab: lab.subject.kind == "python" and bool(lab.contract.semantic.constraints), share=0.5, least=8),
)  # fmt: skip
