"""IOBinding: inputs and outputs of a session fixed to memory of the caller, under ONNX Runtime's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.backends.memory import DeviceArray
from accord.errors import InputError
from accord.runtime.ort_value import OrtValue, memory_of, memory_view

if TYPE_CHECKING:
    from accord.runtime.session import InferenceSession

__all__ = ["IOBinding"]


class IOBinding:
    """Made by :meth:`InferenceSession.io_binding`; one thread uses it at a time.

    A bound output is computed in the caller's memory. Where the plan needs that memory for something else (the output
    is an input or a constant, or its memory overlaps an input's) it is copied there after the run.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._inputs_known = {a.name for a in (*session.get_inputs(), *session.get_overridable_initializers())}
        self._outputs_known = {a.name for a in session.get_outputs()}
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._results: list[OrtValue] = []

    # what a session reads and writes

    @property
    def inputs(self) -> dict[str, Any]:
        """Bound inputs by name."""
        return self._inputs

    @property
    def outputs(self) -> dict[str, Any]:
        """Bound outputs by name, in the order in which they were bound: an array, a memory in which a run makes one, or
        None where it makes it in the host's.
        """
        return self._outputs

    def set_results(self, results: Sequence[Any]) -> None:
        """Store the outputs of a run, in the order of :attr:`outputs`."""
        self._results = [OrtValue(r) for r in results]

    # inputs

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Use an array in host memory as input ``name``; it is read when the session runs.

        Raises:
            InputError: no such input.
        """
        self._bind_input(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Use memory as input ``name``; the caller keeps it alive.

        Args:
            name: The input.
            device_type: "cpu" or "cuda".
            device_id: Number of the GPU; 0 for the CPU.
            element_type: NumPy dtype or number of an ONNX type.
            shape: Sizes of a row-major array.
            buffer_ptr: Address.

        Raises:
            InputError: no such input, or no such memory.
            BackendError: no such device.
        """
        memory = memory_of(device_type, device_id)
        self._bind_input(name, memory_view(buffer_ptr, shape, element_type, memory))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Use a value as input ``name``.

        Raises:
            InputError: no such input.
        """
        self._bind_input(name, ortvalue.value)

    def _bind_input(self, name: str, value: Any) -> None:
        if name not in self._inputs_known:
            raise InputError(f"the model has no input '{name}'", expected=", ".join(sorted(self._inputs_known)))
        self._inputs[name] = value

    def clear_binding_inputs(self) -> None:
        """Forget all bound inputs."""
        self._inputs.clear()

    def synchronize_inputs(self) -> None:
        """Wait for copies of inputs to a device; they are made when :meth:`bind_ortvalue_input` returns."""

    # outputs

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for output ``name``, in the caller's memory if an address is given.

        Args:
            name: The output.
            device_type: "cpu" or "cuda".
            device_id: Number of the GPU; 0 for the CPU.
            element_type: NumPy dtype or number of an ONNX type; needed with an address.
            shape: Sizes; needed with an address.
            buffer_ptr: Address of memory that the caller keeps alive; None: a run makes a new array.

        Raises:
            InputError: no such output, or an address without dtype and shape.
            BackendError: no such device.
        """
        memory = memory_of(device_type, device_id)
        if buffer_ptr is None:
            self._bind_output(name, memory)
            return
        if element_type is None or shape is None:
            raise InputError("an address needs a dtype and a shape", value=name)
        self._bind_output(name, memory_view(buffer_ptr, shape, element_type, memory))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write output ``name`` to the memory of a tensor.

        Raises:
            InputError: no such output, or no tensor.
        """
        if not ortvalue.is_tensor():
            raise InputError("outputs are bound to tensors", value=name, found=ortvalue.data_type())
        self._bind_output(name, ortvalue.value)

    def _bind_output(self, name: str, array: Any) -> None:
        if name not in self._outputs_known:
            raise InputError(f"the model has no output '{name}'", expected=", ".join(sorted(self._outputs_known)))
        self._outputs[name] = array

    def clear_binding_outputs(self) -> None:
        """Forget all bound outputs and the results of the last run."""
        self._outputs.clear()
        self._results = []

    def synchronize_outputs(self) -> None:
        """Wait for outputs that a device still computes.

        A run has made them when it returns, unless the session runs on a stream of the caller's (option
        ``user_compute_stream`` of a provider).
        """
        for result in self._results:
            value = result.value
            if isinstance(value, DeviceArray) and value.stream is not None:
                value.memory.settle(value.stream)

    def get_outputs(self) -> list[OrtValue]:
        """Outputs of the last run, in the order in which they were bound; empty before the first run."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Copies of the outputs of the last run, as arrays (lists for sequences)."""
        return [_copy(r.value) for r in self._results]


def _copy(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return value.numpy()
    if isinstance(value, np.ndarray):
        return value.copy()
    return [_copy(v) for v in value] if isinstance(value, list) else value
