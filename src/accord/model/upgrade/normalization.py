"""BatchNormalization, Dropout and GroupNormalization."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, has_attribute, reshape

__all__: list[str] = []


@expands("BatchNormalization", before=14)
def batch_normalization(b: Builder, n: Inference) -> Outputs:
    """Statistics per channel or, with ``spatial=0`` before 9, per element; more outputs than Y meant training.

    Before 7 ``is_test`` said the same a second time; where the two disagree the list of outputs decides, because a
    node that yields only Y is what the text calls test mode.
    """
    node = n.node
    wanted = [bool(o.name) for o in node.outputs]
    training = any(wanted[1:]) and not n.attr("is_test", 0)
    old = has_attribute(n, "spatial", "is_test", "consumed_inputs") or len(wanted) > 1
    if not old:
        return None
    x, parameters = required(n, 0), [required(n, i) for i in range(1, 5)]
    per_element = not n.attr("spatial", 1)
    source, statistics = x, parameters
    if per_element:
        source = b("Flatten", x, axis=1)
        statistics = [b("Reshape", p, b.ints(-1)) for p in parameters]
    settings: dict[str, Any] = {k: node.attributes[k] for k in ("epsilon", "momentum") if k in node.attributes}
    if not training:
        y = b("BatchNormalization", source, *statistics, **settings)
        outputs: list[ir.Value | None] = [y]
        # In test mode the other outputs "should not be used"; they keep the statistics that went in.
        outputs += [statistics[i] if w else None for i, w in zip((2, 3, 2, 3), wanted[1:], strict=False)]
    else:
        built = b.multi("BatchNormalization", 3, source, *statistics, training_mode=1, **settings)
        outputs = list(built[: len(wanted)])
        outputs += _batch_statistics(b, source, wanted[3:])
    if per_element:
        outputs[0] = reshape(b, built[0] if training else y, b("Shape", x))
        outputs[1:] = [o and reshape(b, o, b("Shape", parameters[0])) for o in outputs[1:]]
    return outputs


def _batch_statistics(b: Builder, x: ir.Value, wanted: list[bool]) -> list[ir.Value | None]:
    """``saved_mean`` and ``saved_var``: mean and population variance of the batch, per channel."""
    if not any(wanted):
        return [None] * len(wanted)
    # A batch of plain numbers has one channel.
    split = b.ints(-1, 1, 1) if b.fact(x).rank == 1 else b.ints(0, 0, -1)
    x = b("Reshape", x, split)
    axes = b.ints(0, 2)
    center = b("ReduceMean", x, axes, keepdims=1)
    outputs: list[ir.Value | None] = [b("Reshape", center, b.ints(-1))]
    if len(wanted) > 1:
        deviation = b("Sub", x, center)
        outputs.append(b("ReduceMean", b("Mul", deviation, deviation), axes, keepdims=0))
    return outputs


@expands("Dropout", before=12)
def dropout(b: Builder, n: Inference) -> Outputs:
    """``ratio`` was an attribute; before 7 ``is_test`` chose the mode (training by default), later the executor.

    The mask was of the data's dtype before 10.
    """
    x = required(n, 0)
    inputs: list[ir.Value] = [x]
    if n.opset < 7 and not n.attr("is_test", 0):
        ratio = b.const(np.array(n.attr("ratio", 0.5), dtype=np.float32))
        inputs += [ratio, b.const(np.array(True))]
    if len(n.node.outputs) < 2 or not n.node.outputs[1].name:
        return [b("Dropout", *inputs)]
    y, mask = b.multi("Dropout", 2, *inputs)
    return [y, b("CastLike", mask, x) if n.opset < 10 else mask]


@expands("GroupNormalization", before=21)
def group_normalization(b: Builder, n: Inference) -> Outputs:
    """``scale`` and ``bias`` were per group; today they are per channel."""
    x, scale, bias = required(n, 0), required(n, 1), required(n, 2)
    groups = n.attr("num_groups")
    shape = b.fact(x).shape
    channels = None if shape is None else shape[1]
    if isinstance(channels, int):
        size = b.ints(groups, channels // groups)
    else:
        each = b("Div", b("Shape", x, start=1, end=2), b.ints(groups))
        size = b("Concat", b.ints(groups), each, axis=0)
    spread = [b("Reshape", b("Expand", b("Reshape", p, b.ints(groups, 1)), size), b.ints(-1)) for p in (scale, bias)]
    # float32 is today's default and narrower than what a float64 input was computed in.
    precision = int(ir.DataType.DOUBLE) if b.fact(x).dtype == ir.DataType.DOUBLE else None
    return [
        b("GroupNormalization", x, *spread, num_groups=groups, epsilon=n.attr("epsilon"), stash_type=precision),
    ]
