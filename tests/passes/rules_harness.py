"""Compiles models for tests of rules, and says what rules did."""

from __future__ import annotations

import numpy as np

from accord.backends.reference.evaluator import evaluate
from accord.runtime.model import Model
from accord.runtime.options import Options

F = np.float32
RNG = np.random.default_rng(7)


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(F)


def compiled(proto, **options) -> Model:
    return Model(proto, Options(**options))


#: Rules that join operators into functions.
FUSIONS = ("fuse-epilogue", "fuse-loops")


def ops(m: Model) -> list[str]:
    """The operators that are left, those of fused ones too."""
    functions = m.compiled.model.functions
    return [n.op_type for call in m.compiled.model.graph for n in functions.get(call.op_identifier(), (call,))]


def fired(m: Model) -> set[str]:
    return {p.rule for p in m.compiled.log.patches}


def check(proto, feeds: dict[str, np.ndarray], rule: str, left: list[str], **options) -> Model:
    """The rule fires, the operators that are left are these, and the outputs are the oracle's."""
    m = compiled(proto, **options)
    assert rule in fired(m)
    assert ops(m) == left
    without = compiled(proto, disabled_rules=(rule, *options.get("disabled_rules", ())))
    assert rule not in fired(without)
    want = evaluate(proto, feeds)
    for got in (m(feeds), without(feeds), compiled(proto, level=0)(feeds)):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return m


def reasons(m: Model, rule: str) -> list[str]:
    return [str(s.reason) for s in m.compiled.log.skipped if s.rule == rule]


def batch_norm(channels: int) -> dict[str, np.ndarray]:
    return {"g": rand(channels), "b": rand(channels), "m": rand(channels), "v": np.abs(rand(channels)) + 0.5}
