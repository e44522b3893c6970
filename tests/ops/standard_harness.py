"""Runs a node that is written in others, and compares with the reference of the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from accord.backends.reference.kernels import ReferenceKernel
from accord.runtime.model import Model
from accord.runtime.pipeline import Options

__all__ = ["check"]


def check(
    op: str,
    inputs: list[Any],
    outputs: int = 1,
    *,
    opset: int = 24,
    domain: str = "",
    version: int = 1,
    rtol: float = 1e-5,
    symbolic: bool = False,
    **attributes: Any,
) -> Model:
    """Compiled without the reference backend, the node gives what its own reference gives."""
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    results = [f"o{k}" for k in range(outputs)]
    proto = helper.make_node(op, names, results, domain=domain, **attributes)
    given_ = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if n}
    declared = [
        helper.make_tensor_value_info(
            n,
            helper.np_dtype_to_tensor_dtype(x.dtype),
            [f"{n}_{a}" for a in range(x.ndim)] if symbolic else x.shape,
        )
        for n, x in given_.items()
    ]
    graph = helper.make_graph([proto], "one", declared, [onnx.ValueInfoProto(name=r) for r in results])
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, version)] if domain else [])]
    model = Model(helper.make_model(graph, opset_imports=imports, ir_version=13), Options(strict=True))
    expected = ReferenceKernel(proto, version if domain else opset).run(
        [None if x is None else np.asarray(x) for x in inputs]
    )
    for a, b in zip(model(given_), expected, strict=False):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype == object:
            assert a.tolist() == b.tolist()
        else:
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=rtol)
    return model
