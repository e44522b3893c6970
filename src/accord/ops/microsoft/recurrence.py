"""Expansions: token mixing by recurrences: linear attention, gated delta rules, causal convolution with a state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, activate, cast, dims, flat, like_cast, reshape, size, wants
from accord.ops.microsoft.loops import scan
from accord.ops.microsoft.rotary import sequence_positions
from accord.ops.microsoft.schemas import DOMAIN

__all__: list[str] = []

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Recurrence:
    """A linear recurrence over tokens, in float32.

    Attributes:
        query: (B, T, G, R, K): R query heads read each of the G states.
        key: (B, T, G, K).
        value: (B, T, G, V).
        decay: Logarithm of the decay, (B, T, G, K or 1, 1); None for none.
        rate: Update rate of the delta rule, (B, T, G or 1, 1, 1); None for the plain sum.
        scale: Factor of the output.
    """

    query: ir.Value
    key: ir.Value
    value: ir.Value
    decay: ir.Value | None
    rate: ir.Value | None
    scale: float

    def run(self, b: Builder, label: str, state: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Output (B, T, G, R, V) and final state (B, G, K, V).

        ``S = exp(decay) * S + k (rate * (v - k S))^T``, or ``... + k v^T`` without a rate; ``o = scale * q S``. Yang
        et al., "Gated Delta Networks" (2025), equation 10.
        """
        scanned = [self.query, self.key, self.value]
        if self.decay is not None:
            scanned.append(b("Exp", self.decay))
        if self.rate is not None:
            scanned.append(self.rate)

        def step(
            body: Builder, states: Sequence[ir.Value], parts: Sequence[ir.Value]
        ) -> tuple[Sequence[ir.Value], Sequence[ir.Value]]:
            (s,) = states
            rest = iter(parts[3:])
            if self.decay is not None:
                s = body("Mul", s, next(rest))
            row, column = body("Unsqueeze", parts[1], body.ints(-2)), body("Unsqueeze", parts[1], body.ints(-1))
            change = body("Unsqueeze", parts[2], body.ints(-2))
            if self.rate is not None:
                change = body("Mul", next(rest), body("Sub", change, body("MatMul", row, s)))
            s = body("Add", s, body("MatMul", column, change))
            return [s], [body("MatMul", parts[0], s)]

        final, output = scan(b, label, step, [state], scanned, axis=1)
        return b("Mul", output, b.scalar(self.scale, output)), final


def _repeat(b: Builder, x: ir.Value, axis: int, times: int) -> ir.Value:
    """Each element along ``axis`` ``times`` over."""
    if times == 1:
        return x
    repeated = b("Concat", *[b("Unsqueeze", x, b.ints(axis + 1))] * times, axis=axis + 1)
    shape = b("Concat", b("Shape", x, end=axis), b.ints(-1), b("Shape", x, start=axis + 1), axis=0)
    return b("Reshape", repeated, shape)


def _label(n: Inference) -> str:
    return f"{next((o.name for o in n.node.outputs if o.name), n.node.op_type)}.body"


@expands("LinearAttention", domain=DOMAIN)
def linear_attention(b: Builder, n: Inference) -> Outputs:
    """Packed heads; key heads and query heads may be fewer than value heads, or query heads more."""
    widths = [(n.tensor(i).shape or (None,))[-1] for i in range(3)]
    q_width, k_width, v_width = widths
    if n.attr("state_window", 0) or not (
        isinstance(q_width, int) and isinstance(k_width, int) and isinstance(v_width, int)
    ):
        return None
    q_heads, heads = n.attr("q_num_heads"), n.attr("kv_num_heads")
    rule = n.attr("update_rule", "gated_delta")
    k_size, v_size = q_width // q_heads, v_width // heads
    query, key, value = (cast(b, required(n, i), FLOAT) for i in range(3))
    groups = max(q_heads // heads, 1)
    query = _repeat(b, reshape(b, query, 0, 0, q_heads, k_size), 2, max(heads // q_heads, 1))
    key = _repeat(b, reshape(b, key, 0, 0, k_width // k_size, k_size), 2, heads * k_size // k_width)
    decay = rate = None
    if rule in ("gated", "gated_delta"):
        decay = reshape(b, cast(b, required(n, 4), FLOAT), 0, 0, heads, -1, 1)
    if rule in ("delta", "gated_delta"):
        rate = reshape(b, cast(b, required(n, 5), FLOAT), 0, 0, -1, 1, 1)
    state = given(n, 3)
    if state is None:
        initial = b("Expand", b.const(np.array(0, np.float32)), dims(b, size(b, query, 0), heads, k_size, v_size))
    else:
        initial = cast(b, state, FLOAT)
    recurrence = _Recurrence(
        reshape(b, query, 0, 0, heads, groups, k_size),
        key,
        reshape(b, value, 0, 0, heads, v_size),
        decay,
        rate,
        n.attr("scale", 0.0) or 1 / math.sqrt(k_size),
    )
    output, final = recurrence.run(b, _label(n), initial)
    y = like_cast(b, reshape(b, output, 0, 0, -1), required(n, 0))
    return [y, final if state is None else like_cast(b, final, state)]


@expands("LinearAttentionGate", domain=DOMAIN)
def linear_attention_gate(b: Builder, n: Inference) -> Outputs:
    """Computed in float32, rounded once."""
    a = required(n, 0)
    shifted = b("Add", cast(b, a, FLOAT), required(n, 1))
    decay = like_cast(b, b("Mul", required(n, 2), b("Softplus", shifted)), a)
    update = given(n, 3)
    if update is None:
        return [decay]
    return [decay, like_cast(b, b("Sigmoid", cast(b, update, FLOAT)), update)]


# Gated delta rule on packed tokens --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ragged:
    """Sequences one after the other, brought to (B, T) and back.

    Attributes:
        rows: Token of each place, int64 (B * T); any token where the sequence has ended.
        valid: Whether the place has a token, bool (B, T).
        shape: B and T, int64 [2].
    """

    rows: ir.Value
    valid: ir.Value
    shape: ir.Value

    @classmethod
    def of(cls, b: Builder, sums: ir.Value) -> _Ragged:
        """From cumulated lengths, (B + 1)."""
        sums = b("Cast", sums, to=int(INT64))
        starts = b("Slice", sums, b.ints(0), b.ints(-1))
        lengths = b("Sub", b("Slice", sums, b.ints(1), b.ints(_LAST)), starts)
        longest = b("ReduceMax", lengths, b.ints(0), keepdims=1)
        steps = sequence_positions(b, longest)
        valid = b("Less", steps, b("Unsqueeze", lengths, b.ints(1)))
        rows = b("Where", valid, b("Add", b("Unsqueeze", starts, b.ints(1)), steps), b.const(np.array(0, np.int64)))
        return cls(flat(b, rows), valid, b("Shape", valid))

    def padded(self, b: Builder, x: ir.Value) -> ir.Value:
        """(tokens, ...) as (B, T, ...), zeros where there is no token."""
        taken = b("Gather", x, self.rows, axis=0)
        taken = b("Reshape", taken, b("Concat", self.shape, b("Shape", x, start=1), axis=0))
        rank = b.fact(x).rank
        assert rank is not None
        axes = b.ints(*range(2, rank + 1))
        mask = b("Unsqueeze", self.valid, axes) if rank > 1 else self.valid
        return b("Where", mask, taken, b.scalar(0.0, taken))

    def packed(self, b: Builder, x: ir.Value) -> ir.Value:
        """(B, T, ...) as (tokens, ...)."""
        rows = b("Reshape", x, b("Concat", b.ints(-1), b("Shape", x, start=2), axis=0))
        return b("Gather", rows, flat(b, b("NonZero", flat(b, self.valid))), axis=0)


def _l2_normalized(b: Builder, x: ir.Value) -> ir.Value:
    norm = b("ReduceSum", b("Mul", x, x), b.ints(-1), keepdims=1)
    return b("Div", x, b("Sqrt", b("Add", norm, b.scalar(1e-6, norm))))


def _delta_gates(b: Builder, n: Inference, heads: int, rank: int) -> tuple[ir.Value | None, ir.Value | None]:
    """Decay (tokens..., heads, K or 1) and update rate (tokens..., heads), both before they are cut by sequence."""
    rule = n.attr("update_rule", "gated_delta")
    decay = rate = None
    if rule in ("gated", "gated_delta"):
        raw = required(n, 4)
        per_head = n.tensor(4).rank == rank - 1
        decay = cast(b, b("Unsqueeze", raw, b.ints(-1)) if per_head else raw, FLOAT)
        kind = n.attr("gate_activation", "none")
        if kind != "none":
            a, bias = b("Unsqueeze", b("Exp", required(n, 7)), b.ints(-1)), reshape(b, required(n, 8), heads, -1)
            shifted = b("Add", decay, bias)
            if kind in ("softplus", "qwen"):
                decay = b("Mul", b("Neg", a), b("Softplus", shifted))
            else:
                bound = b.scalar(n.attr("gate_lower_bound", -5.0), shifted)
                decay = b("Mul", b("Sigmoid", b("Mul", a, shifted)), bound)
    if rule in ("delta", "gated_delta"):
        rate = cast(b, required(n, 5), FLOAT)
        if n.attr("beta_activation", "none") == "sigmoid":
            rate = b("Sigmoid", rate)
    return decay, rate


@expands("GatedDeltaNet", domain=DOMAIN)
def gated_delta_net(b: Builder, n: Inference) -> Outputs:
    """Without the capture of single transitions, which speculative decoders use."""
    state, sums = given(n, 6), given(n, 3)
    rank = n.tensor(0).rank
    if n.attr("state_update_capacity", 0) or rank is None or (n.has(1) and n.tensor(2).shape is None):
        return None
    query = required(n, 0)
    if n.has(1):
        value_shape, q_shape = n.tensor(2).shape, n.tensor(0).shape
        assert value_shape is not None and q_shape is not None
        heads, v_size, q_heads, k_size = value_shape[-2], value_shape[-1], q_shape[-2], q_shape[-1]
        key, value = required(n, 1), required(n, 2)
    else:
        known = n.tensor(6).shape
        width = (n.tensor(0).shape or (None,))[-1]
        if known is None or not isinstance(width, int):
            return None
        _, heads, v_size, k_size = known
        if not (isinstance(heads, int) and isinstance(v_size, int) and isinstance(k_size, int)):
            return None
        q_heads = (width - heads * v_size) // (2 * k_size)
        sizes = b.ints(q_heads * k_size, q_heads * k_size, heads * v_size)
        parts = b.multi("Split", 3, query, sizes, axis=-1)
        lead = (0,) * (rank - 1)
        shapes = ((q_heads, k_size), (q_heads, k_size), (heads, v_size))
        query, key, value = (reshape(b, p, *lead, *s) for p, s in zip(parts, shapes, strict=True))
        rank += 1
    if not all(isinstance(d, int) for d in (heads, v_size, q_heads, k_size)):
        return None
    assert isinstance(heads, int) and isinstance(v_size, int) and isinstance(q_heads, int) and isinstance(k_size, int)
    return _run_delta_net(b, n, (query, key, value), rank == 4, sums, state, (heads, q_heads, k_size, v_size))


def _run_delta_net(
    b: Builder,
    n: Inference,
    qkv: tuple[ir.Value, ir.Value, ir.Value],
    dense: bool,
    sums: ir.Value | None,
    state: ir.Value | None,
    sizes: tuple[int, int, int, int],
) -> Outputs:
    heads, q_heads, k_size, v_size = sizes
    query, key, value = (cast(b, v, FLOAT) for v in qkv)
    if n.attr("qk_l2_norm", 0):
        query, key = _l2_normalized(b, query), _l2_normalized(b, key)
    decay, rate = _delta_gates(b, n, heads, 4 if dense else 3)
    ragged = None if sums is None else _Ragged.of(b, sums)

    def batched(x: ir.Value | None) -> ir.Value | None:
        if x is None or dense:
            return x
        if ragged is not None:
            return ragged.padded(b, x)
        # Uniform packing: the batch size is that of the state.
        assert state is not None
        shape = b("Concat", size(b, state, 0), b.ints(-1), b("Shape", x, start=1), axis=0)
        return b("Reshape", x, shape)

    if ragged is None and state is None and not dense:
        return None
    q, k, v, decay, rate = (batched(x) for x in (query, key, value, decay, rate))
    assert q is not None and k is not None and v is not None
    if state is None:
        initial = b("Expand", b.const(np.array(0, np.float32)), dims(b, size(b, q, 0), heads, k_size, v_size))
    else:
        initial = b("Transpose", state, perm=(0, 1, 3, 2))
    recurrence = _Recurrence(
        reshape(b, _repeat(b, q, 2, heads // q_heads), 0, 0, heads, 1, k_size),
        _repeat(b, k, 2, heads // q_heads),
        v,
        None if decay is None else b("Unsqueeze", decay, b.ints(-1)),
        None if rate is None else b("Unsqueeze", rate, b.ints(-1, -2)),
        n.attr("scale", 0.0) or 1 / math.sqrt(k_size),
    )
    output, final = recurrence.run(b, _label(n), initial)
    y = b("Squeeze", output, b.ints(3))
    if not dense:
        y = ragged.packed(b, y) if ragged is not None else reshape(b, y, -1, heads, v_size)
    return [like_cast(b, y, required(n, 0)), b("Transpose", final, perm=(0, 1, 3, 2)) if wants(n, 1) else None]


# Causal convolution -----------------------------------------------------------------------------------------------


@expands("CausalConvWithState", domain=DOMAIN)
def causal_conv_with_state(b: Builder, n: Inference) -> Outputs:
    """A depthwise convolution over the last inputs of the previous call and the new ones; one spatial axis."""
    special = ("state_window", "state_update_capacity", "state_length", "input_channels", "input_channel_offset")
    weight_shape = n.tensor(1).shape
    if weight_shape is None or n.attr("ndim", 1) != 1 or any(n.attr(name, 0) for name in special):
        return None
    channels, kernel = weight_shape[0], weight_shape[-1]
    if not isinstance(channels, int) or not isinstance(kernel, int):
        return None
    x, state = required(n, 0), given(n, 3)
    last = bool(n.attr("channels_last", 0))
    history = (kernel - 1) * n.attr("dilation", 1)
    shape = b("Shape", x)
    if last:
        x = b("Transpose", reshape(b, x, 0, 0, channels), perm=(0, 2, 1))
    if state is None:
        past = b("Expand", b.scalar(0.0, x), dims(b, size(b, x, 0), channels, history))
    else:
        past = b("Transpose", reshape(b, state, 0, 0, channels), perm=(0, 2, 1)) if last else state
    joined = b("Concat", past, x, axis=2)
    dilation = [n.attr("dilation", 1)]
    y = b("Conv", joined, required(n, 1), given(n, 2), group=channels, kernel_shape=[kernel], dilations=dilation)
    activated = activate(b, y, n.attr("activation", "none"))
    if activated is None:
        return None
    begin = b("Sub", size(b, joined, 2), b.ints(history))
    present = b("Slice", joined, begin, b.ints(_LAST), b.ints(2))
    if last:
        activated = b("Reshape", b("Transpose", activated, perm=(0, 2, 1)), shape)
        trailing = b("Slice", shape, b.ints(2), b.ints(_LAST))
        kept = b("Concat", b("Slice", shape, b.ints(0), b.ints(1)), b.ints(history), trailing, axis=0)
        present = b("Reshape", b("Transpose", present, perm=(0, 2, 1)), kept)
    return [activated, present]


@expands("VarlenCausalConvWithState", domain=DOMAIN)
def varlen_causal_conv_with_state(b: Builder, n: Inference) -> Outputs:
    """Each tap reads a row of its own sequence, or of that sequence's state where the sequence has not begun."""
    weight_shape = n.tensor(1).shape
    if weight_shape is None or n.attr("state_update_capacity", 0) or n.has(6) or n.has(7):
        return None
    channels, kernel = weight_shape[0], weight_shape[-1]
    if not isinstance(channels, int) or not isinstance(kernel, int):
        return None
    dilation = n.attr("dilation", 1)
    history = (kernel - 1) * dilation
    x, state = required(n, 0), required(n, 4)
    sums = b("Cast", required(n, 2), to=int(INT64))
    starts, ends = b("Slice", sums, b.ints(0), b.ints(-1)), b("Slice", sums, b.ints(1), b.ints(_LAST))
    batch = size(b, starts, 0)
    # One table: first the states' rows, history for each sequence, then the tokens.
    rows = b("Reshape", b("Transpose", state, perm=(0, 2, 1)), b.ints(-1, channels))
    table = b("Concat", rows, x, axis=0)
    before = b("Mul", batch, b.ints(history))

    def entries(sequence: ir.Value, start: ir.Value, position: ir.Value) -> ir.Value:
        """Rows of the table for positions that count from the sequence's start; negative ones are in its state."""
        in_state = b("Add", b("Mul", sequence, b.ints(history)), b("Add", position, b.ints(history)))
        in_tokens = b("Add", b("Add", start, position), before)
        return b("Where", b("Less", position, b.const(np.array(0, np.int64))), in_state, in_tokens)

    tokens = sequence_positions(b, size(b, x, 0))
    passed = b("LessOrEqual", ends, b("Unsqueeze", tokens, b.ints(1)))
    sequence = b("ReduceSum", b("Cast", passed, to=int(INT64)), b.ints(1), keepdims=0)
    start = b("Gather", starts, sequence, axis=0)
    offsets = b.const(np.arange(kernel, dtype=np.int64) * dilation - history)
    position = b("Add", b("Unsqueeze", b("Sub", tokens, start), b.ints(1)), offsets)
    column = b.ints(1)
    index = entries(b("Unsqueeze", sequence, column), b("Unsqueeze", start, column), position)
    taps = cast(b, b("Gather", table, index, axis=0), FLOAT)
    weight = b("Transpose", cast(b, reshape(b, required(n, 1), channels, kernel), FLOAT), perm=(1, 0))
    y = b("ReduceSum", b("Mul", taps, weight), b.ints(1), keepdims=0)
    bias = given(n, 3)
    if bias is not None:
        y = b("Add", y, cast(b, bias, FLOAT))
    activated = activate(b, y, n.attr("activation", "none"))
    if activated is None:
        return None
    lengths = b("Unsqueeze", b("Sub", ends, starts), column)
    kept = b("Add", lengths, b.const(np.arange(history, dtype=np.int64) - history))
    index = entries(b("Unsqueeze", sequence_positions(b, batch), column), b("Unsqueeze", starts, column), kept)
    final = b("Transpose", b("Gather", table, index, axis=0), perm=(0, 2, 1))
    return [like_cast(b, activated, x), final]
