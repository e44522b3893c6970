"""Expansions: an operator written as other operators, with facts at hand.

Two kinds share this one mechanism. Old versions of ONNX operators are written in today's form, so that every later
room sees one version of each operator; and operators of other domains that are compositions (most of
``com.microsoft``) are written in standard operators, so that they are optimised like any model::

    @expands("Softmax", before=13)
    def softmax_flat(b: Builder, n: Inference) -> Sequence[ir.Value | None]: ...

    @expands("BiasGelu", domain="com.microsoft")
    def bias_gelu(b: Builder, n: Inference) -> Sequence[ir.Value | None]: ...

The stage ``normalise`` walks each graph in order and applies them; facts of all inputs are known at that point.
An operator's *equivalent* (:func:`equivalent`) takes its place only where the device has no kernel for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from accord.ir.build import Builder
from accord.ir.infer import Inference

__all__ = [
    "ANY_VERSION",
    "CANONICAL_OPSET",
    "OWN_DOMAIN",
    "Expansion",
    "equivalent",
    "equivalent_of",
    "expands",
    "expansion_for",
    "given",
    "required",
]

#: The version of the ONNX domain that every model is brought to; models that declare a later one keep theirs.
CANONICAL_OPSET = 24
#: Past every change of an operator: what is written in today's form, as expansions and compositions are.
ANY_VERSION = 1 << 30
#: The domain of operators that no model has: only expansions write them, where ONNX has none that would do.
OWN_DOMAIN = "accord"

#: Builds the replacement and returns one value per output of the node (None where the node names none), or returns
#: None to leave the node as it is.
Expansion: TypeAlias = Callable[[Builder, Inference], "Sequence[ir.Value | None] | None"]

_EXPANSIONS: dict[tuple[str, str], list[tuple[int | None, Expansion]]] = {}


def expands(*names: str, domain: str = "", before: int | None = None) -> Callable[[Expansion], Expansion]:
    """Register the decorated function for the operators ``names`` of ``domain``.

    Args:
        names: Operator names.
        domain: Their domain.
        before: Applies only where the model declares a version of the domain below this one; None: always.
            Among several that apply, the one with the lowest ``before`` is taken; nodes that it builds are
            of the canonical version already and are not expanded by version again. What always applies is of the
            form that the operator's shape rule knows: a node that the rule refuses does not reach it.
    """

    def register(function: Expansion) -> Expansion:
        def checked(b: Builder, n: Inference) -> Sequence[ir.Value | None] | None:
            n.check()
            return function(b, n)

        for name in names:
            entries = _EXPANSIONS.setdefault((domain, name), [])
            entries.append((before, checked if before is None else function))
            entries.sort(key=lambda e: (e[0] is None, e[0] or 0))
        return function

    return register


def expansion_for(domain: str, name: str, version: int) -> Expansion | None:
    """The expansion for an operator as of ``version`` of its domain, or None."""
    for before, function in _EXPANSIONS.get((domain, name), ()):
        if before is None or version < before:
            return function
    return None


_EQUIVALENTS: dict[tuple[str, str], Expansion] = {}


def equivalent(*names: str, domain: str = "") -> Callable[[Expansion], Expansion]:
    """Register the decorated function as what takes the place of ``names`` where a device has no kernel for them."""

    def register(function: Expansion) -> Expansion:
        for name in names:
            _EQUIVALENTS[domain, name] = function
        return function

    return register


def equivalent_of(domain: str, name: str) -> Expansion | None:
    """The equivalent of an operator, or None."""
    return _EQUIVALENTS.get((domain, name))


def given(n: Inference, index: int) -> ir.Value | None:
    """Input ``index`` of the node, None where it is absent."""
    return n.node.inputs[index] if n.has(index) else None


def required(n: Inference, index: int) -> ir.Value:
    """Input ``index`` of the node.

    Raises:
        ModelTypeError: it is absent.
    """
    value = given(n, index)
    if value is None:
        raise n.error(f"input {index} is missing")
    return value
