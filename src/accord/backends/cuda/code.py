"""Kernels as Triton text: from a text and what is known of a launch to machine code, kept on disk.

Machine code that is found there needs neither Triton nor a compiler.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import json
import math
import os
import re
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accord.backends.cuda.lines import NEXT, WAIT
from accord.backends.protocol import Launch
from accord.errors import BackendError, CompileError
from accord.expr.lang import bits
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.record import record
from accord.storage import Storage, cache_folder

__all__ = [
    "EARLY",
    "EXACT",
    "Binary",
    "CudaLaunch",
    "KernelText",
    "TensorMap",
    "Variant",
    "WrittenText",
    "binary_from",
    "binary_of",
    "compile_variant",
    "compiler_version",
    "exact_hints",
    "find_binary",
    "function_of",
    "hints_of",
]

#: When a kernel starts: "stores": when the programs of the one in front of it store their results; it then waits by
#: itself until that one is done, before it touches memory. "off": when that one is done. Only sm_90 and newer can.
EARLY: str = os.environ.get("ACCORD_CUDA_EARLY", "stores")
#: The oldest architecture that can.
_OLDEST_EARLY: Final = 90
_KIND: Final = "cuda"
#: The hint of a number that is always the same.
EXACT: Final = "="
#: Element types of expressions as Triton names those behind a pointer.
POINTERS: Final = {
    "f16": "*fp16", "bf16": "*bf16", "f32": "*fp32", "f64": "*fp64", "bool": "*i8",
    **{f"i{n}": f"*i{n}" for n in (8, 16, 32, 64)}, **{f"u{n}": f"*u{n}" for n in (8, 16, 32, 64)},
}  # fmt: skip


class KernelText(ABC):
    """One kernel as Triton text. Records of this kind are equal if their texts are.

    The kernel's parameters are pointers, then integers, then compile-time constants. In front of the line
    :data:`~accord.backends.cuda.lines.WAIT`, which each of its programs reaches once, it touches no memory that another
    kernel reads or writes; one without that line is started when all in front of it are done.
    """

    @property
    @abstractmethod
    def symbol(self) -> str:
        """The kernel's name, by content."""

    @property
    @abstractmethod
    def pointers(self) -> tuple[str, ...]:
        """The element type of each pointer, as expressions name it: of the operands, then of the refusal."""

    @property
    def refuses(self) -> bool:
        """Whether its last pointer is to a word that it writes if it meets data that it must refuse."""
        return False

    @property
    def foreign(self) -> bool:
        """Whether a user wrote it."""
        return False

    @property
    def capturable(self) -> bool:
        """Whether it may become part of a graph."""
        return True

    @abstractmethod
    def text(self) -> str:
        """The module with the kernel."""

    def content(self, variant: Variant) -> tuple[object, ...]:
        """All that the machine code of a variant depends on, beside the architecture and what compiles it."""
        return variant.kernel.text(), *variant.settings

    def compile(self, variant: Variant, target: int) -> Binary:
        """The machine code of a variant for an architecture.

        Raises:
            BackendError: the compiler is not installed.
            CompileError: it does not compile.
        """
        return _compiled(variant, target)

    def as_stored(self) -> KernelText:
        """What a stored plan, or another process, has in its place."""
        return self if self.foreign else WrittenText(self.symbol, self.pointers, self.refuses, self.text())


@record
class WrittenText(KernelText):
    """A kernel whose text was written before: that takes neither its description nor what writes it.

    Attributes:
        name: Its symbol.
        types: Its ``pointers``.
        refusing: Its ``refuses``.
        written: Its text.
    """

    name: str
    types: tuple[str, ...]
    refusing: bool
    written: str

    @property
    def symbol(self) -> str:
        """See :class:`KernelText`."""
        return self.name

    @property
    def pointers(self) -> tuple[str, ...]:
        """See :class:`KernelText`."""
        return self.types

    @property
    def refuses(self) -> bool:
        """See :class:`KernelText`."""
        return self.refusing

    def text(self) -> str:
        """See :class:`KernelText`."""
        return self.written

    def as_stored(self) -> KernelText:
        """Itself."""
        return self


@record
class TensorMap:
    """How the bulk copy engine walks an operand: a parameter of a kernel, behind its pointers.

    Attributes:
        operand: Its number.
        offset: Of the first element, in elements.
        dtype: Of elements.
        shape: From the outermost axis.
        strides: In elements; the last is 1.
        block: What is copied at once.
        steps: From one element of a block to the next, along each axis; empty: they are neighbours.
    """

    operand: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    steps: tuple[int, ...] = ()

    @property
    def type(self) -> str:
        """As Gluon names it, with the layout that it has in shared memory by default."""
        item = bits(self.dtype) // 8
        line = self.block[-1] * item
        swizzle = next((w for w in (128, 64, 32) if line % w == 0), 0) if math.prod(self.block[:-1]) >= 8 else 0
        layout = (
            f"NVMMASharedLayout(swizzle_byte_width={swizzle}, element_bitwidth={8 * item}, rank={len(self.block)}, "
            "transposed=False, fp4_padded=False, cga_layout=[])"
        )
        return f"tensordesc<{POINTERS[self.dtype][1:]}{list(self.block)},{layout}>"


@record
class CudaLaunch(Launch):
    """How a kernel is started for given sizes; ``params`` are its integers, ``tasks`` the programs of the grid.

    Attributes:
        grid: Programs, three axes.
        constants: Compile-time parameters by name.
        hints: Of each integer: "16" if 16 divides it whatever the sizes are, "1" if it is 1, "" otherwise.
        wide: Integers have 64 bits.
        warps: Of a program.
        stages: Of software pipelines.
        shifts: Bytes that are added to the address of each operand; empty: nothing is added.
        maps: Parameters that follow the pointers.
        order: For each parameter of the kernel its number among pointers, then integers; empty: they are in this order.
        block: Threads of a block, three axes; the first is 0 where the machine code says it.
        dynamic: Bytes of dynamic shared memory that the launch asks for, beyond what the machine code says.
        text: What is started instead of the phase's own text.
        registers: Of a thread at most, so that more programs are at work; 0: as many as it takes.
    """

    grid: tuple[int, int, int] = (1, 1, 1)
    constants: tuple[tuple[str, Hashable], ...] = ()
    hints: tuple[str, ...] = ()
    wide: bool = False
    warps: int = 4
    stages: int = 2
    shifts: tuple[int, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    order: tuple[int, ...] = ()
    block: tuple[int, int, int] = (0, 1, 1)
    dynamic: int = 0
    text: KernelText | None = None
    registers: int = 0

    @staticmethod
    def of(
        names: Sequence[str],
        sizes: Sequence[int],
        hints: Sequence[str],
        grid: tuple[int, int, int],
        constants: Mapping[str, int | bool],
        *,
        wide: bool,
        warps: int = 4,
        stages: int = 2,
    ) -> CudaLaunch:
        """A launch in which integers that are always the same are compiled in.

        Args:
            names: Of the kernel's integers.
            sizes: Their values.
            hints: Of each, see :func:`exact_hints`.
            grid: Programs.
            constants: Further compile-time parameters.
            wide: Integers have 64 bits.
            warps: Of a program.
            stages: Of software pipelines.
        """
        known = {n: v for n, v, hint in zip(names, sizes, hints, strict=True) if hint == EXACT}
        given = [(v, hint) for n, v, hint in zip(names, sizes, hints, strict=True) if n not in known]
        return CudaLaunch(
            tuple(v for v, _ in given), math.prod(grid), grid, (*known.items(), *constants.items()),
            tuple(hint for _, hint in given), wide, warps, stages,
        )  # fmt: skip


@record
class Variant:
    """What machine code depends on beside the architecture.

    Attributes:
        kernel: The text.
        constants: Compile-time parameters by name.
        hints: See :class:`CudaLaunch`.
        wide: Integers have 64 bits.
        aligned: All pointers are multiples of 16.
        warps: Of a program.
        stages: Of software pipelines.
        maps: Types of tensor maps.
        early: It waits by itself, and lets the next one start early; see :data:`EARLY`.
        registers: Of a thread at most; 0: as many as it takes.
    """

    kernel: KernelText
    constants: tuple[tuple[str, Hashable], ...]
    hints: tuple[str, ...]
    wide: bool
    aligned: bool
    warps: int
    stages: int
    maps: tuple[str, ...] = ()
    early: bool = False
    registers: int = 0

    @staticmethod
    def of(kernel: KernelText, launch: CudaLaunch, *, aligned: bool) -> Variant:
        """The variant that a launch needs.

        Raises:
            BackendError: kernels are to start early in a way that there is not.
        """
        maps, early = tuple(m.type for m in launch.maps), not kernel.foreign and _starts_early()
        return Variant(
            kernel, launch.constants, launch.hints, launch.wide, aligned, launch.warps, launch.stages, maps, early,
            launch.registers,
        )  # fmt: skip

    @property
    def settings(self) -> tuple[Any, ...]:
        """All but the text, in order."""
        return (
            self.constants, self.hints, self.wide, self.aligned, self.warps, self.stages, self.maps, self.early,
            self.registers,
        )  # fmt: skip


@record
class Binary:
    """Machine code.

    Attributes:
        cubin: An ELF file for one architecture.
        name: Of the kernel in it.
        threads: Of a program.
        shared: Bytes of shared memory of a program.
        scratch: Pointers that Triton adds behind the kernel's parameters.
        scratch_bytes: Of the memory that the first of these points to, for each program; 0: it is null.
        registers: Of a thread.
        spills: Bytes of local memory of a thread.
        cluster: Blocks of a cluster; each program is one.
        maps: Of each tensor map: how its blocks are swizzled, as the driver numbers it, and what is copied at once.
        waits: It may be started before those in front of it are done, for which it waits itself.
    """

    cubin: bytes
    name: str
    threads: int
    shared: int
    scratch: int
    scratch_bytes: int
    registers: int
    spills: int
    cluster: int = 1
    maps: tuple[tuple[int, tuple[int, ...]], ...] = ()
    waits: bool = False


#: Number of ``maps`` among the facts that are stored of machine code.
_MAPS: Final = 8
_LOCK = threading.Lock()
_FOUND: dict[tuple[Variant, int], Binary] = {}
#: Most pieces of machine code that are kept in memory; the oldest go first, and are on disk still.
_MOST: Final = 4096
_WAITING: dict[tuple[Variant, int], threading.Event] = {}


def find_binary(variant: Variant, target: int) -> Binary | None:
    """As :func:`binary_of`; None if it is in no cache."""
    key = (variant, target)
    found = _FOUND.get(key)
    if found is None:
        found = _stored(variant, target)
        if found is not None:
            _keep(key, found)
    return found


def binary_of(variant: Variant, target: int, compiler: Callable[[Variant, int], Binary] | None = None) -> Binary:
    """Machine code of a variant for an architecture, from the cache or the compiler; threads compile side by side.

    Args:
        variant: What to compile.
        target: 90 for sm_90.
        compiler: What compiles it; None: :func:`compile_variant`.

    Raises:
        BackendError: Triton is needed and not installed.
        CompileError: the kernel does not compile.
    """
    key = (variant, target)
    while True:
        with _LOCK:
            found = _FOUND.get(key)
            if found is not None:
                return found
            other = _WAITING.get(key)
            if other is None:
                own = _WAITING[key] = threading.Event()
                break
        other.wait()
    try:
        made = _stored(variant, target) or (compiler or compile_variant)(variant, target)
        _keep(key, made)
        return made
    finally:
        with _LOCK:
            del _WAITING[key]
        own.set()


def _keep(key: tuple[Variant, int], binary: Binary) -> None:
    with _LOCK:
        while len(_FOUND) >= _MOST:
            del _FOUND[next(iter(_FOUND))]
        _FOUND[key] = binary


def _key(variant: Variant, target: int) -> str:
    content = (*variant.kernel.content(variant), target, compiler_version())
    return hashlib.sha256(repr(content).encode()).hexdigest()


@functools.cache
def compiler_version() -> str:
    """Triton's version, "none" without it.

    It is read from Triton's file: what looks versions of packages up takes longer to import than a stored plan to load.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return "none"
    source = Path(spec.origin)
    said = re.search(r"^__version__ *= *['\"](.+?)['\"]", source.read_text(encoding="utf-8"), re.MULTILINE)
    return said[1] if said else str(source.stat().st_mtime_ns)


def _stored(variant: Variant, target: int) -> Binary | None:
    payload = Storage(_KIND).read(_key(variant, target))
    if payload is None:
        return None
    length = int.from_bytes(payload[:4], "little")
    facts = json.loads(bytes(payload[4 : 4 + length]))
    facts[_MAPS] = tuple((swizzle, tuple(box)) for swizzle, box in facts[_MAPS])
    return Binary(bytes(payload[4 + length :]), *facts)


def _compiled(variant: Variant, target: int) -> Binary:
    from accord.kernels.triton import compile_function

    kernel = variant.kernel
    function = function_of(kernel, early=variant.early and target >= _OLDEST_EARLY)
    constants = dict(variant.constants)
    signature: dict[str, str] = {}
    values: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    pointers, maps, integers = iter(kernel.pointers), iter(variant.maps), iter(variant.hints)
    for i, name in enumerate(function.arg_names):
        if name in constants:
            signature[name], values[(i,)] = "constexpr", constants[name]
            continue
        pointer = next(pointers, None)
        if pointer is not None:
            signature[name] = POINTERS[pointer]
            if variant.aligned:
                attributes[(i,)] = [["tt.divisibility", 16]]
            continue
        described = next(maps, None)
        if described is not None:
            signature[name] = described
            continue
        hint = next(integers)
        if hint == "1":
            signature[name], values[(i,)] = "constexpr", 1
            continue
        signature[name] = "i64" if variant.wide else "i32"
        if hint == "16":
            attributes[(i,)] = [["tt.divisibility", 16]]
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    if variant.registers:
        options["maxnreg"] = variant.registers
    compiled = compile_function(function, signature, values, attributes, target, options, kernel.symbol)
    # a tensor map is passed with its shape and strides
    walks = sum(2 * t.partition("]")[0].count(",") + 2 for t in variant.maps)
    return binary_from(compiled, sum(t != "constexpr" for t in signature.values()) + walks)


def binary_from(compiled: Any, passed: int) -> Binary:
    """What Triton compiled, of which ``passed`` parameters are the kernel's own."""
    from accord.kernels.cubin import read_resources
    from accord.kernels.triton import pointers_added

    cubin, metadata = compiled.asm["cubin"], compiled.metadata
    resources = read_resources(cubin)[metadata.name]
    return Binary(
        cubin,
        metadata.name,
        metadata.num_warps * 32,
        metadata.shared,
        pointers_added(compiled, passed),
        int(getattr(metadata, "global_scratch_size", 0) or 0),
        resources.registers,
        resources.stack,
        int(getattr(metadata, "num_ctas", 1) or 1),
        tuple((m["swizzle"], tuple(m["block_size"])) for m in getattr(metadata, "tensordesc_meta", None) or ()),
        "griddepcontrol.wait" in compiled.asm["ptx"],
    )


def compile_variant(variant: Variant, target: int) -> Binary:
    """Compile a variant in this thread and keep what comes of it on disk.

    Raises:
        BackendError: the compiler is not installed.
        CompileError: the kernel does not compile.
    """
    made = variant.kernel.compile(variant, target)
    numbers = [made.threads, made.shared, made.scratch, made.scratch_bytes, made.registers, made.spills]
    facts = json.dumps([made.name, *numbers, made.cluster, made.maps, made.waits]).encode()
    Storage(_KIND).write(_key(variant, target), [len(facts).to_bytes(4, "little") + facts, made.cubin])
    return made


_FUNCTIONS: dict[tuple[str, bool], Any] = {}
_IMPORTS = threading.Lock()


def _starts_early() -> bool:
    """Whether kernels do; see :data:`EARLY`."""
    if EARLY not in ("off", "stores"):
        raise BackendError(
            "kernels cannot start early in this way", expected="ACCORD_CUDA_EARLY=off or stores", found=repr(EARLY)
        )
    return EARLY == "stores"


def function_of(kernel: KernelText, *, early: bool = False) -> Any:
    """What Triton makes of a text, which has to be a file for that.

    Args:
        kernel: The text.
        early: Its lines about kernels in front of it and behind it are no comments.

    Raises:
        BackendError: Triton is not installed.
    """
    symbol, key = kernel.symbol, (kernel.symbol, early)
    with _IMPORTS:
        if key not in _FUNCTIONS:
            if importlib.util.find_spec("triton") is None:
                raise BackendError(
                    "kernels for device 'cuda' are compiled by Triton, which is not installed",
                    remedy="pip install 'accord[cuda]'",
                )
            name, text = symbol, kernel.text()
            if early:
                name = f"{symbol}_early"
                text = text.replace(WAIT, "gdc_wait()").replace(NEXT, "gdc_launch_dependents()")
                text = f"from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n{text}"
            path = _file(name, text)
            spec = importlib.util.spec_from_file_location(f"accord_generated_{name}", path)
            if spec is None or spec.loader is None:
                raise CompileError(f"{path} cannot be imported")
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            _FUNCTIONS[key] = getattr(module, symbol)
        return _FUNCTIONS[key]


def _file(symbol: str, text: str) -> Path:
    """A file with this text, beside the cache or in a folder that goes with the process."""
    base = cache_folder()
    folder = _own_folder() if base is None else base / f"{_KIND}-text"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{symbol}.py"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        handle, name = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    return path


@functools.cache
def _own_folder() -> Path:
    import atexit
    import shutil

    folder = Path(tempfile.mkdtemp(prefix="accord-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def exact_hints(sizes: Sequence[DimLike]) -> tuple[str, ...]:
    """As :func:`hints_of`, and "=" of what is always the same number, for :meth:`CudaLaunch.of`."""
    return tuple(EXACT if isinstance(d, int) else hint for d, hint in zip(sizes, hints_of(sizes), strict=True))


def hints_of(sizes: Sequence[DimLike]) -> tuple[str, ...]:
    """What is known of symbolic sizes for all values of their symbols; see :class:`CudaLaunch`."""
    return tuple("1" if d == 1 else "16" if D.modulo(d, 16) == 0 else "" for d in sizes)
