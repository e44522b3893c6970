"""Einsum as sums, transposes and products of matrices, two operands at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.dims import DimLike
from accord.ir.expand import expands, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, dims, size

__all__ = ["einsum", "labels_of"]


def labels_of(n: Inference) -> tuple[list[list[str]], list[str]] | None:
    """Labels of each operand and of the result; axes of an ellipsis are numbered from the last. None if unknown."""
    equation = str(n.attr("equation", "")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms: list[list[str]] = []
    hidden = 0
    for i, text in enumerate(left.split(",")):
        shape = n.tensor(i).shape
        if shape is None:
            return None
        before, dots, after = text.partition("...")
        count = len(shape) - len(before) - len(after) if dots else 0
        hidden = max(hidden, count)
        terms.append([*before, *_numbered(count), *after])
    if arrow:
        before, dots, after = right.partition("...")
        return terms, [*before, *(_numbered(hidden) if dots else ()), *after]
    used = Counter(label for t in terms for label in t)
    return terms, [*_numbered(hidden), *sorted(k for k, c in used.items() if c == 1 and k.isalpha())]


def _numbered(count: int) -> list[str]:
    return [str(k) for k in range(count - 1, -1, -1)]


@dataclass(frozen=True, slots=True)
class _Operand:
    """A value and the label of each of its axes, all different."""

    value: ir.Value
    labels: tuple[str, ...]


@expands("Einsum")
def einsum(b: Builder, n: Inference) -> Outputs:
    """From left to right; what an operand has twice (a diagonal) is taken out first."""
    found = labels_of(n)
    if found is None:
        return None
    terms, out = found
    if len(terms) == 1 and len(set(terms[0])) != len(terms[0]):
        return None  # a diagonal: that is a kernel of its own
    operands = [_distinct(b, required(n, i), t) for i, t in enumerate(terms)]
    while len(operands) > 1:
        first, second, *rest = operands
        kept = {*out, *(k for o in rest for k in o.labels)}
        first = _summed(b, first, {*kept, *second.labels})
        second = _summed(b, second, {*kept, *first.labels})
        operands = [_product(b, first, second, kept, () if rest else out), *rest]
    last = _summed(b, operands[0], set(out))
    return [_ordered(b, last, out).value]


def _distinct(b: Builder, x: ir.Value, labels: Sequence[str]) -> _Operand:
    different = tuple(dict.fromkeys(labels))
    if len(different) == len(labels):
        return _Operand(x, different)
    letter = dict(zip(different, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))
    equation = f"{''.join(letter[k] for k in labels)}->{''.join(letter[k] for k in different)}"
    return _Operand(b("Einsum", x, equation=equation), different)


def _summed(b: Builder, x: _Operand, kept: set[str]) -> _Operand:
    """``x`` summed over the labels that nobody else needs."""
    axes = [i for i, k in enumerate(x.labels) if k not in kept]
    if not axes:
        return x
    value = b("ReduceSum", x.value, b.ints(*axes), keepdims=0)
    return _Operand(value, tuple(k for k in x.labels if k in kept))


def _ordered(b: Builder, x: _Operand, labels: Iterable[str]) -> _Operand:
    """``x`` with its axes in another order."""
    order = tuple(labels)
    perm = [x.labels.index(k) for k in order]
    return x if order == x.labels else _Operand(b("Transpose", x.value, perm=perm), order)


def _product(b: Builder, x: _Operand, y: _Operand, kept: set[str], out: Sequence[str]) -> _Operand:
    """The product summed over the labels that are not ``kept``, in the order of ``out`` where that costs nothing."""
    shared = [k for k in x.labels if k in y.labels]
    inner = [k for k in shared if k not in kept]
    if not inner or any(_extent(b, x, k) != _extent(b, y, k) for k in inner):
        return _summed(b, _elementwise(b, x, y), kept)
    rank = {k: i for i, k in enumerate(out)}
    batch, rows, columns = (
        sorted(group, key=lambda k: rank.get(k, 0))
        for group in (
            [k for k in shared if k in kept],
            [k for k in x.labels if k not in shared],
            [k for k in y.labels if k not in shared],
        )
    )
    if rows and columns and rank.get(rows[0], 0) > rank.get(columns[0], 0):
        x, y, rows, columns = y, x, columns, rows
    left = _matrices(b, _ordered(b, x, (*batch, *rows, *inner)), batch, rows, inner)
    right = _matrices(b, _ordered(b, y, (*batch, *inner, *columns)), batch, inner, columns)
    product = b("MatMul", left, right)
    if len(rows) != 1 or len(columns) != 1:
        sizes = [_common_size(b, x, y, k) for k in batch]
        sizes += [_size(b, x if k in x.labels else y, k) for k in (*rows, *columns)]
        product = b("Reshape", product, dims(b, *sizes), allowzero=1) if sizes else b("Squeeze", product)
    return _Operand(product, (*batch, *rows, *columns))


def _extent(b: Builder, x: _Operand, label: str) -> DimLike | None:
    shape = b.shape(x.value)
    return None if shape is None else shape[x.labels.index(label)]


def _size(b: Builder, x: _Operand, label: str) -> int | ir.Value:
    extent = _extent(b, x, label)
    return extent if isinstance(extent, int) else size(b, x.value, x.labels.index(label))


def _common_size(b: Builder, x: _Operand, y: _Operand, label: str) -> int | ir.Value:
    """Of a label that both have: an axis of one element goes with any."""
    first, second = (_size(b, o, label) for o in (x, y))
    if first == 1 or _extent(b, x, label) == _extent(b, y, label):
        return second
    if second == 1 or isinstance(first, int):
        return first
    other = b.ints(second) if isinstance(second, int) else second
    return b("Where", b("Equal", first, b.ints(1)), other, first)


def _matrices(b: Builder, x: _Operand, batch: list[str], rows: list[str], columns: list[str]) -> ir.Value:
    """``x`` with its axes after the batch's as those of a matrix."""
    if len(rows) == len(columns) == 1:
        return x.value
    sizes: list[int | ir.Value] = [_size(b, x, k) for k in batch]
    for group in (rows, columns):
        parts = [_size(b, x, k) for k in group]
        known = [p for p in parts if isinstance(p, int)]
        whole: int | ir.Value = math.prod(known)
        for p in parts:
            if isinstance(p, ir.Value):
                whole = p if whole == 1 else b("Mul", b.ints(whole) if isinstance(whole, int) else whole, p)
        sizes.append(whole)
    return b("Reshape", x.value, dims(b, *sizes), allowzero=1)


def _elementwise(b: Builder, x: _Operand, y: _Operand) -> _Operand:
    """The product of elements along all labels of both."""
    labels = (*x.labels, *(k for k in y.labels if k not in x.labels))
    spread = []
    for o in (x, y):
        own = _ordered(b, o, [k for k in labels if k in o.labels]).value
        missing = [i for i, k in enumerate(labels) if k not in o.labels]
        spread.append(b("Unsqueeze", own, b.ints(*missing)) if missing else own)
    return _Operand(b("Mul", *spread), labels)
