"""What MatMul, Gemm and Conv ask for, on any device: sizes and accesses of matrices, and the expression of a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accord.backends.epilogue import Epilogue, Extra, accumulator, with_first
from accord.backends.loops.table import known
from accord.backends.root import epilogue_of
from accord.backends.view import NodeView
from accord.expr.lang import Expr, call, cast, const, operand
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, broadcast_access

__all__ = [
    "Matrices",
    "Product",
    "after",
    "gemm_of",
    "matmul_of",
    "matrices",
    "operands_of",
    "with_bias",
]

_TYPES = ("f32", "f64", "f16", "bf16")


def operands_of(view: NodeView, count: int) -> tuple[list[Shape], str] | Reason:
    """Shapes of the first ``count`` inputs and their element type, one that products are generated for."""
    shapes: list[Shape] = []
    dtype = ""
    for i in range(count):
        found = known(view.tensor(i), f"input {i}")
        if isinstance(found, Reason):
            return found
        shapes.append(found[0])
        dtype = found[1]
    if dtype not in _TYPES:
        return Reason(f"products are generated for {', '.join(_TYPES)}, not for {dtype}")
    return shapes, dtype


def _insert(access: Access, *axes: int) -> Access:
    """``access`` with further axes of size 1, at positions counted in the result."""
    strides = list(access.strides)
    for axis in sorted(axes):
        strides.insert(axis, 0)
    return Access(tuple(strides), access.offset)


@dataclass(frozen=True)
class Matrices:
    """A product with NumPy's rules, as matrices.

    Attributes:
        batch: Sizes of the batch axes.
        sizes: m, n, k.
        accesses: A [*batch, m, k], B [*batch, k, n], C [*batch, m, n].
        epilogue: Over C's axes.
        lacking: Axes of [*batch, m, n] that the output has not.
    """

    batch: Shape
    sizes: tuple[DimLike, DimLike, DimLike]
    accesses: tuple[Access, Access, Access]
    epilogue: Epilogue
    lacking: tuple[int, ...]


def matrices(view: NodeView, left: tuple[Shape, Access], right: tuple[Shape, Access]) -> Matrices:
    """The product of two operands of at least one axis; vectors are matrices of one row or column."""
    (a, at_a), (b, at_b) = left, right
    lacking: list[int] = []
    rank = max(len(a), len(b), 2)
    if len(a) == 1:
        a, at_a = (1, *a), _insert(at_a, 0)
        lacking.append(rank - 2)
    if len(b) == 1:
        b, at_b = (*b, 1), _insert(at_b, 1)
        lacking.append(rank - 1)
    batch = view.broadcast(a[:-2], b[:-2]) or ()
    epilogue = epilogue_of(view)
    extras = [Extra(e.dtype, _insert(e.access, *lacking)) for e in epilogue.extras]
    return Matrices(
        batch,
        (a[-2], b[-1], b[-2] if isinstance(b[-2], int) else a[-1]),
        (_batched(a, at_a, batch), _batched(b, at_b, batch), _insert(view.output_access(), *lacking)),
        Epilogue(epilogue.expr, tuple(extras)),
        tuple(lacking),
    )


def _batched(shape: Shape, access: Access, batch: Shape) -> Access:
    """Access of a matrix whose leading axes are broadcast to ``batch``."""
    lead = broadcast_access(shape[:-2], batch, Access(access.strides[:-2]))
    return Access((*lead.strides, *access.strides[-2:]), access.offset)


def after(own: Expr, extras: Sequence[Extra], then: Epilogue) -> Epilogue:
    """``own`` (operands: the sum, then ``extras``) followed by an epilogue of its result."""
    return Epilogue(with_first(then.expr, own, len(extras)), (*extras, *then.extras))


def with_bias(view: NodeView, dtype: str, out: Shape, index: int = 2) -> tuple[Epilogue, tuple[int, ...]]:
    """The addition of a convolution's bias, input ``index``, and what is fused to it, and the inputs that it reads."""
    real = accumulator(dtype)
    if not view.has(index):
        return after(operand(0, real), [], epilogue_of(view)), (0, 1)
    axes = len(out) - 2
    access = view.access(index)
    over_axes = Access((*access.strides, *(0,) * axes), access.offset)
    bias = Extra(dtype, broadcast_access((out[1], *(1,) * axes), out, over_axes))
    total = call("add", operand(0, real), cast(operand(1, dtype), real))
    return after(total, [bias], epilogue_of(view)), (0, 1, index)


def _gemm_epilogue(
    view: NodeView, dtype: str, sizes: tuple[DimLike, DimLike]
) -> tuple[Epilogue, tuple[int, ...]] | Reason:
    """``alpha * A B + beta * C`` and what is fused to it, and the inputs that it reads.

    Args:
        view: A Gemm.
        dtype: Of A and B.
        sizes: Of the result.
    """
    real = accumulator(dtype)
    total: Expr = operand(0, real)
    alpha, beta = float(view.attr("alpha", 1.0)), float(view.attr("beta", 1.0))
    if alpha != 1.0:
        total = call("mul", total, const(alpha, real))
    extras: list[Extra] = []
    reads: tuple[int, ...] = (0, 1)
    if view.has(2) and beta != 0.0:
        bias = known(view.tensor(2), "input 2")
        if isinstance(bias, Reason):
            return bias
        extras.append(Extra(bias[1], broadcast_access(bias[0], sizes, view.access(2))))
        added = cast(operand(1, bias[1]), real)
        total = call("add", total, added if beta == 1.0 else call("mul", added, const(beta, real)))
        reads = (0, 1, 2)
    return after(total, extras, epilogue_of(view)), reads


@dataclass(frozen=True)
class Product:
    """A MatMul or Gemm.

    Attributes:
        dtype: Of A and B.
        batch: Sizes of the batch axes.
        sizes: m, n, k.
        accesses: A [*batch, m, k], B [*batch, k, n], C [*batch, m, n].
        epilogue: Over C's axes; operands 1 ... follow ``reads[2:]``.
        reads: Inputs 0 and 1, then those that the epilogue reads.
    """

    dtype: str
    batch: Shape
    sizes: tuple[DimLike, DimLike, DimLike]
    accesses: tuple[Access, Access, Access]
    epilogue: Epilogue
    reads: tuple[int, ...]


def matmul_of(view: NodeView) -> Product | Reason:
    """What a MatMul asks for."""
    found = operands_of(view, 2)
    if isinstance(found, Reason):
        return found
    (a, b), dtype = found
    if not a or not b:
        return Reason("a scalar operand")
    p = matrices(view, (a, view.access(0)), (b, view.access(1)))
    return Product(dtype, p.batch, p.sizes, p.accesses, p.epilogue, (0, 1))


def gemm_of(view: NodeView) -> Product | Reason:
    """What a Gemm asks for."""
    found = operands_of(view, 2)
    if isinstance(found, Reason):
        return found
    (a, b), dtype = found
    if len(a) != 2 or len(b) != 2:
        return Reason("operands must be matrices")
    at_a, at_b = view.access(0), view.access(1)
    if view.attr("transA", 0):
        a, at_a = a[::-1], Access(at_a.strides[::-1], at_a.offset)
    if view.attr("transB", 0):
        b, at_b = b[::-1], Access(at_b.strides[::-1], at_b.offset)
    own = _gemm_epilogue(view, dtype, (a[0], b[1]))
    if isinstance(own, Reason):
        return own
    sizes = (a[0], b[1], b[0] if isinstance(b[0], int) else a[1])
    return Product(dtype, (), sizes, (at_a, at_b, view.output_access()), *own)
