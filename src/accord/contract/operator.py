"""Declaring an operator in Python.

For example::

    @accord.operator("shop::ChannelShuffle", since=1)
    def channel_shuffle(x: Tensor["T", "N", "C", "H", "W"], *, groups: int) -> Tensor["T", "N", "C", "H", "W"]:
        n, c, h, w = x.shape
        return x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(n, c, h, w)

    channel_shuffle.constraint("C % groups == 0")

The function is the reference: NumPy arrays in, NumPy arrays out. Parameters with a ``Tensor`` annotation are inputs
(``| None`` makes one optional), keyword-only parameters are attributes. Sizes are names, integers, or expressions of
names and integer attributes; ``...`` as the first size stands for any leading axes. From this follow the schema, the
checks
when a model is loaded, and the shapes of outputs.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from accord.contract.contract import Attribute, Contract, Execution, Parameter, Scheduling, Semantic, Tolerance
from accord.contract.registry import register, unregister, user_contract
from accord.contract.sizes import evaluate_condition, evaluate_size, names_in
from accord.errors import ContractError
from accord.ir.dims import Dim, DimLike
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference, rule, shape_rule

__all__ = ["Operator", "Tensor", "TensorSpec", "operator"]

_ONNX_TYPES = {
    "float32": "tensor(float)",
    "float64": "tensor(double)",
    **{t: f"tensor({t})" for t in ("float16", "bfloat16", "bool", "string")},
    **{f"{s}int{n}": f"tensor({s}int{n})" for s in ("", "u") for n in (4, 8, 16, 32, 64)},
    "float8_e4m3fn": "tensor(float8e4m3fn)",
    "float8_e5m2": "tensor(float8e5m2)",
}
_KINDS = {int: "INT", float: "FLOAT", str: "STRING", bool: "INT"}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """What a ``Tensor[...]`` annotation says: a type variable or dtype, and sizes (None: any rank)."""

    type: str
    sizes: tuple[str | int | types.EllipsisType, ...] | None

    def __or__(self, other: None) -> _Optional:
        return _Optional(self)


@dataclasses.dataclass(frozen=True)
class _Optional:
    spec: TensorSpec


class Tensor:
    """Annotation of inputs and outputs: ``Tensor["T", "N", "C"]``, ``Tensor["int64", 3]``, ``Tensor["T"]``."""

    def __class_getitem__(cls, item: Any) -> Any:
        parts = item if isinstance(item, tuple) else (item,)
        if not parts or not isinstance(parts[0], str):
            raise ContractError("a Tensor annotation starts with its type", expected='Tensor["T", ...]', found=item)
        sizes = tuple(parts[1:])
        for i, s in enumerate(sizes):
            if not (isinstance(s, (str, int)) or (s is ... and i == 0)):
                raise ContractError("a size is a name, an integer, an expression, or a leading ...", found=s)
        return TensorSpec(parts[0], sizes if len(parts) > 1 else None)


class Operator:
    """A declared operator: callable like its reference, and refined by its methods.

    Attributes:
        contract: What has been declared so far.
    """

    def __init__(self, name: str, since: int, function: Callable[..., Any]) -> None:
        domain, separator, short = name.rpartition("::")
        if not separator or not domain:
            raise ContractError("an operator's name has a domain", expected="'domain::Name'", found=name)
        self._function = function
        self._inputs, self._outputs, attributes = _signature(name, function)
        self.__doc__ = function.__doc__
        types_used = {p.type for p in (*self._inputs.values(), *self._outputs) if p.type not in _ONNX_TYPES}
        everything = frozenset(_ONNX_TYPES.values())
        optional = _optional_names(function)
        self.contract = Contract(
            Semantic(
                domain=domain,
                name=short,
                since_version=since,
                inputs=tuple(
                    Parameter(n, _ONNX_TYPES.get(p.type, p.type), "optional" if n in optional else "single")
                    for n, p in self._inputs.items()
                ),
                outputs=tuple(
                    Parameter(f"output{i}" if len(self._outputs) > 1 else "output", _ONNX_TYPES.get(p.type, p.type))
                    for i, p in enumerate(self._outputs)
                ),
                types=dict.fromkeys(types_used, everything),
                attributes=attributes,
                reference=self._reference,
                shape_rule=self._shape_rule,
                doc=inspect.getdoc(function) or "",
            ),
            Execution(nullable=tuple(optional)),
            Scheduling(),
        )
        register(self.contract)
        rule(short, domain=domain)(_rule_of(domain, short))

    def __call__(self, *args: Any, **attributes: Any) -> Any:
        """The reference."""
        return self._function(*args, **attributes)

    def __repr__(self) -> str:
        return f"<operator {self.contract.semantic.qualified_name}>"

    # refinement

    def constraint(self, *conditions: str) -> Operator:
        """Conditions on sizes and integer attributes that every node must meet, e.g. ``"C % groups == 0"``."""
        known = {n for spec in self._inputs.values() for n in _names(spec)} | set(self.contract.semantic.attributes)
        for c in conditions:
            unknown = names_in(c) - known
            if unknown:
                raise ContractError(
                    f"the condition '{c}' uses the unknown name {', '.join(sorted(unknown))}",
                    op=self.contract.semantic.qualified_name,
                    expected=", ".join(sorted(known)),
                )
        return self._refine(constraints=(*self.contract.semantic.constraints, *conditions))

    def types(self, **allowed: Sequence[str]) -> Operator:
        """The dtypes that each type variable may stand for, by NumPy name."""
        merged = dict(self.contract.semantic.types)
        for variable, names in allowed.items():
            if variable not in merged:
                raise ContractError(
                    f"there is no type variable '{variable}'",
                    op=self.contract.semantic.qualified_name,
                    expected=", ".join(sorted(merged)) or "none is used",
                )
            unknown = [n for n in names if n not in _ONNX_TYPES]
            if unknown:
                raise ContractError(
                    f"unknown dtype {', '.join(unknown)}",
                    op=self.contract.semantic.qualified_name,
                    expected=", ".join(_ONNX_TYPES),
                )
            merged[variable] = frozenset(_ONNX_TYPES[n] for n in names)
        return self._refine(types=merged)

    def tolerance(self, dtype: str, *, rtol: float, atol: float) -> Operator:
        """How far a kernel may be from the reference for one dtype."""
        return self._refine(tolerance={**self.contract.semantic.tolerance, dtype: Tolerance(rtol, atol)})

    def execution(self, **promises: Any) -> Operator:
        """Fields of :class:`accord.contract.contract.Execution` to set."""
        return self._replace(dataclasses.replace(self.contract, execution=_updated(self.contract.execution, promises)))

    def scheduling(self, **promises: Any) -> Operator:
        """Fields of :class:`accord.contract.contract.Scheduling` to set."""
        return self._replace(
            dataclasses.replace(self.contract, scheduling=_updated(self.contract.scheduling, promises))
        )

    def unregister(self) -> None:
        """Make the operator unknown again (all its versions)."""
        unregister(self.contract.semantic.domain, self.contract.semantic.name)

    def _refine(self, **semantic: Any) -> Operator:
        return self._replace(
            dataclasses.replace(self.contract, semantic=dataclasses.replace(self.contract.semantic, **semantic))
        )

    def _replace(self, contract: Contract) -> Operator:
        register(contract, replacing=self.contract)
        self.contract = contract
        return self

    # what follows from the declaration

    def _reference(self, *args: Any, **attributes: Any) -> Any:
        return self._function(*args, **attributes)

    def _shape_rule(self, n: Inference) -> Sequence[Fact]:
        env, dtypes, lead = self._bind(n)
        for condition in self.contract.semantic.constraints:
            if evaluate_condition(condition, env) is False:
                sizes = ", ".join(f"{k} = {env[k]}" for k in sorted(names_in(condition)) if k in env)
                raise n.error(f"the contract's condition '{condition}' does not hold", found=sizes)
        facts: list[Fact] = []
        for spec in self._outputs:
            dtype = dtypes.get(spec.type) or _dtype(spec.type)
            if spec.sizes is None:
                facts.append(TensorFact(dtype, None))
                continue
            shape: list[DimLike] = []
            for s in spec.sizes:
                if isinstance(s, types.EllipsisType):
                    if lead is None:
                        break
                    shape.extend(lead)
                    continue
                size = s if isinstance(s, int) else evaluate_size(s, env)
                shape.append(n.fresh() if size is None else size)
            else:
                facts.append(TensorFact(dtype, tuple(shape)))
                continue
            facts.append(TensorFact(dtype, None))
        return facts

    def _bind(self, n: Inference) -> tuple[dict[str, DimLike], dict[str, Any], tuple[DimLike, ...] | None]:
        """Sizes by name, dtypes by type variable, and the leading axes that ``...`` stands for."""
        env: dict[str, DimLike] = {}
        for a in self.contract.semantic.attributes.values():
            value = n.attr(a.name, a.default)
            if isinstance(value, int):
                env[a.name] = value
        dtypes: dict[str, Any] = {}
        lead: tuple[DimLike, ...] | None = None
        allowed = self.contract.semantic.types
        for i, (name, spec) in enumerate(self._inputs.items()):
            fact = n.tensor(i)
            if fact.dtype is not None:
                onnx_name = f"tensor({_onnx_name(fact.dtype)})"
                wanted = dtypes.setdefault(spec.type, fact.dtype) if spec.type in allowed else _dtype(spec.type)
                n.require(
                    fact.dtype == wanted,
                    f"input '{name}' has another dtype",
                    expected=wanted,
                    found=fact.dtype,
                    value=i,
                )
                if spec.type in allowed:
                    n.require(
                        onnx_name in allowed[spec.type],
                        f"the dtype of input '{name}' is not supported",
                        expected=", ".join(sorted(allowed[spec.type])),
                        found=onnx_name,
                        value=i,
                    )
            if fact.shape is None or spec.sizes is None:
                continue
            sizes = spec.sizes
            open_ended = bool(sizes) and sizes[0] is ...
            fixed = sizes[1:] if open_ended else sizes
            n.require(
                len(fact.shape) == len(fixed) or (open_ended and len(fact.shape) >= len(fixed)),
                f"input '{name}' has another rank",
                expected=f"{len(fixed)}{' or more' if open_ended else ''} axes",
                found=f"{len(fact.shape)} axes",
                value=i,
            )
            if open_ended:
                lead = fact.shape[: len(fact.shape) - len(fixed)]
            for s, actual in zip(fixed, fact.shape[len(fact.shape) - len(fixed) :], strict=True):
                self._bind_size(n, env, name, s, actual, i)
        return env, dtypes, lead

    @staticmethod
    def _bind_size(n: Inference, env: dict[str, DimLike], name: str, size: Any, actual: DimLike, i: int) -> None:
        if isinstance(size, str) and size.isidentifier() and size not in env:
            env[size] = actual
            return
        expected = size if isinstance(size, int) else evaluate_size(size, env)
        if isinstance(expected, int) and isinstance(actual, int):
            n.require(
                expected == actual, f"size '{size}' of input '{name}' differs", expected=expected, found=actual, value=i
            )
        elif isinstance(size, str) and size.isidentifier() and isinstance(expected, Dim):
            env[size] = actual if isinstance(actual, int) else expected


def operator(name: str, *, since: int = 1) -> Callable[[Callable[..., Any]], Operator]:
    """Declare an operator by its NumPy reference; see :mod:`accord.contract.operator`.

    Args:
        name: ``"domain::Name"``.
        since: First version of the domain with this meaning.

    Raises:
        ContractError: the declaration contradicts itself, or the version exists already.
    """

    def declare(function: Callable[..., Any]) -> Operator:
        return Operator(name, since, function)

    return declare


def _rule_of(domain: str, name: str) -> Callable[[Inference], Sequence[Fact]]:
    """The shape rule of the user's contract in force; where there is none, the rule that there was before."""
    before = shape_rule(domain, name)

    def shapes(n: Inference) -> Sequence[Fact]:
        contract = user_contract(domain, name, n.opset)
        if contract is None and before is not None:
            return before(n)
        if contract is None or contract.semantic.shape_rule is None:
            return [TensorFact(None, None)] * len(n.node.outputs)
        facts: Sequence[Fact] = contract.semantic.shape_rule(n)
        return facts

    return shapes


def _signature(
    name: str, function: Callable[..., Any]
) -> tuple[dict[str, TensorSpec], list[TensorSpec], dict[str, Attribute]]:
    hints = inspect.get_annotations(function, eval_str=True)
    inputs: dict[str, TensorSpec] = {}
    attributes: dict[str, Attribute] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if parameter.kind is parameter.KEYWORD_ONLY:
            attributes[parameter.name] = _attribute(name, parameter, hint)
            continue
        spec = hint.spec if isinstance(hint, _Optional) else hint
        if not isinstance(spec, TensorSpec):
            raise ContractError(
                f"parameter '{parameter.name}' has no Tensor annotation",
                op=name,
                expected='Tensor["T", ...]',
                found=hint,
            )
        inputs[parameter.name] = spec
    returned = hints.get("return")
    outputs = list(typing.get_args(returned)) if typing.get_origin(returned) is tuple else [returned]
    specs = [o for o in outputs if isinstance(o, TensorSpec)]
    if not outputs or len(specs) != len(outputs):
        raise ContractError(
            "the return annotation names no tensors",
            op=name,
            expected='Tensor["T", ...] or tuple[Tensor[...], ...]',
            found=returned,
        )
    return inputs, specs, attributes


def _optional_names(function: Callable[..., Any]) -> list[str]:
    hints = inspect.get_annotations(function, eval_str=True)
    return [n for n, h in hints.items() if isinstance(h, _Optional)]


def _attribute(name: str, parameter: inspect.Parameter, hint: Any) -> Attribute:
    default = None if parameter.default is parameter.empty else parameter.default
    required = parameter.default is parameter.empty
    if hint in _KINDS:
        return Attribute(parameter.name, _KINDS[hint], required, default)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (list, tuple) and arguments and arguments[0] in _KINDS:
        return Attribute(parameter.name, _KINDS[arguments[0]] + "S", required, default)
    raise ContractError(
        f"attribute '{parameter.name}' has an unknown type",
        op=name,
        expected="int, float, str, bool, or a list of one of them",
        found=hint,
    )


def _names(spec: TensorSpec) -> set[str]:
    return {n for s in spec.sizes or () if isinstance(s, str) for n in names_in(s)}


def _updated(part: Any, promises: dict[str, Any]) -> Any:
    known = {f.name for f in dataclasses.fields(part)}
    unknown = set(promises) - known
    if unknown:
        raise ContractError(f"unknown promise {', '.join(sorted(unknown))}", expected=", ".join(sorted(known)))
    return dataclasses.replace(part, **promises)


def _dtype(name: str) -> Any:
    import onnx_ir as ir

    onnx_name = _ONNX_TYPES.get(name)
    if onnx_name is None:
        return None
    return next((d for d in ir.DataType if f"tensor({_onnx_name(d)})" == onnx_name), None)


def _onnx_name(dtype: Any) -> str:
    return str(dtype.name).lower()
