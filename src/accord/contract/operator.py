"""Declaring an operator in Python.

For example::

    @accord.operator("shop::ChannelShuffle", since=1)
    def channel_shuffle(x: Tensor["T", "N", "C", "H", "W"], *, groups: int) -> Tensor["T", "N", "C", "H", "W"]:
        n, c, h, w = x.shape
        return x.reshape(n, groups, c // groups, h, w).swapaxes(1, 2).reshape(n, c, h, w)

    channel_shuffle.constraint("C % groups == 0")

The function is the reference: NumPy arrays in, NumPy arrays out. Parameters with a ``Tensor`` annotation are inputs
(``| None`` makes one optional), keyword-only parameters are attributes (``Literal["none", "tanh"]`` is one of a few
values). Sizes are names, integers, or expressions of
names and integer attributes; ``...`` as the first size stands for any leading axes. From this follow the schema, the
checks
when a model is loaded, and the shapes of outputs.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accord.contract.code import CudaCode, LibraryCode, PackedCode, TritonCode
from accord.contract.contract import (
    Attribute,
    Contract,
    Execution,
    KernelDeclaration,
    Parameter,
    Scheduling,
    Semantic,
    Tolerance,
    Values,
)
from accord.contract.dtypes import ONNX_TYPES
from accord.contract.registry import TOLERANCE, register, unregister, user_contract
from accord.contract.shapes import output_facts
from accord.contract.sizes import parse
from accord.errors import ContractError
from accord.ir.facts import Fact, TensorFact
from accord.ir.infer import Inference, rule, shape_rule

__all__ = ["Operator", "Tensor", "TensorSpec", "operator"]

_ATTRIBUTES = {int: "INT", float: "FLOAT", str: "STRING", bool: "INT"}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """What a ``Tensor[...]`` annotation says: a type variable or dtype, and sizes (None: any rank)."""

    type: str
    sizes: tuple[str | int, ...] | None

    def parameter(self, name: str, option: str = "single") -> Parameter:
        """The formal parameter ``name`` that it describes."""
        return Parameter(name, ONNX_TYPES.get(self.type, self.type), option, sizes=self.sizes)

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
        sizes = tuple("..." if s is ... else s for s in parts[1:])
        for i, s in enumerate(sizes):
            if not isinstance(s, (str, int)) or isinstance(s, bool) or (s == "..." and i):
                raise ContractError("a size is a name, an integer, an expression, or a leading ...", found=s)
            if isinstance(s, str) and s != "...":
                parse(s)
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
        inputs, outputs, attributes = _signature(name, function)
        self.__doc__ = function.__doc__
        variables = {p.type for p in (*inputs, *outputs) if "(" not in p.type}
        self.contract = Contract(
            Semantic(
                domain=domain,
                name=short,
                since_version=since,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                types=dict.fromkeys(sorted(variables), frozenset(ONNX_TYPES.values())),
                attributes=attributes,
                tolerance=TOLERANCE,
                reference=function,
                doc=inspect.getdoc(function) or "",
            ),
            Execution(nullable=tuple(p.name for p in inputs if p.option == "optional")),
            Scheduling(),
        )
        register(self.contract)
        rule(short, domain=domain)(_rule_of(domain, short))

    def __call__(self, *args: Any, **attributes: Any) -> Any:
        """The reference."""
        return self._function(*args, **attributes)

    def __repr__(self) -> str:
        return f"<operator {self._name}>"

    @property
    def _name(self) -> str:
        return self.contract.semantic.qualified_name

    # meaning

    def constraint(self, *conditions: str) -> Operator:
        """Conditions on sizes and integer attributes that every node must meet, e.g. ``"C % groups == 0"``."""
        return self._refine(constraints=(*self.contract.semantic.constraints, *conditions))

    def types(self, **allowed: Sequence[str]) -> Operator:
        """The dtypes that each type variable may stand for, by NumPy name."""
        return self._refine(types={**self.contract.semantic.types, **self._types(allowed)})

    def tolerance(self, dtype: str, *, rtol: float, atol: float) -> Operator:
        """How far a kernel may be from the reference for one dtype."""
        return self._refine(tolerance={**self.contract.semantic.tolerance, dtype: Tolerance(rtol, atol)})

    def values(self, **inputs: Values | tuple[float | str, float | str]) -> Operator:
        """Which values of an input mean something: ``values(index=(0, "K - 1"))``, or a :class:`Values`."""
        ports = {p.name: p for p in self.contract.semantic.inputs}
        for n, v in inputs.items():
            if n not in ports:
                raise ContractError(f"there is no input '{n}'", op=self._name, expected=", ".join(ports))
            ports[n] = dataclasses.replace(ports[n], values=v if isinstance(v, Values) else Values(*v))
        return self._refine(inputs=tuple(ports.values()))

    def examples(self, function: Callable[..., Mapping[str, Any]]) -> Operator:
        """Decorator of what makes inputs for tests: ``function(rng, sizes, attributes)`` → arrays by name."""
        return self._refine(examples=function)

    def semantic(self, **promises: Any) -> Operator:
        """Fields of :class:`accord.contract.contract.Semantic` to set: ``nan``, ``deterministic``, ``batch`` ..."""
        return self._replace(dataclasses.replace(self.contract, semantic=_updated(self.contract.semantic, promises)))

    # memory and scheduling

    def execution(self, **promises: Any) -> Operator:
        """Fields of :class:`accord.contract.contract.Execution` to set."""
        return self._replace(dataclasses.replace(self.contract, execution=_updated(self.contract.execution, promises)))

    def scheduling(self, **promises: Any) -> Operator:
        """Fields of :class:`accord.contract.contract.Scheduling` to set."""
        return self._replace(
            dataclasses.replace(self.contract, scheduling=_updated(self.contract.scheduling, promises))
        )

    # kernels

    def kernel(
        self,
        name: str,
        kind: str,
        code: Any,
        *,
        device: str = "cpu",
        types: Mapping[str, Sequence[str]] | None = None,
        constraints: Sequence[str] = (),
        execution: Mapping[str, Any] | None = None,
        scheduling: Mapping[str, Any] | None = None,
        constant: Sequence[str] = (),
    ) -> Operator:
        """Declare a kernel; the first that fits a node is used.

        Args:
            name: For people.
            kind: See :class:`~accord.contract.contract.KernelDeclaration`.
            code: Likewise.
            device: "cpu" or "cuda".
            types: The dtypes that it is for, by NumPy name.
            constraints: Conditions under which it may be used, beyond the contract's.
            execution: Where its memory clauses differ from the operator's.
            scheduling: Where its scheduling clauses differ from the operator's.
            constant: Inputs whose content must be known when the model is loaded.

        Raises:
            ContractError: it contradicts the operator.
        """
        c = self.contract
        declared = KernelDeclaration(
            name,
            kind,
            device,
            code,
            self._types(types or {}),
            tuple(constraints),
            None if execution is None else _updated(c.execution, execution),
            None if scheduling is None else _updated(c.scheduling, scheduling),
            tuple(constant),
        )
        return self._replace(dataclasses.replace(c, kernels=(*c.kernels, declared)))

    def python(self, function: Callable[..., Any] | None = None, /, **clauses: Any) -> Any:
        """Decorator of a kernel in Python: as the reference, NumPy arrays in and out."""
        return self._decorated("python", function, clauses)

    def expression(self, function: Callable[..., Any] | None = None, /, **clauses: Any) -> Any:
        """Decorator of an elementwise kernel: ``f(*elements, **attributes)`` on :class:`accord.expr.lang.Expr`.

        Elements of float16 and bfloat16 are given as float32.
        """
        return self._decorated("expression", function, clauses)

    def composition(self, function: Callable[..., Any] | None = None, /, **clauses: Any) -> Any:
        """Decorator of a kernel made of ONNX operators: ``f(b, *inputs, **attributes)`` returns ``b("Mul", x, y)``.

        ``b`` is a :class:`accord.ir.build.Builder`; an input that is not given is None.
        """
        return self._decorated("composition", function, clauses)

    def library(self, path: str | os.PathLike[str], symbol: str, *, name: str = "c", **clauses: Any) -> Operator:
        """Declare a C function in a shared library; `accord op header` writes its prototype.

        Args:
            path: Of the library; a relative one starts at the folder of the file that declares the operator.
            symbol: Of the function; "{T}" in it stands for the dtype of type variable T.
            name: Of the kernel.
            clauses: As of :meth:`kernel`.
        """
        return self.kernel(name, "library", LibraryCode(self._path(path), symbol), **clauses)

    def tvm_ffi(
        self, path: str | os.PathLike[str], function: str, *, name: str = "tvm-ffi", **clauses: Any
    ) -> Operator:
        """Declare a tvm-ffi function; arguments as of :meth:`library`."""
        return self.kernel(name, "tvm_ffi", PackedCode(self._path(path), function), **clauses)

    def triton(self, *launches: TritonCode, name: str = "triton", **clauses: Any) -> Operator:
        """Declare Triton kernels, started one after the other; clauses as of :meth:`kernel`."""
        return self.kernel(name, "triton", launches, device="cuda", **clauses)

    def cuda(self, *launches: CudaCode, name: str = "cuda", **clauses: Any) -> Operator:
        """Declare CUDA C++ kernels, started one after the other; clauses as of :meth:`kernel`."""
        return self.kernel(name, "cuda", launches, device="cuda", **clauses)

    def unregister(self) -> None:
        """Make the operator unknown again (all its versions)."""
        unregister(self.contract.semantic.domain, self.contract.semantic.name)

    # plumbing

    def _decorated(self, kind: str, function: Callable[..., Any] | None, clauses: dict[str, Any]) -> Any:
        def declare(f: Callable[..., Any]) -> Callable[..., Any]:
            self.kernel(clauses.pop("name", kind), kind, f, **clauses)
            return f

        return declare if function is None else declare(function)

    def _path(self, path: str | os.PathLike[str]) -> str:
        """A path that does not depend on where the process was started."""
        return str(Path(inspect.getfile(self._function)).resolve().parent / path)

    def _types(self, allowed: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
        known = self.contract.semantic.types
        for variable, names in allowed.items():
            if variable not in known:
                raise ContractError(
                    f"there is no type variable '{variable}'",
                    op=self._name,
                    expected=", ".join(sorted(known)) or "none is used",
                )
            unknown = [n for n in names if n not in ONNX_TYPES]
            if unknown:
                raise ContractError(
                    f"unknown dtype {', '.join(unknown)}", op=self._name, expected=", ".join(ONNX_TYPES)
                )
        return {v: frozenset(ONNX_TYPES[n] for n in names) for v, names in allowed.items()}

    def _refine(self, **semantic: Any) -> Operator:
        return self._replace(
            dataclasses.replace(self.contract, semantic=dataclasses.replace(self.contract.semantic, **semantic))
        )

    def _replace(self, contract: Contract) -> Operator:
        register(contract, replacing=self.contract)
        self.contract = contract
        return self


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
        if contract is None:
            return [TensorFact(None, None)] * len(n.node.outputs)
        return output_facts(contract, n)

    return shapes


def _signature(
    name: str, function: Callable[..., Any]
) -> tuple[list[Parameter], list[Parameter], dict[str, Attribute]]:
    hints = inspect.get_annotations(function, eval_str=True)
    inputs: list[Parameter] = []
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
        optional = isinstance(hint, _Optional)
        if optional != (parameter.default is not parameter.empty):
            raise ContractError(
                f"parameter '{parameter.name}' is optional in its {'annotation' if optional else 'default'} only",
                op=name,
                expected=f'{parameter.name}: Tensor[...] | None = None, or neither "| None" nor a default',
            )
        inputs.append(spec.parameter(parameter.name, "optional" if optional else "single"))
    returned = hints.get("return")
    found = list(typing.get_args(returned)) if typing.get_origin(returned) is tuple else [returned]
    specs = [o for o in found if isinstance(o, TensorSpec)]
    if not found or len(specs) != len(found):
        raise ContractError(
            "the return annotation names no tensors",
            op=name,
            expected='Tensor["T", ...] or tuple[Tensor[...], ...]',
            found=returned,
        )
    outputs = [s.parameter(f"output{i}" if len(specs) > 1 else "output") for i, s in enumerate(specs)]
    return inputs, outputs, attributes


def _attribute(name: str, parameter: inspect.Parameter, hint: Any) -> Attribute:
    default = None if parameter.default is parameter.empty else parameter.default
    required = parameter.default is parameter.empty
    if hint in _ATTRIBUTES:
        return Attribute(parameter.name, _ATTRIBUTES[hint], required, default)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal and {type(a) for a in arguments} in ({str}, {int}):
        return Attribute(parameter.name, _ATTRIBUTES[type(arguments[0])], required, default, arguments)
    if typing.get_origin(hint) in (list, tuple) and arguments and arguments[0] in _ATTRIBUTES:
        return Attribute(parameter.name, _ATTRIBUTES[arguments[0]] + "S", required, default)
    raise ContractError(
        f"attribute '{parameter.name}' has an unknown type",
        op=name,
        expected="int, float, str, bool, a list of one of them, or Literal of numbers or of texts",
        found=hint,
    )


def _updated(part: Any, promises: Mapping[str, Any]) -> Any:
    known = {f.name for f in dataclasses.fields(part)}
    unknown = set(promises) - known
    if unknown:
        raise ContractError(f"unknown promise {', '.join(sorted(unknown))}", expected=", ".join(sorted(known)))
    return dataclasses.replace(part, **promises)
