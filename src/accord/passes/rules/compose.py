"""Users' operators that are declared as compositions, written as what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from accord.contract.choose import Choice, call_attributes, kernel_for
from accord.errors import ContractError
from accord.ir.infer import Inference
from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.manager import label
from accord.passes.rule import Rule, RuleContext

__all__ = ["ComposeOperators"]


class ComposeOperators(Rule):
    """A call of a user's operator → the ONNX operators of its kernel, which are then optimised like any others."""

    name: ClassVar[str] = "compose-operators"
    level: ClassVar[int] = 1

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the composition."""
        if node.domain in ("", "com.microsoft"):
            return None
        n = Inference(node, context.analyzer)
        choice = kernel_for(n, "cpu")
        if not isinstance(choice, Choice) or choice.kernel.kind != "composition":
            return choice if isinstance(choice, Reason) else None
        b = context.builder()
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
        return patch_from(b, node, results, f"{contract.semantic.qualified_name} by its kernel '{kernel.name}'")
