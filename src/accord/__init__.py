"""Accord: operators by contract, and the runtime that reads them.

>>> import accord
>>> model = accord.load("model.onnx")          # doctest: +SKIP
>>> outputs = model(x=array)                   # doctest: +SKIP

Code written for ONNX Runtime runs with ``import accord as ort``. Names are imported when they are first used, so that
``import accord`` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accord import errors
    from accord.contract.contract import Values
    from accord.contract.operator import Operator, Tensor, operator
    from accord.profile.tuning import tune
    from accord.runtime.interface import ModelMetadata, NodeArg
    from accord.runtime.io_binding import IOBinding
    from accord.runtime.model import Model, load
    from accord.runtime.ort_value import OrtValue
    from accord.runtime.providers import (
        get_all_providers,
        get_available_providers,
        get_device,
        set_default_logger_severity,
    )
    from accord.runtime.session import InferenceSession
    from accord.runtime.session_options import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        RunOptions,
        SessionOptions,
    )

__version__ = "0.1.0"

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "Model",
    "ModelMetadata",
    "NodeArg",
    "Operator",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "Tensor",
    "Values",
    "__version__",
    "errors",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "load",
    "operator",
    "set_default_logger_severity",
    "tune",
]

#: Where each public name lives.
_HOMES = {
    **dict.fromkeys(
        ("ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions"),
        "accord.runtime.session_options",
    ),
    **dict.fromkeys(
        ("get_all_providers", "get_available_providers", "get_device", "set_default_logger_severity"),
        "accord.runtime.providers",
    ),
    **dict.fromkeys(("Model", "load"), "accord.runtime.model"),
    **dict.fromkeys(("Operator", "Tensor", "operator"), "accord.contract.operator"),
    "Values": "accord.contract.contract",
    **dict.fromkeys(("ModelMetadata", "NodeArg"), "accord.runtime.interface"),
    "IOBinding": "accord.runtime.io_binding",
    "InferenceSession": "accord.runtime.session",
    "OrtValue": "accord.runtime.ort_value",
    "tune": "accord.profile.tuning",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("accord.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'accord' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
