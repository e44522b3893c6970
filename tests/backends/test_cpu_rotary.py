"""Rotary embedding against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import agree, strided_model

from accord.errors import ExecutionError
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2, 7]),
    st.sampled_from([2, 8, 20, 64]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["float32", "float16"]),
    st.integers(0, 2**32 - 1),
)
def test_rotary_embedding(images, heads, length, size, packed, interleaved, partial, looked_up, dtype, seed):
    rng = np.random.default_rng(seed)
    width = max(2, size // 4 * 2) if partial else size
    shape = (images, length, heads * size) if packed else (images, heads, length, size)
    angles = rng.uniform(-3, 3, (11 if looked_up else images, *(() if looked_up else (length,)), width // 2))
    feeds = {"x": rng.standard_normal(shape).astype(dtype)}
    feeds |= {"c": np.cos(angles).astype(dtype), "s": np.sin(angles).astype(dtype)}
    if looked_up:
        feeds["p"] = rng.integers(0, 11, (images, length))
    attributes = {"interleaved": int(interleaved)}
    attributes |= {"rotary_embedding_dim": width} if partial else {}
    attributes |= {"num_heads": heads} if packed else {}
    op = node("RotaryEmbedding", list(feeds), ["y"], **attributes)
    proto, feeds = strided_model(op, feeds, seed=seed, symbolic=bool(seed % 2))
    tolerance = 3e-3 if dtype == "float16" else 1e-5
    agree(proto, feeds, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_outside_the_caches_is_refused(position):
    op = node("RotaryEmbedding", ["x", "c", "s", "p"], ["y"])
    feeds = {"x": np.ones((1, 1, 1, 4), np.float32), "p": np.array([[position]])}
    feeds |= dict.fromkeys("cs", np.ones((3, 2), np.float32))
    compiled = Model(model([op], {n: (a.dtype, a.shape) for n, a in feeds.items()}, ["y"]), Options(strict=True))
    with pytest.raises(ExecutionError, match="outside"):
        compiled(feeds)


def test_it_is_done_in_place():
    nodes = [node("Neg", ["x"], ["n"]), node("RotaryEmbedding", ["n", "c", "s"], ["r"]), node("Neg", ["r"], ["y"])]
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((2, 3, 40, 64)).astype(np.float32)}
    feeds |= {n: rng.standard_normal((2, 40, 32)).astype(np.float32) for n in "cs"}
    proto = model(nodes, {n: (a.dtype, a.shape) for n, a in feeds.items()}, ["y"])
    compiled = agree(proto, feeds, rtol=1e-5, atol=1e-6)
    slots = {s.name: s for s in compiled.plan.slots}
    assert slots["r"].root == slots["n"].root
