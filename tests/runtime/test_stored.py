"""Stored plans: what was compiled once is found again, whatever kernels it has."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import accord
from accord import Tensor
from accord.backends.protocol import FixedLaunch, NativeKernel
from accord.runtime import stored as stored_module

RNG = np.random.default_rng(7)


def weight(name, *shape):
    return numpy_helper.from_array((RNG.standard_normal(shape) / 8).astype(np.float32), name)


def model(nodes, shapes, initializers=(), outputs=("y",)):
    """A model of float inputs ``shapes`` (by name) whose outputs are ``outputs``."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph(nodes, "g", inputs, made, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def convolution(batch, channels, size, count, kernel, **attributes):
    groups = attributes.get("group", 1)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    return model([node], {"x": [batch, channels, size, size]}, [weight("w", count, channels // groups, kernel, kernel)])


def lstm(batch):
    node = helper.make_node("LSTM", ["x", "w", "r"], ["", "y"], hidden_size=16)
    return model([node], {"x": [5, batch, 8]}, [weight("w", 1, 64, 8), weight("r", 1, 64, 16)])


def attention(batch):
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], q_num_heads=2, kv_num_heads=2)
    made = model([node], {n: [batch, 12, 32] for n in "qkv"})
    made.opset_import[0].version = 24
    return made


def resize(batch):
    scales = numpy_helper.from_array(np.array([1, 1, 2, 1.5], np.float32), "s")
    return model([helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")], {"x": [batch, 3, 8, 10]}, [scales])


#: Makers of models of a given batch size; each takes another way through the backend.
WAYS = {
    "pointwise": lambda n: model([helper.make_node("Exp", ["x"], ["y"])], {"x": [n, 7]}),
    "softmax": lambda n: model([helper.make_node("Softmax", ["x"], ["y"])], {"x": [n, 33]}),
    "product": lambda n: model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [n, 48]}, [weight("w", 48, 20)]),
    "two inputs": lambda n: model([helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": [n, 5, 6], "b": [n, 6, 7]}),
    "1x1": lambda n: convolution(n, 16, 9, 24, 1),
    "staged": lambda n: convolution(n, 3, 20, 8, 3, strides=[2, 2], pads=[1] * 4),
    "packed": lambda n: convolution(n, 32, 12, 40, 3, strides=[2, 2]),
    "winograd": lambda n: convolution(n, 32, 24, 32, 3, pads=[1] * 4),
    "depthwise": lambda n: convolution(n, 16, 12, 16, 3, group=16),
    "groups": lambda n: convolution(n, 32, 12, 32, 3, group=4),
    "transposed": lambda n: model(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])],
        {"x": [n, 8, 6, 6]},
        [weight("w", 8, 4, 2, 2)],
    ),
    "pool": lambda n: model(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2])], {"x": [n, 8, 11, 11]}
    ),
    "resize": resize,
    "lstm": lstm,
    "attention": attention,
    "ranking": lambda n: model(
        [helper.make_node("TopK", ["x", "k"], ["y", "i"])],
        {"x": [n, 50]},
        [numpy_helper.from_array(np.array([5]), "k")],
    ),
    "counted": lambda n: model(
        [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=1)], {"x": [n, 7]}
    ),
    "late": lambda n: model(
        [
            helper.make_node("NonZero", ["x"], ["i"]),
            helper.make_node("Cast", ["i"], ["f"], to=1),
            helper.make_node("ReduceSum", ["f"], ["y"], keepdims=0),
        ],
        {"x": [n, 7]},
    ),
    "branch": lambda n: model(
        [
            helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
            helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                then_branch=helper.make_graph(
                    [helper.make_node("Exp", ["x"], ["t"])], "t", [], [helper.make_tensor_value_info("t", 1, None)]
                ),
                else_branch=helper.make_graph(
                    [helper.make_node("Sin", ["x"], ["e"])], "e", [], [helper.make_tensor_value_info("e", 1, None)]
                ),
            ),
        ],
        {"x": [n, 6]},
    ),
}


def feed(proto, batch):
    rng = np.random.default_rng(3)
    return {
        i.name: rng.standard_normal([d.dim_value or batch for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in proto.graph.input
    }


@pytest.mark.parametrize("batch", [2, "N"])
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_kernel_is_found_again(way, batch, tmp_path, monkeypatch):
    proto = WAYS[way](batch)
    content = proto.SerializeToString()
    feeds = [feed(proto, n) for n in ([2] if batch == 2 else [2, 3])]
    monkeypatch.setenv("ACCORD_CACHE", "off")
    expected = [accord.load(content)(f) for f in feeds]
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))
    accord.load(content)
    again = accord.load(content)
    assert list(again.seconds) == ["stored"]
    for f, outputs in zip(feeds, expected, strict=True):
        for a, b in zip(again(f), outputs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_launches_of_known_sizes_are_numbers():
    m = accord.load(WAYS["winograd"](1).SerializeToString())
    phases = [p for s in m.plan.steps if isinstance(s.kernel, NativeKernel) for p in s.kernel.phases]
    assert phases
    assert all(isinstance(p.launch, FixedLaunch) and p.dims == () for p in phases)


@pytest.mark.parametrize("way", ["pointwise", "winograd", "late", "branch"])
def test_a_plan_that_has_run_is_written_as_one_that_has_not(way, tmp_path, monkeypatch):
    """Large plans are written while runs may already be under way."""
    monkeypatch.setenv("ACCORD_CACHE", "off")
    proto = WAYS[way]("N")
    m = accord.load(proto.SerializeToString())
    inputs = feed(proto, 2)
    expected = m(inputs)
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))
    names = tuple(o.name for o in m.outputs)
    kept = stored_module.StoredModel(m.plan, m.interface, names, "cpu", ("cpu", "reference"))
    assert stored_module.write_plan("k", kept)
    plan = stored_module.read_plan("k").plan
    assert set(vars(plan)) == {*plan.__dataclass_fields__, "_agreement_function", "_size_function"}
    values = [2] * len(plan.symbols)
    assert plan.sizes(values) == m.plan.sizes(values)
    np.testing.assert_array_equal(m(inputs)[0], expected[0])


def test_a_plan_names_methods_of_its_own_parts_only():
    """What pickle writes for a bound method would let an entry reach any attribute of any object."""
    for owner, name in ((np.zeros(3), "tofile"), (stored_module.Storage("plans"), "folder"), (5, "bit_length")):
        with pytest.raises(stored_module.pickle.UnpicklingError, match="no part of a plan"):
            stored_module._bound(owner, name)


def test_models_without_the_users_operators_are_found_again_and_others_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))
    x = np.array([1.0, -2.0], np.float32)
    plain = model([helper.make_node("Abs", ["x"], ["y"])], {"x": [2]}).SerializeToString()
    made = model([helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")], {"x": [2]})
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    gelu = made.SerializeToString()

    def stages(content: bytes) -> list[str]:
        seen: list[str] = list(accord.load(content).seconds)
        return seen

    stages(plain), stages(gelu)
    assert stages(plain) == stages(gelu) == ["stored"]

    @accord.operator("com.microsoft::Gelu")
    def negative(x: Tensor["float32"]) -> Tensor["float32"]:  # noqa: F821
        return -x

    try:
        assert stages(plain) == ["stored"]
        assert stages(gelu) != ["stored"]
        np.testing.assert_array_equal(accord.load(gelu)(x)[0], -x)
        assert stages(gelu) != ["stored"]
    finally:
        negative.unregister()
    assert stages(gelu) == ["stored"]
