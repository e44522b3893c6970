"""Runs expressions over arrays through the CPU printer."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from accord.backends.cpu.compiler import initialise
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

#: Primitives without an instruction on machines before AVX-512.
STAND_INS = frozenset({"ldexp", "exponent", "mantissa"})


def special_values(dtype: str) -> Array:
    """Values of ``dtype`` at which implementations differ, and some ordinary ones."""
    rng = np.random.default_rng(1)
    kind = NUMPY[dtype]
    if dtype == "bool":
        return np.array([False, True, True, False, True])
    if dtype[0] in "iu":
        info = np.iinfo(kind)
        edges = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2, 0, 1, 2, 3, 7, 8, 31, 33, 64, 100]
        edges += [-1, -2, -7] if info.min else []
        return np.concatenate([np.array(edges, kind), rng.integers(info.min, info.max, 9, kind, endpoint=True)])
    limits = ml_dtypes.finfo(kind) if dtype == "bf16" else np.finfo(kind)
    edges = [
        0,
        -0.0,
        1,
        -1,
        0.5,
        1.5,
        2.5,
        -2.5,
        0.1,
        -7.25,
        127.5,
        -128.75,
        255,
        32768,
        65504,
        65520,
        1e-8,
        -3e9,
        9.3e18,
    ]
    edges += [np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        return np.concatenate(
            [
                np.array(edges).astype(kind),
                np.array([limits.max, -limits.max, limits.smallest_normal, limits.smallest_subnormal], kind),
                (rng.standard_normal(12) * 10.0 ** rng.integers(-6, 5, 12)).astype(kind),
            ]
        )


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


def assembly(text: str, cpu: str, features: str) -> list[str]:
    """The instructions that LLVM makes of a module for a processor."""
    llvm = initialise()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    target_machine = target.create_target_machine(cpu=cpu, features=features, opt=3, codemodel="jitdefault", jit=True)
    module = llvm.parse_assembly(text)
    module.triple = target_machine.triple
    module.data_layout = str(target_machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    passes = llvm.create_pass_builder(target_machine, options)
    passes.getModulePassManager().run(module, passes)
    return [line.strip() for line in target_machine.emit_assembly(module).splitlines()]


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays are equal bit for bit, except that any NaN equals any other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    raw = a.view(f"u{a.dtype.itemsize}") == b.view(f"u{b.dtype.itemsize}")
    if a.dtype.kind in "fV":
        with np.errstate(invalid="ignore"):
            raw |= np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return bool(raw.all())


def ulps(got: Array, reference: Array) -> Array:
    """Error of ``got``, f32 or f64, in units in the last place of the wider ``reference``; 0 for equal specials.

    A result that should overflow must be infinite, and one that should not must be finite.
    """
    digits, lowest, top = (24, -149, 128) if got.dtype == np.float32 else (53, -1074, 1024)
    half = reference.dtype.type(0.5)
    limit = np.ldexp(1 - half ** (digits + 1), top)  # rounds to infinity from here on
    with np.errstate(all="ignore"):
        power = np.maximum(np.frexp(reference)[1] - digits, lowest)
        error = np.abs(got.astype(reference.dtype) - reference) / np.ldexp(np.ones_like(reference), power)
        over = np.abs(reference) >= limit
        same = np.where(over, got == np.copysign(np.inf, reference), np.isnan(got) & np.isnan(reference))
    return np.where(same, 0.0, np.where(np.isfinite(reference) & np.isfinite(got) & ~over, error, np.inf))
