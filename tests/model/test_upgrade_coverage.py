"""Every change of every operator's version is looked at, and ONNX's own cases come out the same."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx import helper, numpy_helper
from onnx.backend.test import loader
from upgrade_harness import run, upgrade

from accord.ir.expand import CANONICAL_OPSET, expansion_for

#: Attributes that a version added and whose default is what earlier versions did.
NEUTRAL = {
    ("ArgMax", "select_last_index"),
    ("ArgMin", "select_last_index"),
    ("AveragePool", "ceil_mode"),
    ("AveragePool", "count_include_pad"),
    ("AveragePool", "dilations"),
    ("BatchNormalization", "training_mode"),
    ("Cast", "round_mode"),
    ("Cast", "saturate"),
    ("CastLike", "round_mode"),
    ("CastLike", "saturate"),
    ("Constant", "sparse_value"),
    ("Constant", "value_float"),
    ("Constant", "value_floats"),
    ("Constant", "value_int"),
    ("Constant", "value_ints"),
    ("Constant", "value_string"),
    ("Constant", "value_strings"),
    ("DepthToSpace", "mode"),
    ("DequantizeLinear", "axis"),
    ("DequantizeLinear", "block_size"),
    ("DequantizeLinear", "output_dtype"),
    ("Dropout", "seed"),
    ("GRU", "layout"),
    ("GRU", "linear_before_reset"),
    ("GatherND", "batch_dims"),
    ("LSTM", "layout"),
    ("LpPool", "ceil_mode"),
    ("LpPool", "dilations"),
    ("MaxPool", "ceil_mode"),
    ("MaxPool", "dilations"),
    ("MaxPool", "storage_order"),
    ("QuantizeLinear", "axis"),
    ("QuantizeLinear", "block_size"),
    ("QuantizeLinear", "output_dtype"),
    ("QuantizeLinear", "precision"),
    ("QuantizeLinear", "saturate"),
    ("RNN", "layout"),
    ("Reshape", "allowzero"),
    ("Resize", "antialias"),
    ("Resize", "axes"),
    ("Resize", "keep_aspect_ratio_policy"),
    ("ScatterElements", "reduction"),
    ("ScatterND", "reduction"),
    ("Shape", "end"),
    ("Shape", "start"),
    ("TopK", "largest"),
    ("TopK", "sorted"),
}

#: Inputs and outputs that only changed their name, or became optional, or joined at the end.
RENAMED = {
    ("Attention", 24),
    ("BatchNormalization", 15),
    ("Gemm", 11),
    ("MaxPool", 8),
    ("OptionalHasElement", 18),
    ("Pad", 18),
}


def default(attribute: Any) -> Any:
    value = attribute.default_value
    return (attribute.type, attribute.required, helper.get_attribute_value(value) if value.type else None)


def changes() -> Iterator[tuple[str, int, int, str]]:
    """Operator, old version, new version, and what else than dtypes and wording changed, up to the canonical one."""
    histories: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= CANONICAL_OPSET:
            histories.setdefault(schema.name, []).append(schema)
    for name, schemas in sorted(histories.items()):
        schemas.sort(key=lambda s: s.since_version)
        for old, new in itertools.pairwise(schemas):
            versions = (old.since_version, new.since_version)
            for attribute in sorted({*old.attributes, *new.attributes}):
                before, after = old.attributes.get(attribute), new.attributes.get(attribute)
                if before is None and (name, attribute) in NEUTRAL:
                    continue
                if before is None or after is None or default(before) != default(after):
                    yield name, *versions, f"attribute {attribute}"
            for kind in ("inputs", "outputs"):
                before, after = ([(p.name, p.option) for p in getattr(s, kind)] for s in (old, new))
                if before != after and (name, new.since_version) not in RENAMED:
                    yield name, *versions, kind


def is_neutral(name: str, new: int, what: str) -> bool:
    """Changes that need no rewriting, each for a reason of its own."""
    return (name, new, what) in {
        ("Constant", 11, "attribute value"),  # became optional
        ("Elu", 6, "attribute alpha"),
        ("Dropout", 10, "outputs"),
        ("GRU", 3, "outputs"),  # Y_h became optional
        ("Identity", 14, "inputs"),
        ("Split", 2, "outputs"),
    }


ALL_CHANGES = list(changes())


@pytest.mark.parametrize(
    ("name", "old", "new", "what"), ALL_CHANGES, ids=[f"{c[0]}-{c[2]}-{c[3]}" for c in ALL_CHANGES]
)
def test_change_has_an_expansion(name: str, old: int, new: int, what: str) -> None:
    """A version that took something away, or changed a default, is rewritten."""
    assert is_neutral(name, new, what) or expansion_for("", name, new - 1) is not None


@pytest.mark.parametrize("name", ["Softmax", "RoiAlign", "OneHot", "Hardmax", "GroupNormalization", "Resize"])
def test_change_of_meaning_has_an_expansion(name: str) -> None:
    version = {"RoiAlign": 15, "OneHot": 10, "GroupNormalization": 20, "Resize": 10}.get(name, 12)
    assert expansion_for("", name, version) is not None


# ONNX's own cases ---------------------------------------------------------------------------------------------------


def cases(kind: str) -> list[Any]:
    with warnings.catch_warnings():
        # Some cases are computed while they are listed, with divisions by zero.
        warnings.simplefilter("ignore")
        return list(loader.load_model_tests(kind=kind))


def loaded(case: Any) -> onnx.ModelProto:
    return case.model if case.model is not None else onnx.load(Path(case.model_dir) / "model.onnx")


def feeds_of(case: Any, proto: onnx.ModelProto) -> Iterator[dict[str, Any]]:
    constants = {i.name for i in proto.graph.initializer}
    names = [i.name for i in proto.graph.input if i.name not in constants]
    if case.data_sets:
        for inputs, _ in case.data_sets:
            yield dict(zip(names, inputs, strict=False))
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        tensors = sorted(folder.glob("input_*.pb"))
        yield dict(zip(names, (numpy_helper.to_array(onnx.load_tensor(t)) for t in tensors), strict=False))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if not isinstance(a, np.ndarray):
        return bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind in "fc":
        return np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
    return bool((a == b).all())


def problem(case: Any) -> tuple[str | None, bool]:
    """What is wrong with the case after the stage, and whether ONNX Runtime could run it."""
    proto = loaded(case)
    new, result = upgrade(proto)
    assert result.model.opset_imports[""] >= CANONICAL_OPSET
    if [o.name for o in new.graph.output] != [o.name for o in proto.graph.output]:
        return "outputs were renamed", False
    try:
        onnx.checker.check_model(proto, full_check=True)
        was_valid = True
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        was_valid = False
    if was_valid:
        onnx.checker.check_model(new, full_check=True)
    for feeds in feeds_of(case, proto):
        try:
            expected = run(proto, feeds)
        except Exception:  # noqa: BLE001  ONNX Runtime's errors share no base class
            return None, False
        got = run(new, feeds)
        if not same(got, expected) and same(run(proto, feeds), expected):
            return "results differ", True
    return None, True


def assert_all_pass(kind: str, least: int, least_run: int) -> None:
    problems, count, ran = {}, 0, 0
    for case in cases(kind):
        count += 1
        try:
            found, compared = problem(case)
        except Exception as error:  # noqa: BLE001  collected, so that one case does not hide the others
            found, compared = f"{type(error).__name__}: {error}", False
        ran += compared
        if found is not None:
            problems[case.name] = found
    assert not problems
    assert count >= least
    assert ran >= least_run


@pytest.mark.parametrize(("kind", "least", "least_run"), [("simple", 20, 10), ("pytorch-operator", 30, 10)])
def test_cases_of_models(kind: str, least: int, least_run: int) -> None:
    assert_all_pass(kind, least, least_run)


def test_cases_of_old_pytorch_models() -> None:
    assert_all_pass("pytorch-converted", 80, 55)


@pytest.mark.slow
def test_cases_of_nodes() -> None:
    assert_all_pass("node", 1800, 1400)
