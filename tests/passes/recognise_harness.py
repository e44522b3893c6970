"""Graphs written as exporters write them, and the check that they mean the same before and after recognition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from accord.passes.phases import phases
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

F = np.float32
#: Rules that recognise; others that run in the phase tidy up.
RULES = tuple(r.name for p in phases() for r in p.rules if ".rules.recognise." in type(r).__module__)


class G:
    """Collects nodes: ``y = g("Add", x, 1.0)``; numbers and arrays become constants of ``dtype``."""

    def __init__(self, opset: int = 24, dtype: Any = F) -> None:
        self.opset = opset
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def const(self, value: Any, dtype: Any = None) -> str:
        array = np.asarray(value)
        if dtype is not None or array.dtype == np.float64:
            array = array.astype(dtype or self.dtype)
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def __call__(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        names = [i if isinstance(i, str) else "" if i is None else self.const(i) for i in inputs]
        made = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(node(op, names, made, **attributes))
        return made[0] if outputs == 1 else made

    def axes(self, op: str, x: str, axes: Sequence[int], **attributes: Any) -> str:
        """An operator whose axes became an input: Reduce*, Squeeze, Unsqueeze."""
        since = 13 if op in ("ReduceSum", "Squeeze", "Unsqueeze") else 18
        if self.opset < since:
            return self(op, x, axes=list(axes), **attributes)
        return self(op, x, np.array(axes, np.int64), **attributes)

    def model(self, inputs: Mapping[str, Any], *outputs: str) -> onnx.ModelProto:
        return model(
            self.nodes,
            {k: v if isinstance(v, tuple) else (self.dtype, v) for k, v in inputs.items()},
            outputs,
            self.constants,
            opset=self.opset,
        )


def compiled(proto: onnx.ModelProto, **options: Any) -> Model:
    return Model(proto, Options(reference=True, **options))


def ops(m: Model) -> list[str]:
    return [n.op_type for n in m.compiled.model.graph]


def nodes(m: Model, op: str) -> list[Any]:
    return [n for n in m.compiled.model.graph if n.op_type == op]


def attributes(m: Model, op: str) -> dict[str, Any]:
    """Attributes of the only node of ``op``."""
    (found,) = nodes(m, op)
    return {k: a.value for k, a in found.attributes.items()}


def reasons(m: Model, rule: str | None = None) -> list[str]:
    return [str(s.reason) for s in m.compiled.log.skipped if s.rule in RULES and rule in (None, s.rule)]


TOLERANCE = {"float32": 2e-5, "float64": 1e-9, "float16": 8e-3, "bfloat16": 6e-2}


def same(proto: onnx.ModelProto, feeds: Mapping[str, Any], m: Model, tolerance: float | None = None) -> None:
    """Outputs are those of the model that nothing was recognised in."""
    plain = compiled(proto, disabled_rules=RULES)
    for a, b in zip(m(feeds), plain(feeds), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        t = tolerance or TOLERANCE.get(a.dtype.name, 0)
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=t, atol=t)


def in_onnxruntime(m: Model, feeds: Mapping[str, Any], tolerance: float = 2e-5) -> None:
    """The stage can be dumped: ONNX Runtime runs what was written."""
    proto = ir.serde.serialize_model(m.compiled.model)
    proto.ir_version = 11
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for a, b in zip(session.run(None, dict(feeds)), m(feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def becomes(
    proto: onnx.ModelProto, feeds: Mapping[str, Any], left: Sequence[str], tolerance: float | None = None
) -> Model:
    """The operators that are left are these, in any order, and the outputs stay the same."""
    m = compiled(proto)
    assert sorted(ops(m)) == sorted(left), reasons(m)
    same(proto, feeds, m, tolerance)
    return m


def stays(proto: onnx.ModelProto, why: str | None = None, rule: str | None = None) -> Model:
    """Nothing is recognised, and a reason says so where one is due."""
    m = compiled(proto)
    fired = {p.rule for p in m.compiled.log.patches} & ({rule} if rule else set(RULES))
    assert not fired
    if why is not None:
        found = reasons(m, rule)
        assert any(why in r for r in found), found
    return m
