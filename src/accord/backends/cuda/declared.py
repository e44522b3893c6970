"""Users' kernels in Triton and CUDA C++ as phases of a plan.

A kernel is started as its declaration says (:mod:`accord.kernels.launch`): grid and compile-time constants follow from
sizes, attributes and types. What does not depend on sizes, and the author's text, is a :class:`DeclaredCode`; machine
code is kept in the same cache as that of generated kernels.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from accord.backends.cuda.code import Binary, CudaLaunch, KernelText, Variant, binary_from, function_of
from accord.backends.cuda.finish import FinishText, finish_of
from accord.backends.declared import CallTensor, call_sizes, call_tensors, is_wanted, memory_of, workspace_of
from accord.backends.epilogue import Epilogue
from accord.backends.protocol import NativeKernel, Phase
from accord.backends.root import RootView
from accord.backends.view import NodeView
from accord.contract.choose import Choice, call_attributes
from accord.contract.code import CudaCode, TritonCode
from accord.contract.contract import Contract, KernelDeclaration
from accord.contract.registry import user_contract
from accord.errors import ContractError
from accord.expr.onnx_ops import dtype_name
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import Reason
from accord.ir.strides import Access
from accord.kernels.cuda import argument_of, block_of, compile_cuda, compiler_version, shared_of, source_of
from accord.kernels.launch import Launch as Started
from accord.kernels.launch import Memory, launches
from accord.kernels.triton import (
    ELEMENTS,
    OPTIONS,
    compile_function,
    kernel_arguments,
    parameters_of,
    specialised,
)
from accord.kernels.triton import function_of as declared_function
from accord.record import record

__all__ = ["DeclaredCode", "device_kernel"]

#: Where parts of the workspace begin.
_LINE: Final = 256
#: What a plan's memory is aligned to.
_ALIGNED: Final = 64


class DeclaredCode(KernelText):
    """One launch of a user's kernel: the author's text, for the types of a node.

    Attributes:
        contract: Of the operator.
        kernel: The declaration.
        number: Which of its launches.
        types: ONNX type by type variable.
        elements: By parameter that is a tensor, NumPy's name of its elements.
        finish: What the kernel does with its result; None for nothing.
        architecture: What the launches are for.
    """

    def __init__(
        self,
        contract: Contract,
        kernel: KernelDeclaration,
        number: int,
        types: tuple[tuple[str, str], ...],
        elements: tuple[tuple[str, str], ...],
        finish: FinishText | None,
        architecture: int,
    ) -> None:
        self.contract = contract
        self.kernel = kernel
        self.number = number
        self.types = types
        self.elements = elements
        self.finish = finish
        self.architecture = architecture
        self._identity = (id(kernel), number, types, elements, finish, architecture)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeclaredCode) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        s = self.contract.semantic
        place = (s.domain, s.name, s.since_version, self.kernel.name)
        return _found, (*place, self.number, self.types, self.elements, self.finish, self.architecture)

    @property
    def op(self) -> str:
        """The operator, for people."""
        return self.contract.semantic.qualified_name

    @property
    def code(self) -> TritonCode | CudaCode:
        """What the author declared."""
        found: TritonCode | CudaCode = self.kernel.code[self.number]
        return found

    @property
    def foreign(self) -> bool:
        """See :class:`~accord.backends.cuda.code.KernelText`."""
        return True

    @property
    def capturable(self) -> bool:
        """As the contract says."""
        return (self.kernel.scheduling or self.contract.scheduling).capture_safe

    @property
    def symbol(self) -> str:
        """The kernel's name in its text."""
        code = self.code
        if isinstance(code, CudaCode):
            return code.entry
        name: str = self.function.fn.__name__
        return name

    @property
    def pointers(self) -> tuple[str, ...]:
        """Parameters are found by name, not by place."""
        return ()

    @property
    def function(self) -> Any:
        """What ``triton.jit`` made of a Triton kernel."""
        code = self.code
        assert isinstance(code, TritonCode)
        return declared_function(code, self.op)

    def text(self) -> str:
        """The author's text, or what Triton calls it by."""
        code = self.code
        if isinstance(code, CudaCode):
            return source_of(code, self.op)[1]
        key: str = self.function.cache_key
        return key

    def content(self, variant: Variant) -> tuple[object, ...]:
        """See :class:`~accord.backends.cuda.code.KernelText`."""
        code = self.code
        constants = [(n, type(v).__name__, getattr(v, "cache_key", v)) for n, v in _values(variant).items()]
        own = (self.kernel.kind, self.text(), self.types, self.elements, constants)
        if isinstance(code, CudaCode):
            return (*own, code.entry, code.options, compiler_version())
        finish = None if self.finish is None else self.finish.text()
        return (*own, finish, variant.hints, variant.aligned, variant.warps, variant.stages)

    def compile(self, variant: Variant, target: int) -> Binary:
        """See :class:`~accord.backends.cuda.code.KernelText`."""
        code = self.code
        constants = _values(variant)
        if isinstance(code, CudaCode):
            made = compile_cuda(code, dict(self.types), constants, target, self.op)
            return Binary(made.cubin, code.entry, 0, 0, 0, 0, made.resources.registers, made.resources.stack)
        options = {"num_warps": variant.warps, "num_stages": variant.stages}
        options |= {n: constants[n] for n in OPTIONS if n in constants}
        function, finish = self.function, self.finish
        pointers = {n: f"*{ELEMENTS[e]}" for n, e in self.elements}
        numbers = iter(variant.hints)
        signature: dict[str, Any] = {}
        values: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}
        passed = 0

        def given(place: tuple[int, ...], pointer: str | None) -> str:
            """The type of a parameter that is given at run time."""
            nonlocal passed
            passed += 1
            kind, _, divisor = next(numbers).partition(":") if pointer is None else (pointer, "", "")
            if divisor or (pointer is not None and variant.aligned):
                attributes[place] = [["tt.divisibility", 16]]
            return kind

        for i, name in enumerate(function.arg_names):
            if finish is not None and name == "epilogue":
                signature[name], values[(i,)] = "constexpr", function_of(finish)
            elif finish is not None and name == "extras" and finish.elements:
                parts = [*(f"*{ELEMENTS[e]}" for e in finish.elements), *[None] * finish.numbers]
                signature[name] = tuple(given((i, j), p) for j, p in enumerate(parts))
            elif name in constants:
                signature[name], values[(i,)] = "constexpr", constants[name]
            else:
                signature[name] = given((i,), pointers.get(name))
        return binary_from(compile_function(function, signature, values, attributes, target, options, self.op), passed)


def _found(domain: str, name: str, version: int, kernel: str, number: int, *rest: Any) -> DeclaredCode:
    """The code of a stored plan; what it declares is looked up."""
    contract = user_contract(domain, name, version)
    if contract is None:
        raise ContractError("the operator is not declared", op=f"{domain}::{name}")
    types, elements, finish, architecture = rest
    return DeclaredCode(contract, contract.kernel(kernel), number, types, elements, finish, architecture)


@record
class _Given:
    """A tensor of a call.

    Attributes:
        output: It is one.
        rank: Its axes; -1 where it is absent.
        dtype: NumPy's name of its elements.
        itemsize: Bytes of an element.
        number: Among the phase's operands.
    """

    output: bool
    rank: int
    dtype: str
    itemsize: int
    number: int


class _Arguments:
    """The arguments of a launch in the order of the kernel's parameters."""

    def __init__(self) -> None:
        self._given: list[tuple[str, Any]] = []

    def operand(self, number: int) -> None:
        """The address of an operand of the phase."""
        self._given.append(("", number))

    def number(self, hint: str, value: float) -> None:
        """A number: its type for Triton, and ":16" behind it where 16 divides it."""
        bits = struct.unpack("<i", struct.pack("<f", value))[0] if hint == "fp32" else int(value)
        self._given.append((hint, bits))

    def launch(self, pointers: int, **facts: Any) -> CudaLaunch:
        """The launch of a phase with so many operands."""
        numbers = [(hint, value) for hint, value in self._given if hint]
        places = iter(range(pointers, pointers + len(numbers)))
        return CudaLaunch(
            params=tuple(value for _, value in numbers),
            tasks=math.prod(facts["grid"]),
            hints=tuple(hint for hint, _ in numbers),
            order=tuple(next(places) if hint else value for hint, value in self._given),
            **facts,
        )


@record
class _Call:
    """What a phase's launch is made from.

    Attributes:
        code: The kernel.
        tensors: Inputs and outputs in order.
        attributes: All of them, by name.
        extras: Operands of what follows, as numbers among the phase's operands.
        workspace: The same for the workspace, -1 for none.
        operands: Number of the phase's operands.
    """

    code: DeclaredCode
    tensors: tuple[_Given, ...]
    attributes: Mapping[str, Any]
    extras: tuple[int, ...]
    workspace: int
    operands: int

    def launch(self, sizes: Sequence[int]) -> CudaLaunch:
        """For each tensor its shape, strides and offset; the workspace's bytes; numbers for what follows."""
        rest = iter(sizes)
        shifts = [0] * self.operands
        memories: dict[bool, list[Memory | None]] = {False: [], True: []}
        for t in self.tensors:
            if t.rank < 0:
                memories[t.output].append(None)
                continue
            shape, strides = (tuple(itertools.islice(rest, t.rank)) for _ in range(2))
            shifts[t.number] = next(rest) * t.itemsize
            memories[t.output].append(Memory(_fake(t.number), shape, strides, t.dtype))
        scratch = None
        if self.workspace >= 0:
            scratch = Memory(_fake(self.workspace), (next(rest),), (1,), "uint8")
        code, own = self.code, self.code.code
        calls = launches(
            code.contract,
            [own],
            dict(code.types),
            code.architecture,
            memories[False],
            memories[True],
            self.attributes,
            scratch,
        )
        if not calls:
            return CudaLaunch((), 0)
        made = self._of_cuda(own, calls[0]) if isinstance(own, CudaCode) else self._of_triton(own, calls[0], list(rest))
        return replace(made, shifts=tuple(shifts) if any(shifts) else ())

    def _of_triton(self, own: TritonCode, call: Started, words: Sequence[int]) -> CudaLaunch:
        code, function = self.code, self.code.function
        constants = {n: v for n, v in call.meta.items() if n in OPTIONS}
        unused = sorted(set(call.meta) - set(function.arg_names) - constants.keys())
        if unused:
            raise ContractError(f"meta names what is no parameter of the kernel: {', '.join(unused)}", op=code.op)
        values = kernel_arguments(function.arg_names, call, code.op)
        arguments = _Arguments()
        for p in parameters_of(function):
            value = values[p.name]
            if code.finish is not None and p.name == "epilogue":
                continue
            if code.finish is not None and p.name == "extras" and code.finish.elements:
                for number in self.extras:
                    arguments.operand(number)
                for word in words:
                    arguments.number("i32" if abs(word) < 1 << 31 else "i64", word)
                continue
            _, kind, constant, aligned = specialised(p, value, code.op)
            if kind == "constexpr":
                constants[p.name] = tuple(constant) if isinstance(constant, list) else constant
            elif isinstance(value, Memory) and value.address:
                arguments.operand(_meant(value))
            else:
                arguments.number(f"{kind}:16" if aligned else kind, 0 if isinstance(value, Memory) else value)
        return arguments.launch(
            self.operands,
            grid=call.grid,
            constants=_with_kinds(constants),
            warps=constants.get("num_warps", own.warps),
            stages=constants.get("num_stages", own.stages),
        )

    def _of_cuda(self, own: CudaCode, call: Started) -> CudaLaunch:
        arguments = _Arguments()
        for name, value in kernel_arguments(own.parameters, call, self.code.op).items():
            if isinstance(value, Memory) and value.address:
                arguments.operand(_meant(value))
                continue
            kind, number = argument_of(name, value, self.code.op)
            arguments.number("fp32" if kind == "f" else "i64", number)
        return arguments.launch(
            self.operands,
            grid=call.grid,
            constants=_with_kinds(call.meta),
            block=block_of(own, call, self.code.op),
            dynamic=shared_of(own, call),
        )


def _with_kinds(constants: Mapping[str, Any]) -> tuple[tuple[str, Hashable], ...]:
    """Constants with the names of their types: 1, 1.0 and True are equal, and not the same to a compiler."""
    return tuple((n, (type(v).__name__, v)) for n, v in constants.items())


def _values(variant: Variant) -> dict[str, Any]:
    """What :func:`_with_kinds` was given."""
    pairs: Any = variant.constants
    return {n: v for n, (_, v) in pairs}


def _fake(number: int) -> int:
    """An address that stands for an operand: what a declaration does with it shows which one it means."""
    return (number + 1) << 8


def _meant(memory: Memory) -> int:
    return (memory.address >> 8) - 1


def device_kernel(view: NodeView, choice: Choice, architecture: int) -> NativeKernel | Reason:
    """The step for a kernel in Triton or CUDA C++, for one architecture; what is fused behind it is done in its blocks.

    An output that nobody asks for is written to scratch memory.
    """
    contract, kernel, memory = choice.contract, choice.kernel, memory_of(choice)
    s, sched = contract.semantic, choice.kernel.scheduling or choice.contract.scheduling
    if memory.alignment > _ALIGNED:
        return Reason(f"it wants memory aligned to {memory.alignment} bytes, and a plan's is to {_ALIGNED}")
    if memory.architectures and f"sm_{architecture}" not in memory.architectures:
        return Reason(f"kernel '{kernel.name}' is for {', '.join(memory.architectures)}, and this is sm_{architecture}")
    reads = tuple(i for i in range(len(s.inputs)) if view.has(i))
    epilogue = view.epilogue if isinstance(view, RootView) else None
    extras = () if epilogue is None else tuple(range(len(reads), len(reads) + len(epilogue.extras)))
    first = len(reads) + len(extras)
    tensors = call_tensors(view, contract, reads, first)
    if isinstance(tensors, Reason):
        return tensors
    unknown = sorted({t.dtype for t in tensors.values()} - {*ELEMENTS, ""})
    if unknown and kernel.kind == "triton":
        return Reason(f"Triton has no pointer to {unknown[0]}")
    own = workspace_of(memory, call_sizes(choice, tensors))
    if isinstance(own, Reason):
        return own
    finish: FinishText | None = None
    words: tuple[DimLike, ...] = ()
    if epilogue is not None:
        found = _finish(view, kernel, epilogue, s.qualified_name)
        if isinstance(found, Reason):
            return found
        finish, words = found
    outputs = frozenset(p.name for p in s.outputs)
    scratch = first + sum(is_wanted(view, j) for j in range(len(s.outputs)))
    laid = _laid_out(tensors, outputs, own, scratch)
    elements = [(n, t.dtype) for n, t in tensors.items() if t.access is not None]
    workspace = len(laid.operands) + len(extras) if own != 0 else -1
    if own != 0:
        elements.append(("workspace", "uint8"))
    operands = (*laid.operands, *extras, *((laid.scratch,) if own != 0 else ()))
    numbers = tuple(range(len(laid.operands), len(laid.operands) + len(extras)))
    dims = (*laid.dims, *((own,) if own != 0 else ()), *words)
    attributes = call_attributes(view, contract)
    types = tuple(choice.bound.types.items())
    phases = []
    for k in range(len(kernel.code)):
        code = DeclaredCode(contract, kernel, k, types, tuple(elements), finish, architecture)
        call = _Call(code, laid.tensors, attributes, numbers, workspace, len(operands))
        phases.append(Phase(code, operands, dims, call.launch))
    pairs = ((o, i) for o, i in (*memory.in_place, *memory.state) if view.has(i) and is_wanted(view, o))
    return NativeKernel(
        f"{s.qualified_name} ({kernel.name})",
        tuple(phases),
        reads,
        in_place=tuple(pairs),
        workspace=laid.workspace,
        note="" if sched.capture_safe else "it is started by itself: its contract allows no graph",
        alignment=memory.alignment,
    )


def _finish(
    view: NodeView, kernel: KernelDeclaration, epilogue: Epilogue, op: str
) -> tuple[FinishText, tuple[DimLike, ...]] | Reason:
    """The function for what follows a kernel, where that can call it."""
    if kernel.kind != "triton":
        return Reason(f"kernel '{kernel.name}' is CUDA C++, for which expressions are not printed")
    if not any("epilogue" in declared_function(code, op).arg_names for code in kernel.code):
        return Reason(f"kernel '{kernel.name}' has no parameter 'epilogue'")
    out = view.output()
    dtype = None if out.dtype is None else dtype_name(out.dtype)
    return finish_of(epilogue, out.shape or (), dtype or "")


@record
class _Laid:
    """Tensors of a call as operands of its phases.

    Attributes:
        tensors: In order.
        operands: The kernel's operand of each that is there.
        dims: Shape, strides and offset of each that is there.
        scratch: The workspace's number among the kernel's operands.
        workspace: Its bytes: the author's, then outputs that nobody asks for.
    """

    tensors: tuple[_Given, ...]
    operands: tuple[int, ...]
    dims: tuple[DimLike, ...]
    scratch: int
    workspace: DimLike


def _laid_out(tensors: Mapping[str, CallTensor], outputs: frozenset[str], own: DimLike, scratch: int) -> _Laid:
    given: list[_Given] = []
    operands: list[int] = []
    dims: list[DimLike] = []
    workspace = _whole_lines(own)
    for name, t in tensors.items():
        access = t.access
        if access is None:
            given.append(_Given(name in outputs, -1, "", 0, -1))
            continue
        if t.operand is None:
            access = Access(access.strides, D.floordiv(workspace, t.itemsize))
            workspace = workspace + _whole_lines(D.product(t.shape) * t.itemsize)
        given.append(_Given(name in outputs, len(t.shape), t.dtype, t.itemsize, len(operands)))
        operands.append(scratch if t.operand is None else t.operand)
        dims += [*t.shape, *access.strides, access.offset]
    return _Laid(tuple(given), tuple(operands), tuple(dims), scratch, workspace)


def _whole_lines(nbytes: DimLike) -> DimLike:
    return D.ceildiv(nbytes, _LINE) * _LINE
