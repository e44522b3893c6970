"""What ONNX Runtime's optimiser and quantizers write into a file: all of it is covered, and means the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from microsoft_harness import assert_standard, check, compare, node_model, normal, rng, run_ort, run_reference
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from accord.model.normalise import normalise
from accord.ops.microsoft import layouts

F, I64 = np.float32, np.int64
LEVELS = {
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Network:
    """Nodes one after the other, with random weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape, scale=0.3):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(normal(*shape, seed=len(self.weights)) * F(scale), name))
        return name

    def constant(self, values, dtype=I64):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def __call__(self, op, *inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"n{len(self.nodes)}", **attributes))
        return name

    def model(self, shape, output, rank):
        inputs = [helper.make_tensor_value_info("x", 1, shape)]
        outputs = [helper.make_tensor_value_info(output, 1, [None] * rank)]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutional():
    """Plain, grouped and depthwise convolutions, pools, a skip, a concatenation, an upsampling, a head."""
    net = Network()

    def conv(x, out, inp, kernel=3, group=1, **attributes):
        pads = [kernel // 2] * 4
        weight = net.weight(out, inp // group, kernel, kernel)
        return net("Conv", x, weight, net.weight(out), pads=pads, group=group, kernel_shape=[kernel] * 2, **attributes)

    x = net("Relu", conv("x", 24, 3, strides=[2, 2]))
    y = conv(x, 24, 24, group=24)
    y = net("Mul", y, net("Sigmoid", y))
    x = net("Relu", net("Add", conv(y, 24, 24, kernel=1), x))
    y = net("Clip", conv(x, 48, 24), net.constant(0, F), net.constant(6, F))
    y = net("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = conv(y, 32, 48, kernel=1)
    y = net(
        "Resize",
        y,
        "",
        net.constant([1, 1, 2, 2], F),
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    y = net("Concat", y, net("LeakyRelu", conv(x, 32, 24), alpha=0.1), axis=1)
    y = net("AveragePool", conv(y, 64, 64, group=4), kernel_shape=[2, 2], strides=[2, 2])
    y = net("Flatten", net("GlobalAveragePool", conv(net("Neg", y), 64, 64)), axis=1)
    y = net("Gemm", y, net.weight(10, 64), net.weight(10), transB=1)
    return net.model([2, 3, 16, 16], net("Softmax", y, axis=-1), 2), (2, 3, 16, 16)


def transformer():
    """Two blocks of attention and a gated feed-forward layer with layer normalisation."""
    net = Network()
    batch, length, heads, size = 2, 6, 4, 16
    width = heads * size
    x = "x"
    for _ in range(2):
        parts = []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            y = net("Add", net("MatMul", x, net.weight(width, width, scale=0.1)), net.weight(width))
            parts.append(net("Transpose", net("Reshape", y, net.constant([0, 0, heads, size])), perm=perm))
        scores = net("Mul", net("MatMul", parts[0], parts[1]), net.constant(0.25, F))
        y = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), parts[2]), perm=[0, 2, 1, 3])
        y = net("MatMul", net("Reshape", y, net.constant([0, 0, width])), net.weight(width, width, scale=0.1))
        x = net(
            "LayerNormalization",
            net("Add", net("Add", y, net.weight(width)), x),
            net.weight(width),
            net.weight(width),
            axis=-1,
        )
        y = net("Add", net("MatMul", x, net.weight(width, 2 * width, scale=0.1)), net.weight(2 * width))
        gelu = net("Add", net("Erf", net("Div", y, net.constant(np.sqrt(2), F))), net.constant(1, F))
        y = net(
            "MatMul", net("Mul", net("Mul", y, gelu), net.constant(0.5, F)), net.weight(2 * width, width, scale=0.1)
        )
        x = net("LayerNormalization", net("Add", y, x), net.weight(width), net.weight(width), axis=-1)
    return net.model([batch, length, width], x, 3), (batch, length, width)


NETWORKS = {"convolutional": convolutional, "transformer": transformer}


def optimised(model, level, path):
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def foreign(model):
    return {n.op_type for n in model.graph.node if n.domain not in ("", "ai.onnx")}


def same_after_normalisation(model, x, **tolerance):
    """The file as ONNX Runtime runs it, and after the stage ``normalise`` on the reference backend."""
    wanted = run_ort(model, {"x": x})
    standard = ir.to_proto(normalise(ir.from_proto(model)).model)
    assert_standard(standard, full=False)
    for a, w in zip(run_reference(standard, {"x": x}), wanted, strict=True):
        compare(a, w, **tolerance)


WRITTEN = {
    ("convolutional", "extended"): {"FusedConv", "QuickGelu"},
    ("convolutional", "all"): {
        *(
            "ReorderInput",
            "ReorderOutput",
            "Conv",
            "MaxPool",
            "AveragePool",
            "GlobalAveragePool",
            "QuickGelu",
            "Upsample",
        ),
    },
    ("transformer", "extended"): {"FusedMatMul", "Gelu", "SkipLayerNormalization"},
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("level", LEVELS)
def test_optimised_models(name, level, tmp_path):
    model, shape = NETWORKS[name]()
    saved = optimised(model, level, tmp_path / "optimised.onnx")
    assert WRITTEN.get((name, level), set()) <= foreign(saved)
    same_after_normalisation(saved, normal(*shape), rtol=1e-4, atol=1e-5)


class Samples(CalibrationDataReader):
    def __init__(self, shape) -> None:
        self.samples = iter([{"x": normal(*shape, seed=i)} for i in range(3)])

    def get_next(self):
        return next(self.samples, None)


QUANTIZED = {
    "convolutional": {
        "QLinearConv",
        "QLinearAdd",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearConcat",
        "QLinearAveragePool",
        "QGemm",
    },
    "transformer": {"QLinearAdd", "QLinearMul", "QLinearSoftmax"},
}


#: ONNX Runtime's quantiser calls what onnx and NumPy have deprecated, and divides by the range of a constant tensor.
_QUANTISER_WARNS = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::RuntimeWarning"
)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@_QUANTISER_WARNS
def test_statically_quantized_models(name, form, tmp_path):
    model, shape = NETWORKS[name]()
    path = tmp_path / "quantized.onnx"
    quantize_static(model, path, Samples(shape), quant_format=form, activation_type=QuantType.QUInt8)
    saved = optimised(onnx.load(path), "all", tmp_path / "optimised.onnx")
    if form == QuantFormat.QOperator:
        assert QUANTIZED[name] <= foreign(saved)
    # One step more or less on the way is many at the end.
    same_after_normalisation(saved, normal(*shape), rtol=0, atol=0.06 if name == "transformer" else 0.02)


@_QUANTISER_WARNS
def test_dynamically_quantized_models(tmp_path):
    model, shape = transformer()
    path = tmp_path / "quantized.onnx"
    quantize_dynamic(model, path)
    saved = optimised(onnx.load(path), "all", tmp_path / "optimised.onnx")
    assert foreign(saved) & {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
    same_after_normalisation(saved, normal(*shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("quantizer", "op"),
    [
        (lambda m: MatMulNBitsQuantizer(m, block_size=32, is_symmetric=True), "MatMulNBits"),
        (lambda m: MatMulNBitsQuantizer(m, block_size=32, is_symmetric=False), "MatMulNBits"),
        (lambda m: MatMulNBitsQuantizer(m, block_size=64, is_symmetric=False, bits=8), "MatMulNBits"),
        (lambda m: MatMulBnb4Quantizer(m, 0, 64), "MatMulBnb4"),
        (lambda m: MatMulBnb4Quantizer(m, 1, 64), "MatMulBnb4"),
    ],
)
def test_weight_only_quantized_models(quantizer, op):
    model, shape = transformer()
    made = quantizer(model)
    made.process()
    saved = made.model.model
    assert foreign(saved) == {op}
    same_after_normalisation(saved, normal(*shape), rtol=1e-3, atol=1e-3)


# Blocks


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("channels", [1, 3, 32])
def test_blocked_weights(block, channels):
    weight = normal(32, channels, 3, 2)
    blocked = np.empty_like(weight).reshape(-1)
    position = 0
    inner = block if channels >= block else 1
    for o in range(0, 32, block):
        for i in range(0, channels, inner):
            for h in range(3):
                for w in range(2):
                    for c in range(inner):
                        blocked[position : position + block] = weight[o : o + block, i + c, h, w]
                        position += block
    assert np.array_equal(layouts._plain_weight(blocked.reshape(weight.shape), block), weight)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [([(24, 8, 3, 3), (32, 32, 1, 1)], 8), ([(32, 24, 3, 3)], 8), ([(32, 12, 3, 3)], 16)],
)
def test_block_size_follows_from_channels(shapes, expected):
    net = Network()
    nodes = [
        helper.make_node("Conv", [f"x{i}", net.weight(*s)], [f"y{i}"], domain="com.microsoft.nchwc")
        for i, s in enumerate(shapes)
    ]
    inputs = [helper.make_tensor_value_info(f"x{i}", 1, [1, s[1], 9, 9]) for i, s in enumerate(shapes)]
    outputs = [helper.make_tensor_value_info(f"y{i}", 1, None) for i in range(len(shapes))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, net.weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))
    normalise(model)
    assert model.graph.meta[layouts._BLOCK] == expected


# Channels last

X = normal(2, 6, 7, 8)
CHANNELS_LAST = [
    ("Conv", [normal(4, 3, 3, 3), normal(4)], {"group": 2, "pads": [1, 1, 0, 0]}),
    ("ConvTranspose", [normal(6, 4, 3, 3), normal(4)], {"strides": [2, 2]}),
    ("AveragePool", [], {"kernel_shape": [2, 3], "count_include_pad": 1, "pads": [1, 1, 1, 1]}),
    ("MaxPool", [], {"kernel_shape": [2, 3], "strides": [2, 2]}),
    ("LpPool", [], {"kernel_shape": [2, 3], "p": 2}),
    ("GlobalAveragePool", [], {}),
    ("GlobalMaxPool", [], {}),
    ("BatchNormalization", [normal(6), normal(6, seed=1), normal(6, seed=2), np.abs(normal(6, seed=3))], {}),
    ("InstanceNormalization", [normal(6), normal(6, seed=1)], {}),
    ("LRN", [], {"size": 3}),
    ("SpaceToDepth", [], {"blocksize": 1}),
]


@pytest.mark.parametrize(("op", "others", "attributes"), CHANNELS_LAST, ids=[c[0] for c in CHANNELS_LAST])
def test_channels_last(op, others, attributes):
    plain = node_model(op, [X, *others], attributes, [F], domain="")
    feeds = {f"x{i}": v for i, v in enumerate([X, *others])}
    expected = np.moveaxis(run_reference(plain, feeds)[0], 1, -1)
    inputs = [np.ascontiguousarray(np.moveaxis(X, 1, -1)), *others]
    check(op, inputs, attributes, domain="com.ms.internal.nhwc", expected=[expected], constants=range(1, len(inputs)))


def test_channels_last_with_an_activation():
    x = np.ascontiguousarray(np.moveaxis(X, 1, -1))
    attributes = {"kernel_shape": [2, 3], "activation": "Relu"}
    plain = node_model("MaxPool", [X], {"kernel_shape": [2, 3]}, [F], domain="")
    expected = np.maximum(np.moveaxis(run_reference(plain, {"x0": X})[0], 1, -1), 0)
    check("MaxPool", [x], attributes, domain="com.ms.internal.nhwc", expected=[expected])


def test_channels_last_integers():
    q = rng().integers(0, 256, (2, 6, 6, 3)).astype(np.uint8)
    parameters = [np.array(0.04, F), np.array(100, np.uint8), np.array(0.05, F), np.array(90, np.uint8)]
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2]}
    own = node_model("QLinearAveragePool", [q, *parameters], attributes | {"channels_last": 1}, [np.uint8])
    expected = run_ort(own, {f"x{i}": v for i, v in enumerate([q, *parameters])})
    inputs = [q, *parameters]
    check(
        "QLinearAveragePool", inputs, attributes, [np.uint8], domain="com.ms.internal.nhwc", expected=expected, steps=1
    )
