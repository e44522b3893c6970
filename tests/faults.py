"""Wrong rules and wrong kernels, put where the compiler finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from accord.backends.cpu import _register
from accord.backends.cpu.families.table import TABLE
from accord.backends.protocol import HostKernel
from accord.ir.patch import Patch, patch_from
from accord.passes import phases as module
from accord.passes.rule import Rule, RuleContext, onnx_ops
from builders import model, node

__all__ = ["Doubled", "Negated", "chain", "install_kernel", "install_rules"]


def chain(*operators: str, size: int = 6) -> onnx.ModelProto:
    """A model of elementwise operators one after the other, on ``x`` of shape [2, size]."""
    names = ["x", *(f"v{k}" for k in range(1, len(operators))), "y"]
    nodes = [node(op, [names[k]], [names[k + 1]], name=f"{op.lower()}_{k}") for k, op in enumerate(operators)]
    return model(nodes, {"x": (np.float32, [2, size])}, ["y"])


class Doubled(Rule):
    """Wrong: rewrites Neg(x) as Neg(x + x)."""

    name = "doubled-neg"
    ops = onnx_ops("Neg")

    def apply(self, node: Any, context: RuleContext) -> Patch | None:
        producer = node.inputs[0].producer()
        if producer is not None and producer.op_type == "Add":
            return None
        b = context.builder()
        doubled = b("Add", node.inputs[0], node.inputs[0])
        return patch_from(b, node, [b("Neg", doubled)], "its input doubled")


class Negated(Rule):
    """Right: rewrites Abs(x) as Max(x, Neg(x))."""

    name = "abs-to-max"
    ops = onnx_ops("Abs")

    def apply(self, node: Any, context: RuleContext) -> Patch | None:
        b = context.builder()
        x = node.inputs[0]
        return patch_from(b, node, [b("Max", x, b("Neg", x))], "as the greater of both signs")


def install_rules(monkeypatch: pytest.MonkeyPatch, *rules: Rule) -> None:
    """Add a phase of ``rules`` after declutter, and leave the later phases out: they would fuse."""
    declutter = next(p for p in module.phases() if p.name == "declutter")

    def phases() -> tuple[module.Phase, ...]:
        return declutter, module.Phase("added", rules)

    monkeypatch.setattr("accord.passes.phases.phases", phases)
    monkeypatch.setattr("accord.runtime.pipeline.phases", phases)


class _Function(HostKernel):
    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return [self._function(*inputs)]


def install_kernel(monkeypatch: pytest.MonkeyPatch, op: str, function: Callable[..., Any]) -> None:
    """Make ``function`` the CPU's kernel for an operator."""
    _register()  # else registering would put the real one back
    monkeypatch.setitem(TABLE.selectors, ("", op), lambda view: _Function(f"added {op}", function))
