"""Operators on strings, sequences, optionals and maps: Python's objects, which machine code cannot reach.

There is nothing to compile for them, so the functions of the reference backend do the work.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accord.backends.cpu.host import CpuHostKernel

if TYPE_CHECKING:
    from accord.backends.reference.kernels import ReferenceKernel
    from accord.backends.view import NodeView
    from accord.ir.facts import Fact

__all__ = ["ObjectKernel", "object_kernel", "objects_of"]

#: Operators whose operands' types do not tell: a library decodes images, and in loops optionals may have no known type.
_BY_NAME = {
    ("", "ImageDecoder"): "encoded images",
    ("", "OptionalGetElement"): "optionals",
    ("", "OptionalHasElement"): "optionals",
}


@dataclass(frozen=True)
class ObjectKernel(CpuHostKernel):
    """A node that Python evaluates. It is made of plain values, so a stored plan can hold it.

    Attributes:
        name: For people: what it works on.
        node: The node as a protobuf.
        opset: Version of its domain.
    """

    name: str = field()  # not the class's own default
    node: bytes = field()
    opset: int = field()
    _made: list[ReferenceKernel] = field(default_factory=list, compare=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, compare=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectKernel, (self.name, self.node, self.opset)

    def prepare(self) -> None:
        """Find the function."""
        self._kernel()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """See :class:`~accord.backends.protocol.HostKernel`.

        Raises:
            ExecutionError: the inputs do not fit the operator.
        """
        return self._kernel().run(inputs)

    def _kernel(self) -> ReferenceKernel:
        with self._lock:
            if not self._made:
                import onnx

                from accord.backends.reference.kernels import ReferenceKernel

                self._made.append(ReferenceKernel(onnx.NodeProto.FromString(self.node), self.opset))
            return self._made[0]


def object_kernel(view: NodeView) -> ObjectKernel | None:
    """A kernel for a node with operands other than tensors of numbers; None for others and those of users."""
    from accord.backends.reference import node_proto
    from accord.backends.reference.kernels import ReferenceKernel
    from accord.contract.registry import user_contract
    from accord.errors import AccordError

    node, opset = view.node, view.opset
    what = objects_of(view)
    if what is None or view.function() is not None or user_contract(node.domain, node.op_type, opset) is not None:
        return None
    proto = node_proto(node)
    try:
        ReferenceKernel(proto, opset)
    except AccordError:
        return None
    return ObjectKernel(f"{what} in Python", proto.SerializeToString(), opset)


def objects_of(view: NodeView) -> str | None:
    """What a node's operands are in the plural, where they are not all tensors of numbers."""
    node = view.node
    operands = (
        *(f for f, v in zip(view.inputs, node.inputs, strict=True) if v is not None),
        *(f for f, o in zip(view.outputs, node.outputs, strict=True) if o.name),
    )
    return _BY_NAME.get((node.domain, node.op_type)) or next(filter(None, map(_objects, operands)), None)


def _objects(fact: Fact) -> str | None:
    from accord.ir.facts import OtherFact, SequenceFact, TensorFact

    if isinstance(fact, TensorFact):
        return "strings" if fact.dtype is not None and fact.dtype.name == "STRING" else None
    if isinstance(fact, OtherFact):
        return None if fact.type is None else "maps"
    return "sequences" if isinstance(fact, SequenceFact) else "optionals"
