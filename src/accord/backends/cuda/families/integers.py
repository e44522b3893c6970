"""Products of 8-bit integers: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv.

Zero points are taken off the elements as they are read. Differences are multiplied as f16, which has all whole numbers
up to 2048, and added exactly. What is quantised again is so by the reference's expression.
"""

from __future__ import annotations

from collections.abc import Callable

from accord.backends.cuda.contraction import Factor, contraction_kernel
from accord.backends.cuda.families.contractions import convolution_of, images_with_channels_last, native
from accord.backends.cuda.families.table import any_strides, arranges, selects
from accord.backends.epilogue import Epilogue, Extra
from accord.backends.loops.table import known
from accord.backends.products import after, matrices
from accord.backends.protocol import Kernel
from accord.backends.root import epilogue_of
from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.expr.lang import Expr, cast, operand
from accord.expr.onnx_quantize import quantized
from accord.ir import dims as D
from accord.ir.dims import Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, broadcast_access
from accord.record import record

__all__ = ["conv", "matmul"]

_INTEGERS = ("i8", "u8")


@record
class _Names:
    """Which inputs of a node are what; -1 for what it does not have.

    Attributes:
        left: A, or the image, and its zero point.
        right: B, or the filters, and its zero points.
        scales: Scales of A, B and the result, if that is quantised again.
        zero: Zero point of the result.
        bias: i32, one for each column.
    """

    left: tuple[int, int]
    right: tuple[int, int]
    scales: tuple[int, ...] = ()
    zero: int = -1
    bias: int = -1


_MATRICES = {"MatMulInteger": _Names((0, 2), (1, 3)), "QLinearMatMul": _Names((0, 2), (3, 5), (1, 4, 6), 7)}
_IMAGES = {"ConvInteger": _Names((0, 2), (1, 3)), "QLinearConv": _Names((0, 2), (3, 5), (1, 4, 6), 7, 8)}


class _Product:
    """Collects what a kernel reads, in the order of its operands.

    Args:
        view: The node.
        names: Its inputs.
    """

    def __init__(self, view: NodeView, names: _Names) -> None:
        self.view, self.names = view, names
        self.reads = [names.left[0], names.right[0]]
        self.extras: list[Extra] = []

    def _dtype(self, index: int) -> str:
        found = known(self.view.tensor(index), f"input {index}")
        assert not isinstance(found, Reason)
        return found[1]

    def factor(self, which: tuple[int, int], own: Access, zero: Callable[[int], Access]) -> Factor:
        """Elements less their zero points."""
        index, offset = which
        dtype = self._dtype(index)
        value, extras = cast(operand(0, dtype), "i32"), []
        if offset >= 0 and self.view.has(offset):
            extras.append(Extra(self._dtype(offset), zero(offset)))
            value = value - cast(operand(1, extras[0].dtype), "i32")
            self.reads.append(offset)
        return Factor(dtype, own, cast(value, "f16"), tuple(extras))

    def _read(self, index: int, access: Callable[[int], Access]) -> Expr:
        self.extras.append(Extra(self._dtype(index), access(index)))
        self.reads.append(index)
        return operand(len(self.extras), self.extras[-1].dtype)

    def result(self, access: Callable[[int], Access], then: Epilogue) -> Epilogue:
        """What is stored: the sum modulo 2**32, with the bias, and quantised again if that is what the node does."""
        names = self.names
        total = operand(0, "i32")
        if names.bias >= 0 and self.view.has(names.bias):
            total = total + self._read(names.bias, access)
        if names.scales:
            a, b, y = (cast(self._read(i, access), "f32") for i in names.scales)
            zero = self._read(names.zero, access)
            total = quantized(cast(total, "f64") * cast(a * b / y, "f64"), zero, zero.dtype)
        return after(total, self.extras, then)


def _shapes(view: NodeView, names: _Names) -> tuple[Shape, Shape] | Reason:
    """Shapes of A and B, if all is of 8-bit integers."""
    found = []
    for index in (names.left[0], names.right[0]):
        one = known(view.tensor(index), f"input {index}")
        if isinstance(one, Reason):
            return one
        if one[1] not in _INTEGERS:
            return Reason(f"integer products are generated for 8 bits, not for {one[1]}")
        found.append(one[0])
    for index in (names.left[1], names.right[1], names.zero, names.bias, *names.scales):
        refused = known(view.tensor(index), f"input {index}") if index >= 0 and view.has(index) else None
        if isinstance(refused, Reason):
            return refused
    if names.scales and known(view.tensor(names.zero), "")[1] not in _INTEGERS:  # type: ignore[index]
        return Reason("the result is not quantised to 8 bits")
    return found[0], found[1]


arranges(*_MATRICES)(any_strides)
arranges(*_IMAGES)(images_with_channels_last)


@selects(*_MATRICES, epilogue=True)
def matmul(view: NodeView) -> Kernel | Reason:
    """A batch of products with NumPy's rules; QLinearMatMul quantises them again."""
    names = _MATRICES[view.node.op_type]
    found = _shapes(view, names)
    if isinstance(found, Reason):
        return found
    a, b = found
    if not a or not b:
        return Reason("a scalar operand")
    p = matrices(view, (a, view.access(names.left[0])), (b, view.access(names.right[0])))
    m, n, k = p.sizes
    rows = (names.left[1], *names.scales[:1])
    for index in (*rows, names.right[1], *names.scales[1:2]):
        shape = view.tensor(index).shape if index >= 0 and view.has(index) else ()
        if shape and shape != (1,) and p.lacking:
            return Reason("a vector with several zero points or scales")

    def over(whole: Shape) -> Callable[[int], Access]:
        """How a parameter is walked over some of the product's axes."""

        def access(index: int) -> Access:
            shape, own = view.tensor(index).shape or (), view.access(index)
            if index in rows and len(shape) == 1:
                shape, own = (*shape, 1), Access((*own.strides, 0), own.offset)
            return broadcast_access(shape, whole, own)

        return access

    product = _Product(view, names)
    left = product.factor(names.left, p.accesses[0], over((*p.batch, m, k)))
    right = product.factor(names.right, p.accesses[1], over((*p.batch, k, n)))
    epilogue = product.result(over((*p.batch, m, n)), p.epilogue)
    try:
        kernel, dims = contraction_kernel(
            p.batch, (m,), (n,), (k,), left, right, p.accesses[2], epilogue.expr, epilogue.extras, precision="whole"
        )
    except CompileError as error:
        return Reason(error.message)
    count = len(left.extras) + len(right.extras) + len(epilogue.extras)
    flops = 2 * D.product((*p.batch, m, n, k))
    cold = tuple(i for i, n in enumerate(product.reads[:2]) if view.tensor(n).is_const)
    return native(f"matmul {left.dtype} {right.dtype}", kernel, dims, tuple(product.reads), count, cold, {}, flops)


@selects(*_IMAGES, epilogue=True)
def conv(view: NodeView) -> Kernel | Reason:
    """Convolution over one to three spatial axes; QLinearConv quantises it again."""
    names = _IMAGES[view.node.op_type]
    found = _shapes(view, names)
    if isinstance(found, Reason):
        return found
    x, w = found
    asked = convolution_of(view, x, w, names.right[0])
    if isinstance(asked, Reason):
        return asked
    problem, weights, constants = asked
    out = view.output().shape
    assert out is not None

    def of_channel(axis: int) -> Callable[[int], Access]:
        """How a parameter is walked that is one number, or one for each index of an axis."""

        def access(index: int) -> Access:
            own, shape = view.access(index), view.tensor(index).shape or (1,)
            step = own.strides[0] if own.strides and shape[0] != 1 else 0
            return Access(tuple(step if a == axis else 0 for a in range(len(x))), own.offset)

        return access

    product = _Product(view, names)
    left = product.factor(names.left, view.access(names.left[0]), of_channel(-1))
    right = product.factor(names.right, weights, of_channel(0))
    epilogue = product.result(of_channel(1), epilogue_of(view))
    try:
        kernel, dims = problem.kernel(left, right, view.output_access(), epilogue.expr, epilogue.extras, "whole")
    except CompileError as error:
        return Reason(error.message)
    count = len(left.extras) + len(right.extras) + len(epilogue.extras)
    flops = 2 * D.product((*out, *w[1:]))
    cold = tuple(i for i, n in enumerate(product.reads[:2]) if view.tensor(n).is_const)
    return native(f"conv {left.dtype} {right.dtype}", kernel, dims, tuple(product.reads), count, cold, constants, flops)
