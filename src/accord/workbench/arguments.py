"""Inputs and attributes for a call of an operator, drawn from its contract for given sizes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from accord.contract.choose import attributes_of
from accord.contract.contract import Contract, Parameter
from accord.contract.dtypes import ONNX_TYPES, numpy_name, short_name
from accord.contract.shapes import failed_condition
from accord.contract.sizes import evaluate_size, names_in
from accord.errors import AccordError, ContractError
from accord.workbench.arrays import Array

__all__ = ["Arguments", "draw", "make_arguments", "named"]

#: What a size is where nobody says, by the rank of the largest tensor that has it: about a quarter of a megabyte each.
_DEFAULTS: Final = {0: 1, 1: 65_536, 2: 256, 3: 40, 4: 16}
#: Other sizes that are tried where a condition of the contract does not hold for those.
_OTHERS: Final = (64, 32, 16, 8, 4, 3, 2, 1, 12, 96, 128)
_TRIALS: Final = 20_000
#: Shapes of the required inputs of ONNX operators, whose schemas say nothing of shapes.
_SHAPES: Final = {"elementwise": (256, 1024), "reduction": (256, 1024), "contraction": (256, 256)}


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call.

    Attributes:
        inputs: In order; None for one that is absent.
        attributes: All of them, by name.
        types: ONNX type by type variable.
        sizes: Sizes by name, as far as the declaration names them.
    """

    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any]
    types: dict[str, str]
    sizes: dict[str, int]


def make_arguments(
    contract: Contract,
    sizes: Mapping[str, Sequence[int]] | None = None,
    attributes: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    seed: int = 0,
) -> Arguments:
    """Arguments for a call.

    Args:
        contract: Of the operator.
        sizes: Sizes by name, each a sequence of one; for "..." the leading axes; for an input whose axes the contract
            does not name its shape. What is left out is chosen so that the contract's conditions hold.
        attributes: Attributes by name; others are the contract's defaults.
        dtype: NumPy name of what type variables stand for, where they may; None: float32, or what there is.
        seed: Of the values.

    Raises:
        AccordError: a name, shape or attribute is not known, missing, or contradicts the contract.
    """
    given, s = dict(sizes or {}), contract.semantic
    values = _attributes(contract, attributes or {})
    known = {n for p in s.inputs for n in named(p)} | {p.name for p in s.inputs if p.sizes is None}
    known |= {"..."} if any("..." in (p.sizes or ()) for p in s.inputs) else set()
    for name in given:
        if name not in known:
            raise AccordError(
                f"there is no size '{name}'", op=s.qualified_name, expected=", ".join(sorted(known)) or "no sizes"
            )
    types = {variable: _type(allowed, dtype) for variable, allowed in s.types.items()}
    chosen = _sizes(contract, given, values)
    rng = np.random.default_rng(seed)
    env = {**chosen, **{n: int(v) for n, v in values.items() if isinstance(v, (bool, int))}}
    made: Mapping[str, Any] = {} if s.examples is None else s.examples(rng, env, values)
    lead = tuple(given.get("...", (8,)))
    inputs = [_input(contract, p, given, env, lead, types, made, rng) for p in s.inputs]
    return Arguments(tuple(inputs), values, types, chosen)


def _attributes(contract: Contract, given: Mapping[str, Any]) -> dict[str, Any]:
    declared = contract.semantic.attributes
    for name in given:
        if name not in declared:
            raise AccordError(
                f"there is no attribute '{name}'",
                op=contract.semantic.qualified_name,
                expected=", ".join(declared) or "none",
            )
    for a in declared.values():
        if a.required and a.name not in given:
            raise AccordError(
                f"attribute '{a.name}' has no default",
                op=contract.semantic.qualified_name,
                remedy=f"Give --attribute {a.name}=VALUE.",
            )
    return attributes_of(contract, given)


def _type(allowed: frozenset[str], dtype: str | None) -> str:
    """The type that a variable stands for."""
    wanted = ONNX_TYPES.get(dtype or "float32")
    if dtype is not None and wanted is None:
        raise AccordError(f"unknown dtype '{dtype}'", expected=", ".join(ONNX_TYPES))
    if wanted in allowed:
        return str(wanted)
    tensors = sorted(t for t in allowed if short_name(t) in ONNX_TYPES and short_name(t) != "string")
    if not tensors:
        raise AccordError("there are no inputs to measure with", expected="tensors", found=", ".join(sorted(allowed)))
    return tensors[0]


def named(p: Parameter) -> list[str]:
    """Names of sizes of a parameter."""
    return [x for x in p.sizes or () if isinstance(x, str) and x.isidentifier()]


def _sizes(contract: Contract, given: Mapping[str, Sequence[int]], attributes: Mapping[str, Any]) -> dict[str, int]:
    s = contract.semantic
    fixed: dict[str, int] = {}
    for name, value in given.items():
        if name != "..." and any(name in named(p) for p in s.inputs):
            if len(value) != 1:
                raise AccordError(f"size '{name}' is one number", op=s.qualified_name, found="x".join(map(str, value)))
            fixed[name] = value[0]
    numbers = {n: int(v) for n, v in attributes.items() if isinstance(v, (bool, int))}
    ranks: dict[str, int] = {}
    for p in s.inputs:
        for name in named(p):
            ranks[name] = max(ranks.get(name, 0), len(p.sizes or ()))
    free = [n for n in ranks if n not in fixed and n not in numbers]
    options = [tuple(dict.fromkeys((_DEFAULTS.get(ranks[n], 8), *_OTHERS))) for n in free]
    conditions = s.constraints
    involved = {n for c in conditions for n in names_in(c)}
    options = [o if n in involved else o[:1] for n, o in zip(free, options, strict=True)]
    for picked in itertools.islice(itertools.product(*options), _TRIALS):
        env = {**numbers, **fixed, **dict(zip(free, picked, strict=True))}
        if failed_condition(conditions, env) is None:
            return {n: env[n] for n in ranks if n in env}
    first = {**numbers, **fixed, **{n: o[0] for n, o in zip(free, options, strict=True)}}
    failed = failed_condition(conditions, first)
    raise AccordError(
        f"no sizes were found for which '{failed[0] if failed else conditions}' holds",
        op=s.qualified_name,
        found=failed[1] if failed else None,
        remedy="Give sizes, --sizes NAME=NUMBER.",
    )


def _input(
    contract: Contract,
    p: Parameter,
    given: Mapping[str, Sequence[int]],
    env: Mapping[str, int],
    lead: tuple[int, ...],
    types: Mapping[str, str],
    made: Mapping[str, Any],
    rng: np.random.Generator,
) -> Array | None:
    op = contract.semantic.qualified_name
    if p.name in made:
        return None if made[p.name] is None else np.asarray(made[p.name])
    if p.sizes is None:
        shape = given.get(p.name, _SHAPES.get(contract.scheduling.fuses) if p.option == "single" else None)
        if shape is None and p.option == "optional":
            return None
        if shape is None:
            raise AccordError(
                f"the contract does not say which shape '{p.name}' has",
                op=op,
                remedy=f"Give --sizes {p.name}=SIZExSIZE.",
            )
    else:
        shape = [n for x in p.sizes for n in (lead if x == "..." else (_size(x, env, op),))]
    onnx_type = types.get(p.type, p.type)
    if short_name(onnx_type) not in ONNX_TYPES or short_name(onnx_type) == "string":
        raise AccordError(f"input '{p.name}' is no tensor of numbers", op=op, found=onnx_type)
    return draw(p, tuple(shape), numpy_name(onnx_type), env, rng)


def _size(size: int | str, env: Mapping[str, int], op: str) -> int:
    value = size if isinstance(size, int) else evaluate_size(size, env)
    if not isinstance(value, int):
        raise ContractError(f"size '{size}' has no value", op=op, found=str(dict(env)))
    return value


def draw(p: Parameter, shape: tuple[int, ...], dtype: Any, env: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Values that an input may have."""
    low, high = (_bound(v, env) for v in (p.values.low, p.values.high))
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if kind.kind in "iu":
        least = 0 if low is None else int(low)
        most = max(least, least + 9 if high is None else int(high))
        values: Any = rng.integers(least, most, shape, endpoint=True)
    elif low is not None and high is not None:
        values = rng.uniform(low, high, shape)
    else:
        values = rng.standard_normal(shape) * p.values.spread
        if low is not None:
            values = low + np.abs(values)
        if high is not None:
            values = high - np.abs(values)
    if p.values.increasing:
        values = np.sort(values, axis=-1)
    return np.asarray(values).astype(kind)


def _bound(value: float | str | None, env: Mapping[str, int]) -> float | None:
    if not isinstance(value, str):
        return value
    found = evaluate_size(value, env)
    return found if isinstance(found, int) else None
