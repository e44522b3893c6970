"""Shape rules against all node cases of the ONNX package, with integers, with symbols, and the two with each other."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from shapes_harness import as_array, constant_of, is_small, node_cases

from accord.errors import ModelTypeError
from accord.ir import dims as D
from accord.ir.dims import Shape
from accord.ir.facts import FactTable, TensorFact, fact_of_type
from accord.ir.infer import Analyzer

#: How many of the 2,292 tensor outputs have a fully determined shape, by (input shapes, short inputs are constants).
#: Rules may only get better than that; what is left depends on data (NonZero, Unique, image sizes, strings) or on
#: inputs that are not constant.
FLOORS = {
    ("declared", False): 1935,
    ("declared", True): 2233,
    ("symbols", False): 1928,
    ("symbols", True): 2212,
}


def _infer(
    case: Any, sizes: Mapping[str, int | D.Dim] | None, *, constants: bool
) -> tuple[ir.Model, FactTable, dict[str, int]]:
    """Facts of a case's graph, and the true size of each axis of each input that is no constant.

    Args:
        case: The case.
        sizes: Size by axis name ``input@axis``; None leaves the declared shapes.
        constants: Short inputs are constants.
    """
    model = ir.serde.deserialize_model(case.model)
    facts = FactTable()
    true_sizes: dict[str, int] = {}
    for value, data in zip(model.graph.inputs, case.data_sets[0][0], strict=False):
        array, fact = as_array(data), facts.get(value)
        if array is None or not isinstance(fact, TensorFact) or fact.dtype is None:
            continue
        if constants and is_small(array):
            facts[value] = constant_of(array, fact.dtype)
            continue
        names = [f"{value.name}@{k}" for k in range(array.ndim)]
        true_sizes.update(zip(names, array.shape, strict=True))
        if sizes is not None:
            facts[value] = TensorFact(fact.dtype, tuple(sizes.get(n, D.symbol(n)) for n in names))
    analyzer = Analyzer(facts, model.graph.opset_imports, functions=model.functions)
    analyzer.infer_graph(model.graph)
    return model, facts, true_sizes


def _evaluated(shape: Shape, sizes: Mapping[str, int]) -> tuple[int | None, ...]:
    """Sizes of ``shape``, None where it depends on more than ``sizes``."""
    out: list[int | None] = []
    for d in shape:
        try:
            out.append(D.evaluate(d, sizes) if D.symbols_of(d) <= sizes.keys() else None)
        except ZeroDivisionError:
            out.append(None)
    return tuple(out)


@pytest.mark.parametrize(("mode", "constants"), list(FLOORS))
def test_facts_agree_with_the_expected_outputs(mode: str, constants: bool) -> None:
    determined = 0
    problems: list[str] = []
    for case in node_cases():
        model, facts, sizes = _infer(case, {} if mode == "symbols" else None, constants=constants)
        for value, data in zip(model.graph.outputs, case.data_sets[0][1], strict=False):
            fact, array = facts[value], as_array(data)
            declared = fact_of_type(value.type, None, "")
            if array is None:
                if type(fact) is not type(declared):
                    problems.append(f"{case.name}: {value.name} is {fact}, not {declared}")
                continue
            assert isinstance(fact, TensorFact), f"{case.name}: {value.name} is {fact}"
            assert isinstance(declared, TensorFact)
            if fact.dtype != declared.dtype:
                problems.append(f"{case.name}: {value.name} is {fact}, declared {declared}")
            if fact.shape is None:
                continue
            found = _evaluated(fact.shape, sizes)
            if len(found) != array.ndim or any(
                f is not None and f != s for f, s in zip(found, array.shape, strict=True)
            ):
                problems.append(f"{case.name}: {value.name} is {fact}, expected {array.shape}")
            determined += None not in found
            if fact.const is not None and not _same(fact.numpy(), array):
                problems.append(f"{case.name}: {value.name} is the constant {fact.numpy()}, expected {array}")
    assert not problems, "\n".join(problems[:20])
    assert determined >= FLOORS[mode, constants]


def _same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.dtype.kind == "f":
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(np.array_equal(a, b))


def test_symbols_and_integers_agree_at_other_sizes() -> None:
    """A symbolic result, evaluated at sizes that the case does not have, is what inference makes of these sizes."""
    rng = random.Random(7)
    compared = 0
    problems: list[str] = []
    for case in node_cases():
        model, symbolic, sizes = _infer(case, {}, constants=True)
        results = {o.name: symbolic[o] for n in model.graph for o in n.outputs}
        for _ in range(3):
            # Sizes that are equal in the case stay equal, so that most inputs still fit each other.
            swap = {d: rng.choice([d, 1, 2, 3, 4, 5, 6, 7, 8, 12]) for d in set(sizes.values())}
            env = {k: swap[d] if rng.random() < 0.9 else d for k, d in sizes.items()}
            try:
                other, plain, _ = _infer(case, env, constants=True)
            except ModelTypeError:
                continue
            for value in (o for n in other.graph for o in n.outputs if o.name):
                a, b = results[value.name], plain[value]
                if not (isinstance(a, TensorFact) and isinstance(b, TensorFact)):
                    continue
                if a.shape is None or b.shape is None:
                    continue
                pairs = zip(_evaluated(a.shape, env), b.shape, strict=True)
                if any(x is not None and isinstance(y, int) and x != y for x, y in pairs):
                    problems.append(f"{case.name}: {value.name} is {a}, with {env} {b}")
                if a.data is not None and b.elements() is not None:
                    pairs = zip(_evaluated(a.data, env), b.elements() or (), strict=True)
                    if any(x is not None and isinstance(y, int) and x != y for x, y in pairs):
                        problems.append(f"{case.name}: {value.name} is {a}, with {env} {b}")
                compared += 1
    assert not problems, "\n".join(problems[:20])
    assert compared > 15_000
