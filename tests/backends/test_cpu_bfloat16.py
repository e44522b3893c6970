"""precision="bfloat16": products of rounded operands, against float64 products of the same; never unless asked for.

Products of bf16 are exact in f32, so the only errors are those of k additions, in whatever order.
"""

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

import accord
from accord.errors import AccordError
from builders import model, node

F = np.float32
SETTINGS = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def rounded(x: np.ndarray) -> np.ndarray:
    """To the nearest bf16, ties to even; in float64."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def check(
    nodes: list[onnx.NodeProto],
    arrays: dict[str, np.ndarray],
    constants: set[str],
    products: Any,
    k: int,
    open_sizes: bool = False,
) -> None:
    """The last of ``nodes`` adds nothing to ``products`` of arrays, which is linear in each of them."""
    free = {n: a for n, a in arrays.items() if n not in constants}
    shapes = {n: (F, [f"{n}{i}" for i in range(a.ndim)] if open_sizes else a.shape) for n, a in free.items()}
    proto = model(nodes, shapes, ["y"], {n: arrays[n] for n in constants}).SerializeToString()
    compiled = accord.load(proto, precision="bfloat16")
    assert [s.kernel.precision for s in compiled.plan.steps if "as bf16" in s.kernel.name] == ["bfloat16"]
    found = compiled(**free)[0]
    exact = products(*(rounded(a) for a in arrays.values()))
    most = products(*(np.abs(rounded(a)) for a in arrays.values()))
    assert found.shape == exact.shape
    assert np.all(np.abs(found - exact) <= (k + 2) * 2.0**-24 * most)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


@SETTINGS
@given(st.data())
def test_mat_mul(data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(1, top)) for top in (70, 1200, 70))
    batch = data.draw(st.sampled_from([(), (2,), (2, 3)]))
    constant, shared, turned = (data.draw(st.booleans()) for _ in range(3))
    x, w = normal(1, *batch, m, k), normal(2, *(() if shared else batch), *((n, k) if turned else (k, n)))
    nodes = [node("MatMul", ["x", "t" if turned else "w"], ["y"])]
    axes = [*range(w.ndim - 2), w.ndim - 1, w.ndim - 2]
    if turned:
        nodes.insert(0, node("Transpose", ["w"], ["t"], perm=axes))

    def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a @ (b.transpose(axes) if turned else b)

    check(nodes, {"x": x, "w": w}, {"w"} if constant else set(), products, k, data.draw(st.booleans()))


@SETTINGS
@given(st.data())
def test_gemm(data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(1, top)) for top in (40, 600, 40))
    by_row, by_column, constant = (data.draw(st.booleans()) for _ in range(3))
    a, b = normal(1, *((k, m) if by_row else (m, k))), normal(2, *((n, k) if by_column else (k, n)))
    nodes = [node("Gemm", ["a", "b"], ["y"], transA=int(by_row), transB=int(by_column))]

    def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.T if by_row else a) @ (b.T if by_column else b)

    check(nodes, {"a": a, "b": b}, {"b"} if constant else set(), products, k)


@SETTINGS
@given(st.data())
def test_conv(data: st.DataObject) -> None:
    groups, constant = data.draw(st.sampled_from([1, 1, 2])), data.draw(st.booleans())
    least = 1 if groups == 1 else 20  # groups of few channels are windows, which keep f32
    c, o = (data.draw(st.integers(least, 40)) for _ in range(2))
    t, s = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    size = data.draw(st.integers(6, 14))
    attributes: dict[str, Any] = {"strides": [s, s], "pads": [t // 2] * 4, "group": groups}
    x, w = normal(1, 2, c * groups, size, size + 1), normal(2, o * groups, c, t, t)
    plain = model([node("Conv", ["x", "w"], ["y"], **attributes)], dict.fromkeys("xw", (np.float64, None)), ["y"])
    exact = accord.load(plain.SerializeToString())
    nodes = [node("Conv", ["x", "w"], ["y"], **attributes)]
    constants = {"w"} if constant else set()
    check(nodes, {"x": x, "w": w}, constants, lambda x, w: exact(x=x, w=w)[0], c * t * t)


def test_rounding_is_to_the_nearest_even() -> None:
    """Halfway cases, infinities and NaN."""
    x = np.array([[1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 1 + 2**-8 + 2**-20, np.inf, np.nan, 3e38, 0.0]], F)
    for constant in (True, False):
        shapes = {"x": (F, x.shape)} | ({} if constant else {"w": (F, (8, 8))})
        eye = {"w": np.eye(8, dtype=F)}
        for k in range(8):
            row = np.where(np.arange(8) == k, x, 0).astype(F)
            proto = model([node("MatMul", ["x", "w"], ["y"])], shapes, ["y"], eye if constant else {})
            compiled = accord.load(proto.SerializeToString(), precision="bfloat16")
            found = compiled(**({"x": row} if constant else {"x": row, **eye}))[0][0, k]
            np.testing.assert_equal(found, F(rounded(x)[0, k]))


def test_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, of other types, and in the plans that are kept on disk."""
    monkeypatch.setattr("accord.contract.registry.user_contracts", list)
    x, w = normal(1, 9, 64), normal(2, 64, 48)
    path = tmp_path / "m.onnx"
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (F, x.shape)}, ["y"], {"w": w})
    onnx.save(proto, path)
    plain, asked = accord.load(path), accord.load(path, precision="bfloat16")
    again, asked_again = accord.load(path), accord.load(path, precision="bfloat16")
    assert list(again.seconds) == list(asked_again.seconds) == ["stored"]
    expected = x.astype(np.float64) @ w
    for full, short in ((plain, asked), (again, asked_again)):
        assert np.abs(full(x=x)[0] - expected).max() < 1e-4
        assert 1e-3 < np.abs(short(x=x)[0] - expected).max() < 0.5
    assert np.array_equal(asked(x=x)[0], asked_again(x=x)[0])
    options = accord.SessionOptions()
    assert options.precision == "float32"
    options.precision = "bfloat16"
    session = accord.InferenceSession(str(path), options)
    assert np.array_equal(session.run(None, {"x": x})[0], asked(x=x)[0])
    wide = model([node("MatMul", ["x", "w"], ["y"])], {"x": (np.float64, x.shape)}, ["y"], {"w": w.astype(np.float64)})
    found = accord.load(wide.SerializeToString(), precision="bfloat16")(x=x.astype(np.float64))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(AccordError, match="unknown precision"):
        accord.load(path, precision="bf16")


def test_ranks_that_only_a_run_tells() -> None:
    x, w = normal(1, 3, 5, 40), normal(2, 40, 16)
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (F, None), "w": (F, None)}, ["y"]).SerializeToString()
    compiled = accord.load(proto, precision="bfloat16")
    assert [s.kernel.precision for s in compiled.plan.steps] == ["bfloat16"]
    bound = 42 * 2.0**-24 * (np.abs(rounded(x)) @ np.abs(rounded(w)))
    assert np.all(np.abs(compiled(x=x, w=w)[0] - rounded(x) @ rounded(w)) <= bound)
    assert np.abs(accord.load(proto)(x=x, w=w)[0] - x.astype(np.float64) @ w).max() < 1e-4


LESSER = """
import sys
sys.path[:0] = {paths!r}
import numpy as np
import test_cpu_bfloat16 as tests
from builders import node

for m, k, n, constants in [(1, 33, 20, {{"w"}}), (30, 700, 9, {{"w"}}), (11, 64, 40, set())]:
    arrays = {{"x": tests.normal(1, m, k), "w": tests.normal(2, k, n)}}
    tests.check([node("MatMul", ["x", "w"], ["y"])], arrays, constants, np.matmul, k)
tests.test_rounding_is_to_the_nearest_even()
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
