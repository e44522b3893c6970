"""Triton kernels: compiled for any architecture without a GPU, run in Triton's interpreter or on the GPU.

Triton itself is an optional package and PyTorch is not needed. Pointers and integers are specialised as Triton's own
launcher does: divisible by 16, equal to 1, absent.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from accord.errors import BackendError, CompileError, ContractError
from accord.kernels.cubin import Resources, read_resources
from accord.kernels.device import DeviceKernel, launch
from accord.kernels.launch import Launch, Memory, memory_of
from accord.record import record

if TYPE_CHECKING:
    import numpy as np

    from accord.contract.code import TritonCode
    from accord.contract.contract import KernelDeclaration

__all__ = [
    "ELEMENTS",
    "OPTIONS",
    "CompiledTriton",
    "TritonKernel",
    "compile_function",
    "compile_launch",
    "interpreting",
    "kernel_arguments",
    "parameters_of",
    "pointers_added",
    "specialised",
    "varied",
]

#: What Triton calls the elements of memory.
ELEMENTS = {
    "float32": "fp32",
    "float64": "fp64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "bool": "i1",
    **{f"int{n}": f"i{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"u{n}" for n in (8, 16, 32, 64)},
}
#: What ``meta`` may say to the compiler.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_ALIGNED = ("tt.divisibility", 16)


@record
class CompiledTriton:
    """A kernel for one architecture and one set of specialised arguments.

    Attributes:
        cubin: Machine code.
        name: Of the kernel in it.
        threads: Of a block.
        shared: Bytes of dynamic shared memory.
        cluster: Blocks of a cluster.
        resources: What it takes.
        passed: Names of the parameters that are given at run time.
        kinds: Their kinds, see :func:`accord.kernels.device.launch`.
        scratch: Pointers that Triton adds at the end.
        scratch_bytes: What a program needs where the first of them points.
    """

    cubin: bytes
    name: str
    threads: int
    shared: int
    cluster: int
    resources: Resources
    passed: tuple[str, ...]
    kinds: tuple[str, ...]
    scratch: int
    scratch_bytes: int


@functools.cache
def _package() -> Any:
    # newer versions warn where it is not said
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    try:
        return importlib.import_module("triton")
    except ImportError as error:
        raise BackendError("kernels of kind 'triton' need the package triton", remedy="pip install triton") from error


def interpreting() -> bool:
    """True if this process was started with ``TRITON_INTERPRET=1``: Triton then compiles nothing and runs on the CPU.

    The switch is read when kernels are defined, so a process is either for the one or for the other.
    """
    return bool(_package().knobs.runtime.interpret)


def function_of(code: TritonCode, op: str) -> Any:
    """What ``triton.jit`` made.

    Raises:
        ContractError: it cannot be imported, or is something else.
    """
    _package()
    kernel = code.kernel
    if isinstance(kernel, str):
        module, _, name = kernel.partition(":")
        try:
            kernel = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ContractError(f"the kernel {code.kernel} cannot be imported: {error}", op=op) from error
    if not hasattr(kernel, "fn") or not hasattr(kernel, "arg_names" if not interpreting() else "rewriter"):
        raise ContractError(
            "the code of a Triton kernel is a function decorated with triton.jit",
            op=op,
            found=f"{type(kernel).__module__}.{type(kernel).__qualname__}",
            remedy="Autotuners and heuristics have no place here: let `meta` choose.",
        )
    return kernel


def kernel_arguments(names: Iterable[str], call: Launch, op: str) -> dict[str, Any]:
    """The value of each parameter.

    Raises:
        ContractError: a parameter has a name that means nothing here.
    """
    found: dict[str, Any] = {}
    for name in names:
        if name in call.meta:
            found[name] = call.meta[name]
        elif name in call.values:
            found[name] = call.values[name]
        else:
            known = ", ".join(sorted({*call.values, *call.meta}))
            raise ContractError(
                f"the kernel's parameter '{name}' has no value", op=op, expected=f"one of {known}; or add it to meta"
            )
    return found


def _parts(code: TritonCode, call: Launch, op: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The function, its arguments, and the compiler's options."""
    function = function_of(code, op)
    meta = dict(call.meta)
    options = {"num_warps": code.warps, "num_stages": code.stages}
    options |= {n: meta.pop(n) for n in OPTIONS if n in meta}
    names = function.arg_names
    unused = sorted(set(meta) - set(names))
    if unused:
        raise ContractError(f"meta names what is no parameter of the kernel: {', '.join(unused)}", op=op)
    return function, kernel_arguments(names, call, op), options


_LOCK = threading.Lock()
_COMPILED: dict[Any, CompiledTriton] = {}
#: Kernels kept in memory; Triton keeps them on disk too.
_MOST = 4096


def compile_launch(code: TritonCode, call: Launch, target: int, op: str) -> CompiledTriton:
    """Compile what a launch needs for an architecture; no GPU is needed.

    Args:
        code: The kernel.
        call: What it is started with.
        target: Architecture, 90 for sm_90.
        op: Name of the operator, for errors.

    Raises:
        BackendError: Triton is not installed.
        ContractError: the declaration does not fit the kernel.
        CompileError: the kernel does not compile.
    """
    function, arguments, options = _parts(code, call, op)
    if interpreting():
        raise BackendError(
            "this process interprets Triton kernels", remedy="Compile where TRITON_INTERPRET is not set."
        )
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    kinds: list[str] = []
    for i, p in enumerate(function.params):
        kind, text, constant, aligned = specialised(p, arguments[p.name], op)
        signature[p.name] = text
        if text == "constexpr":
            constants[(i,)] = constant
            continue
        kinds.append(kind)
        if aligned:
            attributes[(i,)] = [list(_ALIGNED)]
    passed = tuple(n for n, t in signature.items() if t != "constexpr")
    key = (
        function,
        tuple(signature.values()),
        tuple((i, type(v), v) for (i,), v in constants.items()),
        tuple(attributes),
        target,
        tuple(options.items()),
    )
    with _LOCK:
        if key in _COMPILED:
            return _COMPILED[key]
        compiled = compile_function(function, signature, constants, attributes, target, options, op)
        made = CompiledTriton(
            compiled.asm["cubin"],
            compiled.metadata.name,
            compiled.metadata.num_warps * 32,
            compiled.metadata.shared,
            compiled.metadata.num_ctas,
            _resources(compiled),
            passed,
            tuple(kinds),
            pointers_added(compiled, len(passed)),
            compiled.metadata.global_scratch_size,
        )
        if len(_COMPILED) >= _MOST:
            _COMPILED.pop(next(iter(_COMPILED)))
        _COMPILED[key] = made
        return made


@record
class _Plain:
    """A parameter of a kernel that is interpreted."""

    name: str
    is_constexpr: bool


def parameters_of(function: Any) -> Sequence[Any]:
    """The parameters of what ``triton.jit`` made: ``name``, ``is_constexpr`` and what is not to be specialised."""
    if not interpreting():
        found: Sequence[Any] = function.params
        return found
    signature = inspect.signature(function.fn).parameters.values()
    return [_Plain(p.name, "constexpr" in str(p.annotation)) for p in signature]


def specialised(p: Any, value: Any, op: str) -> tuple[str, str, Any, bool]:
    """Kind of an argument, its type for Triton, its value if it is compiled in, and whether 16 divides it.

    Args:
        p: One of :func:`parameters_of`.
        value: What it is given.
        op: Name of the operator, for errors.

    Raises:
        ContractError: it cannot be given to a kernel.
    """
    free = not getattr(p, "do_not_specialize", False)
    alignable = free and not getattr(p, "do_not_specialize_on_alignment", False)
    if p.is_constexpr or value is None:
        if isinstance(value, Memory):
            raise ContractError(f"the kernel's parameter '{p.name}' is a tensor and cannot be tl.constexpr", op=op)
        return "", "constexpr", value, False
    if isinstance(value, Memory):
        if value.dtype not in ELEMENTS:
            raise ContractError(f"Triton has no pointer to {value.dtype}", op=op, value=p.name)
        return "p", f"*{ELEMENTS[value.dtype]}", None, alignable and value.address % 16 == 0
    if isinstance(value, bool):
        return "b", "u1", None, False
    if isinstance(value, int):
        if value == 1 and free:
            return "", "constexpr", 1, False
        wide = not -(2**31) <= value < 2**31
        return ("l", "i64", None, alignable and value % 16 == 0) if wide else (
            "i", "i32", None, alignable and value % 16 == 0)  # fmt: skip
    if isinstance(value, float):
        return "f", "fp32", None, False
    raise ContractError(
        f"the kernel's parameter '{p.name}' cannot be given at run time",
        op=op,
        found=repr(value),
        remedy="Annotate it with tl.constexpr.",
    )


def compile_function(
    function: Any,
    signature: Mapping[str, str],
    constants: Mapping[tuple[int, ...], Any],
    attributes: Mapping[tuple[int, ...], Any],
    target: int,
    options: Mapping[str, Any],
    op: str,
) -> Any:
    """What Triton compiles of a function.

    Args:
        function: What ``triton.jit`` made.
        signature: By parameter its type for Triton, or "constexpr".
        constants: By place of the parameter.
        attributes: By place of the parameter, such as that 16 divides it.
        target: Architecture, 90 for sm_90.
        options: Of the compiler.
        op: Name of the operator, for errors.

    Raises:
        CompileError: it does not compile.
    """
    triton = _package()
    compiler = importlib.import_module("triton.compiler")
    targets = importlib.import_module("triton.backends.compiler")
    kind = compiler.ASTSource
    if function.is_gluon():
        kind = importlib.import_module("triton.experimental.gluon._runtime").GluonASTSource
    source = kind(function, dict(signature), dict(constants), dict(attributes))
    try:
        return triton.compile(source, target=targets.GPUTarget("cuda", target, 32), options=dict(options))
    except Exception as error:  # each stage of the compiler has an exception of its own
        raise CompileError(
            f"the Triton kernel '{function.fn.__name__}' does not compile for sm_{target}: {_reason(error)}",
            op=op,
            found=_place(function, error),
        ) from error


def _reason(error: BaseException) -> str:
    """What the compiler says, without the code that it repeats."""
    text = str(getattr(error, "error_message", None) or error)
    assembler = re.search(r"`ptxas` stderr:\n(.*?)\n\n", text, re.DOTALL)
    if assembler:
        return assembler[1].strip()
    inner = error.__cause__
    return text.strip() if inner is None or getattr(error, "error_message", None) else f"{text.strip()}: {inner}"


def _place(function: Any, error: BaseException) -> str | None:
    """File and line of the author's text that an error is about."""
    node = getattr(error, "node", None)
    line = getattr(node, "lineno", None)
    if line is None:
        return None
    code = function.fn.__code__
    start = getattr(function, "starting_line_number", code.co_firstlineno)
    skipped = next((i for i, text in enumerate(function.raw_src) if text.strip().startswith("def ")), 0)
    return f"{code.co_filename}:{start + skipped + line - 1}"


def _resources(compiled: Any) -> Resources:
    found = read_resources(compiled.asm["cubin"])[compiled.metadata.name]
    # the language has no arrays in local memory, so all of the stack is registers that were spilled
    return Resources(found.registers, found.stack, found.shared, found.stack)


def pointers_added(compiled: Any, passed: int) -> int:
    """Parameters of the machine code beyond those of the kernel: scratch memory of Triton's own."""
    entry = compiled.asm["ptx"].partition(".visible .entry")[2].partition(")")[0]
    return int(entry.count(".param")) - passed


def varied(declared: KernelDeclaration, name: str, changes: Mapping[str, Any]) -> KernelDeclaration:
    """A Triton kernel started in another way, to measure one against the other.

    Args:
        declared: The kernel.
        name: Of what is made of it.
        changes: Compile-time parameters of the launches that have them, options of the compiler, and what ``grid`` and
            ``meta`` are told; "function.NAME" for the launches of one function.
    """

    def code(c: TritonCode) -> TritonCode:
        own = str(c.kernel).partition(":")[2]
        given = {n.removeprefix(f"{own}."): v for n, v in changes.items() if n.partition(".")[0] in (n, own)}

        def meta(k: Mapping[str, Any]) -> dict[str, Any]:
            found = dict(c.meta({**k, **given}) if callable(c.meta) else c.meta)
            return found | {n: v for n, v in given.items() if n in found or n in OPTIONS}

        return replace(c, meta=meta, grid=lambda k: c.grid({**k, **given}))

    return replace(declared, name=name, code=tuple(map(code, declared.code)))


class TritonKernel(DeviceKernel):
    """Kernels in Triton."""

    def begin(self, call: Launch, target: int, stream: Any) -> None:
        """See :class:`~accord.kernels.device.DeviceKernel`."""
        op = self.contract.semantic.qualified_name
        compiled = compile_launch(call.code, call, target, op)  # type: ignore[arg-type]
        values = kernel_arguments(compiled.passed, call, op)
        arguments = [
            (kind, v.address if isinstance(v, Memory) else v)
            for kind, v in zip(compiled.kinds, values.values(), strict=True)
        ]
        arguments += [("p", 0)] * compiled.scratch
        block = (compiled.threads, 1, 1)
        launch(compiled.cubin, compiled.name, stream, call.grid, block, compiled.shared, arguments, compiled.cluster)

    def on_gpu(self) -> bool:
        """See :class:`~accord.kernels.device.DeviceKernel`; a process that is for interpreting does not."""
        return not interpreting() and super().on_gpu()

    def emulate(
        self,
        inputs: Sequence[np.ndarray[Any, Any] | None],
        outputs: Sequence[np.ndarray[Any, Any] | None],
        attributes: Mapping[str, Any],
        workspace: np.ndarray[Any, Any] | None,
    ) -> None:
        """In Triton's interpreter: in this process if it is for that, else in one of its own."""
        from accord.kernels import interpreter

        memories = [memory_of(a) for a in (*inputs, *outputs)]
        count = len(inputs)
        op = self.contract.semantic.qualified_name
        calls = self.launches(
            interpreter.ARCHITECTURE, memories[:count], memories[count:], attributes, memory_of(workspace)
        )
        prepared = [(f, a, call.grid) for call in calls for f, a, _ in [_parts(call.code, call, op)]]  # type: ignore[arg-type]
        if interpreting():
            for function, arguments, grid in prepared:
                interpreter.interpret(function, arguments, grid, op)
        else:
            interpreter.interpret_elsewhere(prepared, [*inputs, *outputs, workspace], op)
