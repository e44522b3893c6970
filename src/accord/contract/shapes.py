"""What a declaration says about sizes and dtypes: checked against a call, and the facts of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accord.contract.dtypes import from_onnx
from accord.contract.sizes import evaluate_condition, evaluate_size, names_in, shortfall
from accord.ir import dims as D
from accord.ir.dims import Dim, DimLike
from accord.ir.facts import Fact, TensorFact

if TYPE_CHECKING:
    from accord.contract.contract import Contract, Semantic, Size
    from accord.ir.infer import Inference

__all__ = ["Bound", "bind", "failed_condition", "output_facts"]


class Bound:
    """A call as the declaration sees it.

    Attributes:
        sizes: Sizes by name, and integer attributes.
        types: Type variable → ONNX type, where it is known.
        lead: The axes that "..." stands for; None where there are none.
        absent: Names of optional inputs that are not given.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, DimLike] = {}
        self.types: dict[str, str] = {}
        self.lead: tuple[DimLike, ...] | None = None
        self.absent: frozenset[str] = frozenset()


def bind(s: Semantic, n: Inference) -> Bound:
    """Read sizes and dtypes off a node's inputs.

    Raises:
        ModelError: the node gives what the declaration does not take.
    """
    bound = Bound()
    composed: list[tuple[str, DimLike]] = []
    bound.absent = frozenset(p.name for i, p in enumerate(s.inputs) if p.option == "optional" and not n.has(i))
    for a in s.attributes.values():
        value = n.attr(a.name, a.default)
        if isinstance(value, int):
            bound.sizes[a.name] = value
        n.require(
            value is None or not a.choices or value in a.choices,
            f"attribute '{a.name}' has a value that the operator does not know",
            expected=", ".join(map(str, a.choices)),
            found=value,
        )
    for i, p in enumerate(s.inputs[: len(n.node.inputs)]):
        fact = n.tensor(i)
        if fact.dtype is not None:
            _bind_type(s, n, i, f"tensor({str(fact.dtype.name).lower()})", bound)
        if fact.shape is None or p.sizes is None or not n.has(i):
            continue
        open_ended = p.sizes[:1] == ("...",)
        fixed = p.sizes[1:] if open_ended else p.sizes
        n.require(
            len(fact.shape) == len(fixed) or (open_ended and len(fact.shape) >= len(fixed)),
            f"input '{p.name}' has another rank",
            expected=f"{len(fixed)}{' or more' if open_ended else ''} axes",
            found=f"{len(fact.shape)} axes",
            value=i,
        )
        if open_ended:
            bound.lead = fact.shape[: len(fact.shape) - len(fixed)]
        pairs = list(zip(fixed, fact.shape[len(fact.shape) - len(fixed) :], strict=True))
        for size, actual in pairs:
            _bind_size(n, bound.sizes, p.name, size, actual, i)
        composed += [(size, actual) for size, actual in pairs if isinstance(size, str) and not size.isidentifier()]
    for size, actual in composed:
        _solve(size, actual, bound.sizes)
    return bound


def _solve(size: str, actual: DimLike, env: dict[str, DimLike]) -> None:
    """The one name in an expression such as ``R + 1`` that no other size has told, from what the expression is."""
    unknown = names_in(size) - env.keys()
    if len(unknown) != 1:
        return
    (name,) = unknown
    values = [evaluate_size(size, {**env, name: k}) for k in range(3)]
    if any(v is None for v in values):
        return
    start, first, second = (v for v in values if v is not None)
    step = first - start
    if not isinstance(step, int) or step == 0 or second - first != step:
        return  # it does not grow evenly
    rest = actual - start
    if step in (1, -1):
        env[name] = rest * step
    elif D.modulo(rest, step) == 0:
        env[name] = D.floordiv(rest, step)


def _bind_type(s: Semantic, n: Inference, i: int, found: str, bound: Bound) -> None:
    p = s.inputs[i]
    variable = p.type in s.types
    wanted = bound.types.setdefault(p.type, found) if variable else p.type
    n.require(found == wanted, f"input '{p.name}' has another dtype", expected=wanted, found=found, value=i)
    if variable:
        n.require(
            found in s.types[p.type],
            f"the dtype of input '{p.name}' is not supported",
            expected=", ".join(sorted(s.types[p.type])),
            found=found,
            value=i,
        )


def _bind_size(n: Inference, env: dict[str, DimLike], name: str, size: Size, actual: DimLike, i: int) -> None:
    if isinstance(size, str) and size.isidentifier() and size not in env:
        env[size] = actual
        return
    expected = size if isinstance(size, int) else evaluate_size(size, env)
    if isinstance(expected, int) and isinstance(actual, int):
        n.require(
            expected == actual, f"size '{size}' of input '{name}' differs", expected=expected, found=actual, value=i
        )
        return
    if expected is not None:
        n.agree(actual, expected, f"sizes '{size}' of the contract")
    if isinstance(size, str) and size.isidentifier() and isinstance(expected, Dim):
        env[size] = actual if isinstance(actual, int) else expected


def failed_condition(conditions: Sequence[str], sizes: Mapping[str, DimLike]) -> tuple[str, str] | None:
    """The first condition that does not hold, and the sizes in it, for people."""
    for condition in conditions:
        if evaluate_condition(condition, sizes) is False:
            return condition, ", ".join(f"{k} = {sizes[k]}" for k in sorted(names_in(condition)) if k in sizes)
    return None


def output_facts(contract: Contract, n: Inference) -> Sequence[Fact]:
    """Facts of the outputs of a node.

    Raises:
        ModelError: the node gives what the declaration does not take.
    """
    s = contract.semantic
    bound = bind(s, n)
    failed = failed_condition(s.constraints, bound.sizes)
    if failed is not None:
        raise n.error(f"the contract's condition '{failed[0]}' does not hold", found=failed[1])
    for condition in s.constraints:
        apart = None if evaluate_condition(condition, bound.sizes) else shortfall(condition, bound.sizes)
        if apart is not None:
            n.agree(apart, 0, "sizes", condition=condition)
    return [TensorFact(_output_dtype(p.type, bound), _output_shape(p.sizes, bound, n)) for p in s.outputs]


def _output_dtype(name: str, bound: Bound) -> Any:
    return from_onnx(bound.types.get(name, name))


def _output_shape(sizes: tuple[Size, ...] | None, bound: Bound, n: Inference) -> tuple[DimLike, ...] | None:
    if sizes is None:
        return None
    shape: list[DimLike] = []
    for size in sizes:
        if size == "...":
            if bound.lead is None:
                return None
            shape.extend(bound.lead)
            continue
        value = size if isinstance(size, int) else evaluate_size(size, bound.sizes)
        shape.append(n.fresh() if value is None else value)
    return tuple(shape)
