"""Random small graphs, what the reference makes of them, and how far rounding may take a result from that.

A graph grows node by node. Every node is evaluated at once by the reference backend, so that the shapes of the next
ones fit and a node whose results are not finite can be dropped.

How much rounding can do is measured, not guessed: the graph is evaluated again in float64 with every input and result
of every node disturbed at random by units in the last place of its type (Monte Carlo arithmetic; Parker, 1997).
Operators that are not continuous are applied only to values that every right runtime computes alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx

from accord.backends.reference.kernels import ReferenceKernel
from accord.errors import AccordError
from builders import OPSET, model, node

__all__ = ["RandomGraph", "Value"]

Array: TypeAlias = Any
F16, F32, F64, BF16 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16)
I32, I64, U8, BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint8), np.dtype(np.bool_)
FLOATS = (F32, F16, BF16, F64)
#: A unit in the last place of 1. Narrow floats may be kept as float32 between nodes, which is more exact.
EPS = {F32: 2.0**-23, F64: 2.0**-52, F16: 2.0**-10, BF16: 2.0**-7}
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 32)
#: Units in the last place by which a result may be off, or an input of an operator that rounds inside.
_UNITS = 2
MOST_ELEMENTS = 6000
LARGEST = 200.0
DISTURBED = 3


@dataclass
class Value:
    """A value of the graph.

    Attributes:
        name: Its name.
        array: What the reference gives.
        exact: Every right runtime gives these very elements.
        disturbed: In float64, each with other roundings; ``array`` itself if it is no float.
    """

    name: str
    array: Array
    exact: bool
    disturbed: list[Array]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def floating(self) -> bool:
        return self.dtype in EPS


@dataclass
class RandomGraph:
    """A graph that grows; see :func:`random_graph`.

    Attributes:
        random: Where all choices come from.
        values: All values so far, the newest last.
        nodes: In order.
        inputs: Name → dtype and declared shape.
        feeds: Name → array.
        constants: Name → array.
    """

    random: Random
    symbolic: bool = False
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, tuple[np.dtype[Any], list[Any]]] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.random.getrandbits(32))

    # choosing

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(choices)

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def value(self, wanted: Callable[[Value], bool]) -> Value | None:
        """A value that is ``wanted``: mostly one of the newest, so that chains come about."""
        found = [v for v in self.values if wanted(v)]
        if not found:
            return None
        return self.pick(found[-2:]) if self.chance(0.7) else self.pick(found)

    def shape(self) -> tuple[int, ...]:
        rank = self.pick((0, 1, 2, 2, 3, 3, 4, 4))
        while True:
            shape = tuple(0 if self.chance(0.01) else self.pick(SIZES) for _ in range(rank))
            if math.prod(shape) <= MOST_ELEMENTS:
                return shape

    # values

    def drawn(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        if dtype == BOOL:
            return self.rng.random(shape) < 0.5
        if dtype == U8:
            return self.rng.integers(0, 256, shape).astype(dtype)
        if dtype in (I32, I64):
            return self.rng.integers(-9, 10, shape).astype(dtype)
        return np.asarray(self.rng.standard_normal(shape)).astype(dtype)

    def new(self, dtype: np.dtype[Any], shape: Sequence[int], array: Array | None = None) -> Value:
        """An input, or a constant."""
        array = self.drawn(dtype, shape) if array is None else array
        return self.constant(array) if self.chance(0.35) else self.input(array)

    def input(self, array: Array) -> Value:
        name = f"i{len(self.inputs)}"
        declared: list[Any] = list(array.shape)
        for axis in range(len(declared)):
            if self.symbolic and self.chance(0.6):
                declared[axis] = f"{name}_{axis}"
        self.inputs[name] = (array.dtype, declared)
        self.feeds[name] = array
        return self._kept(name, array)

    def constant(self, array: Array, dtype: Any = None) -> Value:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype)
        return self._kept(name, self.constants[name])

    def integers(self, numbers: Sequence[int]) -> Value:
        """A parameter such as a shape; no value that nodes compute with."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(numbers, np.int64)
        return Value(name, self.constants[name], True, [self.constants[name]] * DISTURBED)

    def _kept(self, name: str, array: Array) -> Value:
        made = Value(name, array, True, [array.astype(np.float64) if array.dtype in EPS else array] * DISTURBED)
        self.values.append(made)
        return made

    # nodes

    def add(
        self, op: str, inputs: Sequence[Value | None], *, outputs: int = 1, exact: bool = True, **attributes: Any
    ) -> list[Value] | None:
        """A node; None, and no node, if it fails or if its results are too large.

        Args:
            op: The operator.
            inputs: None for one that is left out.
            outputs: How many.
            exact: The operator does not round.
            attributes: Of the node.
        """
        names = [f"v{len(self.values) + k}" for k in range(outputs)]
        made = node(op, ["" if v is None else v.name for v in inputs], names, **attributes)
        kernel = ReferenceKernel(made, OPSET)
        arrays = [None if v is None else v.array for v in inputs]
        try:
            results = kernel.run(arrays)
            if any(r.size > MOST_ELEMENTS or not _tame(r) for r in results):
                return None
            disturbed = [self._disturbed(kernel, inputs, results, k, exact) for k in range(DISTURBED)]
        except AccordError:
            return None
        if any(not _tame(a) for run in disturbed for a in run):
            return None
        exact = exact and all(v is None or v.exact for v in inputs)
        found = [
            Value(n, np.asarray(r), exact, [run[i] for run in disturbed])
            for i, (n, r) in enumerate(zip(names, results, strict=True))
        ]
        self.nodes.append(made)
        self.values += found
        return found

    def _disturbed(
        self, kernel: ReferenceKernel, inputs: Sequence[Value | None], results: Sequence[Array], k: int, exact: bool
    ) -> list[Array]:
        given = []
        for v in inputs:
            if v is None or not v.floating:
                given.append(None if v is None else v.array)
            else:
                given.append(v.disturbed[k] if exact else self._shaken(v.disturbed[k], v.dtype))
        floats = any(v is not None and v.floating for v in inputs)
        wide = kernel.run(given) if floats else results
        found = []
        for r, w in zip(results, wide, strict=True):
            if r.dtype not in EPS:
                found.append(r)
            else:
                found.append(w.astype(np.float64) if exact else self._shaken(w.astype(np.float64), r.dtype))
        return found

    def _shaken(self, array: Array, dtype: np.dtype[Any]) -> Array:
        return array * (1 + _UNITS * EPS[dtype] * self.rng.uniform(-1, 1, array.shape))

    # the whole

    def finish(self) -> onnx.ModelProto:
        """The model; its outputs are what nobody reads, and some other values."""
        read = {n for made in self.nodes for n in made.input}
        computed = {n for made in self.nodes for n in made.output}
        made = [v for v in self.values if v.name in computed]
        self.outputs = [v for v in made if v.name not in read or self.chance(0.1)]
        self.random.shuffle(self.outputs)
        used = {n: d for n, d in self.inputs.items() if n in read}
        self.feeds = {n: a for n, a in self.feeds.items() if n in used}
        constants = {n: a for n, a in self.constants.items() if n in read}
        return model(self.nodes, used, [v.name for v in self.outputs], constants)

    def check(self, results: Sequence[Array]) -> str | None:
        """What is wrong with the results of a runtime; None if nothing."""
        for v, got in zip(self.outputs, results, strict=True):
            if (got.dtype, got.shape) != (v.dtype, v.shape):
                return f"{v.name} is {got.dtype}{list(got.shape)}, not {v.dtype}{list(v.shape)}"
            if not v.floating or v.exact:
                if not np.array_equal(got, v.array):
                    return f"{v.name} differs in {int((got != v.array).sum())} of {got.size} elements"
                continue
            want = v.array.astype(np.float64)
            runs = np.stack([*v.disturbed, want])
            spread = float(np.ptp(runs, axis=0).max(initial=0))
            allowed = 16 * spread + 4 * EPS[v.dtype] * float(np.abs(want).max(initial=0)) + 1e-30
            with np.errstate(invalid="ignore"):
                off = np.abs(got.astype(np.float64) - want)
            if not (off <= allowed).all():
                return f"{v.name} is off by {float(off.max()):.3g}, rounding explains {allowed:.3g}"
        return None


def _tame(array: Array) -> bool:
    if array.dtype not in EPS:
        return True
    a = array.astype(np.float64)
    return bool((np.abs(a) < LARGEST).all())
