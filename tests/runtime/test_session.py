"""InferenceSession beside ONNX Runtime's: what it says of a model, and what it returns."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from session_harness import FEED, MODEL, X, Y, check_same, model_bytes, ours, theirs

import accord
from accord.errors import ExecutionError, InputError, ModelFormatError


def described(arguments: Any) -> list[tuple[str, str, list[Any]]]:
    return [(a.name, a.type, a.shape) for a in arguments]


STRINGS = '<ir_version: 8, opset_import: ["":17]> g (string[N] x) => (string[N] y) { y = Identity(x) }'
SEQUENCES = """<ir_version: 8, opset_import: ["":17]> g (seq(float[N]) x, float[M] z) => (seq(float[?]) y)
{ y = SequenceInsert(x, z) }"""
OPTIONAL = """<ir_version: 8, opset_import: ["":18]> g (optional(float[N]) x) => (bool y)
{ y = OptionalHasElement(x) }"""
SCALARS = '<ir_version: 8, opset_import: ["":17]> g (float x) => (float y) { y = Neg(x) }'
IR3 = '<ir_version: 3, opset_import: ["":8]> g (float[N] x, float[1] k = {2}) => (float[N] y) { y = Add(x, k) }'
OPEN_OUTPUTS = """<ir_version: 8, opset_import: ["":13]> g (float[N,2] x) => (float[?,?] y, float[Q,?] z, float[5,2] w)
{ y = Flatten(x)  z = Identity(x)  w = Concat<axis=0>(x, x) }"""
PASSED_THROUGH = """<ir_version: 8, opset_import: ["":17]> g (float[N,3] x, float[1] unused) => (float[N,3] y)
{ y = Identity(x) }"""


@pytest.mark.parametrize("text", [MODEL, STRINGS, SEQUENCES, OPTIONAL, SCALARS, IR3, OPEN_OUTPUTS, PASSED_THROUGH])
def test_interface_is_described_alike(text: str) -> None:
    a, b = ours(text), theirs(text)
    assert described(a.get_inputs()) == described(b.get_inputs())
    assert described(a.get_outputs()) == described(b.get_outputs())
    assert described(a.get_overridable_initializers()) == described(b.get_overridable_initializers())
    assert str(a.get_inputs()[0]) == str(b.get_inputs()[0])


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "double", "uint8", "int8", "bool", "int16", "uint16", "uint32", "uint64"]
)
def test_type_names(dtype: str) -> None:
    text = f'<ir_version: 8, opset_import: ["":17]> g ({dtype}[N] x) => ({dtype}[N] y) {{ y = Identity(x) }}'
    assert described(ours(text).get_inputs()) == described(theirs(text).get_inputs())


def test_sizes_that_exporters_write_as_minus_one_are_unknown() -> None:
    import onnx

    model = onnx.load_from_string(model_bytes(PASSED_THROUGH))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    session = accord.InferenceSession(model.SerializeToString())
    assert session.get_inputs()[0].shape == [None, 3]


def test_metadata() -> None:
    a, b = ours().get_modelmeta(), theirs().get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version"):
        assert getattr(a, name) == getattr(b, name)
    assert a.custom_metadata_map == b.custom_metadata_map == {"key": "value"}


@pytest.mark.parametrize("names", [None, [], ["a"], ["c", "a"], ["b", "a", "c"], ["a", "a"], ("b",)], ids=str)
def test_outputs_are_chosen_by_name(names: Any) -> None:
    check_same(ours().run(names, FEED), theirs().run(None if names is None else list(names), FEED))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"k": np.array([5])},
        {"x": X[:, ::-1]},
        {"x": X.T.copy().T},
        {"x": np.asfortranarray(X)},
        {"x": np.zeros((0, 3), np.float32)},
        {"x": [[1.0, 2.0, 3.0]]},
        {"x": [[1, 2, 3]]},
        {"y": np.zeros((3, 0), np.float32)},
    ],
    ids=["plain", "default", "reversed", "transposed", "fortran", "empty", "list", "integers", "no columns"],
)
def test_inputs_that_both_take(change: dict[str, Any]) -> None:
    feed = {**FEED, **change}
    check_same(ours().run(None, feed), theirs().run(None, feed))


@pytest.mark.parametrize(
    ("names", "feed", "message"),
    [
        (["nothing"], FEED, "no output 'nothing'"),
        (None, {"x": X}, "missing input 'y'"),
        (None, {**FEED, "extra": X}, "no input 'extra'"),
        (None, {**FEED, "x": X.astype(np.float64)}, "wrong dtype"),
        (None, {**FEED, "k": np.array([1], np.int32)}, "wrong dtype"),
        (None, {**FEED, "x": X[0]}, "wrong rank"),
        (None, {**FEED, "x": X[:, :2]}, "wrong size on axis 1"),
        (None, {**FEED, "x": None}, "None was given"),
        (None, {**FEED, "x": [["a"]]}, "cannot be read as an array"),
        (None, {**FEED, "x": [[1.0], [1.0, 2.0]]}, "cannot be read as an array"),
        (None, [X, Y], "inputs are given by name"),
        (None, None, "inputs are given by name"),
    ],
)
def test_inputs_that_neither_takes(names: Any, feed: Any, message: str) -> None:
    session = ours()
    with pytest.raises(InputError, match=message):
        session.run(names, feed)
    with pytest.raises(Exception):  # noqa: B017  any of ONNX Runtime's own types
        theirs().run(names, feed)
    check_same(session.run(None, FEED), theirs().run(None, FEED))  # the session lives on


def test_output_names_as_one_string_are_refused() -> None:
    with pytest.raises(InputError, match="given as a list"):
        ours().run("a", FEED)


def test_other_byte_order_is_the_same_numbers() -> None:
    np.testing.assert_array_equal(ours().run(["a"], {**FEED, "x": X.astype(">f4")})[0], X + np.float32([1, 2, 3]))


@pytest.mark.parametrize(
    "value", [np.array(["a", "é"]), np.array(["a", ""], object), ["a", "b"], np.array([], object)], ids=repr
)
def test_strings(value: Any) -> None:
    check_same(ours(STRINGS).run(None, {"x": value}), theirs(STRINGS).run(None, {"x": value}))


def test_strings_from_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="wrong dtype"):
        ours(STRINGS).run(None, {"x": np.array([1, 2])})


@pytest.mark.parametrize("items", [[], [X[0]], [X[0], X[1, :1]]], ids=["empty", "one", "two"])
def test_sequences(items: list[Any]) -> None:
    feed = {"x": items, "z": np.zeros(2, np.float32)}
    check_same(ours(SEQUENCES).run(None, feed), theirs(SEQUENCES).run(None, feed))


def test_a_sequence_needs_a_list_of_the_right_dtype() -> None:
    session = ours(SEQUENCES)
    for wrong in (X, [X[0].astype(np.float64)]):
        with pytest.raises(InputError):
            session.run(None, {"x": wrong, "z": X[0]})


@pytest.mark.parametrize("feed", [{}, {"x": None}, {"x": X[0]}], ids=["left out", "None", "given"])
def test_optional_inputs(feed: dict[str, Any]) -> None:
    check_same(ours(OPTIONAL).run(None, feed), theirs(OPTIONAL).run(None, feed))


def test_scalars() -> None:
    feed = {"x": np.array(3, np.float32)}
    check_same(ours(SCALARS).run(None, feed), theirs(SCALARS).run(None, feed))


def test_an_input_that_nothing_reads_must_be_given_all_the_same() -> None:
    with pytest.raises(InputError, match="missing input 'unused'"):
        ours(PASSED_THROUGH).run(None, {"x": X})
    with pytest.raises(ValueError, match="unused"):
        theirs(PASSED_THROUGH).run(None, {"x": X})


def test_results_belong_to_the_caller() -> None:
    session = ours(PASSED_THROUGH)
    x = X.copy()
    result = session.run(None, {"x": x, "unused": np.zeros(1, np.float32)})[0]
    result[:] = -1
    np.testing.assert_array_equal(x, X)


def test_old_models_keep_their_constants() -> None:
    check_same(ours(IR3).run(None, {"x": X[0]}), theirs(IR3).run(None, {"x": X[0]}))
    for session in (ours(IR3), theirs(IR3)):
        with pytest.raises(Exception, match="k"):
            session.run(None, {"x": X[0], "k": np.ones(1, np.float32)})


def test_threads_share_a_session() -> None:
    session = ours()
    wrong = []

    def work(rows: int) -> None:
        x = np.full((rows, 3), rows, np.float32)
        for _ in range(20):
            a, b = session.run(["a", "b"], {"x": x, "y": x})
            if not (np.array_equal(a, x + np.float32([1, 2, 3])) and np.array_equal(b, -x)):
                wrong.append(rows)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 7)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def run_async(session: Any, feed: Any, names: Any = None) -> tuple[Any, Any, str]:
    done = threading.Event()
    received: list[tuple[Any, Any, str]] = []

    def callback(results: Any, data: Any, error: str) -> None:
        received.append((results, data, error))
        done.set()

    session.run_async(names, feed, callback, "data")
    assert done.wait(10)
    return received[0]


def test_run_async() -> None:
    for names in (None, ["b", "a"]):
        left, right = run_async(ours(), FEED, names), run_async(theirs(), FEED, names)
        check_same(left[0], right[0])
        assert left[1:] == right[1:] == ("data", "")


def test_errors_of_run_async() -> None:
    results, data, error = run_async(ours(), {**FEED, "x": X[0]})
    assert (results, data) == ([], "data")
    assert "wrong rank" in error
    with pytest.raises(InputError, match="missing input 'y'"):
        ours().run_async(None, {"x": X}, lambda *_: None, None)
    with pytest.raises(InputError, match="no output"):
        ours().run_async(["nothing"], FEED, lambda *_: None, None)


def test_an_error_in_a_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()
    logged = threading.Event()

    def callback(*_: Any) -> None:
        called.set()
        raise RuntimeError("mine")

    class Watch:
        def filter(self, record: Any) -> bool:
            logged.set()
            return True

    caplog.handler.addFilter(Watch())  # type: ignore[arg-type]
    with caplog.at_level("ERROR", logger="accord"):
        ours().run_async(None, FEED, callback, None)
        assert called.wait(10)
        assert logged.wait(10)
    assert "callback of run_async" in caplog.text


def test_a_run_that_is_to_terminate_does_not_start() -> None:
    options = accord.RunOptions()
    options.terminate = True
    with pytest.raises(ExecutionError, match="terminated"):
        ours().run(None, FEED, options)
    options.terminate = False
    check_same(ours().run(None, FEED, options), theirs().run(None, FEED))


def test_wrong_models() -> None:
    for wrong in (b"", b"abc", 3):
        with pytest.raises(ModelFormatError):
            accord.InferenceSession(wrong)


def test_from_a_path(tmp_path: Any) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model_bytes())
    for source in (path, str(path)):
        check_same(accord.InferenceSession(source).run(None, FEED), theirs().run(None, FEED))
