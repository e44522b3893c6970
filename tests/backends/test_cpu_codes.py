"""Products by weights of a few bits that stay packed, against the reference, which expands them."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import accord
from accord.backends.cpu.families import coded
from accord.backends.protocol import NativeKernel
from accord.runtime.model import Model
from accord.runtime.options import Options

F, H, U8 = np.float32, np.float16, np.uint8
#: Of the sums of the products' magnitudes: rounding of a weight and of the result in float16, sums in float32.
TOLERANCE = {np.dtype(F): 2e-6, np.dtype(H): 2e-3, np.dtype(ml_dtypes.bfloat16): 2e-2}


@pytest.fixture(autouse=True)
def _small_weights_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded, "LEAST_BYTES", 0)


def one_product(
    inputs: list[tuple[str, Any]], nodes: list[onnx.NodeProto], k: int, n: int, dtype: Any, opset: int = 24
) -> bytes:
    """A model ``y[?, n]`` of ``x[?, k]`` and constants; symbolic rows."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    constants = [a if isinstance(a, onnx.TensorProto) else onnx.numpy_helper.from_array(a, name) for name, a in inputs]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["rows", k])],
        [helper.make_tensor_value_info("y", kind, ["rows", n])],
        constants,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=11).SerializeToString()


def check(model: bytes, k: int, n: int, dtype: Any, rows: tuple[int, ...], rng: np.random.Generator) -> None:
    """One kernel reads the codes and gives, for each number of rows, what the reference does."""
    compiled = accord.load(model)
    kernels = [s.kernel for s in compiled.plan.steps]
    assert len(kernels) == 1
    assert isinstance(kernels[0], NativeKernel)
    assert any(p.rule == "fuse-weights" for p in compiled.compiled.log.patches)
    assert all(a.dtype == U8 or a.nbytes <= 4 * n for a in compiled.plan.constants.values())
    reference = Model(model, Options(reference=True))
    identity = np.asarray(reference(x=np.eye(k, dtype=dtype))[0]).astype(np.float64)
    for m in rows:
        x = rng.standard_normal((m, k)).astype(dtype)
        found = compiled(x=x)[0].astype(np.float64)
        expected = np.asarray(reference(x=x)[0]).astype(np.float64)
        bound = np.abs(x.astype(np.float64)) @ np.abs(identity) + np.abs(expected)
        assert np.all(np.abs(found - expected) <= TOLERANCE[np.dtype(dtype)] * bound + 1e-30)


def n_bits(
    rng: np.random.Generator, k: int, n: int, bits: int, block: int, zeros: str, bias: bool, dtype: Any
) -> bytes:
    blocks = -(-k // block)
    inputs: list[tuple[str, Any]] = [
        ("B", rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(U8)),
        ("s", rng.uniform(-0.02, 0.02, (n, blocks)).astype(dtype)),
    ]
    if zeros == "packed":
        inputs.append(("z", rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(U8)))
    elif zeros:
        inputs.append(("z", rng.uniform(0, 1 << bits, (n, blocks)).astype(dtype)))
    if bias:
        inputs.append(("b", rng.standard_normal(n).astype(dtype)))
    names = ["x", "B", "s", "z" if zeros else "", "", "b" if bias else ""]
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", K=k, N=n, bits=bits, block_size=block)
    return one_product(inputs, [node], k, n, dtype)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mat_mul_n_bits(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    bits, block = data.draw(st.sampled_from([4, 4, 8, 2])), data.draw(st.sampled_from([16, 32, 64, 128, 256]))
    k, n = data.draw(st.integers(40, 300)), data.draw(st.integers(26, 110))  # facts hold smaller constants
    dtype = data.draw(st.sampled_from([F, F, H]))
    zeros = data.draw(st.sampled_from(["", "packed", "float"]))
    model = n_bits(rng, k, n, bits, block, zeros, data.draw(st.booleans()), dtype)
    rows = data.draw(st.lists(st.sampled_from([1, 1, 2, 3, 5, 7, 8, 13, 36, 37, 150]), min_size=1, max_size=3))
    check(model, k, n, dtype, tuple(rows), rng)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_blocks_in_any_spelling(data: st.DataObject) -> None:
    """DequantizeLinear of [k, n] or [n, k], signed or not, before MatMul or Gemm, with what follows."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    name = data.draw(st.sampled_from(["uint4", "int4", "uint8", "int8", "uint2", "int2"]))
    bits, dtype = int(name[-1]), data.draw(st.sampled_from([F, H, ml_dtypes.bfloat16]))
    block, n = data.draw(st.sampled_from([16, 32, 48])), data.draw(st.integers(35, 70))
    k = block * data.draw(st.integers(2, 5))
    turned, gemm, zeros = (data.draw(st.booleans()) for _ in range(3))
    more_k, more_n = data.draw(st.sampled_from([(0, 0), (0, 0), (block, 5)]))  # what a Slice drops
    lines, columns = (k + more_k) // block, n + more_n
    shape, few = (lines * block, columns), (lines, columns)
    if turned:
        shape, few = shape[::-1], few[::-1]
    low, high = (-(1 << bits - 1), 1 << bits - 1) if name[0] == "i" else (0, 1 << bits)
    kind = getattr(onnx.TensorProto, name.upper())

    def tensor(label: str, shape: tuple[int, ...]) -> onnx.TensorProto:
        values = rng.integers(low, high, shape).astype(helper.tensor_dtype_to_np_dtype(kind))
        return onnx.numpy_helper.from_array(values, label)

    inputs: list[tuple[str, Any]] = [("q", tensor("q", shape)), ("s", rng.uniform(0.01, 0.02, few).astype(dtype))]
    if zeros:
        inputs.append(("z", tensor("z", few)))
    names = ["q", "s", *(["z"] if zeros else [])]
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], axis=int(turned), block_size=block)]
    if more_k:
        nodes[0].output[0] = "whole"
        inputs += [("from", np.zeros(2, np.int64)), ("to", np.array([n, k] if turned else [k, n], np.int64))]
        nodes.append(helper.make_node("Slice", ["whole", "from", "to"], ["w"]))
    if gemm:
        nodes.append(helper.make_node("Gemm", ["x", "w"], ["p"], transB=int(turned)))
    else:
        if turned:
            nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "t" if turned else "w"], ["p"]))
    nodes.append(helper.make_node("Neg", ["p"], ["y"]))
    model = one_product(inputs, nodes, k, n, dtype, opset=25 if bits == 2 else 24)
    check(model, k, n, dtype, (1, 9, 40), rng)


def test_a_stored_plan_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accord.contract.registry.user_contracts", list)
    rng = np.random.default_rng(1)
    model = n_bits(rng, 96, 40, 4, 32, "packed", True, F)
    first, second = accord.load(model), accord.load(model)
    assert list(second.seconds) == ["stored"]
    for m in (1, 50):
        x = rng.standard_normal((m, 96)).astype(F)
        assert np.array_equal(first(x=x)[0], second(x=x)[0])


def test_sizes_that_are_known_need_no_other_code() -> None:
    """Batches are rows; the tail of k is no whole word."""
    rng = np.random.default_rng(2)
    model = onnx.ModelProto.FromString(n_bits(rng, 70, 33, 4, 32, "", False, F))
    for shape in ((1, 70), (2, 3, 70), (5, 1, 1, 70)):
        del model.graph.input[0].type.tensor_type.shape.dim[:]
        for size in shape:
            model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = size
        model.graph.output[0].type.tensor_type.ClearField("shape")
        x = rng.standard_normal(shape).astype(F)
        found = accord.load(model.SerializeToString())(x=x)[0]
        flat = accord.load(n_bits(np.random.default_rng(2), 70, 33, 4, 32, "", False, F))(x=x.reshape(-1, 70))[0]
        np.testing.assert_allclose(found.reshape(-1, 33), flat, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"axis": 1}, "blocks do not lie along the sums"),
        ({"block": 20}, "no whole words"),
        ({"least": 1 << 20}, "it is read faster"),
    ],
)
def test_reasons_why_not(change: dict[str, int], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded, "LEAST_BYTES", change.get("least", 0))
    rng = np.random.default_rng(3)
    axis, block = change.get("axis", 0), change.get("block", 32)
    k, n = 4 * block, 64
    values = rng.integers(0, 16, (k, n)).astype(ml_dtypes.uint4)
    few = (k // block, n) if axis == 0 else (k, n // block)
    inputs = [("q", onnx.numpy_helper.from_array(values, "q")), ("s", rng.uniform(0.01, 0.02, few).astype(F))]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=axis, block_size=block),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    compiled = accord.load(one_product(inputs, nodes, k, n, F))
    assert not any(p.rule == "fuse-weights" for p in compiled.compiled.log.patches)
    assert any(p.rule == "fold-constants" and reason in p.note for p in compiled.compiled.log.patches)


LESSER = """
import sys
sys.path[:0] = {paths!r}
import numpy as np
import test_cpu_codes as tests
from accord.backends.cpu.families import coded

coded.LEAST_BYTES = 0
rng = np.random.default_rng(0)
for bits, block, zeros, dtype in [(4, 32, "", np.float32), (4, 16, "packed", np.float16), (8, 64, "float", np.float32)]:
    for k, n in [(70, 20), (128, 50)]:
        tests.check(tests.n_bits(rng, k, n, bits, block, zeros, True, dtype), k, n, dtype, (1, 4, 5, 40), rng)
print("ok")
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels are those of x86-64")
@pytest.mark.parametrize("level", ["sse2", "avx2"])
def test_lesser_processors(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORD_CPU", level)
    here = Path(__file__).parent
    code = LESSER.format(paths=[str(here), str(here.parent)])
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr
