"""Cases: everything that one call of an operator is made of, as data.

A case is JSON, so that a finding is reproduced by one line. What it leaves out has the usual value: attributes their
defaults, values "normal", memory row-major and ending at a guarded page.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from accord.contract.contract import Contract, NanPolicy, Parameter, Semantic
from accord.contract.dtypes import ONNX_TYPES, short_name
from accord.contract.sizes import evaluate_condition, evaluate_size, names_in
from accord.errors import AccordError, ContractError, InputError
from accord.workbench.buffers import FILLS, Layout, dtype_named, is_float, is_integer, limits

__all__ = [
    "FLOATS",
    "KINDS",
    "Case",
    "accepts",
    "attributes_of",
    "dtype_of",
    "environment",
    "holds",
    "input_shapes",
    "kinds_for",
    "make_inputs",
    "output_shapes",
    "size_names",
]

Array: TypeAlias = "np.ndarray[Any, Any]"

FLOATS = ("float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2")
#: Kinds of values.
KINDS = {
    "normal": "a normal distribution",
    "offset": "a normal distribution around a mean that is large beside its spread",
    "rows": "rows that differ by orders of magnitude",
    "large": "values around ±100",
    "tiny": "values around ±0.001",
    "equal": "all elements are equal",
    "nan": "some elements are NaN",
    "inf": "some elements are infinite",
    "masked": "some rows are -infinity",
}
#: Types of fewer values are not those of indices.
_INDEX = 256
_SIDES = ("end", "begin", "skew")


@dataclass(frozen=True, slots=True)
class Case:
    """One call.

    Attributes:
        sizes: By name.
        lead: The axes that "..." stands for.
        shapes: Of inputs whose sizes are not declared.
        types: Type variable → dtype by its short name.
        attributes: Where they are not their defaults.
        values: One of :data:`KINDS`.
        nulls: Inputs that are absent.
        layouts: Input or output → how its elements lie, where that is not row-major.
        side: Where tensors lie in guarded memory: "end", "begin" or "skew".
        fill: What outputs and workspace hold before the call, one of :data:`~accord.workbench.buffers.FILLS`.
        in_place: Pairs (output, input) that are the same memory.
        seed: Of the values.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    lead: tuple[int, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: str = "normal"
    nulls: tuple[str, ...] = ()
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    side: str = "end"
    fill: str = "nan"
    in_place: tuple[tuple[int, int], ...] = ()
    seed: int = 0

    def but(self, **changes: Any) -> Case:
        """The case with some fields changed."""
        return dataclasses.replace(self, **changes)

    def json(self) -> str:
        """As text; fields with their usual values are left out."""
        usual = Case()
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        shown = {k: v for k, v in data.items() if v != getattr(usual, k)}
        if "layouts" in shown:
            shown["layouts"] = {
                n: {k: v for k, v in dataclasses.asdict(x).items() if v} for n, x in self.layouts.items()
            }
        return json.dumps(shown, default=_plain)

    @staticmethod
    def of(text: str, contract: Contract) -> Case:
        """A case from its text.

        Raises:
            InputError: it is not one, or not of this operator.
        """
        try:
            data = json.loads(text)
            known = {f.name for f in dataclasses.fields(Case)}
            if not isinstance(data, dict) or set(data) - known:
                raise InputError(
                    "the case is not understood", expected=f"JSON with {', '.join(sorted(known))}", found=text
                )
            for name in ("lead", "nulls"):
                if name in data:
                    data[name] = tuple(data[name])
            if "in_place" in data:
                data["in_place"] = tuple((int(o), int(i)) for o, i in data["in_place"])
            if "shapes" in data:
                data["shapes"] = {n: tuple(map(int, s)) for n, s in data["shapes"].items()}
            if "layouts" in data:
                data["layouts"] = {n: Layout(**{k: tuple(v) for k, v in x.items()}) for n, x in data["layouts"].items()}
            case = Case(**data)
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"the case is not understood: {error}", found=text) from error
        _check(case, contract)
        return case


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else list(value)


def _check(case: Case, contract: Contract) -> None:
    s = contract.semantic
    for what, found, allowed in (
        ("values", case.values, tuple(KINDS)),
        ("side", case.side, _SIDES),
        ("fill", case.fill, tuple(FILLS)),
    ):
        if found not in allowed:
            raise InputError(f"the case's '{what}' is not known", expected=", ".join(allowed), found=found)
    for name, dtype in case.types.items():
        if name not in s.types or dtype not in ONNX_TYPES:
            raise InputError(f"the case's type {name}={dtype} is none of {s.qualified_name}", found=dtype)
    ports = {p.name for p in (*s.inputs, *s.outputs)}
    for name in (*case.nulls, *case.layouts, *case.shapes):
        if name not in ports:
            raise InputError(f"the case names '{name}'", expected=f"one of {', '.join(sorted(ports))}")
    for name in case.attributes:
        if name not in s.attributes:
            raise InputError(f"the case gives the attribute '{name}'", expected=", ".join(s.attributes) or "none")
    input_shapes(s, case)


def environment(s: Semantic, case: Case) -> dict[str, int]:
    """Sizes and integer attributes by name."""
    given = {n: a.default for n, a in s.attributes.items()} | dict(case.attributes)
    return {n: int(v) for n, v in given.items() if isinstance(v, (bool, int))} | dict(case.sizes)


def attributes_of(s: Semantic, case: Case) -> dict[str, Any]:
    """All attributes by name."""
    return {n: a.default for n, a in s.attributes.items() if a.default is not None} | dict(case.attributes)


def dtype_of(p: Parameter, case: Case) -> str:
    """Short name of a parameter's dtype."""
    return case.types.get(p.type, "float32") if "(" not in p.type else short_name(p.type)


def _shape(p: Parameter, case: Case, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    if p.sizes is None:
        return case.shapes.get(p.name)
    found: list[int] = []
    for size in p.sizes:
        if size == "...":
            found += case.lead
            continue
        value: Any = size if isinstance(size, int) else evaluate_size(size, sizes)
        if not isinstance(value, int):
            return None
        found.append(value)
    return tuple(found)


def input_shapes(s: Semantic, case: Case) -> list[tuple[int, ...] | None]:
    """Shapes of the inputs; None for one that is absent.

    Raises:
        InputError: the case does not say what a size is, or one is less than 0.
    """
    sizes = environment(s, case)
    found: list[tuple[int, ...] | None] = []
    for p in s.inputs:
        shape = _shape(p, case, sizes)
        if p.name in case.nulls:
            found.append(None)
            continue
        if shape is None or min(shape, default=0) < 0:
            raise InputError(
                f"the case does not say what the shape of '{p.name}' is",
                expected=f"sizes for {', '.join(map(str, p.sizes))}" if p.sizes is not None else "an entry in shapes",
                found=case.json(),
            )
        found.append(shape)
    return found


def output_shapes(s: Semantic, case: Case) -> list[tuple[int, ...] | None]:
    """Shapes of the outputs; None where the declaration leaves them open."""
    sizes = environment(s, case)
    return [_shape(p, case, sizes) for p in s.outputs]


def holds(contract: Contract, conditions: Sequence[str], case: Case) -> bool:
    """Whether conditions hold of a case."""
    sizes = environment(contract.semantic, case)
    return all(evaluate_condition(c, sizes) is not False for c in conditions)


def accepts(contract: Contract, case: Case) -> bool:
    """Whether the contract takes a case: its conditions hold, and each tensor has a shape."""
    try:
        shapes = (*input_shapes(contract.semantic, case), *output_shapes(contract.semantic, case))
        return min((n for x in shapes for n in x or ()), default=0) >= 0 and holds(
            contract, contract.semantic.constraints, case
        )
    except AccordError:
        return False


def kinds_for(s: Semantic) -> list[str]:
    """Kinds of values that mean something for an operator."""
    kinds = list(KINDS)
    return kinds if s.nan is not NanPolicy.UNDEFINED else kinds[: kinds.index("nan")]


# values


def make_inputs(
    s: Semantic, case: Case, examples: Callable[[Mapping[str, int]], Mapping[str, Array]] | None = None
) -> list[Array | None]:
    """The inputs of a case, row-major.

    Args:
        s: What is computed.
        case: The case.
        examples: From sizes to the inputs that the declaration makes itself.

    Raises:
        ContractError: a made input has another shape than the declaration says.
    """
    sizes = environment(s, case)
    own = {} if examples is None else dict(examples(sizes))
    found: list[Array | None] = []
    smallest = min((n for n in case.sizes.values() if n > 0), default=2)
    floats = [p.name for p in s.inputs if p.name not in case.nulls and dtype_of(p, case) in FLOATS]
    # NaN in all of them; infinity in one, so that it does not meet itself
    infinite = floats[case.seed % len(floats)] if floats and case.values in ("inf", "masked") else None
    for i, (p, shape) in enumerate(zip(s.inputs, input_shapes(s, case), strict=True)):
        if shape is None:
            found.append(None)
            continue
        dtype = dtype_named(dtype_of(p, case))
        rng = np.random.default_rng((case.seed, i))
        if p.name in own:
            made = np.ascontiguousarray(own[p.name])
            if p.type in s.types and is_float(made.dtype):
                made = made.astype(dtype)  # what makes examples is not told the type of the case
            if made.shape != shape or made.dtype != dtype:
                raise ContractError(
                    f"the examples' '{p.name}' is not what the declaration says",
                    op=s.qualified_name,
                    expected=f"{dtype}{list(shape)}",
                    found=f"{made.dtype}{list(made.shape)}",
                )
            found.append(made)
            continue
        kind = "normal" if infinite not in (None, p.name) else case.values
        drawn = _drawn(p, shape, dtype, sizes, kind, rng, arithmetic=_arithmetic(s, p), smallest=smallest)
        found.append(drawn)
    return found


def _arithmetic(s: Semantic, p: Parameter) -> bool:
    """Whether an integer input takes part in arithmetic, as far as its declaration tells: its type may be a float."""
    return any(short_name(t) in FLOATS for t in s.types.get(p.type, ()))


def _bound(value: float | str | None, sizes: Mapping[str, int]) -> float | None:
    if isinstance(value, str):
        found = evaluate_size(value, sizes)
        return float(found) if isinstance(found, int) else None
    return value


def _drawn(
    p: Parameter,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    sizes: Mapping[str, int],
    kind: str,
    rng: np.random.Generator,
    *,
    arithmetic: bool,
    smallest: int,
) -> Array:
    low, high = _bound(p.values.low, sizes), _bound(p.values.high, sizes)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if is_integer(dtype):
        floor, ceiling = limits(dtype.name)
        least, most = (-8, 8) if arithmetic else (0, smallest - 1)
        if ceiling < _INDEX and not arithmetic:  # too few values for an index: quantised numbers
            least, most = floor, ceiling
        bottom = max(int(low if low is not None else min(least, most if high is None else int(high))), floor)
        top = min(int(high if high is not None else max(most, bottom)), ceiling)
        whole = rng.integers(bottom, max(bottom, top), shape, endpoint=True).astype(dtype)
        return np.sort(whole, -1) if p.values.increasing and shape else whole
    x = _floats(shape, kind, rng, dtype.name) * p.values.spread
    if low is not None and high is not None:
        x = low + (high - low) * _squashed(x / p.values.spread)
    elif low is not None:
        x = low + np.abs(x)
    elif high is not None:
        x = high - np.abs(x)
    if p.values.increasing and shape:
        x = np.sort(x, -1)
    if low is None and high is None:
        _strange(x, kind, rng)
    return np.asarray(x).astype(dtype)


def _squashed(x: Array) -> Array:
    """Into (0, 1)."""
    return np.asarray(0.5 + 0.5 * np.tanh(x))


def _floats(shape: tuple[int, ...], kind: str, rng: np.random.Generator, dtype: str) -> Array:
    x = rng.standard_normal(shape)
    if kind == "offset":
        # as far from zero as its type still shows the spread
        return x + (1000.0 if dtype in ("float32", "float64") else 32.0 if dtype in ("float16", "bfloat16") else 4.0)
    if kind == "rows":
        rows = shape[:-1] or shape
        factor = 10.0 ** rng.uniform(-2, 2, rows)
        shift = rng.uniform(-3, 3, rows)
        return x * factor.reshape(*rows, *(1,) * (len(shape) - len(rows))) + shift.reshape(
            *rows, *(1,) * (len(shape) - len(rows))
        )
    if kind == "large":
        return x * 100
    if kind == "tiny":
        return x * 1e-3
    if kind == "equal":
        return np.full(shape, float(rng.standard_normal()))
    return np.asarray(x)


def _strange(x: Array, kind: str, rng: np.random.Generator) -> None:
    """Put NaN or infinity into some elements of ``x``."""
    if kind not in ("nan", "inf", "masked") or x.size == 0:
        return
    flat = x.reshape(-1)
    count = max(1, min(4, x.size // 8))
    where = rng.choice(x.size, count, replace=False)
    if kind == "nan":
        flat[where] = np.nan
    elif kind == "inf":
        flat[where] = np.where(rng.random(count) < 0.5, np.inf, -np.inf)
    elif x.ndim:
        rows = x.reshape(-1, x.shape[-1])
        rows[rng.random(len(rows)) < 0.4] = -np.inf


def size_names(s: Semantic) -> list[str]:
    """Names that a case gives sizes for: those in the sizes of inputs."""
    found: dict[str, None] = {}
    for p in s.inputs:
        for size in p.sizes or ():
            if isinstance(size, str) and size != "...":
                found.update(dict.fromkeys(sorted(names_in(size))))
    return [n for n in found if n not in s.attributes]
