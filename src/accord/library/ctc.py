"""Connectionist temporal classification: Graves et al., ICML 2006. Loss, greedy decoding, prefix beam search.

All sums are of float32 logarithms, whatever the logits are. The forward variables of a step are kept relative to the
greatest of the step before, and what was taken out is summed in float64, so precision does not suffer with length.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.contract.contract import NanPolicy
from accord.contract.operator import Tensor, operator
from accord.library.composing import cast, dims, size
from accord.library.reference import ACCUMULATE, FLOATS, Array, log_softmax, wide
from accord.ops.microsoft.common import half

__all__ = ["ctc_beam_decode", "ctc_forward", "ctc_greedy_decode", "ctc_loss"]


def _forward(log_probs: Array, target: Array, blank: int) -> float:
    """Minus the logarithm of the sum over all paths of their probabilities, equations 6 to 8."""
    labels = np.full(2 * len(target) + 1, blank)
    labels[1::2] = target
    may_skip = np.zeros(len(labels), bool)
    may_skip[2:] = (labels[2:] != blank) & (labels[2:] != labels[:-2])
    alpha = np.full(len(labels), -np.inf)
    alpha[0] = 0.0  # before the first step: as if a blank had been there
    for row in log_probs:
        one = np.concatenate([[-np.inf], alpha[:-1]])
        two = np.where(may_skip, np.concatenate([[-np.inf, -np.inf], alpha[:-2]])[: len(labels)], -np.inf)
        alpha = np.logaddexp(np.logaddexp(alpha, one), two) + row[labels]
    return float(-np.logaddexp.reduce(alpha[-2:]))


def _losses(log_probs: Array, targets: Array, lengths: Array, target_lengths: Array, blank: int) -> Array:
    found = np.zeros(log_probs.shape[1], np.float32)
    with np.errstate(invalid="ignore"):
        for n in range(len(found)):
            own = targets[n, : target_lengths[n]]
            found[n] = _forward(wide(log_probs[: lengths[n], n]), own, blank)
    return found


@operator("accord::CTCForward")
def ctc_forward(
    log_probs: Tensor["T", "L", "N", "C"],
    targets: Tensor["int64", "N", "S"],
    lengths: Tensor["int64", "N"],
    target_lengths: Tensor["int64", "N"],
    *,
    blank: int = 0,
) -> Tensor["float32", "N"]:
    """Minus the log-likelihood of each target, from logarithms of probabilities; infinite where none fits."""
    return _losses(log_probs, targets, lengths, target_lengths, blank)


@operator("accord::CTCLoss")
def ctc_loss(
    logits: Tensor["T", "L", "N", "C"],
    targets: Tensor["int64", "N", "S"],
    lengths: Tensor["int64", "N"],
    target_lengths: Tensor["int64", "N"],
    *,
    blank: int = 0,
) -> Tensor["float32", "N"]:
    """Minus the log-likelihood of each target under the softmax of the logits; infinite where it is too long."""
    return _losses(log_softmax(wide(logits)), targets, lengths, target_lengths, blank)


@ctc_loss.composition
def normalised_in_float32(b: Any, logits: Any, targets: Any, lengths: Any, target_lengths: Any, *, blank: int) -> Any:
    """A log-softmax that widens what it reads, then the forward variables."""
    x = cast(b, logits, ir.DataType.FLOAT) if half(b.fact(logits).dtype) else logits
    probabilities = b("LogSoftmax", x, axis=-1)
    return b("CTCForward", probabilities, targets, lengths, target_lengths, domain="accord", blank=blank)


ctc_forward.kernel("states", "generated", None)


def _collapsed(path: Array, blank: int) -> list[int]:
    """Repeats once, without blanks: the map B of section 3.1."""
    return [int(c) for i, c in enumerate(path) if c != blank and (i == 0 or c != path[i - 1])]


def _rows(found: list[list[int]], length: int) -> tuple[Array, Array]:
    labels = np.full((len(found), length), -1, np.int64)
    for row, own in zip(labels, found, strict=True):
        row[: len(own)] = own
    return labels, np.array([len(own) for own in found], np.int64)


@operator("accord::CTCGreedyDecode")
def ctc_greedy_decode(
    logits: Tensor["T", "L", "N", "C"], lengths: Tensor["int64", "N"], *, blank: int = 0
) -> tuple[Tensor["int64", "N", "L"], Tensor["int64", "N"]]:
    """The labels of the best path, section 3.2: -1 behind the last one, and how many there are.

    A ``blank`` that is no class means that there is none; without classes there is no label.
    """
    if not logits.shape[-1]:
        return _rows([[]] * logits.shape[1], len(logits))
    paths = logits.argmax(-1) if logits.size else np.zeros(logits.shape[:2], np.int64)
    return _rows([_collapsed(paths[: lengths[n], n], blank) for n in range(logits.shape[1])], len(logits))


@ctc_greedy_decode.composition
def collapsed(b: Any, logits: Any, lengths: Any, *, blank: int) -> tuple[Any, Any]:
    """The places of labels that are kept are a running sum; the others go to a column that is cut off."""
    steps, batch = size(b, logits, 0), size(b, logits, 1)
    zero, one = (b.const(np.array(v, np.int64)) for v in (0, 1))
    best = b("Transpose", b("ArgMax", logits, axis=2, keepdims=0), perm=(1, 0))
    no_label = b.const(np.array([[-1]], np.int64))
    first = b("Expand", no_label, dims(b, batch, 1))
    before = b("Slice", b("Concat", first, best, axis=1), b.ints(0), steps, b.ints(1))
    time = b("Range", zero, b("Squeeze", steps, b.ints(0)), one)
    inside = b("Less", b("Unsqueeze", time, b.ints(0)), b("Unsqueeze", lengths, b.ints(1)))
    changed = b("Not", b("Equal", best, before))
    label = b("Not", b("Equal", best, b.const(np.array(blank, np.int64))))
    real = b("Less", best, size(b, logits, 2))  # not so only where there is no class
    keep = b("And", b("And", changed, b("And", label, real)), inside)
    number = b("CumSum", b("Cast", keep, to=int(ir.DataType.INT64)), one)
    place = b("Where", keep, b("Sub", number, one), steps)
    room = b("Expand", no_label, dims(b, batch, b("Add", steps, b.ints(1))))
    labels = b("Slice", b("ScatterElements", room, place, best, axis=1), b.ints(0), steps, b.ints(1))
    return labels, b("ReduceSum", b("Cast", keep, to=int(ir.DataType.INT64)), b.ints(1), keepdims=0)


def _either(a: float, b: float) -> float:
    """Logarithm of the sum of two probabilities. NumPy takes ten times as long for two numbers."""
    if a < b:
        a, b = b, a
    return a + math.log1p(math.exp(b - a)) if b > -math.inf else a


@operator("accord::CTCBeamDecode")
def ctc_beam_decode(
    logits: Tensor["T", "L", "N", "C"], lengths: Tensor["int64", "N"], *, beams: int = 16, blank: int = 0
) -> tuple[Tensor["int64", "N", "L"], Tensor["int64", "N"], Tensor["float32", "N"]]:
    """The most probable labelling that a search with ``beams`` prefixes finds, its length and log-likelihood.

    Graves, "Sequence Transduction with Recurrent Neural Networks", 2012, algorithm 1, without a language model: a
    prefix has one probability of ending in a blank and one of ending in its last label; prefixes that meet are joined.
    """
    probabilities = log_softmax(wide(logits))
    found, scores = [], np.zeros(logits.shape[1], np.float32)
    for n in range(logits.shape[1]):
        # a prefix is the number of what is before its last label, and this
        numbers = {(-1, -1): 0}
        prefixes = {(-1, -1): (0.0, -math.inf)}
        for row in probabilities[: lengths[n], n].tolist():
            following: dict[tuple[int, int], list[float]] = defaultdict(lambda: [-math.inf, -math.inf])
            for prefix, (blanks, labels) in prefixes.items():
                both = _either(blanks, labels)
                own = following[prefix]
                own[0] = _either(own[0], both + row[blank])
                for c, p in enumerate(row):
                    if c == blank:
                        continue
                    repeats = prefix[1] == c
                    if repeats:
                        own[1] = _either(own[1], labels + p)
                    longer = following[numbers[prefix], c]
                    longer[1] = _either(longer[1], (blanks if repeats else both) + p)
            ranked = sorted(following.items(), key=lambda item: -_either(*item[1]))
            prefixes = {prefix: (p[0], p[1]) for prefix, p in ranked[:beams]}
            for prefix in prefixes:
                numbers.setdefault(prefix, len(numbers))
        best = max(prefixes, key=lambda p: _either(*prefixes[p]))
        scores[n] = _either(*prefixes[best])
        known, path = list(numbers), []
        while best[0] >= 0:
            path.append(best[1])
            best = known[best[0]]
        found.append(path[::-1])
    return (*_rows(found, len(logits)), scores)


for _operator in (ctc_forward, ctc_loss, ctc_greedy_decode, ctc_beam_decode):
    _operator.types(T=FLOATS).execution(accumulate=ACCUMULATE).constraint("blank >= 0")
    _operator.values(lengths=(0, "L"))
    _operator.semantic(batch=("N",), nan=NanPolicy.UNDEFINED)
    for _dtype in FLOATS:  # results are float32; the logits' own rounding is not the kernel's
        _operator.tolerance(_dtype, rtol=2e-5, atol=1e-4)
for _operator in (ctc_forward, ctc_loss, ctc_beam_decode):
    _operator.constraint("C >= 1", "blank < C")
for _operator in (ctc_forward, ctc_loss):
    _operator.values(targets=(0, "C - 1"), target_lengths=(0, "S"))
ctc_beam_decode.constraint("beams >= 1")


@ctc_beam_decode.python(name="vectors")
def beams_as_vectors(logits: Array, lengths: Array, *, beams: int, blank: int) -> tuple[Array, Array, Array]:
    """All prefixes and labels of a step at once. Prefixes are nodes of a tree: a parent and a label."""
    probabilities = log_softmax(wide(logits))
    found, scores = [], np.zeros(logits.shape[1], np.float32)
    for n in range(logits.shape[1]):
        labels, scores[n] = _searched(probabilities[: lengths[n], n], beams, blank)
        found.append(labels)
    return (*_rows(found, len(logits)), scores)


def _searched(rows: Array, beams: int, blank: int) -> tuple[list[int], float]:
    """The best labelling of one entry of the batch, and its log-likelihood."""
    parents, labels = [-1], [-1]
    known: dict[tuple[int, int], int] = {}
    nodes, last = np.zeros(1, np.int64), np.array([-1])
    in_blank, in_label = np.zeros(1), np.full(1, -np.inf)
    for row in rows:
        count, classes = len(nodes), len(row)
        both = np.logaddexp(in_blank, in_label)
        stay_blank = both + row[blank]
        stay_label = np.where(last < 0, -np.inf, in_label + row[last])
        longer = both[:, None] + row
        own = np.flatnonzero(last >= 0)
        longer[own, last[own]] = in_blank[own] + row[last[own]]
        longer[:, blank] = -np.inf
        place = {int(node): i for i, node in enumerate(nodes)}
        for j, node in enumerate(nodes):  # a prefix that is another's with one more label
            i = place.get(parents[node], -1)
            if i >= 0:
                stay_label[j] = np.logaddexp(stay_label[j], longer[i, last[j]])
                longer[i, last[j]] = -np.inf
        totals = np.concatenate([np.logaddexp(stay_blank, stay_label), longer.ravel()])
        best = np.argsort(-totals, kind="stable")[:beams]
        best = best[totals[best] > -np.inf] if totals[best[0]] > -np.inf else best[:1]
        stays, moves = best[best < count], best[best >= count] - count
        sources, new = np.divmod(moves, classes)
        made = []
        for parent, label in zip(nodes[sources].tolist(), new.tolist(), strict=True):
            made.append(known.setdefault((parent, label), len(parents)))  # it may have been left out before
            if made[-1] == len(parents):
                parents.append(parent)
                labels.append(label)
        nodes = np.concatenate([nodes[stays], np.array(made, np.int64)])
        last = np.concatenate([last[stays], new])
        in_blank = np.concatenate([stay_blank[stays], np.full(len(new), -np.inf)])
        in_label = np.concatenate([stay_label[stays], longer[sources, new]])
    both = np.logaddexp(in_blank, in_label)
    at: int = nodes[both.argmax()].item()
    path = []
    while parents[at] >= 0:
        path.append(labels[at])
        at = parents[at]
    return path[::-1], float(both.max())
