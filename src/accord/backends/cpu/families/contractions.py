"""MatMul, Gemm and Conv."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from accord.backends.combs import combs_of
from accord.backends.cpu.contraction import RightMatrix, Walk, packed_size
from accord.backends.cpu.conv import Convolution, Image
from accord.backends.cpu.conv_transpose import CombWeights, pack_combs, transposed_phases
from accord.backends.cpu.families.coded import coded_weight
from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.families.windows import depthwise_kernel, is_depthwise
from accord.backends.cpu.halves import halves
from accord.backends.cpu.matmul import matmul_phase, pack_constant
from accord.backends.cpu.patches import Window
from accord.backends.cpu.winograd import reason_against, reason_not_to, transformed_weights, winograd_phase
from accord.backends.epilogue import accumulator, with_sum
from accord.backends.images import channels_last_arrangement
from accord.backends.products import Product, gemm_of, matmul_of, operands_of, with_bias
from accord.backends.protocol import Arrangement, Array, Constant, Kernel, NativeKernel
from accord.backends.root import RootView
from accord.backends.view import NodeView
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason
from accord.ir.strides import Access, broadcast_access, channels_last, contiguous

__all__ = [
    "conv",
    "conv_transpose",
    "convolution_of",
    "gemm",
    "matmul",
    "packed_weights",
    "walk_of",
]

#: Convolutions, one for each comb of output pixels, that a transposed one may become: for strides of 128 by 128.
_MAX_COMBS = 1 << 14


def _split(access: Access, rank: int) -> tuple[tuple[DimLike, ...], DimLike, DimLike]:
    """Strides of the batch axes, the last but one axis and the last axis of an access of ``rank`` axes."""
    strides = access.strides
    return strides[: rank - 2], strides[rank - 2], strides[rank - 1]


def walk_of(dtype: str, access: Access) -> Walk:
    """The walk of an access whose last axes are rows and columns; those before them are groups."""
    groups, row, column = _split(access, len(access.strides))
    return Walk(dtype, groups, (row,), column, access.offset)


@arranges("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul")
def any_matrices(view: NodeView) -> Arrangement:
    """Operands of any strides; what is written is row-major."""
    del view
    return Arrangement(strided=True)


@selects("MatMul", epilogue=True)
def matmul(view: NodeView) -> Kernel | Reason:
    """A batch of products with NumPy's rules."""
    return _product(view, "matmul", matmul_of(view))


@selects("Gemm", epilogue=True)
def gemm(view: NodeView) -> Kernel | Reason:
    """``alpha * A B + beta * C``."""
    return _product(view, "gemm", gemm_of(view))


def _product(view: NodeView, name: str, found: Product | Reason) -> NativeKernel | Reason:
    """The kernel of a batch of products of inputs 0 and 1."""
    if isinstance(found, Reason):
        return found
    dtype, batch, epilogue, reads = found.dtype, found.batch, found.epilogue, found.reads
    name = f"{name} {dtype}"
    m, n, k = found.sizes
    at_a, at_b, at_c = found.accesses
    constants: dict[int, Constant] = {}
    kind = _halves(view, dtype)
    right = _constant(view, dtype, batch, constants, kind)
    if isinstance(right, Reason):
        return right
    if right is None:
        groups, step, column = _split(at_b, len(at_b.strides))
        right = RightMatrix(dtype, groups, step, column, at_b.offset, halves=kind)
    expr = with_sum(epilogue.expr, accumulator(dtype))
    extras = [walk_of(e.dtype, e.access) for e in epilogue.extras]
    operands = tuple(range(2 + len(extras) + 2))
    out = walk_of(epilogue.expr.dtype, at_c)
    phase, scratch = matmul_phase(batch, m, n, k, walk_of(dtype, at_a), right, extras, out, expr, operands)
    flops = 2 * D.product((*batch, m, n, k))
    rounds = "bfloat16" if right.halves else ""
    if rounds or right.codes is not None:
        name = f"{name} as bf16" if right.codes is None else f"{name} of {right.codes.bits} bits"
    return NativeKernel(
        name,
        (phase,),
        reads,
        constants,
        workspace=scratch,
        flops=flops,
        precision=rounds,
    )


def _halves(view: NodeView, dtype: str) -> str:
    """How panels hold operands that shall be rounded to bf16; "" if they shall not."""
    return halves() if dtype == "f32" and view.analyzer.precision == "bfloat16" else ""


def _constant(
    view: NodeView, dtype: str, batch: Shape, constants: dict[int, Constant], kind: str
) -> RightMatrix | Reason | None:
    """B packed, if it is a constant; its array goes to ``constants``."""
    if isinstance(view, RootView) and view.prologue:
        weight = coded_weight(view.prologue, view)
        if isinstance(weight, Reason):
            return weight
        constants[1] = weight.packed
        return replace(weight.right, groups=(0,) * len(batch))
    fact = view.tensor(1)
    if not fact.is_const or fact.shape is None:
        return None
    shape = tuple(int(d) for d in fact.shape if isinstance(d, int))
    if 0 in shape:
        return None
    turned = view.node.op_type == "Gemm" and bool(view.attr("transB", 0))
    constants[1] = functools.partial(_packed, fact, turned, dtype, kind)
    if turned:
        shape = shape[::-1]
    if len(shape) == 1:
        shape = (*shape, 1)
    lead = shape[:-2]
    size = packed_size(accumulator(dtype), shape[-2], shape[-1], kind)
    groups = [s * size for s in broadcast_access(lead, batch).strides]
    return RightMatrix(accumulator(dtype), tuple(groups), packed=True, halves=kind)


def _packed(fact: TensorFact, turned: bool, dtype: str, kind: str) -> Array:
    b = fact.numpy()
    if turned:
        b = b.T
    return pack_constant(b[:, None] if b.ndim == 1 else b, dtype, kind)


@arranges("Conv", "ConvTranspose", "ConvInteger", "QLinearConv")
def images_with_channels_last(view: NodeView) -> Arrangement:
    """Channels follow each other in what is written; any image can be read, and weights without gaps."""
    shape = view.output().shape
    if shape is None or len(shape) < 3:
        return Arrangement()
    if view.node.op_type in ("Conv", "ConvTranspose") and is_depthwise(view):
        return channels_last_arrangement(view)
    inputs = (None, tuple(range(len(shape)))) if view.node.op_type == "Conv" else ()
    return Arrangement(inputs, (channels_last(len(shape)),), strided=True)


@selects("Conv", epilogue=True)
def conv(view: NodeView) -> Kernel | Reason:
    """Convolution over one to three spatial axes."""
    if is_depthwise(view):
        kernel = depthwise_kernel(view)
        if not isinstance(kernel, Reason):
            return kernel
    found = operands_of(view, 2)
    if isinstance(found, Reason):
        return found
    (x, w), dtype = found
    convolution = convolution_of(view, x, w, Image(dtype, view.access(0)), constant=view.tensor(1).is_const)
    out = view.output().shape
    if isinstance(convolution, Reason) or out is None:
        return convolution if isinstance(convolution, Reason) else Reason("the output's rank is not known")
    epilogue, reads = with_bias(view, dtype, out)
    constants: dict[int, Constant] = {}
    alternatives = _alternatives(convolution)
    way = view.choose(alternatives)
    transformed = way == _WINOGRAD
    if way in convolution.ways:
        convolution = replace(convolution, way=way)
    if convolution.constant:
        constants[1] = functools.partial(packed_weights, view.tensor(1), convolution, transformed)
    elif view.access(1).strides != contiguous(tuple(w)):
        return Reason("weights that are not constant must be row-major")
    rest = (
        [Image(e.dtype, e.access) for e in epilogue.extras],
        Image(epilogue.expr.dtype, view.output_access()),
        with_sum(epilogue.expr, accumulator(dtype)),
        tuple(range(len(epilogue.extras) + 4)),
    )
    phase, scratch = winograd_phase(convolution, *rest) if transformed else convolution.phase(*rest)
    flops = 2 * D.product((*out, *w[1:]))
    name = f"conv winograd {dtype}" if transformed else f"conv {dtype}"
    rounds = "bfloat16" if convolution.halves else ""
    if rounds:
        name = f"{name} as bf16"
    note = "Winograd 2x4: a third of the multiplications"
    if not transformed:
        note = f"direct: {reason_against(convolution) or reason_not_to(convolution) or 'as chosen'}"
    made = NativeKernel(name, (phase,), reads, constants, workspace=scratch, flops=flops, note=note, precision=rounds)
    return replace(made, alternatives=alternatives, alternative=way) if len(alternatives) > 1 else made


_WINOGRAD = "winograd"


def _alternatives(convolution: Convolution) -> tuple[str, ...]:
    """Ways to compute a convolution within the declared accuracy, the one by rule first."""
    if convolution.pointwise:
        return ("matrix",)
    if reason_against(convolution) is not None:
        return convolution.ways
    if reason_not_to(convolution) is not None:
        return (*convolution.ways, _WINOGRAD)
    return (_WINOGRAD, *convolution.ways)


def _window(view: NodeView, w: Sequence[int]) -> Window:
    """The kernel of weights ``[M, C / groups, *taps]``."""
    axes = len(w) - 2
    return Window(
        tuple(w[2:]),
        tuple(int(s) for s in view.attr("strides", (1,) * axes)),
        tuple(int(d) for d in view.attr("dilations", (1,) * axes)),
    )


def convolution_of(view: NodeView, x: Shape, w: Shape, image: Image, *, constant: bool) -> Convolution | Reason:
    """What a node convolves, from shapes of input and weights; whether the weights are packed at load."""
    out = view.output().shape
    axes = len(x) - 2
    if out is None or not 1 <= axes <= 3 or len(w) != axes + 2:
        return Reason("only one to three spatial axes")
    if not D.is_known(w) or 0 in w:
        return Reason("the weights' shape is only known at run time")
    groups = int(view.attr("group", 1))
    window = _window(view, w)
    pads, inside = _pads(view, x[2:], out[2:], window)
    columns = w[0] // groups
    sizes, kind = (x[2:], out[2:]), _halves(view, image.dtype)
    return Convolution(x[0], groups, w[1], columns, *sizes, window, tuple(pads), image, constant, inside, kind)


def packed_weights(fact: TensorFact, convolution: Convolution, transformed: bool) -> Array:
    """Constant weights as the kernel reads them; ``transformed``: for Winograd."""
    if transformed:
        return transformed_weights(fact.numpy(), convolution.groups)
    return convolution.pack(fact.numpy())


def _pads(view: NodeView, sizes: Shape, out: Shape, window: Window) -> tuple[list[DimLike], bool]:
    """Padding in front of each axis, and whether there is none at either end."""
    axes = len(window.taps)
    mode = _mode(view)
    if mode == "NOTSET":
        pads = [int(p) for p in view.attr("pads", (0,) * 2 * axes)]
        return list(pads[:axes]), not any(pads)
    if mode == "VALID":
        return [0] * axes, True
    front: list[DimLike] = []
    totals: list[DimLike] = []
    for size, n, k, s, d in zip(sizes, out, window.taps, window.steps, window.dilations, strict=True):
        total = D.maximum((n - 1) * s + (k - 1) * d + 1 - size, 0)
        totals.append(total)
        front.append(D.floordiv(total, 2) if mode == "SAME_UPPER" else D.ceildiv(total, 2))
    return front, all(t == 0 for t in totals)


@selects("ConvTranspose", epilogue=True)
def conv_transpose(view: NodeView) -> Kernel | Reason:
    """Transposed convolution over one to three spatial axes: an ordinary one for each comb of output pixels."""
    asked, out = combs_of(view, _MAX_COMBS), view.output().shape
    if isinstance(asked, Reason):
        return asked
    assert out is not None
    x, w, dtype, combs = asked
    constant, steps = view.tensor(1).is_const, combs[-1][0].step
    epilogue, reads = with_bias(view, dtype, out)
    extras = [Image(e.dtype, e.access) for e in epilogue.extras]
    constants: dict[int, Constant] = {}
    if view.has(2) and view.tensor(2).is_const and view.access(2).strides == (1,):
        constants[2] = np.tile(view.tensor(2).numpy(), steps)
        extras[0] = Image(dtype, extras[0].access, repeated=True)
    phases, weights, scratch = transposed_phases(
        x[0],
        int(view.attr("group", 1)),
        tuple(int(str(d)) for d in w),
        x[2:],
        out[2:],
        combs,
        Image(dtype, view.access(0)),
        extras,
        Image(epilogue.expr.dtype, view.output_access()),
        with_sum(epilogue.expr, accumulator(dtype)),
        tuple(range(len(epilogue.extras) + 4)),
        None if constant else (dtype, view.access(1)),
    )
    if constant:
        constants[1] = functools.partial(_packed_combs, view.tensor(1), weights)
    flops = 2 * D.product((*x, *w[1:]))
    name = f"conv transpose {dtype}"
    return NativeKernel(name, tuple(phases), reads, constants, workspace=scratch, flops=flops)


def _packed_combs(fact: TensorFact, weights: Sequence[CombWeights]) -> Array:
    return pack_combs(weights, fact.numpy())


def _mode(view: NodeView) -> str:
    mode = view.attr("auto_pad", "NOTSET")
    return mode.decode() if isinstance(mode, bytes) else str(mode)
