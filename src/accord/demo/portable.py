"""The demo model for runtimes that do not know its custom operator.

A node ``accord.demo::ChannelShuffle`` stops any runtime in which the operator is not registered. ONNX lets a
model carry the meaning of an operator as a model-local function, which is what :func:`with_shuffle_function` adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["DOMAIN", "OPSET", "shuffle_function", "with_shuffle_function"]

DOMAIN = "accord.demo"
"""Domain of the custom operator."""

OPSET = 21
"""ONNX opset of the demo model."""


def shuffle_function() -> onnx.FunctionProto:
    """Return ``accord.demo::ChannelShuffle`` as a function of ONNX operators.

    Source: Zhang et al., "ShuffleNet" (CVPR 2018), section 3.1: split the channels into ``groups``, swap the
    two axes, flatten.

    Returns:
        A function from ``x`` [N, C, H, W] to ``y`` [N, C, H, W] with the attribute ``groups``, which divides C.
    """
    from onnx import AttributeProto, helper

    groups = helper.make_node("Constant", [], ["count"])
    groups.attribute.append(AttributeProto(name="value_int", ref_attr_name="groups", type=AttributeProto.INT))
    return helper.make_function(
        DOMAIN,
        "ChannelShuffle",
        ["x"],
        ["y"],
        [
            groups,
            helper.make_node("Constant", [], ["one"], value_ints=[1]),
            helper.make_node("Constant", [], ["rest"], value_ints=[-1]),
            helper.make_node("Reshape", ["count", "one"], ["groups"]),
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Shape", ["x"], ["batch"], start=0, end=1),
            helper.make_node("Shape", ["x"], ["area"], start=2),
            helper.make_node("Concat", ["batch", "groups", "rest", "area"], ["split"], axis=0),
            helper.make_node("Reshape", ["x", "split"], ["grouped"]),
            helper.make_node("Transpose", ["grouped"], ["swapped"], perm=[0, 2, 1, 3, 4]),
            helper.make_node("Reshape", ["swapped", "shape"], ["y"]),
        ],
        [helper.make_opsetid("", OPSET)],
        ["groups"],
    )


def with_shuffle_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of ``model`` that carries the meaning of ``accord.demo::ChannelShuffle`` as a function."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.functions.append(shuffle_function())
    return copy
