"""Which of an operator's kernels computes a node: the first that is declared for its device, dtypes and sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from accord.contract.dtypes import short_name
from accord.contract.registry import user_contract
from accord.contract.shapes import Bound, bind
from accord.contract.sizes import evaluate_condition
from accord.ir.reason import Reason
from accord.record import record

if TYPE_CHECKING:
    from accord.contract.contract import Contract, KernelDeclaration
    from accord.ir.infer import Inference

__all__ = ["Choice", "attributes_of", "call_attributes", "choose", "composition_for", "kernel_for", "refusal"]


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


def choose(contract: Contract, bound: Bound, device: str, without: Collection[str] = ()) -> KernelDeclaration | Reason:
    """The kernel for a call, or why there is none.

    Args:
        contract: Of the operator.
        bound: Sizes and types of the call.
        device: Where it runs.
        without: Kinds that are left out.
    """
    why: list[str] = []
    for k in contract.kernels:
        if k.device != device or k.kind in without:
            continue
        refused = refusal(contract, k, bound)
        if refused is None:
            return k
        why.append(f"kernel '{k.name}': {refused}")
    return Reason("; ".join(why) or f"no kernel for {device} is declared")


def refusal(contract: Contract, kernel: KernelDeclaration, bound: Bound) -> Reason | None:
    """Why a kernel is not for a call, or None."""
    for variable, allowed in kernel.types.items():
        found = bound.types.get(variable)
        if found is None:
            if any(p.type == variable and p.option == "single" for p in contract.semantic.inputs):
                return Reason(f"the dtype of {variable} is not known")
        elif found not in allowed:
            return Reason(f"it is not for {short_name(found)}")
    for condition in kernel.constraints:
        holds = evaluate_condition(condition, bound.sizes)
        if holds is None:
            return Reason(f"whether '{condition}' holds is not known when the model is loaded")
        if not holds:
            return Reason(f"'{condition}' does not hold")
    return None


def kernel_for(n: Inference, device: str, without: Collection[str] = ()) -> Choice | Reason | None:
    """The kernel that a user's operator declares for a node; None for an operator that no user declared."""
    contract = user_contract(n.node.domain, n.node.op_type, n.analyzer.opsets.get(n.node.domain, 1))
    if contract is None:
        return None
    bound = bind(contract.semantic, n)
    kernel = choose(contract, bound, device, without)
    return kernel if isinstance(kernel, Reason) else Choice(contract, kernel, bound)


def composition_for(n: Inference) -> Choice | Reason | None:
    """The first composition that fits a node, whatever device it was declared for; as :func:`kernel_for` otherwise."""
    contract = user_contract(n.node.domain, n.node.op_type, n.analyzer.opsets.get(n.node.domain, 1))
    if contract is None:
        return None
    bound = bind(contract.semantic, n)
    why: list[str] = []
    for k in contract.kernels:
        if k.kind == "composition":
            refused = refusal(contract, k, bound)
            if refused is None:
                return Choice(contract, k, bound)
            why.append(f"kernel '{k.name}': {refused}")
    return Reason("; ".join(why) or "no composition is declared")


def call_attributes(n: Inference, contract: Contract) -> dict[str, Any]:
    """All attributes of a node by name: what it gives, and defaults. Strings are ``str``."""
    given = {name: n.attr(name) for name in n.node.attributes}
    return attributes_of(contract, given)


def attributes_of(contract: Contract, given: Mapping[str, Any]) -> dict[str, Any]:
    """All attributes by name: what a node gives, and defaults. Strings are ``str``."""
    values = {n: a.default for n, a in contract.semantic.attributes.items() if a.default is not None}
    values |= {n: v for n, v in given.items() if n in contract.semantic.attributes}
    return {n: v.decode() if isinstance(v, bytes) else v for n, v in values.items()}
