"""The reference backend: NumPy, right rather than fast. It is the oracle, and the fall-back of the CPU.

``backend`` is the object that the core discovers; the operators' implementations are imported with the first node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from accord.backends.protocol import Arrangement, Backend, HostKernel, Kernel
from accord.contract.registry import user_contract
from accord.errors import AccordError
from accord.ir.reason import Reason

if TYPE_CHECKING:
    from accord.backends.reference.kernels import ReferenceKernel
    from accord.backends.view import NodeView

__all__ = ["ReferenceBackend", "backend", "node_proto"]


class _NodeKernel(HostKernel):
    name = "reference"

    def __init__(self, kernel: ReferenceKernel) -> None:
        self._kernel = kernel

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return self._kernel.run(inputs)


class _ContractKernel(HostKernel):
    """The reference that a user's contract declares."""

    name = "user reference"
    declared = True

    def __init__(self, reference: Any, attributes: dict[str, Any]) -> None:
        self._reference = reference
        self._attributes = attributes

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        result = self._reference(*inputs, **self._attributes)
        return result if isinstance(result, (tuple, list)) else (result,)


class _FunctionKernel(HostKernel):
    """A model-local function: its nodes one after the other."""

    name = "reference function"

    def __init__(
        self, steps: Sequence[tuple[HostKernel, list[str], list[str]]], inputs: list[str], outputs: list[str]
    ) -> None:
        self._steps = steps
        self._inputs = inputs
        self._outputs = outputs

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        env: dict[str, Any] = dict(zip(self._inputs, inputs, strict=False))
        for kernel, names, results in self._steps:
            env.update(zip(results, kernel.run([env.get(n) for n in names]), strict=False))
        return [env[n] for n in self._outputs]


class ReferenceBackend(Backend):
    """See the module's text."""

    name = "reference"
    device = "cpu"
    priority = -100
    fallback = True

    def arrange(self, view: NodeView) -> Arrangement:
        """NumPy takes arrays of any strides."""
        del view
        return Arrangement(strided=True)

    def select(self, view: NodeView) -> Kernel | Reason:
        """A kernel for every operator that has a reference."""
        from accord.ops.microsoft.unsupported import UNSUPPORTED

        left_out = UNSUPPORTED.get((view.node.domain, view.node.op_type))
        if left_out is not None:
            return Reason(left_out)
        try:
            function = view.function()
            if function is not None:
                return self._function(function, view)
            return self.kernel(view.node, view.opset)
        except AccordError as error:
            return Reason(error.message)

    def kernel(self, node: Any, opset: int) -> HostKernel:
        """The kernel for one node that is no function call.

        Raises:
            UnknownOperatorError: there is no reference.
        """
        from accord.backends.reference.kernels import ReferenceKernel

        contract = user_contract(node.domain, node.op_type, opset)
        if contract is not None and contract.semantic.reference is not None:
            attributes = {n: a.default for n, a in contract.semantic.attributes.items() if a.default is not None}
            attributes |= {a.name: a.value for a in node.attributes.values()}
            return _ContractKernel(contract.semantic.reference, attributes)
        proto = node_proto(node)
        body = next((a.g for a in proto.attribute if a.name == "body"), None)
        if (node.domain, node.op_type) == ("accord", "Gradient") and body is not None:
            return _NodeKernel(_gradient(proto, body))
        return _NodeKernel(ReferenceKernel(proto, opset))

    def _function(self, function: Any, view: NodeView) -> HostKernel:
        steps = []
        for node in function:
            kernel = self.kernel(node, function.opset_imports.get(node.domain, view.opset))
            steps.append(
                (kernel, [v.name if v is not None else "" for v in node.inputs], [o.name for o in node.outputs])
            )
        return _FunctionKernel(steps, [v.name for v in function.inputs], [v.name for v in function.outputs])


def _gradient(proto: Any, body: Any) -> ReferenceKernel:
    """Gradient of the graph in its attribute ``body`` (see :mod:`accord.model.gradient`)."""
    import onnx

    from accord.backends.reference.evaluator import Context
    from accord.backends.reference.kernels import ReferenceKernel
    from accord.ir.expand import CANONICAL_OPSET

    # inside the body the values have names of its own; they come in the order of xs, then zs
    count = next(len(a.strings) for a in proto.attribute if a.name == "xs")
    names = [v.name for v in body.input]
    del proto.attribute[:]
    attributes = {"xs": names[:count], "zs": names[count:], "y": body.output[0].name}
    proto.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in attributes.items() if v)
    proto.domain = "ai.onnx.preview.training"
    context = Context({"": CANONICAL_OPSET, proto.domain: 1}, {}, graph=body)
    return ReferenceKernel(proto, 1, context=context)


def node_proto(node: Any) -> Any:
    """The node as a protobuf; values that a rule made need not have names yet."""
    import onnx
    import onnx_ir as ir

    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name or "")
    proto.input.extend("" if v is None else v.name or f"input{i}" for i, v in enumerate(node.inputs))
    proto.output.extend("" if o.name == "" else o.name or f"output{i}" for i, o in enumerate(node.outputs))
    proto.attribute.extend(ir.serde.serialize_attribute(a) for a in node.attributes.values())
    return proto


backend = ReferenceBackend()
