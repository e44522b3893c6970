"""What a launch on a GPU is given: memory, sizes, strides and attributes by name, the same for Triton and CUDA C++."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.contract.dtypes import short_name
from accord.errors import ContractError
from accord.kernels.bound import named_sizes
from accord.record import record

if TYPE_CHECKING:
    from accord.contract.code import CudaCode, TritonCode
    from accord.contract.contract import Contract

__all__ = ["GRID_LIMITS", "Launch", "Memory", "contiguous", "is_contiguous", "launches", "memory_of", "on_device"]

#: Greatest grid by axis, on every architecture.
GRID_LIMITS = (2**31 - 1, 65535, 65535)


@record
class Memory:
    """A tensor's memory.

    Attributes:
        address: Of its first element.
        shape: Its sizes.
        strides: In elements.
        dtype: NumPy's name.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@record
class Launch:
    """One start of a kernel.

    Attributes:
        code: What is started.
        values: What its parameters may name: :class:`Memory`, numbers, text, or None.
        meta: Compile-time parameters.
        grid: Programs or blocks, three axes.
        known: What ``grid`` and ``meta`` were computed from, and they themselves.
    """

    code: TritonCode | CudaCode
    values: Mapping[str, Any]
    meta: Mapping[str, Any]
    grid: tuple[int, int, int]
    known: Mapping[str, Any]


def on_device(array: Any) -> bool:
    """True for what lies in a GPU's memory."""
    return hasattr(array, "__cuda_array_interface__")


def memory_of(array: Any) -> Memory | None:
    """The memory of an array on the host, or of whatever has ``__cuda_array_interface__``; None of None."""
    if array is None or isinstance(array, Memory):
        return array
    if isinstance(array, np.ndarray):
        address = int(array.__array_interface__["data"][0])
        return Memory(address, array.shape, tuple(s // array.itemsize for s in array.strides), array.dtype.name)
    facts = array.__cuda_array_interface__
    shape = tuple(facts["shape"])
    dtype = np.dtype(facts["typestr"])
    strides = facts.get("strides")
    name = str(getattr(array, "dtype", dtype.name)).split(".")[-1]  # bfloat16 has no typestr
    if strides is None:
        return Memory(int(facts["data"][0] or 0), shape, contiguous(shape), name)
    return Memory(int(facts["data"][0] or 0), shape, tuple(s // dtype.itemsize for s in strides), name)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def is_contiguous(m: Memory) -> bool:
    """True for row-major memory without gaps; strides of axes of size 1 do not matter."""
    wanted = contiguous(m.shape)
    return all(n == 1 or a == b for n, a, b in zip(m.shape, m.strides, wanted, strict=True))


def launches(
    contract: Contract,
    codes: Iterable[TritonCode | CudaCode],
    types: Mapping[str, str],
    architecture: int,
    inputs: Sequence[Memory | None],
    outputs: Sequence[Memory | None],
    attributes: Mapping[str, Any],
    workspace: Memory | None = None,
) -> list[Launch]:
    """What a call starts, in order; what has nothing to do is left out.

    Args:
        contract: Of the operator.
        codes: What the kernel declares.
        types: ONNX type by type variable.
        architecture: 90 for sm_90.
        inputs: In order.
        outputs: In order.
        attributes: All of them, by name.
        workspace: Scratch memory.

    Raises:
        ContractError: the declaration's functions fail, or ask for a grid that no GPU has.
    """
    op = contract.semantic.qualified_name
    values = _values(contract, inputs, outputs, attributes, workspace)
    known = {n: v for n, v in values.items() if not isinstance(v, Memory) and v is not None}
    known |= {v: short_name(t) for v, t in types.items()}
    known["architecture"] = architecture
    found = []
    for code in codes:
        try:
            meta = dict(code.meta(known) if callable(code.meta) else code.meta)
            everything = {**known, **meta}
            grid = tuple(int(n) for n in code.grid(everything))
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise ContractError(
                f"grid or meta of the kernel's declaration fails: {type(error).__name__}: {error}",
                op=op,
                expected=f"functions of {', '.join(sorted(known))}",
            ) from error
        if not 1 <= len(grid) <= 3 or any(n < 0 or n > most for n, most in zip(grid, GRID_LIMITS, strict=False)):
            raise ContractError(
                "no GPU has such a grid",
                op=op,
                expected=f"one to three axes, each up to {', '.join(map(str, GRID_LIMITS))}",
                found=grid,
                remedy="Put the largest axis first, or let a program do more.",
            )
        x, y, z = (*grid, 1, 1)[:3]
        if x * y * z:
            found.append(Launch(code, values, meta, (x, y, z), everything))
    return found


def _values(
    contract: Contract,
    inputs: Sequence[Memory | None],
    outputs: Sequence[Memory | None],
    attributes: Mapping[str, Any],
    workspace: Memory | None,
) -> dict[str, Any]:
    """By the names that declarations use."""
    s = contract.semantic
    given = [*inputs, *([None] * (len(s.inputs) - len(inputs)))]
    wanted = [*outputs, *([None] * (len(s.outputs) - len(outputs)))]
    # nothing follows a kernel that runs by itself
    values: dict[str, Any] = {"epilogue": None, "extras": None, **attributes}
    values |= named_sizes(contract, inputs, attributes, outputs)
    values |= {n: v for n, v in attributes.items() if isinstance(v, bool)}
    values["lead"] = 1
    for p, m in reversed([*zip(s.inputs, given, strict=True), *zip(s.outputs, wanted, strict=True)]):
        values[p.name] = m
        rank = len(m.shape) if m is not None else len(p.sizes or ())
        for axis in range(rank):
            values[f"stride_{p.name}_{axis}"] = 0 if m is None else m.strides[axis]
            values[f"size_{p.name}_{axis}"] = 0 if m is None else m.shape[axis]
        if m is not None and p.sizes is not None and p.sizes[:1] == ("...",):
            values["lead"] = math.prod(m.shape[: len(m.shape) - len(p.sizes) + 1])
    # one of no bytes is none at all, but still a pointer
    values["workspace"] = workspace or Memory(0, (0,), (1,), "uint8")
    return values
