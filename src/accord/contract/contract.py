"""The contract: what an operator promises, as data that the runtime reads.

Three parts. *Semantic*: what is computed, for which dtypes and shapes, how exactly. *Execution*: which memory it
accepts and needs. *Scheduling*: how it may be fused, captured and put on a stream. The contracts of ONNX operators
are derived from their schemas (:mod:`accord.contract.registry`); a user's operator declares its own.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from accord.errors import ContractError

__all__ = ["Attribute", "Contract", "Execution", "NanPolicy", "Parameter", "Scheduling", "Semantic", "Tolerance"]

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One formal input or output.

    Attributes:
        name: As in the schema.
        type: A type variable of the contract ("T"), or an ONNX type such as "tensor(int64)".
        option: "single", "optional", or "variadic" (takes all the rest).
        homogeneous: For a variadic parameter: all of one type.
        min_arity: For a variadic parameter: the least number.
    """

    name: str
    type: str
    option: str = "single"
    homogeneous: bool = True
    min_arity: int = 1


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its ONNX kind ("INT", "FLOATS", "STRING", "GRAPH" ...) and its default, if it has one."""

    name: str
    kind: str
    required: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``|actual - expected| <= atol + rtol * |expected|``."""

    rtol: float
    atol: float


class NanPolicy(enum.Enum):
    """What happens to NaN in an input."""

    PROPAGATE = "propagate"  #: the outputs that depend on it are NaN
    IGNORE = "ignore"  #: the operator defines a value without it
    UNDEFINED = "undefined"  #: nothing is promised


@dataclass(frozen=True, slots=True)
class Semantic:
    """What is computed.

    Attributes:
        domain: "" for ONNX's own.
        name: Operator name.
        since_version: First version of the domain with this meaning.
        inputs: Formal inputs in order.
        outputs: Formal outputs in order.
        types: Type variable → the ONNX types that it may stand for.
        attributes: By name.
        constraints: Conditions on sizes and attributes, e.g. "C % groups == 0".
        tolerance: By dtype name, against the reference.
        nan: NaN policy.
        deterministic: Equal inputs give equal outputs.
        reference: NumPy implementation; None where the reference backend has it.
        shape_rule: Facts of outputs from facts of inputs; None where ``accord.ir`` has it.
        doc: Text for people.
    """

    domain: str
    name: str
    since_version: int
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    tolerance: Mapping[str, Tolerance] = field(default_factory=dict)
    nan: NanPolicy = NanPolicy.PROPAGATE
    deterministic: bool = True
    reference: Callable[..., Any] | None = None
    shape_rule: Callable[..., Any] | None = None
    doc: str = ""

    @property
    def qualified_name(self) -> str:
        """``domain::Name``, or ``Name`` for the ONNX domain."""
        return f"{self.domain}::{self.name}" if self.domain else self.name

    @property
    def min_inputs(self) -> int:
        """Least number of inputs that a node must give."""
        return _least(self.inputs)

    @property
    def max_inputs(self) -> int | None:
        """Greatest number of inputs; None if variadic."""
        return None if any(p.option == "variadic" for p in self.inputs) else len(self.inputs)

    @property
    def min_outputs(self) -> int:
        """Least number of outputs that a node must name."""
        return _least(self.outputs)

    @property
    def max_outputs(self) -> int | None:
        """Greatest number of outputs; None if variadic."""
        return None if any(p.option == "variadic" for p in self.outputs) else len(self.outputs)


def _least(ports: tuple[Parameter, ...]) -> int:
    """Least number of values for ``ports``."""
    needed = 0
    for i, p in enumerate(ports):
        if p.option == "single":
            needed = i + 1
        elif p.option == "variadic":
            needed = i + p.min_arity
    return needed


@dataclass(frozen=True, slots=True)
class Execution:
    """Which memory the operator accepts and needs.

    Attributes:
        layouts: Accepted layouts of tensors; "contiguous" (row-major) or "strided" (any strides).
        alignment: Bytes that data pointers must be aligned to.
        accumulate: dtype of accumulation by storage dtype ("float16" → "float32").
        in_place: Pairs (output, input): the output may take the input's memory.
        views: Pairs (output, input): the output is the input's memory in another shape.
        nullable: Names of inputs for which a null pointer is accepted.
        workspace: Bytes of scratch memory as a function of shapes and attributes; None means none.
        thread_safe: One kernel may run in several threads at once.
        architectures: Devices that it is written for; empty means all.
    """

    layouts: tuple[str, ...] = ("contiguous",)
    alignment: int = 1
    accumulate: Mapping[str, str] = field(default_factory=dict)
    in_place: tuple[tuple[int, int], ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    nullable: tuple[str, ...] = ()
    workspace: Callable[..., int] | None = None
    thread_safe: bool = True
    architectures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How the operator may be fused and put on a stream.

    Attributes:
        fuses: "elementwise", "reduction", "contraction", "movement", or "opaque" (takes no part in fusion).
        epilogue: The kernel applies a given elementwise expression to its result.
        stream: "given" (uses the stream that it is handed) or "host".
        capture_safe: May be recorded in a CUDA graph.
        stateless: Nothing survives from one run to the next.
        deterministic: Equal inputs give equal bits.
        host_sync: Waits for the device.
    """

    fuses: str = "opaque"
    epilogue: bool = False
    stream: str = "given"
    capture_safe: bool = True
    stateless: bool = True
    deterministic: bool = True
    host_sync: bool = False


@dataclass(frozen=True, slots=True)
class Contract:
    """An operator's whole promise.

    Raises:
        ContractError: the parts contradict each other.
    """

    semantic: Semantic
    execution: Execution = field(default_factory=Execution)
    scheduling: Scheduling = field(default_factory=Scheduling)

    def __post_init__(self) -> None:
        s = self.semantic
        name = s.qualified_name

        def check(condition: bool, message: str, **facts: Any) -> None:
            if not condition:
                raise ContractError(message, op=name, **facts)

        check(s.name.isidentifier(), "an operator's name must be an identifier", found=repr(s.name))
        check(s.since_version >= 1, "since_version starts at 1", found=s.since_version)
        for kind, ports in (("input", s.inputs), ("output", s.outputs)):
            names = [p.name for p in ports]
            check(len(set(names)) == len(names), f"two {kind}s have the same name", found=names)
            for i, p in enumerate(ports):
                check(
                    p.option in ("single", "optional", "variadic"),
                    f"unknown option of {kind} '{p.name}'",
                    expected="single, optional or variadic",
                    found=p.option,
                )
                check(
                    p.option != "variadic" or i == len(ports) - 1,
                    f"variadic {kind} '{p.name}' must be the last",
                )
                check(
                    "(" in p.type or p.type in s.types,
                    f"{kind} '{p.name}' has the unknown type '{p.type}'",
                    expected="a type variable of the contract or an ONNX type",
                )
        for out, inp in (*self.execution.in_place, *self.execution.views):
            check(
                0 <= out < len(s.outputs) and 0 <= inp < len(s.inputs),
                "in_place and views name pairs (output, input) of existing parameters",
                found=(out, inp),
            )
        known = {p.name for p in s.inputs}
        for n in self.execution.nullable:
            check(n in known, f"nullable input '{n}' does not exist", expected=sorted(known))
        a = self.execution.alignment
        check(a > 0 and a & (a - 1) == 0, "alignment must be a power of two", found=a)
