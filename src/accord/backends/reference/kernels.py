"""One node of a model, ready to be evaluated any number of times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from accord.backends.reference import (  # noqa: F401  importing a theme registers its operators
    activations,
    attention,
    conv,
    detection,
    elementwise,
    image,
    indexing,
    linear,
    microsoft,
    ml_encoders,
    ml_linear,
    ml_trees,
    normalization,
    pooling,
    quantization,
    random_generators,
    recurrent,
    reduction,
    resize,
    sampling,
    sequences,
    shaping,
    spectral,
    text,
    training,
)
from accord.backends.reference.control import CONTROL
from accord.backends.reference.fallback import fallback
from accord.backends.reference.registry import find, normal_domain, resolve
from accord.backends.reference.signature import signature_of
from accord.backends.reference.tensors import canonical
from accord.errors import AccordError, ExecutionError, GraphError, UnknownOperatorError

if TYPE_CHECKING:
    from accord.backends.reference.evaluator import Context

__all__ = ["ReferenceKernel"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class ReferenceKernel:
    """Evaluates one node.

    The implementation is looked up in this order: an operator with subgraphs (:mod:`.control`), a function of
    this package (:mod:`.registry`), the class of ``onnx.reference``, the function body in the schema. A kernel
    holds no state of a run, so several threads may run it at once.

    Args:
        node: The node. Its attributes must hold values, not references to a function's attributes.
        opset_version: Version of the node's domain that the model imports.
        context: Opsets and functions in force around the node. Needed only by operators with subgraphs; without
            it, they see the installed version of every domain and no functions.

    Raises:
        UnknownOperatorError: Nothing here computes this operator at this version.
        GraphError: An attribute is malformed or a required one is missing.
    """

    __slots__ = ("_control", "_function", "_node_name", "_op", "_op_name", "_signature")

    def __init__(self, node: onnx.NodeProto, opset_version: int, *, context: Context | None = None) -> None:
        domain = normal_domain(node.domain)
        self._node_name = node.name or (node.output[0] if node.output else "")
        self._op_name = f"{domain}::{node.op_type}" if domain else node.op_type
        found = find(domain, node.op_type, opset_version)
        self._signature = signature_of(domain, node.op_type, opset_version)
        self._control = None
        self._function = found[0] if found else None
        control = CONTROL.get((domain, node.op_type))
        try:
            self._op = resolve(node, opset_version, found[1] if found else None)
            if control is not None:
                self._control = control(self._op, context or _default_context(domain, opset_version))
        except ValueError as error:
            raise GraphError(
                f"The attributes are malformed: {error}.", node=self._node_name, op=self._op_name
            ) from error
        if control is None and self._function is None:
            self._function = fallback(node, self._op, context or _default_context(domain, opset_version))
            if self._function is None:
                raise UnknownOperatorError(
                    f"No implementation for version {opset_version} of the domain.",
                    node=self._node_name,
                    op=self._op_name,
                    remedy="Register one with accord.backends.reference.registry.implements.",
                )

    def run(self, inputs: Sequence[Any], captured: Mapping[str, Any] = _NOTHING) -> tuple[Any, ...]:
        """Evaluate the node.

        Args:
            inputs: One value for each input of the node: array, list (sequence), dict (map), or None where the
                input is omitted or an optional is empty. They are not changed.
            captured: Values of the enclosing graphs by name, for subgraphs that read them.

        Returns:
            One value for each output that the node lists; None for an unnamed one. An output may share memory
            with an input.

        Raises:
            ExecutionError: The inputs do not fit the operator, or the evaluation failed.
        """
        values = [canonical(value) for value in inputs]
        try:
            if self._signature is not None:
                self._signature.check(values)
            with np.errstate(all="ignore"):
                if self._control is not None:
                    results = self._control.run(values, captured)
                else:
                    assert self._function is not None
                    results = self._function(self._op, *values)
        except ExecutionError as error:
            if error.node is None:
                error.node, error.op = self._node_name, self._op_name
            raise
        except AccordError:
            raise
        except Exception as error:
            raise ExecutionError(
                f"The operator failed: {error or type(error).__name__}.",
                node=self._node_name,
                op=self._op_name,
                found=", ".join(_describe(value) for value in values),
            ) from error
        return self._collect(results)

    def _collect(self, results: Any) -> tuple[Any, ...]:
        outputs = self._op.outputs
        values = results if isinstance(results, tuple) else (results,)
        if any(name for name in outputs[len(values) :]):
            raise ExecutionError(
                "The node names more outputs than the operator gives.",
                node=self._node_name,
                op=self._op_name,
                expected=f"at most {len(values)}",
                found=len(outputs),
            )
        named = [canonical(value) if name else None for name, value in zip(outputs, values, strict=False)]
        return tuple(named) + (None,) * (len(outputs) - len(named))


def _default_context(domain: str, version: int) -> Context:
    from accord.backends.reference.evaluator import Context

    imports = {"": onnx.defs.onnx_opset_version(), domain: version}
    return Context(imports, {})


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "none" if value is None else type(value).__name__
