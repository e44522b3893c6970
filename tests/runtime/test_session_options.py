"""SessionOptions, RunOptions, providers: what is honoured, what is refused, what is said aloud."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from session_harness import FEED, MODEL, X, check_same, graph_of, model_bytes, ours, theirs

import accord
from accord.errors import AccordError, BackendError, FallbackError, InputError, UnsupportedError

#: A fold of constants and an identity to remove, so that levels differ.
FOLDABLE = """<ir_version: 8, opset_import: ["":17]> g (float[N,3] x) => (float[N,3] y)
<float[3] a = {1,2,3}, float[3] b = {1,1,1}> { c = Add(a, b)  d = Identity(x)  y = Mul(d, c) }"""


# defaults and types


def test_fields_and_defaults_are_those_of_onnxruntime() -> None:
    ours_, theirs_ = accord.SessionOptions(), onnxruntime.SessionOptions()
    for name in dir(theirs_):
        theirs_value = getattr(theirs_, name)
        if name.startswith("_") or callable(theirs_value) or name == "profile_file_prefix":
            continue
        ours_value = getattr(ours_, name)
        if hasattr(theirs_value, "name"):  # enumerations
            assert (ours_value.name, int(ours_value)) == (theirs_value.name, int(theirs_value))
        else:
            assert ours_value == theirs_value, name
    for name in ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches", "terminate"):
        assert getattr(accord.RunOptions(), name) == getattr(onnxruntime.RunOptions(), name)


@pytest.mark.parametrize("name", ["GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"])
def test_enumerations(name: str) -> None:
    ours_, theirs_ = getattr(accord, name), getattr(onnxruntime, name)
    assert {k: int(v) for k, v in ours_.__members__.items()} == {k: int(v) for k, v in theirs_.__members__.items()}


@pytest.mark.parametrize(
    ("name", "value"),
    [("intra_op_num_threads", "2"), ("intra_op_num_threads", True), ("enable_profiling", 1), ("logid", 3)],
)
def test_wrong_types_are_refused(name: str, value: Any) -> None:
    options = accord.SessionOptions()
    with pytest.raises(InputError, match=name):
        setattr(options, name, value)


def test_misspelt_fields_are_refused() -> None:
    with pytest.raises(AttributeError):
        accord.SessionOptions().intra_op_num_thread = 2  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="GraphOptimizationLevel"):
        accord.SessionOptions().graph_optimization_level = 99  # type: ignore[assignment]


def test_numbers_and_paths_of_other_kinds_are_taken() -> None:
    options = accord.SessionOptions()
    options.intra_op_num_threads = np.int64(2)  # type: ignore[assignment]
    options.optimized_model_filepath = Path("x")  # type: ignore[assignment]
    assert (options.intra_op_num_threads, options.optimized_model_filepath) == (2, "x")


def test_configuration_entries() -> None:
    for options, add, get in (
        (accord.SessionOptions(), "add_session_config_entry", "get_session_config_entry"),
        (accord.RunOptions(), "add_run_config_entry", "get_run_config_entry"),
    ):
        getattr(options, add)("key", "value")
        assert getattr(options, get)("key") == "value"
        for bad in (("", "x"), ("x" * 2000, ""), ("key", 1)):
            with pytest.raises(InputError):
                getattr(options, add)(*bad)
        with pytest.raises(InputError, match="no configuration entry 'other'"):
            getattr(options, get)("other")


# levels, threads, strictness


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("ORT_DISABLE_ALL", 0),
        ("ORT_ENABLE_BASIC", 1),
        ("ORT_ENABLE_EXTENDED", 2),
        ("ORT_ENABLE_LAYOUT", 3),
        ("ORT_ENABLE_ALL", 3),
    ],
)
def test_levels(name: str, level: int, tmp_path: Path) -> None:
    options = accord.SessionOptions()
    options.graph_optimization_level = accord.GraphOptimizationLevel[name]
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    session = ours(FOLDABLE, sess_options=options)
    assert options.graph_optimization_level.level == level
    assert len(graph_of(tmp_path / "o.onnx").node) == (3 if level == 0 else 1)
    check_same(session.run(None, {"x": X}), theirs(FOLDABLE).run(None, {"x": X}))


def test_the_optimised_model_runs_elsewhere(tmp_path: Path) -> None:
    options = accord.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    session = ours(MODEL, sess_options=options)
    check_same(session.run(None, FEED), onnxruntime.InferenceSession(tmp_path / "o.onnx").run(None, FEED))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o.onnx"]


def test_the_optimised_model_in_a_missing_folder(tmp_path: Path) -> None:
    options = accord.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "none" / "o.onnx")
    with pytest.raises(AccordError, match="cannot write"):
        ours(sess_options=options)


def test_threads() -> None:
    options = accord.SessionOptions()
    options.intra_op_num_threads = 1
    check_same(ours(sess_options=options).run(None, FEED), theirs().run(None, FEED))
    options.intra_op_num_threads = -1
    with pytest.raises(AccordError, match="threads"):
        ours(sess_options=options)


ONLY_REFERENCE = """<ir_version: 8, opset_import: ["":17, "ai.onnx.ml":2]> g (int64[N] x) => (int64[N] y)
{ y = ai.onnx.ml.LabelEncoder<keys_int64s=[1], values_int64s=[2]>(x) }"""


def test_fall_backs_are_logged_and_can_be_forbidden(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="accord"):
        options = accord.SessionOptions()
        options.logid = "mine"
        ours(ONLY_REFERENCE, sess_options=options)
        assert "[mine] 1 nodes run on the slow backend 'reference': ai.onnx.ml::LabelEncoder" in caplog.text
        caplog.clear()
        options.log_severity_level = 3
        ours(ONLY_REFERENCE, sess_options=options)
        assert caplog.text == ""
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(FallbackError):
        ours(ONLY_REFERENCE, sess_options=options)


def test_a_session_outlives_a_failed_change_of_providers() -> None:
    session = ours(ONLY_REFERENCE)
    session.get_session_options().add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(FallbackError):
        session.set_providers(["CPUExecutionProvider"])
    assert session.get_providers() == ["AccordCPUExecutionProvider"]
    assert [a.name for a in session.get_inputs()] == ["x"]
    check_same(session.run(None, {"x": np.array([1, 5])}), theirs(ONLY_REFERENCE).run(None, {"x": np.array([1, 5])}))


def test_default_severity(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("accord")
    before = logger.level
    try:
        accord.set_default_logger_severity(3)
        ours(ONLY_REFERENCE)
        assert caplog.text == ""
        with pytest.raises(InputError):
            accord.set_default_logger_severity(5)
    finally:
        logger.setLevel(before)


# sizes and initializers


@pytest.mark.parametrize("overrides", [{"N": 2}, {"N": 2, "other": 9}, {}])
def test_sizes_by_name(overrides: dict[str, int]) -> None:
    options, same = accord.SessionOptions(), onnxruntime.SessionOptions()
    for name, size in overrides.items():
        options.add_free_dimension_override_by_name(name, size)
        same.add_free_dimension_override_by_name(name, size)
    a, b = ours(sess_options=options), theirs(sess_options=same)
    for left, right in zip((*a.get_inputs(), *a.get_outputs()), (*b.get_inputs(), *b.get_outputs()), strict=True):
        assert left.shape == right.shape
    check_same(a.run(None, FEED), b.run(None, FEED))


def test_sizes_that_were_given_are_binding() -> None:
    options = accord.SessionOptions()
    options.add_free_dimension_override_by_name("N", 4)
    options.add_free_dimension_override_by_name("N", 5)  # the first stays, as in ONNX Runtime
    with pytest.raises(InputError, match="wrong size"):
        ours(sess_options=options).run(None, FEED)
    with pytest.raises(InputError, match="bad size"):
        options.add_free_dimension_override_by_name("N", -1)


def test_sizes_by_denotation() -> None:
    import onnx

    model = onnx.load_from_string(model_bytes())
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    model.graph.input[2].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = accord.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    session = accord.InferenceSession(model.SerializeToString(), options)
    assert {a.name: a.shape for a in session.get_inputs()} == {"x": [2, 3], "y": [2, "M"]}
    assert session.get_outputs()[0].shape == [2, 3]


def test_initializers() -> None:
    w = accord.OrtValue.ortvalue_from_numpy(np.array([9, 9, 9], np.float32))
    options, same = accord.SessionOptions(), onnxruntime.SessionOptions()
    options.add_initializer("w", w)
    kept = onnxruntime.OrtValue.ortvalue_from_numpy(w.numpy())
    same.add_initializer("w", kept)
    check_same(ours(sess_options=options).run(None, FEED), theirs(sess_options=same).run(None, FEED))
    for name, value, message in (("none", w.numpy(), "no initializer"), ("w", np.zeros(3), "another dtype")):
        wrong = accord.SessionOptions()
        wrong.add_external_initializers([name], [value])
        with pytest.raises(InputError, match=message):
            ours(sess_options=wrong)
    with pytest.raises(InputError, match="differ in number"):
        accord.SessionOptions().add_external_initializers(["a"], [])


def test_custom_operator_libraries_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"accord\.operator"):
        accord.SessionOptions().register_custom_ops_library("kernels.so")


# profiling


def test_profiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORD_CACHE", "off")  # a stored plan has no stages
    options = accord.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = ours(sess_options=options)
    session.run(None, FEED)
    session.run(None, FEED)
    assert session.get_profiling_start_time_ns() > 0
    path = Path(session.end_profiling())
    assert path.parent == tmp_path
    assert path.name.startswith("trace_")
    events = json.loads(path.read_text(encoding="utf-8"))
    names = [e["name"] for e in events]
    assert names.count("model_run") == 2
    assert {"session_initialization", "stage_loaded", "stage_planned"} <= set(names)
    assert all(e["ph"] == "X" and e["ts"] >= 0 and e["dur"] >= 0 for e in events)
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert session.end_profiling() == ""
    session.run(None, FEED)


def test_no_profiling() -> None:
    session = ours()
    assert (session.get_profiling_start_time_ns(), session.end_profiling()) == (0, "")


# providers


def test_available_providers() -> None:
    names = accord.get_available_providers()
    assert names[-2:] == ["AccordCPUExecutionProvider", "CPUExecutionProvider"]
    assert set(names) <= set(accord.get_all_providers())
    assert "CUDAExecutionProvider" in accord.get_all_providers()
    assert accord.get_device() == ("GPU" if "CUDAExecutionProvider" in names else "CPU")


@pytest.mark.parametrize("name", ["CPUExecutionProvider", "AccordCPUExecutionProvider"])
def test_providers_that_exist_are_taken_without_a_word(name: str) -> None:
    session = ours(providers=[name])
    assert session.get_providers() == [name]
    assert session.get_provider_options() == {name: {}}
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    check_same(session.run(None, FEED), theirs().run(None, FEED))


@pytest.mark.parametrize("providers", [None, []])
def test_without_providers_the_cpu_is_used(providers: Any) -> None:
    assert ours(providers=providers).get_providers() == ["AccordCPUExecutionProvider"]


def test_unknown_providers_are_skipped_aloud() -> None:
    with pytest.warns(UserWarning, match="'NoExecutionProvider' is not in available"):
        session = ours(providers=["NoExecutionProvider", "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_falling_back_to_the_cpu_is_said_aloud() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = ours(providers=["NoExecutionProvider"])
    assert [w.filename for w in caught] == [__file__.replace("test_session_options", "session_harness")] * 2
    assert "falling back to 'AccordCPUExecutionProvider'" in str(caught[1].message)
    assert session.get_providers() == ["AccordCPUExecutionProvider"]


def test_falling_back_can_be_forbidden() -> None:
    with pytest.warns(UserWarning), pytest.raises(BackendError, match="none of the providers"):
        ours(providers=["NoExecutionProvider"], enable_fallback=False)
    session = ours()
    session.disable_fallback()
    with pytest.warns(UserWarning), pytest.raises(BackendError):
        session.set_providers(["NoExecutionProvider"])
    session.enable_fallback()
    with pytest.warns(UserWarning):
        session.set_providers(["NoExecutionProvider"])


@pytest.mark.parametrize(
    ("providers", "options"),
    [
        ([("CPUExecutionProvider", {"a": 1})], None),
        (["CPUExecutionProvider"], [{"a": 1}]),
    ],
)
def test_provider_options_are_kept_and_said_to_have_no_effect(providers: Any, options: Any) -> None:
    with pytest.warns(UserWarning, match="have no effect: a"):
        session = ours(providers=providers, provider_options=options)
    assert session.get_provider_options() == {"CPUExecutionProvider": {"a": "1"}}


@pytest.mark.parametrize(
    ("providers", "options"),
    [
        ("CPUExecutionProvider", None),
        (3, None),
        ([3], None),
        ([("CPUExecutionProvider", 3)], None),
        (["CPUExecutionProvider"], []),
        ([("CPUExecutionProvider", {})], [{}]),
    ],
)
def test_providers_of_another_form_are_refused(providers: Any, options: Any) -> None:
    with pytest.raises(InputError):
        ours(providers=providers, provider_options=options)


def test_providers_in_the_options() -> None:
    options = accord.SessionOptions()
    assert not options.has_providers()
    options.add_provider("CPUExecutionProvider", {})
    assert options.has_providers()
    assert ours(sess_options=options).get_providers() == ["CPUExecutionProvider"]


def test_other_keywords() -> None:
    with pytest.warns(UserWarning, match="ignores something"):
        ours(something=1)
    with pytest.warns(UserWarning, match="no rule ConstantFolding"):
        ours(disabled_optimizers=["ConstantFolding"])
    session = ours(disabled_optimizers=["remove-identity"])
    assert session.get_session_options() is not None
    with pytest.raises(InputError, match="sess_options"):
        ours(sess_options={"intra_op_num_threads": 1})
