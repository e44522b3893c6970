"""TfIdfVectorizer of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

import numpy as np

from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.host import CpuHostKernel
from accord.backends.cpu.ngrams import NgramCode, Pool, count_ngrams, pool_of
from accord.backends.cpu.program import KernelCode
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Array, Kernel
from accord.backends.view import NodeView
from accord.ir.reason import Reason
from accord.record import record

__all__ = ["tf_idf_vectorizer"]


@arranges("TfIdfVectorizer")
def any_strides(view: NodeView) -> Arrangement:
    """Python brings the input into order where it is not."""
    del view
    return Arrangement(strided=True)


@record
class NgramKernel(CpuHostKernel):
    """Counts of n-grams.

    Attributes:
        dtype: "i32" or "i64".
        columns: Of the result.
        skip: Most elements left out between neighbours.
        once: A gram counts once, however often it occurs.
        pool: What to look for.
        factors: One for each column, or None.
    """

    dtype: str
    columns: int
    skip: int
    once: bool
    pool: Pool = field(compare=False)
    factors: Array | None = field(compare=False)
    name = "tf idf"

    def codes(self) -> Sequence[KernelCode]:
        """The one that counts."""
        return (NgramCode(self.dtype),)

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """f32 ``[rows, columns]``, or ``[columns]`` for one row."""
        x = np.asarray(inputs[0], order="C")
        counts = count_ngrams(np.atleast_2d(x), self.dtype, self.pool, self.columns, self.skip)
        if self.once:
            np.minimum(counts, 1, out=counts)
        if self.factors is not None:
            counts *= self.factors
        return [counts if x.ndim == 2 else counts[0]]


@selects("TfIdfVectorizer")
def tf_idf_vectorizer(view: NodeView) -> Kernel | Reason:
    """Grams are looked up in sorted tables."""
    x = known(view.tensor(0), "the input")
    if isinstance(x, Reason):
        return x
    if x[1] not in ("i32", "i64") or len(x[0]) not in (1, 2):
        return Reason("only one or two axes of integers")
    mode, indexes = str(view.attr("mode")), [int(i) for i in view.attr("ngram_indexes")]
    numbers = _grams(view)
    weights = view.attr("weights")
    if isinstance(numbers, Reason):
        return numbers
    if mode not in ("TF", "IDF", "TFIDF") or min(indexes) < 0 or len(indexes) <= max(numbers.values(), default=-1):
        return Reason("its attributes do not fit each other")
    columns = max(indexes) + 1
    factors = None
    if mode != "TF" and weights:
        if len(weights) != len(indexes):
            return Reason("its attributes do not fit each other")
        factors = np.ones(columns, np.float32)
        factors[indexes] = weights
    pool = pool_of({gram: indexes[n] for gram, n in numbers.items()})
    return NgramKernel(x[1], columns, int(view.attr("max_skip_count", 0)), mode == "IDF", pool, factors)


def _grams(view: NodeView) -> dict[tuple[int, ...], int] | Reason:
    """Each n-gram of an admitted length, and its number in the pool."""
    elements = [int(e) for e in view.attr("pool_int64s") or ()]
    least, most = int(view.attr("min_gram_length")), int(view.attr("max_gram_length"))
    numbers: dict[tuple[int, ...], int] = {}
    number = 0
    for index, (first, end) in enumerate(pairwise([*view.attr("ngram_counts"), len(elements)])):
        size = index + 1
        if not first <= end <= len(elements) or (end - first) % size:
            return Reason("ngram_counts do not fit the pool")
        for at in range(first, end, size):
            if least <= size <= most:
                numbers[tuple(elements[at : at + size])] = number
            number += 1
    return numbers
