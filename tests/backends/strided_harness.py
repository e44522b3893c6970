"""Models of one operator whose operands lie in memory in any way: transposed and cut inputs, outputs with gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

__all__ = ["agree", "strided_model"]

Array = Any


class _Inputs:
    """Inputs of a model and the nodes that cut them out of larger, transposed ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.declared: dict[str, tuple[Any, Sequence[Any]]] = {}
        self.feeds: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}

    def add(self, name: str, value: Array, symbolic: bool) -> None:
        """A value that is a view of an input ``name.raw``; some axes swapped, some with elements between."""
        rank = value.ndim
        perm = list(self.rng.permutation(rank))
        steps = [int(self.rng.choice([1, 1, 2, -1])) if n > 1 else 1 for n in value.shape]
        grown = [1 + (n - 1) * abs(s) if n else 0 for n, s in zip(value.shape, steps, strict=True)]
        whole = np.zeros(grown, value.dtype)
        whole[tuple(slice(None, None, s) if s > 0 else slice(None, None, -1) for s in steps)] = value
        raw = np.array(whole.transpose(perm), order="C")
        self.feeds[f"{name}.raw"] = raw
        self.declared[f"{name}.raw"] = (raw.dtype, [f"{name}{i}" for i in range(rank)] if symbolic else raw.shape)
        if not rank:
            self.nodes.append(node("Identity", [f"{name}.raw"], [name]))
            return
        self.nodes.append(node("Transpose", [f"{name}.raw"], [f"{name}.t"], perm=np.argsort(perm).tolist()))
        ends = np.array([-(2**60) if s < 0 else 2**60 for s in steps], np.int64)
        starts = np.array([2**60 if s < 0 else 0 for s in steps], np.int64)
        self.constants |= {
            f"{name}.s": starts,
            f"{name}.e": ends,
            f"{name}.a": np.arange(rank),
            f"{name}.p": np.array(steps),
        }
        self.nodes.append(node("Slice", [f"{name}.t", *(f"{name}.{k}" for k in "seap")], [name]))


def strided_model(
    op: onnx.NodeProto,
    values: Mapping[str, Array],
    *,
    seed: int = 0,
    symbolic: bool = False,
    plain: Sequence[str] = (),
    domains: Mapping[str, int] | None = None,
    join: Mapping[str, tuple[int, Array]] | None = None,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of ``op`` on inputs with strides, and what to feed it.

    Args:
        op: The node; its inputs are names in ``values``.
        values: What the node's inputs are.
        seed: Of the strides.
        symbolic: Sizes of the model's inputs have no values in the model.
        plain: Inputs that are constants of the model.
        domains: Versions of further domains.
        join: Output → axis and array: what is returned is the output and the array, joined along the axis. So the
            node writes its output with gaps.
    """
    made = _Inputs(np.random.default_rng(seed))
    for name, value in values.items():
        if name in plain:
            made.constants[name] = np.asarray(value)
        else:
            made.add(name, np.asarray(value), symbolic)
    nodes, outputs = [*made.nodes, op], []
    for o in op.output:
        if join is not None and o in join:
            axis, made.constants[f"{o}.more"] = join[o]
            nodes.append(node("Concat", [o, f"{o}.more"], [f"{o}.joined"], axis=axis))
            outputs.append(f"{o}.joined")
        elif o:
            outputs.append(o)
    return model(nodes, made.declared, outputs, made.constants, domains=domains), made.feeds


def agree(
    proto: onnx.ModelProto, feeds: Mapping[str, Array], *, rtol: float = 0.0, atol: float = 0.0, level: int = 0
) -> Model:
    """Run on the generated kernels alone and on the reference alone; the outputs must agree."""
    fast = Model(proto, Options(level=level, strict=True))
    slow = Model(proto, Options(level=0, reference=True))
    for a, b in zip(fast(feeds), slow(feeds), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=rtol, atol=atol)
    return fast
