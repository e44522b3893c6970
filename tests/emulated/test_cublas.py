"""Products by cuBLASLt, the whole way: offered, measured, chosen, remembered, run and captured, on emulated devices."""

from __future__ import annotations

import ctypes
import gc
import json
import threading
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import accord
from accord.backends.cuda import backend, choices, cublas, parts, tuner
from accord.backends.cuda.choices import name_of, outcome_of
from accord.backends.cuda.library_product import LibraryProduct
from accord.backends.memory import DeviceArray
from accord.cli import main
from accord.cli.placed import measured
from accord.errors import DeviceLostError, ExecutionError
from builders import model, node
from emulated_cublas import PARTS, install_cublas
from emulated_gpu import DEVICES, ENTERED, choice_of, install

pytestmark = pytest.mark.usefixtures("quick_tuning")

F, H, B16 = np.float32, np.float16, ml_dtypes.bfloat16
RNG = np.random.default_rng(7)


@pytest.fixture
def library(gpu, tmp_path, monkeypatch):
    return install_cublas(tmp_path, monkeypatch.setattr)


@pytest.fixture
def clock(gpu, monkeypatch):
    """Seconds that a graph takes by the name of its last kernel: 5 where the test says nothing."""
    times, last = {"cublasLt 1": 1.0}, [0.0]
    replay = gpu.replay

    def replayed(graph, stream):
        replay(graph, stream)
        last[0] = times.get(graph[-1].name, 5.0)

    monkeypatch.setattr(gpu, "replay", replayed)
    monkeypatch.setattr(gpu, "seconds", lambda begin, end: last[0])
    return times


def drawn(dtype, *shape):
    return (RNG.standard_normal(shape) / 4).astype(dtype)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def relu(x):
    return np.maximum(x, 0)


@dataclass
class Case:
    """A model of one product, and what it gives in float32."""

    nodes: list
    inputs: dict
    weights: dict
    expected: object

    def proto(self, dtype, **sizes):
        made = {n: (dtype, [sizes.get(d, d) for d in shape]) for n, shape in self.inputs.items()}
        weights = {n: drawn(dtype, *shape) for n, shape in self.weights.items()}
        return model(self.nodes, made, ["y"], weights).SerializeToString(), weights


MATMUL = node("MatMul", ["x", "w"], ["a"])
XW = {"x": [24, 48]}, {"w": [48, 40]}
BIAS = node("Add", ["a", "b"], ["h"])
CASES = {
    "alone": Case([node("MatMul", ["x", "w"], ["y"])], *XW, lambda x, w: x @ w),
    "one row": Case([node("MatMul", ["x", "w"], ["y"])], {"x": [1, 48]}, {"w": [48, 40]}, lambda x, w: x @ w),
    "bias": Case(
        [MATMUL, node("Add", ["a", "b"], ["y"])], XW[0], {**XW[1], "b": [40]}, lambda x, w, b: x @ w + b
    ),
    "relu": Case(
        [MATMUL, BIAS, node("Relu", ["h"], ["y"])],
        XW[0],
        {**XW[1], "b": [40]},
        lambda x, w, b: relu(x @ w + b),
    ),
    "gelu": Case(
        [MATMUL, BIAS, node("Gelu", ["h"], ["y"], approximate="tanh")],
        XW[0],
        {**XW[1], "b": [40]},
        lambda x, w, b: gelu(x @ w + b),
    ),
    "residual": Case(
        [MATMUL, BIAS, node("Add", ["r", "h"], ["y"])],
        {**XW[0], "r": [24, 40]},
        {**XW[1], "b": [40]},
        lambda x, r, w, b: r + x @ w + b,
    ),
    "residual before relu": Case(
        [MATMUL, BIAS, node("Add", ["h", "r"], ["s"]), node("Relu", ["s"], ["y"])],
        {**XW[0], "r": [24, 40]},
        {**XW[1], "b": [40]},
        lambda x, r, w, b: relu(x @ w + b + r),
    ),
    "scaled": Case(
        [node("Gemm", ["x", "w", "c"], ["y"], alpha=0.5, beta=3.0, transA=1, transB=1)],
        {"x": [48, 24], "c": [24, 40]},
        {"w": [40, 48]},
        lambda x, c, w: 0.5 * (x.T @ w.T) + 3 * c,
    ),
    "batch": Case(
        [node("MatMul", ["x", "z"], ["y"])], {"x": [3, 24, 16], "z": [3, 16, 40]}, {}, lambda x, z: x @ z
    ),
    "batch of one matrix": Case(
        [node("MatMul", ["x", "z"], ["y"])], {"x": [24, 16], "z": [3, 16, 40]}, {}, lambda x, z: x @ z
    ),
    "rows of three axes": Case(
        [MATMUL, node("Add", ["a", "b"], ["y"])],
        {"x": [2, 12, 48]},
        {**XW[1], "b": [40]},
        lambda x, w, b: x @ w + b,
    ),
    "transposed": Case(
        [node("Transpose", ["z"], ["t"], perm=[0, 2, 1]), node("MatMul", ["x", "t"], ["y"])],
        {"x": [3, 24, 16], "z": [3, 40, 16]},
        {},
        lambda x, z: x @ z.swapaxes(1, 2),
    ),
    "pixels": Case(
        [node("Conv", ["x", "w", "b"], ["h"]), node("Relu", ["h"], ["y"])],
        {"x": [2, 16, 5, 7]},
        {"w": [40, 16, 1, 1], "b": [40]},
        lambda x, w, b: relu(np.einsum("nchw,mc->nmhw", x, w[:, :, 0, 0]) + b[:, None, None]),
    ),
}  # fmt: skip


def check(m, case, dtype, weights, times=4, **sizes):
    """Several runs beside NumPy, the last ones from a graph."""
    for _ in range(times):
        given = [drawn(dtype, *(sizes.get(d, d) for d in shape)) for shape in case.inputs.values()]
        wide = [a.astype(F) for a in (*given, *weights.values())]
        near = {F: 1e-4, H: 4e-3, B16: 4e-2}[dtype]
        np.testing.assert_allclose(m(*given)[0].astype(F), case.expected(*wide), rtol=near, atol=near)


def calls(gpu):
    return sum(name.startswith("cublasLt") for name in gpu.started)


@pytest.mark.parametrize("dtype", [F, H, B16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_the_library_is_chosen_and_right(gpu, library, clock, name, dtype):
    case = CASES[name]
    proto, weights = case.proto(dtype)
    m = accord.load(proto, device="cuda", tuning="full")
    choice = choice_of(m)
    outcome = outcome_of(choice)
    if dtype is F and name == "gelu":  # how exact the library's is, nobody says
        assert choice.product is None and not calls(gpu)
        return
    assert isinstance(outcome.way, LibraryProduct) and outcome.way.number == 1
    assert not outcome.refused
    assert min(outcome.seconds, key=outcome.seconds.get) == "cuBLASLt 1"
    before, replayed = calls(gpu), gpu.replayed
    check(m, case, dtype, weights)
    assert calls(gpu) == before + 4
    assert gpu.replayed > replayed
    # another process finds it on disk, and measures nothing
    choices._OUTCOMES.clear()
    asked, before = library.asked, calls(gpu)
    again = accord.load(proto, device="cuda", tuning="full")
    check(again, case, dtype, weights, 1)
    assert calls(gpu) == before + 1 and library.asked == asked


def test_tf32_is_asked_for_where_it_is_allowed(gpu, library, clock):
    case = CASES["bias"]
    proto, _ = case.proto(F)
    for precision, compute in ((None, "ieee"), ("tf32", "tf32")):
        options = {} if precision is None else {"precision": precision}
        m = accord.load(proto, device="cuda", tuning="full", **options)
        assert choice_of(m).product.compute == compute
        assert isinstance(outcome_of(choice_of(m)).way, LibraryProduct)


def test_by_rule_it_is_our_kernel(gpu, library):
    case = CASES["residual"]
    proto, weights = case.proto(H)
    m = accord.load(proto, device="cuda", tuning="off")
    check(m, case, H, weights)
    assert not calls(gpu) and not library.asked


def test_sizes_of_a_run_are_measured_by_a_warm_up(gpu, library, clock):
    case = Case([MATMUL, node("Add", ["a", "b"], ["y"])], {"x": ["n", 48]}, {"w": [48, 40], "b": [40]}, None)
    case.expected = CASES["bias"].expected
    proto, weights = case.proto(H)
    m = accord.load(proto, device="cuda", tuning="full", warmup=[{"x": (8, 48)}])
    before = calls(gpu)
    check(m, case, H, weights, n=8)
    assert calls(gpu) == before + 4
    check(m, case, H, weights, n=5)
    assert calls(gpu) == before + 4


def test_a_stored_plan_finds_it_too(gpu, library, clock):
    case = CASES["residual"]
    proto, weights = case.proto(H)
    for k in range(2):
        m = accord.load(proto, device="cuda", tuning="full")
        for thread in threading.enumerate():
            if thread.name == "accord-store":
                thread.join()
        assert (list(m.seconds) == ["stored"]) == bool(k)
        before = calls(gpu)
        check(m, case, H, weights)
        assert calls(gpu) == before + 4


def test_an_algorithm_may_need_a_workspace(gpu, library, clock):
    """It gets what is planned for the parts of split sums, and is not offered where it wants more."""
    clock |= {"cublasLt 1": 5.0, "cublasLt 2": 0.5}
    deep = Case(CASES["alone"].nodes, {"x": [16, 512]}, {"w": [512, 32]}, CASES["alone"].expected)
    proto, weights = deep.proto(F)
    m = accord.load(proto, device="cuda", tuning="full")
    choice = choice_of(m)
    assert choice.room >= PARTS
    assert outcome_of(choice).way.workspace == PARTS
    before = calls(gpu)
    check(m, deep, F, weights)
    assert calls(gpu) == before + 4
    proto, _ = CASES["alone"].proto(F)
    choice = choice_of(accord.load(proto, device="cuda", tuning="full"))
    assert choice.room < PARTS
    assert max(w.number for w in choice.ways() if isinstance(w, LibraryProduct)) == 1


def test_memory_that_is_not_aligned_has_an_algorithm_of_its_own(gpu, library, clock):
    case = CASES["residual"]
    proto, weights = case.proto(H)
    m = accord.load(proto, device="cuda", tuning="full")
    x, r = drawn(H, 24, 48), drawn(H, 24, 40)
    asked = library.asked
    for at in (0, 1, 1):
        room = DeviceArray.empty(backend.memory, (24 * 48 + 8,), np.dtype(H))
        placed = room.view((24, 48), at * 2)
        ctypes.memmove(placed.address, x.ctypes.data, x.nbytes)
        before = calls(gpu)
        got = m(placed, r)[0]
        assert calls(gpu) == before + 1
        np.testing.assert_allclose(
            got.astype(F), case.expected(*(a.astype(F) for a in (x, r, *weights.values()))), atol=4e-3
        )
    assert library.asked > asked


def test_a_wrong_result_is_left_out(gpu, library, clock):
    library.wrong = {1}
    proto, weights = CASES["bias"].proto(H)
    m = accord.load(proto, device="cuda", tuning="full")
    outcome = outcome_of(choice_of(m))
    assert outcome.refused["cuBLASLt 1"] == "its result is not that of the way by rule"
    assert not isinstance(outcome.way, LibraryProduct)
    check(m, CASES["bias"], H, weights)


def test_relu_has_to_keep_what_is_no_number(gpu, library, clock):
    library.keeps_nan = False
    proto, _ = CASES["relu"].proto(H)
    outcome = outcome_of(choice_of(accord.load(proto, device="cuda", tuning="full")))
    assert {"cuBLASLt 0", "cuBLASLt 1"} <= outcome.refused.keys()
    proto, _ = CASES["bias"].proto(H)
    outcome = outcome_of(choice_of(accord.load(proto, device="cuda", tuning="full")))
    assert isinstance(outcome.way, LibraryProduct)


def test_another_version_is_asked_anew(gpu, library, clock, tmp_path, monkeypatch):
    case = CASES["bias"]
    proto, weights = case.proto(H)
    first = choice_of(accord.load(proto, device="cuda", tuning="full"))
    clock.clear()
    clock["cublasLt 0"] = 1.0
    install_cublas(tmp_path, monkeypatch.setattr, version=14)
    m = accord.load(proto, device="cuda", tuning="full")
    assert choice_of(m).key != first.key
    assert outcome_of(choice_of(m)).way.number == 0
    check(m, case, H, weights)


@pytest.mark.parametrize("how", ["deleted", "broken"])
def test_without_the_library_it_is_the_rule_again(gpu, library, clock, monkeypatch, how):
    case = CASES["bias"]
    proto, weights = case.proto(H)
    accord.load(proto, device="cuda", tuning="full")
    monkeypatch.setattr(cublas, "_LIBRARIES", {})
    if how == "deleted":
        monkeypatch.setattr(cublas, "_located", lambda major: None)
    else:
        library.usable = False
    m = accord.load(proto, device="cuda", tuning="off")
    before = calls(gpu)
    check(m, case, H, weights)
    assert calls(gpu) == before
    (row,) = measured(m, None)
    assert row["way"] == row["rule"]
    assert ("pip install nvidia-cublas" if how == "deleted" else "NOT_INITIALIZED") in row["lacking"]


def test_a_failure_names_the_library_and_what_to_do(gpu, library, clock):
    proto, _ = CASES["alone"].proto(H)
    m = accord.load(proto, device="cuda", tuning="full")
    library.version = 14
    with pytest.raises(ExecutionError, match="cublasLtMatmul of cuBLASLt failed: CUBLAS_STATUS_NOT_SUPPORTED") as e:
        m(drawn(H, 24, 48))
    assert "ACCORD_CUBLASLT=0" in e.value.remedy


def test_a_lost_device_is_told_as_such(gpu, library, clock):
    """The library only says that it could not start."""
    proto, _ = CASES["alone"].proto(H)
    m = accord.load(proto, device="cuda", tuning="full")
    m(drawn(H, 24, 48))
    library.version = 14
    gpu.note_loss("ILLEGAL_ADDRESS")
    gpu.enter = lambda: setattr(ENTERED, "device", gpu)  # it was lost after this run had begun
    gpu.event = gpu.refuse_lost
    with pytest.raises(DeviceLostError):
        m(drawn(H, 24, 48))


def test_what_is_described_is_given_back(gpu, library, clock):
    proto, weights = CASES["residual"].proto(H)
    m = accord.load(proto, device="cuda", tuning="full")
    gc.collect()
    assert not library.made
    check(m, CASES["residual"], H, weights)
    assert library.made
    del m
    gc.collect()
    assert not library.made


def test_nothing_runs_at_once_where_each_kernel_is_waited_for(gpu, library, clock, monkeypatch):
    case = CASES["residual"]
    proto, weights = case.proto(H)
    accord.load(proto, device="cuda", tuning="full")
    monkeypatch.setattr(parts, "_blocking", lambda: True)
    m = accord.load(proto, device="cuda", tuning="off")
    replayed, before = gpu.replayed, calls(gpu)
    check(m, case, H, weights)
    assert gpu.replayed == replayed and calls(gpu) == before + 4


def test_the_command_line_says_what_is_chosen_and_what_is_lacking(gpu, library, clock, tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    path.write_bytes(CASES["bias"].proto(H)[0])

    def run(*arguments):
        result = CliRunner().invoke(main, [*arguments, str(path), "--device", "cuda"])
        assert result.exit_code == 0, result.output
        return result.stdout

    (row,) = json.loads(run("tune", "--json"))["ways"]
    assert row["way"] == "cuBLASLt 1" and row["lacking"] == ""
    assert "cuBLASLt 1" in run("explain")
    monkeypatch.setattr(cublas, "_located", lambda major: None)
    said = run("explain")
    assert said.count("cuBLASLt is not installed: pip install nvidia-cublas") == 1
    monkeypatch.setenv("ACCORD_CUBLASLT", "0")
    assert "ACCORD_CUBLASLT=0" in run("explain")


def test_on_two_devices_each_has_its_own(monkeypatch, tmp_path):
    install(monkeypatch.setattr, count=2)
    install_cublas(tmp_path, monkeypatch.setattr)
    proto, weights = CASES["bias"].proto(H)
    for k, gpu in enumerate(DEVICES):
        m = accord.load(proto, device=f"cuda:{k}", tuning="off")
        choice = choice_of(m)
        with backend.numbered(k).active():
            way = next(w for w in choice.ways() if isinstance(w, LibraryProduct))
            choices.remember(choice, choices.Outcome(way, {}, {}, {}))
        backend.numbered(k).generation += 1
        check(m, CASES["bias"], H, weights)
        assert calls(gpu) == 4


def test_all_ways_of_a_choice_are_compared(gpu, library, monkeypatch):
    """The library's go through the same bench as tiles."""
    proto, _ = CASES["residual"].proto(H)
    choice = choice_of(accord.load(proto, device="cuda", tuning="off"))
    problem = tuner._Problem(choice)
    monkeypatch.setattr(gpu, "seconds", lambda begin, end: 1.0)
    with tuner._Bench(gpu, choice.operands()) as bench:
        outcome = bench.measured(problem, tuner.Gate(), bool)
    assert {name_of(w) for w in choice.ways()} == outcome.seconds.keys()
