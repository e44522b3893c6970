"""Models, peaks and records for tests of the profiling tools."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
from onnx import parser

from accord.profile.peaks import Level, Peaks, Rate, bound
from accord.profile.profile import Memory, Profile
from accord.profile.steps import StepRecord
from accord.runtime.observed import Operand
from builders import model, node

#: A round machine: 100 GFLOP/s, 100 GB/s from L1, 10 from memory.
PEAKS = Peaks(
    1,
    {"f32": Rate(1e11, 0.0), "f64": Rate(5e10, 0.0)},
    (Level("L1", 32 << 10, Rate(1e11, 0.0), Rate(1e11, 0.0)), Level("memory", None, Rate(1e10, 0.0), Rate(1e10, 0.0))),
)

LOOP = """
<ir_version: 8, opset_import: ["":17]>
g (float[N] x, int64 count) => (float[N] y, float[M] scan)
{
  yes = Constant<value = bool {1}>()
  y, last = Loop(count, yes, x) <body = b (int64 i, bool c, float[N] carried) => (bool more, float[N] next, float s)
    { more = Identity(c) next = Exp(carried) s = ReduceMax<keepdims=0>(next) }>
  scan = Neg(last)
}
"""


def convolution() -> onnx.ModelProto:
    """A convolution with an epilogue, and a product with a matrix."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.random((16, 8, 3, 3), np.float32),
        "m": rng.random((14, 32), np.float32),
    }
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="conv"),
        node("Relu", ["a"], ["r"], name="relu"),
        node("MatMul", ["r", "m"], ["y"], name="product"),
    ]
    return model(nodes, {"x": (np.float32, ["N", 8, 16, 16])}, ["y"], constants)


def loop() -> onnx.ModelProto:
    """A loop whose body runs ``count`` times."""
    found: onnx.ModelProto = parser.parse_model(LOOP)
    return found


def step(name: str = "node", op: str = "Conv", milliseconds: float = 1.0, **changes: Any) -> StepRecord:
    """A record; operations and bytes give its bound, unless there is one."""
    known: dict[str, Any] = {
        "node": name,
        "op": op,
        "kernel": "kernel",
        "backend": "cpu",
        "fallback": False,
        "reason": "first choice",
        "within": (),
        "index": 0,
        "late": False,
        "calls": 1,
        "median": milliseconds * 1e-3,
        "least": milliseconds * 1e-3,
        "single": None,
        "inputs": (),
        "outputs": (Operand("float", (1, 32, 100), 12800),),
        "read": 1000,
        "constants": 0,
        "written": 1000,
        "operations": None,
        "dtype": "f32",
        **changes,
    }
    if "bound" not in known:
        known["bound"] = bound(PEAKS, known["dtype"], known["operations"] or 0, known["read"], known["written"])
    return StepRecord(**known)


def efficient(name: str, milliseconds: float = 1.0) -> StepRecord:
    """A step at 90 % of the machine's peak."""
    return step(name, milliseconds=milliseconds, operations=int(0.9e11 * milliseconds * 1e-3))


def profile_of(*steps: StepRecord, **changes: Any) -> Profile:
    """A profile of these steps, with nothing else in the run."""
    total = sum(s.median for s in steps)
    known: dict[str, Any] = {
        "name": "g",
        "threads": 1,
        "runs": 20,
        "shapes": {"x": (1,)},
        "symbolic": ("N",),
        "median": total,
        "least": total,
        "outside": 0.0,
        "single": None,
        "steps": list(steps),
        "memory": Memory(0, (), 0, 0),
        "peaks": copy.copy(PEAKS),
        "timeline": (),
        **changes,
    }
    return Profile(**known)
