"""Loop programs and expressions through the CPU's kernels and through Triton's interpreter."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from accord.backends.cpu import backend as cpu
from accord.backends.cuda.loops import geometry, loop_kernel
from accord.backends.cuda.printer import TritonPrinter
from accord.contract.code import TritonCode
from accord.expr.lang import Expr
from accord.ir import dims as D
from accord.kernels.interpreter import interpret_elsewhere
from accord.kernels.launch import Launch, Memory
from accord.kernels.triton import CompiledTriton, compile_launch

Array = np.ndarray[Any, Any]
NUMPY: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "bool": np.bool_,
    **{f"{s[0]}{n}": getattr(np, f"{s}{n}") for s in ("int", "uint") for n in (8, 16, 32, 64)},
}


def function_of(folder: Path, name: str, text: str, entry: str = "") -> Any:
    """The function ``entry``, or ``name``, of the module ``name`` with this text."""
    file = folder / f"{name}.py"
    if not file.exists():
        file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, entry or name)


def compiled(
    folder: Path, symbol: str, text: str, values: dict[str, Any], target: int, **options: int
) -> CompiledTriton:
    """A function compiled for an architecture; ``values`` of its parameters by name, memory as its type."""
    given = {n: Memory(256, (1,), (1,), v) if isinstance(v, str) else v for n, v in values.items()}
    code = TritonCode(function_of(folder, symbol, text), (1,), {})
    return compile_launch(code, Launch(code, given, options, (1, 1, 1), {}), target, symbol)


def memory(array: Array) -> Memory:
    plain = array.view(np.int8) if array.dtype == bool else array
    return Memory(plain.ctypes.data, plain.shape, (1,), str(plain.dtype))


def elementwise(
    folder: Path, name: str, expr: Expr, arrays: list[Array], types: list[str], *, short: str = ""
) -> Array:
    """``expr`` of whole arrays."""
    lines: list[str] = []
    value = TritonPrinter(lines, short=short).value(expr, [f"a{k}" for k in range(len(types))])
    loads = [f"a{k} = tl.load(x{k} + i, mask=mask)" + (" != 0" if t == "bool" else "") for k, t in enumerate(types)]
    stored = f"{value}.to(tl.int8)" if expr.dtype == "bool" else value
    body = "\n    ".join([*loads, *lines, f"tl.store(out + i, {stored}, mask=mask)"])
    text = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def {name}({', '.join(f'x{k}' for k in range(len(types)))}, out, n, BLOCK: tl.constexpr):\n"
        f"    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    mask = i < n\n    {body}\n"
    )
    out = np.zeros(arrays[0].shape, NUMPY[expr.dtype])
    arguments = {f"x{k}": memory(a) for k, a in enumerate(arrays)} | {"out": memory(out), "n": out.size, "BLOCK": 256}
    call = (function_of(folder, name, text), arguments, (-(-out.size // 256), 1, 1))
    interpret_elsewhere([call], [*arrays, out], name)
    return out


class Program:
    """A loop program with operands drawn for some values of its symbols.

    Args:
        program: The program.
        phase: The CPU's phase for it.
        sources: For each operand with memory, which of the kernel's operands it is.
        scratch: Bytes of workspace, symbolic.
        rng: For sizes and contents.
    """

    def __init__(self, program, phase, sources, scratch, rng) -> None:
        self.program, self.phase, self.scratch = program, phase, scratch
        accessed = (*program.extents, *(d for a in program.accesses for d in (*a.strides, a.offset)))
        symbols = sorted(set().union(*map(D.symbols_of, accessed)))
        self.env = {s: int(rng.integers(1, 40)) for s in symbols}
        self.extents = [D.evaluate(e, self.env) for e in program.extents]
        self.sources = list(sources)
        self.inputs: dict[int, Array] = {}
        sizes: dict[int, int] = {}
        read = [o for o in program.operands if o.memory]
        for number, o in zip(self.sources, read, strict=True):
            sizes[number] = max(sizes.get(number, 0), self._reach(o.access))
            self.inputs[number] = _drawn(o.dtype, sizes[number], rng)
        self.targets = [len(self.inputs) + k for k in range(len(program.outputs))]

    def _reach(self, access) -> int:
        steps = (D.evaluate(s, self.env) * (n - 1) for s, n in zip(access.strides, self.extents, strict=True))
        return 1 + D.evaluate(access.offset, self.env) + sum(max(0, s) for s in steps)

    def _outputs(self) -> list[Array]:
        return [np.zeros(self._reach(o.access) + 3, NUMPY[o.expr.dtype]) for o in self.program.outputs]

    def on_cpu(self) -> list[Array]:
        outputs = self._outputs()
        memories = [self.inputs[k] for k in sorted(self.inputs)] + outputs
        memories.append(np.zeros(max(8, D.evaluate(self.scratch, self.env)), np.uint8))
        table = np.array([memories[k].ctypes.data for k in self.phase.operands], np.int64)
        launch = self.phase.launch([D.evaluate(d, self.env) for d in self.phase.dims])
        if launch.tasks:
            cpu.program([(self.phase, launch)], [table]).run()
        return outputs

    def in_triton(self, folder: Path) -> list[Array]:
        kernel, dims = loop_kernel(self.program)
        outputs = self._outputs()
        sizes = [D.evaluate(d, self.env) for d in dims]
        shape = geometry(kernel, sizes)
        function = function_of(folder, kernel.symbol, kernel.text())
        pointers = iter([*(self.inputs[k] for k in self.sources), *outputs])
        numbers = iter(sizes)
        constants = {"BM": shape.rows, "BR": shape.columns, "WHOLE": shape.whole, "WIDE": False}
        arguments = {
            n: memory(next(pointers)) if n[0] == "p" else constants[n] if n in constants else next(numbers)
            for n in function.arg_names
        }
        interpret_elsewhere([(function, arguments, (*shape.grid, 1))], [*self.inputs.values(), *outputs], kernel.symbol)
        return outputs


def _drawn(dtype: str, size: int, rng) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, size).astype(bool)
    if dtype[0] in "iu":
        return rng.integers(0, 7, size).astype(NUMPY[dtype])
    return rng.standard_normal(size).astype(NUMPY[dtype])
