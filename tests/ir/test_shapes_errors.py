"""Malformed nodes are refused with what was expected and found; a size that is a symbol never is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from shapes_harness import BOOL, F16, U8, H, N, f32, floats, i64, infer_all, ints, scalar

from accord.errors import ModelTypeError
from accord.ir.facts import Fact, OptionalFact, SequenceFact, TensorFact

X = f32(1, 4, 8, 8)
ML = "ai.onnx.ml"

MALFORMED: dict[str, tuple[str, list[Fact | None], dict[str, Any], str]] = {
    # arity, kinds, attributes
    "missing input": ("Add", [X, None], {}, "required input"),
    "missing attribute": ("Concat", [X, X], {}, "attribute axis"),
    "sequence for tensor": ("Relu", [SequenceFact(X)], {}, "wrong kind"),
    "optional for tensor": ("Relu", [OptionalFact(X)], {}, "wrong kind"),
    "tensor for sequence": ("SequenceAt", [X, scalar(0)], {}, "wrong kind"),
    "attribute of another type": ("Softmax", [X], {"axis": "x"}, "wrong type"),
    "float for int": ("Flatten", [X], {"axis": 1.5}, "wrong type"),
    "no dtype": ("Cast", [X], {"to": 999}, "no dtype"),
    "dtype 0": ("Cast", [X], {"to": 0}, "no dtype"),
    # dtypes
    "two dtypes": ("Add", [X, TensorFact(F16, X.shape)], {}, "one dtype"),
    "where dtypes": ("Where", [TensorFact(BOOL, ()), X, i64(1)], {}, "one dtype"),
    "where condition": ("Where", [X, X, X], {}, "wrong dtype"),
    "logic on floats": ("And", [X, X], {}, "wrong dtype"),
    "float indices": ("Gather", [X, f32(2)], {}, "wrong dtype"),
    "widths of bits": ("BitCast", [X], {"to": int(ir.DataType.INT64)}, "widths"),
    "bits of strings": ("BitCast", [TensorFact(ir.DataType.STRING, (1,))], {"to": 1}, "no bits"),
    "zero point dtype": ("DequantizeLinear", [TensorFact(U8, (2,)), f32(), i64()], {}, "dtype"),
    # broadcasting and products
    "no broadcast": ("Add", [f32(2, 3), f32(2, 4)], {}, "broadcast"),
    "no broadcast behind a symbol": ("Sum", [f32(N), f32(3), f32(4)], {}, "broadcast"),
    "prelu slope": ("PRelu", [f32(2, 3), f32(2)], {}, "slope"),
    "prelu rank": ("PRelu", [f32(3), f32(2, 3)], {}, "more axes"),
    "swiglu": ("SwiGLU", [f32(2, 3), f32(1, 3)], {"opset": 28}, "one shape"),
    "matmul inner": ("MatMul", [f32(2, 3), f32(4, 5)], {}, "inner sizes"),
    "matmul vector": ("MatMul", [f32(3), f32(4, 5)], {}, "inner sizes"),
    "matmul stack": ("MatMul", [f32(2, 3, 3), f32(4, 3, 3)], {}, "broadcast"),
    "matmul scalar": ("MatMul", [f32(), f32(3, 3)], {}, "wrong rank"),
    "gemm inner": ("Gemm", [f32(2, 3), f32(2, 3)], {}, "inner sizes"),
    "gemm bias": ("Gemm", [f32(2, 3), f32(3, 4), f32(5)], {}, "broadcast"),
    "gemm rank": ("Gemm", [f32(2, 3, 4), f32(3, 4)], {}, "wrong rank"),
    "einsum sizes": ("Einsum", [f32(2, 3), f32(4, 5)], {"equation": "ij,jk->ik"}, "label j"),
    "einsum rank": ("Einsum", [f32(2, 3)], {"equation": "i->i"}, "rank differ"),
    "einsum terms": ("Einsum", [f32(2, 3)], {"equation": "ij,jk->ik"}, "one term per input"),
    "einsum label": ("Einsum", [f32(2, 3)], {"equation": "ij->k"}, "not in the inputs"),
    "einsum syntax": ("Einsum", [f32(2, 3)], {"equation": "i1->i"}, "malformed"),
    # convolution and pools
    "conv channels": ("Conv", [X, f32(8, 3, 3, 3)], {}, "channels"),
    "conv group channels": ("Conv", [X, f32(8, 4, 3, 3)], {"group": 2}, "channels"),
    "conv filters": ("Conv", [X, f32(7, 2, 3, 3)], {"group": 2}, "groups"),
    "conv rank": ("Conv", [X, f32(8, 4, 3)], {}, "rank"),
    "conv bias": ("Conv", [X, f32(8, 4, 3, 3), f32(7)], {}, "biases"),
    "conv group 0": ("Conv", [X, f32(8, 4, 3, 3)], {"group": 0}, "group is too small"),
    "conv stride 0": ("Conv", [X, f32(8, 4, 3, 3)], {"strides": [0, 1]}, "strides is too small"),
    "conv dilation 0": ("Conv", [X, f32(8, 4, 3, 3)], {"dilations": [1, 0]}, "dilations is too small"),
    "conv negative pad": ("Conv", [X, f32(8, 4, 3, 3)], {"pads": [-1, 0, 0, 0]}, "pads is too small"),
    "conv pads length": ("Conv", [X, f32(8, 4, 3, 3)], {"pads": [1, 1]}, "wrong length"),
    "conv auto_pad": ("Conv", [X, f32(8, 4, 3, 3)], {"auto_pad": "SAME"}, "unknown value"),
    "conv kernel_shape": ("Conv", [X, f32(8, 4, 3, 3)], {"kernel_shape": [3, 5]}, "kernel_shape"),
    "conv does not fit": ("Conv", [X, f32(8, 4, 9, 9)], {}, "does not fit"),
    "conv empty kernel": ("Conv", [X, f32(8, 4, 0, 3)], {}, "kernel is empty"),
    "conv transpose channels": ("ConvTranspose", [X, f32(3, 8, 3, 3)], {}, "channels"),
    "conv transpose padding": ("ConvTranspose", [X, f32(4, 8, 3, 3)], {"output_padding": [-1, 0]}, "too small"),
    "conv transpose negative": ("ConvTranspose", [f32(1, 4, 1, 1), f32(4, 8, 1, 1)], {"pads": [1] * 4}, "negative"),
    "pool kernel": ("MaxPool", [X], {"kernel_shape": [-1, 2]}, "kernel_shape is too small"),
    "pool without kernel": ("MaxPool", [X], {"kernel_shape": ir.AttrInt64s("kernel_shape", [])}, "kernel_shape"),
    "pool rank": ("AveragePool", [X], {"kernel_shape": [2]}, "wrong rank"),
    "global pool rank": ("GlobalAveragePool", [f32(3)], {}, "wrong rank"),
    "roi coordinates": ("RoiAlign", [X, f32(3, 5), i64(3)], {}, "coordinates"),
    "grid rank": ("GridSample", [X, f32(1, 2, 2)], {}, "rank"),
    "grid coordinates": ("GridSample", [X, f32(1, 2, 2, 3)], {}, "coordinates"),
    "resize both": ("Resize", [X, None, floats(1, 1, 2, 2), ints(1, 4, 16, 16)], {}, "either"),
    "resize none": ("Resize", [X], {}, "either"),
    "resize scales": ("Resize", [X, None, floats(1, 2)], {}, "one scale per axis"),
    "resize negative": ("Resize", [X, None, floats(1, 1, -2, 2)], {}, "positive"),
    "resize infinite": ("Resize", [X, None, floats(1, 1, np.inf, 2)], {}, "positive"),
    # movement
    "reshape count": ("Reshape", [X, ints(3, 5)], {}, "element counts"),
    "reshape remainder": ("Reshape", [X, ints(-1, 5)], {}, "element counts"),
    "reshape two open": ("Reshape", [X, ints(-1, -1)], {}, "only one"),
    "reshape negative": ("Reshape", [X, ints(-2, 4)], {}, "negative"),
    "reshape copies": ("Reshape", [f32(4), ints(4, 0)], {}, "lacks"),
    "reshape ambiguous": ("Reshape", [f32(0, 4), ints(0, -1)], {}, "ambiguous"),
    "reshape allowzero": ("Reshape", [f32(0, 4), ints(0, -1)], {"allowzero": 1}, "exclude"),
    "transpose perm": ("Transpose", [X], {"perm": [0, 1, 1, 2]}, "permutation"),
    "flatten axis": ("Flatten", [X], {"axis": 5}, "out of range"),
    "squeeze size": ("Squeeze", [X, ints(1)], {}, "size 1"),
    "squeeze axis": ("Squeeze", [X, ints(4)], {}, "out of range"),
    "unsqueeze twice": ("Unsqueeze", [X, ints(0, -6)], {}, "repeated"),
    "concat rank": ("Concat", [f32(2, 3), f32(2)], {"axis": 0}, "rank"),
    "concat size": ("Concat", [f32(2, 3), f32(2, 4)], {"axis": 0}, "sizes on axis 1"),
    "concat axis": ("Concat", [f32(2, 3)], {"axis": 2}, "out of range"),
    "split sum": ("Split", [f32(6), ints(2, 3)], {"outputs": 2}, "add up"),
    "split outputs": ("Split", [f32(6), ints(2, 2, 2)], {"outputs": 2}, "one size per output"),
    "split num_outputs": ("Split", [f32(6)], {"outputs": 2, "num_outputs": 3}, "num_outputs"),
    "split too many": ("Split", [f32(5)], {"outputs": 4, "num_outputs": 4}, "too many parts"),
    "slice step": ("Slice", [X, ints(0), ints(1), ints(0), ints(0)], {}, "step is zero"),
    "slice lengths": ("Slice", [X, ints(0, 0), ints(1), ints(0)], {}, "differ in length"),
    "slice axis": ("Slice", [X, ints(0), ints(1), ints(7)], {}, "out of range"),
    "slice axes": ("Slice", [X, ints(0, 0), ints(1, 1), ints(1, -3)], {}, "repeated"),
    "gather index": ("Gather", [f32(3, 4), ints(3)], {}, "index is out of range"),
    "gather axis": ("Gather", [f32(3, 4), ints(0)], {"axis": 2}, "out of range"),
    "gather elements": ("GatherElements", [f32(3, 4), i64(3)], {}, "rank"),
    "gather nd depth": ("GatherND", [f32(3, 4), i64(2, 3)], {}, "too long"),
    "gather nd batch": ("GatherND", [f32(3, 4), i64(2, 1)], {"batch_dims": 2}, "batch_dims"),
    "scatter shapes": ("ScatterElements", [f32(3, 4), i64(2, 4), f32(3, 4)], {}, "indices and updates"),
    "scatter nd updates": ("ScatterND", [f32(3, 4), i64(2, 1), f32(2, 3)], {}, "updates"),
    "scatter reduction": ("ScatterND", [f32(3, 4), i64(2, 1), f32(2, 4)], {"reduction": "avg"}, "unknown value"),
    "tensor scatter": ("TensorScatter", [f32(2, 4, 3), f32(2, 5, 3)], {}, "longer"),
    "expand": ("Expand", [f32(3), ints(2, 4)], {}, "broadcast"),
    "tile": ("Tile", [f32(3, 4), ints(2)], {}, "one repeat per axis"),
    "pad": ("Pad", [f32(3, 4), ints(1, 1)], {}, "two pads per axis"),
    "pad removes": ("Pad", [f32(3), ints(-2, -2)], {}, "more than there is"),
    "pad mode": ("Pad", [f32(3), ints(1, 1)], {"mode": "mirror"}, "unknown value"),
    "depth to space": ("DepthToSpace", [X], {"blocksize": 3}, "multiple"),
    "blocksize 0": ("DepthToSpace", [X], {"blocksize": 0}, "too small"),
    "space to depth": ("SpaceToDepth", [X], {"blocksize": 3}, "multiple"),
    "range delta": ("Range", [scalar(0), scalar(3), scalar(0)], {}, "delta is zero"),
    "constant twice": ("Constant", [], {"value_int": 1, "value_float": 1.0}, "one value"),
    "constant of shape": ("ConstantOfShape", [ints(2, -1)], {}, "negative"),
    "one hot values": ("OneHot", [i64(3), scalar(4), f32(3)], {}, "values"),
    "one hot depth": ("OneHot", [i64(3), scalar(0), f32(2)], {}, "positive"),
    "eye": ("EyeLike", [f32(3)], {}, "wrong rank"),
    "trilu": ("Trilu", [f32(3)], {}, "wrong rank"),
    "det": ("Det", [f32(2, 3)], {}, "two last axes"),
    # reductions and normalisation
    "reduce axis": ("ReduceSum", [X, ints(4)], {}, "out of range"),
    "argmax axis": ("ArgMax", [X], {"axis": -5}, "out of range"),
    "softmax axis": ("Softmax", [X], {"axis": 4}, "out of range"),
    "topk": ("TopK", [f32(3), ints(4)], {"outputs": 2}, "exceeds"),
    "topk negative": ("TopK", [f32(3), ints(-1)], {"outputs": 2}, "negative"),
    "cumsum axis": ("CumSum", [X, scalar(4)], {}, "out of range"),
    "batch norm": ("BatchNormalization", [X, f32(3), f32(4), f32(4), f32(4)], {}, "channels"),
    "group norm": ("GroupNormalization", [X, f32(4), f32(4)], {"num_groups": 3}, "groups"),
    "layer norm": ("LayerNormalization", [X, f32(7)], {}, "broadcast"),
    "instance norm": ("InstanceNormalization", [X, f32(5), f32(4)], {}, "channels"),
    "quantize axis": ("QuantizeLinear", [X, f32(3)], {"axis": 1}, "scales"),
    # recurrent, attention, signal
    "lstm gates": ("LSTM", [f32(5, 2, 3), f32(1, 7, 3), f32(1, 8, 2)], {"outputs": 3}, "gates"),
    "lstm input": ("LSTM", [f32(5, 2, 3), f32(1, 8, 4), f32(1, 8, 2)], {"outputs": 3}, "input sizes"),
    "lstm direction": ("LSTM", [f32(5, 2, 3), f32(1, 8, 3), f32(1, 8, 2)], {"direction": "both"}, "unknown value"),
    "gru directions": ("GRU", [f32(5, 2, 3), f32(1, 6, 3), f32(1, 6, 2)], {"direction": "bidirectional"}, "directions"),
    "gru hidden": ("GRU", [f32(5, 2, 3), f32(1, 6, 3), f32(1, 6, 2)], {"hidden_size": 4}, "hidden sizes"),
    "rnn state": ("RNN", [f32(5, 2, 3), f32(1, 4, 3), f32(1, 4, 4), None, None, f32(1, 3, 4)], {}, "sizes"),
    "attention heads": ("Attention", [f32(1, 6, 4, 8), f32(1, 4, 4, 8), f32(1, 4, 4, 8)], {}, "heads"),
    "attention packed": ("Attention", [f32(1, 4, 8)] * 3, {}, "packed"),
    "attention past": ("Attention", [f32(1, 2, 4, 8)] * 3 + [None, f32(1, 2, 3, 8)], {}, "come together"),
    "attention mode": ("Attention", [f32(1, 2, 4, 8)] * 3, {"qk_matmul_output_mode": 4}, "mode is unknown"),
    "rotary heads": ("RotaryEmbedding", [f32(1, 4, 8), f32(1, 4, 2), f32(1, 4, 2)], {}, "num_heads"),
    "rotary width": ("RotaryEmbedding", [f32(1, 2, 4, 8), f32(1, 4, 2), f32(1, 4, 4)], {}, "widths"),
    "rotary length": ("RotaryEmbedding", [f32(1, 2, 4, 8), f32(1, 5, 4), f32(1, 5, 4)], {}, "sequence lengths"),
    "rotary batch": ("RotaryEmbedding", [f32(2, 2, 4, 8), f32(9, 4), f32(9, 4), i64(1, 4)], {}, "batch sizes"),
    "rotary positions": ("RotaryEmbedding", [f32(2, 2, 4, 8), f32(9, 4), f32(9, 4), i64(2)], {}, "wrong rank"),
    "rotary pairs": ("RotaryEmbedding", [f32(1, 2, 4, 7), f32(1, 4, 3), f32(1, 4, 3)], {}, "no pairs"),
    "rotary part": (
        "RotaryEmbedding",
        [f32(1, 2, 4, 8), f32(1, 4, 5), f32(1, 4, 5)],
        {"rotary_embedding_dim": 10},
        "wider than a head",
    ),
    "dft axis": ("DFT", [f32(1, 8, 1), None, scalar(2)], {}, "last axis"),
    "stft step": ("STFT", [f32(1, 8, 1), scalar(0), f32(4)], {}, "positive"),
    "stft frame": ("STFT", [f32(1, 8, 1), scalar(1), f32(9)], {}, "longer"),
    # random numbers
    "infinite seed": ("Bernoulli", [X], {"seed": float("inf")}, "seed"),
    "no seed": ("RandomNormal", [], {"shape": [3], "seed": float("nan")}, "seed"),
    "seed of a draw": ("Multinomial", [f32(2, 3)], {"seed": float("-inf")}, "seed"),
    # sequences
    "sequence position": ("SequenceAt", [SequenceFact(X, 2), scalar(2)], {}, "position"),
    "sequence dtypes": ("SequenceConstruct", [X, i64(1)], {}, "two dtypes"),
    "sequence insert": ("SequenceInsert", [SequenceFact(X, 1), i64(1)], {}, "another dtype"),
    "sequence empty": ("ConcatFromSequence", [SequenceFact(X, 0)], {"axis": 0}, "empty"),
    "optional without type": ("Optional", [], {}, "neither"),
    # other domains
    "one hot encoder": ("OneHotEncoder", [i64(3)], {"domain": ML, "opset": 5}, "categories"),
    "regressor": ("LinearRegressor", [f32(1, 2, 3)], {"domain": ML, "opset": 5}, "wrong rank"),
    "adam groups": ("Adam", [f32()] * 7, {"domain": "ai.onnx.preview.training", "opset": 1}, "groups"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_node_is_refused(name: str) -> None:
    op, inputs, attributes, text = MALFORMED[name]
    with pytest.raises(ModelTypeError) as caught:
        infer_all(op, *inputs, **attributes)
    error = caught.value
    assert text in error.message
    assert error.expected is not None
    assert error.found is not None
    assert error.op is not None
    assert op in error.op
    assert error.node == "o0"


#: The same operators with a symbol in the place of the size at fault.
SYMBOLIC: dict[str, tuple[str, list[Fact | None], dict[str, Any]]] = {
    "broadcast": ("Add", [f32(2, 3), f32(2, N)], {}),
    "matmul": ("MatMul", [f32(2, N), f32(4, 5)], {}),
    "conv channels": ("Conv", [f32(1, N, 8, 8), f32(8, 3, 3, 3)], {}),
    "conv size": ("Conv", [f32(1, 4, H, 8), f32(8, 4, 9, 3)], {}),
    "reshape": ("Reshape", [f32(N, 3), ints(4, -1)], {}),
    "squeeze": ("Squeeze", [f32(N, 3), ints(0)], {}),
    "concat": ("Concat", [f32(2, 3), f32(2, N)], {"axis": 0}),
    "split": ("Split", [f32(N), ints(2, 3)], {"outputs": 2}),
    "gather": ("Gather", [f32(N, 4), ints(3)], {}),
    "topk": ("TopK", [f32(N), ints(4)], {"outputs": 2}),
    "expand": ("Expand", [f32(N), ints(2, 4)], {}),
    "depth to space": ("DepthToSpace", [f32(1, N, 2, 2)], {"blocksize": 3}),
    "batch norm": ("BatchNormalization", [f32(1, N, 2), f32(3), f32(3), f32(3), f32(3)], {}),
    "lstm": ("LSTM", [f32(5, 2, N), f32(1, N, 3), f32(1, 8, 2)], {"outputs": 3}),
    "attention": ("Attention", [f32(N, 6, 4, 8), f32(1, H, 4, 8), f32(1, 4, 4, 8)], {}),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_a_symbol_is_never_an_error(name: str) -> None:
    op, inputs, attributes = SYMBOLIC[name]
    assert infer_all(op, *inputs, **attributes)


def test_the_message_names_node_input_expected_and_found() -> None:
    with pytest.raises(ModelTypeError) as caught:
        infer_all("Conv", X, f32(8, 3, 3, 3))
    text = str(caught.value)
    assert "node 'o0' (Conv)" in text
    assert "value 'i0'" in text
    assert "Expected: 3 * group 1 = 3" in text
    assert "Found: 4" in text
