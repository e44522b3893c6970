"""What each architecture of NVIDIA's GPUs allows, and kernels held against it, without a GPU.

The limits are those of the CUDA C++ Programming Guide 13, appendix "Compute Capabilities", table "Technical
Specifications per Compute Capability". Registers are handed out to a warp in units of 256. What a kernel takes is read
out of its machine code (:mod:`accord.kernels.cubin`); dynamic shared memory is what its launch asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accord.contract.dtypes import numpy_name, short_name
from accord.contract.sizes import evaluate_condition, evaluate_size, names_in
from accord.errors import AccordError, CompileError, ContractError
from accord.kernels.bound import workspace_bytes
from accord.kernels.cubin import Resources
from accord.kernels.launch import Launch, Memory, contiguous, launches

if TYPE_CHECKING:
    from accord.contract.contract import Contract, KernelDeclaration, Parameter

__all__ = ["ARCHITECTURES", "Architecture", "Compilation", "compile_report", "over_limits"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Limits of one architecture.

    Attributes:
        name: "sm_90".
        number: 90.
        shared: Bytes of shared memory that one block may use.
        shared_multiprocessor: Bytes of a multiprocessor; each block takes a kilobyte of it for the system.
        threads: Of a multiprocessor.
        blocks: Of a multiprocessor.
        registers: Of a multiprocessor, and of one block.
        registers_thread: Of a thread.
    """

    name: str
    number: int
    shared: int
    shared_multiprocessor: int
    threads: int
    blocks: int
    registers: int = 65536
    registers_thread: int = 255


def _architecture(number: int, shared: int, threads: int, blocks: int) -> Architecture:
    return Architecture(f"sm_{number}", number, shared << 10, (shared + 1) << 10, threads, blocks)


#: By name: what kernels are compiled for when nothing else is said.
ARCHITECTURES: Mapping[str, Architecture] = {
    a.name: a
    for a in (
        _architecture(80, 163, 2048, 32),
        _architecture(86, 99, 1536, 16),
        _architecture(87, 163, 1536, 16),
        _architecture(89, 99, 1536, 24),
        _architecture(90, 227, 2048, 32),
        _architecture(100, 227, 2048, 32),
        _architecture(120, 99, 1536, 24),
    )
}

#: Values that are tried in turn for sizes that nothing is known of, and for attributes.
_SIZES = (128, 64, 32, 16, 8, 7, 5, 4, 3, 2, 1)
_NUMBERS = (2, 1, 4, 3, 8, 16, 0)
_TRIES = 20000


@dataclass(frozen=True, slots=True)
class Compilation:
    """One launch of a kernel, compiled for one architecture.

    Attributes:
        kernel: Name of the declaration.
        entry: Name of the function.
        architecture: "sm_90".
        types: NumPy's name by type variable.
        sizes: Sizes and attributes that it was compiled for.
        registers: Of a thread; 0 if it did not compile.
        spills: Bytes of registers that a thread spills.
        stack: Bytes of local memory of a thread.
        shared: Bytes of shared memory of a block, static and dynamic.
        threads: Of a block.
        blocks: That a multiprocessor holds at once.
        faults: What keeps it from running, in words; also what the compiler says.
        remarks: What costs speed, in words.
    """

    kernel: str
    entry: str
    architecture: str
    types: Mapping[str, str]
    sizes: Mapping[str, Any]
    registers: int
    spills: int
    stack: int
    shared: int
    threads: int
    blocks: int
    faults: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def over_limits(a: Architecture, taken: Resources, shared: int, threads: int) -> tuple[list[str], int]:
    """What a kernel takes beyond what an architecture has, and how many blocks a multiprocessor holds.

    Args:
        a: The architecture.
        taken: Registers, stack and static shared memory.
        shared: Bytes of dynamic shared memory.
        threads: Of a block.
    """
    faults = []
    total = taken.shared + shared
    if total > a.shared:
        faults.append(
            f"a block uses {total} bytes of shared memory, {total - a.shared} more than the {a.shared} of {a.name}"
        )
    static_limit = 48 << 10
    if taken.shared > static_limit:
        faults.append(
            f"a block declares {taken.shared} bytes of static shared memory, {taken.shared - static_limit} more than "
            f"{static_limit}: larger ones have to be dynamic"
        )
    if threads > 1024:
        faults.append(f"a block has {threads} threads, more than 1024")
    warps = -(-threads // 32)
    held = -(-taken.registers * 32 // 256) * 256 * warps
    if taken.registers > a.registers_thread or held > a.registers:
        faults.append(f"a block uses {held} registers, more than the {a.registers} of {a.name}")
    if faults:
        return faults, 0
    return [], min(
        a.blocks,
        a.threads // (warps * 32),
        a.registers // max(1, held),
        a.shared_multiprocessor // (total + 1024),
    )


def compile_report(
    contract: Contract,
    kernel: KernelDeclaration,
    architectures: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    types: Mapping[str, str] | None = None,
) -> list[Compilation]:
    """Compile a Triton or CUDA kernel for architectures, and hold it against their limits.

    Args:
        contract: Of the operator.
        kernel: One of its kernels, of kind "triton" or "cuda".
        architectures: Their names; empty: those that the kernel's contract lists, or all.
        samples: Sizes and attributes; empty: what the kernel's code declares, or sizes that the contract allows.
        types: ONNX type by type variable; None: each that the kernel may be given.

    Returns:
        For each launch, architecture, combination of types and sample what came out, also where it does not compile.

    Raises:
        BackendError: the compiler is not installed.
        ContractError: the kernel is of another kind, or an architecture is unknown.
    """
    op = contract.semantic.qualified_name
    if kernel.kind not in ("triton", "cuda"):
        raise ContractError(f"kernel '{kernel.name}' is not for a GPU", op=op, expected="kind triton or cuda")
    named = architectures or (kernel.execution or contract.execution).architectures or tuple(ARCHITECTURES)
    unknown = [n for n in named if n not in ARCHITECTURES]
    if unknown:
        raise ContractError(f"unknown architecture {', '.join(unknown)}", op=op, expected=", ".join(ARCHITECTURES))
    found: dict[tuple[Any, ...], Compilation] = {}
    wanted = [(s, named) for s in samples or _samples(contract, kernel)]
    if not samples:
        wanted.append((_ones(contract, kernel), named[:1]))
    for given in _types(contract, kernel) if types is None else (types,):
        for sample, names in wanted:
            for name in names:
                for c in _compilations(contract, kernel, ARCHITECTURES[name], given, sample):
                    found.setdefault((c.entry, c.architecture, *c.types.values(), *c.sizes.items()), c)
    return list(found.values())


def _types(contract: Contract, kernel: KernelDeclaration) -> Iterator[dict[str, str]]:
    """Each type that a variable may be, with the others at their first."""
    choices = {
        v: sorted(kernel.types.get(v, allowed), key=lambda t: (t != "tensor(float)", t))
        for v, allowed in contract.semantic.types.items()
    }
    first = {v: c[0] for v, c in choices.items()}
    yield first
    for v, c in choices.items():
        for other in c[1:]:
            yield {**first, v: other}


def _samples(contract: Contract, kernel: KernelDeclaration) -> Sequence[Mapping[str, Any]]:
    declared = [s for code in kernel.code for s in code.samples]
    return declared or [{}]


def _ones(contract: Contract, kernel: KernelDeclaration) -> Mapping[str, Any]:
    """As many sizes as possible 1: what is 1 is compiled in, and a kernel may not be made for that."""
    s = contract.semantic
    sizes = [str(x) for p in (*s.inputs, *s.outputs) for x in p.sizes or () if str(x).isidentifier()]
    found: dict[str, int] = {}
    for n in dict.fromkeys(sizes):
        try:
            _chosen(contract, kernel, {**found, n: 1})
        except ContractError:
            continue
        found[n] = 1
    return found


def _compilations(
    contract: Contract, kernel: KernelDeclaration, a: Architecture, types: Mapping[str, str], sample: Mapping[str, Any]
) -> Iterator[Compilation]:
    names = {v: short_name(t) for v, t in types.items()}
    try:
        calls = _calls(contract, kernel, a, types, sample)
    except ContractError as error:
        yield Compilation(kernel.name, "", a.name, names, dict(sample), 0, 0, 0, 0, 0, 0, (error.message,))
        return
    for call in calls:
        code: Any = call.code
        entry = code.entry if kernel.kind == "cuda" else _entry(code.kernel)
        shown = {
            n: v
            for n, v in call.known.items()
            if n not in names and n != "architecture" and not n.startswith(("size_", "stride_"))
        }
        try:
            taken, shared, threads = _compile(contract, kernel, call, types, a)
        except (CompileError, ContractError) as error:
            yield Compilation(kernel.name, entry, a.name, names, shown, 0, 0, 0, 0, 0, 0, (_said(error),))
            continue
        faults, blocks = over_limits(a, taken, shared, threads)
        spills = taken.stack if taken.spills is None else taken.spills
        remarks = (f"a thread spills {spills} bytes of registers",) if spills else ()
        yield Compilation(
            kernel.name, entry, a.name, names, shown, taken.registers, spills, taken.stack, taken.shared + shared,
            threads, blocks, tuple(faults), remarks,
        )  # fmt: skip


def _said(error: AccordError) -> str:
    return error.message + (f" ({error.found})" if error.found else "")


def _entry(kernel: Any) -> str:
    return kernel.partition(":")[2] if isinstance(kernel, str) else kernel.fn.__name__


def _compile(
    contract: Contract, kernel: KernelDeclaration, call: Launch, types: Mapping[str, str], a: Architecture
) -> tuple[Resources, int, int]:
    """What it takes, its dynamic shared memory, its threads."""
    op = contract.semantic.qualified_name
    code: Any = call.code
    if kernel.kind == "triton":
        from accord.kernels.triton import compile_launch

        built = compile_launch(code, call, a.number, op)
        return built.resources, built.shared, built.threads
    from accord.kernels.cuda import block_of, compile_cuda, shared_of

    x, y, z = block_of(code, call, op)
    return compile_cuda(code, types, call.meta, a.number, op).resources, shared_of(code, call), x * y * z


def _calls(
    contract: Contract, kernel: KernelDeclaration, a: Architecture, types: Mapping[str, str], sample: Mapping[str, Any]
) -> list[Launch]:
    """The launches of a call on memory that does not exist, of sizes that the contract allows."""
    s = contract.semantic
    sizes, attributes = _chosen(contract, kernel, sample)

    def memory(p: Parameter) -> Memory | None:
        shape = []
        for size in p.sizes if p.sizes is not None else (16,):
            value = 4 if size == "..." else size if isinstance(size, int) else evaluate_size(size, sizes)
            shape.append(value if isinstance(value, int) else 1)
        return Memory(256, tuple(shape), contiguous(shape), str(numpy_name(types.get(p.type, p.type)).name))

    wanted = workspace_bytes(contract, kernel, sizes)
    return launches(
        contract,
        kernel.code,
        types,
        a.number,
        [memory(p) for p in s.inputs],
        [memory(p) for p in s.outputs],
        attributes,
        Memory(256, (wanted,), (1,), "uint8") if wanted else None,
    )


def _chosen(
    contract: Contract, kernel: KernelDeclaration, sample: Mapping[str, Any]
) -> tuple[dict[str, int], dict[str, Any]]:
    """Sizes and attributes that meet all conditions: those given, defaults, and for others the largest that fit."""
    s = contract.semantic
    attributes = {n: a.default for n, a in s.attributes.items() if a.default is not None}
    attributes |= {n: v for n, v in sample.items() if n in s.attributes}
    attributes |= {n: 1.0 for n, a in s.attributes.items() if n not in attributes and a.kind == "FLOAT"}
    open_attributes = [n for n, a in s.attributes.items() if n not in attributes and a.kind == "INT"]
    ports = (*s.inputs, *s.outputs)
    named = [n for p in ports for x in p.sizes or () if isinstance(x, str) and x != "..." for n in sorted(names_in(x))]
    env = {n: int(v) for n, v in {**attributes, **sample}.items() if isinstance(v, int)}
    free = [n for n in dict.fromkeys([*open_attributes, *named]) if n not in env]
    choices = {n: _NUMBERS if n in open_attributes else _SIZES for n in free}
    if not _assign(free, choices, (*s.constraints, *kernel.constraints), env, [_TRIES]):
        raise ContractError(
            "no sizes were found that the contract's conditions allow",
            op=s.qualified_name,
            expected=" and ".join((*s.constraints, *kernel.constraints)),
            remedy="Give the kernel's code `samples`.",
        )
    return env, {**attributes, **{n: env[n] for n in open_attributes}}


def _assign(
    free: Sequence[str],
    choices: Mapping[str, Sequence[int]],
    conditions: Sequence[str],
    env: dict[str, int],
    tries: list[int],
) -> bool:
    """Give each name a value in ``env`` so that no condition fails; a name that a condition equates has no choice."""
    if any(evaluate_condition(c, env) is False for c in conditions):
        return False
    if not free:
        return True
    name, rest = free[0], free[1:]
    sides = [c.partition("==") for c in conditions]
    fixed = [evaluate_size(right, env) for left, equal, right in sides if equal and left.strip() == name]
    for value in [v for v in fixed if isinstance(v, int)][:1] or choices[name]:
        if tries[0] == 0:
            return False
        tries[0] -= 1
        env[name] = value
        if _assign(rest, choices, conditions, env, tries):
            return True
        del env[name]
    return False
