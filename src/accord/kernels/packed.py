"""tvm-ffi functions: DLPack tensors in the order inputs, outputs, attributes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accord.errors import ContractError
from accord.kernels.bound import Array, KernelError, WriteKernel

if TYPE_CHECKING:
    from accord.contract.contract import Contract, KernelDeclaration

__all__ = ["PackedKernel"]


@functools.cache
def _ffi() -> Any:
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError as error:
        raise ContractError(
            "kernels of kind 'tvm_ffi' need the package apache-tvm-ffi", remedy="pip install apache-tvm-ffi"
        ) from error


class PackedKernel(WriteKernel):
    """One function of a module."""

    def __init__(self, contract: Contract, kernel: KernelDeclaration, types: Mapping[str, str]) -> None:
        super().__init__(contract, kernel, types)
        op = contract.semantic.qualified_name
        try:
            module = _ffi().load_module(kernel.code.module)
            self._function = module[kernel.code.function]
        except (OSError, RuntimeError, AttributeError, KeyError) as error:
            raise ContractError(
                f"function '{kernel.code.function}' of {kernel.code.module} cannot be loaded: {error}", op=op
            ) from error

    def prepared(
        self,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        attributes: Mapping[str, Any],
        workspace: Array | None = None,
        stream: Any = None,
    ) -> Callable[[], None]:
        """See :class:`~accord.kernels.bound.WriteKernel`; a workspace comes after the outputs."""
        ffi = _ffi()
        tensors = [None if a is None else ffi.from_dlpack(a) for a in (*inputs, *outputs)]
        if workspace is not None:
            tensors.append(ffi.from_dlpack(workspace))
        values = [attributes[n] for n in self.contract.semantic.attributes]

        def call() -> None:
            try:
                self._function(*tensors, *values)
            except Exception as error:  # whatever the author's language throws arrives as some exception
                raise KernelError(f"the kernel failed: {error}", op=self.contract.semantic.qualified_name) from error

        return call
