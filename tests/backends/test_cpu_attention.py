"""Attention in blocks against the reference: sizes, groups, masks, windows, the past, types, strides."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import agree, strided_model

from accord.backends.cpu.attention import BLOCK_PANELS, KEY_VECTORS, block_rows
from accord.backends.cpu.machine import machine
from accord.runtime.model import Model
from accord.runtime.pipeline import Options
from builders import model, node

SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
KEYS = BLOCK_PANELS * KEY_VECTORS * machine().width(32)  # of one block
lengths = st.sampled_from([1, 2, 5, 8, 9, 17, 49])


def dtype_of(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype_of(dtype))


def mask_of(rng: np.random.Generator, kind: str, dtype: str, full: tuple[int, ...]) -> np.ndarray:
    """A mask that broadcasts to ``full``: bool, or numbers with minus infinity or the least number among them."""
    rank = int(rng.integers(2, 5))
    shape = [1 if rng.random() < 0.4 else n for n in full[4 - rank :]]
    shape[-1] = max(1, full[-1] - int(rng.integers(0, 3)))
    if kind == "bool":
        return rng.random(shape) < 0.7
    values = rng.standard_normal(shape)
    hidden = rng.random(shape) < 0.2
    if kind == "float" or dtype == "float16":  # whose least number plus a score is not that number
        return np.where(hidden, -np.inf, values).astype(dtype_of(dtype))
    hidden[..., :1, :] = True  # a query that sees nothing else
    return np.where(hidden, float(ml_dtypes.finfo(dtype_of(dtype)).min), values).astype(dtype_of(dtype))


@st.composite
def cases(draw):
    return {
        "images": draw(st.integers(1, 2)),
        "groups": draw(st.integers(1, 2)),
        "members": draw(st.sampled_from([1, 1, 3])),
        "length": draw(lengths),
        "keys": draw(lengths),
        "size": draw(st.sampled_from([4, 16, 20, 32])),
        "value_size": draw(st.sampled_from([4, 16, 20, 32, 48])),
        "dtype": draw(st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"])),
        "packed": draw(st.booleans()),
        "mask": draw(st.sampled_from([None, "bool", "float", "least"])),
        "past": draw(st.sampled_from([None, 0, 7])),
        "valid": draw(st.booleans()),
        "causal": draw(st.booleans()),
        "softcap": draw(st.sampled_from([0.0, 3.0])),
        "scale": draw(st.sampled_from([None, 0.3])),
        "present": draw(st.booleans()),
    }


@SETTINGS
@given(cases(), st.integers(0, 2**32 - 1), st.booleans())
def test_attention(case, seed, symbolic):
    rng = np.random.default_rng(seed)
    c = case
    heads = c["groups"] * c["members"]

    def tensor(count: int, length: int, size: int) -> np.ndarray:
        shape = (c["images"], length, count * size) if c["packed"] else (c["images"], count, length, size)
        return numbers(rng, shape, c["dtype"])

    feeds = {
        "q": tensor(heads, c["length"], c["size"]),
        "k": tensor(c["groups"], c["keys"], c["size"]),
        "v": tensor(c["groups"], c["keys"], c["value_size"]),
    }
    total = c["keys"] + (c["past"] or 0)
    names = ["q", "k", "v", "", "", "", ""]
    if c["mask"] is not None:
        feeds["m"] = mask_of(rng, c["mask"], c["dtype"], (c["images"], heads, c["length"], total))
        names[3] = "m"
    if c["past"] is not None:
        feeds["pk"] = numbers(rng, (c["images"], c["groups"], c["past"], c["size"]), c["dtype"])
        feeds["pv"] = numbers(rng, (c["images"], c["groups"], c["past"], c["value_size"]), c["dtype"])
        names[4:6] = ["pk", "pv"]
    elif c["valid"]:
        feeds["n"] = rng.integers(0, total + 1, c["images"])
        names[6] = "n"
    while not names[-1]:
        names.pop()
    attributes = {"is_causal": int(c["causal"]), "softcap": c["softcap"]}
    if c["scale"] is not None:
        attributes["scale"] = c["scale"]
    if c["packed"]:
        attributes |= {"q_num_heads": heads, "kv_num_heads": c["groups"]}
    outputs = ["y", "a", "b"] if c["present"] else ["y"]
    proto, feeds = strided_model(node("Attention", names, outputs, **attributes), feeds, seed=seed, symbolic=symbolic)
    tolerance = TOLERANCE[c["dtype"]]
    agree(proto, feeds, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    ("length", "keys"),
    [(block_rows("f32") + 3, KEYS + 5), (8 * block_rows("f32") + 1, 40), (3, 3 * KEYS), (200, 2 * KEYS)],
)
def test_several_blocks(length, keys, causal):
    rng = np.random.default_rng(length)
    feeds = {n: numbers(rng, (1, 2, m, 32), "float32") for n, m in (("q", length), ("k", keys), ("v", keys))}
    proto, feeds = strided_model(node("Attention", ["q", "k", "v"], ["y"], is_causal=causal), feeds)
    agree(proto, feeds, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("left", "right"), [(0, -1), (5, -1), (-1, 3), (2, 2), (300, 0)])
@pytest.mark.parametrize("past", [0, 9])
def test_windows(left, right, past):
    rng = np.random.default_rng(left + 7)
    feeds = {n: numbers(rng, (1, 2, 70, 16), "float32") for n in "qkv"}
    names = ["q", "k", "v"]
    if past:
        feeds |= {n: numbers(rng, (1, 2, past, 16), "float32") for n in ("pk", "pv")}
        names += ["", "pk", "pv"]
    op = node("Attention", names, ["y"], left_window_size=left, right_window_size=right)
    declared = {n: (np.float32, a.shape) for n, a in feeds.items()}
    proto = model([op], declared, ["y"], opset=27)
    agree(proto, feeds, rtol=1e-4, atol=1e-5)


def test_scores_of_any_size_stay_finite():
    rng = np.random.default_rng(1)
    q = (rng.standard_normal((1, 1, 60, 16)) * 1e4).astype(np.float32)
    proto, feeds = strided_model(node("Attention", ["q", "q", "q"], ["y"]), {"q": q})
    (y,) = agree(proto, feeds, rtol=1e-3)(feeds)
    assert np.isfinite(y).all()


def test_a_row_that_sees_nothing_gives_zeros():
    rng = np.random.default_rng(2)
    feeds = {n: numbers(rng, (1, 1, 50, 16), "float32") for n in "qkv"}
    feeds["m"] = np.ones((50, 50), bool)
    feeds["m"][::7] = False
    feeds["k"][0, 0, 3] = np.nan  # what is masked has no say
    feeds["m"][:, 3] = False
    op = node("Attention", ["q", "k", "v", "m"], ["y"])
    compiled = Model(model([op], {n: (a.dtype, a.shape) for n, a in feeds.items()}, ["y"]), Options(strict=True))
    (y,) = compiled(feeds)
    assert np.isfinite(y).all() and not y[0, 0, ::7].any() and y[0, 0, 1].all()


def test_scores_need_no_matrix():
    """Memory grows with the length, not with its square."""
    op = node("Attention", ["q", "k", "v"], ["y"], q_num_heads=4, kv_num_heads=4)
    declared = {n: (np.float32, [1, "n", 128]) for n in "qkv"}
    compiled = Model(model([op], declared, ["y"]), Options(strict=True, threads=1))
    assert compiled.memory(dict.fromkeys("qkv", (1, 4096, 128)))["arena"] < 4 << 20
