"""The sizes of a run: what its inputs say of a plan's symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accord.errors import InputError
from accord.ir import dims as D
from accord.plan.plan import Plan
from accord.plan.types import TensorType

__all__ = ["solve"]


def solve(
    plan: Plan, contents: Sequence[tuple[int, str]], inputs: Sequence[Any], outer: Mapping[str, int] | None
) -> dict[str, int]:
    """Values of a plan's symbols from the shapes of inputs.

    Args:
        plan: The plan.
        contents: Numbers of inputs of one integer that are symbols, and their names.
        inputs: In the plan's order.
        outer: Values of symbols that an outer plan knows.

    Raises:
        InputError: sizes that do not fit each other.
    """
    env: dict[str, int] = {}
    rest: list[tuple[str, int, D.DimLike, int]] = []
    for slot, value in zip(plan.inputs, inputs, strict=True):
        s = plan.slots[slot]
        if not isinstance(s.type, TensorType) or s.type.shape is None or value is None:
            continue
        actual = value.shape
        if len(actual) != len(s.type.shape):
            raise InputError(
                "wrong rank",
                value=s.name,
                expected=f"{len(s.type.shape)} axes: {_text(s.type.shape)}",
                found=list(actual),
            )
        for axis, (d, n) in enumerate(zip(s.type.shape, actual, strict=True)):
            if isinstance(d, int):
                if d != n:
                    raise InputError(
                        f"wrong size on axis {axis}", value=s.name, expected=_text(s.type.shape), found=list(actual)
                    )
                continue
            names = D.symbols_of(d)
            if len(names) == 1 and str(d) in names:
                known = env.setdefault(str(d), n)
                if known != n:
                    raise InputError(
                        f"size '{d}' on axis {axis} differs from another input's",
                        value=s.name,
                        expected=f"{d} = {known}",
                        found=list(actual),
                        remedy=f"All inputs must agree on '{d}'.",
                    )
            else:
                rest.append((s.name, axis, d, n))
    for position, symbol in contents:
        value = inputs[position]
        if value is not None:
            env[symbol] = int(value.reshape(()))
    for name, v in (outer or {}).items():
        env.setdefault(name, v)
    for symbol in plan.symbols:
        env.setdefault(symbol, 0)
    for name, axis, d, n in rest:
        if D.symbols_of(d) <= env.keys() and D.evaluate(d, env) != n:
            raise InputError(f"wrong size on axis {axis}", value=name, expected=f"{d} = {D.evaluate(d, env)}", found=n)
    return env


def _text(shape: D.Shape) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"
