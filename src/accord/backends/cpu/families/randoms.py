"""Random tensors, and dropout in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from accord.backends.cpu.families.table import arranges, selects
from accord.backends.cpu.host import CpuHostKernel
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.randoms import RandomCode, draw
from accord.backends.loops.groups import select_alone
from accord.backends.loops.table import known
from accord.backends.protocol import Arrangement, Kernel
from accord.backends.view import NodeView
from accord.expr.lang import FLOATS
from accord.ir.reason import Reason
from accord.record import record

__all__ = ["bernoulli", "dropout", "random_like", "random_tensor"]


@arranges("Bernoulli", "RandomNormalLike", "RandomUniformLike")
def any_strides(view: NodeView) -> Arrangement:
    """Python brings them into order where they are not."""
    del view
    return Arrangement(strided=True)


@record
class RandomKernel(CpuHostKernel):
    """Random numbers.

    Attributes:
        code: What makes them.
        dtypes: NumPy's names of the outputs' element types.
        numbers: Two numbers of the distribution.
        seed: 32 bits, or None.
        shape: Of the output; None for that of the input.
    """

    kind: str
    source: str
    target: str
    dtype: np.dtype[Any]
    numbers: tuple[float, float]
    seed: int | None
    shape: tuple[int, ...] | None
    name = "random"

    def codes(self) -> Sequence[KernelCode]:
        """The one that does it."""
        return (RandomCode(self.kind, self.source, (self.target,)),)

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """One tensor."""
        source = np.asarray(inputs[0], order="C") if inputs else None
        shape = self.shape if self.shape is not None or source is None else source.shape
        result = np.empty(shape or (), self.dtype)
        read = source if self.source else None
        draw(RandomCode(self.kind, self.source, (self.target,)), read, [result], self.numbers, self.seed)
        return [result]


def _seed(view: NodeView) -> int | None:
    seed = view.attr("seed")
    return None if seed is None else int(seed) & 0xFFFFFFFF


def _kernel(view: NodeView, kind: str, source: str, numbers: tuple[float, float]) -> Kernel | Reason:
    fact = view.output()
    found = known(fact, "the output")
    if isinstance(found, Reason) or fact.dtype is None:
        return found if isinstance(found, Reason) else Reason("the dtype is not known")
    shape = view.attr("shape")
    sizes = None if shape is None else tuple(int(d) for d in shape)
    return RandomKernel(kind, source, found[1], np.dtype(fact.dtype.numpy()), numbers, _seed(view), sizes)


@selects("RandomNormal", "RandomUniform")
def random_tensor(view: NodeView) -> Kernel | Reason:
    """A tensor of an attribute's shape."""
    if view.node.op_type.startswith("RandomNormal"):
        return _kernel(view, "normal", "", (float(view.attr("mean", 0.0)), abs(float(view.attr("scale", 1.0)))))
    low, high = float(view.attr("low", 0.0)), float(view.attr("high", 1.0))
    return _kernel(view, "uniform", "", (low, high - low)) if low <= high else Reason("low exceeds high")


@selects("RandomNormalLike", "RandomUniformLike")
def random_like(view: NodeView) -> Kernel | Reason:
    """A tensor of the input's shape."""
    return random_tensor(view)


@selects("Bernoulli")
def bernoulli(view: NodeView) -> Kernel | Reason:
    """1 with the probability that an element is."""
    x = known(view.tensor(0), "the input")
    return x if isinstance(x, Reason) else _kernel(view, "bernoulli", x[1], (0.0, 0.0))


@record
class DropoutKernel(CpuHostKernel):
    """Dropout of which only a run tells whether it is in training.

    Attributes:
        dtype: Element type.
        seed: 32 bits, or None.
    """

    dtype: str
    seed: int | None
    name = "dropout"

    def codes(self) -> Sequence[KernelCode]:
        """The one that does it."""
        return (RandomCode("dropout", self.dtype, (self.dtype, "bool")),)

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The result and the mask.

        Raises:
            ValueError: the ratio is outside [0, 1) in training.
        """
        x, ratio, training = (*inputs, None, None)[:3]
        rate = 0.5 if ratio is None else float(np.asarray(ratio).reshape(()))
        active = training is not None and bool(np.asarray(training).reshape(()))
        if not active or rate == 0:
            return [x, np.ones(x.shape, np.bool_)]
        if not 0 <= rate < 1:
            raise ValueError(f"ratio {rate} is outside [0, 1)")
        x = np.asarray(x, order="C")
        y, mask = np.empty_like(x), np.empty(x.shape, np.bool_)
        draw(RandomCode("dropout", self.dtype, (self.dtype, "bool")), x, [y, mask], (rate, 1 - rate), self.seed)
        return [y, mask]


@selects("Dropout")
def dropout(view: NodeView) -> Kernel | Reason:
    """Outside training elementwise; else elements are zeroed at random and the others scaled up."""
    plain = select_alone(view)
    x = known(view.tensor(0), "the input")
    if not isinstance(plain, Reason) or isinstance(x, Reason) or x[1] not in FLOATS:
        return plain
    return DropoutKernel(x[1], _seed(view))
