"""Running plans: inputs of every kind, bad inputs, late sizes, control flow, threads, memory."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import onnx
import pytest
from onnx import helper

import accord
from accord.errors import AccordError, BackendError, ExecutionError, FallbackError, InputError
from builders import model, node

F = np.float32
RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def add():
    return accord.load(model([node("Add", ["x", "y"], ["z"])], {"x": (F, ["n", 3]), "y": (F, ["n", 3])}, ["z"]))


def test_by_position_by_name_by_dictionary(add):
    x, y = RNG.standard_normal((2, 2, 3)).astype(F)
    for out in (add(x, y), add(x, y=y), add(y=y, x=x), add({"x": x, "y": y})):
        np.testing.assert_array_equal(out[0], x + y)
        np.testing.assert_array_equal(out["z"], x + y)
    with pytest.raises(KeyError, match="no output 'q'"):
        add(x, y)["q"]


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((), {}, "missing input 'x', 'y'"),
        ((np.ones((2, 3), F),), {}, "missing input 'y'"),
        ((np.ones((2, 3), F),) * 3, {}, "too many inputs"),
        ((np.ones((2, 3), F),) * 2, {"q": 1}, "no input 'q'"),
        ((np.ones((2, 3), F),), {"x": 1}, "by position and by name"),
        ((np.ones((2, 3), F), np.ones((2, 3))), {}, "wrong dtype.*float32.*float64.*astype"),
        ((np.ones((2, 3), F), np.ones(3, F)), {}, "wrong rank"),
        ((np.ones((2, 3), F), np.ones((2, 4), F)), {}, "wrong size on axis 1"),
        ((np.ones((2, 3), F), np.ones((4, 3), F)), {}, "'n' on axis 0 differs"),
        ((np.ones((2, 3), F), None), {}, "None was given"),
        ((np.ones((2, 3), F), "text"), {}, "cannot be read as an array"),
        ((np.ones((2, 3), F), object()), {}, "cannot be read as an array"),
        ((np.ones((2, 3), F), np.ones((2, 3), complex)), {}, "wrong dtype"),
    ],
)
def test_wrong_inputs_are_named_and_the_model_lives_on(add, args, named, message):
    with pytest.raises(InputError, match=message):
        add(*args, **named)
    assert add(np.ones((1, 3), F), np.ones((1, 3), F))[0].sum() == 6


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1][::-1],
        lambda a: a.astype(">f4"),
        memoryview,
        lambda a: a.tolist(),
    ],
)
def test_arrays_of_any_layout(add, change):
    x = RNG.standard_normal((2, 3)).astype(F)
    np.testing.assert_array_equal(add(change(x), x)[0], x + x)


def test_read_only_and_misaligned_arrays(add):
    x = RNG.standard_normal((2, 3)).astype(F)
    frozen = x.copy()
    frozen.flags.writeable = False
    raw = bytearray(1 + x.nbytes)
    raw[1:] = x.tobytes()
    crooked = np.frombuffer(raw, F, offset=1).reshape(2, 3)
    np.testing.assert_array_equal(add(frozen, crooked)[0], x + x)


class _Lent:
    """Something with DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack(add):
    x = RNG.standard_normal((2, 3)).astype(F)
    np.testing.assert_array_equal(add(_Lent(x), x)[0], x + x)


def test_inputs_are_neither_changed_nor_returned():
    m = accord.load(
        model(
            [node("Relu", ["x"], ["r"]), node("Reshape", ["x", "s"], ["v"])],
            {"x": (F, [4])},
            ["r", "v"],
            {"s": np.array([2, 2], np.int64)},
        )
    )
    x = -np.ones(4, F)
    r, v = m(x)
    assert (x == -1).all() and (r == 0).all()
    assert not np.shares_memory(v, x)


def test_outputs_belong_to_the_caller(add):
    x = np.ones((2, 3), F)
    first = add(x, x)[0]
    first[:] = 9
    assert (add(x, x)[0] == 2).all() and (first == 9).all()


def test_empty_arrays(add):
    assert add(np.ones((0, 3), F), np.ones((0, 3), F))[0].shape == (0, 3)


def test_sizes_that_depend_on_data():
    proto = model(
        [node("NonZero", ["x"], ["i"]), node("Shape", ["i"], ["s"]), node("Cast", ["i"], ["f"], to=1),
         node("Mul", ["f", "two"], ["y"])],
        {"x": (F, ["n"])},
        ["y", "s"],
        {"two": np.float32(2)},
    )  # fmt: skip
    m = accord.load(proto)
    for content in ([0, 1, 0, 2], [0, 0], [1, 1, 1]):
        x = np.array(content, F)
        y, s = m(x)
        np.testing.assert_array_equal(y, 2.0 * np.array(np.nonzero(x)))
        np.testing.assert_array_equal(s, [1, np.count_nonzero(x)])


def test_a_view_of_a_late_value_that_has_a_known_size():
    """The value's memory is made while running, the view's is planned: the data must be carried over."""
    proto = model(
        [
            node("NonZero", ["x"], ["i"]),
            node("Not", ["b"], ["n"]),
            node("NonZero", ["n"], ["j"]),
            node("Concat", ["i", "j"], ["c"], axis=1),
            node("Shape", ["x"], ["s"]),
            node("Reshape", ["c", "s"], ["y"]),
        ],
        {"x": (np.bool_, ["n"]), "b": (np.bool_, ["n"])},
        ["y"],
    )
    m = accord.load(proto)
    for bits in ([1, 0, 1], [0, 0, 1, 1, 0]):
        x = np.array(bits, bool)
        np.testing.assert_array_equal(m(x, x)[0], [*np.flatnonzero(x), *np.flatnonzero(~x)])


def body(nodes, inputs, outputs):
    infos = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
    return helper.make_graph(nodes, "body", infos, [onnx.ValueInfoProto(name=o) for o in outputs])


def test_loop_with_growing_state_and_captured_values():
    step = body(
        [
            node("Concat", ["a", "x"], ["b"], axis=0),
            node("Identity", ["c"], ["d"]),
            node("ReduceSum", ["b"], ["s"], keepdims=0),
        ],
        [("i", 7, []), ("c", 9, []), ("a", 1, [None])],
        ["d", "b", "s"],
    )
    proto = model(
        [node("Loop", ["n", "", "x"], ["y", "sums"], body=step)], {"n": (np.int64, []), "x": (F, ["k"])}, ["y", "sums"]
    )
    m = accord.load(proto)
    x = np.arange(3, dtype=F)
    for n in (0, 1, 4):
        y, sums = m(np.array(n), x)
        np.testing.assert_array_equal(y, np.tile(x, n + 1))
        np.testing.assert_array_equal(sums, [3 * (k + 2) for k in range(n)])


def test_a_body_reads_an_outer_value_whose_size_only_a_run_tells():
    """Its size is a sum of two that only a run tells: no symbol of it is one of the body's own."""
    step = body(
        [
            node("Gather", ["both", "i"], ["row"], axis=0),
            node("ReduceSum", ["row"], ["r"], keepdims=0),
            node("Add", ["a", "r"], ["b"]),
            node("Identity", ["c"], ["d"]),
        ],
        [("i", 7, []), ("c", 9, []), ("a", 7, [])],
        ["d", "b"],
    )
    nodes = [
        node("NonZero", ["x"], ["p"]),
        node("NonZero", ["z"], ["q"]),
        node("Concat", ["p", "q"], ["joined"], axis=1),
        node("Transpose", ["joined"], ["both"], perm=[1, 0]),
        node("Loop", ["n", "", "zero"], ["y"], body=step),
    ]
    constants = {"zero": np.array(0, np.int64)}
    m = accord.load(model(nodes, {"n": (np.int64, []), "x": (F, ["k"]), "z": (F, ["l"])}, ["y"], constants))
    x, z = np.array([0, 1, 1, 0, 1], F), np.array([0, 0, 5], F)
    assert m(np.array(4), x, z)[0] == 1 + 2 + 4 + 2
    assert m(np.array(2), x, z)[0] == 1 + 2


@pytest.mark.parametrize(("factor", "shift"), [(-1, 0), (1, -2), (-1, 3)])
@pytest.mark.parametrize("which", ["from", "to"])
def test_slices_whose_bounds_are_sizes_of_either_sign(factor, shift, which):
    """``x[:, -n:]``, ``x[:, : n - 2]``: planned before the run, whichever end the bound turns out to count from."""
    bound = [
        node("Shape", ["z"], ["n"]), node("Mul", ["n", "factor"], ["fn"]), node("Add", ["fn", "shift"], ["b"]),
        node("Slice", ["x", "b", "far", "one"] if which == "from" else ["x", "zero", "b", "one"], ["part"]),
        node("Neg", ["part"], ["y"]),
    ]  # fmt: skip
    numbers = {"factor": factor, "shift": shift, "far": 2**40, "one": 1, "zero": 0}
    constants = {k: np.array([v], np.int64) for k, v in numbers.items()}
    m = accord.load(model(bound, {"x": (F, [2, "k"]), "z": (F, ["n"])}, ["y"], constants))
    assert not any(s.late for s in m.plan.steps)
    for k, n in itertools.product((0, 1, 3, 8), (0, 1, 2, 3, 4, 9, 20)):
        x, b = np.arange(2 * k, dtype=F).reshape(2, k), factor * n + shift
        np.testing.assert_array_equal(m(x, np.zeros(n, F))[0], -(x[:, b:] if which == "from" else x[:, :b]))


def test_what_is_given_as_to_a_session_is_an_error_that_says_so():
    m = accord.load(model([node("Relu", ["x"], ["y"])], {"x": (F, ["n"])}, ["y"]))
    with pytest.raises(InputError, match="InferenceSession"):
        m.run(None, {"x": np.zeros(3, F)})


def test_if_returns_values_of_the_outer_graph():
    then, other = body([node("Identity", ["r"], ["t"])], [], ["t"]), body([node("Neg", ["r"], ["e"])], [], ["e"])
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("If", ["c"], ["v"], then_branch=then, else_branch=other),
            node("Abs", ["v"], ["y"]),
        ],
        {"c": (np.bool_, []), "x": (F, ["n"])},
        ["y", "v"],
    )
    m = accord.load(proto)
    x = np.array([1, -2], F)
    np.testing.assert_array_equal(m(np.array(True), x)["v"], [1, 0])
    np.testing.assert_array_equal(m(np.array(False), x)["v"], [-1, 0])


def test_an_index_outside_its_axis_is_an_error_that_names_the_node():
    m = accord.load(
        model([node("Gather", ["t", "i"], ["y"], name="pick")], {"t": (F, ["n", 2]), "i": (np.int64, ["k"])}, ["y"])
    )
    t = np.arange(6, dtype=F).reshape(3, 2)
    np.testing.assert_array_equal(m(t, np.array([2, -1]))[0], t[[2, -1]])
    for bad in (3, -4, 2**40):
        with pytest.raises(ExecutionError, match="pick"):
            m(t, np.array([bad]))
    np.testing.assert_array_equal(m(t, np.array([0]))[0], t[[0]])


def test_strict_mode_refuses_the_reference_backend():
    encode = node("LabelEncoder", ["x"], ["y"], "one", domain="ai.onnx.ml", keys_int64s=[1], values_int64s=[2])
    proto = model([encode], {"x": (np.int64, [2])}, ["y"], domains={"ai.onnx.ml": 2})
    with pytest.raises(FallbackError, match=r"one.*LabelEncoder"):
        accord.load(proto, strict=True)
    assert accord.load(proto)(np.array([1, 5]))[0].tolist() == [2, -1]


def test_an_unknown_device_lists_those_there_are():
    with pytest.raises(BackendError, match=r"cpu, cuda, null"):
        accord.load(model([node("Relu", ["x"], ["y"])], {"x": (F, [1])}, ["y"]), device="tpu")


def test_the_null_device_plans_and_runs_nothing():
    m = accord.load(
        model([node("MatMul", ["x", "w"], ["y"])], {"x": (F, ["n", 4])}, ["y"], {"w": np.ones((4, 5), F)}),
        device="null",
    )
    out = m(np.ones((3, 4), F))[0]
    assert out.shape == (3, 5) and not out.any()


def chain(length: int):
    nodes = [node("Sin", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    nodes += [node("MatMul", [f"v{length}", "w"], ["y"])]
    return model(nodes, {"v0": (F, ["n", 64])}, ["y"], {"w": np.eye(64, dtype=F)})


def test_memory_is_known_before_the_run_and_shared():
    memory = accord.load(chain(20), level=1).memory({"v0": (1000, 64)})
    block = 1000 * 64 * 4
    assert memory["arena"] <= 2 * block + 64 * 64 * 4 * 4
    assert memory["unshared"] >= 20 * block
    assert memory["constants"] == 64 * 64 * 4


def test_a_steady_run_allocates_only_what_it_returns():
    import tracemalloc

    m = accord.load(chain(20))
    x = RNG.standard_normal((2000, 64)).astype(F)
    m(x)
    tracemalloc.start()
    y = m(x)[0]
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < y.nbytes + 64 * 1024, (size, peak, y.nbytes)


def test_a_new_shape_compiles_nothing(monkeypatch):
    m = accord.load(chain(3))
    m(np.ones((2, 64), F))
    from accord.backends.cpu import jit

    def refuse(*_args):
        raise AssertionError("machine code was generated for a new shape")

    monkeypatch.setattr(jit, "_map", refuse)
    for n in (1, 7, 300):
        x = RNG.standard_normal((n, 64)).astype(F)
        np.testing.assert_allclose(m(x)[0], np.sin(np.sin(np.sin(x))), rtol=1e-5, atol=1e-6)


def test_threads_share_one_model():
    m = accord.load(chain(4))
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            x = rng.standard_normal((int(rng.integers(1, 40)), 64)).astype(F)
            want = np.sin(np.sin(np.sin(np.sin(x))))
            if not np.allclose(m(x)[0], want, rtol=1e-4, atol=1e-5):
                failures.append(f"seed {seed}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_trim_gives_memory_back():
    m = accord.load(chain(4))
    m(np.ones((1000, 64), F))
    assert m.trim() > 0
    assert m(np.zeros((2, 64), F))[0].shape == (2, 64)


def test_errors_survive_pickling():
    import pickle

    error = InputError("wrong", node="a", op="Add", value="x", expected=1, found=2, remedy="Do.")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, AccordError) and str(again) == str(error) and again.node == "a"


def test_a_failed_run_keeps_no_array_of_the_caller_alive():
    import gc
    import weakref

    m = accord.load(
        model(
            [node("NonZero", ["x"], ["j"]), node("Gather", ["t", "i"], ["y"])],
            {"x": (F, ["n"]), "t": (F, ["m", 2]), "i": (np.int64, ["k"])},
            ["y", "j"],
        )
    )
    x = np.ones(1000, F)
    with pytest.raises(ExecutionError):
        m(x, np.ones((3, 2), F), np.array([7]))
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("index", [0, 3, -14])
@pytest.mark.parametrize("order", [["part", "whole"], ["whole", "part"]])
@pytest.mark.parametrize("size", [16, None])
def test_a_part_of_an_output_is_an_output_too(index: int, order: list[str], size: int | None) -> None:
    """The array that both are in is as large as the whole, whichever comes first."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Reshape", ["r", "to"], ["whole"]),
        node("Gather", ["whole", "index"], ["part"], axis=0),
        node("Neg", ["part"], ["n"]),
    ]
    constants = {"to": np.array([-1, 1], np.int64), "index": np.array(index, np.int64)}
    proto = model(nodes, {"x": (np.float32, [size])}, [*order, "n"], constants)
    x = np.linspace(-1, 1, 16, dtype=np.float32)
    for level in range(4):
        found = dict(zip([*order, "n"], accord.load(proto.SerializeToString(), level=level)(x), strict=True))
        np.testing.assert_array_equal(found["whole"], np.maximum(x, 0).reshape(-1, 1))
        np.testing.assert_array_equal(found["part"], found["whole"][index])
        np.testing.assert_array_equal(found["n"], -found["part"])


def test_a_refused_run_leaves_nothing_behind():
    """Two steps refuse the same index; the run after it is as if there had been none."""
    nodes = [node("Gather", ["x", "i"], ["a"]), node("Gather", ["y", "i"], ["b"]), node("Add", ["a", "b"], ["z"])]
    m = accord.load(model(nodes, {"x": (F, [3]), "y": (F, [3]), "i": (np.int64, ["n"])}, ["z"]))
    x = np.arange(3, dtype=F)
    for _ in range(3):
        with pytest.raises(ExecutionError, match="outside its axis"):
            m({"x": x, "y": x, "i": np.array([0, 5])})
        np.testing.assert_array_equal(m({"x": x, "y": x, "i": np.array([0, 2])})[0], [0, 4])
