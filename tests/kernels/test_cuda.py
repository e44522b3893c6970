"""CUDA C++ without a GPU: compiled for every architecture and held against limits."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import numpy as np
import pytest

import accord
from accord.contract.code import CudaCode
from accord.errors import AccordError, BackendError
from accord.kernels.architectures import ARCHITECTURES, compile_report
from accord.kernels.bound import bind_kernel
from accord.kernels.device import visible
from accord.kernels.launch import Memory

pytest.importorskip("cuda.core", reason="cuda-core is not installed (pip install 'accord[cuda]')")
pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed (pip install 'accord[cuda]')")

Tensor = accord.Tensor
F = np.float32

SCALE = """
extern "C" __global__ void scale(const T *x, const T *w, T *output, long long N, long long D, float alpha) {
    long long i = blockIdx.x * (long long)BLOCK + threadIdx.x;
    if (i < N * D) output[i] = (T)((float)x[i] * (w ? (float)w[i % D] : 1.0f) * alpha);
}
"""
#: Static shared memory 512 bytes below and above what a block of sm_86 has; both are dynamic in fact.
STAGED = """
extern __shared__ float staged[];
extern "C" __global__ void reverse(const float *x, float *output, long long D) {
    for (int i = threadIdx.x; i < D; i += blockDim.x) staged[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < D; i += blockDim.x) output[i] = staged[D - 1 - i];
}
"""
STATIC = """
extern "C" __global__ void reverse(const float *x, float *output, long long D) {
    __shared__ float staged[FLOATS];
    for (int i = threadIdx.x; i < D; i += blockDim.x) staged[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < D; i += blockDim.x) output[i] = staged[D - 1 - i];
}
"""
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024) reverse(const float *x, float *output, long long D) {
    float v[96];
    #pragma unroll
    for (int i = 0; i < 96; i++) v[i] = x[threadIdx.x + i * 1024];
    #pragma unroll
    for (int r = 0; r < 4; r++)
        #pragma unroll
        for (int i = 0; i < 96; i++) v[i] = v[i] * v[(i * 7 + 5 + r) % 96] + v[(i * 11 + 1) % 96];
    #pragma unroll
    for (int i = 0; i < 96; i++) output[threadIdx.x + i * 1024] = v[i];
}
"""
BROKEN = """// a comment

extern "C" __global__ void reverse(const float *x, float *output, long long D) {
    output[threadIdx.x] = x[threadIdx.x] * facotr;
}
"""


def declare_scale():
    @accord.operator("shop::Scale")
    def scale(
        x: Tensor["T", "N", "D"], w: Tensor["T", "D"] | None = None, *, alpha: float = 0.5
    ) -> Tensor["T", "N", "D"]:
        return x * alpha if w is None else x * w * alpha

    scale.types(T=["float32", "float16", "bfloat16"])
    names = ("x", "w", "output", "N", "D", "alpha")
    grid = lambda k: (-(-k["N"] * k["D"] // k["BLOCK"]),)  # noqa: E731
    return scale.cuda(CudaCode(SCALE, "scale", names, grid, lambda k: (k["BLOCK"],), meta={"BLOCK": 256}))


def reverse(source, architectures=("sm_86", "sm_90"), **parts):
    @accord.operator("shop::Reverse")
    def reverse(x: Tensor["float32", "D"]) -> Tensor["float32", "D"]:
        return x[::-1]

    code = CudaCode(source, "reverse", ("x", "output", "D"), lambda k: (1,), lambda k: (1024,), **parts)
    c = reverse.cuda(code).contract
    return {r.architecture: r for r in compile_report(c, c.kernels[0], architectures)}


def test_every_architecture_compiles_with_what_it_takes():
    c = declare_scale().contract
    report = compile_report(c, c.kernels[0])
    assert {r.architecture for r in report} == set(ARCHITECTURES)
    assert {r.types["T"] for r in report} == {"float32", "float16", "bfloat16"}
    for r in report:
        assert not r.faults and not r.remarks and r.threads == 256 and 8 <= r.registers <= 64, r


@pytest.mark.parametrize("over", [0, 512])
def test_dynamic_shared_memory_is_held_against_the_limit(over):
    limit = ARCHITECTURES["sm_86"].shared
    report = reverse(STAGED, shared=limit + over)
    assert not report["sm_90"].faults and report["sm_90"].shared == limit + over
    if over:
        (fault,) = report["sm_86"].faults
        assert "512 more than the 101376 of sm_86" in fault
        assert report["sm_86"].blocks == 0
    else:
        assert not report["sm_86"].faults and report["sm_86"].blocks == 1


@pytest.mark.parametrize("over", [0, 64])
def test_static_shared_memory_is_held_against_its_own_limit(over):
    report = reverse(STATIC, meta={"FLOATS": 12288 + over})
    for r in report.values():
        assert bool(r.faults) == bool(over), r
        assert not over or "0x" in r.faults[0] or "48" in r.faults[0] or "49152" in r.faults[0]


def test_static_shared_memory_does_not_count_what_the_system_takes():
    assert {r.shared for r in reverse(STATIC, meta={"FLOATS": 1000}).values()} == {4000}


def test_spilled_registers_are_remarked():
    for r in reverse(SPILLS).values():
        assert r.spills > 0 and r.registers <= 64 and any("spills" in m for m in r.remarks), r


def test_a_compile_error_has_the_authors_line():
    for r in reverse(BROKEN).values():
        assert 'reverse.cu(4): error: identifier "facotr" is undefined' in r.faults[0], r.faults


def test_a_name_that_the_text_does_not_have():
    for r in reverse(SCALE.replace("T *", "float *").replace("(T)", ""), meta={"BLOCK": 32}).values():
        assert "no kernel 'reverse'" in r.faults[0]


@pytest.mark.parametrize("parts", [{"options": ("--nonsense",)}, {"meta": lambda k: {"N": k["missing"]}}])
def test_a_declaration_that_makes_no_sense(parts):
    for r in reverse(STAGED, **parts).values():
        assert r.faults


def test_what_the_driver_is_given(monkeypatch):
    """Without a GPU as well: machine code for its architecture, the grid, and arguments in the kernel's order."""
    started = []
    monkeypatch.setattr("accord.kernels.device.architecture", lambda: 90)
    monkeypatch.setattr("accord.kernels.cuda.launch", lambda *given: started.append(given))
    c = declare_scale().contract
    x, y = Memory(4096, (100, 3), (3, 1), "float32"), Memory(8192, (100, 3), (3, 1), "float32")
    bind_kernel(c, c.kernels[0], {"T": "tensor(float)"}).prepared([x, None], [y], {"alpha": 0.25}, stream=7)()
    ((cubin, name, stream, grid, block, shared, arguments),) = started
    assert cubin[:4] == b"\x7fELF" and (name, stream) == ("scale", 7)
    assert (grid, block, shared) == ((2, 1, 1), (256, 1, 1), 0)
    assert arguments == [("p", 4096), ("p", 0), ("p", 8192), ("l", 100), ("l", 3), ("f", 0.25)]


@pytest.mark.skipif(visible(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    c = declare_scale().contract
    x = np.zeros((2, 3), F)
    with pytest.raises(BackendError, match="no GPU that this process can use"):
        bind_kernel(c, c.kernels[0], {"T": "tensor(float)"})([x], [x.copy()], {"alpha": 1.0})
    assert issubclass(BackendError, AccordError)
