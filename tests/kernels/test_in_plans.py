"""Machine code of users' kernels as plans on a GPU want it; no GPU is needed to compile it."""

# ruff: noqa: F821, UP037
from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import accord
from accord.contract.code import CudaCode, TritonCode
from accord.errors import CompileError, ContractError
from builders import model, node

triton = pytest.importorskip("triton", reason="Triton is not installed (pip install 'accord[cuda]')")
pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'accord[cuda]')")

import gpu_kernels as kernels  # noqa: E402

from accord.backends.cuda import CudaBackend, code, compilers, driver  # noqa: E402

Tensor = accord.Tensor
F = np.float32


@pytest.fixture(params=[80, 90, 120])
def compiled(request, monkeypatch, tmp_path):
    """What is compiled while models are loaded for a GPU of some architecture, which does nothing else."""
    found = {}
    original = code.binary_of

    def noted(variant, target):
        assert target == request.param
        made = found[variant.kernel.symbol] = original(variant, target)
        return made

    gpu = SimpleNamespace(name="GPU", architecture=request.param, shared=99 << 10, processors=100)
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))
    monkeypatch.setattr(driver, "_device", lambda ordinal: gpu)
    for module in (code, compilers):
        monkeypatch.setattr(module, "binary_of", noted)
    monkeypatch.setattr(code, "_FOUND", {})
    monkeypatch.setattr(CudaBackend, "require", lambda self: None)
    return found


def rows(**clauses):
    @accord.operator("shop::Rows")
    def reference(
        x: Tensor["T", "N", "D"], w: Tensor["T", "D"] | None = None, *, alpha: float = 0.5
    ) -> Tensor["T", "N", "D"]:
        return x * (1 if w is None else w) * alpha

    reference.types(T=["float32", "float16", "bfloat16"])
    own = {"BLOCK": 64, **clauses.pop("meta", {})}
    return reference.triton(TritonCode(clauses.pop("kernel", kernels.scaled_rows), lambda k: (k["N"],), own), **clauses)


def proto(inputs=("x", "w"), after=(), dtype=F):
    shapes = {"x": (dtype, [5, 48]), "w": (dtype, [48]), "o": (dtype, [5, 1])}
    return model(
        [node("Rows", inputs, ["r"], domain="shop"), *after], {n: shapes[n] for n in {*inputs, *("o" for _ in after)}},
        ["y" if after else "r"], domains={"shop": 1},
    )  # fmt: skip


@pytest.mark.parametrize("inputs", [("x", "w"), ("x",)])
def test_a_triton_kernel(compiled, inputs):
    rows(meta={"num_warps": 2})
    accord.load(proto(inputs), device="cuda")
    binary = compiled["scaled_rows"]
    assert binary.threads == 64
    assert 0 <= binary.scratch <= 2
    assert binary.registers > 0


def test_a_triton_kernel_in_clusters(compiled):
    rows(meta={"num_ctas": 2})
    try:
        accord.load(proto(), device="cuda")
    except CompileError as error:  # architectures before sm_90 have none
        assert "sm_80" in str(error)
    else:
        assert compiled["scaled_rows"].cluster == 2


def test_a_triton_kernel_with_what_follows(compiled):
    rows(kernel=kernels.with_epilogue, scheduling={"epilogue": True})
    after = [node("Mul", ["r", "o"], ["m"]), node("Tanh", ["m"], ["y"])]
    m = accord.load(proto(after=after), device="cuda")
    assert [s.kernel.name for s in m.plan.steps if "shop" in s.kernel.name] == ["shop::Rows (triton) + Mul Tanh"]
    assert 0 <= compiled["with_epilogue"].scratch <= 2


@pytest.mark.parametrize("op", ["LayerNorm", "Softmax", "Linear", "Conv2d"])
def test_an_operator_of_the_library_with_what_follows(compiled, op):
    shape = [2, 4, 3, 8] if op == "Conv2d" else [3, 64]
    weights = {"LayerNorm": [[64]], "Softmax": [], "Linear": [[64, 64]], "Conv2d": [[4, 4, 1, 1]]}[op]
    inputs = {f"x{i}": (np.float16, s) for i, s in enumerate([shape, *weights])}
    nodes = [
        node(op, list(inputs), ["h"], domain="accord"),
        node("Mul", ["h", "c"], ["m"]),
        node("Add", ["m", "r"], ["y"]),
    ]
    inputs |= {"c": (np.float16, [shape[-1]]), "r": (np.float16, shape)}
    m = accord.load(model(nodes, inputs, ["y"], domains={"accord": 1}), device="cuda")
    assert [s.kernel.name for s in m.plan.steps if "accord" in s.kernel.name] == [f"accord::{op} (triton) + Mul Add"]
    (binary,) = compiled.values()
    assert 0 <= binary.scratch <= 2


CUDA = """
extern "C" __global__ void scaled(const T *x, const T *w, T *output, long long n, long long d, float alpha) {
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n * d; i += SPAN)
        output[i] = (T)((float)x[i] * (w ? (float)w[i % d] : 1.0f) * alpha);
}
"""


def in_cuda(source=CUDA):
    @accord.operator("shop::Rows")
    def reference(
        x: Tensor["T", "N", "D"], w: Tensor["T", "D"] | None = None, *, alpha: float = 0.5
    ) -> Tensor["T", "N", "D"]:
        return x * (1 if w is None else w) * alpha

    reference.types(T=["float32", "float16"])
    launch = CudaCode(
        source, "scaled", ("x", "w", "output", "N", "D", "alpha"), lambda k: (k["N"],), lambda k: (16, 4), 2048,
        meta={"SPAN": 64},
    )  # fmt: skip
    return reference.cuda(launch)


@pytest.mark.parametrize("dtype", [F, np.float16])
@pytest.mark.parametrize("inputs", [("x", "w"), ("x",)])
def test_a_kernel_in_cuda_cpp(compiled, inputs, dtype):
    in_cuda()
    m = accord.load(proto(inputs, dtype=dtype), device="cuda")
    assert compiled["scaled"].name == "scaled"
    (step,) = [s for s in m.plan.steps if s.kernel.name == "shop::Rows (cuda)"]
    launch = step.kernel.phases[0].launch(())
    assert (launch.grid, launch.block, launch.dynamic) == ((5, 1, 1), (16, 4, 1), 2048)
    pointers = len(inputs) + 1
    numbers = [0] * (len(inputs) == 1) + [5, 48, int(np.float32(0.5).view(np.int32))]
    assert launch.params == tuple(numbers)
    expected = (0, 1, 2, 3, 4, 5) if len(inputs) == 2 else (0, 2, 1, 3, 4, 5)
    assert launch.order == expected
    assert len(step.kernel.phases[0].operands) == pointers


def test_machine_code_is_found_in_the_cache_again(compiled, monkeypatch):
    rows()
    accord.load(proto(), device="cuda")
    first = compiled.pop("scaled_rows")
    monkeypatch.setattr(code, "_FOUND", {})
    monkeypatch.setattr("accord.backends.cuda.declared.compile_function", None)
    accord.load(proto(), device="cuda")
    (again,) = (binary for (variant, _), binary in code._FOUND.items() if variant.kernel.symbol == "scaled_rows")
    assert again == first
    assert not compiled


def test_constants_of_other_types_are_other_machine_code(compiled):
    variants = []
    for value in (1, True, 1.0):
        operator = rows(kernel=kernels.typed_constant, meta={"C": value})
        m = accord.load(proto(("x",)), device="cuda")
        (kernel,) = [s.kernel for s in m.plan.steps if "shop" in s.kernel.name]
        phase = kernel.phases[0]
        variants.append(code.Variant.of(phase.code, phase.launch(()), aligned=True))
        operator.unregister()
    keys = {code._key(v, 80) for v in variants}
    assert len(keys) == 3
    assert len({v.constants for v in variants}) == 3


def test_an_error_of_triton_names_operator_kernel_and_line(compiled):
    rows(kernel=kernels.misspelt)
    with pytest.raises(CompileError) as caught:
        accord.load(proto(), device="cuda")
    text = str(caught.value)
    line = kernels.misspelt.fn.__code__.co_firstlineno + 5
    assert "operator shop::Rows" in text
    assert "Triton kernel 'misspelt'" in text
    assert f"gpu_kernels.py:{line}" in text


def test_an_error_of_cuda_cpp_names_operator_kernel_and_line(compiled):
    in_cuda(CUDA.replace("alpha);", "beta);"))
    with pytest.raises(CompileError) as caught:
        accord.load(proto(), device="cuda")
    text = str(caught.value)
    assert "operator shop::Rows" in text
    assert "CUDA kernel 'scaled'" in text
    assert "scaled.cu(4)" in text


def test_a_declaration_that_does_not_fit_its_kernel_is_an_error_at_load(compiled):
    rows(meta={"DEPTH": 3})
    with pytest.raises(ContractError, match="no parameter of the kernel: DEPTH"):
        accord.load(proto(), device="cuda")
