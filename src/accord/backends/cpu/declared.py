"""Kernels that users declare, as steps of a plan.

A C function is called by a few lines of machine code between other native steps: no Python, no lock. What its contract
asks of memory is brought about here: strides are handed over where it takes them and operands are row-major where not;
what is not aligned as declared is copied into scratch memory; a status other than 0 ends the run.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from accord.backends.cpu.finish import FinishCode, finish_words
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.program import KernelCode
from accord.backends.declared import CallTensor, call_sizes, call_tensors, is_wanted, memory_of, workspace_of
from accord.backends.protocol import HostKernel, Launch, NativeKernel, Phase
from accord.backends.root import RootView
from accord.backends.view import NodeView
from accord.contract.choose import Choice, call_attributes
from accord.contract.sizes import evaluate_size
from accord.errors import ContractError
from accord.expr.onnx_ops import dtype_name
from accord.ir import dims as D
from accord.ir.dims import DimLike
from accord.ir.reason import Reason
from accord.kernels.bound import CallKernel, WriteKernel, bind_kernel, named_sizes, workspace_bytes
from accord.kernels.library import function_address
from accord.kernels.signature import Slot, signature, values_of
from accord.record import record

__all__ = ["DeclaredHostKernel", "library_kernel"]

#: Scratch memory of threads lies apart by a multiple of this.
_LINE = 64
#: Number of the first parameter that is a word.
_FIRST = 2


@record
class _Argument:
    """How one argument of the call is made.

    Attributes:
        kind: "operand" (its address, moved by ``word`` bytes), "null", "int", "double", "words" (address of the
            parameters from ``word`` on), "workspace", "finish", "context" or "none".
        number: Of the operand.
        word: Of the parameter.
        copied: Word with its bytes where it has to be copied if it is not aligned, else -1.
        writes: It is an output.
    """

    kind: str
    number: int = 0
    word: int = 0
    copied: int = -1
    writes: bool = False


@record
class CallCode(KernelCode):
    """Calls a function whose address is parameter 0; parameter 1 is the address of ``finish``.

    Attributes:
        arguments: In order.
        words: Number of parameters.
        alignment: Of pointers that are copied.
        workspace: Operand of the scratch memory, -1 for none.
        room: Word with the bytes that one thread has of it.
        own: Word with those among them that are for the function.
        finish: What the function calls on blocks of its result; None for nothing.
    """

    arguments: tuple[_Argument, ...]
    words: int
    alignment: int
    workspace: int
    room: int
    own: int
    finish: FinishCode | None = None

    checks = True

    @property
    def needs(self) -> tuple[KernelCode, ...]:
        """What the function calls."""
        return () if self.finish is None else (self.finish,)

    @property
    def symbol(self) -> str:
        """Name by content."""
        import hashlib

        return f"call_{hashlib.sha256(repr(self).encode()).hexdigest()[:20]}"

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        scratch = ""
        if self.workspace >= 0:
            scratch = b.address(b.operand(self.workspace), "u8", b.mul("%thread", b.param(self.room)))
        place = b.param(self.own) if any(a.copied >= 0 for a in self.arguments) else ""
        texts: list[str] = []
        back: list[tuple[str, str, str, str]] = []
        for a in self.arguments:
            if a.kind == "operand":
                pointer = b.address(b.operand(a.number), "u8", b.param(a.word))
                if a.copied >= 0:
                    pointer, place = self._aligned(b, a, pointer, scratch, place, back)
                texts.append(f"ptr {pointer}")
            elif a.kind == "int":
                texts.append(f"i64 {b.param(a.word)}")
            elif a.kind == "double":
                texts.append(f"double {b.op(f'bitcast i64 {b.param(a.word)} to double')}")
            elif a.kind == "words":
                texts.append(f"ptr {b.op(f'getelementptr i64, ptr %params, i64 {a.word}')}")
            elif a.kind == "workspace":
                texts.append(f"ptr {scratch}")
            elif a.kind == "finish":
                texts.append(f"ptr {b.op(f'inttoptr i64 {b.param(1)} to ptr')}")
            elif a.kind == "context":
                texts.append(f"ptr {self._context(b)}")
            else:
                texts.append("ptr null")
        function = b.op(f"inttoptr i64 {b.param(0)} to ptr")
        status = b.op(f"call i32 {function}({', '.join(texts)})")
        wide = b.op(f"sext i32 {status} to i64")
        refusal = b.op(f"getelementptr i64, ptr %params, i64 {self.words}")
        b.emit(f"store i64 {wide}, ptr {refusal}")
        for moved, given, taken, count in back:
            b.branch(moved, functools.partial(_copy, b, given, taken, count))
        return b.module()

    @staticmethod
    def _context(b: Builder) -> str:
        """Parameters and operands, for :class:`FinishCode`."""
        context = b.op("alloca [2 x ptr]")
        b.emit(f"store ptr %params, ptr {context}")
        second = b.op(f"getelementptr ptr, ptr {context}, i64 1")
        b.emit(f"store ptr %operands, ptr {second}")
        return context

    def _aligned(
        self, b: Builder, a: _Argument, pointer: str, scratch: str, place: str, back: list[tuple[str, str, str, str]]
    ) -> tuple[str, str]:
        """A pointer that is aligned, and where the next copy may go; what is written is noted in ``back``."""
        bits = b.op(f"ptrtoint ptr {pointer} to i64")
        low = b.op(f"and i64 {bits}, {self.alignment - 1}")
        moved = b.compare("ne", low, 0)
        count = b.param(a.copied)
        copy = b.address(scratch, "u8", place)
        # where it lies in the scratch memory depends on where that begins
        start = b.op(f"ptrtoint ptr {copy} to i64")
        up = b.op(f"add i64 {start}, {self.alignment - 1}")
        copy = b.op(f"inttoptr i64 {b.op(f'and i64 {up}, {-self.alignment}')} to ptr")
        if a.writes:
            back.append((moved, copy, pointer, count))
        else:
            b.branch(moved, functools.partial(_copy, b, pointer, copy, count))
        taken = b.op(f"select i1 {moved}, ptr {copy}, ptr {pointer}")
        return taken, b.add(place, b.add(count, self.alignment))


def _copy(b: Builder, source: str, target: str, count: str) -> None:
    b.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    b.emit(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {count}, i1 false)")


def _arguments(
    writer: _Words,
    slots: Sequence[Slot],
    values: Sequence[Any],
    tensors: Mapping[str, CallTensor],
    alignment: int,
    finishes: bool,
) -> tuple[tuple[_Argument, ...], DimLike]:
    """The arguments of the call, and the bytes of copies for operands that do not lie at ``alignment`` (0: none)."""
    arguments: list[_Argument] = []
    copies: DimLike = 0
    for slot, value in zip(slots, values, strict=True):
        if slot.kind in ("epilogue", "context"):
            kind = "finish" if slot.kind == "epilogue" else "context"
            arguments.append(_Argument(kind if finishes else "none"))
        elif slot.kind not in ("input", "output"):
            arguments.append(writer.argument(slot, value))
        elif (t := tensors[slot.name]).access is None or t.operand is None:
            arguments.append(_Argument("null"))
        else:
            count = D.product(t.shape) * t.itemsize
            copied = writer.add(count) if alignment else -1
            copies = copies + count + alignment if alignment else copies
            offset = writer.add(t.access.offset * t.itemsize)
            arguments.append(_Argument("operand", t.operand, offset, copied, slot.kind == "output"))
    return tuple(arguments), copies


def library_kernel(view: NodeView, choice: Choice) -> NativeKernel | Reason:
    """The step for a C function; what is fused behind it is computed by the function's own blocks."""
    contract, kernel, memory = choice.contract, choice.kernel, memory_of(choice)
    s, slots = contract.semantic, signature(contract, kernel)
    reads = tuple(i for i in range(len(s.inputs)) if view.has(i))
    epilogue = view.epilogue if isinstance(view, RootView) else None
    first = len(reads) + (0 if epilogue is None else len(epilogue.extras))
    unwanted = [p.name for j, p in enumerate(s.outputs) if not is_wanted(view, j)]
    if unwanted:
        return Reason(f"the node does not ask for output '{unwanted[0]}', and a C function writes all of them")
    tensors = call_tensors(view, choice.contract, reads, first)
    if isinstance(tensors, Reason):
        return tensors
    sizes = call_sizes(choice, tensors)
    own = workspace_of(memory, sizes)
    if isinstance(own, Reason):
        return own
    address = function_address(kernel.code, choice.bound.types, s.qualified_name)
    writer = _Words()
    finish: FinishCode | None = None
    if epilogue is not None:
        out = view.output()
        dtype = None if out.dtype is None else dtype_name(out.dtype)
        words = finish_words(epilogue, out.shape or (), dtype or "")
        if isinstance(words, Reason):
            return words
        finish = FinishCode(epilogue, len(out.shape or ()), writer.add(*words, 0), tuple(range(len(reads), first)))
    call: dict[str, Any] = {
        "input": list(range(len(s.inputs))),
        "output": list(range(len(s.outputs))),
        "size": {slot.name: sizes.get(slot.name, -1) for slot in slots if slot.kind == "size"},
        "lead": D.product(choice.bound.lead or ()),
        "shape": {name: t.shape for name, t in tensors.items()},
        "stride": {name: t.strides for name, t in tensors.items()},
        "attribute": call_attributes(view, contract),
        "workspace": None,
        "bytes": own,
        "stream": None,
        "epilogue": None,
        "context": None,
    }
    aligns = memory.alignment > min((t.itemsize for t in tensors.values() if t.itemsize), default=1)
    values, alignment = values_of(slots, call), memory.alignment if aligns else 0
    arguments, copies = _arguments(writer, slots, values, tensors, alignment, finish is not None)
    total = D.floordiv(own + copies + _LINE - 1, _LINE) * _LINE if own != 0 or aligns else 0
    workspace = -1 if total == 0 else first + len(s.outputs)
    room, mine = writer.add(total), writer.add(own)
    code = CallCode(arguments, len(writer.words) + _FIRST, memory.alignment, workspace, room, mine, finish)
    operands = tuple(range(first + len(s.outputs) + (total != 0)))
    phase = Phase(code, operands, tuple(writer.words), functools.partial(_launch, address, finish))
    pairs = () if aligns else (*memory.in_place, *memory.state)
    return NativeKernel(
        f"{s.qualified_name} ({kernel.name})",
        (phase,),
        reads,
        in_place=tuple((o, i) for o, i in pairs if view.has(i)),
        workspace=total,
        foreign=True,
    )


def _launch(address: int, finish: FinishCode | None, words: Sequence[int]) -> Launch:
    return Launch((address, 0 if finish is None else finish, *words), 1)


class _Words:
    """The parameters after the two addresses."""

    def __init__(self) -> None:
        self.words: list[DimLike] = []

    def add(self, *values: DimLike) -> int:
        """Number of the parameter that the first of ``values`` becomes."""
        self.words += values
        return len(self.words) - len(values) + _FIRST

    def argument(self, slot: Slot, value: Any) -> _Argument:
        """Everything but tensors."""
        match slot.kind:
            case "float":
                return _Argument("double", word=self.add(_double(value)))
            case "shape" | "strides" | "ints":
                return _Argument("words", word=self.add(*value, 0))
            case "floats":
                return _Argument("words", word=self.add(*map(_double, value), 0))
            case "text":
                data = (value if isinstance(value, bytes) else str(value).encode()) + b"\0"
                data += bytes(-len(data) % 8)
                return _Argument("words", word=self.add(*struct.unpack(f"<{len(data) // 8}q", data)))
            case "workspace":
                return _Argument("workspace")
            case "stream":
                return _Argument("none")
        return _Argument("int", word=self.add(value))


def _double(value: float) -> int:
    """The bits of an attribute, which is a float32."""
    return int(struct.unpack("<q", struct.pack("<d", float(np.float32(value))))[0])


class DeclaredHostKernel(HostKernel):
    """A kernel that Python calls: one written in Python, a tvm-ffi function, a C function that runs in one thread only.

    Args:
        view: The node.
        choice: The kernel.
    """

    declared = True

    def __init__(self, view: NodeView, choice: Choice) -> None:
        self.name = f"{choice.contract.semantic.qualified_name} ({choice.kernel.name})"
        self._bound = bind_kernel(choice.contract, choice.kernel, choice.bound.types)
        self._attributes = call_attributes(view, choice.contract)
        self._memory = memory_of(choice)
        facts = [view.output(j) for j in range(len(view.outputs))]
        self._dtypes = [None if f.dtype is None else f.dtype.numpy() for f in facts]
        self._shape_of: Callable[..., list[tuple[int, ...]]] = functools.partial(_shapes, choice)
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Outputs; what is returned is checked by whoever runs the plan."""
        given = [None if x is None else self._arranged(np.asarray(x)) for x in inputs]
        given += [None] * (len(self._bound.contract.semantic.inputs) - len(given))
        if self._memory.thread_safe:
            return self._call(given)
        with self._lock:
            return self._call(given)

    def _call(self, inputs: list[Any]) -> Sequence[Any]:
        bound = self._bound
        if isinstance(bound, CallKernel):
            return bound(inputs, self._attributes)
        assert isinstance(bound, WriteKernel)
        sizes = named_sizes(bound.contract, inputs, self._attributes)
        outputs = [
            _aligned(shape, dtype, self._memory.alignment)
            for shape, dtype in zip(self._shape_of(inputs, sizes), self._dtypes, strict=True)
        ]
        count = workspace_bytes(bound.contract, bound.kernel, sizes)
        workspace = _aligned((count,), np.dtype(np.uint8), max(_LINE, self._memory.alignment)) if count else None
        bound(inputs, outputs, self._attributes, workspace)
        return outputs

    def _arranged(self, x: Any) -> Any:
        if "strided" not in self._memory.layouts and not x.flags.c_contiguous:
            x = np.ascontiguousarray(x)
        if x.__array_interface__["data"][0] % self._memory.alignment:
            moved = _aligned(x.shape, x.dtype, self._memory.alignment)
            moved[...] = x
            return moved
        return x


def _aligned(shape: tuple[int, ...], dtype: Any, alignment: int) -> Any:
    """An uninitialised array at a multiple of ``alignment`` bytes."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + alignment, np.uint8)
    start = -memory.__array_interface__["data"][0] % alignment
    return memory[start : start + size].view(dtype).reshape(shape)


def _shapes(choice: Choice, inputs: Sequence[Any], sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Shapes of the outputs for given inputs."""
    s = choice.contract.semantic
    lead: tuple[int, ...] = ()
    for p, x in zip(s.inputs, inputs, strict=False):
        if x is not None and p.sizes is not None and "..." in p.sizes:
            lead = x.shape[: x.ndim - len(p.sizes) + 1]
    found = []
    for p in s.outputs:
        if p.sizes is None:
            raise ContractError(
                f"the shape of output '{p.name}' is not declared, so its memory cannot be made",
                op=s.qualified_name,
                expected='sizes in its annotation, Tensor["T", "N", "C"]',
            )
        shape: list[int] = []
        for size in p.sizes:
            value: Any = lead if size == "..." else size if isinstance(size, int) else evaluate_size(size, sizes)
            shape += value if isinstance(value, tuple) else (int(value),)
        found.append(tuple(shape))
    return found
