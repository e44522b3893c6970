"""Plans for what sizes and single integers decide."""

from __future__ import annotations

import numpy as np
import pytest

import accord
from accord.errors import ModelError
from accord.runtime.model import MAX_VARIANTS
from builders import model, node

F = np.float32


def squeezing():
    """Squeezes the first axis where it has size 1, and scales by what ``mode`` says."""
    import onnx

    def body(name, nodes, output):
        return onnx.helper.make_graph(nodes, name, [], [onnx.helper.make_tensor_value_info(output, 1, None)])

    squeezed = body("squeezed", [node("Squeeze", ["x", "zero"], ["a"])], "a")
    kept = body("kept", [node("Identity", ["x"], ["b"])], "b")
    doubled = body("doubled", [node("Mul", ["m", "two"], ["c"])], "c")
    negated = body("negated", [node("Neg", ["m"], ["d"])], "d")
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Equal", ["n", "one"], ["single"]),
        node("If", ["single"], ["m"], then_branch=squeezed, else_branch=kept),
        node("Equal", ["mode", "seven"], ["is_seven"]),
        node("If", ["is_seven"], ["y"], then_branch=doubled, else_branch=negated),
    ]
    constants = {
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "seven": np.array(7, np.int64),
        "two": np.array(2, F),
    }
    return model(nodes, {"x": (F, ["n", 3]), "mode": (np.int64, [])}, ["y"], constants)


def expected(x, mode):
    m = x[0] if len(x) == 1 else x
    return m * 2 if mode == 7 else -m


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("mode", [7, 0, -3])
def test_all_branches_are_right(n, mode):
    m = accord.load(squeezing())
    x = np.random.default_rng(0).standard_normal((n, 3)).astype(F)
    for _ in range(2):
        np.testing.assert_array_equal(m(x=x, mode=np.array(mode))[0], expected(x, mode))


def test_variants_are_found_again_and_bounded():
    m = accord.load(squeezing())
    for n in (1, 2, 1, 3, 4, 2):
        for mode in (7, 8, 9, 7):
            x = np.ones((n, 3), F)
            np.testing.assert_array_equal(m(x=x, mode=np.array(mode))[0], expected(x, mode))
    assert len(m._variants) == 4 <= MAX_VARIANTS


def test_variants_are_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.onnx"
    file.write_bytes(squeezing().SerializeToString())
    x = np.ones((4, 3), F)
    accord.load(file)(x=x, mode=np.array(1))
    again = accord.load(file)
    monkeypatch.setattr(again, "_compile", lambda *_, **__: pytest.fail("it is compiled again"))
    np.testing.assert_array_equal(again(x=x, mode=np.array(1))[0], expected(x, 1))


def test_a_file_that_was_replaced_since_is_not_kept_as_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.onnx"
    proto = squeezing()
    before = proto.SerializeToString()
    file.write_bytes(before)
    m = accord.load(file)
    next(i for i in proto.graph.initializer if i.name == "two").raw_data = F(3).tobytes()
    file.write_bytes(proto.SerializeToString())
    x = np.ones((4, 3), F)
    m(x=x, mode=np.array(7))
    file.write_bytes(before)
    np.testing.assert_array_equal(accord.load(file)(x=x, mode=np.array(7))[0], expected(x, 7))


def test_the_likely_plan_has_no_control_flow():
    m = accord.load(squeezing())
    assert "runtime" not in {s.placement.backend for s in m.plan.steps}
    assert len(m._variants) == 1
    m(x=np.ones((1, 3), F), mode=np.array(7))
    assert len(m._variants) == 1


def test_branches_that_are_not_taken_are_checked():
    proto = squeezing()
    branch = next(
        a.g for n in proto.graph.node for a in n.attribute if a.name == "else_branch" and a.g.name == "negated"
    )
    branch.node[0].op_type = "Not"  # of a float
    with pytest.raises(ModelError):
        accord.load(proto)


def test_a_stored_plan_serves_all_variants(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "cache"))
    # plans are not kept while operators of a user are registered, which other tests do
    monkeypatch.setattr("accord.contract.registry.user_contracts", list)
    path = tmp_path / "m.onnx"
    path.write_bytes(squeezing().SerializeToString())
    for _ in range(2):
        m = accord.load(path)
        for n, mode in ((1, 7), (3, 7), (3, 1)):
            x = np.ones((n, 3), F)
            np.testing.assert_array_equal(m(x=x, mode=np.array(mode))[0], expected(x, mode))
    assert list(m.seconds) == ["stored"]
