"""Check a node's inputs against its operator's schema before the implementation sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx

from accord.backends.reference.registry import schema_of
from accord.backends.reference.tensors import DType, numpy_dtype
from accord.errors import ExecutionError

__all__ = ["Signature", "signature_of"]

_ELEMENT_TYPES: dict[str, DType] = {
    f"tensor({name.lower()})": numpy_dtype(value)
    for name, value in onnx.TensorProto.DataType.items()
    if value != onnx.TensorProto.UNDEFINED
}


@dataclass(frozen=True, slots=True)
class _Formal:
    name: str
    variable: str | None  # the type variable that the input shares with others; None if it binds nothing
    required: bool
    dtypes: frozenset[DType]
    accepts_sequence: bool
    accepts_empty: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs that an operator accepts.

    Attributes:
        least: Fewest inputs.
        most: Most inputs.
        formals: The formal parameters; the last one repeats if the operator is variadic.
    """

    least: int
    most: int
    formals: tuple[_Formal, ...]

    def check(self, inputs: Sequence[Any]) -> None:
        """Raise if the inputs do not fit.

        Args:
            inputs: One value for each input of the node; None for an omitted one.

        Raises:
            ExecutionError: Too few or too many inputs, a required one omitted, a value of the wrong kind or
                element type, or two inputs that must share an element type and do not.
        """
        if not self.least <= len(inputs) <= self.most:
            most = "any number" if self.most > 1000 else self.most
            raise ExecutionError(
                "The number of inputs is wrong.", expected=f"{self.least} to {most}", found=len(inputs)
            )
        bound: dict[str, DType] = {}
        for index, value in enumerate(inputs):
            formal = self.formals[min(index, len(self.formals) - 1)]
            if value is None:
                if formal.required and not formal.accepts_empty:
                    raise ExecutionError("A required input is missing.", value=formal.name)
            elif isinstance(value, np.ndarray):
                self._check_tensor(formal, value.dtype, bound)
            elif not formal.accepts_sequence:
                raise ExecutionError(
                    "The value is of the wrong kind.",
                    value=formal.name,
                    expected="a tensor",
                    found=type(value).__name__,
                )

    @staticmethod
    def _check_tensor(formal: _Formal, dtype: DType, bound: dict[str, DType]) -> None:
        if dtype not in formal.dtypes:
            raise ExecutionError(
                "The element type is not one that the operator accepts.",
                value=formal.name,
                expected=", ".join(sorted(str(d) for d in formal.dtypes)) or "a sequence or map",
                found=dtype,
            )
        if formal.variable is not None and bound.setdefault(formal.variable, dtype) != dtype:
            raise ExecutionError(
                "Inputs that must share an element type differ.",
                value=formal.name,
                expected=bound[formal.variable],
                found=dtype,
            )


@lru_cache(maxsize=4096)
def signature_of(domain: str, op_type: str, version: int) -> Signature | None:
    """Return the signature of an operator, or None if ``onnx`` has no schema in force for it."""
    schema = schema_of(domain, op_type, version)
    if schema is None or schema.deprecated:
        return None
    constraints = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    formals = []
    for formal in schema.inputs:
        types = constraints.get(formal.type_str, {formal.type_str})
        option = onnx.defs.OpSchema.FormalParameterOption
        shares = formal.type_str in constraints and (formal.option != option.Variadic or formal.is_homogeneous)
        formals.append(
            _Formal(
                formal.name,
                formal.type_str if shares else None,
                formal.option == option.Single,
                frozenset(_ELEMENT_TYPES[t] for t in _tensor_types(types)),
                any(t.startswith(("seq(", "optional(seq", "map(")) for t in types),
                any(t.startswith("optional(") for t in types),
            )
        )
    return Signature(schema.min_input, schema.max_input, tuple(formals))


def _tensor_types(types: set[str]) -> set[str]:
    """The tensor types among the given ones; a value of an optional type is a plain tensor at run time."""
    plain = {t.removeprefix("optional(").removesuffix(")") + ")" for t in types if t.startswith("optional(")}
    return {t for t in (types | plain) if t in _ELEMENT_TYPES}
