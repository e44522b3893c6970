"""accord op bench: what it measures, and what it does not let pass."""

# ruff: noqa: F821, UP037

from __future__ import annotations

import numpy as np
import pytest

import accord
from accord.contract.registry import contract_for
from accord.errors import AccordError, ExecutionError
from accord.workbench.arguments import make_arguments
from accord.workbench.arrays import read_arrays, write_arrays
from accord.workbench.measure import Session, Wanted, measure, quantile, summary
from bench_harness import TRICKS, declare

FEW = {"runs": 40, "others": ()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    load = declare(tmp_path_factory.mktemp("ops"))
    return measure(Wanted("shop::Double", (load,), {"N": (5000,)}), runs=60, others=("onnxruntime", "torch"))


def test_each_kernel_is_measured_beside_what_else_there_is(measured):
    labels = {c["label"]: c for c in measured["candidates"]}
    assert {"python", "python, in a model", "composition", "reference"} <= set(labels)
    assert measured["failed"] == []
    assert measured["bytes"] == {"read": 20_000, "written": 20_000}
    for c in labels.values():
        for mode in ("warm", "cold"):
            t = c[mode]
            assert t["runs"] == 60
            assert 0 < t["least"] <= t["p50"] <= t["p95"] <= t["p99"]
            assert t["bandwidth"] == pytest.approx(40_000 / t["p50"])
        assert c["first"] > 0
        assert c["load"] > 0


def test_what_does_not_apply_is_said(measured):
    why = {s["label"]: s["why"] for s in measured["not_measured"]}
    assert "no built-in operator of this name" in why["built-in"]
    assert "torch" in why


def test_data_in_a_cache_are_no_bandwidth_of_memory(measured):
    memory = measured["peaks"]["memory"]
    for c in measured["candidates"]:
        assert c["warm"]["source"] in ("L1", "L2")  # 40 kB
        if c["cold"]["bandwidth"] > 1.1 * memory:
            assert c["cold"]["source"] == "cache"


@pytest.mark.parametrize("trick", list(TRICKS))
def test_what_makes_times_lie_is_found(tmp_path, trick):
    text, words = TRICKS[trick]
    wanted = Wanted("shop::Double", (declare(tmp_path, text),), {"N": (1000,)})
    try:
        result = measure(wanted, kernels=["kernel" if trick == "wrong" else "python"], **FEW)
    except AccordError as error:  # already the reference's process has another clock
        assert words in str(error)
        return
    errors = [f["error"] for f in result["failed"] if "model" not in f["label"]]
    assert errors
    assert words in errors[0]
    assert not [c for c in result["candidates"] if c["what"] == "kernel"]


def test_a_kernel_that_hangs_is_stopped(tmp_path, monkeypatch):
    from accord.workbench import remote

    monkeypatch.setattr(remote.Remote.__init__, "__defaults__", (1, 6.0))
    load = declare(tmp_path, "\n@double.python\ndef kernel(x):\n    while True: time.sleep(1)\n")
    with (
        Session(Wanted("shop::Double", (load,), {"N": (10,)})) as session,
        pytest.raises(ExecutionError, match="no answer for 6 s"),
    ):
        session.open("kernel", "kernel", "python")


def test_an_onnx_operator_and_its_peer():
    result = measure(Wanted("Softmax", (), {"input": (16, 64)}), runs=40, others=("onnxruntime",))
    labels = {c["label"]: c for c in result["candidates"]}
    assert labels["built-in"]["of_builtin"] == 1
    assert result["operations"] is not None
    assert labels["built-in"]["warm"]["roofline"] > 0


def test_percentiles_are_of_the_nearest_rank():
    assert quantile(range(1, 101), 0.95) == 95
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2
    assert quantile([7.0], 0.99) == 7
    assert summary([1.0, 2.0, 3.0, 4.0])["p50"] == 2


def test_arrays_survive_a_file(tmp_path):
    import ml_dtypes

    arrays = [np.arange(6, dtype=t).reshape(2, 3) for t in (np.float32, np.int64, ml_dtypes.bfloat16)]
    arrays += [None, np.zeros((0, 3), np.float16), np.array(True)]
    write_arrays(tmp_path / "a", arrays)
    for a, b in zip(arrays, read_arrays(tmp_path / "a"), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert a.tobytes() == b.tobytes()


def test_arguments_follow_the_contract():
    @accord.operator("bench::Pick")
    def pick(
        x: accord.Tensor["T", ..., "K"], i: accord.Tensor["int64", "M"], *, groups: int
    ) -> accord.Tensor["T", ..., "M"]:
        return x[..., i]

    try:
        pick.constraint("K % groups == 0").values(i=(0, "K - 1"))
        contract = pick.contract
        with pytest.raises(AccordError, match="attribute 'groups' has no default"):
            make_arguments(contract)
        found = make_arguments(contract, {"...": (2, 3)}, {"groups": 12}, "float64")
        x, i = found.inputs
        assert x.shape == (2, 3, found.sizes["K"])
        assert found.sizes["K"] % 12 == 0
        assert x.dtype == np.float64
        assert i.min() >= 0
        assert i.max() < found.sizes["K"]
        with pytest.raises(AccordError, match="there is no size 'Q'"):
            make_arguments(contract, {"Q": (2,)}, {"groups": 1})
        with pytest.raises(AccordError, match="K % groups == 0"):
            make_arguments(contract, {"K": (7,)}, {"groups": 2})
    finally:
        pick.unregister()
    with pytest.raises(AccordError, match="does not say which shape 'X' has"):
        make_arguments(contract_for("", "MaxPool", 22), attributes={"kernel_shape": [2, 2]})
