"""Operators that users declare, by the kernels of their contracts."""

from __future__ import annotations

from dataclasses import replace

from accord.backends.cuda.declared import device_kernel
from accord.backends.cuda.driver import device
from accord.backends.cuda.families.table import TABLE
from accord.backends.declared import arrangement_of, memory_of
from accord.backends.loops.groups import arrange_alone, select_alone
from accord.backends.protocol import Arrangement, Kernel, NativeKernel
from accord.backends.view import NodeView
from accord.contract.choose import Choice, kernels_for
from accord.expr.declared import expression_of
from accord.ir.reason import Reason

__all__ = ["arrange_declared", "select_declared", "takes_epilogue"]


def select_declared(view: NodeView) -> Kernel | Reason | None:
    """The kernel, or why there is none; None for an operator that no user declared.

    What is declared for GPUs comes first; an expression, whatever device it was declared for, does as well.
    """
    choice = _chosen(view)
    if not isinstance(choice, Choice):
        return choice if choice is None or expression_of(view) is None else select_alone(view)
    if choice.kernel.kind == "expression":
        return select_alone(view)
    if choice.kernel.kind == "generated":
        selector = TABLE.selector(view.node.domain, view.node.op_type)
        return Reason(f"no kernel is generated for {view.node.op_type}") if selector is None else selector(view)
    if choice.kernel.kind not in ("triton", "cuda"):
        return Reason(f"kernel '{choice.kernel.name}' of kind {choice.kernel.kind} runs on the host only")
    kernel = device_kernel(view, choice, device().architecture)
    names = _names(view)
    if isinstance(kernel, NativeKernel) and len(names) > 1:
        return replace(kernel, alternatives=names, alternative=choice.kernel.name)
    return kernel


def takes_epilogue(view: NodeView) -> Reason | None:
    """None if the kernel of a declared operator computes what follows on its results, or why not."""
    choice = _chosen(view)
    if not isinstance(choice, Choice):
        return choice or Reason(f"{view.node.op_type} is not declared")
    scheduling = choice.kernel.scheduling or choice.contract.scheduling
    if choice.kernel.kind != "triton" or not scheduling.epilogue:
        return Reason(f"kernel '{choice.kernel.name}' declares no epilogue")
    if len(choice.contract.semantic.outputs) > 1:
        return Reason("it has several outputs")
    kernel = device_kernel(view, choice, device().architecture)
    return kernel if isinstance(kernel, Reason) else None


def arrange_declared(view: NodeView) -> Arrangement | None:
    """How the kernel takes its operands; None for an operator that no user declared."""
    choice = _chosen(view)
    if choice is None:
        return None
    if not isinstance(choice, Choice):
        return Arrangement() if expression_of(view) is None else arrange_alone(view)
    if choice.kernel.kind == "expression":
        return arrange_alone(view)
    if choice.kernel.kind == "generated":
        arranger = TABLE.arranger(view.node.domain, view.node.op_type)
        return Arrangement() if arranger is None else arranger(view)
    return arrangement_of(memory_of(choice))


def _chosen(view: NodeView) -> Choice | Reason | None:
    """The kernel declared for GPUs that is taken: the first that fits, or the one that was chosen for the node."""
    found = kernels_for(view, "cuda", without=("composition",))
    if not isinstance(found, tuple):
        return found
    name = view.choose([c.kernel.name for c in found])
    return next(c for c in found if c.kernel.name == name)


def _names(view: NodeView) -> tuple[str, ...]:
    found = kernels_for(view, "cuda", without=("composition",))
    return tuple(c.kernel.name for c in found) if isinstance(found, tuple) else ()
