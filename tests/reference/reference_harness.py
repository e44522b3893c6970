"""Run one node on the reference backend, or on ONNX Runtime for comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, ValueInfoProto, helper

from accord.backends.reference.kernels import ReferenceKernel


def node_of(
    op: str, inputs: Sequence[Any], outputs: int = 1, *, domain: str = "", name: str = "tested", **attributes: Any
) -> NodeProto:
    """A node whose omitted inputs are those given as None."""
    names = [f"i{k}" if value is not None else "" for k, value in enumerate(inputs)]
    given = {key: value for key, value in attributes.items() if value is not None}
    return helper.make_node(op, names, [f"o{k}" for k in range(outputs)], name=name, domain=domain, **given)


def run(
    op: str, inputs: Sequence[Any], outputs: int = 1, *, opset: int = 21, domain: str = "", **attributes: Any
) -> Any:
    """Outputs of the reference kernel: the only one, or a tuple."""
    node = node_of(op, inputs, outputs, domain=domain, **attributes)
    results = ReferenceKernel(node, opset).run(inputs)
    return results[0] if outputs == 1 else results


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    *,
    opset: int = 21,
    imports: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    initializers: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """A model with typed inputs and untyped outputs."""
    graph = helper.make_graph(
        list(nodes),
        "tested",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in inputs.items()
        ],
        [ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(v, k) for k, v in (initializers or {}).items()],
    )
    opsets = {"": opset, **(imports or {})}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
        ir_version=10,
        functions=list(functions),
    )


def onnxruntime_outputs(
    op: str, inputs: Sequence[Any], outputs: int = 1, *, opset: int = 21, domain: str = "", **attributes: Any
) -> list[Any]:
    """What ONNX Runtime gives for one node without optimisation; its error where it refuses."""
    import onnxruntime

    node = node_of(op, inputs, outputs, domain=domain, **attributes)
    feeds = {f"i{k}": np.asarray(value) for k, value in enumerate(inputs) if value is not None}
    versions = {domain: opset} if domain else {}
    model = model_of([node], feeds, list(node.output), opset=21 if domain else opset, imports=versions)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def assert_agrees(
    op: str,
    inputs: Sequence[Any],
    outputs: int = 1,
    *,
    opset: int = 21,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    steps: int = 0,
    **attributes: Any,
) -> None:
    """The reference gives what ONNX Runtime gives; integers may be off by ``steps``."""
    want = onnxruntime_outputs(op, inputs, outputs, opset=opset, **attributes)
    have = run(op, inputs, outputs, opset=opset, **attributes)
    for left, right in zip([have] if outputs == 1 else have, want, strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        exact = left.dtype.kind != "f"
        np.testing.assert_allclose(
            left.astype(np.float64),
            right.astype(np.float64),
            rtol=0 if exact else rtol,
            atol=steps if exact else atol,
        )


def normal(seed: int, *shapes: Sequence[int]) -> list[Any]:
    """Normally distributed float32 tensors."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(tuple(shape)), dtype=np.float32) for shape in shapes]


def assert_close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Same dtype unless the expected value is float64, same shape, close values."""
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    if expected.dtype != np.float64:
        assert actual.dtype == expected.dtype
    np.testing.assert_allclose(np.asarray(actual, dtype=np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)
