"""Runs one operator in ONNX Runtime as it is, and again after its expansion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper

import accord.ops.microsoft
import accord.ops.shapes
from accord.backends.reference.evaluator import evaluate
from accord.ir.expand import CANONICAL_OPSET, OWN_DOMAIN
from accord.model.normalise import normalise

DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")


def expand_model(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model after the stage ``normalise``, which applies the expansions."""
    return ir.to_proto(normalise(ir.from_proto(proto)).model)


def node_model(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any],
    outputs: Sequence[Any],
    *,
    domain: str = "com.microsoft",
    constants: Sequence[int] = (),
    symbolic: bool = False,
    opset: int = CANONICAL_OPSET,
) -> onnx.ModelProto:
    """A model of one node. ``outputs`` lists dtypes (None: not named)."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=False) if n}
    declared, initializers = [], []
    for i, (name, array) in enumerate(arrays.items()):
        if int(name[1:]) in constants:
            initializers.append(onnx.numpy_helper.from_array(array, name))
            continue
        shape = [f"d{i}_{axis}" for axis in range(array.ndim)] if symbolic else array.shape
        declared.append(helper.make_tensor_value_info(name, element_type(array.dtype), shape))
    results = ["" if t is None else f"y{i}" for i, t in enumerate(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    typed = [
        helper.make_tensor_value_info(f"y{i}", element_type(t), None) for i, t in enumerate(outputs) if t is not None
    ]
    graph = helper.make_graph([node], "g", declared, typed, initializers)
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, 1) for d in DOMAINS]
    return helper.make_model(graph, opset_imports=imports, ir_version=11)


def element_type(dtype: Any) -> int:
    dtype = np.dtype(dtype)
    return onnx.TensorProto.STRING if dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(dtype)


def run_ort(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def run_ort_shared(model: onnx.ModelProto, feeds: Mapping[str, Any], shared: Mapping[str, str]) -> list[Any]:
    """Run with outputs in the memory of inputs; ``shared`` maps names of outputs to names of inputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {name: ort.OrtValue.ortvalue_from_numpy(np.array(array)) for name, array in feeds.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in model.graph.output:
        if output.name in shared:
            binding.bind_ortvalue_output(output.name, values[shared[output.name]])
        else:
            binding.bind_output(output.name)
    session.run_with_iobinding(binding)
    return [np.array(value.numpy()) for value in binding.get_outputs()]


def run_reference(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    return evaluate(model, feeds)


def assert_standard(model: onnx.ModelProto, *, full: bool = True) -> None:
    """Only operators of ONNX, or of Accord itself, are left, in a valid model."""
    foreign = sorted({f"{n.domain}::{n.op_type}" for n in model.graph.node if n.domain not in ("", OWN_DOMAIN)})
    assert not foreign, f"operators of other domains are left: {foreign}"
    onnx.checker.check_model(model, full_check=full)


def check(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    outputs: Sequence[Any] = (np.float32,),
    *,
    domain: str = "com.microsoft",
    constants: Sequence[int] = (),
    opset: int = CANONICAL_OPSET,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    steps: int = 0,
    expected: Sequence[Any] | None = None,
    shapes: Sequence[bool] = (False, True),
    engine: str = "reference",
    view: Callable[[Sequence[Any]], Sequence[Any]] = list,
) -> onnx.ModelProto:
    """Compare the operator in ONNX Runtime with its expansion, once with known and once with symbolic sizes.

    Args:
        expected: The wanted outputs, for operators that ONNX Runtime's CPU provider lacks.
        steps: For integer outputs: how far an element may be off.
        shapes: Which of symbolic=False, True to try.
        engine: What runs the expanded model, "ort" or "reference".
        view: Picks from the outputs what is specified.
    """
    attributes = attributes or {}
    expanded = None
    for symbolic in shapes:
        model = node_model(
            op, inputs, attributes, outputs, domain=domain, constants=constants, symbolic=symbolic, opset=opset
        )
        feeds = {i.name: np.asarray(inputs[int(i.name[1:])]) for i in model.graph.input}
        wanted = run_ort(model, feeds) if expected is None else list(expected)
        expanded = expand_model(model)
        for value, array in zip(expanded.graph.output, wanted, strict=True):
            value.type.tensor_type.shape.CopyFrom(helper.make_tensor_type_proto(1, np.shape(array)).tensor_type.shape)
        # ONNX's own inference takes an unknown hidden size for 0 and gives Attention's scores a rank of 0.
        scores = any(n.op_type == "Attention" and len(n.output) > 3 for n in expanded.graph.node)
        assert_standard(expanded, full=not symbolic and not scores)
        actual = run_ort(expanded, feeds) if engine == "ort" else run_reference(expanded, feeds)
        assert len(actual) == len(wanted)
        for a, w in zip(view(actual), view(wanted), strict=True):
            compare(a, np.asarray(w), rtol=rtol, atol=atol, steps=steps)
    assert expanded is not None
    return expanded


def compare(actual: Any, wanted: Any, *, rtol: float = 1e-5, atol: float = 1e-5, steps: int = 0) -> None:
    assert actual.dtype == wanted.dtype, f"dtype {actual.dtype} instead of {wanted.dtype}"
    assert actual.shape == wanted.shape, f"shape {actual.shape} instead of {wanted.shape}"
    if wanted.dtype.kind in "iub":
        worst = int(np.abs(actual.astype(np.int64) - wanted.astype(np.int64)).max(initial=0))
        assert worst <= steps, f"off by {worst} steps"
    elif wanted.dtype.kind in "OU":
        assert actual.tolist() == wanted.tolist()
    else:
        np.testing.assert_allclose(actual.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return rng(seed).standard_normal(shape).astype(dtype)


__all__ = [
    "accord",
    "assert_standard",
    "check",
    "compare",
    "element_type",
    "expand_model",
    "node_model",
    "normal",
    "normalise",
    "rng",
    "run_ort",
    "run_ort_shared",
    "run_reference",
]
