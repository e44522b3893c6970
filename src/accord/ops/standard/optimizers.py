"""One step of the optimisers of ai.onnx.preview.training, tensor by tensor.

Inputs are the learning rate, the number of steps so far, then tensors grouped by kind (values, gradients, state).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.expand import expands, required
from accord.ir.infer import Inference
from accord.ops.microsoft.common import Outputs, cast

__all__ = ["adagrad", "adam", "momentum"]

DOMAIN = "ai.onnx.preview.training"


class _Step:
    """What a step is made of: arithmetic on tensors and numbers of one dtype."""

    def __init__(self, b: Builder, n: Inference, like: ir.Value, dtype: ir.DataType) -> None:
        self.b = b
        self.n = n
        self.like = like
        self.rate = self._scalar(required(n, 0), dtype)
        self.count = self._scalar(required(n, 1), dtype)

    def _scalar(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        single = cast(self.b, x, dtype)
        return single if self.b.fact(x).rank == 0 else self.b("Reshape", single, self.b.ints())

    def number(self, value: float | ir.Value) -> ir.Value:
        """A value of the step's dtype."""
        return value if isinstance(value, ir.Value) else self.b.scalar(value, self.like)

    def attr(self, name: str, default: float) -> float:
        """An attribute of the operator."""
        return float(self.n.attr(name, default))

    def __call__(self, op: str, *args: float | ir.Value) -> ir.Value:
        return self.b(op, *(self.number(a) for a in args))

    def regular(self, x: ir.Value, gradient: ir.Value) -> ir.Value:
        """The gradient with that of the regularisation of the values' norm."""
        factor = self.attr("norm_coefficient", 0.0)
        return self("Add", gradient, self("Mul", x, factor)) if factor else gradient

    def mixed(self, weight: float, old: ir.Value, new: ir.Value) -> ir.Value:
        """``weight * old + (1 - weight) * new``."""
        return self("Add", self("Mul", old, weight), self("Mul", new, 1 - weight))


_Rule = Callable[[_Step, Sequence[ir.Value]], Sequence[ir.Value]]


def _each(b: Builder, n: Inference, kinds: int, rule: _Rule) -> Outputs:
    """Apply ``rule`` to each tensor's inputs; outputs are grouped by kind again."""
    count = len(n.node.inputs) - 2
    if count % kinds or any(v is None for v in n.node.inputs):
        return None
    tensors = count // kinds
    results: list[Sequence[ir.Value]] = []
    for t in range(tensors):
        own = [required(n, 2 + kind * tensors + t) for kind in range(kinds)]
        dtype = b.fact(own[0]).dtype
        if dtype is None:
            return None
        results.append(rule(_Step(b, n, own[0], dtype), own))
    return [results[t][kind] for kind in range(kinds - 1) for t in range(tensors)]


@expands("Adagrad", domain=DOMAIN)
def adagrad(b: Builder, n: Inference) -> Outputs:
    """Duchi et al., "Adaptive Subgradient Methods" (2011)."""

    def rule(s: _Step, own: Sequence[ir.Value]) -> Sequence[ir.Value]:
        x, gradient, squares = own
        regular = s.regular(x, gradient)
        total = s("Add", squares, s("Mul", regular, regular))
        rate = s("Div", s.rate, s("Add", s("Mul", s.count, s.attr("decay_factor", 0.0)), 1.0))
        divisor = s("Add", s("Sqrt", total), s.attr("epsilon", 1e-6))
        return s("Sub", x, s("Div", s("Mul", rate, regular), divisor)), total

    return _each(b, n, 3, rule)


@expands("Adam", domain=DOMAIN)
def adam(b: Builder, n: Inference) -> Outputs:
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014)."""

    def rule(s: _Step, own: Sequence[ir.Value]) -> Sequence[ir.Value]:
        x, gradient, mean, squares = own
        alpha, beta = s.attr("alpha", 0.9), s.attr("beta", 0.999)
        regular = s.regular(x, gradient)
        new_mean = s.mixed(alpha, mean, regular)
        new_squares = s.mixed(beta, squares, s("Mul", regular, regular))
        unbiased = s("Div", s("Sqrt", s("Sub", 1.0, s("Pow", beta, s.count))), s("Sub", 1.0, s("Pow", alpha, s.count)))
        started = s("Greater", s.count, 0.0)
        rate = s("Mul", s.rate, s.b("Where", started, unbiased, s.number(1.0)))
        divisor = s("Add", s("Sqrt", new_squares), s.attr("epsilon", 1e-6))
        moved = s("Sub", x, s("Div", s("Mul", rate, new_mean), divisor))
        post = s.attr("norm_coefficient_post", 0.0)
        return (s("Mul", moved, 1 - post) if post else moved), new_mean, new_squares

    return _each(b, n, 4, rule)


@expands("Momentum", domain=DOMAIN)
def momentum(b: Builder, n: Inference) -> Outputs:
    """Gradient descent with momentum, plain or Nesterov's."""
    mode = n.attr("mode")
    if mode not in ("standard", "nesterov"):
        return None

    def rule(s: _Step, own: Sequence[ir.Value]) -> Sequence[ir.Value]:
        x, gradient, speed = own
        alpha = s.attr("alpha", 0.0)
        regular = s.regular(x, gradient)
        started = s("Greater", s.count, 0.0)
        weight = s.b("Where", started, s.number(s.attr("beta", 0.0)), s.number(1.0))
        new = s("Add", s("Mul", speed, alpha), s("Mul", weight, regular))
        direction = s("Add", regular, s("Mul", new, alpha)) if mode == "nesterov" else new
        return s("Sub", x, s("Mul", s.rate, direction)), new

    return _each(b, n, 3, rule)
