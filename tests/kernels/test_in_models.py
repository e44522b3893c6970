"""Declared kernels as steps of a plan: each kind, beside the reference of its operator."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import numpy as np
import pytest

import accord
from accord.backends.protocol import NativeKernel
from accord.errors import AccordError, ContractError, ExecutionError, InputError
from accord.expr.lang import call
from builders import model, node

Tensor = accord.Tensor
F = np.float32

SCALE = """
#include <stdint.h>
#include <stddef.h>
int32_t scale_rows(const float *x, const float *w, float *y, int64_t N, int64_t D, double alpha,
                   const int64_t *shift, int64_t shift_count, const char *mode,
                   float *workspace, int64_t workspace_bytes, void *stream) {
    if (workspace_bytes < 4 * D) return 7;
    if ((uintptr_t)x % 64 || (uintptr_t)y % 64) return 9;
    double total = mode[0] == 's' ? 1 : 2;
    for (int64_t k = 0; k < shift_count; k++) total += shift[k];
    for (int64_t d = 0; d < D; d++) workspace[d] = w ? w[d] * (float)alpha : (float)alpha;
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) y[n * D + d] = x[n * D + d] * workspace[d] + (float)total;
    return x[0] == 12345.0f ? 42 : 0;
}
int32_t strided(const float *x, float *y, int64_t N, int64_t D, int64_t sx0, int64_t sx1, int64_t sy0, int64_t sy1,
                void *stream) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) y[n * sy0 + d * sy1] = 2 * x[n * sx0 + d * sx1];
    return 0;
}
"""


PAIR = """
#include <stdint.h>
int32_t pair(const float *x, const float *b, float *y, int64_t N, int64_t D, int64_t x0, int64_t x1, int64_t b0,
             int64_t y0, int64_t y1, void *stream) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) y[n * y0 + d * y1] = 2 * x[n * x0 + d * x1] + 0 * b[d * b0];
    return 0;
}
"""


def declare_scale():
    @accord.operator("shop::ScaleRows")
    def scale_rows(
        x: Tensor["float32", "N", "D"],
        w: Tensor["float32", "D"] | None = None,
        *,
        alpha: float = 0.5,
        shift: list[int] = (1, 2),
        mode: str = "single",
    ) -> Tensor["float32", "N", "D"]:
        return x * (F(alpha) if w is None else w * F(alpha)) + F((1 if mode[0] == "s" else 2) + sum(shift))

    return scale_rows.execution(workspace="4 * D", alignment=64)


def scaled(**attributes):
    return model(
        [
            node("Relu", ["x"], ["r"]),
            node("ScaleRows", ["r", "w"], ["s"], domain="shop", **attributes),
            node("ScaleRows", ["s"], ["t"], domain="shop", mode="double"),
            node("Neg", ["t"], ["y"]),
        ],
        {"x": (F, ["n", "d"]), "w": (F, ["d"])},
        ["y"],
        domains={"shop": 1},
    )


def steps(m):
    return [s.kernel.name for s in m.plan.steps]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_c_function_is_a_native_step(build, threads):
    operator = declare_scale().library(build("scale", SCALE), "scale_rows")
    m = accord.load(scaled(alpha=0.25, shift=[3, -1, 4], mode="some"), threads=threads)
    rng = np.random.default_rng(0)
    for n, d in [(1, 1), (3, 7), (64, 33), (3, 7)]:
        x, w = rng.standard_normal((n, d)).astype(F), rng.standard_normal(d).astype(F)
        first = operator(np.maximum(x, 0), w, alpha=0.25, shift=[3, -1, 4], mode="some")
        expected = -operator(first, None, alpha=0.5, mode="double")
        np.testing.assert_allclose(m(x, w)[0], expected, rtol=1e-6)
    assert all(isinstance(s.kernel, NativeKernel) for s in m.plan.steps), steps(m)


def test_what_is_not_aligned_is_copied(build):
    operator = declare_scale().library(build("scale", SCALE), "scale_rows")
    proto = model([node("ScaleRows", ["x"], ["y"], domain="shop")], {"x": (F, ["n", "d"])}, ["y"], domains={"shop": 1})
    m = accord.load(proto)
    memory = np.zeros(200, F)
    start = (-memory.ctypes.data // 4) % 16
    for shift in range(16):
        x = memory[start + shift : start + shift + 30].reshape(5, 6)
        x[:] = np.arange(30).reshape(5, 6)
        np.testing.assert_allclose(m(x)[0], operator(x), rtol=1e-6)


def test_a_status_names_node_and_kernel(build):
    declare_scale().library(build("scale", SCALE), "scale_rows")
    m = accord.load(scaled())
    x = np.ones((2, 2), F)
    x[0, 0] = 12345
    with pytest.raises(ExecutionError, match=r"ScaleRows.*status 42"):
        m(x, np.ones(2, F))
    assert np.isfinite(m(np.ones((2, 2), F), np.ones(2, F))[0]).all()


def test_strides_are_handed_over(build):
    @accord.operator("shop::Twice")
    def twice(x: Tensor["float32", "N", "D"]) -> Tensor["float32", "N", "D"]:
        return x * 2

    twice.execution(layouts=("contiguous", "strided")).library(build("scale", SCALE), "strided")
    proto = model(
        [
            node("Transpose", ["x"], ["t"], perm=[1, 0]),
            node("Twice", ["t"], ["s"], domain="shop"),
            node("Concat", ["s", "t"], ["y"], axis=1),
        ],
        {"x": (F, ["d", "n"])},
        ["y"],
        domains={"shop": 1},
    )
    m = accord.load(proto)
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(F)
    np.testing.assert_array_equal(m(x)[0], np.concatenate([2 * x.T, x.T], 1))
    assert not any("transpose" in s.lower() for s in steps(m)[:1]), "the kernel walks the transposed view"


def test_an_expression_fuses_like_a_built_in_operator():
    @accord.operator("shop::Quick")
    def quick(x: Tensor["T", ..., "D"], b: Tensor["T", "D"], *, slope: float = 1.702) -> Tensor["T", ..., "D"]:
        z = (x + b).astype(F)
        return (z / (1 + np.exp(-slope * z))).astype(x.dtype)

    quick.types(T=["float32", "float16"]).scheduling(fuses="elementwise")

    @quick.expression
    def element(x, b, *, slope):
        z = x + b
        return z * call("sigmoid", z * slope)

    for dtype in (F, np.float16):
        w = np.random.default_rng(1).standard_normal((8, 6)).astype(dtype)
        proto = model(
            [
                node("MatMul", ["x", "w"], ["m"]),
                node("Quick", ["m", "b"], ["q"], domain="shop", slope=1.5),
                node("Add", ["q", "x"], ["y"]),
            ],
            {"x": (dtype, ["n", 8]), "b": (dtype, [8])},
            ["y"],
            {"w": np.ascontiguousarray(w @ w.T)},
            domains={"shop": 1},
        )
        m = accord.load(proto)
        assert len(m.plan.steps) == 1, steps(m)
        x = np.random.default_rng(0).standard_normal((5, 8)).astype(dtype)
        b = np.linspace(-1, 1, 8).astype(dtype)
        expected = quick((x @ (w @ w.T)).astype(dtype), b, slope=1.5) + x
        np.testing.assert_allclose(m(x, b)[0], expected, rtol=2e-2 if dtype == np.float16 else 1e-4, atol=1e-2)


def test_a_composition_is_optimised_like_any_model():
    @accord.operator("shop::Shuffle")
    def shuffle(x: Tensor["T", "N", "C", "H", "W"], *, groups: int = 2) -> Tensor["T", "N", "C", "H", "W"]:
        n, c, h, w = x.shape
        return x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(n, c, h, w)

    shuffle.constraint("C % groups == 0")

    @shuffle.composition(constraints=["groups <= 4"])
    def shuffled(b, x, *, groups):
        *_, h, w = b.shape(x)
        y = b("Reshape", x, b.ints(0, groups, -1, *(s if isinstance(s, int) else 0 for s in (h, w))))
        return b("Reshape", b("Transpose", y, perm=[0, 2, 1, 3, 4]), b("Shape", x))

    proto = model(
        [node("Shuffle", ["x"], ["s"], domain="shop", groups=2), node("Relu", ["s"], ["y"])],
        {"x": (F, ["n", 8, 4, 4])},
        ["y"],
        domains={"shop": 1},
    )
    m = accord.load(proto)
    x = np.random.default_rng(0).standard_normal((2, 8, 4, 4)).astype(F)
    np.testing.assert_array_equal(m(x)[0], np.maximum(shuffle(x, groups=2), 0))
    assert len(m.plan.steps) == 1, steps(m)
    assert "compose-operators" in {p.rule for p in m.compiled.log.patches}


def test_a_composition_may_hold_what_a_models_own_operators_are_rewritten_from():
    """Operators for which no device has a kernel, as they are always written in others."""

    @accord.operator("shop::Positive")
    def positive(x: Tensor["float32", "N", "D"], b: Tensor["float32", "D"]) -> Tensor["float32", "kept"]:
        total = np.maximum(x + b, 0).sum(1)
        return total[total > 1]

    @positive.composition
    def made(b, x, bias):
        total = b("ReduceSum", b("FastGelu", x, bias, domain="com.microsoft"), b.ints(1), keepdims=0)
        return b("Compress", total, b("Greater", total, b.const(np.array(1, F))), axis=0)

    proto = model([node("Positive", ["x", "b"], ["y"], domain="shop")], {"x": (F, ["n", 3]), "b": (F, [3])}, ["y"],
                  domains={"shop": 1})  # fmt: skip
    m = accord.load(proto)
    assert not [s for s in m.plan.steps if s.placement.backend == "reference"], steps(m)
    got = m(np.array([[9, 9, 9], [-9, -9, -9], [9, -9, 0]], F), np.zeros(3, F))[0]
    np.testing.assert_allclose(got, [27, 9], rtol=1e-4)


def test_a_python_kernel_runs_in_place_of_the_reference():
    @accord.operator("shop::Count")
    def count(x: Tensor["float32", "N"]) -> Tensor["int64", 1]:
        raise AssertionError("the kernel runs")

    @count.python
    def counted(x):
        return np.array([np.count_nonzero(x)])

    m = accord.load(model([node("Count", ["x"], ["y"], domain="shop")], {"x": (F, ["n"])}, ["y"], domains={"shop": 1}))
    assert m(np.array([0, 1, 2], F))[0].tolist() == [2]


def test_the_first_kernel_that_fits_is_taken():
    @accord.operator("shop::Half")
    def half(x: Tensor["T", "N"]) -> Tensor["T", "N"]:
        return x / 2

    half.types(T=["float32", "float64"])
    half.kernel("even", "python", lambda x: np.full_like(x, 1), constraints=["N % 2 == 0"])
    half.kernel("wide", "python", lambda x: np.full_like(x, 2), types={"T": ["float64"]})
    half.kernel("any", "python", lambda x: np.full_like(x, 3))
    for dtype, n, expected in [(F, 4, 1), (np.float64, 3, 2), (F, 3, 3)]:
        proto = model([node("Half", ["x"], ["y"], domain="shop")], {"x": (dtype, [n])}, ["y"], domains={"shop": 1})
        assert (accord.load(proto)(np.ones(n, dtype))[0] == expected).all()


def test_a_missing_library_or_function_is_an_error_at_load(build):
    operator = declare_scale().library("nowhere.so", "scale_rows")
    with pytest.raises(ContractError, match=r"nowhere\.so cannot be opened"):
        accord.load(scaled())
    operator.unregister()
    declare_scale().library(build("scale", SCALE), "scale_columns")
    with pytest.raises(ContractError, match="no function 'scale_columns'"):
        accord.load(scaled())


def test_an_expression_that_raises_is_named():
    @accord.operator("shop::Bad")
    def bad(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
        return x

    bad.scheduling(fuses="elementwise")
    bad.expression(lambda x: x.nothing)
    proto = model([node("Bad", ["x"], ["y"], domain="shop")], {"x": (F, ["n"])}, ["y"], domains={"shop": 1})
    with pytest.raises(AccordError, match=r"shop::Bad.*AttributeError"):
        accord.load(proto)


LINEAR = """
#include <stdint.h>
#include <stddef.h>
typedef void (*finish)(const void *, void *, int64_t, int64_t);
int32_t linear(const float *x, const float *w, float *y, int64_t K, int64_t M, int64_t lead,
               finish epilogue, const void *context, void *stream) {
    for (int64_t n = 0; n < lead; n++) {
        for (int64_t m = 0; m < M; m++) {
            float s = 0;
            for (int64_t k = 0; k < K; k++) s += x[n * K + k] * w[k * M + m];
            y[n * M + m] = s;
        }
        /* blocks that are no multiple of a row */
        if (epilogue && n % 2) epilogue(context, y + (n - 1) * M, (n - 1) * M, 2 * M);
        else if (epilogue && n == lead - 1) {
            epilogue(context, y + n * M, n * M, M / 2);
            epilogue(context, y + n * M + M / 2, n * M + M / 2, M - M / 2);
        }
    }
    return 0;
}
"""


@pytest.mark.parametrize("declares", [True, False])
def test_a_c_function_that_declares_an_epilogue_takes_what_follows(build, declares):
    @accord.operator("shop::Linear")
    def linear(x: Tensor["float32", ..., "K"], w: Tensor["float32", "K", "M"]) -> Tensor["float32", ..., "M"]:
        return x @ w

    linear.scheduling(epilogue=declares)
    source = (
        LINEAR
        if declares
        else LINEAR.replace("finish epilogue, const void *context,", "").replace(
            "    for (int64_t n", "    finish epilogue = 0; const void *context = 0;\n    for (int64_t n", 1
        )
    )
    linear.library(build(f"linear{declares}", source), "linear")
    proto = model(
        [
            node("Linear", ["x", "w"], ["l"], domain="shop"),
            node("Add", ["l", "b"], ["a"]),
            node("Sigmoid", ["a"], ["s"]),
            node("Mul", ["s", "column"], ["m"]),
            node("Add", ["m", "other"], ["y"]),
        ],
        {"x": (F, ["p", "n", 6]), "column": (F, ["n", 1]), "other": (F, ["p", "n", 21])},
        ["y"],
        {"w": np.linspace(-1, 1, 126).reshape(6, 21).astype(F), "b": np.linspace(-2, 2, 21).astype(F)},
        domains={"shop": 1},
    )
    m = accord.load(proto, threads=1)
    assert len(m.plan.steps) == (1 if declares else 2), steps(m)
    rng = np.random.default_rng(0)
    for p, n in [(1, 1), (2, 3), (3, 5), (1, 8), (0, 4)]:
        x, column, other = (rng.standard_normal(s).astype(F) for s in [(p, n, 6), (n, 1), (p, n, 21)])
        z = x @ np.linspace(-1, 1, 126).reshape(6, 21).astype(F) + np.linspace(-2, 2, 21).astype(F)
        np.testing.assert_allclose(m(x, column, other)[0], column / (1 + np.exp(-z)) + other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", ["c", "python", "reference"])
def test_a_condition_that_only_a_run_can_tell_is_checked_then(build, kernel):
    @accord.operator("shop::Twice")
    def twice(x: Tensor["float32", "N", "D"], b: Tensor["float32", "D"]) -> Tensor["float32", "N", "D"]:
        return x * 2

    twice.constraint("N % 2 == 0 or D > 3", "D != 1")
    if kernel == "c":
        twice.execution(layouts=("contiguous", "strided")).library(build("pair", PAIR), "pair")
    elif kernel == "python":
        twice.python(lambda x, b: x * 2)
    proto = model(
        [node("Twice", ["x", "b"], ["y"], domain="shop")], {"x": (F, ["n", "d"]), "b": (F, ["e"])}, ["y"],
        domains={"shop": 1},
    )  # fmt: skip
    m = accord.load(proto)
    for n, d in [(2, 3), (3, 4), (4, 2)]:
        assert (m(np.ones((n, d), F), np.ones(d, F))[0] == 2).all()
    for n, d, condition in [(3, 3, "N % 2 == 0 or D > 3"), (2, 1, "D != 1")]:
        with pytest.raises(InputError, match=f"condition '{condition}' does not hold"):
            m(np.ones((n, d), F), np.ones(d, F))
    with pytest.raises(InputError, match="sizes 'D' of the contract do not fit"):
        m(np.ones((2, 4), F), np.ones(5, F))


def test_a_kernel_that_needs_an_optional_input_is_not_taken_without():
    @accord.operator("shop::Shift")
    def shift(x: Tensor["float32", "N"], b: Tensor["float32", "N"] | None = None) -> Tensor["float32", "N"]:
        return x if b is None else x + b

    shift.python(name="with", execution={"nullable": ()})(lambda x, b: x + b + 10)
    for names, expected in [(["x", "b"], 12), (["x"], 1)]:
        proto = model([node("Shift", names, ["y"], domain="shop")], {n: (F, [3]) for n in names}, ["y"],
                      domains={"shop": 1})  # fmt: skip
        assert (accord.load(proto)(*[np.ones(3, F)] * len(names))[0] == expected).all()
