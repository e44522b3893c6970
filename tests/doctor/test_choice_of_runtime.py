"""Which runtime suits: facts of models, and the ranking that follows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import parser

from accord.doctor.advice import BLOCKED, TARGETS, TEAMS, WEIGHTS, advise, case_of, target_of
from accord.doctor.environment import Nvidia, look
from accord.doctor.traits import AccordFit, fit_of, traits_of
from accord.errors import ModelFormatError
from builders import model, node

LOOP = """
<ir_version: 8, opset_import: ["": 17]> g (float[N] x, bool c) => (float[M] y)
{ y = If(c) <then_branch = a () => (float[N] p) { k = Constant<value = float[3] {1,2,3}>() p = Add(x, k) },
             else_branch = b () => (float[M] q) { i = NonZero(x)  f = Cast<to = 1>(i) q = ReduceSum(f) }> }
"""
CUSTOM = """
<ir_version: 8, opset_import: ["": 17, "shop": 1]> g (float[2, 3] x) => (float[2, 3] y)
{ a = shop.Shuffle(x)  y = Relu(a) }
"""
QUANTISED = """
<ir_version: 8, opset_import: ["": 17]> g (uint8[1, 4] x) => (int32[1, 2] y) <uint8[4, 2] w = {1,2,3,4,5,6,7,8}>
{ y = MatMulInteger(x, w) }
"""
SEQUENCE = """
<ir_version: 8, opset_import: ["": 17]> g (seq(float[N]) s, int64 i) => (float[N] y) { y = SequenceAt(s, i) }
"""


def write(folder, text):
    path = folder / "model.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    return path


@pytest.fixture(scope="module")
def here():
    return look()


@pytest.fixture
def plain(tmp_path):
    w = np.ones((4, 3, 3, 3), np.float32)
    path = tmp_path / "model.onnx"
    made = model([node("Conv", ["x", "w"], ["y"])], {"x": ("float32", [1, 3, 8, 8])}, ["y"], {"w": w})
    path.write_bytes(made.SerializeToString())
    return path


def asked(here, path, **options):
    chosen = {"target": "cpu", "weights": "fixed", "team": None} | options
    return advise(case_of(traits_of(path), fit_of(path), here, **chosen))


def verdict(advice, name):
    return next(v for v in advice.ranking if v.runtime.startswith(name))


# facts


def test_a_plain_model(plain):
    t = traits_of(plain)
    assert (t.nodes, t.weight_bytes, t.free_axes) == (1, 432, ())
    assert not (t.control_flow or t.custom or t.quantised or t.sequences or t.strings or t.doubles)
    fit = fit_of(plain)
    assert (fit.error, fit.fallbacks, fit.late) == ("", {}, 0)
    assert fit.steps > 0


def test_control_flow_and_sizes_that_depend_on_values(tmp_path):
    t = traits_of(write(tmp_path, LOOP))
    assert t.control_flow == {"If": 1}
    assert t.data_dependent == {"NonZero": 1}
    assert t.free_axes == ("x[0] = N",)
    assert t.weight_bytes == 12


def test_custom_operators_that_nobody_declared(tmp_path):
    path = write(tmp_path, CUSTOM)
    assert traits_of(path).custom == {"shop::Shuffle": 1}
    fit = fit_of(path)
    assert fit.undeclared
    assert "shop::Shuffle" in fit.error


def test_quantised_and_sequences(tmp_path):
    t = traits_of(write(tmp_path, QUANTISED))
    assert t.quantised == t.old_quantised == {"MatMulInteger": 1}
    t = traits_of(write(tmp_path, SEQUENCE))
    assert t.sequences == {"SequenceAt": 1, "SequenceType": 1}


def test_a_function_of_the_model_is_no_custom_operator(tmp_path):
    text = """
    <ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[2] x) => (float[2] y) { y = own.Twice(x) }
    <opset_import: ["": 17], domain: "own"> Twice (a) => (b) { b = Add(a, a) }
    """
    assert traits_of(write(tmp_path, text)).custom == {}


def test_what_is_no_model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelFormatError):
        traits_of(path)


def test_the_target_is_read_from_the_machine(here):
    cpu = dataclasses.replace(here.cpu, arch="x86_64", model="AMD EPYC")
    none = dataclasses.replace(here, nvidia=Nvidia(), cpu=cpu)
    assert target_of(none)[0] == "cpu"
    assert target_of(dataclasses.replace(none, nvidia=Nvidia(devices=("nvidia0",))))[0] == "nvidia"
    intel = dataclasses.replace(cpu, model="Intel(R) Xeon(R) Gold 6338")
    assert target_of(dataclasses.replace(none, cpu=intel))[0] == "intel"
    assert target_of(dataclasses.replace(none, cpu=dataclasses.replace(cpu, arch="aarch64")))[0] == "arm"


# rankings


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"target": "nvidia"}, "TensorRT"),
        ({"target": "intel"}, "OpenVINO"),
        ({"target": "edge"}, "ONNX Runtime"),
        ({"weights": "trained"}, "PyTorch"),
        ({"team": "ops"}, "Triton Inference Server"),
        ({"team": "cpp"}, "ONNX Runtime"),
    ],
)
def test_who_is_first(here, plain, options, first):
    assert asked(here, plain, **options).ranking[0].runtime.startswith(first)


def test_every_mark_has_its_fact_and_reason(here, plain):
    for target in TARGETS:
        for weights in WEIGHTS:
            for team in (None, *TEAMS):
                advice = asked(here, plain, target=target, weights=weights, team=team)
                points = [v.points for v in advice.ranking]
                assert points == sorted(points, reverse=True)
                assert all(m.fact and m.reason for v in advice.ranking for m in v.marks)


def test_accord_on_nvidia_is_read_from_its_backends(here, plain):
    without = dataclasses.replace(here, backends={n: d for n, d in here.backends.items() if d != "cuda"})
    advice = asked(without, plain, target="nvidia")
    mine = verdict(advice, "Accord")
    assert mine.fit == "poor"
    assert "no backend for 'cuda'" in mine.marks[0].reason
    with_cuda = dataclasses.replace(here, backends={**here.backends, "cuda": "cuda"})
    better = verdict(asked(with_cuda, plain, target="nvidia"), "Accord")
    assert better.points > mine.points
    assert not any("no backend" in m.reason for m in better.marks)


def test_accord_says_what_it_cannot_do(here, plain):
    for options, words in (
        ({"weights": "trained"}, "gradients"),
        ({"target": "arm"}, "machine code is made for x86_64 only"),
        ({"team": "cpp"}, "no C or C++ interface"),
    ):
        marks = verdict(asked(here, plain, **options), "Accord").marks
        assert any(words in m.reason for m in marks), options


def test_a_model_that_accord_cannot_run_rules_it_out(here, plain):
    case = case_of(
        traits_of(plain), AccordFit(error="no such thing"), here, target="cpu", weights="fixed", team="python"
    )
    mine = verdict(advise(case), "Accord")
    assert mine.fit == "does not fit"
    assert mine.marks[0].points == BLOCKED
    assert "no such thing" in mine.marks[0].reason


def test_fallbacks_count_against_accord(here, plain):
    traits = traits_of(plain)
    good = case_of(traits, AccordFit(steps=3, fallbacks={}), here, target="cpu", weights="fixed", team=None)
    slow = dataclasses.replace(good, fit=AccordFit(steps=3, fallbacks={"TfIdfVectorizer": 1}))
    assert verdict(advise(slow), "Accord").points < verdict(advise(good), "Accord").points


def test_facts_of_the_model_move_the_ranking(here, tmp_path, plain):
    on_gpu = {"target": "nvidia"}
    fixed = verdict(asked(here, plain, **on_gpu), "TensorRT").points
    assert verdict(asked(here, write(tmp_path, LOOP), **on_gpu), "TensorRT").points < fixed
    assert verdict(asked(here, write(tmp_path, CUSTOM), **on_gpu), "TensorRT").points < fixed
    assert verdict(asked(here, write(tmp_path, SEQUENCE), **on_gpu), "TensorRT").fit == "does not fit"
    reasons = [m.reason for m in verdict(asked(here, write(tmp_path, QUANTISED), **on_gpu), "TensorRT").marks]
    assert "only pairs of QuantizeLinear and DequantizeLinear are read" in reasons


def test_what_would_change_it_does(here, plain):
    advice = asked(here, plain)
    assert advice.changes["--weights trained"].startswith("PyTorch")
    for words, first in advice.changes.items():
        option, value = words.removeprefix("--").split()
        assert asked(here, plain, **{option: value}).ranking[0].runtime == first
