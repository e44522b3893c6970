"""Models to mutate: ONNX's own test cases and a few with what those lack."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MAX_BYTES = 60_000


def collect(stride: int = 1) -> list[bytes]:
    """Serialised models, always the same and in the same order.

    Args:
        stride: Take every so many-th of ONNX's test cases.
    """
    found: list[bytes] = []
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # computing expected results overflows on purpose
        from onnx.backend.test.case.model import collect_testcases as model_cases
        from onnx.backend.test.case.node import collect_testcases as node_cases

        cases = [*node_cases(None), *model_cases()]
    for case in sorted((c for c in cases if c.model is not None), key=lambda c: c.name)[::stride]:
        found.append(case.model.SerializeToString(deterministic=True))
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted(data.glob("*/*/model.onnx"))[::stride]:
        found.append(path.read_bytes())
    unique = dict.fromkeys(d for d in found if len(d) <= MAX_BYTES)
    return [*unique, *(m.SerializeToString(deterministic=True) for m in built())]


def value(name: str, shape, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, *items: float, dtype=np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(items, dtype), name)


def model(nodes, inputs, outputs, initializers=(), functions=(), opset: int = 20) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, 1) for d in dict.fromkeys(f.domain for f in functions)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def built() -> list[onnx.ModelProto]:
    """Convolutions, attention-like chains, shape arithmetic, bodies, functions: what real models consist of."""
    node = helper.make_node
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    found = []
    found.append(
        model(
            [
                node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
                node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], epsilon=1e-5),
                node("Relu", ["n"], ["r"]),
                node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[1, 1]),
                node("GlobalAveragePool", ["p"], ["g"]),
                node("Flatten", ["g"], ["f"]),
                node("Gemm", ["f", "k", "o"], ["y"], transB=1),
            ],
            [value("x", ["n", 3, 8, 8])],
            [value("y", ["n", 5])],
            [weights("w", 4, 3, 3, 3), *(weights(c, 4) for c in "bsm"), tensor("v", 1, 1, 1, 1), weights("k", 5, 4),
             weights("o", 5)],
        )
    )  # fmt: skip
    found.append(
        model(
            [
                node("Shape", ["x"], ["s"]),
                node("Gather", ["s", "zero"], ["n"], axis=0),
                node("Unsqueeze", ["n", "first"], ["n1"]),
                node("Concat", ["n1", "tail"], ["target"], axis=0),
                node("MatMul", ["x", "w"], ["h"]),
                node("Reshape", ["h", "target"], ["r"]),
                node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
                node("MatMul", ["r", "t"], ["a"]),
                node("Div", ["a", "scale"], ["d"]),
                node("Softmax", ["d"], ["p"], axis=-1),
                node("Slice", ["p", "first", "ends"], ["y"]),
            ],
            [value("x", ["n", 4, 6])],
            [value("y", None)],
            [numpy_helper.from_array(np.array(0), "zero"),
             tensor("first", 0, dtype=np.int64), tensor("tail", -1, 4, dtype=np.int64), weights("w", 6, 8),
             tensor("scale", 2.0), tensor("ends", 1, dtype=np.int64)],
        )
    )  # fmt: skip
    body = helper.make_graph(
        [
            node("Add", ["state", "x"], ["next"]),
            node("Identity", ["again"], ["go"]),
            node("ReduceSum", ["next"], ["total"], keepdims=0),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("again", [], TensorProto.BOOL), value("state", [2, 3])],
        [value("go", [], TensorProto.BOOL), value("next", [2, 3]), value("total", [])],
    )
    found.append(
        model(
            [node("Loop", ["trips", "", "x"], ["last", "totals"], body=body), node("Relu", ["last"], ["y"])],
            [value("x", [2, 3])],
            [value("y", [2, 3]), value("totals", [None])],
            [numpy_helper.from_array(np.array(3), "trips")],
        )
    )
    yes = helper.make_graph([node("Mul", ["x", "x"], ["t"])], "yes", [], [value("t", None)])
    no = helper.make_graph([node("Concat", ["x", "x"], ["e"], axis=0)], "no", [], [value("e", None)])
    found.append(
        model(
            [node("If", ["c"], ["r"], then_branch=yes, else_branch=no), node("Exp", ["r"], ["y"])],
            [value("c", [], TensorProto.BOOL), value("x", ["n", 3])],
            [value("y", None)],
        )
    )
    step = helper.make_graph(
        [node("Add", ["s", "e"], ["n"]), node("Tanh", ["n"], ["o"])],
        "step", [value("s", [3]), value("e", [3])], [value("n", [3]), value("o", [3])],
    )  # fmt: skip
    found.append(
        model(
            [node("Scan", ["init", "x"], ["y", "all"], body=step, num_scan_inputs=1)],
            [value("x", ["time", 3])],
            [value("y", [3]), value("all", ["time", 3])],
            [tensor("init", 0, 0, 0)],
        )
    )
    scaled = node("Mul", ["a", "f"], ["b"])
    factor = node("Constant", [], ["f"])
    factor.attribute.add(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    scale = helper.make_function("local", "Scale", ["a"], ["b"], [factor, scaled], imports, ["factor"])
    twice = helper.make_function(
        "local", "Twice", ["a"], ["c"],
        [node("Scale", ["a"], ["b"], domain="local", factor=2.0),
         node("Scale", ["b"], ["c"], domain="local", factor=0.5)],
        imports,
    )  # fmt: skip
    found.append(
        model(
            [node("Twice", ["x"], ["h"], domain="local"), node("Scale", ["h"], ["y"], domain="local", factor=3.0)],
            [value("x", ["n"])],
            [value("y", ["n"])],
            functions=[scale, twice],
        )
    )
    found.append(
        model(
            [node("Expand", ["x", "shape"], ["e"]), node("Tile", ["e", "reps"], ["t"]),
             node("ConstantOfShape", ["s"], ["k"]), node("Range", ["a", "b", "d"], ["r"]),
             node("NonZero", ["t"], ["nz"])],
            [value("x", [1, 3]), value("shape", [2], TensorProto.INT64), value("reps", [2], TensorProto.INT64),
             value("s", ["k"], TensorProto.INT64), value("a", [], TensorProto.INT64), value("b", [], TensorProto.INT64),
             value("d", [], TensorProto.INT64)],
            [value("k", None), value("r", None, TensorProto.INT64), value("nz", None, TensorProto.INT64)],
        )
    )  # fmt: skip
    found.append(
        model(
            [node("QuantizeLinear", ["x", "qs", "qz"], ["q"]), node("DequantizeLinear", ["q", "qs", "qz"], ["d"]),
             node("Resize", ["d", "", "sc"], ["z"], mode="linear"), node("Pad", ["z", "pads"], ["y"], mode="reflect")],
            [value("x", [1, 2, 4, 4])],
            [value("y", None)],
            [numpy_helper.from_array(np.float32(0.1), "qs"), numpy_helper.from_array(np.uint8(128), "qz"),
             tensor("sc", 1, 1, 2, 2), tensor("pads", 0, 0, 1, 1, 0, 0, 1, 1, dtype=np.int64)],
        )
    )  # fmt: skip
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    found.append(
        model(
            [node("SplitToSequence", ["x"], ["p"], axis=0), node("SequenceInsert", ["p", "x"], ["s"]),
             node("SequenceAt", ["s", "zero"], ["y"])],
            [value("x", ["n", 3])],
            [value("y", None), sequence],
            [numpy_helper.from_array(np.array(0), "zero")],
        )
    )  # fmt: skip
    return found
