"""Runs expressions over arrays through the CPU printer."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from accord.backends.cpu.jit import compile_function
from accord.backends.cpu.llvm import Builder
from accord.backends.cpu.printer import Printer
from accord.expr.lang import Expr, topological

Array = np.ndarray[Any, Any]

NUMPY: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "bool": np.bool_,
    **{f"{s[0]}{n}": getattr(np, f"{s}{n}") for s in ("int", "uint") for n in (8, 16, 32, 64)},
}
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def operand_types(expr: Expr, n_operands: int) -> list[str]:
    types = ["f32"] * n_operands
    for node in topological((expr,)):
        if node.op == "operand":
            types[int(node.value or 0)] = node.dtype
    return types


def module_of(expr: Expr, n_operands: int, width: int, missing: frozenset[str] | None = None) -> tuple[str, str]:
    """Name and text of a kernel that applies ``expr`` to contiguous arrays: a vector loop and a masked tail."""
    types = operand_types(expr, n_operands)
    text = f"{expr.key} {n_operands} {width} {missing}"
    b = Builder("test_" + hashlib.sha256(text.encode()).hexdigest()[:32])
    pointers = [b.operand(i) for i in range(n_operands + 1)]
    count = b.param(0)

    def element(index: str, rest: str | None) -> None:
        printer = Printer(b, width, missing)
        at = [b.address(p, t, index) for p, t in zip(pointers, [*types, expr.dtype], strict=True)]
        if rest is None:
            loaded = [printer.load(t, a) for t, a in zip(types, at, strict=False)]
            printer.store(expr.dtype, printer.value(expr, loaded), at[-1])
        else:
            loaded = [printer.load_masked(t, a, rest) for t, a in zip(types, at, strict=False)]
            printer.store_masked(expr.dtype, printer.value(expr, loaded), at[-1], rest)

    full = b.mul(b.op(f"sdiv i64 {count}, {width}"), width)
    with b.loop(0, full, width) as i:
        element(i, None)
    left = b.sub(count, full)
    if width > 1:
        b.branch(b.compare("sgt", left, 0), lambda: element(full, left))
    return b.name, b.module()


def compile_elementwise(
    expr: Expr, n_operands: int, width: int = 16, missing: frozenset[str] | None = None
) -> Callable[..., Array]:
    """A function of ``n_operands`` equally long arrays."""
    types = operand_types(expr, n_operands)
    name, text = module_of(expr, n_operands, width, missing)
    kernel = KERNEL(compile_function(name, text))

    def run(*arrays: Array, out: Array | None = None) -> Array:
        assert len(arrays) == n_operands
        inputs = [np.ascontiguousarray(a, NUMPY[t]) for a, t in zip(arrays, types, strict=True)]
        result = np.empty(inputs[0].shape, NUMPY[expr.dtype]) if out is None else out
        pointers = (ctypes.c_void_p * (n_operands + 1))(*(a.ctypes.data for a in (*inputs, result)))
        params = (ctypes.c_int64 * 1)(result.size)
        kernel(ctypes.addressof(params), ctypes.addressof(pointers), 0, 1, 0)
        return result

    return run
