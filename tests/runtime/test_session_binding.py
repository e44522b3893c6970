"""OrtValue and IOBinding beside ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from session_harness import FEED, X, Y, check_same, ours, theirs

import accord
from accord.errors import BackendError, ExecutionError, InputError
from accord.runtime.returned import ReturnedMemory

TWO = """<ir_version: 8, opset_import: ["":17]> g (float[N,3] x) => (float[N,3] a, float[N,3] b, float[N,3] same)
{ a = Neg(x)  b = Mul(a, x)  same = Identity(x) }"""


# OrtValue


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_])
def test_values_describe_themselves_alike(dtype: Any) -> None:
    array = np.zeros((2, 3), dtype)
    a, b = accord.OrtValue.ortvalue_from_numpy(array), onnxruntime.OrtValue.ortvalue_from_numpy(array)
    for name in (
        "shape",
        "data_type",
        "element_type",
        "device_name",
        "has_value",
        "is_tensor",
        "is_sparse_tensor",
        "is_tensor_sequence",
        "tensor_size_in_bytes",
        "data_ptr",
    ):
        assert getattr(a, name)() == getattr(b, name)(), name


def test_values_share_memory() -> None:
    x = X.copy()
    value = accord.OrtValue.ortvalue_from_numpy(x)
    assert np.shares_memory(value.numpy(), x)
    assert np.shares_memory(np.from_dlpack(value), x)
    assert np.shares_memory(np.asarray(value), x)
    assert value.__dlpack_device__() == (1, 0)
    assert np.shares_memory(accord.OrtValue.from_dlpack(x).numpy(), x)
    assert not np.shares_memory(accord.OrtValue.ortvalue_from_numpy(x.T).numpy(), x)
    np.testing.assert_array_equal(accord.OrtValue.ortvalue_from_numpy(x.T).numpy(), x.T)


def test_values_are_updated_in_place() -> None:
    x = X.copy()
    value = accord.OrtValue.ortvalue_from_numpy(x)
    value.update_inplace(X * 2)
    np.testing.assert_array_equal(x, X * 2)
    value.update_inplace(accord.OrtValue.ortvalue_from_numpy(X))
    np.testing.assert_array_equal(x, X)
    for wrong in (X[:1], X.astype(np.float64), "x"):
        with pytest.raises(InputError):
            value.update_inplace(wrong)


def test_values_from_shape_and_type() -> None:
    for kind in (np.float32, np.dtype(np.float32), 1, "float32"):
        value = accord.OrtValue.ortvalue_from_shape_and_type([2, 3], kind)
        assert (value.shape(), value.data_type()) == ([2, 3], "tensor(float)")


def test_narrow_types() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    value = accord.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    same = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    assert (
        (value.data_type(), value.element_type()) == (same.data_type(), same.element_type()) == ("tensor(bfloat16)", 16)
    )
    np.testing.assert_array_equal(value.numpy().astype(np.float32), [1, 2])
    with pytest.raises(InputError, match="differ in size"):
        accord.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 1)


def test_sequences_maps_and_absent_values() -> None:
    sequence = accord.OrtValue([X])
    assert (sequence.data_type(), sequence.is_tensor_sequence()) == ("seq(tensor(float))", True)
    assert accord.OrtValue({1: np.float32(2)}).data_type() == "map(int64,tensor(float))"
    absent = accord.OrtValue(None)
    assert not absent.has_value()
    for call in (absent.numpy, sequence.shape, sequence.data_ptr):
        with pytest.raises(InputError):
            call()


@pytest.mark.parametrize(("device", "number"), [("cuda", -1), ("cpu", 1), ("none", 0)])
def test_other_devices_are_refused(device: str, number: int) -> None:
    with pytest.raises(BackendError, match="not supported"):
        accord.OrtValue.ortvalue_from_numpy(X, device, number)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(InputError, match="an array is needed"):
        accord.OrtValue.ortvalue_from_numpy([1, 2])
    with pytest.raises(InputError, match="DLPack"):
        accord.OrtValue.from_dlpack(3)
    with pytest.raises(InputError, match="no ONNX element type"):
        accord.OrtValue.ortvalue_from_shape_and_type([1], "datetime64[s]")


def test_run_with_values() -> None:
    def feed(module: Any) -> dict[str, Any]:
        return {n: module.OrtValue.ortvalue_from_numpy(v) for n, v in FEED.items()}

    a = ours().run_with_ort_values(["b", "a"], feed(accord))
    b = theirs().run_with_ort_values(["b", "a"], feed(onnxruntime))
    check_same([v.numpy() for v in a], [v.numpy() for v in b])
    check_same(ours().run(None, feed(accord)), theirs().run(None, feed(onnxruntime)))


# IOBinding


def bound(session: Any, arrays: dict[str, Any]) -> Any:
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_cpu_input(name, array)
    return binding


def bind_memory(binding: Any, name: str, array: Any) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def test_bound_outputs_are_written_to_the_callers_memory() -> None:
    for session in (ours(TWO), theirs(TWO)):
        out = np.full((2, 3), 7, np.float32)
        binding = bound(session, {"x": X})
        binding.bind_output("b")
        bind_memory(binding, "a", out)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(out, -X)
        check_same(binding.copy_outputs_to_cpu(), [-X * X, -X])
        assert [v.shape() for v in binding.get_outputs()] == [[2, 3], [2, 3]]
        assert binding.get_outputs()[1].data_ptr() == out.ctypes.data


def test_a_bound_output_takes_no_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ours(TWO)
    made: list[Any] = []
    original = ReturnedMemory.array

    def array(self: Any, shape: Any, dtype: Any) -> Any:
        made.append(shape)
        return original(self, shape, dtype)

    monkeypatch.setattr(ReturnedMemory, "array", array)
    session.run(None, {"x": X})
    unbound = len(made)
    made.clear()
    out = np.empty((2, 3), np.float32)
    binding = bound(session, {"x": X})
    bind_memory(binding, "a", out)
    session.run_with_iobinding(binding)
    assert len(made) == unbound - 1
    np.testing.assert_array_equal(out, -X)


def test_binding_by_address_and_value() -> None:
    session = ours(TWO)
    x = X.copy()
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    target = accord.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.bind_ortvalue_output("a", target)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), -X)
    x += 1  # read again at the next run
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), -(X + 1))
    binding.bind_ortvalue_input("x", accord.OrtValue.ortvalue_from_numpy(X))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), -X)


def test_memory_that_overlaps_an_input() -> None:
    session = ours(TWO)
    x = X.copy()
    binding = bound(session, {"x": x})
    bind_memory(binding, "a", x)
    binding.bind_output("b")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(x, -X)
    np.testing.assert_array_equal(binding.get_outputs()[1].numpy(), -X * X)  # computed from x as it was


def test_an_output_that_is_the_input() -> None:
    session = ours(TWO)
    out = np.empty((2, 3), np.float32)
    binding = bound(session, {"x": X})
    bind_memory(binding, "same", out)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out, X)


@pytest.mark.parametrize("target", [np.empty((3, 3), np.float32), np.empty((2, 3), np.float64)], ids=["shape", "dtype"])
def test_memory_that_does_not_fit(target: Any) -> None:
    for session in (ours(TWO), theirs(TWO)):
        binding = bound(session, {"x": X})
        bind_memory(binding, "a", target)
        with pytest.raises((InputError, RuntimeError)):
            session.run_with_iobinding(binding)
    assert ours(TWO).run(["a"], {"x": X})[0].shape == (2, 3)


def test_names_and_devices_are_checked_when_bound() -> None:
    binding = ours(TWO).io_binding()
    with pytest.raises(InputError, match="no input 'z'"):
        binding.bind_cpu_input("z", X)
    with pytest.raises(InputError, match="no output 'z'"):
        binding.bind_output("z")
    with pytest.raises(BackendError):
        binding.bind_output("a", "cuda")
    with pytest.raises(BackendError):
        binding.bind_input("x", "cuda", 0, np.float32, X.shape, X.ctypes.data)
    with pytest.raises(InputError, match="needs a dtype"):
        binding.bind_output("a", "cpu", 0, None, None, X.ctypes.data)
    with pytest.raises(InputError, match="no address"):
        binding.bind_input("x", "cpu", 0, np.float32, X.shape, 0)
    with pytest.raises(InputError, match="negative"):
        binding.bind_input("x", "cpu", 0, np.float32, (-1, 3), X.ctypes.data)
    with pytest.raises(InputError, match="strings"):
        binding.bind_input("x", "cpu", 0, np.object_, X.shape, X.ctypes.data)
    with pytest.raises(InputError, match="bound to tensors"):
        binding.bind_ortvalue_output("a", accord.OrtValue([X]))


def test_what_is_missing_and_cleared() -> None:
    session = ours()
    binding = bound(session, {"x": X, "y": Y})
    with pytest.raises(InputError, match="no output is bound"):
        session.run_with_iobinding(binding)
    binding.bind_output("c")
    session.run_with_iobinding(binding)
    check_same(binding.copy_outputs_to_cpu(), [np.array([2])])
    binding.clear_binding_inputs()
    with pytest.raises(InputError, match="missing input"):
        session.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    assert binding.copy_outputs_to_cpu() == []
    stop = accord.RunOptions()
    stop.terminate = True
    binding.bind_output("c")
    with pytest.raises(ExecutionError):
        session.run_with_iobinding(binding, stop)


def test_copies_do_not_share_memory() -> None:
    session = ours(TWO)
    binding = bound(session, {"x": X})
    binding.bind_output("a")
    session.run_with_iobinding(binding)
    copied = binding.copy_outputs_to_cpu()[0]
    assert not np.shares_memory(copied, binding.get_outputs()[0].numpy())
    binding.synchronize_inputs()
    binding.synchronize_outputs()
