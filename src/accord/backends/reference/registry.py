"""Which function computes which operator: a table by domain, operator and version.

An implementation is a plain function::

    @implements("LeakyRelu")
    def leaky_relu(op: OpNode, x: Array) -> Array:
        return np.where(x >= 0, x, op["alpha"] * x)

It receives the node's resolved attributes as ``op`` and then the node's inputs in order: a NumPy array for a
tensor (ml_dtypes for the types that NumPy lacks, ``object`` arrays of ``str`` for strings), a list for a
sequence, a dict for a map, None for an omitted optional input or an empty optional. It returns one value, or a
tuple if the operator has several outputs. It must not change its inputs, keeps no state, and runs with NumPy's
floating-point warnings switched off. Any exception that it raises becomes an
:class:`~accord.errors.ExecutionError` that names the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy.typing as npt
import onnx
from onnx import AttributeProto

from accord.backends.reference.tensors import to_array, to_dense

Array: TypeAlias = npt.NDArray[Any]
Implementation: TypeAlias = Callable[..., Any]

__all__ = ["Array", "Implementation", "OpNode", "attribute_value", "find", "implements", "resolve", "schema_of"]


@dataclass(frozen=True, slots=True)
class OpNode:
    """What an implementation may know of its node besides the inputs.

    Attributes:
        op_type: Name of the operator.
        domain: Its domain, ``""`` for the ONNX domain.
        version: Version of the domain that the model imports.
        attributes: Attribute values as Python numbers, strings, lists and NumPy arrays; schema defaults are
            filled in. Graph attributes stay ``onnx.GraphProto``.
        outputs: Names of the node's outputs; ``""`` for one that nobody reads.
    """

    op_type: str
    domain: str
    version: int
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]

    def __getitem__(self, name: str) -> Any:
        """Return the value of an attribute, or None if it has neither a value nor a default."""
        return self.attributes.get(name)

    def wants(self, index: int) -> bool:
        """Tell whether the node names its output number ``index``."""
        return index < len(self.outputs) and self.outputs[index] != ""


@dataclass(frozen=True, slots=True)
class _Entry:
    since: int
    function: Implementation
    defaults: Mapping[str, Any]


_TABLE: dict[tuple[str, str], list[_Entry]] = {}


def implements(
    *op_types: str, domain: str = "", since: int = 1, defaults: Mapping[str, Any] | None = None
) -> Callable[[Implementation], Implementation]:
    """Register the decorated function as the meaning of one or several operators.

    Args:
        op_types: Names of the operators.
        domain: Their domain.
        since: First version of the domain for which the function holds; a later registration with a higher
            ``since`` takes over from there.
        defaults: Attribute defaults for operators that have no schema in the installed ``onnx``.

    Returns:
        The decorator; it returns the function unchanged.
    """

    def register(function: Implementation) -> Implementation:
        for op_type in op_types:
            entries = _TABLE.setdefault((domain, op_type), [])
            entries.append(_Entry(since, function, MappingProxyType(dict(defaults or {}))))
            entries.sort(key=lambda entry: entry.since)
        return function

    return register


#: Packages whose import registers more operators; imported when an operator is not found without them.
_EXTENSIONS = ("accord.backends.reference.microsoft",)


@lru_cache(maxsize=1)
def _load_extensions() -> None:
    for name in _EXTENSIONS:
        import_module(name)


def find(domain: str, op_type: str, version: int) -> tuple[Implementation, Mapping[str, Any]] | None:
    """Look up the implementation of an operator.

    Args:
        domain: Domain of the operator, ``""`` for the ONNX domain.
        op_type: Name of the operator.
        version: Version of the domain that the model imports.

    Returns:
        The function and its attribute defaults, or None if none is registered for that version.
    """
    if (domain, op_type) not in _TABLE:
        _load_extensions()
    best = None
    for entry in _TABLE.get((domain, op_type), ()):
        if entry.since <= version:
            best = entry
    return None if best is None else (best.function, best.defaults)


def registered() -> Iterable[tuple[str, str]]:
    """Return the (domain, operator) pairs that have an implementation of their own."""
    return tuple(_TABLE)


_CONVERSIONS: dict[int, Callable[[AttributeProto], Any]] = {
    AttributeProto.FLOAT: lambda a: a.f,
    AttributeProto.INT: lambda a: a.i,
    AttributeProto.STRING: lambda a: a.s.decode("utf-8"),
    AttributeProto.TENSOR: lambda a: to_array(a.t),
    AttributeProto.SPARSE_TENSOR: lambda a: to_dense(a.sparse_tensor),
    AttributeProto.GRAPH: lambda a: a.g,
    AttributeProto.TYPE_PROTO: lambda a: a.tp,
    AttributeProto.FLOATS: lambda a: list(a.floats),
    AttributeProto.INTS: lambda a: list(a.ints),
    AttributeProto.STRINGS: lambda a: [s.decode("utf-8") for s in a.strings],
    AttributeProto.TENSORS: lambda a: [to_array(t) for t in a.tensors],
    AttributeProto.SPARSE_TENSORS: lambda a: [to_dense(t) for t in a.sparse_tensors],
    AttributeProto.GRAPHS: lambda a: list(a.graphs),
    AttributeProto.TYPE_PROTOS: lambda a: list(a.type_protos),
}


def attribute_value(attribute: AttributeProto) -> Any:
    """Convert an attribute to the Python value that implementations read.

    Args:
        attribute: An attribute that holds a value (not a reference to a function's attribute).

    Returns:
        float, int, str, NumPy array, protobuf message, or a list of them.

    Raises:
        ValueError: The attribute has no type, or refers to an attribute of an enclosing function.
    """
    if attribute.ref_attr_name:
        raise ValueError(f"attribute '{attribute.name}' refers to '{attribute.ref_attr_name}' of a function")
    convert = _CONVERSIONS.get(attribute.type)
    if convert is None:
        raise ValueError(f"attribute '{attribute.name}' has no valid type ({attribute.type})")
    return convert(attribute)


@lru_cache(maxsize=4096)
def schema_of(domain: str, op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """Return the schema that holds for an operator at a version, or None if ``onnx`` has none."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


@lru_cache(maxsize=4096)
def _schema_defaults(domain: str, op_type: str, version: int) -> Mapping[str, Any]:
    schema = schema_of(domain, op_type, version)
    if schema is None:
        return MappingProxyType({})
    return MappingProxyType(
        {
            name: attribute_value(attribute.default_value)
            for name, attribute in schema.attributes.items()
            if attribute.default_value.type != AttributeProto.UNDEFINED
        }
    )


def resolve(node: onnx.NodeProto, version: int, defaults: Mapping[str, Any] | None = None) -> OpNode:
    """Gather the attribute values of a node.

    Args:
        node: The node.
        version: Version of the node's domain that the model imports.
        defaults: Attribute defaults to use where the schema has none.

    Returns:
        The node as its implementation sees it.

    Raises:
        ValueError: An attribute cannot be converted, or a required one is missing.
    """
    domain = normal_domain(node.domain)
    attributes = {**(defaults or {}), **_schema_defaults(domain, node.op_type, version)}
    attributes.update((attribute.name, attribute_value(attribute)) for attribute in node.attribute)
    schema = schema_of(domain, node.op_type, version)
    if schema is not None:
        for name, attribute in schema.attributes.items():
            if attribute.required and name not in attributes:
                raise ValueError(f"the required attribute '{name}' is missing")
    return OpNode(node.op_type, domain, version, MappingProxyType(attributes), tuple(node.output))


def normal_domain(domain: str) -> str:
    """Return the domain with the alias ``ai.onnx`` replaced by the empty string."""
    return "" if domain == "ai.onnx" else domain
