"""Operators written as what they are made of: a user's by its composition, ONNX's for a device that lacks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from accord.contract.choose import Choice, call_attributes, kernel_for, kernel_of_kind
from accord.errors import ContractError
from accord.ir.build import Builder
from accord.ir.expand import ANY_VERSION, equivalent_of, expansion_for
from accord.ir.infer import Inference, op_name
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext

__all__ = ["ComposeOperators"]

_STANDARD = frozenset({"", "com.microsoft"})


class ComposeOperators(Rule):
    """A call of an operator → other operators, which are then optimised like any others.

    A user's operator becomes its composition where that is the kernel declared first for the device, or where the
    device has no kernel for it at all; what only the host can compute has none. An operator of ONNX becomes its
    equivalent where the device has no kernel, or what it always becomes in a model: a composition may hold it as well.
    """

    name: ClassVar[str] = "compose-operators"
    level: ClassVar[int] = 1

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the composition."""
        n = Inference(node, context.analyzer)
        choice = kernel_for(n, context.device)
        if choice is None:
            return _equivalent(node, n, context) if node.domain in _STANDARD else None
        if not isinstance(choice, Choice) or choice.kernel.kind == "generated":
            if context.runs(node) is None:
                return None
            choice = kernel_of_kind(n, "composition")
        if not isinstance(choice, Choice) or choice.kernel.kind != "composition":
            return choice if isinstance(choice, Reason) else None
        b = context.builder()
        results = _composed(b, node, n, choice)
        note = f"{choice.contract.semantic.qualified_name} by its kernel '{choice.kernel.name}'"
        return patch_from(b, node, results, note)


def _equivalent(node: ir.Node, n: Inference, context: RuleContext) -> Patch | Reason | None:
    equivalent = equivalent_of(node.domain, node.op_type) or expansion_for(node.domain, node.op_type, ANY_VERSION)
    if equivalent is None:
        return None
    refused = context.runs(node)
    if refused is None:
        return None
    b = context.builder()
    results = equivalent(b, n)
    if results is None:
        return Reason(f"the device has no kernel ({refused}), and sizes for what it is made of are not known")
    own = [made for made in b.nodes if made.domain not in _STANDARD]  # whose composition may be what was asked for
    lacking = next((why for made in own if (why := context.runs(made)) is not None), None)
    if lacking is not None:
        return Reason(f"the device has no kernel ({refused}), nor one for its equivalent ({lacking})")
    return patch_from(b, node, results, f"{op_name(node)}: {refused}")


def _composed(b: Builder, node: ir.Node, n: Inference, choice: Choice) -> Sequence[ir.Value]:
    contract, kernel = choice.contract, choice.kernel
    inputs = [*node.inputs, *([None] * (len(contract.semantic.inputs) - len(node.inputs)))]
    try:
        made: Any = kernel.code(b, *inputs, **call_attributes(n, contract))
    except Exception as error:
        raise ContractError(
            f"kernel '{kernel.name}' cannot be composed: {type(error).__name__}: {error}",
            op=contract.semantic.qualified_name,
            node=label(node),
        ) from error
    results: Sequence[Any] = made if isinstance(made, (tuple, list)) else (made,)
    if len(results) < len(node.outputs) or not all(isinstance(r, ir.Value) for r in results):
        raise ContractError(
            f"kernel '{kernel.name}' gives other results than the operator has",
            op=contract.semantic.qualified_name,
            node=label(node),
            expected=f"{len(contract.semantic.outputs)} values made with the builder",
            found=", ".join(type(r).__name__ for r in results),
        )
    return results
