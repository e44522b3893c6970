"""Operators that users declare, by the kernels of their contracts."""

from __future__ import annotations

from accord.backends.cpu.declared import DeclaredHostKernel, library_kernel
from accord.backends.cpu.families.table import GENERATORS, TABLE
from accord.backends.declared import arrangement_of, memory_of
from accord.backends.loops.groups import arrange_alone, select_alone
from accord.backends.protocol import Arrangement, Kernel
from accord.backends.view import NodeView
from accord.contract.choose import Choice, kernel_for
from accord.ir.reason import Reason

__all__ = ["arrange_declared", "select_declared", "takes_epilogue"]


def select_declared(view: NodeView) -> Kernel | Reason | None:
    """The kernel, or why there is none; None for an operator that no user declared."""
    choice = kernel_for(view, "cpu", without=("composition",))
    if not isinstance(choice, Choice):
        return choice
    if choice.kernel.kind == "expression":
        return select_alone(view)
    if choice.kernel.kind == "generated":
        return _generated(view, choice)
    if choice.kernel.kind == "library" and memory_of(choice).thread_safe:
        return library_kernel(view, choice)
    return DeclaredHostKernel(view, choice)


def takes_epilogue(view: NodeView) -> Reason | None:
    """None if the kernel of a declared operator computes what follows on its results, or why not."""
    choice = kernel_for(view, "cpu", without=("composition",))
    if not isinstance(choice, Choice):
        return choice or Reason(f"{view.node.op_type} is not declared")
    scheduling = choice.kernel.scheduling or choice.contract.scheduling
    if choice.kernel.kind != "library" or not scheduling.epilogue or not memory_of(choice).thread_safe:
        return Reason(f"kernel '{choice.kernel.name}' declares no epilogue")
    if len(choice.contract.semantic.outputs) > 1:
        return Reason("it has several outputs")
    kernel = library_kernel(view, choice)
    return kernel if isinstance(kernel, Reason) else None


def _generated(view: NodeView, choice: Choice) -> Kernel | Reason:
    """By the class of its code, or by the operator."""
    generator = GENERATORS.get(type(choice.kernel.code))
    if generator is not None:
        return generator(view, choice)
    selector = TABLE.selector(view.node.domain, view.node.op_type)
    return Reason(f"no kernel is generated for {view.node.op_type}") if selector is None else selector(view)


def arrange_declared(view: NodeView) -> Arrangement | None:
    """How the kernel takes its operands; None for an operator that no user declared."""
    choice = kernel_for(view, "cpu", without=("composition",))
    if not isinstance(choice, Choice):
        return None if choice is None else Arrangement()
    if choice.kernel.kind == "expression":
        return arrange_alone(view)
    if choice.kernel.kind == "generated":
        arranger = TABLE.arranger(view.node.domain, view.node.op_type)
        strided = "strided" in memory_of(choice).layouts
        return Arrangement(strided=strided) if arranger is None else arranger(view)
    return arrangement_of(memory_of(choice))
