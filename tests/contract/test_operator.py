"""User operators: declared in Python, checked when a model is loaded, run by their reference."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import numpy as np
import pytest

import accord
from accord.contract.registry import contract_for
from accord.contract.sizes import evaluate_condition, evaluate_size
from accord.errors import ContractError, ExecutionError, ModelError, UnknownOperatorError
from accord.ir import dims as D
from builders import model, node

Tensor = accord.Tensor
F = np.float32


@pytest.fixture
def shuffle():
    @accord.operator("shop::ChannelShuffle", since=1)
    def channel_shuffle(x: Tensor["T", "N", "C", "H", "W"], *, groups: int) -> Tensor["T", "N", "C", "H", "W"]:
        """Interleave channels."""
        n, c, h, w = x.shape
        return x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(n, c, h, w)

    channel_shuffle.constraint("C % groups == 0")
    channel_shuffle.types(T=["float32", "int8"])
    yield channel_shuffle
    channel_shuffle.unregister()


def shuffled(shape, dtype=F, groups=2, **attributes):
    return model(
        [node("ChannelShuffle", ["x"], ["s"], domain="shop", groups=groups, **attributes), node("Relu", ["s"], ["y"])],
        {"x": (dtype, shape)},
        ["y"],
        domains={"shop": 1},
    )


def test_a_model_with_a_user_operator_runs(shuffle):
    m = accord.load(shuffled(["n", 4, "h", "w"]))
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 5)).astype(F)
    np.testing.assert_array_equal(m(x)[0], np.maximum(shuffle(x, groups=2), 0))
    assert m.outputs[0].shape == ("n", 4, "h", "w")


def test_its_constraint_is_checked_at_load(shuffle):
    with pytest.raises(ModelError, match=r"C % groups == 0.*C = 5, groups = 2"):
        accord.load(shuffled([1, 5, 2, 2]))


def test_its_dtypes_are_checked_at_load(shuffle):
    with pytest.raises(ModelError, match=r"not supported.*tensor\(double\)"):
        accord.load(shuffled([1, 4, 2, 2], np.float64))


def test_its_rank_is_checked_at_load(shuffle):
    with pytest.raises(ModelError, match="rank"):
        accord.load(shuffled([4, 2, 2]))


def test_its_attributes_are_checked_at_load(shuffle):
    with pytest.raises(ModelError, match="group"):
        accord.load(shuffled([1, 4, 2, 2], group=2))


def test_without_declaration_the_error_says_what_to_do():
    proto = model([node("Pleat", ["x"], ["y"], domain="shop")], {"x": (F, [2])}, ["y"], domains={"shop": 1})
    with pytest.raises(UnknownOperatorError, match=r"accord\.operator"):
        accord.load(proto)


def test_the_version_in_force_is_used(shuffle):
    @accord.operator("shop::ChannelShuffle", since=2)
    def second(x: Tensor["T", "N"]) -> Tensor["T", "N"]:
        """Another meaning."""
        return -x

    assert contract_for("shop", "ChannelShuffle", 1) is shuffle.contract
    assert contract_for("shop", "ChannelShuffle", 5) is second.contract


def test_an_operator_that_ended_is_not_taken_for_a_later_version(shuffle):
    shuffle.semantic(until_version=3)
    assert contract_for("shop", "ChannelShuffle", 3) is shuffle.contract
    with pytest.raises(UnknownOperatorError, match=r"versions 1 to 3"):
        contract_for("shop", "ChannelShuffle", 4)


def test_the_same_version_twice_is_an_error(shuffle):
    with pytest.raises(ContractError, match="registered already"):

        @accord.operator("shop::ChannelShuffle", since=1)
        def again(x: Tensor["T", "N"]) -> Tensor["T", "N"]:
            return x


def test_size_expressions_and_optional_inputs():
    @accord.operator("shop::Upscale")
    def upscale(
        x: Tensor["T", ..., "H", "W"], bias: Tensor["T", "W"] | None = None, *, factor: int = 2
    ) -> tuple[Tensor["T", ..., "H * factor", "W"], Tensor["int64", "H"]]:
        y = np.repeat(x if bias is None else x + bias, factor, axis=-2)
        return y, np.arange(x.shape[-2])

    try:
        proto = model(
            [
                node("Upscale", ["x", "b"], ["y", "i"], domain="shop"),
                node("Upscale", ["x"], ["z", ""], domain="shop", factor=3),
            ],
            {"x": (F, ["a", "b", 4, "w"]), "b": (F, ["w"])},
            ["y", "i", "z"],
            domains={"shop": 1},
        )
        m = accord.load(proto)
        assert [o.shape for o in m.outputs] == [("a", "b", 8, "w"), (4,), ("a", "b", 12, "w")]
        out = m(np.ones((2, 3, 4, 5), F), np.ones(5, F))
        assert out["y"].shape == (2, 3, 8, 5) and (out["y"] == 2).all() and (out["z"] == 1).all()
    finally:
        upscale.unregister()


def test_a_reference_that_lies_about_its_shape_is_named():
    @accord.operator("shop::Liar")
    def liar(x: Tensor["T", "N"]) -> Tensor["T", "N"]:
        return x[:-1]

    try:
        m = accord.load(
            model([node("Liar", ["x"], ["y"], domain="shop")], {"x": (F, ["n"])}, ["y"], domains={"shop": 1})
        )
        with pytest.raises(ExecutionError, match=r"shop::Liar.*not what its contract says.*\[4\].*\[3\]"):
            m(np.ones(4, F))
    finally:
        liar.unregister()


def test_a_reference_that_raises_is_named_and_the_model_lives_on():
    @accord.operator("shop::Picky")
    def picky(x: Tensor["T", "N"]) -> Tensor["T", "N"]:
        if x.max() > 1:
            raise ValueError("too large")
        return x

    try:
        m = accord.load(
            model([node("Picky", ["x"], ["y"], domain="shop")], {"x": (F, ["n"])}, ["y"], domains={"shop": 1})
        )
        with pytest.raises(ExecutionError, match=r"shop::Picky.*too large"):
            m(np.full(3, 2, F))
        np.testing.assert_array_equal(m(np.ones(3, F))[0], np.ones(3, F))
    finally:
        picky.unregister()


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: accord.operator("NoDomain")(lambda x: x), "domain::Name"),
        (lambda: accord.operator("shop::Bare")(_bare), "Tensor annotation"),
        (lambda: accord.operator("shop::NoReturn")(_no_return), "return annotation"),
        (lambda: accord.operator("shop::Attr")(_odd_attribute), "unknown type"),
    ],
)
def test_declarations_that_say_too_little(declare, message):
    with pytest.raises(ContractError, match=message):
        declare()


def _bare(x):
    return x


def _no_return(x: Tensor["T", "N"]):
    return x


def _odd_attribute(x: Tensor["T", "N"], *, table: dict) -> Tensor["T", "N"]:
    return x


def test_conditions_name_known_sizes(shuffle):
    with pytest.raises(ContractError, match="unknown name K"):
        shuffle.constraint("K > 2")
    with pytest.raises(ContractError, match="no type variable"):
        shuffle.types(U=["float32"])
    with pytest.raises(ContractError, match="unknown dtype"):
        shuffle.types(T=["float33"])


@pytest.mark.parametrize("text", ["__import__('os')", "a.b", "[1]", "f(1)", "1.5", "x if y else z", "(", ""])
def test_size_expressions_are_arithmetic_only(text):
    with pytest.raises(ContractError):
        evaluate_size(text, {"a": 1, "x": 1, "y": 1, "z": 1})


def test_conditions_on_symbols():
    n = D.symbol("n", 1)
    assert evaluate_condition("n * 4 % 4 == 0", {"n": n}) is True
    assert evaluate_condition("n % 4 == 0", {"n": n}) is None
    assert evaluate_condition("n >= 1 and n + 1 > n", {"n": n}) is True
    assert evaluate_condition("n < 1", {"n": n}) is False
    assert evaluate_size("max(n, 3) // 2", {"n": 9}) == 4


def test_a_kernel_may_want_an_input_whose_content_is_known():
    @accord.operator("test.ops::Scaled")
    def scaled(x: Tensor["float32", "N"], s: Tensor["float32"]) -> Tensor["float32", "N"]:
        return x * s

    try:
        scaled.kernel("known", "python", lambda x, s: np.full_like(x, 1), constant=("s",))
        scaled.kernel("any", "python", lambda x, s: np.full_like(x, 2))
        with pytest.raises(ContractError, match="constant input does not exist"):
            scaled.kernel("wrong", "python", lambda x, s: x, constant=("t",))
        call = [node("Scaled", ["x", "s"], ["y"], domain="test.ops")]
        x, s = np.zeros(3, np.float32), np.float32(4)
        inputs = {"x": (np.float32, [3])}
        held = accord.load(model(call, inputs, ["y"], {"s": s}, domains={"test.ops": 1}))
        assert held(x)[0].tolist() == [1, 1, 1]
        given = accord.load(model(call, inputs | {"s": (np.float32, [])}, ["y"], domains={"test.ops": 1}))
        assert given(x, s)[0].tolist() == [2, 2, 2]
    finally:
        scaled.unregister()


@pytest.mark.parametrize(
    ("size", "given", "rows"), [("R + 1", 4, 3), ("2 * R", 6, 3), ("1 - R", 1, 0), ("3 * R - 2", 7, 3)]
)
def test_a_size_that_stands_only_in_an_expression_is_solved(size, given, rows):
    def ones(v):
        return np.ones(rows, v.dtype)

    ones.__annotations__ = {"v": Tensor["float32", size], "return": Tensor["float32", "R"]}
    operator = accord.operator("sizes::Ones")(ones)
    try:
        for axis in (given, "n"):
            proto = model([node("Ones", ["v"], ["y"], domain="sizes")], {"v": (F, [axis])}, ["y"], domains={"sizes": 1})
            m = accord.load(proto)
            if axis == given:
                assert m.outputs[0].shape == (rows,)
            assert m(np.zeros(given, F))[0].shape == (rows,)
    finally:
        operator.unregister()
