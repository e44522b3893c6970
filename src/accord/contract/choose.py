"""Which of an operator's kernels computes a node: the first that is declared for its device, dtypes and sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from accord.contract.dtypes import short_name
from accord.contract.registry import user_contract
from accord.contract.shapes import Bound, bind
from accord.contract.sizes import evaluate_condition, names_in
from accord.ir.reason import Reason
from accord.record import record

if TYPE_CHECKING:
    from accord.contract.contract import Contract, KernelDeclaration, Semantic, Size
    from accord.ir.infer import Inference

__all__ = [
    "Choice",
    "attributes_of",
    "call_attributes",
    "fitting",
    "kernel_for",
    "kernel_of_kind",
    "kernels_for",
    "refusal",
]


@record
class Choice:
    """A kernel that was chosen for a node.

    Attributes:
        contract: Of the operator.
        kernel: The kernel.
        bound: Sizes and types of the call.
    """

    contract: Contract
    kernel: KernelDeclaration
    bound: Bound


def fitting(
    contract: Contract, bound: Bound, device: str, without: Collection[str] = (), known: Collection[str] | None = None
) -> tuple[KernelDeclaration, ...] | Reason:
    """The kernels for a call, the preferred one first, or why there is none.

    Args:
        contract: Of the operator.
        bound: Sizes and types of the call.
        device: Where it runs.
        without: Kinds that are left out.
        known: Names of the inputs whose content is known; None for all.
    """
    why: list[str] = []
    found: list[KernelDeclaration] = []
    for k in contract.kernels:
        if k.device != device or k.kind in without:
            continue
        unknown = [n for n in k.constant if known is not None and n not in known]
        refused = Reason(f"input '{unknown[0]}' is no constant") if unknown else refusal(contract, k, bound)
        if refused is None:
            found.append(k)
        else:
            why.append(f"kernel '{k.name}': {refused}")
    return tuple(found) or Reason("; ".join(why) or f"no kernel for {device} is declared")


def refusal(contract: Contract, kernel: KernelDeclaration, bound: Bound) -> Reason | None:
    """Why a kernel is not for a call, or None."""
    if kernel.kind in _WRITES:
        size = _told_by_data(contract.semantic)
        if size is not None:
            return Reason(f"it writes into memory of a given size, and '{size}' depends on data")
    for variable, allowed in kernel.types.items():
        found = bound.types.get(variable)
        if found is None:
            if any(p.type == variable and p.option == "single" for p in contract.semantic.inputs):
                return Reason(f"the dtype of {variable} is not known")
        elif found not in allowed:
            return Reason(f"it is not for {short_name(found)}")
    missing = bound.absent - set((kernel.execution or contract.execution).nullable)
    if missing:
        return Reason(f"it needs input '{min(missing)}', which is not given")
    for condition in kernel.constraints:
        holds = evaluate_condition(condition, bound.sizes)
        if holds is None:
            return Reason(f"whether '{condition}' holds is not known when the model is loaded")
        if not holds:
            return Reason(f"'{condition}' does not hold")
    return None


#: Kinds of kernels that do not make their outputs.
_WRITES = frozenset({"library", "tvm_ffi", "triton", "cuda"})


def _told_by_data(s: Semantic) -> str | None:
    """A size of an output that follows from no size of an input and no attribute."""
    known = {n for p in s.inputs for size in p.sizes or () for n in _names(size)} | s.attributes.keys()
    unknown = [n for p in s.outputs for size in p.sizes or () for n in _names(size) if n not in known]
    return unknown[0] if unknown else None


def _names(size: Size) -> set[str]:
    return names_in(size) if isinstance(size, str) and size != "..." else set()


def kernels_for(n: Inference, device: str, without: Collection[str] = ()) -> tuple[Choice, ...] | Reason | None:
    """The kernels that a user's operator declares for a node, the preferred one first.

    None for an operator that no user declared.
    """
    contract = user_contract(n.node.domain, n.node.op_type, n.analyzer.opsets.get(n.node.domain, 1))
    if contract is None:
        return None
    bound = bind(contract.semantic, n)
    inputs = zip(contract.semantic.inputs, range(len(n.node.inputs)), strict=False)
    kernels = fitting(contract, bound, device, without, {p.name for p, i in inputs if n.tensor(i).is_const})
    return kernels if isinstance(kernels, Reason) else tuple(Choice(contract, k, bound) for k in kernels)


def kernel_for(n: Inference, device: str, without: Collection[str] = ()) -> Choice | Reason | None:
    """The first of :func:`kernels_for`."""
    found = kernels_for(n, device, without)
    return found[0] if isinstance(found, tuple) else found


def kernel_of_kind(n: Inference, kind: str) -> Choice | Reason | None:
    """As :func:`kernel_for`, the first kernel of a kind, whatever device it was declared for.

    Expressions and compositions are no device's.
    """
    contract = user_contract(n.node.domain, n.node.op_type, n.analyzer.opsets.get(n.node.domain, 1))
    if contract is None:
        return None
    bound = bind(contract.semantic, n)
    why: list[str] = []
    for k in contract.kernels:
        if k.kind == kind:
            refused = refusal(contract, k, bound)
            if refused is None:
                return Choice(contract, k, bound)
            why.append(f"kernel '{k.name}': {refused}")
    return Reason("; ".join(why) or f"no {kind} is declared")


def call_attributes(n: Inference, contract: Contract) -> dict[str, Any]:
    """All attributes of a node by name: what it gives, and defaults. Strings are ``str``."""
    given = {name: n.attr(name) for name in n.node.attributes}
    return attributes_of(contract, given)


def attributes_of(contract: Contract, given: Mapping[str, Any]) -> dict[str, Any]:
    """All attributes by name: what a node gives, and defaults. Strings are ``str``."""
    values = {n: a.default for n, a in contract.semantic.attributes.items() if a.default is not None}
    values |= {n: v for n, v in given.items() if n in contract.semantic.attributes}
    return {n: v.decode() if isinstance(v, bytes) else v for n, v in values.items()}
