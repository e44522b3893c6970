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
from typing import Any, TypeAlias

from accord.errors import ContractError

__all__ = [
    "Attribute",
    "Contract",
    "Execution",
    "KernelDeclaration",
    "NanPolicy",
    "Parameter",
    "Scheduling",
    "Semantic",
    "Size",
    "Tolerance",
    "Values",
]

_EMPTY: Mapping[str, Any] = MappingProxyType({})


#: A size in a declaration: a number, or an expression of names and integer attributes. "..." as the first one stands
#: for any leading axes.
Size: TypeAlias = "int | str"


@dataclass(frozen=True, slots=True)
class Values:
    """Which values of an input mean something; tests draw from these.

    Attributes:
        low: Least value, or an expression of sizes; None for none.
        high: Greatest value, itself included; for integers "K - 1" is the last index of an axis of K.
        increasing: Along the last axis each value is at least the one before (starts of rows).
        spread: How far apart values of a float input usually are; 1 for a standard normal distribution.
    """

    low: float | str | None = None
    high: float | str | None = None
    increasing: bool = False
    spread: float = 1.0


@dataclass(frozen=True, slots=True)
class Parameter:
    """One formal input or output.

    Attributes:
        name: As in the schema.
        type: A type variable of the contract ("T"), or an ONNX type such as "tensor(int64)".
        option: "single", "optional", or "variadic" (takes all the rest).
        homogeneous: For a variadic parameter: all of one type.
        min_arity: For a variadic parameter: the least number.
        sizes: Sizes of its axes; None where the declaration does not say.
        values: Of an input: which values mean something.
    """

    name: str
    type: str
    option: str = "single"
    homogeneous: bool = True
    min_arity: int = 1
    sizes: tuple[Size, ...] | None = None
    values: Values = Values()


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute.

    Attributes:
        name: As in the schema.
        kind: ONNX's: "INT", "FLOATS", "STRING", "GRAPH" ...
        required: A node has to give it.
        default: What it is where a node does not.
        choices: The values that it may have; empty: any of its kind.
    """

    name: str
    kind: str
    required: bool = False
    default: Any = None
    choices: tuple[Any, ...] = ()


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
        until_version: Last version with it; None: all later ones.
        inputs: Formal inputs in order.
        outputs: Formal outputs in order.
        types: Type variable → the ONNX types that it may stand for.
        attributes: By name.
        constraints: Conditions on sizes and attributes, e.g. "C % groups == 0".
        tolerance: By dtype name, against the reference.
        nan: NaN policy.
        deterministic: Equal inputs give equal outputs.
        batch: Names of sizes along which slices are independent: a slice of the inputs gives that slice of the outputs,
            bit for bit.
        reference: NumPy implementation; None where the reference backend has it.
        examples: Makes inputs where :class:`Values` cannot say what they have to be (the parts of a sparse matrix):
            ``examples(rng, sizes, attributes)`` returns arrays by name; what it leaves out is drawn.
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
    batch: tuple[str, ...] = ()
    until_version: int | None = None
    reference: Callable[..., Any] | None = None
    examples: Callable[..., Mapping[str, Any]] | None = None
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
        layouts: Accepted layouts of tensors: "contiguous" (row-major), or "strided" (inputs with any strides, also of 0
            and below; outputs with gaps, their axes in any order). What is not accepted has to be refused.
        alignment: Bytes that data pointers must be aligned to.
        accumulate: dtype of accumulation by storage dtype ("float16" → "float32").
        in_place: Pairs (output, input): the output may take the input's memory.
        views: Pairs (output, input): the output is the input's memory in another shape.
        state: Pairs (output, input): the output is the next value of the state that the input is.
        nullable: Names of inputs for which a null pointer is accepted.
        workspace: Bytes of scratch memory, as an expression of sizes and integer attributes, "4 * N * C"; what it holds
            when a kernel starts is not defined.
        thread_safe: One kernel may run in several threads at once.
        architectures: Devices that it is written for ("sm_90"); empty means all.
    """

    layouts: tuple[str, ...] = ("contiguous",)
    alignment: int = 1
    accumulate: Mapping[str, str] = field(default_factory=dict)
    in_place: tuple[tuple[int, int], ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    state: tuple[tuple[int, int], ...] = ()
    nullable: tuple[str, ...] = ()
    workspace: str = ""
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


#: How a kernel is written.
KINDS = ("expression", "composition", "generated", "python", "library", "tvm_ffi", "triton", "cuda")


@dataclass(frozen=True, slots=True)
class KernelDeclaration:
    """One way to compute an operator.

    Attributes:
        name: For people, unique in the contract.
        kind: How it is written; what ``code`` then is stands in :mod:`accord.kernels`.

            ============  ============================================================================================
            expression    a function of :class:`accord.expr.lang.Expr`, one element of each input → one of the output
            composition   a function ``f(b, *inputs, **attributes)`` that builds ONNX nodes with
                          :class:`accord.ir.build.Builder`
            generated     what the backend of the device generates for this operator by a selector of its own; ``code``
                          is what that selector reads, or None
            python        a function of NumPy arrays, which returns the outputs
            library       a C function in a shared library
            tvm_ffi       a packed function, of DLPack tensors
            triton        a Triton kernel and how it is launched
            cuda          CUDA C++ and how it is launched
            ============  ============================================================================================
        device: "cpu" or "cuda".
        code: The code.
        types: Type variable → the ONNX types that it is for; a variable that is missing: all those of the contract.
        constraints: Conditions beyond the contract's under which it is used, e.g. "D % 16 == 0".
        execution: Its own memory clauses, where they are not the contract's.
        scheduling: Its own scheduling clauses, where they are not the contract's.
        constant: Names of inputs whose content must be known when the model is loaded.
    """

    name: str
    kind: str
    device: str
    code: Any
    types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    execution: Execution | None = None
    scheduling: Scheduling | None = None
    constant: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contract:
    """An operator's whole promise.

    Attributes:
        semantic: What is computed.
        execution: Which memory it accepts and needs.
        scheduling: How it may be fused and put on a stream.
        kernels: What computes it, the preferred one first.

    Raises:
        ContractError: the parts contradict each other.
    """

    semantic: Semantic
    execution: Execution = field(default_factory=Execution)
    scheduling: Scheduling = field(default_factory=Scheduling)
    kernels: tuple[KernelDeclaration, ...] = ()

    def __post_init__(self) -> None:
        from accord.contract.validate import validate

        validate(self)

    def kernel(self, name: str) -> KernelDeclaration:
        """The kernel called ``name``.

        Raises:
            ContractError: there is none.
        """
        for k in self.kernels:
            if k.name == name:
                return k
        raise ContractError(
            f"there is no kernel '{name}'",
            op=self.semantic.qualified_name,
            expected=", ".join(k.name for k in self.kernels) or "no kernel is declared",
        )
