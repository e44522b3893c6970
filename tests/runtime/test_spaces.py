"""Plans over two memories: copies on the edges between them, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import accord
from accord.errors import ExecutionError
from builders import model, node

F = np.float32


def copies(m):
    return [s.kernel.name for s in m.plan.steps if s.placement.op == "Copy"]


def chain():
    return model(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Add", ["m", "b"], ["a"]),
            node("Softmax", ["a"], ["s"]),
            node("Transpose", ["s"], ["t"], perm=[1, 0]),
            node("MatMul", ["t", "s"], ["y"]),
        ],
        {"x": (F, ["n", 6])},
        ["y"],
        {"w": np.linspace(-1, 1, 30).reshape(6, 5).astype(F), "b": np.arange(5, dtype=F)},
    )


def test_a_whole_model_is_copied_in_and_out_once(far):
    m = accord.load(chain(), device="far")
    assert copies(m) == ["copy host to far", "copy far to host"]
    assert m.plan.steps[0].placement.op == m.plan.steps[-1].placement.op == "Copy"
    expected = accord.load(chain(), device="cpu")
    for n in (3, 1, 8, 3):
        x = np.random.default_rng(n).standard_normal((n, 6)).astype(F)
        np.testing.assert_allclose(m(x)[0], expected(x)[0], rtol=1e-6)
    assert far.memory.uploads <= 2


def test_nodes_without_a_kernel_run_on_the_host_between_copies(far):
    far.takes = lambda n: n.op_type != "Softmax"
    m = accord.load(chain(), device="far", level=1)
    assert copies(m) == ["copy host to far", "copy far to host", "copy host to far", "copy far to host"]
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(F)
    np.testing.assert_allclose(m(x)[0], accord.load(chain())(x)[0], rtol=1e-6)
    softmax = next(s for s in m.plan.steps if s.placement.op == "Softmax")
    assert softmax.placement.backend == "cpu" and "left to the host" in softmax.placement.reason
    copied = [s.placement.copies for s in m.plan.steps if s.placement.op == "Copy"]
    assert any("Softmax" in c and "reads 'a' in the memory host" in c for c in copied), copied


def test_a_value_that_several_nodes_read_is_copied_once(far):
    far.takes = lambda n: n.op_type in ("Exp", "Neg")
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("Exp", ["r"], ["e"]),
            node("Neg", ["r"], ["n"]),
            node("Add", ["e", "n"], ["y"]),
        ],
        {"x": (F, [3, 4])},
        ["y", "r"],
    )
    m = accord.load(proto, device="far", level=0)
    assert copies(m).count("copy host to far") == 1 and copies(m).count("copy far to host") == 2
    x = np.linspace(-1, 1, 12, dtype=F).reshape(3, 4)
    r = np.maximum(x, 0)
    np.testing.assert_allclose(m(x)["y"], np.exp(r) - r, rtol=1e-6)


def test_body_graphs_read_what_was_copied_back(far):
    far.takes = lambda n: n.op_type in ("Exp", "MatMul")
    then, other = (
        helper.make_graph([n], "body", [], [helper.make_tensor_value_info(n.output[0], TensorProto.FLOAT, None)])
        for n in (node("MatMul", ["e", "e"], ["p"]), node("Neg", ["e"], ["q"]))
    )
    proto = model(
        [node("Exp", ["x"], ["e"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        {"x": (F, [3, 3]), "c": (np.bool_, [])},
        ["y"],
    )
    m = accord.load(proto, device="far", level=0)
    x = np.linspace(-1, 1, 9, dtype=F).reshape(3, 3)
    e = np.exp(x)
    np.testing.assert_allclose(m(x, np.array(True))[0], e @ e, rtol=1e-6)
    np.testing.assert_allclose(m(x, np.array(False))[0], -e, rtol=1e-6)


def test_values_whose_size_a_run_tells_stay_on_the_host(far):
    proto = model(
        [node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["i"]), node("Transpose", ["i"], ["t"]),
         node("Cast", ["t"], ["f"], to=1), node("ReduceSum", ["f"], ["y"], keepdims=0)],
        {"x": (F, ["n", 4])},
        ["y"],
    )  # fmt: skip
    m = accord.load(proto, device="far")
    x = np.array([[0, 1, -1, 2], [3, 0, 0, 0]], F)
    assert m(x)[0] == np.stack(np.nonzero(np.maximum(x, 0))).sum()


def test_what_does_not_fit_is_an_error_and_the_model_lives_on(far):
    m = accord.load(chain(), device="far")
    far.memory.limit = 8 << 20
    with pytest.raises(ExecutionError, match="far memory"):
        m(np.zeros((500_000, 6), F))
    assert np.isfinite(m(np.zeros((2, 6), F))[0]).all()
