"""Where elements are not zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from accord.backends.cpu import selection

TYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i8": np.int8, "u16": np.uint16, "bool": np.bool_}


def sparse(shape: tuple[int, ...], dtype: str, share: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < share, rng.integers(1, 100, shape), 0).astype(TYPES[dtype])


@settings(max_examples=150, deadline=None)
@given(
    array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
    st.sampled_from([*TYPES]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.integers(0, 99),
)
def test_coordinates(shape, dtype, share, seed):
    x = sparse(shape, dtype, share, seed)
    found = selection.coordinates_of(x, dtype)
    assert found.dtype == np.int64 and found.flags.c_contiguous
    np.testing.assert_array_equal(found, np.stack(np.nonzero(np.atleast_1d(x)))[: x.ndim])
    assert found.shape == (x.ndim, np.count_nonzero(x))


@pytest.mark.parametrize("size", [selection.BLOCK - 1, selection.BLOCK, selection.BLOCK + 1, 3 * selection.BLOCK + 5])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_more_than_a_block(size, share):
    x = sparse((size,), "f32", share, 1)
    np.testing.assert_array_equal(selection.coordinates_of(x, "f32"), np.stack(np.nonzero(x)))
    square = x[: size // 7 * 7].reshape(7, -1)
    np.testing.assert_array_equal(selection.coordinates_of(square, "f32"), np.stack(np.nonzero(square)))


def test_what_counts_as_zero():
    x = np.array([0.0, -0.0, np.nan, np.inf, 1e-45], np.float32)
    assert selection.coordinates_of(x, "f32").tolist() == [[2, 3, 4]]
