"""Calls of library operators: sizes and attributes drawn by Hypothesis, contents from the contract, and models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

import accord
from accord.contract.contract import Contract
from accord.contract.sizes import evaluate_size
from builders import model, node

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "int4": ml_dtypes.int4}


@dataclass
class Call:
    """One call.

    Attributes:
        contract: Of the operator.
        sizes: By name; "..." is a tuple.
        attributes: By name.
        types: Dtype by type variable.
        absent: Optional inputs that are not given.
        seed: Of the contents.
        symbolic: The model gives names instead of sizes.
    """

    contract: Contract
    sizes: Mapping[str, Any]
    attributes: Mapping[str, Any]
    types: Mapping[str, str]
    absent: frozenset[str] = frozenset()
    seed: int = 0
    symbolic: bool = False
    constant: frozenset[str] = field(default_factory=frozenset)

    def inputs(self) -> dict[str, np.ndarray]:
        """Arrays by name, without those that are absent."""
        s, rng = self.contract.semantic, np.random.default_rng(self.seed)
        env = {n: v for n, v in {**self.sizes, **self.attributes}.items() if isinstance(v, int)}
        made = dict(s.examples(rng, env, self.attributes)) if s.examples else {}
        for p in s.inputs:
            if p.name not in made:
                shape = self.shape(p.sizes or (), env)
                made[p.name] = draw(rng, shape, p, env, np.dtype(self.dtype(p)))
        return {
            p.name: np.ascontiguousarray(np.asarray(made[p.name]).astype(self.dtype(p)))
            for p in s.inputs
            if p.name not in self.absent
        }

    def dtype(self, p: Any) -> Any:
        name = self.types.get(p.type) or p.type.removeprefix("tensor(").removesuffix(")")
        return DTYPES.get(name) or np.dtype({"float": "float32", "double": "float64"}.get(name, name))

    def shape(self, sizes: Any, env: Mapping[str, int]) -> tuple[int, ...]:
        shape: list[int] = []
        for size in sizes:
            if size == "...":
                shape += self.sizes["..."]
            else:
                shape.append(size if isinstance(size, int) else int(evaluate_size(size, env)))
        return tuple(shape)

    def proto(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """A model of this one node; inputs in ``constant`` are initializers."""
        s = self.contract.semantic
        names = [p.name if p.name in arrays else "" for p in s.inputs]
        while not names[-1]:
            names.pop()
        outputs = [p.name for p in s.outputs]
        inputs = {
            n: (v.dtype, [f"{n}{i}" if self.symbolic else d for i, d in enumerate(v.shape)])
            for n, v in arrays.items()
            if n not in self.constant
        }
        constants = {n: arrays[n] for n in self.constant if n in arrays}
        return model(
            [node(s.name, names, outputs, domain=s.domain, **self.attributes)],
            inputs,
            outputs,
            constants,
            domains={s.domain: 1},
        )

    def expected(self, arrays: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        """Outputs of the reference."""
        s = self.contract.semantic
        result = s.reference(*(arrays.get(p.name) for p in s.inputs), **self.attributes)
        return result if isinstance(result, tuple) else (result,)

    def run(self, **options: Any) -> tuple[Any, dict[str, np.ndarray], list[Any]]:
        """The loaded model, its inputs, and its outputs."""
        arrays = self.inputs()
        loaded = accord.load(self.proto(arrays), **options)
        return loaded, arrays, loaded({n: v for n, v in arrays.items() if n not in self.constant})


def draw(rng: np.random.Generator, shape: tuple[int, ...], p: Any, env: Mapping[str, int], dtype: Any) -> Any:
    """Values that mean something for an input."""
    bounds = [int(evaluate_size(b, env)) if isinstance(b, str) else b for b in (p.values.low, p.values.high)]
    low, high = bounds
    if dtype.kind in "iu" or dtype == ml_dtypes.int4:
        info = ml_dtypes.iinfo(dtype)
        low = max(int(info.min), -100) if low is None else int(low)
        high = min(int(info.max), 100) if high is None else int(high)
        found = rng.integers(low, max(low, high) + 1, shape)
    elif low is None or high is None:
        found = rng.standard_normal(shape) * p.values.spread
    else:
        found = low + (high - low) * rng.random(shape)
    return np.sort(found, axis=-1) if p.values.increasing else found


def close(contract: Contract, dtype: str, actual: Any, expected: Any) -> None:
    """Within the contract's tolerance; integers exactly."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected)
        return
    t = contract.semantic.tolerance[dtype]
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=t.rtol, atol=t.atol)


@st.composite
def calls(draw_: Any, contract: Contract, sizes: Mapping[str, Any], attributes: Mapping[str, Any]) -> Call:
    """Calls of an operator.

    Args:
        contract: Of the operator.
        sizes: A strategy for each size, or a function of what was drawn before.
        attributes: The same for attributes; they are drawn first.
    """
    s = contract.semantic
    drawn: dict[str, Any] = {}
    for name, choice in {**attributes, **sizes}.items():
        drawn[name] = draw_(choice(drawn) if callable(choice) else choice)
    types = {v: draw_(st.sampled_from(sorted(n for n in map(short, allowed)))) for v, allowed in s.types.items()}
    optional = [p.name for p in s.inputs if p.option == "optional"]
    absent = frozenset(n for n in optional if draw_(st.booleans()))
    return Call(
        contract,
        {n: drawn[n] for n in sizes},
        {n: drawn[n] for n in attributes},
        types,
        absent,
        draw_(st.integers(0, 1000)),
        draw_(st.booleans()),
    )


def short(onnx_type: str) -> str:
    """NumPy name of an ONNX type."""
    name = onnx_type.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name)


def dtype_of(call: Call) -> str:
    """The dtype whose tolerance holds."""
    return call.types.get("T", "float32")
