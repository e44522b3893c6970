"""ONNX's own operators, checked as a user's are: the kernels of the CPU backend against the reference backend.

Their schemas name no sizes, so all inputs get the same shape and what is optional is left out; where that means nothing
to an operator, its reference refuses the case, and a case has to be given.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from accord.contract.contract import Contract, KernelDeclaration
from accord.contract.registry import BUILT_IN, contract_for
from accord.workbench.graphs import OPSET

__all__ = ["builtin_contract", "is_builtin"]

#: Of the kernel that stands for the backend.
_KERNEL = KernelDeclaration("cpu", "composition", "cpu", None)


def is_builtin(domain: str) -> bool:
    """Whether operators of a domain are ONNX's (or come with the runtime), not a user's."""
    return domain in BUILT_IN


def builtin_contract(domain: str, name: str) -> Contract:
    """The contract, with the outputs that a node has to have, the reference backend and the CPU's kernel.

    Raises:
        UnknownOperatorError: there is no such operator.
    """
    version = OPSET if not domain else 1
    contract = contract_for(domain, name, version)
    s = contract.semantic
    semantic = dataclasses.replace(
        s,
        since_version=version,
        outputs=s.outputs[: max(1, s.min_outputs)],
        reference=functools.partial(_reference, s.domain, s.name, version),
    )
    memory = dataclasses.replace(contract.execution, in_place=(), views=(), nullable=())
    return Contract(semantic, memory, contract.scheduling, (_KERNEL,))


def _reference(domain: str, name: str, version: int, *inputs: Any, **attributes: Any) -> Any:
    from onnx import helper

    from accord.backends.reference.kernels import ReferenceKernel

    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    proto = helper.make_node(name, names, ["y"], domain=domain, **attributes)
    return ReferenceKernel(proto, version).run([None if x is None else np.asarray(x) for x in inputs])
