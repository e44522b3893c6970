"""Names of element types: NumPy's as declarations write them, ONNX's as contracts hold them."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ONNX_TYPES", "from_onnx", "numpy_name", "short_name"]

#: ONNX type by the name in a declaration.
ONNX_TYPES: Final[dict[str, str]] = {
    "float32": "tensor(float)",
    "float64": "tensor(double)",
    **{t: f"tensor({t})" for t in ("float16", "bfloat16", "bool", "string")},
    **{f"{s}int{n}": f"tensor({s}int{n})" for s in ("", "u") for n in (4, 8, 16, 32, 64)},
    "float8_e4m3fn": "tensor(float8e4m3fn)",
    "float8_e5m2": "tensor(float8e5m2)",
}
_NAMES: Final = {onnx: name for name, onnx in ONNX_TYPES.items()}


def short_name(onnx_type: str) -> str:
    """NumPy's name, "float32" for "tensor(float)"; what is no tensor type stays as it is."""
    return _NAMES.get(onnx_type, onnx_type)


def from_onnx(onnx_type: str) -> Any:
    """The ``onnx_ir.DataType`` of "tensor(float)"; None for what is none."""
    import onnx_ir as ir

    return next((d for d in ir.DataType if f"tensor({str(d.name).lower()})" == onnx_type), None)


def numpy_name(onnx_type: str) -> Any:
    """The NumPy dtype of "tensor(float)".

    Raises:
        KeyError: it has none.
    """
    found = from_onnx(onnx_type)
    if found is None:
        raise KeyError(onnx_type)
    return found.numpy()
