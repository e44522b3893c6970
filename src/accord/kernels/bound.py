"""A kernel that can be called: made from a declaration, on arrays in memory.

Graphs do not run through here except where a kernel is Python anyway; checks and benchmarks do, and they call a kernel
exactly as it is declared: what it accepts is not rearranged for it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from accord.contract.sizes import evaluate_size
from accord.errors import ContractError, ExecutionError

if TYPE_CHECKING:
    from accord.contract.contract import Contract, KernelDeclaration, Parameter

__all__ = ["BoundKernel", "CallKernel", "KernelError", "WriteKernel", "bind_kernel", "named_sizes", "workspace_bytes"]

Array: TypeAlias = "np.ndarray[Any, Any]"


class KernelError(ExecutionError):
    """A kernel gave a status other than 0, or something that is no output.

    Attributes:
        status: What it returned; :data:`accord.kernels.signature.REFUSED` where it does not accept the call.
    """

    def __init__(self, message: str, status: int = 0, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.status = status


class BoundKernel:
    """See the module's text.

    Attributes:
        contract: Of the operator.
        kernel: The declaration.
        types: ONNX type by type variable.
    """

    def __init__(self, contract: Contract, kernel: KernelDeclaration, types: Mapping[str, str]) -> None:
        self.contract = contract
        self.kernel = kernel
        self.types = dict(types)


class CallKernel(BoundKernel, ABC):
    """A kernel that returns its outputs: what the author wrote in Python."""

    @abstractmethod
    def __call__(self, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        """What it returned, as it is: nothing is copied or checked."""


class WriteKernel(BoundKernel, ABC):
    """A kernel that writes into memory that it is given."""

    def __call__(self, *call: Any, **named: Any) -> None:
        """Compute; arguments as of :meth:`prepared`.

        Raises:
            KernelError: it returned a status other than 0.
        """
        self.prepared(*call, **named)()

    @abstractmethod
    def prepared(
        self,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        attributes: Mapping[str, Any],
        workspace: Array | None = None,
        stream: Any = None,
    ) -> Callable[[], None]:
        """A call that can be made any number of times, with as little as possible of Python in between.

        Args:
            inputs: In order; None for one that is absent. Their strides and addresses are given to the kernel as they
                are.
            outputs: Where results go; None for one that is not wanted.
            attributes: All of them, by name.
            workspace: uint8 memory of :func:`workspace_bytes`; None where none is declared.
            stream: Where it runs, on a GPU.
        """


class _PythonKernel(CallKernel):
    def __call__(self, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        result = self.kernel.code(*inputs, **attributes)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)


Binder: TypeAlias = "Callable[[Contract, KernelDeclaration, Mapping[str, str]], BoundKernel]"


def bind_kernel(contract: Contract, kernel: KernelDeclaration, types: Mapping[str, str]) -> BoundKernel:
    """Make a kernel callable.

    Args:
        contract: Of the operator.
        kernel: One of its kernels.
        types: ONNX type by type variable.

    Raises:
        ContractError: its file, function or compiler is not there.
    """
    return _binder(kernel.kind)(contract, kernel, types)


@functools.cache
def _binder(kind: str) -> Binder:
    """By kind; the file of a kind is imported when a kernel of it is first bound."""
    if kind == "python":
        return _PythonKernel
    if kind == "library":
        from accord.kernels.library import LibraryKernel

        return LibraryKernel
    if kind == "tvm_ffi":
        from accord.kernels.packed import PackedKernel

        return PackedKernel
    if kind == "triton":
        from accord.kernels.triton import TritonKernel

        return TritonKernel
    if kind == "cuda":
        from accord.kernels.cuda import CudaKernel

        return CudaKernel
    raise ContractError(f"a kernel of kind '{kind}' runs as part of a graph only")


def named_sizes(
    contract: Contract, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: Sequence[Any] = ()
) -> dict[str, int]:
    """Sizes by name, read off arrays; integer attributes too; -1 for a size whose tensors are all absent."""
    s = contract.semantic
    env: dict[str, int] = {n: int(v) for n, v in attributes.items() if isinstance(v, (bool, int, np.integer))}
    names: list[str] = []
    for ports, arrays in ((s.inputs, inputs), (s.outputs, outputs)):
        for p, array in zip(ports, arrays, strict=False):
            for name, size in _pairs(p, array):
                if name not in env:
                    env[name] = size
        names += [str(x) for p in ports for x in p.sizes or () if str(x).isidentifier()]
    return {**dict.fromkeys(names, -1), **env}


def _pairs(p: Parameter, array: Any) -> list[tuple[str, int]]:
    if array is None or p.sizes is None:
        return []
    fixed = p.sizes[1:] if p.sizes[:1] == ("...",) else p.sizes
    tail = array.shape[len(array.shape) - len(fixed) :]
    return [(x, n) for x, n in zip(fixed, tail, strict=False) if isinstance(x, str) and x.isidentifier()]


def workspace_bytes(contract: Contract, kernel: KernelDeclaration, sizes: Mapping[str, int]) -> int:
    """Bytes of scratch memory that a kernel is promised."""
    text = (kernel.execution or contract.execution).workspace
    if not text:
        return 0
    value = evaluate_size(text, sizes)
    if not isinstance(value, int):
        raise ContractError(
            f"the workspace '{text}' has no value", op=contract.semantic.qualified_name, found=str(dict(sizes))
        )
    return max(0, value)
