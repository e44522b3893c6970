"""What kernels that users declare have in common on all devices: the tensors, sizes and memory of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accord.backends.protocol import Arrangement
from accord.backends.view import NodeView
from accord.contract.choose import Choice
from accord.contract.contract import Contract, Execution, Parameter
from accord.contract.shapes import output_facts
from accord.contract.sizes import evaluate_size
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape
from accord.ir.facts import TensorFact
from accord.ir.reason import Reason
from accord.ir.strides import Access, contiguous
from accord.record import record

__all__ = [
    "CallTensor",
    "arrangement_of",
    "call_sizes",
    "call_tensors",
    "is_wanted",
    "memory_of",
    "workspace_of",
]


def memory_of(choice: Choice) -> Execution:
    """The memory clauses of the kernel that was chosen."""
    return choice.kernel.execution or choice.contract.execution


def arrangement_of(memory: Execution) -> Arrangement:
    """How such a kernel takes its operands: what has to be aligned begins where a value does."""
    return Arrangement(strided="strided" in memory.layouts and memory.alignment == 1)


@record
class CallTensor:
    """An input or output of a call.

    Attributes:
        parameter: Its declaration.
        shape: Its sizes; () where it is absent.
        dtype: NumPy's name of its elements; "" where it is absent.
        itemsize: Bytes of an element; 0 where it is absent.
        access: Where its elements lie; None where it is absent.
        operand: Its number among the kernel's operands; None where it is absent, or an output that nobody asks for.
    """

    parameter: Parameter
    shape: Shape
    dtype: str
    itemsize: int
    access: Access | None
    operand: int | None

    @property
    def strides(self) -> tuple[DimLike, ...]:
        """As they are handed over: zeros where it is absent."""
        return (0,) * len(self.parameter.sizes or ()) if self.access is None else self.access.strides


def is_wanted(view: NodeView, output: int) -> bool:
    """Whether a node asks for an output."""
    return output < len(view.node.outputs) and bool(view.node.outputs[output].name)


def call_tensors(
    view: NodeView, contract: Contract, reads: Sequence[int], first: int
) -> dict[str, CallTensor] | Reason:
    """Inputs and outputs by name; the first output is the operand ``first``."""
    s = contract.semantic
    found: dict[str, CallTensor] = {}
    for i, p in enumerate(s.inputs):
        if i not in reads:
            found[p.name] = CallTensor(p, (), "", 0, None, None)
            continue
        made = _tensor(p, view.tensor(i), reads.index(i))
        if isinstance(made, Reason):
            return made
        found[p.name] = CallTensor(p, made.shape, made.dtype, made.itemsize, view.access(i), made.operand)
    operand = first
    for j, p in enumerate(s.outputs):
        wanted = is_wanted(view, j)
        fact = view.output(j) if wanted else output_facts(contract, view)[j]
        assert isinstance(fact, TensorFact)
        made = _tensor(p, fact, operand if wanted else None)
        if isinstance(made, Reason):
            return made
        access = view.output_access(j) if wanted else Access(contiguous(made.shape))
        found[p.name] = CallTensor(p, made.shape, made.dtype, made.itemsize, access, made.operand)
        operand += wanted
    return found


def _tensor(p: Parameter, fact: TensorFact, operand: int | None) -> CallTensor | Reason:
    if fact.shape is None or fact.dtype is None:
        return Reason(f"the {'rank' if fact.shape is None else 'dtype'} of '{p.name}' is not known")
    return CallTensor(p, fact.shape, fact.dtype.numpy().name, int(fact.dtype.itemsize), None, operand)


def call_sizes(choice: Choice, tensors: Mapping[str, CallTensor]) -> dict[str, DimLike]:
    """Sizes by name, as far as the choice of the kernel or a shape tells them."""
    sizes: dict[str, DimLike] = dict(choice.bound.sizes)
    for t in tensors.values():
        named = t.parameter.sizes or ()
        for size, n in zip(named, t.shape, strict=False) if t.access is not None and "..." not in named else ():
            if isinstance(size, str) and size.isidentifier():
                sizes.setdefault(size, n)
    return sizes


def workspace_of(memory: Execution, sizes: Mapping[str, DimLike]) -> DimLike | Reason:
    """Bytes of scratch memory that the kernel is promised."""
    if not memory.workspace:
        return 0
    value = evaluate_size(memory.workspace, sizes)
    return Reason(f"the workspace '{memory.workspace}' has no value") if value is None else D.maximum(value, 0)
