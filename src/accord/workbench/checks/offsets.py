"""Offsets past 2³¹ elements: rows of C functions, rows that an index chooses of any function."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from accord.contract.contract import Parameter
from accord.contract.sizes import evaluate_size, names_in
from accord.workbench.buffers import dtype_named
from accord.workbench.cases import Case, attributes_of, dtype_of, output_shapes
from accord.workbench.checks.judge import finding
from accord.workbench.far import LIMIT, FarTensor, Pages, rows_of_window
from accord.workbench.findings import Finding
from accord.workbench.lab import Check, Lab, Trial
from accord.workbench.oracle import Expected
from accord.workbench.subject import Outcome

__all__ = ["CHECKS"]

Array: TypeAlias = "np.ndarray[Any, Any]"

#: Rows behind the 2³¹st element, and how many that differ there are before it.
_TAIL = 64
#: Windows of the calls by which the time of a long one is estimated, and seconds of a processor that it may take.
_FEW, _SAMPLE, _PATIENCE = 4, 60, 6.0
#: What is wrong with any call is wrong with a long one.
_PLAIN = {"meaning", "process", "memory", "execution.workspace", "execution.layouts", "scheduling.stateless",
          "scheduling.deterministic"}  # fmt: skip


def _cases(lab: Lab) -> Iterator[Case]:
    small = min(lab.explorer.types(), key=lambda t: min((dtype_named(d).itemsize for d in t.values()), default=1))
    for size in (64 if len(lab.explorer.names) < 3 else 8, 4):
        base = lab.explorer.case(types=small, sizes=dict.fromkeys(lab.explorer.names, size), lead=(size,))
        if base is not None:
            yield base
            return


def _far(lab: Lab, case: Case) -> Finding | None:
    if _PLAIN & {f.clause for f in lab.findings}:
        return None
    if "strided" in lab.subject.memory.layouts:
        return _apart(lab, case)
    return _beyond(lab, case)


def _apart(lab: Lab, case: Case) -> Finding | None:
    """Few rows, 2³⁰ elements apart."""
    trial = lab.trial(case)
    if trial is None or any(e.own.size == 0 for e in trial.expected) or not lab.sound(trial):
        return None
    pages = Pages()
    try:
        inputs = [None if x is None else _spread(pages, x, x.shape, x.dtype.name) for x in trial.inputs]
        s = lab.contract.semantic
        outputs = [
            _spread(pages, None, e.own.shape, dtype_of(p, case)) for p, e in zip(s.outputs, trial.expected, strict=True)
        ]
        outcome = _called(lab, case, pages, inputs, outputs)
        if outcome.ok:
            outcome.outputs = [
                np.stack([pages.read(start, t.shape[1:], t.dtype) for _, start, _ in t.pieces])
                if t.shape
                else pages.read(t.pieces[0][1], (), t.dtype)
                for t in outputs
            ]
        return _verdict(lab, case, trial, outcome)
    finally:
        pages.close()


def _spread(pages: Pages, x: Array | None, shape: tuple[int, ...], dtype: str) -> FarTensor:
    item = dtype_named(dtype).itemsize
    inner = tuple(int(math.prod(shape[a + 1 :])) * item for a in range(len(shape)))
    if not shape:
        start, size = pages.add(x, item)
        return FarTensor(shape, (), dtype, [(0, start, size)])
    row = int(math.prod(shape[1:])) * item
    step = (LIMIT // 2 + 4096) * item
    pieces = []
    for i in range(shape[0]):
        start, size = pages.add(None if x is None else x[i : i + 1], row)
        pieces.append((i * step, start, size))
    return FarTensor(shape, (step, *inner[1:]), dtype, pieces)


def _beyond(lab: Lab, case: Case) -> Finding | None:
    """So many rows that there are more than 2³¹ elements."""
    axis = _rows(lab, case)
    if axis is None:
        return None
    trial = lab.trial(_sized(case, axis, 1))
    if trial is None:
        return None
    s = lab.contract.semantic
    parts = {p.name: x for p, x in zip(s.inputs, trial.inputs, strict=True)}
    parts |= {p.name: e.own for p, e in zip(s.outputs, trial.expected, strict=True)}
    tensors = [p.name for p in (*s.inputs, *s.outputs) if _has(p.sizes, axis) and parts[p.name] is not None]
    given = [x for n in tensors if (x := parts[n]) is not None]
    elements = max(x.size for x in given)
    window = math.lcm(*(rows_of_window(x.nbytes) for x in given if x.nbytes))
    count = math.ceil(LIMIT / max(1, elements) / window) * window
    if not elements or window * elements > LIMIT // 64:
        return None
    both = lab.trial(_sized(case, axis, 2 * _TAIL))
    if both is None or not lab.sound(both):
        return None
    part, tail = (_slice(lab, both, axis, slice(k, k + _TAIL)) for k in (0, _TAIL))
    child = lab.subject.child
    times = [child.seconds()]
    for windows in (_FEW, _FEW + _SAMPLE):
        found = _repeated(lab, case, axis, part, tail, window, windows)
        times.append(child.seconds())
        if found is not None:
            return found
    took = (times[2] - 2 * times[1] + times[0]) / (_SAMPLE * window) * count
    if took > _PATIENCE:
        lab.notes.append(f"offsets past 2³¹ elements: a call would take about {took:.0f} s of a processor")
        return None
    return _repeated(lab, case, axis, part, tail, window, count // window)


def _slice(lab: Lab, trial: Trial, axis: str, rows: slice) -> Trial:
    """Some rows of a call whose rows do not depend on each other."""
    ports = zip(lab.contract.semantic.inputs, trial.inputs, strict=True)
    inputs = [x[rows] if x is not None and _has(p.sizes, axis) else x for p, x in ports]
    expected = [
        Expected(e.value[rows], None if e.slack is None else e.slack[rows], [c[rows] for c in e.choices], e.own[rows])
        for e in trial.expected
    ]
    return Trial(_sized(trial.case, axis, _TAIL), inputs, expected)


def _repeated(lab: Lab, case: Case, axis: str, part: Trial, tail: Trial, window: int, windows: int) -> Finding | None:
    """A call with windows of rows that repeat those of ``part``, and those of ``tail`` behind them."""
    s = lab.contract.semantic
    count = windows * window
    pages = Pages()
    try:
        inputs = [
            None if x is None else _many(pages, x, y, window, count) if _has(p.sizes, axis) else _alone(pages, x)
            for p, x, y in zip(s.inputs, part.inputs, tail.inputs, strict=True)
        ]
        shapes = zip(s.outputs, part.expected, strict=True)
        outputs = [_many(pages, None, None, window, count, e.own.shape, dtype_of(p, case)) for p, e in shapes]
        full = _sized(case, axis, count + _TAIL)
        outcome = _called(lab, full, pages, inputs, outputs)
        if not outcome.ok:
            return _verdict(lab, case, tail, outcome, count)
        for trial, which, first in ((part, 0, 0), (part, 0, window - _TAIL), (tail, -1, 0)):
            outcome.outputs = [
                pages.read(t.pieces[which][1] + first * t.strides[0], (_TAIL, *t.shape[1:]), t.dtype) for t in outputs
            ]
            found = _verdict(lab, case, trial, outcome, count)
            if found is not None:
                return found
        return None
    finally:
        pages.close()


def _rows(lab: Lab, case: Case) -> str | None:
    """The name of the first axis, if a slice along it by itself gives that slice; "" for leading axes."""
    s = lab.contract.semantic
    firsts = {p.sizes[0] for p in s.outputs if p.sizes} | {None for p in s.outputs if not p.sizes}
    if len(firsts) != 1:
        return None
    first = firsts.pop()
    axis = "" if first == "..." else first
    if not isinstance(axis, str) or (axis and axis not in case.sizes):
        return None
    ports = (*s.inputs, *s.outputs)
    if axis and any(axis in names_in(str(x)) and (k > 0 or x != axis) for p in ports for k, x in _axes(p)):
        return None
    whole = lab.trial(_sized(case, axis, 4))
    if whole is None:
        return None
    for i in range(4):
        inputs = [
            x[i : i + 1] if x is not None and _has(p.sizes, axis) else x
            for p, x in zip(s.inputs, whole.inputs, strict=True)
        ]
        one = lab.expect(Trial(_sized(case, axis, 1), [], []), [None if x is None else x.copy() for x in inputs])
        if one is None or not all(
            np.array_equal(a.own[i : i + 1], b.own, equal_nan=a.slack is not None)
            for a, b in zip(whole.expected, one.expected, strict=True)
        ):
            return None
    return axis


def _axes(p: Parameter) -> list[tuple[int, int | str]]:
    """Axes and their declared sizes."""
    return [(k, x) for k, x in enumerate(p.sizes or ()) if x != "..."]


def _has(sizes: Sequence[Any] | None, axis: str) -> bool:
    return bool(sizes) and sizes[0] == (axis or "...")  # type: ignore[index]


def _sized(case: Case, axis: str, n: int) -> Case:
    return case.but(sizes={**case.sizes, axis: n}) if axis else case.but(lead=(n,))


def _row_major(shape: Sequence[int], dtype: str) -> tuple[int, ...]:
    item = dtype_named(dtype).itemsize
    return tuple(int(math.prod(shape[a + 1 :])) * item for a in range(len(shape)))


def _alone(pages: Pages, x: Array) -> FarTensor:
    """A tensor as it is."""
    start, size = pages.add(x, x.nbytes)
    return FarTensor(x.shape, _row_major(x.shape, x.dtype.name), x.dtype.name, [(0, start, size)])


def _many(
    pages: Pages,
    x: Array | None,
    tail: Array | None,
    window: int,
    count: int,
    shape: tuple[int, ...] = (),
    dtype: str = "",
) -> FarTensor:
    """``count`` rows that repeat those of ``x``, a window of them in memory, and those of ``tail``."""
    if x is not None:
        shape, dtype = x.shape, x.dtype.name
    strides = _row_major(shape, dtype)
    row = strides[0]
    start, size = pages.add(None if x is None else np.tile(x, (window // len(x), *(1,) * (x.ndim - 1))), window * row)
    pieces = [(at, start, size) for at in range(0, count * row, size)]
    pieces.append((count * row, *pages.add(tail, _TAIL * row)))
    return FarTensor((count + _TAIL, *shape[1:]), strides, dtype, pieces)


def _called(
    lab: Lab, case: Case, pages: Pages, inputs: Sequence[FarTensor | None], outputs: Sequence[FarTensor]
) -> Outcome:
    """A call; for a function that returns its outputs, there are none to give."""
    given = [t for t in (*inputs, *outputs) if t is not None]
    numbers = iter(range(len(given)))
    spec = {
        "tensors": [dataclasses.asdict(t) for t in given],
        "inputs": [None if t is None else next(numbers) for t in inputs],
        "outputs": [next(numbers) for _ in outputs],
        "workspace": lab.subject.workspace(case),
        "attributes": attributes_of(lab.contract.semantic, case),
    }
    lab.tried += 1
    return lab.subject.far(case, spec, pages.file)


def _verdict(lab: Lab, case: Case, trial: Trial, outcome: Outcome, rows: int = 0) -> Finding | None:
    mismatch = lab.wrong(trial, outcome) if outcome.ok else None
    if outcome.ok and mismatch is None:
        return None
    where = f"{rows + _TAIL} rows" if rows else "strides of 2³⁰ elements"
    return finding(
        lab, "memory", f"offsets past 2³¹ elements are wrong ({where})", faults=(17,), case=case,
        expected=mismatch.expected if mismatch is not None else "results",
        found=mismatch.found if mismatch is not None else outcome.text,
        remedy="Count elements and offsets in int64_t, also in loops.",
    )  # fmt: skip


def _possible(lab: Lab) -> bool:
    return lab.subject.kind == "library" and all(
        x is not None for c in _cases(lab) for x in output_shapes(lab.contract.semantic, c)
    )


# rows that an index chooses


def _indices(lab: Lab) -> Iterator[Case]:
    if lab.contract.semantic.examples is None and any(_chooses(lab, n) for n in lab.explorer.names):
        yield from _cases(lab)


def _chooses(lab: Lab, name: str) -> bool:
    """Whether an input's values are indices of an axis that inputs begin with, and that nothing else depends on."""
    s = lab.contract.semantic
    ports = [*s.inputs, *s.outputs]
    places = [(k, x) for p in ports for k, x in _axes(p) if name in names_in(str(x))]
    bounds = [v for p in s.inputs for v in (p.values.low, p.values.high) if isinstance(v, str) and name in names_in(v)]
    return (
        bool(bounds)
        and bool(places)
        and all(place == (0, name) for place in places)
        and not any(name in names_in(str(x)) for p in s.outputs for _, x in _axes(p))
        and all(evaluate_size(b, {name: n}) == n - 1 for b in bounds for n in (9, 70))
        and name not in names_in(lab.subject.memory.workspace or "0")
    )


def _chosen(lab: Lab, case: Case) -> Finding | None:
    """Tables of so many rows that elements are counted past 2³², of which an index takes the first and the last."""
    s = lab.contract.semantic
    if _PLAIN & {f.clause for f in lab.findings}:
        return None
    for name in (n for n in lab.explorer.names if _chooses(lab, n)):
        small = lab.trial(_sized(case, name, 2 * _TAIL))
        if small is None or not lab.sound(small):
            continue
        tables = [i for i, p in enumerate(s.inputs) if _has(p.sizes, name) and small.inputs[i] is not None]
        indices = [
            i for i, p in enumerate(s.inputs) if name in names_in(str(p.values.high)) and small.inputs[i] is not None
        ]
        given = [x for i in tables if (x := small.inputs[i]) is not None and x.size]
        if not given or not indices:
            continue
        window = math.lcm(_TAIL, *(rows_of_window(x.nbytes // len(x)) for x in given))
        count = math.ceil(2 * LIMIT / (max(x.size for x in given) // (2 * _TAIL)) / window) * window
        most = min(int(np.iinfo(x.dtype).max) for i in indices if (x := small.inputs[i]) is not None)
        if window * max(x.size for x in given) // (2 * _TAIL) > LIMIT // 64 or count + _TAIL > most:
            continue
        if not _only_rows_matter(lab, case, name, small, tables, indices):
            continue
        found = _looked_up(lab, case, name, small, tables, indices, window, count)
        if found is not None:
            return found
    return None


def _moved(x: Array, by: int) -> Array:
    """Indices of the second half of the rows, where those have moved on."""
    return np.where(x >= _TAIL, x + by, x).astype(x.dtype)


def _only_rows_matter(
    lab: Lab, case: Case, name: str, small: Trial, tables: Sequence[int], indices: Sequence[int]
) -> bool:
    """Whether the reference gives the same where other rows lie between those that are chosen."""
    inputs = list(small.inputs)
    for i in tables:
        x = np.asarray(inputs[i])
        inputs[i] = np.concatenate([x[:_TAIL], x[:_TAIL], x[_TAIL:]])
    for i in indices:
        inputs[i] = _moved(np.asarray(inputs[i]), _TAIL)
    other = lab.expect(Trial(_sized(case, name, 3 * _TAIL), [], []), inputs)
    return other is not None and all(
        np.array_equal(a.own, b.own, equal_nan=a.slack is not None)
        for a, b in zip(small.expected, other.expected, strict=True)
    )


def _looked_up(
    lab: Lab,
    case: Case,
    name: str,
    small: Trial,
    tables: Sequence[int],
    indices: Sequence[int],
    window: int,
    count: int,
) -> Finding | None:
    s = lab.contract.semantic
    pages = Pages()
    try:
        inputs: list[FarTensor | None] = []
        for i, x in enumerate(small.inputs):
            if x is None:
                inputs.append(None)
            elif i in tables:
                inputs.append(_many(pages, x[:_TAIL], x[_TAIL:], window, count))
            else:
                inputs.append(_alone(pages, _moved(x, count - _TAIL) if i in indices else x))
        ports = zip(s.outputs, small.expected, strict=True)
        outputs = [
            _alone(pages, np.full(e.own.shape, -1).astype(dtype_named(dtype_of(p, case))))
            for p, e in (ports if lab.subject.writes else ())
        ]
        full = _sized(case, name, count + _TAIL)
        outcome = _called(lab, full, pages, inputs, outputs)
        if outcome.status == "hung" or outcome.reply.get("error") == "MemoryError":
            lab.notes.append(f"indices past 2³² elements: {outcome.text}")
            return None
        if outcome.ok and lab.subject.writes:
            outcome.outputs = [pages.read(t.pieces[0][1], t.shape, t.dtype) for t in outputs]
        return _verdict(lab, case, small, outcome, count)
    finally:
        pages.close()


CHECKS = (
    Check("offsets", _cases, _far, _possible, share=0.5),
    Check("indices", _indices, _chosen, lambda lab: lab.subject.kind in ("library", "tvm_ffi", "python"), share=0.3),
)
