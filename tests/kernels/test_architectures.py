"""Limits of architectures, resources read from machine code, and the command that shows both."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import accord
from accord.cli import main
from accord.contract.code import CudaCode
from accord.contract.registry import unregister
from accord.errors import CompileError, ContractError
from accord.kernels.architectures import ARCHITECTURES, compile_report, over_limits
from accord.kernels.cubin import Resources, read_resources

Tensor = accord.Tensor


def test_limits_are_consistent():
    for name, a in ARCHITECTURES.items():
        assert name == f"sm_{a.number}"
        assert a.shared + 1024 == a.shared_multiprocessor
        assert a.threads % 32 == 0 and a.registers == 65536


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_just_fits_and_what_does_not(name):
    a = ARCHITECTURES[name]
    small = Resources(32, 0, 0)
    assert over_limits(a, small, a.shared, 128) == ([], 1)
    (fault,), blocks = over_limits(a, small, a.shared + 1, 128)
    assert f"1 more than the {a.shared} of {name}" in fault and blocks == 0
    assert over_limits(a, Resources(64, 0, 0), 0, 1024) == ([], 1)
    (fault,), _ = over_limits(a, Resources(65, 0, 0), 0, 1024)
    assert f"73728 registers, more than the 65536 of {name}" in fault
    assert over_limits(a, small, 0, 32)[1] == min(a.blocks, a.threads // 32)
    assert len(over_limits(a, small, 0, 1056)[0]) == 1


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + bytes(58), b"no object file at all"])
def test_what_is_no_cubin(data):
    with pytest.raises(CompileError, match="no cubin"):
        read_resources(data)


def nvrtc():
    for module in ("cuda.core", "cuda.bindings.nvrtc"):
        pytest.importorskip(module, reason="NVRTC is not installed (pip install 'accord[cuda]')")


def declared(kind="cuda"):
    @accord.operator("shop::Copy")
    def copy(x: Tensor["float32", "N", "C", "D"], *, groups: int, mode: str = "a") -> Tensor["float32", "N", "C", "D"]:
        return x

    copy.constraint("C % groups == 0", "D >= 5", "D % 2 == 1")
    source = """
extern "C" __global__ void copy(const float *x, float *output, long long total) {
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < total) output[i] = x[i];
}
"""
    code = CudaCode(
        source.replace("long long total", "long long N, long long C, long long D").replace("total", "N * C * D"),
        "copy",
        ("x", "output", "N", "C", "D"),
        lambda k: (-(-k["N"] * k["C"] * k["D"] // 256),),
        lambda k: (256,),
    )
    return copy.cuda(code) if kind == "cuda" else copy.kernel("python", "python", lambda x, **_: x)


def test_sizes_are_found_that_the_contract_allows():
    nvrtc()
    c = declared().contract
    r, *_ = compile_report(c, c.kernels[0], ["sm_90"])
    assert not r.faults and r.sizes["C"] % r.sizes["groups"] == 0 and r.sizes["D"] % 2 == 1


def test_what_is_asked_for_must_exist():
    c = declared().contract
    with pytest.raises(ContractError, match="unknown architecture sm_70"):
        compile_report(c, c.kernels[0], ["sm_70"])
    unregister("shop", "Copy")
    c = declared("python").contract
    with pytest.raises(ContractError, match="not for a GPU"):
        compile_report(c, c.kernels[0])


def test_no_sizes_at_all():
    c = declared().constraint("N > C", "C > N").contract
    r, *_ = compile_report(c, c.kernels[0], ["sm_90"])
    assert "no sizes were found" in r.faults[0]


def test_the_command_shows_and_fails():
    nvrtc()
    declared()
    result = CliRunner().invoke(main, ["op", "compile", "shop::Copy", "--arch", "sm_86", "--json"])
    assert result.exit_code == 0, result.output
    row, *_ = json.loads(result.output)["compilations"]
    assert row["architecture"] == "sm_86" and row["registers"] > 0 and row["faults"] == []
    result = CliRunner().invoke(main, ["op", "compile", "shop::Copy"])
    assert result.exit_code == 0 and "All fit." in result.output and "sm_120" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["shop::Copy", "--kernel", "triton"], 2, "Its kernels: cuda (cuda)"),
        (["shop::Copy", "--arch", "sm_1"], 1, "unknown architecture"),
        (["shop::Nothing"], 1, "Nothing"),
        (["shop::Copy", "--size", "N"], 2, "NAME=N"),
    ],
)
def test_wrong_use_of_the_command(arguments, code, text):
    declared()
    result = CliRunner().invoke(main, ["op", "compile", *arguments])
    assert result.exit_code == code and text in result.output, result.output


def test_resources_are_what_cuobjdump_says(tmp_path):
    triton = pytest.importorskip("triton", reason="Triton is not installed (pip install 'accord[cuda]')")
    nvrtc()
    from accord.kernels.cuda import compile_cuda

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    tool = str(tool) if tool.exists() else shutil.which("cuobjdump")
    if tool is None:
        pytest.skip("Triton's package has no cuobjdump, and PATH neither")
    source = """
extern "C" __global__ void twice(const float *x, float *y, int n) {
    __shared__ float s[300]; float local[40];
    for (int i = 0; i < 40; i++) local[i] = x[i * n];
    s[threadIdx.x] = local[n]; __syncthreads(); y[threadIdx.x] = s[n] + local[n / 2];
}
"""
    code = CudaCode(source, "twice", (), lambda k: (1,), lambda k: (1,))
    for a in ARCHITECTURES.values():
        built = compile_cuda(code, {}, {}, a.number, "shop::Twice")
        (tmp_path / "x.cubin").write_bytes(built.cubin)
        said = subprocess.run([tool, "-res-usage", tmp_path / "x.cubin"], capture_output=True, text=True, check=True)
        numbers = dict(p.split(":") for p in said.stdout.split("twice:")[1].split() if ":" in p)
        assert int(numbers["REG"]) == built.resources.registers
        assert int(numbers["STACK"]) == built.resources.stack
        assert int(numbers["SHARED"]) - built.resources.shared in (0, 1024), "the system's kilobyte"
