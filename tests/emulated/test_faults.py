"""Finding what makes a result wrong on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from accord.backends.cuda import code, printer
from accord.cli import main
from accord.profile.bisect import bisect
from accord.runtime.options import Options
from builders import model, node
from faults import Doubled, chain, install_rules

F = np.float32
X = {"x": np.linspace(-2, 2, 12, dtype=F).reshape(2, 6)}


def found(proto, feed=None, **options):
    return bisect(proto.SerializeToString(), X if feed is None else feed, Options(device="cuda", **options))


def networks():
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((6, 5)).astype(F), "s": np.ones(5, F), "b": np.zeros(5, F)}
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Sqrt", ["e"], ["r"], name="root"),
        node("LayerNormalization", ["h", "s", "b"], ["n"], axis=-1),
        node("Exp", ["n"], ["e"]),
        node("Softmax", ["r"], ["y"], axis=-1),
    ]
    return model([nodes[0], nodes[2], nodes[3], nodes[1], nodes[4]], {"x": (F, [2, 6])}, ["y"], weights)


def test_nothing_is_wrong(gpu):
    del gpu
    verdict = found(networks())
    assert verdict.fault == "none"
    assert not verdict.unchecked


@pytest.mark.parametrize("level", [0, 3])
def test_a_wrong_kernel_is_named(gpu, level, monkeypatch):
    del gpu
    monkeypatch.setattr(code, "_FUNCTIONS", {})  # a kernel is known by its expression
    wrong = {"sqrt": lambda p, n, a: p.line(f"tl.sqrt_rn({a[0]}) * 1.5")}
    monkeypatch.setattr(printer, "_WRITERS", printer._WRITERS | wrong)
    verdict = found(networks(), level=level)
    assert verdict.fault == "kernel"
    assert verdict.step is not None
    assert verdict.step.placement.backend == "cuda"
    assert verdict.reference_agrees


def test_a_wrong_rule_is_named(gpu, monkeypatch):
    del gpu
    install_rules(monkeypatch, Doubled())
    verdict = found(chain("Exp", "Neg", "Abs", "Sqrt"))
    assert verdict.fault == "patch"
    assert verdict.patch is not None
    assert verdict.patch.rule == "doubled-neg"


def test_the_command_line(gpu, tmp_path):
    del gpu
    path = tmp_path / "model.onnx"
    path.write_bytes(networks().SerializeToString())
    result = CliRunner().invoke(main, ["bisect", str(path), "--device", "cuda"])
    assert result.exit_code == 0, result.output
    assert "nothing is wrong" in result.output
