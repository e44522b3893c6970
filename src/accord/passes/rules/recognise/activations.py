"""Activations, recognised as functions of one number (see :mod:`.scalar`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import onnx_ir as ir

from accord.ir.patch import Patch, patch_from
from accord.ir.reason import Reason
from accord.passes.rule import Rule, RuleContext, onnx_ops
from accord.passes.rules.recognise.region import allows, regions, same_shape, tolerance
from accord.passes.rules.recognise.scalar import CURVED, THROUGH, Difference, Sampled, difference, sample

__all__ = ["MEANINGS", "STEPS", "Meaning", "RecogniseActivation"]

#: Reads the operator's attributes off the sampled values; None if no attributes can fit.
Fit: TypeAlias = Callable[[Sampled], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Meaning:
    """An activation.

    Attributes:
        op: Operator of the ONNX domain.
        needs: Operators of which one must occur in any spelling.
        fits: Ways to read its attributes, one for each form.
    """

    op: str
    needs: frozenset[str]
    fits: tuple[Fit, ...]


def _fixed(**attributes: Any) -> Fit:
    return lambda s: attributes


def _leaky(s: Sampled) -> Mapping[str, Any] | None:
    alpha = -float(s.at(-1.0))
    return None if alpha in (0.0, 1.0) else {"alpha": alpha}


def _saturating(s: Sampled) -> Mapping[str, Any] | None:
    alpha = -float(s.at(-600.0))
    return {"alpha": alpha} if alpha > 0 else None


def _scaled_saturating(s: Sampled) -> Mapping[str, Any] | None:
    gamma = float(s.at(1.0))
    return {"gamma": gamma, "alpha": -float(s.at(-600.0)) / gamma} if gamma > 0 else None


def _hard(s: Sampled) -> Mapping[str, Any] | None:
    beta = float(s.at(0.0))
    alpha = (float(s.at(1e-3)) - beta) / 1e-3
    return {"alpha": alpha, "beta": beta} if 0 < beta < 1 and alpha != 0 else None


def _gated(s: Sampled) -> Mapping[str, Any] | None:
    gate = float(s.at(1.0))  # sigmoid(alpha)
    if not 0 < gate < 1:
        return None
    alpha = -math.log(1 / gate - 1)
    return {"alpha": 1.0 if abs(alpha - 1) < 1e-7 else alpha}


#: Operators that bend a function at a point.
STEPS = frozenset({"Where", "Min", "Max", "Relu", "Clip", "Abs", "Sign", "Greater", "Less"}) | {
    "GreaterOrEqual",
    "LessOrEqual",
}
_EXPONENTIALS = frozenset({"Exp", "Sigmoid", "Tanh", "Softplus"})

#: In order: the first that fits is taken.
MEANINGS = (
    Meaning("Relu", STEPS - {"Relu"} | {"LeakyRelu"}, (_fixed(),)),
    Meaning("LeakyRelu", STEPS, (_leaky,)),
    Meaning("Sigmoid", frozenset({"Exp", "Tanh"}), (_fixed(),)),
    Meaning("Tanh", frozenset({"Exp", "Sigmoid"}), (_fixed(),)),
    Meaning("Elu", frozenset({"Exp", "Elu"}), (_saturating,)),
    Meaning("Celu", frozenset({"Exp", "Elu"}), (_saturating,)),
    Meaning("Selu", frozenset({"Exp", "Elu"}), (_scaled_saturating,)),
    Meaning("Softplus", frozenset({"Exp", "Log", "Softplus"}), (_fixed(),)),
    Meaning("Softsign", frozenset({"Abs"}), (_fixed(),)),
    Meaning("HardSigmoid", STEPS, (_hard,)),
    Meaning("HardSwish", STEPS | {"HardSigmoid"}, (_fixed(),)),
    Meaning("Swish", _EXPONENTIALS | {"Swish"}, (_gated,)),
    Meaning("Mish", _EXPONENTIALS, (_fixed(),)),
    Meaning(
        "Gelu",
        _EXPONENTIALS | {"Erf", "Gelu"},
        (_fixed(), _fixed(approximate="tanh")),
    ),
)

_ROOTS = ("Mul", "Div", "Add", "Sub", "Where", "Max", "Min", "Clip", "Relu", "Log", "Reciprocal", "Sum", "Cast")
#: So much may a function differ from an activation, against 1 + |x|, to be named as one that was nearly it.
_NEAR = 0.05


class RecogniseActivation(Rule):
    """A function of one number in any spelling → the operator that computes it."""

    name: ClassVar[str] = "recognise-activation"
    level: ClassVar[int] = 2
    ops: ClassVar[frozenset[tuple[str, str]]] = onnx_ops(*_ROOTS)

    def apply(self, node: ir.Node, context: RuleContext) -> Patch | Reason | None:
        """A patch with the operator, or what differs from the nearest one."""
        reason: Reason | None = None
        for region in reversed(regions(node.outputs[0], context, THROUGH, limit=16)):
            if len(region.nodes) < 2 or not region.ops & CURVED:
                continue
            sampled = sample(region, context)
            if sampled is None:
                continue
            outcome = self._match(node, sampled, context)
            if isinstance(outcome, Patch):
                return outcome
            reason = reason or outcome
        return reason

    def _match(self, node: ir.Node, s: Sampled, context: RuleContext) -> Patch | Reason | None:
        region = s.region
        dtype = context.tensor(region.root).dtype
        assert dtype is not None
        limit = tolerance(dtype)
        nearest: tuple[Difference, str] | None = None
        for meaning in MEANINGS:
            if not meaning.needs & region.ops or not allows(meaning.op, dtype, context):
                continue
            tried = [(difference(s, meaning.op, a, context), a) for fit in meaning.fits if (a := fit(s)) is not None]
            if not tried:
                continue
            off, attributes = min(tried, key=lambda t: t[0].relative)
            if off.relative <= limit:
                return self._patch(node, s, meaning.op, attributes, context)
            if nearest is None or off.absolute < nearest[0].absolute:
                nearest = (off, meaning.op)
        if nearest is None or nearest[0].absolute > _NEAR:
            return None
        off, op = nearest
        names = f"'{region.root.name}' is nearly {op} of '{region.variable.name}'"
        return Reason(f"{names}, but off by {off.absolute * (1 + abs(off.at)):.1g} at {off.at:.3g}")

    @staticmethod
    def _patch(
        node: ir.Node, s: Sampled, op: str, attributes: Mapping[str, Any], context: RuleContext
    ) -> Patch | Reason:
        region = s.region
        if not same_shape(context, region.variable, region.root):
            return Reason(f"a constant broadcasts the input of {op}")
        blocked = region.blocked()
        if blocked is not None:
            return blocked
        b = context.builder()
        y = b(op, region.variable, **attributes)
        return patch_from(b, node, [y], f"{len(region.nodes)} nodes from '{region.variable.name}'")
