"""Accord under the interface of ``onnx.backend.base``, so that ONNX's own test runner can drive it.

>>> import accord.onnx_backend as backend
>>> outputs = backend.prepare(model, "CPU").run([array])   # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from accord.errors import AccordError, InputError
from accord.runtime.model import Model, Outputs, load
from accord.runtime.ort_value import element_type
from accord.runtime.providers import has_device

__all__ = ["AccordBackend", "AccordRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

#: Options of :func:`accord.load` that :meth:`AccordBackend.prepare` passes on.
_OPTIONS = ("level", "disabled_rules", "strict", "threads")


class AccordRep(BackendRep):
    """A compiled model.

    Attributes:
        model: The model itself.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> Outputs:
        """Run the model.

        Args:
            inputs: Arrays in the model's order, where those that have a default may be left out together; or by name;
                or one array for a model with one input.
            kwargs: Ignored, as the interface asks.

        Returns:
            The outputs in order; they can also be found by name.

        Raises:
            InputError: an input is missing, unknown, or of the wrong dtype, rank or size.
            ExecutionError: a kernel failed.
        """
        if isinstance(inputs, Mapping):
            return self.model(dict(inputs))
        given = [inputs] if isinstance(inputs, np.ndarray) or np.isscalar(inputs) else list(inputs)
        names = [v.name for v in self.model.inputs]
        if len(given) < len(names):
            plan = self.model.plan
            names = [n for n, i in zip(names, plan.inputs, strict=True) if i not in plan.defaults]
        if len(given) > len(names):
            raise InputError("too many inputs", expected=f"{len(names)}: {', '.join(names)}", found=len(given))
        return self.model(dict(zip(names, given, strict=False)))


class AccordBackend(Backend):
    """The backend; its methods need no instance."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """True if the model can be compiled for the device."""
        try:
            cls.prepare(model, device, **kwargs)
        except AccordError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> AccordRep:
        """Compile ``model``.

        Args:
            model: The model.
            device: "CPU", "CUDA", "CUDA:1", or what an installed backend serves.
            kwargs: ``level``, ``disabled_rules``, ``strict`` and ``threads`` as in :func:`accord.load`; others are
                ignored, as the interface asks.

        Raises:
            ModelError: the model is wrong.
            UnsupportedError: nothing can run it.
            BackendError: no backend serves the device.
        """
        options = {name: kwargs[name] for name in _OPTIONS if name in kwargs}
        return AccordRep(load(model, device=_device(device), **options))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> Outputs:
        """Compile and run ``model``; see :meth:`prepare` and :meth:`AccordRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> Outputs:
        """Run one node.

        Args:
            node: The node; absent optional inputs have empty names.
            inputs: Arrays for the inputs that have names, in order, or by name; lists for sequences.
            device: As in :meth:`prepare`.
            outputs_info: dtype and shape of each output, where inference should not decide.
            kwargs: ``opset_version`` of the node's domain, and as in :meth:`prepare`.

        Returns:
            The outputs that have names.

        Raises:
            InputError: the number of inputs is wrong.
            UnsupportedError: no such operator, or nothing can run it.
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        feed = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
        if set(feed) != set(names) or (not isinstance(inputs, Mapping) and len(inputs) != len(names)):
            raise InputError("wrong inputs for the node", op=node.op_type, expected=", ".join(names), found=len(inputs))
        outputs = [name for name in node.output if name]
        declared = [helper.make_empty_tensor_value_info(name) for name in outputs]
        if outputs_info is not None:
            declared = [
                helper.make_tensor_value_info(name, int(element_type(dtype)), shape)
                for name, (dtype, shape) in zip(outputs, outputs_info, strict=True)
            ]
        graph = helper.make_graph(
            [node], "node", [helper.make_value_info(name, _type_of(feed[name])) for name in names], declared
        )
        version = kwargs.get("opset_version")
        if version is None:
            version = 1 if node.domain not in ("", "ai.onnx") else onnx.defs.onnx_opset_version()
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return cls.run_model(model, feed, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True if a backend for the device is installed."""
        return has_device(_device(device))


def _device(text: str) -> str:
    """Accord's name of a device that ONNX writes "CPU" or "CUDA:0"."""
    name, _, number = text.lower().partition(":")
    return name if number in ("", "0") else f"{name}:{number}"


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, (list, tuple)):
        if not value:
            raise InputError("the element type of an empty sequence is not known", remedy="Use run_model.")
        return helper.make_sequence_type_proto(_type_of(value[0]))
    array = np.asarray(value)
    return helper.make_tensor_type_proto(int(element_type(array.dtype)), array.shape)


is_compatible = AccordBackend.is_compatible
prepare = AccordBackend.prepare
run_model = AccordBackend.run_model
run_node = AccordBackend.run_node
supports_device = AccordBackend.supports_device
