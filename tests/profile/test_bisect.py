"""Finding the patch or the kernel that makes a result wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from accord.passes import phases
from accord.profile.bisect import Verdict, bisect
from accord.profile.difference import Bounds, differences
from accord.runtime.options import Options
from builders import model, node
from faults import Doubled, Negated, chain, install_kernel, install_rules

X = {"x": np.linspace(-2, 2, 12, dtype=np.float32).reshape(2, 6)}


def found(proto: onnx.ModelProto, feed: dict | None = None, bounds: Bounds | None = None, **options) -> Verdict:
    return bisect(proto.SerializeToString(), X if feed is None else feed, Options(**options), bounds)


def test_nothing_is_wrong() -> None:
    verdict = found(chain("Exp", "Neg", "Tanh"))
    assert verdict.fault == "none"
    assert verdict.worst is not None
    assert verdict.worst.excess < 1
    assert len(verdict.trials) == 1


@pytest.mark.parametrize("before", [0, 1, 4, 7])
def test_a_wrong_rule(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # "before" right patches come first, and some after it
    install_rules(monkeypatch, Negated(), Doubled())
    proto = chain(*["Abs"] * before, "Exp", "Neg", "Abs", "Sqrt", "Abs")
    # the Neg that the right rule makes is doubled as well, but it is the smaller one: only the model's own Neg shows it
    verdict = found(proto)
    assert verdict.fault == "patch"
    assert verdict.patch is not None
    assert (verdict.patch.rule, verdict.patch.note) == ("doubled-neg", "its input doubled")
    assert verdict.reference_agrees is False
    assert verdict.without is not None
    assert verdict.without.is_right
    at = verdict.patch.serial
    tried = {t.patches: t.is_right for t in verdict.trials}
    assert tried[at] is False
    assert tried[at - 1] is True
    assert len(verdict.trials) <= 3 + np.log2(verdict.patches)


def test_another_wrong_rule_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Again(Doubled):
        name = "doubled-again"

    install_rules(monkeypatch, Doubled(), Again())
    verdict = found(chain("Exp", "Neg"))
    assert verdict.fault == "patch"
    assert verdict.patch is not None
    assert verdict.patch.rule == "doubled-neg"
    assert verdict.without is not None
    assert not verdict.without.is_right
    second = found(chain("Exp", "Neg"), disabled_rules=("doubled-neg",))
    assert second.patch is not None
    assert second.patch.rule == "doubled-again"


def test_levels_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    install_rules(monkeypatch, Doubled())
    assert found(chain("Exp", "Neg"), level=0).fault == "none"
    assert found(chain("Exp", "Neg"), level=1).fault == "patch"


def test_a_wrong_kernel_without_any_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    install_kernel(monkeypatch, "Tanh", lambda x: np.tanh(x) + np.float32(0.1))
    install_rules(monkeypatch)
    verdict = found(chain("Exp", "Tanh", "Neg"))
    assert (verdict.fault, verdict.patch) == ("kernel", None)
    assert verdict.step is not None
    assert (verdict.step.placement.node, verdict.step.placement.op) == ("tanh_1", "Tanh")
    assert verdict.step.difference.error == pytest.approx(0.1, rel=1e-3)
    assert verdict.step.difference.value == "v2"


def test_a_wrong_kernel_behind_a_right_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    install_kernel(monkeypatch, "Max", lambda a, b: np.maximum(a, b) * np.float32(1.01))
    install_rules(monkeypatch, Negated())
    verdict = found(chain("Tanh", "Exp", "Abs", "Sqrt"))
    assert verdict.fault == "kernel"
    assert verdict.reference_agrees is True
    assert verdict.patch is not None
    assert verdict.patch.rule == "abs-to-max"
    assert verdict.step is not None
    assert verdict.step.placement.op == "Max"
    assert verdict.without is not None
    assert verdict.without.is_right


def test_the_first_wrong_step_is_named_not_those_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    install_rules(monkeypatch)
    install_kernel(monkeypatch, "Exp", lambda x: np.exp(x) * 2)
    verdict = found(chain("Tanh", "Exp", "Neg", "Sin"))
    assert verdict.step is not None
    assert verdict.step.placement.op == "Exp"


def test_a_wrong_kernel_inside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 8, opset_import: ["":17]> g (float[3] x) => (float[3] y) {
      n = Constant<value = int64 {3}>()  yes = Constant<value = bool {1}>()
      y = Loop(n, yes, x) <body = b (int64 i, bool c, float[3] v) => (bool more, float[3] w)
        { more = Identity(c) t = Tanh(v) w = Add(t, x) }>
    }"""
    install_rules(monkeypatch)
    install_kernel(monkeypatch, "Tanh", lambda x: np.tanh(x) + np.float32(0.1))
    verdict = found(parser.parse_model(text), {"x": np.ones(3, np.float32)})
    assert verdict.fault == "kernel"
    assert verdict.step is not None
    assert verdict.step.placement.op == "Tanh"


def test_a_kernel_that_overwrites_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(x: np.ndarray) -> np.ndarray:
        result = np.tanh(x)
        x[...] = 0
        return result

    install_rules(monkeypatch)
    install_kernel(monkeypatch, "Tanh", spoil)
    nodes = [
        node("Exp", ["x"], ["e"], name="exp"),
        node("Tanh", ["e"], ["t"], name="tanh"),
        node("Add", ["e", "t"], ["y"], name="sum"),
    ]
    verdict = found(model(nodes, {"x": (np.float32, [2, 6])}, ["y"]))
    assert verdict.fault == "memory"
    assert verdict.step is not None
    assert (verdict.step.placement.node, verdict.step.difference.value) == ("sum", "e")


def test_errors_that_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    install_rules(monkeypatch)
    install_kernel(monkeypatch, "Relu", lambda x: np.maximum(x, 0) + np.float32(0.006))
    verdict = found(chain("Relu", "Abs", "Relu"), {"x": np.full((2, 6), 5, np.float32)}, Bounds(0, 0.01))
    assert (verdict.fault, verdict.step) == ("rounding", None)


def test_random_numbers_are_nobody_s_fault() -> None:
    proto = model([node("RandomNormalLike", ["x"], ["y"])], {"x": (np.float32, [2, 6])}, ["y"])
    assert found(proto).fault == "random"


def test_tolerances_are_those_of_contracts_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    install_rules(monkeypatch)
    install_kernel(monkeypatch, "Exp", lambda x: np.exp(x) * np.float32(1.0005))
    assert found(chain("Exp")).fault == "none"
    assert found(chain("Exp"), bounds=Bounds(rtol=1e-4)).fault == "kernel"
    assert found(chain("Exp"), bounds=Bounds(rtol=1e-4, atol=1.0)).fault == "none"


def test_a_model_that_only_the_compiled_path_reorders() -> None:
    rng = np.random.default_rng(0)
    constants = {"w": rng.random((16, 8, 3, 3), np.float32)}
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="conv"),
        node("Relu", ["a"], ["r"], name="relu"),
        node("Shape", ["r"], ["s"]),
        node("ConstantOfShape", ["s"], ["zeros"]),
        node("Add", ["r", "zeros"], ["y"]),
    ]
    proto = model(nodes, {"x": (np.float32, ["N", 8, "H", "H"])}, ["y"], constants)
    feed = {"x": rng.random((2, 8, 7, 7), np.float32)}
    assert found(proto, feed).fault == "none"
    # every step is checked when the tolerance makes one wrong
    verdict = found(proto, feed, Bounds(rtol=0, atol=1e-30))
    assert verdict.fault in ("kernel", "rounding")
    assert verdict.unchecked == ()


def test_rules_are_put_back() -> None:
    assert len(phases.phases()) > 2


# differences


def test_differences_of_all_kinds() -> None:
    nan, inf = np.nan, np.inf
    bounds = Bounds(rtol=0.1, atol=0.0)

    def worst(want, have, using=bounds) -> float:
        return differences(["v"], [want], [have], using)[0].excess

    one = np.ones(3, np.float32)
    assert worst(one, one) == 0
    assert worst(one, one * np.float32(1.2)) == pytest.approx(2, rel=1e-5)
    assert worst(np.array([nan, inf, 1]), np.array([nan, inf, 1])) == 0
    assert worst(np.array([nan, 1.0]), np.array([1.0, 1.0])) == inf
    assert worst(np.array([inf, 1.0]), np.array([-inf, 1.0])) == inf
    assert worst(np.zeros(2), np.array([0, 1e-30])) == inf
    assert worst(one, np.ones(4, np.float32)) == inf
    assert worst(one, np.ones(3, np.float64)) == inf
    assert worst(np.array(["a"], object), np.array(["a"], object)) == 0
    assert worst(np.array(["a"], object), np.array(["b"], object)) == inf
    assert worst([one, one], [one, one]) == 0
    assert worst([one], [one, one]) == inf
    assert worst({"k": one}, {"k": one}) == 0
    assert worst({"k": one}, {"j": one}) == inf
    assert worst(None, one) == inf
    assert differences(["v"], [None], [None], bounds) == []
    assert worst(np.empty(0), np.empty(0)) == 0
    assert worst(np.array([1, 2]), np.array([1, 3]), Bounds()) == inf
    assert worst(np.array([1, 2]), np.array([1, 3]), Bounds(atol=1)) == 1
    assert worst(np.array([True]), np.array([False]), Bounds()) == inf
    assert worst(np.array([1 + 1j]), np.array([1 + 1j])) == 0


def test_a_difference_says_where() -> None:
    want = np.zeros((2, 3), np.float32)
    have = want.copy()
    have[1, 2], have[0, 1] = 0.5, 0.25
    (d,) = differences(["v"], [want], [have], Bounds(atol=0.1, rtol=0))
    assert (d.where, d.beyond, d.elements, d.error) == ((1, 2), 2, 6, 0.5)
    assert "'v': 2 of 6 elements beyond 0.1 + 0 × |right|; greatest error 0.5, worst at [1, 2]: 0 is right" in str(d)
