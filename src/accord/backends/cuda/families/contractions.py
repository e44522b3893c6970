"""MatMul, Gemm, Conv and ConvTranspose."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from accord.backends.combs import Comb, combs_of
from accord.backends.cuda.choices import Chosen
from accord.backends.cuda.code import KernelText, exact_hints
from accord.backends.cuda.contraction import ContractionKernel, Factor, Window, contraction_kernel
from accord.backends.cuda.convolution import Convolution
from accord.backends.cuda.families.table import arranges, selects
from accord.backends.cuda.packing import FEW, Packing, pack_launch, packing_of
from accord.backends.cuda.tile_choice import contraction_choice
from accord.backends.epilogue import Extra, accumulator, with_sum
from accord.backends.images import channels_last_arrangement, window_axes
from accord.backends.products import Product, gemm_of, matmul_of, operands_of, with_bias
from accord.backends.protocol import Arrangement, Array, Constant, Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = [
    "conv",
    "conv_transpose",
    "convolution_of",
    "gemm",
    "images_with_channels_last",
    "matmul",
    "native",
    "precision_of",
    "weights_of",
    "whole_phase",
]

#: Contractions, one for each comb of output pixels, that a transposed convolution may become.
_COMBS = 64
#: Bytes to which parts of a workspace are aligned.
_LINE = 256


@arranges("MatMul", "Gemm")
def any_matrices(view: NodeView) -> Arrangement:
    """Operands of any strides; what is written is row-major."""
    del view
    return Arrangement(strided=True)


@selects("MatMul", epilogue=True)
def matmul(view: NodeView) -> Kernel | Reason:
    """A batch of products with NumPy's rules."""
    return _product("matmul", view, matmul_of(view))


@selects("Gemm", epilogue=True)
def gemm(view: NodeView) -> Kernel | Reason:
    """``alpha * A B + beta * C``."""
    return _product("gemm", view, gemm_of(view))


def _product(name: str, view: NodeView, found: Product | Reason) -> NativeKernel | Reason:
    """The kernel of a batch of products of inputs 0 and 1."""
    if isinstance(found, Reason):
        return found
    dtype, batch, epilogue = found.dtype, found.batch, found.epilogue
    m, n, k = found.sizes
    at_a, at_b, at_c = found.accesses
    rows: tuple[DimLike, ...] = (m,)
    flops = 2 * D.product((*batch, m, n, k))
    if all(s == 0 for s in at_b.strides[:-2]):  # one matrix for all: its products are one with more rows
        rows, batch = (*batch, m), ()
        at_b = Access(at_b.strides[-2:], at_b.offset)
    try:
        kernel, dims = contraction_kernel(
            batch,
            rows,
            (n,),
            (k,),
            Factor(dtype, at_a),
            Factor(dtype, at_b),
            at_c,
            with_sum(epilogue.expr, accumulator(dtype)),
            epilogue.extras,
            precision=precision_of(view),
        )
    except CompileError as error:
        return Reason(error.message)
    return native(f"{name} {dtype}", kernel, dims, found.reads, len(epilogue.extras), weights_of(view), {}, flops)


def native(
    name: str,
    kernel: ContractionKernel,
    dims: tuple[DimLike, ...],
    reads: tuple[int, ...],
    extras: int,
    weights: tuple[int, ...],
    constants: dict[int, Constant],
    flops: DimLike,
    packed: tuple[Packing, Access] | None = None,
) -> NativeKernel:
    """The kernel of one contraction: what multiplies, and what adds the parts of long sums.

    Sums may be split where all sizes are known: the plan then has room for the parts. Images of few channels are packed
    first, in the workspace, before the parts of sums.
    """
    known = [d for d in dims if isinstance(d, int)]
    hints, scratch = exact_hints(dims), 0
    texts: tuple[KernelText, KernelText] = kernel, kernel.parts
    choice = contraction_choice(kernel, hints, weights, None, (*known, 0)) if len(known) == len(dims) else None
    if choice is not None:
        scratch = choice.room
        texts = choice.texts(choice.rule)
    operands = [*range(2 + extras), 2 + extras, 3 + extras if scratch else 2 + extras]
    room: DimLike = 0
    phases = []
    if packed is not None:
        packing, image = packed
        room = D.ceildiv(packing.bytes, _LINE) * _LINE
        operands[0] = 3 + extras
        moves, numbers = packing.image_kernel(image)
        launch = functools.partial(pack_launch, moves, exact_hints(numbers))
        phases.append(Phase(moves, (0, operands[0]), numbers, launch))
    own = (*dims, room if scratch else 0)
    problem = functools.partial(contraction_choice, kernel, hints, weights, scratch, plain=choice is None)
    phases.append(Phase(texts[0], tuple(operands), own, Chosen(problem, 0)))
    if scratch:
        phases.append(Phase(texts[1], tuple(operands), own, Chosen(problem, 1)))
    return NativeKernel(name, tuple(phases), reads, constants, workspace=room + scratch, flops=flops)


def precision_of(view: NodeView) -> str:
    """How float32 is multiplied: as TF32 where that was asked for."""
    return "tf32" if view.analyzer.precision == "tf32" else "ieee"


def weights_of(view: NodeView) -> tuple[int, ...]:
    """Which of A and B are constant."""
    return tuple(i for i in (0, 1) if view.tensor(i).is_const)


def whole_phase(kernel: ContractionKernel, dims: tuple[DimLike, ...], operands: tuple[int, ...]) -> Phase:
    """A contraction as one phase of a kernel, whose sums are not split; operands: A, B, their extras, the result."""
    problem = functools.partial(contraction_choice, kernel, exact_hints(dims), (), 0, plain=True)
    return Phase(kernel, (*operands, operands[-1]), (*dims, 0), Chosen(problem, 0))


@arranges("Conv")
def images_with_channels_last(view: NodeView) -> Arrangement:
    """Channels follow each other in what is read and written."""
    shape = view.output().shape
    if shape is None or len(shape) < 3:
        return Arrangement(strided=True)
    x = view.tensor(0).shape
    if x is not None and isinstance(x[1], int) and x[1] < FEW:  # packed, or read as they lie
        return channels_last_arrangement(view, ())
    return channels_last_arrangement(view)


@selects("Conv", epilogue=True)
def conv(view: NodeView) -> Kernel | Reason:
    """Convolution over one to three spatial axes, as a contraction."""
    found = operands_of(view, 2)
    if isinstance(found, Reason):
        return found
    (x, w), dtype = found
    asked, out = convolution_of(view, x, w, 1), view.output().shape
    if isinstance(asked, Reason):
        return asked
    assert out is not None
    problem, weights, constants = asked
    epilogue, reads = with_bias(view, dtype, out)
    stored = with_sum(epilogue.expr, accumulator(dtype))
    packing = packing_of(problem, dtype) if view.tensor(1).is_const else None
    flops = 2 * D.product((*out, *w[1:]))
    try:
        if packing is not None:
            constants[1] = functools.partial(_filled, view.tensor(1), packing)
            kernel, dims = packing.kernel(view.output_access(), stored, epilogue.extras)
            own = (packing, view.access(0))
            return native(f"conv {dtype}", kernel, dims, reads, len(epilogue.extras), (1,), constants, flops, own)
        kernel, dims = problem.kernel(
            Factor(dtype, view.access(0)),
            Factor(dtype, weights),
            view.output_access(),
            stored,
            epilogue.extras,
            precision_of(view),
        )
    except CompileError as error:
        return Reason(error.message)
    return native(f"conv {dtype}", kernel, dims, reads, len(epilogue.extras), weights_of(view), constants, flops)


def convolution_of(
    view: NodeView, x: Shape, w: Shape, index: int
) -> tuple[Convolution, Access, dict[int, Constant]] | Reason:
    """A convolution as a contraction, how its weights lie, and what stands for them if they are constant.

    Args:
        view: The node.
        x: Shape of the image.
        w: Of the weights.
        index: Number of the input that they are.
    """
    out = view.output().shape
    rank = len(x) - 2
    if out is None or not 1 <= rank <= 3 or len(w) != rank + 2:
        return Reason("only one to three spatial axes")
    if not D.is_known(w) or 0 in w:
        return Reason("the weights' shape is only known at run time")
    taps = tuple(int(k) for k in w[2:])
    axes = window_axes(view, x[2:], out[2:], taps)
    groups = int(view.attr("group", 1))
    weights = view.access(index)
    constants: dict[int, Constant] = {}
    if view.tensor(index).is_const:
        weights = _channels_last((int(w[0]), int(w[1]), *taps))
        constants[index] = functools.partial(_packed, view.tensor(index))
    problem = Convolution(
        x[0],
        groups,
        w[1],
        w[0] // groups,
        x[2:],
        out[2:],
        taps,
        tuple(a.stride for a in axes),
        tuple(a.dilation for a in axes),
        tuple(a.pad for a in axes),
    )
    return problem, weights, constants


def _channels_last(shape: Sequence[int]) -> Access:
    """How weights ``[M, C, *taps]`` lie with their channels innermost."""
    m, c, *taps = shape
    steps = contiguous((m, *taps, c))
    return Access((steps[0], steps[-1], *steps[1:-1]))


def _packed(fact: TensorFact) -> Array:
    return np.ascontiguousarray(np.moveaxis(fact.numpy(), 1, -1))


def _filled(fact: TensorFact, packing: Packing) -> Array:
    return packing.weights(fact.numpy())


arranges("ConvTranspose")(images_with_channels_last)


@selects("ConvTranspose", epilogue=True)
def conv_transpose(view: NodeView) -> Kernel | Reason:
    """Transposed convolution over one to three spatial axes: a contraction for each comb of output pixels."""
    asked, out = combs_of(view, _COMBS), view.output().shape
    if isinstance(asked, Reason):
        return asked
    assert out is not None
    x, w, dtype, combs = asked
    groups = int(view.attr("group", 1))
    epilogue, reads = with_bias(view, dtype, out)
    expr = with_sum(epilogue.expr, accumulator(dtype))
    made = []
    for chosen in itertools.product(*combs):
        counts = tuple(D.ceildiv(d - c.first, c.step) for d, c in zip(out[2:], chosen, strict=True))
        channels, columns = D.floordiv(x[1], groups), w[1]
        try:
            kernel, dims = contraction_kernel(
                (groups,),
                (x[0], *counts),
                (columns,),
                (*(max(1, len(c.taps)) for c in chosen), channels),
                Factor(dtype, _image_of_comb(view.access(0), chosen, channels)),
                Factor(dtype, _weights_of_comb(view.access(1), chosen, channels)),
                _result_of_comb(view.output_access(), chosen, columns),
                expr,
                [Extra(e.dtype, _result_of_comb(e.access, chosen, columns)) for e in epilogue.extras],
                [
                    Window(1 + i, i, 1, c.dilation, -c.offset, size if c.taps else 0)
                    for i, (c, size) in enumerate(zip(chosen, x[2:], strict=True))
                ],
                precision_of(view),
            )
        except CompileError as error:
            return Reason(error.message)
        made.append(native("", kernel, dims, reads, len(epilogue.extras), weights_of(view), {}, 0))
    return NativeKernel(
        f"conv transpose {dtype}",
        tuple(p for m in made for p in m.phases),
        reads,
        workspace=max(int(str(m.workspace)) for m in made),
        flops=2 * D.product((*x, *w[1:])),
    )


def _image_of_comb(access: Access, chosen: Sequence[Comb], channels: DimLike) -> Access:
    """The image over groups, images and outputs of a comb, taps and channels."""
    image, channel, *space = access.strides
    offset = access.offset + sum((s * c.offset for s, c in zip(space, chosen, strict=True)), start=0)
    taps = (s * c.dilation for s, c in zip(space, chosen, strict=True))
    return Access((channel * channels, image, *space, *taps, channel), offset)


def _weights_of_comb(access: Access, chosen: Sequence[Comb], channels: DimLike) -> Access:
    """Weights ``[C, M / groups, *taps]`` over groups, taps and channels, columns."""
    channel, column, *space = access.strides
    first = (s * c.taps[0] for s, c in zip(space, chosen, strict=True) if c.taps)
    steps = (s * (c.taps[1] - c.taps[0]) if len(c.taps) > 1 else 0 for s, c in zip(space, chosen, strict=True))
    return Access((channel * channels, *steps, channel, column), access.offset + sum(first, start=0))


def _result_of_comb(access: Access, chosen: Sequence[Comb], columns: DimLike) -> Access:
    """The result over groups, images and outputs of a comb, columns."""
    image, channel, *space = access.strides
    offset = access.offset + sum((s * c.first for s, c in zip(space, chosen, strict=True)), start=0)
    return Access(
        (channel * columns, image, *(s * c.step for s, c in zip(space, chosen, strict=True)), channel), offset
    )
