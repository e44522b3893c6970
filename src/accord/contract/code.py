"""What a kernel's ``code`` is where it is no Python function: which file, which function in it, how it is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["CudaCode", "Grid", "LibraryCode", "PackedCode", "ScoreFunction", "TritonCode"]

#: What is known of a call by name → something of a launch: sizes, attributes, ``lead`` (the number of elements of the
#: axes that "..." stands for), type variables ("float16"), and ``architecture`` (90 for sm_90).
Grid: TypeAlias = "Callable[[Mapping[str, Any]], tuple[int, ...]]"
#: Compile-time parameters; they may depend on what is known of a call.
Meta: TypeAlias = "Callable[[Mapping[str, Any]], Mapping[str, Any]] | Mapping[str, Any]"


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

    A parameter called as an input or output is its pointer (None where it is absent), as a size, an attribute or
    ``lead`` its value, ``stride_x_0`` the stride of axis 0 of x in elements, ``size_x_0`` the size of that axis,
    ``workspace`` a pointer to the bytes of scratch memory; others come from ``meta``. Parameters annotated with
    ``tl.constexpr`` are compiled in, others are given at run time.

    Where the clause "epilogue" is set, the compile-time parameter ``epilogue`` is None, or a function for what follows
    on output 0: ``value = epilogue(value, place, mask, extras)`` just before a block is stored, of which ``place`` are
    the places in the row-major output and ``extras`` is the parameter of that name. Where a kernel is several launches,
    those that store the result have these parameters.

    Attributes:
        kernel: What ``triton.jit`` made, or where it is: "module:name". The latter needs no Triton before the kernel
            is compiled or run.
        grid: Programs by what is known of the call and ``meta``; an axis of 0 starts nothing.
        meta: Further parameters; ``num_warps``, ``num_stages``, ``num_ctas`` and ``maxnreg`` are Triton's own.
        warps: Warps of a program, where ``meta`` does not say.
        stages: Of software pipelines, where ``meta`` does not say.
        samples: Sizes and attributes that it is compiled for when nothing is called: the largest that matter.
            Empty: sizes are chosen that the contract's conditions allow.
    """

    kernel: Any
    grid: Grid
    meta: Meta = field(default_factory=dict)
    warps: int = 4
    stages: int = 3
    samples: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class CudaCode:
    """CUDA C++, compiled when the types are known.

    Before the text stand a ``typedef`` for each type variable (``T`` is then ``float``, ``__half``,
    ``__nv_bfloat16`` ...) and a macro for each entry of ``meta``. Lines in messages are those of the text.

    Attributes:
        source: Its text, or the path of a file that has it.
        entry: Name of an ``extern "C" __global__`` function.
        parameters: What it is given in order, by the names that :class:`TritonCode` knows: pointers, sizes and
            strides as ``long long``, integer attributes too, float attributes as ``float``.
        grid: Blocks by what is known of the call and ``meta``; an axis of 0 starts nothing.
        block: Threads of a block, likewise.
        shared: Bytes of dynamic shared memory, likewise.
        meta: Compile-time constants.
        options: Of the compiler, such as "--use_fast_math".
        samples: As for :class:`TritonCode`.
    """

    source: str | Path
    entry: str
    parameters: tuple[str, ...]
    grid: Grid
    block: Grid
    shared: Callable[[Mapping[str, Any]], int] | int = 0
    meta: Meta = field(default_factory=dict)
    options: tuple[str, ...] = ()
    samples: tuple[Mapping[str, Any], ...] = ()
