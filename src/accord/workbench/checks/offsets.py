"""Offsets past 2³¹ elements, for C functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from accord.workbench.buffers import dtype_named
from accord.workbench.cases import Case, attributes_of, dtype_of, output_shapes
from accord.workbench.checks.judge import finding
from accord.workbench.far import LIMIT, FarTensor, Pages, rows_of_window
from accord.workbench.findings import Finding
from accord.workbench.lab import Check, Lab, Trial
from accord.workbench.subject import Outcome

__all__ = ["CHECKS"]

Array: TypeAlias = "np.ndarray[Any, Any]"

#: Rows behind the 2³¹st element.
_TAIL = 64
#: Windows of the calls by which the time of a long one is estimated, and seconds of a processor that it may take.
_FEW, _SAMPLE, _PATIENCE = 4, 60, 10.0


def _cases(lab: Lab) -> Iterator[Case]:
    small = min(lab.explorer.types(), key=lambda t: min((dtype_named(d).itemsize for d in t.values()), default=1))
    for size in (64 if len(lab.explorer.names) < 3 else 8, 4):
        base = lab.explorer.case(types=small, sizes=dict.fromkeys(lab.explorer.names, size), lead=(size,))
        if base is not None:
            yield base
            return


def _far(lab: Lab, case: Case) -> Finding | None:
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
    part, tail = lab.trial(_sized(case, axis, window)), lab.trial(_sized(case, axis, _TAIL))
    if part is None or tail is None:
        return None
    child = lab.subject.child
    times = [child.seconds()]
    for windows in (_FEW, _FEW + _SAMPLE):
        found = _repeated(lab, case, axis, part, tail, windows * window)
        times.append(child.seconds())
        if found is not None:
            return found
    took = (times[2] - 2 * times[1] + times[0]) / (_SAMPLE * window) * count
    if took > _PATIENCE:
        lab.notes.append(f"offsets past 2³¹ elements: a call would take about {took:.0f} s of a processor")
        return None
    return _repeated(lab, case, axis, part, tail, count)


def _repeated(lab: Lab, case: Case, axis: str, part: Trial, tail: Trial, count: int) -> Finding | None:
    """A call with ``count`` rows that repeat those of ``part``, and those of ``tail`` behind them."""
    s = lab.contract.semantic
    pages = Pages()
    try:
        inputs = [
            None if x is None else _many(pages, x, y, count, _has(p.sizes, axis))
            for p, x, y in zip(s.inputs, part.inputs, tail.inputs, strict=True)
        ]
        shapes = zip(s.outputs, part.expected, strict=True)
        outputs = [_many(pages, None, None, count, True, e.own.shape, dtype_of(p, case)) for p, e in shapes]
        full = _sized(case, axis, count + _TAIL)
        outcome = _called(lab, full, pages, inputs, outputs)
        if not outcome.ok:
            return _verdict(lab, case, tail, outcome, count)
        for trial, which in ((part, 0), (tail, -1)):
            n = _TAIL if which else len(trial.expected[0].own)
            outcome.outputs = [pages.read(t.pieces[which][1], (n, *t.shape[1:]), t.dtype) for t in outputs]
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
    if any(axis and axis in map(str, (p.sizes or ())[1:]) for p in (*s.inputs, *s.outputs)):
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


def _has(sizes: Sequence[Any] | None, axis: str) -> bool:
    return bool(sizes) and sizes[0] == (axis or "...")  # type: ignore[index]


def _sized(case: Case, axis: str, n: int) -> Case:
    return case.but(sizes={**case.sizes, axis: n}) if axis else case.but(lead=(n,))


def _many(
    pages: Pages,
    x: Array | None,
    tail: Array | None,
    count: int,
    repeated: bool,
    shape: tuple[int, ...] = (),
    dtype: str = "",
) -> FarTensor:
    if x is not None:
        shape, dtype = x.shape, x.dtype.name
    item = dtype_named(dtype).itemsize
    strides = tuple(int(math.prod(shape[a + 1 :])) * item for a in range(len(shape)))
    row = strides[0] if shape else item
    if not repeated:
        start, size = pages.add(x, int(math.prod(shape)) * item)
        return FarTensor(shape, strides, dtype, [(0, start, size)])
    start, size = pages.add(x, shape[0] * row)
    pieces = [(at, start, size) for at in range(0, count * row, size)]
    pieces.append((count * row, *pages.add(tail, _TAIL * row)))
    return FarTensor((count + _TAIL, *shape[1:]), strides, dtype, pieces)


def _called(
    lab: Lab, case: Case, pages: Pages, inputs: Sequence[FarTensor | None], outputs: Sequence[FarTensor]
) -> Outcome:
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


CHECKS = (Check("offsets", _cases, _far, _possible, share=0.5),)
