"""Promises of single operators that the general test cannot see: length, state, accuracy of codes, fusion."""

from __future__ import annotations

import numpy as np
import pytest

import accord
from accord.errors import ExecutionError
from accord.library import ctc_greedy_decode, ctc_loss, deform_conv2d, lstm, quantized_deform_conv2d
from builders import model, node

F = np.float32


def run(name, feed, outputs=("y",), constants=None, **attributes):
    constants = constants or {}
    proto = model(
        [node(name, [*feed, *constants], [*outputs], domain="accord", **attributes)],
        {n: (v.dtype, v.shape) for n, v in feed.items()}, [*outputs], constants, domains={"accord": 1},
    )  # fmt: skip
    return accord.load(proto)(**feed)


@pytest.mark.parametrize("dtype", [np.float16, F])
def test_long_inputs_of_ctc_stay_finite_and_right(dtype):
    length, classes = 20_000, 20
    rng = np.random.default_rng(0)
    x = (3 * rng.standard_normal((length, 1, classes))).astype(dtype)
    labels = rng.integers(1, classes, (1, 60))
    feed = {"x": x, "t": labels, "l": np.array([length]), "n": np.array([60])}
    (loss,) = run("CTCLoss", feed)
    expected = ctc_loss(*feed.values())
    assert np.isfinite(loss).all() and expected[0] > 10_000
    np.testing.assert_allclose(loss, expected, rtol=2e-6)


def test_a_target_that_cannot_fit_has_an_infinite_loss_and_an_empty_one_does_not():
    x = np.zeros((3, 2, 4), F)
    feed = {"x": x, "t": np.array([[1, 1, 2], [1, 2, 3]]), "l": np.array([3, 3]), "n": np.array([3, 0])}
    (loss,) = run("CTCLoss", feed)
    assert loss[0] == np.inf  # two equal labels need a blank between them
    np.testing.assert_allclose(loss[1], 3 * np.log(4), rtol=1e-6)


@pytest.mark.parametrize("change", [{"t": 7}, {"t": -1}, {"l": 4}, {"n": 9}])
def test_ctc_refuses_labels_and_lengths_that_do_not_exist(change):
    feed = {"x": np.zeros((3, 1, 4), F), "t": np.array([[1, 2]]), "l": np.array([3]), "n": np.array([2])}
    for n, v in change.items():
        feed[n].flat[-1] = v
    with pytest.raises(ExecutionError, match="CTC"):
        run("CTCLoss", feed)


def test_greedy_decoding_joins_repeats_but_not_across_blanks():
    path = [1, 1, 0, 1, 2, 2, 0, 0, 3]
    x = np.eye(4, dtype=F)[path][:, None]
    labels, count = run("CTCGreedyDecode", {"x": x, "l": np.array([8])}, ("y", "c"))
    assert labels[0].tolist() == [1, 1, 2, -1, -1, -1, -1, -1, -1] and count.tolist() == [3]
    assert ctc_greedy_decode(x, np.array([8]))[0].tolist() == labels.tolist()


def test_state_goes_from_call_to_call_and_belongs_to_its_caller():
    rng = np.random.default_rng(0)
    w = {n: rng.standard_normal(s).astype(F) * F(0.3) for n, s in (("w", (32, 5)), ("r", (32, 8)), ("b", (32,)))}
    x = rng.standard_normal((12, 3, 5)).astype(F)
    names = ["x", "h", "c", *w]
    proto = model(
        [node("Neg", ["x"], ["nx"]), node("LSTM", ["nx", *names[1:]], ["y", "h1", "c1"], domain="accord"),
         node("Add", ["y", "h1"], ["z"])],
        {"x": (F, ["l", "n", 5]), "h": (F, ["n", 8]), "c": (F, ["n", 8])}, ["z", "h1", "c1"], w,
        domains={"accord": 1},
    )  # fmt: skip
    m = accord.load(proto)
    zero = np.zeros((3, 8), F)
    whole, *_ = lstm(-x, zero, zero, *w.values())
    h, c = zero.copy(), zero.copy()
    others = [rng.standard_normal((3, 8)).astype(F) for _ in range(2)]
    found = []
    for t in range(0, 12, 4):
        given = h.copy(), c.copy()
        z, h1, c1 = m(x[t : t + 4], h, c)
        np.testing.assert_array_equal((h, c), given)  # what is given is not written
        m(x[t : t + 4] * 3, *others)  # somebody else's sequence in between
        found.append(z - h1)
        h, c = h1, c1
    np.testing.assert_allclose(np.concatenate(found), whole, atol=1e-5)


@pytest.mark.parametrize(("dtype", "most"), [("int8", 127), ("int4", 7)])
def test_codes_of_offsets_are_as_accurate_as_stated(dtype, most):
    import ml_dtypes

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 6, 12, 11)).astype(F)
    weight = rng.standard_normal((4, 6, 3, 3)).astype(F)
    offset = np.clip(rng.standard_normal((1, 18, 12, 11)) * 1.5, -3.4, 3.4).astype(F)
    scale = np.array([3.5 / most], F)
    codes = np.rint(offset / scale).astype(np.int8).astype(ml_dtypes.int4 if dtype == "int4" else np.int8)
    feed, constants = {"x": x, "w": weight, "o": codes}, {"s": scale}
    (found,) = run("QuantizedDeformConv2d", feed, constants=constants, padding=1)
    # as codes say, to the last rounding
    np.testing.assert_allclose(found, quantized_deform_conv2d(x, weight, codes, scale, padding=1), rtol=1e-4, atol=1e-4)
    # and off from what was meant by no more than the bound
    border = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    steep = np.abs(np.diff(border, axis=2)).max() + np.abs(np.diff(border, axis=3)).max()
    bound = np.abs(weight).sum((1, 2, 3)).max() * steep * scale / 2
    error = np.abs(found - deform_conv2d(x, weight, offset, padding=1))
    assert 0 < error.max() <= bound
    assert error.mean() < bound / 20


def test_an_epilogue_and_a_declared_operator_become_one_step():
    w = np.random.default_rng(0).standard_normal((16, 16)).astype(F)
    proto = model(
        [node("Linear", ["x", "w", "", "x"], ["a"], domain="accord", activation="silu"),
         node("HardSwish", ["a"], ["b"], domain="accord"), node("Mul", ["b", "x"], ["y"])],
        {"x": (F, ["n", 16])}, ["y"], {"w": w}, domains={"accord": 1},
    )  # fmt: skip
    assert len(accord.load(proto).plan.steps) == 1


def test_a_score_function_makes_no_matrix_of_scores():
    shape = (1, 2, 2048, 32)
    feed = {n: np.zeros(shape, F) for n in "qkv"}
    proto = model(
        [node("ALiBiAttention", [*feed], ["y"], domain="accord")], dict.fromkeys(feed, (F, shape)), ["y"],
        domains={"accord": 1},
    )  # fmt: skip
    m = accord.load(proto)
    assert len(m.plan.steps) == 1
    assert m.plan.steps[0].kernel.workspace < 4 * 2048 * 2048 / 8
