"""DLPack: what NumPy makes of our capsules, and what we make of NumPy's."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from accord.backends import dlpack
from accord.errors import InputError

CPU = (1, 0)


class Exporter:
    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return CPU

    def __dlpack__(self, **_):
        a = self.array
        return dlpack.capsule_of(a.ctypes.data, a.shape, a.dtype, self, CPU)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint16", "float16", "float32", "float64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 3)])
def test_numpy_takes_our_capsules(dtype, shape):
    array = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    exporter = Exporter(array)
    alive = weakref.ref(exporter)
    taken = np.from_dlpack(exporter)
    np.testing.assert_array_equal(taken, array)
    assert taken.dtype == array.dtype
    del exporter
    gc.collect()
    assert alive() is not None, "the memory is in use"
    del taken
    gc.collect()
    assert alive() is None


def test_a_capsule_that_nobody_takes_is_freed():
    exporter = Exporter(np.zeros(3))
    alive = weakref.ref(exporter)
    capsule = exporter.__dlpack__()
    del exporter
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("array", [np.arange(24.0).reshape(2, 3, 4), np.arange(6)[::2], np.ones((2, 3), "i2").T])
def test_we_take_numpys(array):
    found = dlpack.taken(array, None)
    assert (found.address, found.shape, found.dtype) == (array.ctypes.data, array.shape, array.dtype)
    assert found.strides == array.strides


def test_types_that_dlpack_does_not_have():
    with pytest.raises(InputError, match="no such element type"):
        dlpack.capsule_of(0, (1,), np.dtype("datetime64[s]"), None)
