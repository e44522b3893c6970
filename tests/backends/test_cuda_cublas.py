"""Which contractions cuBLASLt is asked for, what it is told, and where it is looked for."""

from __future__ import annotations

import ctypes
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from contraction_harness import Tensor, product
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.backends.cuda import cublas
from accord.backends.cuda.contraction import Factor, Window, contraction_kernel
from accord.backends.cuda.library_product import ProductLaunch, product_of
from accord.backends.epilogue import Extra
from accord.expr.lang import call, cast, const, operand
from accord.expr.primitives import max_
from accord.ir.strides import Access
from emulated_cublas import ATTRIBUTES, install_cublas
from emulated_gpu import ENTERED

SUM = operand(0, "f32")


@pytest.fixture
def library(tmp_path, monkeypatch):
    return install_cublas(tmp_path, monkeypatch.setattr)


def device(version=13000):
    """A GPU that does at once what it is asked for."""
    gpu = SimpleNamespace(ordinal=0, driver_version=version, start=lambda name: None)
    gpu.enter = lambda: setattr(ENTERED, "device", gpu)
    gpu.put = lambda name, work, stream: work()
    return gpu


# what it computes


def finished(kind, dtype, stored):
    """An epilogue, how its extras repeat ("bias" along columns or rows, "whole"), and the same in NumPy."""
    one, two = (cast(operand(k, stored), "f32") for k in (1, 2))
    expr, extras, expected = {
        "sum": (SUM, (), lambda s: s),
        "scaled": (SUM * 0.25, (), lambda s: s / 4),
        "bias": (SUM + one, ("bias",), lambda s, b: s + b),
        "relu": (max_(0.0, one + SUM), ("bias",), lambda s, b: np.maximum(s + b, 0)),
        "relu too": (call("max", SUM + one, const(0.0, "f32")), ("bias",), lambda s, b: np.maximum(s + b, 0)),
        "residual": (one + SUM * 0.5, ("whole",), lambda s, r: s / 2 + r),
        "all": (max_(0.0, SUM + one + two * 3.0), ("bias", "whole"), lambda s, b, r: np.maximum(s + b + 3 * r, 0)),
        "gelu": (
            call("gelu_tanh", SUM + one),
            ("bias",),
            lambda s, b: 0.5 * (s + b) * (1 + np.tanh(np.sqrt(2 / np.pi) * (s + b + 0.044715 * (s + b) ** 3))),
        ),
    }[kind]
    return cast(expr, stored), extras, expected


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    dtype = draw(st.sampled_from(["f16", "bf16", "f32"]))
    stored = draw(st.sampled_from([dtype, "f32"]))
    kind = draw(st.sampled_from(["sum", "scaled", "bias", "relu", "relu too", "residual", "all", "gelu"]))
    batch = draw(st.sampled_from([(), (3,)]))
    m, n, k = (draw(st.integers(2, 9)) for _ in range(3))
    rank = 2 + len(batch)
    orders = [draw(st.permutations(range(rank))) for _ in range(3)]
    gaps = [draw(st.integers(0, 2)) * 4 for _ in range(3)]
    repeated = draw(st.sampled_from([(), (0,)])) if batch else ()
    a = Tensor(rng, dtype, (*batch, m, k), repeated, orders[0], gaps[0])
    b = Tensor(rng, dtype, (*batch, k, n), (), orders[1], gaps[1])
    out = Tensor(rng, stored, (*batch, m, n), (), orders[2], gaps[2])
    return rng, kind, batch, (m, n, k), (a, b, out), (orders, gaps[2])


@settings(max_examples=150)
@given(problem=problems())
def test_what_is_asked_for_is_the_contraction(problem, tmp_path_factory):
    rng, kind, batch, (m, n, k), (a, b, out), (orders, gap) = problem
    expr, repeats, expected = finished(kind, a.dtype, out.dtype)
    along = out.access.strides.index(1) if 1 in out.access.strides else 0
    across = tuple(x for x in range(len(out.shape)) if x != along)
    extras = [Tensor(rng, out.dtype, out.shape, across if r == "bias" else (), orders[2], gap) for r in repeats]
    kernel, dims = contraction_kernel(
        batch, (m,), (n,), (k,), Factor(a.dtype, a.access), Factor(b.dtype, b.access), out.access, expr,
        [Extra(x.dtype, x.access) for x in extras],
    )  # fmt: skip
    found = product_of(kernel, tuple(int(d) for d in dims))
    # matrices whose elements follow each other along the batch are none of the library's
    near = [t.access.strides[len(batch) :] for t in (a, b, out)]
    wanted = all(1 in steps for steps in near) and (kind != "gelu" or out.dtype != "f32")
    assert (found is not None) == wanted
    if found is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        library = install_cublas(tmp_path_factory.mktemp("cublas"), patch.setattr)
        gpu = device()
        way = cublas.algorithms(gpu, found, 0, 3)[-1]
        tensors = [a, b, *extras, out]
        table = np.array([*(t.memory.ctypes.data for t in tensors), 0], np.int64)
        before = out.memory.copy()
        cublas.ProductCall(gpu, ProductLaunch((), 1, found, way.algorithm, way.workspace), table).start(0)
    assert not library.made
    sums = product(a.values, b.values, (batch, (m,), (n,), (k,)))
    near = {"f16": 4e-3, "bf16": 3e-2, "f32": 1e-4}[out.dtype]
    want = expected(sums, *(x.values.astype(np.float64) for x in extras))
    np.testing.assert_allclose(out.values.astype(np.float64), want, rtol=near, atol=near)
    out.values[...] = 0
    written = np.lib.stride_tricks.as_strided(
        before[out.access.offset :], out.shape, [s * before.itemsize for s in out.access.strides]
    )
    written[...] = 0
    assert before.tobytes() == out.memory.tobytes(), "it has written beside its result"


def test_operands_are_where_a_launch_shifts_them(library):
    rng = np.random.default_rng(0)
    a, b, out = (Tensor(rng, "f32", s, (), (0, 1)) for s in ((4, 6), (6, 5), (4, 5)))
    kernel, dims = contraction_kernel(
        (), (4,), (5,), (6,), Factor("f32", a.access), Factor("f32", b.access), out.access, SUM
    )
    found = product_of(kernel, dims)
    way = cublas.algorithms(device(), found, 1 << 20, 3)[2]
    room = np.zeros(way.workspace + 64, np.uint8)
    table = np.array([a.memory.ctypes.data - 16, b.memory.ctypes.data, out.memory.ctypes.data, room.ctypes.data])
    launch = ProductLaunch((), 1, found, way.algorithm, way.workspace, (16, 0, 0, 64))
    cublas.ProductCall(device(), launch, table).start(0)
    np.testing.assert_allclose(out.values, a.values @ b.values, rtol=1e-5, atol=1e-5)
    assert not room[:64].any()
    assert room[64:].all()


# what it is not asked for


def linear(expr, extras=(), *, dtype="f16", stored="f16", out=(5, 1), a=(8, 1), b=(5, 1), precision="ieee", **more):
    """A product of [4, 8] and [8, 5]; extras are (type, strides)."""
    kernel, dims = contraction_kernel(
        (), (4,), (5,), (8,), Factor(dtype, Access(a)), Factor(dtype, Access(b)), Access(out), cast(expr, stored),
        [Extra(t, Access(s)) for t, s in extras], precision=precision, **more,
    )  # fmt: skip
    return product_of(kernel, tuple(int(d) for d in dims))


X1, X2 = (cast(operand(k, "f16"), "f32") for k in (1, 2))
WHOLE, BIAS, DOWN = ("f16", (5, 1)), ("f16", (0, 1)), ("f16", (1, 0))


@pytest.mark.parametrize(
    ("expr", "extras", "more"),
    [
        (call("gelu_erf", SUM), (), {}),
        (call("silu", SUM), (), {}),
        (max_(1.0, SUM), (), {}),
        (call("gelu_tanh", SUM) + X1, (WHOLE,), {}),  # the library adds before it
        (max_(0.0, SUM) + X1, (WHOLE,), {}),
        (SUM + X1 + X2, (WHOLE, WHOLE), {}),
        (SUM + X1 + X2, (BIAS, BIAS), {}),
        (SUM + X1 * 2.0, (BIAS,), {}),
        (SUM * X1, (BIAS,), {}),
        (SUM - X1, (BIAS,), {}),
        (SUM + SUM * X1, (WHOLE,), {}),
        (SUM + SUM * 2.0, (), {}),
        (X1, (WHOLE,), {}),
        (SUM + 1.0, (), {}),
        (SUM + X1, (DOWN,), {}),
        (SUM + X1, (("f16", (1, 4)),), {}),
        (SUM + X1, (("f16", (8, 1)),), {}),
        (SUM + X1, (("f16", (0, 0)),), {}),
        (SUM + operand(1, "f32"), (("f32", (0, 1)),), {}),
        (cast(cast(SUM, "i32"), "f32"), (), {}),
        (cast(cast(SUM, "bool"), "f32") + X1, (BIAS,), {}),
        (SUM, (), {"out": (10, 2)}),
        (SUM, (), {"a": (16, 2)}),
        (SUM, (), {"b": (0, 1)}),
        (SUM, (), {"a": (4, 1)}),  # rows that share elements
        (SUM, (), {"stored": "bf16"}),
        (SUM, (), {"stored": "f16", "dtype": "f32"}),
        (SUM, (), {"stored": "f32", "dtype": "f32", "precision": "tf32x3"}),
        (SUM, (), {"tail": 2}),
        (SUM, (), {"windows": [Window(0, 0, 1, 1, 0, 4)]}),
        (call("gelu_tanh", SUM), (), {"stored": "f32", "dtype": "f32"}),
    ],
)
def test_what_the_library_does_not_do_is_ours(expr, extras, more):
    assert linear(expr, extras, **more) is None


def test_other_types_are_ours():
    for dtype, stored in (("f64", "f64"), ("i8", "i32")):
        kernel, dims = contraction_kernel(
            (), (4,), (5,), (8,), Factor(dtype, Access((8, 1))), Factor(dtype, Access((5, 1))), Access((5, 1)),
            operand(0, stored),
        )  # fmt: skip
        assert product_of(kernel, dims) is None
    widened = Factor("f16", Access((8, 1)), cast(operand(0, "f16"), "f32"))
    kernel, dims = contraction_kernel((), (4,), (5,), (8,), widened, Factor("f32", Access((5, 1))), Access((5, 1)), SUM)
    assert product_of(kernel, dims) is None


def test_what_is_rounded_on_the_way_is_not():
    """Between parts of one kernel nothing has to be rounded, so the library need not."""
    half = cast(cast(SUM + X1, "f16"), "f32")
    assert linear(max_(0.0, half + X2), (BIAS, WHOLE)) == linear(max_(0.0, SUM + X1 + X2), (BIAS, WHOLE))
    assert linear(max_(0.0, half), (BIAS,)).activation == "relu"


def test_it_is_told_how_exact_it_has_to_be():
    kinds = {"stored": "f32", "dtype": "f32"}
    assert linear(SUM).compute == "half"
    assert linear(SUM, **kinds).compute == "ieee"
    assert linear(SUM, **kinds, precision="tf32").compute == "tf32"


def test_alignment_is_that_of_every_column():
    assert linear(SUM).result.alignment == 2  # rows of ten bytes
    assert linear(SUM).right.alignment == 16
    one = dataclasses.replace(linear(SUM).right, columns=1, offset=2)
    assert one.alignment == 4


# where it is


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No package, no folder and no cache of the loader has it."""
    monkeypatch.setattr(cublas.sys, "path", [str(tmp_path)])
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.delenv("ACCORD_CUBLASLT", raising=False)
    monkeypatch.setattr(cublas, "_CACHE", tmp_path / "ld.so.cache")
    monkeypatch.setattr(cublas, "_LIBRARIES", {})
    cublas._located.cache_clear()
    yield tmp_path
    cublas._located.cache_clear()


def placed(path, size=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    cublas._located.cache_clear()
    return path


def test_where_it_is_not_the_remedy_is_said(nowhere):
    assert cublas.installed(13000) is None
    assert cublas.identity(13000) == ""
    assert cublas.lacking(device()) == "cuBLASLt is not installed: pip install nvidia-cublas"
    assert cublas.algorithms(device(), linear(SUM), 0, 3) == ()
    cublas._LIBRARIES.clear()
    assert cublas.lacking(device(12080)) == "cuBLASLt is not installed: pip install nvidia-cublas-cu12"


def test_packages_come_before_the_system(nowhere, monkeypatch):
    system = placed(nowhere / "system/libcublasLt.so.13")
    (nowhere / "ld.so.cache").write_bytes(b"x\0libcublasLt.so.13\0" + bytes(system) + b"\0/y/libz.so\0")
    cublas._located.cache_clear()
    assert cublas.installed(13000) == system
    folder = placed(nowhere / "folder/libcublasLt.so.13")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{folder.parent}")
    cublas._located.cache_clear()
    assert cublas.installed(13000) == folder
    package = placed(nowhere / "nvidia/cu13/lib/libcublasLt.so.13")
    assert cublas.installed(13000) == package


def test_the_driver_has_to_know_its_cuda(nowhere):
    old = placed(nowhere / "nvidia/cublas/lib/libcublasLt.so.12")
    new = placed(nowhere / "nvidia/cu13/lib/libcublasLt.so.13")
    assert cublas.installed(13010) == new
    assert cublas.installed(12080) == old


def test_versions_differ_by_their_files(nowhere, monkeypatch):
    placed(nowhere / "nvidia/cu13/lib/libcublasLt.so.13", 8)
    first = cublas.identity(13000)
    placed(nowhere / "nvidia/cu13/lib/libcublasLt.so.13", 9)
    assert first and cublas.identity(13000) not in ("", first)
    monkeypatch.setenv("ACCORD_CUBLASLT", "0")
    assert cublas.identity(13000) == ""
    assert cublas.lacking(device()) == "cuBLASLt is not used: ACCORD_CUBLASLT=0"


def test_a_file_that_is_no_library_is_no_way(nowhere):
    path = placed(nowhere / "nvidia/cu13/lib/libcublasLt.so.13", 9)
    assert cublas.lacking(device()).startswith(f"{path} cannot be loaded: ")
    assert cublas.algorithms(device(), linear(SUM), 0, 3) == ()


def test_a_library_that_lacks_a_function_is_no_way(nowhere, monkeypatch):
    placed(nowhere / "nvidia/cu13/lib/libcublasLt.so.13")
    monkeypatch.setattr(cublas.ctypes, "CDLL", lambda path: ctypes.PyDLL(None))
    assert "cublasLtCreate" in cublas.lacking(device())


# the library itself, as far as it goes without a GPU


REAL = cublas.installed(13000)


@pytest.mark.skipif(REAL is None, reason="cuBLASLt is not installed")
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_the_real_library_takes_what_it_is_told(dtype):
    assert REAL is not None
    real = object.__new__(cublas._Library)
    real.gpu, real.entries, real.handle = device(), cublas._load(REAL), 0
    x1 = cast(operand(1, dtype), "f32")
    found = linear(max_(0.0, SUM * 0.5 + x1), ((dtype, (0, 1)),), dtype=dtype, stored=dtype)
    description = cublas._Description(real, found)
    description.put_bias(4096)

    def told(kind, handle, attribute, code):
        value, written = (ctypes.c_uint8 * 8)(), ctypes.c_size_t()
        entry = getattr(real.entries, f"cublasLt{kind}GetAttribute")
        entry.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        size = {"i": 4, "I": 4}.get(code, 8)
        assert not entry(handle, attribute, ctypes.addressof(value), size, ctypes.addressof(written))
        assert written.value == size
        return int.from_bytes(bytes(value), "little")

    operation = description.operation.handle
    numbers = {n: told("MatmulDesc", operation, n, code) for n, (code, *_) in ATTRIBUTES["MatmulDesc"].items()}
    assert numbers == {3: 0, 4: 0, 7: 2 | 4, 8: 4096}
    assert told("MatmulDesc", operation, 0, "i") == (69 if dtype == "f32" else 68)
    types = {"f32": 0, "f16": 2, "bf16": 14}
    for layout, m in zip(description.layouts, found.matrices, strict=True):
        numbers = [told("MatrixLayout", layout, n, c) for n, c in enumerate("IiQQqiq")]
        assert numbers == [types[dtype], 0, m.rows, m.columns, m.lead, 1, m.step]
    wanted = cublas._Owned(real, "MatmulPreference")
    for n, (code, *_) in ATTRIBUTES["MatmulPreference"].items():
        number = ctypes.c_uint64(16) if code == "Q" else ctypes.c_uint32(2)
        wanted.set(n, number)
        assert told("MatmulPreference", wanted.handle, n, code) == number.value
    assert real.entries.cublasLtGetStatusName(15) == b"CUBLAS_STATUS_NOT_SUPPORTED"
    assert ctypes.sizeof(cublas.Result) == 96
