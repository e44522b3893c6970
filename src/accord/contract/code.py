"""What a kernel's ``code`` is where it is no Python function: which file, which function in it, how it is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["CudaCode", "Grid", "LibraryCode", "PackedCode", "ScoreFunction", "TritonCode"]

#: Sizes by name and attributes → something of a launch.
Grid: TypeAlias = "Callable[[Mapping[str, Any]], tuple[int, ...]]"


@dataclass(frozen=True, slots=True)
class LibraryCode:
    """A C function in a shared library; its parameters follow from the contract (:mod:`accord.kernels.signature`).

    Attributes:
        path: Of the library.
        symbol: Name of the function; "{T}" in it stands for the NumPy name of what type variable T is.
    """

    path: str
    symbol: str


@dataclass(frozen=True, slots=True)
class PackedCode:
    """A tvm-ffi function: inputs, outputs, then attributes in the order of the declaration.

    Attributes:
        module: Path of the library.
        function: Its name.
    """

    module: str
    function: str


@dataclass(frozen=True, slots=True)
class ScoreFunction:
    """Attention on queries [B, H, Q, D], keys [B, G, K, D] and values [B, G, K, E] with a function of scores.

    Attributes:
        score: ``score(s, i, j, h, heads, **attributes)`` → an expression: what becomes of score ``s``, given the places
            of query and key, the number of the head and how many there are, all of them floats.
        causal: Queries see no keys behind their own place.
        window: Name of an integer attribute: keys further away than that are not seen; "" for none.
    """

    score: Callable[..., Any]
    causal: bool = False
    window: str = ""


@dataclass(frozen=True, slots=True)
class TritonCode:
    """A Triton kernel. Its parameters are found by name.

    A parameter called as an input or output is its pointer, as a size or an attribute its value, ``stride_x_0`` the
    stride of axis 0 of x in elements, ``workspace`` the scratch memory; others come from ``meta``.

    Attributes:
        kernel: What ``triton.jit`` made.
        grid: Programs by sizes, attributes and ``meta``.
        meta: Compile-time parameters by sizes and attributes.
        warps: Warps of a program.
        stages: Of software pipelines.
    """

    kernel: Any
    grid: Grid
    meta: Callable[[Mapping[str, Any]], Mapping[str, Any]] | Mapping[str, Any] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True, slots=True)
class CudaCode:
    """CUDA C++.

    Attributes:
        source: Its text.
        entry: Name of an ``extern "C" __global__`` function.
        parameters: What it is given in order, by the names that :class:`TritonCode` knows: pointers, sizes and
            strides as ``long long``, integer attributes too, float attributes as ``float``.
        grid: Blocks by sizes and attributes.
        block: Threads of a block by sizes and attributes.
        shared: Bytes of dynamic shared memory by sizes and attributes.
        options: Of the compiler.
    """

    source: str
    entry: str
    parameters: tuple[str, ...]
    grid: Grid
    block: Grid
    shared: Callable[[Mapping[str, Any]], int] | int = 0
    options: tuple[str, ...] = ()
