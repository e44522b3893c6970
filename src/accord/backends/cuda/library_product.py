"""Contractions that are a product of matrices as cuBLASLt has it, and how it is asked for one.

The library walks matrices column after column, ``D = act(scale * op(A) @ op(B) + share * C + bias)``: sums and what
follows them are float32, ``act`` is nothing, ReLU or Gelu by tanh, and ``bias`` has an element for each row of D. So
the axis along which results follow each other becomes the rows of D; where that is our columns, A and B change places.
"""

from __future__ import annotations

import functools
import math
from typing import Final

from accord.backends.cuda.contraction import BATCH, COLUMNS, DEPTH, ROWS, ContractionKernel, Pattern
from accord.backends.protocol import Launch
from accord.expr.lang import Expr, bits
from accord.record import record

__all__ = ["LibraryProduct", "Matrix", "MatrixProduct", "ProductLaunch", "product_of"]

#: Types of elements that are multiplied.
_MULTIPLIED: Final = ("f16", "bf16", "f32")
#: Bytes: memory that is aligned to more has no use for it.
_LINE: Final = 16


@record
class Matrix:
    """A matrix, or one for each product of a batch.

    Attributes:
        operand: Number of the pointer to its memory.
        dtype: Element type.
        offset: Elements in front of the first one.
        rows: Elements of a column, which follow each other.
        columns: How many.
        lead: Elements from one column to the next.
        step: Elements from one matrix of the batch to the next.
    """

    operand: int
    dtype: str
    offset: int
    rows: int
    columns: int
    lead: int
    step: int

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return bits(self.dtype) // 8

    @property
    def alignment(self) -> int:
        """Bytes that divide all its columns' places in memory that is aligned."""
        lead = self.lead if self.columns > 1 else 0
        return math.gcd(_LINE, *(n * self.item for n in (self.offset, lead, self.step)))


@record
class MatrixProduct:
    """What the library is asked for; see the module's text.

    Attributes:
        left: A as it lies.
        right: B as it lies.
        transposed: Whether A, and whether B, is multiplied as its transpose.
        result: D.
        addend: C, which lies as D does; None: nothing is added.
        bias: One column; None: there is none.
        batch: Number of products.
        scale: Of the sums.
        share: Of C.
        activation: "", "relu" or "gelu".
        compute: "half" (operands of 16 bits), "ieee" or "tf32" (of float32).
    """

    left: Matrix
    right: Matrix
    transposed: tuple[bool, bool]
    result: Matrix
    addend: Matrix | None
    bias: Matrix | None
    batch: int
    scale: float
    share: float
    activation: str
    compute: str

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """A, B, C (or D once more) and D."""
        return self.left, self.right, self.addend or self.result, self.result


@record
class LibraryProduct:
    """A way of a contraction: one of the library's algorithms for it.

    Attributes:
        number: Its place in the order of the library.
        algorithm: What the library calls it: 64 bytes in hexadecimal, which its other versions do not understand.
        workspace: Bytes that it needs.
    """

    number: int
    algorithm: str
    workspace: int

    @property
    def name(self) -> str:
        """For people."""
        return f"cuBLASLt {self.number}" + (f" workspace={self.workspace}" if self.workspace else "")


@record
class ProductLaunch(Launch):
    """How the library is called.

    Attributes:
        product: What for.
        algorithm: See :class:`LibraryProduct`.
        workspace: Bytes that it needs, of the last operand.
        shifts: Bytes that are added to the address of each operand; empty: nothing is added.
    """

    product: MatrixProduct
    algorithm: str
    workspace: int
    shifts: tuple[int, ...] = ()


@record
class _Finish:
    """What becomes of a sum; ``addend`` and ``bias`` are numbers of extras, or -1."""

    scale: float
    share: float
    addend: int
    bias: int
    activation: str


@functools.lru_cache(maxsize=4096)
def product_of(kernel: ContractionKernel, sizes: tuple[int, ...]) -> MatrixProduct | None:
    """What the library is asked for; None if it has no such product.

    Args:
        kernel: The contraction.
        sizes: Values of its ``names``.
    """
    problem = kernel.problem(sizes)
    finish = _finish_of(kernel) if _is_plain(kernel) and problem.batch * problem.m * problem.n * problem.k else None
    if finish is None:
        return None
    walks = [kernel.walk(i, sizes) for i in range(len(kernel.patterns))]
    extents = {ROWS: problem.m, COLUMNS: problem.n, DEPTH: problem.k}
    first, second = _order(kernel.out)
    last = len(walks) - 1

    def matrix(operand: int, rows: int, columns: int) -> Matrix | None:
        """An operand whose elements along one group of axes follow each other, if they do."""
        offset, walk = walks[operand]
        strides = {g: s[-1] if s else 0 for g, s in walk.items()}
        lead = strides[columns] if extents[columns] > 1 else max(strides[columns], extents[rows])
        near = strides[rows] == 1 or extents[rows] == 1
        if not near or lead < extents[rows] or min(offset, strides[BATCH]) < 0:
            return None
        dtype = kernel.patterns[operand].dtype
        return Matrix(operand, dtype, offset, extents[rows], extents[columns], lead, strides[BATCH])

    one, other = (1, 0) if first == COLUMNS else (0, 1)
    left, right, result = matrix(one, first, DEPTH), matrix(other, DEPTH, second), matrix(last, first, second)
    turned = left is None, right is None
    left = left or matrix(one, DEPTH, first)
    right = right or matrix(other, second, DEPTH)
    if left is None or right is None or result is None or (problem.batch > 1 and not result.step):
        return None
    addend = bias = None
    if finish.addend >= 0:
        addend = matrix(2 + finish.addend, first, second)
        if addend is None or (addend.lead, addend.step) != (result.lead, result.step):
            return None
    if finish.bias >= 0:
        offset, _ = walks[2 + finish.bias]
        bias = Matrix(2 + finish.bias, result.dtype, offset, result.rows, 1, result.rows, 0)
    compute = kernel.precision if kernel.product == "f32" else "half"
    return MatrixProduct(
        left, right, turned, result, addend, bias, problem.batch, finish.scale, finish.share, finish.activation, compute
    )


def _is_plain(kernel: ContractionKernel) -> bool:
    """Whether it is of matrices, whose elements are multiplied as they are."""
    special = kernel.windows or kernel.across or kernel.tail or kernel.a.extras or kernel.b.extras
    dtypes = {kernel.a.own.dtype, kernel.b.own.dtype, kernel.product}
    return (
        not special
        and kernel.a.expr.op == kernel.b.expr.op == "operand"
        and len(dtypes) == 1
        and kernel.product in _MULTIPLIED
        and kernel.precision not in ("tf32x3", "whole")
        and kernel.out.dtype in (kernel.product, "f32")
        and "1" in kernel.out.kinds[1:]
        and all(len(p.kinds[0]) < 2 and len(p.kinds[1]) == len(p.kinds[2]) == 1 for p in kernel.patterns)
    )


def _order(out: Pattern) -> tuple[int, int]:
    """The group of axes along which results follow each other, and the other one."""
    return (COLUMNS, ROWS) if out.kinds[2] == "1" else (ROWS, COLUMNS)


@functools.lru_cache(maxsize=4096)
def _finish_of(kernel: ContractionKernel) -> _Finish | None:
    """What becomes of a sum, if it is what the library does with one."""
    inner = kernel.expr.args[0] if kernel.expr.op == "cast" else kernel.expr
    if inner.dtype != "f32":
        return None
    activation, inner = "", _unrounded(inner)
    zeros = [k for k, a in enumerate(inner.args) if a.op == "const" and a.value == 0] if inner.op == "max" else []
    if zeros:
        activation, inner = "relu", inner.args[1 - zeros[0]]
    elif inner.op == "gelu_tanh":
        if bits(kernel.out.dtype) > 16:  # how exact the library's is, it does not say
            return None
        activation, inner = "gelu", inner.args[0]
    scales: list[float] = []
    addends: list[tuple[int, float]] = []
    biases: list[int] = []
    for term in _terms(inner):
        number, factor = _scaled(term)
        if number == 0:
            scales.append(factor)
        elif number > 0 and factor == 1 and not biases and _is_bias(kernel, kernel.extras[number - 1]):
            biases.append(number - 1)
        elif number > 0 and _lies_alike(kernel.extras[number - 1], kernel.out):
            addends.append((number - 1, factor))
        else:
            return None
    if len(scales) != 1 or len(addends) > 1:
        return None
    addend, share = addends[0] if addends else (-1, 0.0)
    return _Finish(scales[0], share, addend, biases[0] if biases else -1, activation)


def _unrounded(expr: Expr) -> Expr:
    """What a float32 was before it was rounded to 16 bits: nothing has to be between parts of one kernel."""
    while expr.op == "cast" and (narrow := expr.args[0]).op == "cast" and narrow.dtype in ("f16", "bf16"):
        if narrow.args[0].dtype != "f32" or expr.dtype != "f32":
            break
        expr = narrow.args[0]
    return expr


def _terms(expr: Expr) -> list[Expr]:
    """What is added up."""
    expr = _unrounded(expr)
    return [t for a in expr.args for t in _terms(a)] if expr.op == "add" else [expr]


def _scaled(term: Expr) -> tuple[int, float]:
    """The operand whose multiple a term is, and which multiple; -1 if it is none."""
    factor = 1.0
    if term.op == "mul" and any(a.op == "const" for a in term.args):
        number, term = term.args if term.args[0].op == "const" else term.args[::-1]
        assert number.value is not None
        factor, term = float(number.value), _unrounded(term)
    if term.op == "cast" and term.args[0].dtype in _MULTIPLIED:  # to float32, in which all is computed
        term = term.args[0]
    if term.op != "operand" or term.value is None:
        return -1, factor
    return int(term.value), factor


def _is_bias(kernel: ContractionKernel, pattern: Pattern) -> bool:
    batch, rows, columns = pattern.kinds
    along, other = (columns, rows) if _order(kernel.out)[0] == COLUMNS else (rows, columns)
    return pattern.dtype == kernel.out.dtype and along == "1" and other == "0" and batch in ("", "0")


def _lies_alike(pattern: Pattern, out: Pattern) -> bool:
    return (pattern.dtype, pattern.kinds) == (out.dtype, out.kinds)
