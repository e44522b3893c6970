"""Attention in blocks, after keys and values of the past were joined to the new ones."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from accord.backends.cuda.attention import AttentionKernel, JoiningKernel, attention_kernel, geometry, splits
from accord.backends.cuda.attention_choice import attention_choice, plain_launch, plain_tiles
from accord.backends.cuda.choices import Chosen
from accord.backends.cuda.code import CudaLaunch, exact_hints, hints_of
from accord.backends.cuda.families.table import arranges, selects
from accord.backends.cuda.linear_attention import LinearAttentionKernel, linear_attention_launch
from accord.backends.heads import (
    KEY,
    MASK,
    PAST_KEY,
    PAST_VALUE,
    QUERY,
    VALID,
    VALUE,
    Features,
    Heads,
    HeadTensor,
    as_heads,
    attention_of,
)
from accord.backends.loops.program import pointwise
from accord.backends.loops.table import output_operands
from accord.backends.matrix_state import linear_attention_of
from accord.backends.protocol import Arrangement, Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.errors import CompileError
from accord.expr.lang import bits, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = ["attention", "linear_attention"]

#: Rows of a matrix state that registers hold.
_LARGEST_STATE = 512


@arranges("Attention")
def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


@selects("Attention")
def attention(view: NodeView) -> Kernel | Reason:
    """The scores themselves are no result of this kernel."""
    asked = attention_of(view)
    if isinstance(asked, Reason):
        return asked
    try:
        return _Kernel(view, asked.query, asked.key, asked.value, asked.features).make(asked.shape, asked.dtype)
    except CompileError as error:
        return Reason(error.message)


class _Kernel:
    """Puts the phases together. Operands: inputs in ``reads``, named outputs, workspace."""

    def __init__(self, view: NodeView, q: HeadTensor, k: HeadTensor, v: HeadTensor, features: Features) -> None:
        self.view = view
        self.q, self.k, self.v = q, k, v
        self.features = features
        self.reads = [i for i in range(VALID + 1) if view.has(i)]
        self.numbers = output_operands(view.node, len(self.reads))
        self.scratch = len(self.reads) + sum(n >= 0 for n in self.numbers)
        self.phases: list[Phase] = []
        self.bytes: DimLike = 0

    def make(self, shape: Shape, dtype: str) -> Kernel | Reason:
        """The kernel.

        Raises:
            CompileError: it is of types or sizes that it has no kernel for.
        """
        q = self.q
        key, key_operand = self._joined(self.k, PAST_KEY, KEY, 1)
        value, value_operand = self._joined(self.v, PAST_VALUE, VALUE, 2)
        y = as_heads(shape, self.view.output_access(), dtype, q.shape[1])
        query, keys, values, result = (Heads(t.dtype, t.access) for t in (q, key, value, y))
        sizes: dict[str, DimLike] = {
            "images": q.shape[0],
            "heads": q.shape[1],
            "groups": key.shape[1],
            "length": q.shape[2],
            "keys": key.shape[2],
            "size": q.shape[3],
            "value.size": self.v.shape[3],
        }
        tf32 = self.view.analyzer.precision == "tf32"
        kernel, dims = attention_kernel(query, keys, values, result, sizes, self.features, tf32=tf32)
        operands = [self.reads.index(QUERY), key_operand, value_operand]
        operands += [self.reads.index(i) for i in (MASK, VALID) if self.view.has(i)]
        fixed = [d for d in dims if isinstance(d, int)]
        hints = exact_hints(dims)
        if len(fixed) == len(dims) and 0 not in fixed[:5] and splits(fixed, plain_tiles(kernel, fixed).rows):
            kernel, _ = attention_kernel(query, keys, values, result, sizes, self.features, tf32=tf32, split=True)
            self._split(kernel, dims, operands, fixed)
            return self._native(key.shape[2])
        operands.append(self.numbers[0])
        choice = attention_choice(kernel, hints, fixed) if len(fixed) == len(dims) else None
        text = kernel if choice is None else choice.started(choice.rule)[0].kernel
        problem = functools.partial(attention_choice, kernel, hints)
        self.phases.append(Phase(text, tuple(operands), dims, Chosen(problem, 0)))
        return self._native(key.shape[2])

    def _native(self, keys: DimLike) -> NativeKernel:
        q = self.q
        flops = 2 * D.product((*q.shape[:3], keys)) * (q.shape[3] + self.v.shape[3])
        return NativeKernel(
            f"attention {q.dtype}", tuple(self.phases), tuple(self.reads), workspace=self.bytes, flops=flops
        )

    def _split(
        self, kernel: AttentionKernel, dims: tuple[DimLike, ...], operands: list[int], sizes: Sequence[int]
    ) -> None:
        """Programs for parts of the keys, and what joins their sums, which are in the workspace."""
        if not isinstance(self.bytes, int):
            raise CompileError("the size of joined keys is only known at run time")
        tiles = plain_tiles(kernel, sizes)
        sums, stats = geometry(kernel, tiles, sizes).workspace
        places = (self.bytes, self.bytes - (-4 * sums // 256) * 256)
        self.bytes = places[1] + 4 * stats
        joining = JoiningKernel(kernel)
        first = functools.partial(_start_part, kernel, places, len(operands))
        second = functools.partial(_start_joining, joining, places)
        scratch = (self.scratch, self.scratch)
        self.phases.append(Phase(kernel, (*operands, *scratch), dims, first))
        self.phases.append(Phase(joining, (*scratch, self.numbers[0]), dims, second))

    def _joined(self, new: HeadTensor, past: int, own: int, output: int) -> tuple[HeadTensor, int]:
        """Keys or values of the past and new ones in one tensor, and its operand number."""
        view = self.view
        number = self.numbers[output] if output < len(self.numbers) else -1
        if number < 0 and not view.has(past):
            return new, self.reads.index(own)
        before: DimLike = 0
        if view.has(past):
            shape = view.tensor(past).shape
            assert shape is not None
            before = shape[2]
        whole: Shape = (new.shape[0], new.shape[1], before + new.shape[2], new.shape[3])
        if number >= 0:
            access = view.output_access(output)
        else:  # in the workspace, in whole lines
            number, item = self.scratch, bits(new.dtype) // 8
            access = Access(contiguous(whole), D.floordiv(self.bytes, item))
            self.bytes = self.bytes + D.ceildiv(D.product(whole) * item, 256) * 256
        if view.has(past):
            inside = (*whole[:2], before, whole[3])
            self._move(inside, new.dtype, view.access(past), access, (self.reads.index(past), number))
        place = Access(access.strides, access.offset + before * access.strides[2])
        self._move(new.shape, new.dtype, new.access, place, (self.reads.index(own), number))
        return HeadTensor(whole, access, new.dtype), number

    def _move(self, extents: Shape, dtype: str, source: Access, target: Access, operands: tuple[int, int]) -> None:
        word = f"u{bits(dtype)}"
        self.phases.append(pointwise(extents, [(word, source)], [(word, target)], [operand(0, word)], operands))


def _start_part(kernel: AttentionKernel, places: tuple[int, int], before: int, sizes: Sequence[int]) -> CudaLaunch:
    launch = plain_launch(kernel, plain_tiles(kernel, sizes), hints_of(sizes), sizes)
    return replace(launch, shifts=(*(0,) * before, *places))


def _start_joining(kernel: JoiningKernel, places: tuple[int, int], sizes: Sequence[int]) -> CudaLaunch:
    shape = geometry(kernel.first, plain_tiles(kernel.first, sizes), sizes)
    values = dict(zip(kernel.first.names, sizes, strict=True))
    numbers = tuple(values[n] for n in kernel.names)
    wide = any(abs(n) >= 1 << 31 for n in numbers)
    constants = (("PARTS", shape.constants["PARTS"]),)
    grid = (shape.joined, 1, 1)
    return CudaLaunch(numbers, shape.joined, grid, constants, hints_of(numbers), wide, shifts=(*places, 0))


@selects("LinearAttention")
def linear_attention(view: NodeView) -> Kernel | Reason:
    """All steps of a recurrence over a matrix state, which stays in registers."""
    asked = linear_attention_of(view)
    if isinstance(asked, Reason):
        return asked
    what, sizes, reads, results = asked
    size = sizes["size"]
    if not isinstance(size, int) or size > _LARGEST_STATE:
        return Reason(f"the head size is only known at run time, or above {_LARGEST_STATE}")
    kernel = LinearAttentionKernel(what)
    dims = (*(sizes[n] for n in ("images", "steps", "heads", "group", "size", "value.size", "decays", "betas")),)
    phase = Phase(kernel, (*range(len(reads)), *results), dims, linear_attention_launch)
    flops = 6 * D.product((sizes["images"], sizes["steps"], sizes["heads"], size, sizes["value.size"]))
    return NativeKernel(f"linear attention {what.dtype}", (phase,), reads, flops=flops)
