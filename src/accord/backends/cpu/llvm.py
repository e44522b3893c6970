"""Writing LLVM IR: a text builder with blocks, counted loops and vectors.

Textual IR is written directly, since building objects for it costs more than compiling it. The builder knows types and
control flow and nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

__all__ = ["KERNEL_ARGUMENTS", "Builder", "module_text", "scalar", "vector"]

KERNEL_ARGUMENTS = "ptr noalias %params, ptr noalias readonly %operands, i64 %first, i64 %last, i64 %thread"

_SCALARS = {
    "f16": "half",
    "bf16": "i16",  # its bits: without AVX512_BF16, LLVM moves vectors of bfloat one element at a time through calls
    "f32": "float",
    "f64": "double",
    "bool": "i1",
    **{f"{s}{n}": f"i{n}" for s in "iu" for n in (8, 16, 32, 64)},
}


def scalar(dtype: str) -> str:
    """LLVM type of an element type in a register."""
    return _SCALARS[dtype]


def vector(dtype: str, width: int) -> str:
    """LLVM type of ``width`` elements in a register; a scalar for 1."""
    return scalar(dtype) if width == 1 else f"<{width} x {scalar(dtype)}>"


class Builder:
    """One function of a module.

    Values are SSA names or literals as text; every method that computes returns one.

    Args:
        name: Of the function.
        arguments: Its parameters as LLVM text; by default those of a kernel.
        internal: Only called from other functions of the module; not inlined.
    """

    def __init__(self, name: str, arguments: str = KERNEL_ARGUMENTS, *, internal: bool = False) -> None:
        self.name = name
        self._arguments = arguments
        self._internal = internal
        self._lines: list[str] = []
        self._declarations: dict[str, None] = {}
        self._count = 0
        self._block = "entry"

    # plumbing

    def fresh(self, hint: str = "v") -> str:
        """A new SSA name."""
        self._count += 1
        return f"%{hint}{self._count}"

    def emit(self, text: str) -> None:
        """A line without a result."""
        self._lines.append("  " + text)

    def op(self, text: str, hint: str = "v") -> str:
        """A line with a result; returns its name."""
        name = self.fresh(hint)
        self._lines.append(f"  {name} = {text}")
        return name

    def declare(self, declaration: str) -> None:
        """Declare an external function or intrinsic once."""
        self._declarations[declaration] = None

    def label(self, name: str) -> None:
        """Start block ``name`` (without the percent sign)."""
        self._lines.append(f"{name}:")
        self._block = name

    @property
    def block(self) -> str:
        """Name of the block being written."""
        return self._block

    def definition(self) -> str:
        """The function's text."""
        body = "\n".join(self._lines)
        linkage, inline = ("internal ", "noinline ") if self._internal else ("", "")
        return (
            f"define {linkage}void @{self.name}({self._arguments}) {inline}nounwind "
            f'"prefer-vector-width"="512" {{\nentry:\n{body}\n  ret void\n}}\n'
        )

    def module(self, *others: Builder) -> str:
        """The text of a module of this function and ``others``."""
        return module_text([self, *others])

    @property
    def declarations(self) -> dict[str, None]:
        """What the function declares."""
        return self._declarations

    # integers

    def add(self, a: str | int, b: str | int) -> str:
        """``a + b`` as i64."""
        if a == 0:
            return str(b)
        if b == 0:
            return str(a)
        return self.op(f"add nsw i64 {a}, {b}")

    def sub(self, a: str | int, b: str | int) -> str:
        """``a - b`` as i64."""
        return str(a) if b == 0 else self.op(f"sub nsw i64 {a}, {b}")

    def mul(self, a: str | int, b: str | int) -> str:
        """``a * b`` as i64."""
        if a == 1:
            return str(b)
        if b == 1:
            return str(a)
        return self.op(f"mul nsw i64 {a}, {b}")

    def divmod(self, a: str, b: str | int) -> tuple[str, str]:
        """Quotient and remainder of non-negative i64."""
        q = self.op(f"udiv i64 {a}, {b}")
        return q, self.op(f"urem i64 {a}, {b}")

    def min(self, a: str | int, b: str | int) -> str:
        """The smaller of two i64."""
        self.declare("declare i64 @llvm.smin.i64(i64, i64)")
        return self.op(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def max(self, a: str | int, b: str | int) -> str:
        """The greater of two i64."""
        self.declare("declare i64 @llvm.smax.i64(i64, i64)")
        return self.op(f"call i64 @llvm.smax.i64(i64 {a}, i64 {b})")

    def compare(self, predicate: str, a: str | int, b: str | int) -> str:
        """``icmp predicate`` of two i64, an i1."""
        return self.op(f"icmp {predicate} i64 {a}, {b}")

    # memory

    def param(self, index: int) -> str:
        """Parameter ``index`` of the launch, an i64."""
        p = self.op(f"getelementptr i64, ptr %params, i64 {index}")
        return self.op(f"load i64, ptr {p}")

    def operand(self, index: int) -> str:
        """Address of operand ``index``."""
        p = self.op(f"getelementptr ptr, ptr %operands, i64 {index}")
        return self.op(f"load ptr, ptr {p}", "p")

    def address(self, base: str, dtype: str, index: str | int) -> str:
        """Address of element ``index`` of type ``dtype`` after ``base``."""
        if index == 0:
            return base
        unit = "i8" if dtype == "bool" else scalar(dtype)
        return self.op(f"getelementptr {unit}, ptr {base}, i64 {index}", "a")

    def prefetch(self, address: str, count: int) -> None:
        """Ask for ``count`` bytes that will soon be read; an address outside of what is there does no harm."""
        self.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        for offset in range(0, count, 64):
            at = self.op(f"getelementptr i8, ptr {address}, i64 {offset}") if offset else address
            self.emit(f"call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 3, i32 1)")

    # control flow

    @contextmanager
    def loop(self, start: str | int, stop: str | int, step: str | int = 1) -> Iterator[str]:
        """``for i in range(start, stop, step)`` with a positive step; yields ``i``."""
        with self.loop_carrying(start, stop, step, ()) as (i, _, _):
            yield i

    @contextmanager
    def loop_carrying(
        self, start: str | int, stop: str | int, step: str | int, initial: tuple[tuple[str, str], ...]
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """A counted loop that carries values.

        Args:
            start: First index.
            stop: End, excluded.
            step: Positive.
            initial: LLVM type and starting value of each carried value.

        Yields:
            The index, the carried values inside the body, and a list that the body must fill with the next values.
            After the loop the same list holds the final values.
        """
        self._count += 1
        tag = f"loop{self._count}"
        before = self._block
        self.emit(f"br label %{tag}.head")
        self.label(f"{tag}.head")
        head_at = len(self._lines)
        i = f"%{tag}.i"
        carried = [f"%{tag}.c{k}" for k in range(len(initial))]
        test = self.op(f"icmp slt i64 {i}, {stop}")
        self.emit(f"br i1 {test}, label %{tag}.body, label %{tag}.end")
        self.label(f"{tag}.body")
        following: list[str] = []
        yield i, carried, following
        if len(following) != len(initial):
            raise ValueError("the loop's body must give a next value for each carried value")
        after = self.op(f"add nsw i64 {i}, {step}")
        latch = self._block
        self.emit(f"br label %{tag}.head")
        phis = [f"  {i} = phi i64 [ {start}, %{before} ], [ {after}, %{latch} ]"]
        for (type_, first), name, later in zip(initial, carried, following, strict=True):
            phis.append(f"  {name} = phi {type_} [ {first}, %{before} ], [ {later}, %{latch} ]")
        self._lines[head_at:head_at] = phis
        self.label(f"{tag}.end")
        following[:] = carried

    @contextmanager
    def when(self, condition: str | None) -> Iterator[None]:
        """``if condition:``, always for None; gives no value."""
        if condition is None:
            yield
            return
        self._count += 1
        tag = f"when{self._count}"
        self.emit(f"br i1 {condition}, label %{tag}.then, label %{tag}.end")
        self.label(f"{tag}.then")
        yield
        self.emit(f"br label %{tag}.end")
        self.label(f"{tag}.end")

    def branch(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """``if condition: then() else: otherwise()``; neither gives a value."""
        self._count += 1
        tag = f"if{self._count}"
        target = f"{tag}.else" if otherwise is not None else f"{tag}.end"
        self.emit(f"br i1 {condition}, label %{tag}.then, label %{target}")
        self.label(f"{tag}.then")
        then()
        self.emit(f"br label %{tag}.end")
        if otherwise is not None:
            self.label(f"{tag}.else")
            otherwise()
            self.emit(f"br label %{tag}.end")
        self.label(f"{tag}.end")


def module_text(functions: Sequence[Builder]) -> str:
    """The text of a module of ``functions``."""
    declarations = dict.fromkeys(d for f in functions for d in f.declarations)
    return "\n".join([*declarations, *(f.definition() for f in functions)])
