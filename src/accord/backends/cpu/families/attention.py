"""Attention in blocks, after keys and values of the past were joined to the new ones; linear attention."""

from __future__ import annotations

import math

from accord.backends.cpu.attention_launch import attention_phase, attention_workspace
from accord.backends.cpu.families.table import arranges, generates, selects
from accord.backends.cpu.linear_attention import (
    LinearAttentionCode,
    linear_attention_phase,
    linear_attention_workspace,
)
from accord.backends.cpu.pointwise import pointwise_phase
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
    heads_of,
)
from accord.backends.loops.table import known, output_operands
from accord.backends.matrix_state import linear_attention_of
from accord.backends.protocol import Arrangement, Kernel, NativeKernel, Phase
from accord.backends.view import NodeView
from accord.contract.choose import Choice, call_attributes
from accord.contract.code import ScoreFunction
from accord.expr.lang import bits, operand
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous

__all__ = ["attention", "linear_attention"]


@arranges("LinearAttention")
def without_gaps(view: NodeView) -> Arrangement:
    """All operands are row-major."""
    del view
    return Arrangement()


@arranges("Attention")
def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


@generates(ScoreFunction)
def scored_attention(view: NodeView, choice: Choice) -> Kernel | Reason:
    """Attention with a declared function of scores."""
    tensors = [heads_of(view, i, "") for i in range(3)]
    out = known(view.output(), "the output")
    for t in (*tensors, out):
        if isinstance(t, Reason):
            return t
    q, k, v = (t for t in tensors if isinstance(t, HeadTensor))
    size, value_size = q.shape[3], v.shape[3]
    if not isinstance(size, int) or not isinstance(value_size, int) or not size:
        return Reason("head sizes are only known at run time")
    code = choice.kernel.code
    attributes = call_attributes(view, choice.contract)
    window = int(attributes[code.window]) if code.window else -1
    real = "f64" if q.dtype == "f64" else "f32"
    parts = [operand(i, real) for i in range(5)]
    score = code.score(*parts, **attributes)
    features = Features(
        1 / math.sqrt(size),
        causal=code.causal,
        left=window,
        right=-1 if code.causal else window,
        score=None if score is parts[0] else score,
    )
    assert not isinstance(out, Reason)
    return _Kernel(view, q, k, v, features).make(out[0], out[1], size, value_size)


@selects("Attention")
def attention(view: NodeView) -> Kernel | Reason:
    """The scores themselves are no result of this kernel."""
    asked = attention_of(view)
    if isinstance(asked, Reason):
        return asked
    size, value_size = asked.query.shape[3], asked.value.shape[3]
    assert isinstance(size, int)
    assert isinstance(value_size, int)
    kernel = _Kernel(view, asked.query, asked.key, asked.value, asked.features)
    return kernel.make(asked.shape, asked.dtype, size, value_size)


class _Kernel:
    """Puts the phases together. Operands: inputs in ``reads``, named outputs, workspace."""

    def __init__(self, view: NodeView, q: HeadTensor, k: HeadTensor, v: HeadTensor, features: Features) -> None:
        self.view = view
        self.q, self.k, self.v = q, k, v
        self.features = features
        self.reads = [i for i in range(VALID + 1) if view.has(i)]
        self.numbers = output_operands(view.node, len(self.reads))
        self.workspace = len(self.reads) + sum(n >= 0 for n in self.numbers)
        self.phases: list[Phase] = []
        self.shared: DimLike = 0

    def make(self, shape: Shape, dtype: str, size: int, value_size: int) -> Kernel | Reason:
        """The kernel."""
        q = self.q
        key, key_operand = self._joined(self.k, PAST_KEY, KEY, 1)
        value, value_operand = self._joined(self.v, PAST_VALUE, VALUE, 2)
        y = as_heads(shape, self.view.output_access(), dtype, q.shape[1])
        sums = "f64" if q.dtype == "f64" else "f32"
        sizes: dict[str, DimLike] = {
            "images": q.shape[0],
            "heads": q.shape[1],
            "groups": key.shape[1],
            "length": q.shape[2],
            "keys": key.shape[2],
            "size": size,
            "value.size": value_size,
        }
        operands = [self.reads.index(QUERY), key_operand, value_operand]
        operands += [self.reads.index(i) for i in (MASK, VALID) if self.view.has(i)]
        phase = attention_phase(
            Heads(q.dtype, q.access),
            Heads(key.dtype, key.access),
            Heads(value.dtype, value.access),
            Heads(y.dtype, y.access),
            sizes,
            self.features,
            value_size,
            shared=self.shared,
            operands=(*operands, self.numbers[0], self.workspace),
        )
        rows = D.floordiv(q.shape[1], key.shape[1]) * q.shape[2]
        scratch = attention_workspace(sums, size, value_size, rows)
        return NativeKernel(
            f"attention {q.dtype}",
            (*self.phases, phase),
            tuple(self.reads),
            workspace=self.shared + scratch,
            flops=2 * D.product((q.shape[0], q.shape[1], q.shape[2], key.shape[2], size + value_size)),
        )

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
        else:  # at the start of the workspace, whole cache lines
            number, item = self.workspace, bits(new.dtype) // 8
            access = Access(contiguous(whole), D.floordiv(self.shared, item))
            self.shared = self.shared + D.ceildiv(D.product(whole) * item, 64) * 64
        if view.has(past):
            inside = (*whole[:2], before, whole[3])
            self._move(inside, new.dtype, view.access(past), access, (self.reads.index(past), number))
        place = Access(access.strides, access.offset + before * access.strides[2])
        self._move(new.shape, new.dtype, new.access, place, (self.reads.index(own), number))
        return HeadTensor(whole, access, new.dtype), number

    def _move(self, extents: Shape, dtype: str, source: Access, target: Access, operands: tuple[int, int]) -> None:
        word = f"u{bits(dtype)}"
        self.phases.append(pointwise_phase(extents, [(word, source)], [(word, target)], [operand(0, word)], operands))


@selects("LinearAttention")
def linear_attention(view: NodeView) -> Kernel | Reason:
    """All steps of a recurrence over a matrix state."""
    asked = linear_attention_of(view)
    if isinstance(asked, Reason):
        return asked
    a, sizes, reads, results = asked
    code = LinearAttentionCode(a.dtype, a.state, a.past, a.decay, a.delta, a.kept)
    operands = (*range(len(reads)), *results, len(reads) + len(results))
    phase = linear_attention_phase(code, sizes, a.scale, operands)
    return NativeKernel(
        f"linear attention {a.dtype}", (phase,), reads, workspace=linear_attention_workspace(sizes["size"])
    )
