"""CUDA C++: compiled through NVRTC for any architecture without a GPU, started on one."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import io
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accord.contract.dtypes import short_name
from accord.errors import BackendError, CompileError, ContractError
from accord.kernels.cubin import Resources, read_resources
from accord.kernels.device import DeviceKernel, core, launch
from accord.kernels.launch import Launch, Memory
from accord.kernels.triton import kernel_arguments
from accord.record import record

if TYPE_CHECKING:
    from accord.contract.code import CudaCode

__all__ = [
    "CompiledCuda",
    "CudaKernel",
    "argument_of",
    "block_of",
    "compile_cuda",
    "compiler_version",
    "shared_of",
    "source_of",
]

#: C++ types of elements, and the header that has them.
_TYPES = {
    "float32": ("float", ""),
    "float64": ("double", ""),
    "float16": ("__half", "cuda_fp16.h"),
    "bfloat16": ("__nv_bfloat16", "cuda_bf16.h"),
    "float8_e4m3fn": ("__nv_fp8_e4m3", "cuda_fp8.h"),
    "float8_e5m2": ("__nv_fp8_e5m2", "cuda_fp8.h"),
    "bool": ("bool", ""),
    "int8": ("signed char", ""),
    "int16": ("short", ""),
    "int32": ("int", ""),
    "int64": ("long long", ""),
    "uint8": ("unsigned char", ""),
    "uint16": ("unsigned short", ""),
    "uint32": ("unsigned int", ""),
    "uint64": ("unsigned long long", ""),
}


@record
class CompiledCuda:
    """A kernel for one architecture, types and constants.

    Attributes:
        cubin: Machine code.
        resources: What it takes.
    """

    cubin: bytes
    resources: Resources


_LOCK = threading.Lock()
_COMPILED: dict[Any, CompiledCuda] = {}
_MOST = 1024


def compile_cuda(
    code: CudaCode, types: Mapping[str, str], meta: Mapping[str, Any], target: int, op: str
) -> CompiledCuda:
    """Compile for an architecture; no GPU is needed.

    Args:
        code: The kernel.
        types: ONNX type by type variable.
        meta: Compile-time constants.
        target: Architecture, 90 for sm_90.
        op: Name of the operator, for errors.

    Raises:
        BackendError: the compiler is not installed.
        ContractError: a type has no counterpart in CUDA C++.
        CompileError: it does not compile; the message has the author's line numbers.
    """
    text = _text(code, types, meta, op)
    key = (text, code.entry, code.options, target)
    with _LOCK:
        if key not in _COMPILED:
            if len(_COMPILED) >= _MOST:
                _COMPILED.pop(next(iter(_COMPILED)))
            _COMPILED[key] = _compiled(text, code, target, op)
        return _COMPILED[key]


def _text(code: CudaCode, types: Mapping[str, str], meta: Mapping[str, Any], op: str) -> str:
    """The author's text after what declares its types and constants."""
    headers: dict[str, None] = {}
    lines: list[str] = []
    for variable, onnx_type in types.items():
        name = short_name(onnx_type)
        if name not in _TYPES:
            raise ContractError(f"CUDA C++ has no type for {name}", op=op)
        spelt, header = _TYPES[name]
        headers |= {header: None} if header else {}
        lines.append(f"typedef {spelt} {variable};")
    for name, value in meta.items():
        lines.append(f"#define {name} {_literal(value)}")
    includes = [f"#include <{h}>" for h in headers]
    name, source = source_of(code, op)
    return "\n".join([*includes, *lines, f'#line 1 "{name}"', source])


def source_of(code: CudaCode, op: str) -> tuple[str, str]:
    """The name of the author's file and its text.

    Raises:
        ContractError: it cannot be read.
    """
    if not isinstance(code.source, Path):
        return f"{code.entry}.cu", code.source
    try:
        return code.source.name, code.source.read_text()
    except OSError as error:
        raise ContractError(f"the text of kernel '{code.entry}' cannot be read: {error}", op=op) from error


@functools.cache
def compiler_version() -> str:
    """Of what compiles CUDA C++; what is no Python package has the version of ``cuda-core``."""
    found = []
    for package in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cuda-core"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(importlib.metadata.version(package))
    return ",".join(found)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return f"{value!r}f"
    return str(value)


def _compiled(text: str, code: CudaCode, target: int, op: str) -> CompiledCuda:
    cuda = core()
    log = io.StringIO()
    options = cuda.ProgramOptions(
        arch=f"sm_{target}",
        name=f"{code.entry}.cu",
        std="c++17",
        include_path=_headers(),
        ptxas_options=["-v"],
        **_options(code.options, op),
    )
    try:
        built = cuda.Program(text, "c++", options).compile("cubin", logs=log)
    except Exception as error:  # cuda.core has an exception for each library
        message = str(error)
        if "COMPILATION" not in message:
            raise BackendError(
                f"CUDA C++ cannot be compiled for sm_{target} here: {message}",
                op=op,
                remedy="pip install 'accord[cuda]', which brings NVRTC.",
            ) from error
        said = message.partition("compilation log:")[2].strip() or message
        raise CompileError(
            f"the CUDA kernel '{code.entry}' does not compile for sm_{target}:\n{said}", op=op
        ) from error
    cubin = bytes(built.code)
    found = read_resources(cubin).get(code.entry)
    if found is None:
        raise ContractError(
            f"the text has no kernel '{code.entry}'",
            op=op,
            expected=f'extern "C" __global__ void {code.entry}(...)',
        )
    return CompiledCuda(cubin, Resources(found.registers, found.stack, found.shared, _spills(log.getvalue(), code)))


def _spills(log: str, code: CudaCode) -> int | None:
    """Bytes that the assembler says are spilled; None where it says nothing."""
    about = re.search(rf"Function properties for {re.escape(code.entry)}\n.*?(\d+) bytes spill stores", log)
    return int(about[1]) if about else None


def _options(given: Sequence[str], op: str) -> dict[str, Any]:
    """Flags of the command line as what ``cuda.core`` takes."""
    found: dict[str, Any] = {}
    for flag in given:
        name, _, value = flag.lstrip("-").partition("=")
        known = {"use_fast_math": True, "maxrregcount": value, "ftz": value != "false", "restrict": True}
        if name not in known:
            raise ContractError(f"unknown option {flag}", op=op, expected=", ".join(f"--{n}" for n in known))
        found["max_register_count" if name == "maxrregcount" else name] = int(value) if value.isdigit() else known[name]
    return found


def _headers() -> list[str]:
    """Where ``cuda_fp16.h`` and its like are; empty where none are found."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return []
    found = pathfinder.find_nvidia_header_directory("cudart")
    return [str(found)] if found else []


def block_of(code: CudaCode, call: Launch, op: str) -> tuple[int, int, int]:
    """Threads of a block.

    Raises:
        ContractError: no GPU has such a block.
    """
    x, y, z = (*(int(n) for n in code.block(call.known)), 1, 1)[:3]
    if not (1 <= x <= 1024 and 1 <= y <= 1024 and 1 <= z <= 64 and x * y * z <= 1024):
        raise ContractError("no GPU has such a block", op=op, expected="1 to 1024 threads", found=(x, y, z))
    return x, y, z


def shared_of(code: CudaCode, call: Launch) -> int:
    """Bytes of dynamic shared memory."""
    return int(code.shared(call.known) if callable(code.shared) else code.shared)


class CudaKernel(DeviceKernel):
    """Kernels in CUDA C++."""

    def begin(self, call: Launch, target: int, stream: Any) -> None:
        """See :class:`~accord.kernels.device.DeviceKernel`."""
        op = self.contract.semantic.qualified_name
        code: Any = call.code
        compiled = compile_cuda(code, self.types, call.meta, target, op)
        values = kernel_arguments(code.parameters, call, op)
        arguments = [argument_of(n, v, op) for n, v in values.items()]
        block = block_of(code, call, op)
        launch(compiled.cubin, code.entry, stream, call.grid, block, shared_of(code, call), arguments)


def argument_of(name: str, value: Any, op: str) -> tuple[str, Any]:
    """Kind and value of an argument, as :func:`accord.kernels.device.launch` takes them.

    Raises:
        ContractError: it cannot be given to a kernel.
    """
    if value is None:
        return "p", 0
    if isinstance(value, Memory):
        return "p", value.address
    if isinstance(value, (bool, int)):
        return "l", int(value)
    if isinstance(value, float):
        return "f", value
    raise ContractError(f"parameter '{name}' cannot be given to a kernel", op=op, found=repr(value))
