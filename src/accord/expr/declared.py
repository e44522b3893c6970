"""Expressions that users declare as kernels of their operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accord.contract.choose import Choice, call_attributes, kernel_for, kernel_of_kind
from accord.errors import ContractError
from accord.expr.lang import Expr, cast
from accord.expr.onnx_ops import lower

if TYPE_CHECKING:
    from accord.contract.contract import Contract, KernelDeclaration
    from accord.ir.infer import Inference

__all__ = ["declared_expression", "expression_of", "lower_node"]


def lower_node(n: Inference, arguments: Sequence[Expr | None], out_dtype: str) -> Expr | None:
    """One output element of a node as an expression; None if it is not elementwise.

    Args:
        n: The node.
        arguments: Elements of its inputs; None for an omitted one.
        out_dtype: Type of the result.
    """
    if n.node.domain == "":
        return lower(n.node.op_type, {name: n.attr(name) for name in n.node.attributes}, arguments, out_dtype)
    choice = expression_of(n)
    if choice is None:
        return None
    return declared_expression(
        choice.contract, choice.kernel, arguments, call_attributes(n, choice.contract), out_dtype
    )


def expression_of(n: Inference) -> Choice | None:
    """The expression that a user's operator declares for a node, where that is what computes it.

    On the CPU it has to be the first kernel that fits. Other devices take what is declared for them for a node that
    stands alone; what is computed together with others is an expression.
    """
    found = kernel_for(n, "cpu") if n.analyzer.device == "cpu" else kernel_of_kind(n, "expression")
    return found if isinstance(found, Choice) and found.kernel.kind == "expression" else None


def declared_expression(
    contract: Contract,
    kernel: KernelDeclaration,
    arguments: Sequence[Expr | None],
    attributes: Mapping[str, Any],
    out_dtype: str,
) -> Expr:
    """What a declared expression makes of its arguments; those of float16 and bfloat16 are given as float32.

    Raises:
        ContractError: it gives no expression.
    """
    wide = [cast(a, "f32") if a is not None and a.dtype in ("f16", "bf16") else a for a in arguments]
    wide += [None] * (len(contract.semantic.inputs) - len(wide))
    op, where = contract.semantic.qualified_name, f"kernel '{kernel.name}'"
    try:
        result = kernel.code(*wide, **attributes)
    except Exception as error:
        raise ContractError(
            f"{where} raises {type(error).__name__}: {error}",
            op=op,
            found=f"elements {', '.join('None' if a is None else a.dtype for a in wide)}",
        ) from error
    if not isinstance(result, Expr):
        raise ContractError(f"{where} gives no expression", op=op, expected="an Expr", found=type(result).__name__)
    return cast(result, out_dtype)
