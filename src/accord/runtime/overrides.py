"""Changes that session options make to a model before it is compiled: sizes and contents of initializers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.errors import InputError
from accord.model.load import load_model
from accord.runtime.ort_value import OrtValue
from accord.runtime.session_options import SessionOptions

__all__ = ["with_overrides"]


def with_overrides(source: Any, options: SessionOptions) -> ir.Model:
    """The model of ``source`` with the sizes and initializers that ``options`` give.

    Raises:
        ModelError: the model cannot be loaded.
        InputError: an initializer that the model lacks, or one of another dtype or shape.
    """
    model = load_model(source)
    sizes = {text: size for (kind, text), size in options.dimensions.items() if kind == "name"}
    denoted = {text: size for (kind, text), size in options.dimensions.items() if kind == "denotation"}
    for value in model.graph.inputs:
        value.shape = _sized(value.shape, sizes, denoted)
    for value in model.graph.outputs:
        value.shape = _sized(value.shape, sizes, {})
    for name, given in options.initializers.items():
        _replace_initializer(model.graph, name, given)
    return model


def _sized(shape: ir.Shape | None, sizes: dict[str, int], denoted: Mapping[str, int]) -> ir.Shape | None:
    """``shape`` with sizes by name or denotation; a name that a denoted axis carries is added to ``sizes``."""
    if shape is None:
        return None
    dims: list[int | ir.SymbolicDim] = []
    for axis, d in enumerate(shape.dims):
        if isinstance(d, int):
            dims.append(d)
            continue
        size = denoted.get(shape.get_denotation(axis) or "", sizes.get(d.value or ""))
        if size is not None and d.value:
            sizes.setdefault(d.value, size)
        dims.append(d if size is None else size)
    return ir.Shape(dims, [shape.get_denotation(axis) for axis in range(len(dims))])


def _replace_initializer(graph: ir.Graph, name: str, given: Any) -> None:
    if name not in graph.initializers:
        raise InputError(f"the model has no initializer '{name}'")
    old = graph.initializers[name].const_value
    array = np.asarray(given.value if isinstance(given, OrtValue) else given)
    if old is not None and (tuple(old.shape.numpy()) != array.shape or old.dtype.numpy() != array.dtype):
        raise InputError(
            "another dtype or shape than the initializer's",
            value=name,
            expected=f"{old.dtype.numpy()}{list(old.shape.numpy())}",
            found=f"{array.dtype}{list(array.shape)}",
        )
    graph.initializers[name].const_value = ir.Tensor(array, name=name)
