"""Expansion: the LSTM whose products are 8-bit.

The input is quantized as a whole and the hidden state at every step, each by its range at run time. The products of the
inputs are one exact integer product for all steps; the steps are an operator of Accord's own. An LSTM with dequantized
weights would be nearer to the model before it was quantized, but it would not round the activations, by up to half of
1/255 of their range at each step. That is another function, not a rounding error, so it is not computed instead.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import OWN_DOMAIN, expands, given, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, cast, copy_attributes, dims, reshape, size, wants
from accord.ops.microsoft.quantized import scaled_product
from accord.ops.microsoft.rotary import sequence_positions
from accord.ops.microsoft.schemas import DOMAIN

__all__: list[str] = []

INT32 = ir.DataType.INT32


@expands("DynamicQuantizeLSTM", domain=DOMAIN)
def dynamic_quantize_lstm(b: Builder, n: Inference) -> Outputs:
    """X (T, B, I); W (D, I, 4 * H) and R (D, H, 4 * H), transposed to how LSTM has them."""
    if any(n.tensor(i).rank not in (1, 2) for i in (8, 9, 10, 11)):
        return None
    count = 2 if n.attr("direction", "forward") == "bidirectional" else 1
    x, w, lengths = required(n, 0), required(n, 1), given(n, 4)
    if lengths is not None:
        lengths = cast(b, lengths, INT32)
        # What lies after the end of all sequences does not count for the range.
        longest = b("ReduceMax", lengths, keepdims=0)
        counted = b("Less", cast(b, sequence_positions(b, size(b, x, 0)), INT32), longest)
        x = b("Where", reshape(b, counted, -1, 1, 1), x, b.scalar(0.0, x))
    # the directions' columns side by side: one product for both
    parameters = [_columns(b, required(n, i), w, count) for i in (8, 9)]
    bias = given(n, 3)
    if bias is not None:
        bias = reshape(b, b("Add", *b.multi("Split", 2, bias, axis=1, num_outputs=2)), -1)
    weight = b("Squeeze", w, b.ints(0)) if count == 1 else reshape(b, b("Transpose", w, perm=[1, 0, 2]), 0, -1)
    quantized = b.multi("DynamicQuantizeLinear", 3, x)
    products = scaled_product(
        b, (quantized[0], quantized[1], quantized[2]), (weight, parameters[0], parameters[1]), bias
    )
    names = ("activation_alpha", "activation_beta", "activations", "clip", "direction", "input_forget")
    recurrent = [required(n, i) for i in (2, 10, 11)]
    states = [given(n, i) for i in (5, 6, 7)]
    y, *finals = b.multi(
        "QuantizedLSTM", 3, products, *recurrent, lengths, *states, domain=OWN_DOMAIN, **copy_attributes(n, *names)
    )
    if lengths is not None:
        # An empty sequence leaves zeros, not its initial states.
        some = reshape(b, b("Greater", lengths, b.const(np.array(0, np.int32))), 1, -1, 1)
        zero = b.scalar(0.0, x)
        finals = [b("Where", some, f, zero) if wants(n, i) else f for i, f in enumerate(finals, 1)]
    return [y, *finals]


def _columns(b: Builder, x: ir.Value, weight: ir.Value, count: int) -> ir.Value:
    """A parameter of each direction, or of each of its columns, as one vector for the columns of all directions."""
    if b.fact(x).rank == 1:
        if count == 1:
            return x
        x = b("Expand", b("Unsqueeze", x, b.ints(1)), dims(b, count, size(b, weight, 2)))
    return reshape(b, x, -1)
