"""The naive ChannelShuffle: right, and yet most of its time goes into copies that nobody asked for.

Run it, and check it::

    python examples/channel_shuffle.py
    accord op check tales::ChannelShuffle --load examples/channel_shuffle.py
"""

# ruff: noqa: F821, UP037, ANN001, ANN201
from __future__ import annotations

import statistics
import time

import numpy as np
from onnx import TensorProto, helper

import accord

Tensor = accord.Tensor


@accord.operator("tales::ChannelShuffle")
def channel_shuffle(
    x: Tensor["float32", "N", "C", "H", "W"],
    *,
    groups: int = 2,
) -> Tensor["float32", "N", "C", "H", "W"]:
    """Channels of the groups in turn."""
    n, c, h, w = x.shape
    return x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(n, c, h, w)


channel_shuffle.constraint("groups >= 1", "C % groups == 0")


@channel_shuffle.python(name="view")
def view(x, *, groups):
    """As the formula is written: with one group nothing is moved, and the result is the input itself."""
    n, c, h, w = x.shape
    return x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(n, c, h, w)


@channel_shuffle.python(name="three-passes")
def three_passes(x, *, groups):
    """Each step makes its own tensor, as a runtime does that takes the three operators one by one."""
    n, c, h, w = x.shape
    split = x.reshape(n, groups, c // groups, h, w).copy()
    turned = np.ascontiguousarray(split.swapaxes(1, 2))
    return turned.reshape(n, c, h, w).copy()


@channel_shuffle.python(name="one-pass")
def one_pass(x, *, groups):
    """Each element is read once and written once."""
    n, c, h, w = x.shape
    y = np.empty_like(x)
    y.reshape(n, c // groups, groups, h, w)[...] = x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2)
    return y


@channel_shuffle.composition(name="composed")
def composed(b, x, *, groups):
    """Three operators, for a runtime that sees that all of them only move."""
    _, c, h, w = b.shape(x)
    if not all(isinstance(d, int) for d in (c, h, w)):
        return None
    split = b("Reshape", x, b.ints(-1, groups, c // groups, h, w))
    return b("Reshape", b("Transpose", split, perm=[0, 2, 1, 3, 4]), b.ints(-1, c, h, w))


def seconds(function) -> float:
    """Median time of a call."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Print the bandwidth of each: bytes that have to move, by the time it takes."""
    shape = (16, 232, 56, 56)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = np.empty_like(x)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("ChannelShuffle", ["x"], ["s"], domain="tales", groups=2),
            helper.make_node("Relu", ["s"], ["y"]),
        ],
        "shuffle",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("tales", 1)]
    only_composed(channel_shuffle)
    model = accord.load(helper.make_model(graph, opset_imports=domains, ir_version=10))
    assert (model(x)[0] == np.maximum(one_pass(x, groups=2), 0)).all()
    rows = {
        "a plain copy": lambda: np.copyto(y, x),
        "three-passes": lambda: three_passes(x, groups=2),
        "one-pass": lambda: one_pass(x, groups=2),
        f"with Relu, {len(model.plan.steps)} step": lambda: model(x),
    }
    moved = 2 * x.nbytes
    rates = {name: moved / seconds(function) for name, function in rows.items()}
    best = rates["a plain copy"]
    print(f"ChannelShuffle of {list(shape)}, {moved / 1e6:.0f} MB to move")
    for name, rate in rates.items():
        print(f"  {name:<18} {rate / 1e9:6.1f} GB/s {rate / best:5.0%}")


def only_composed(operator) -> None:
    """Leave the operator its composition, so that a model uses that one."""
    import dataclasses

    from accord.contract.registry import register

    contract = operator.contract
    register(dataclasses.replace(contract, kernels=(contract.kernel("composed"),)), replacing=contract)


if __name__ == "__main__":
    main()
