"""Attention in Triton beside NumPy in float64; no GPU is needed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (190 MB; pip install 'accord[cuda]')")

from disassembly import disassembled
from gluon_harness import run_gluon
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton_harness import NUMPY, compiled, function_of, memory

from accord.backends.cuda.attention import JoiningKernel, Tiles, attention_kernel, candidates, geometry, splits
from accord.backends.cuda.attention_choice import plain_launch
from accord.backends.cuda.code import Variant, binary_of, exact_hints, hints_of
from accord.backends.cuda.hopper import HopperAttention, HopperTiles, hopper_candidates, hopper_geometry, suits_hopper
from accord.backends.heads import Features, Heads
from accord.errors import CompileError
from accord.expr.lang import call, operand
from accord.expr.primitives import le, select
from accord.ir.strides import Access
from accord.kernels.architectures import ARCHITECTURES, over_limits
from accord.kernels.interpreter import interpret_elsewhere

Array = np.ndarray[Any, Any]
SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
TOLERANCE = {"f32": 1e-5, "f16": 4e-3, "bf16": 4e-2}
SCORES = {
    "none": None,
    # linear biases: scores fall with distance
    "alibi": operand(0, "f32")
    - call("exp2", (operand(3, "f32") + 1.0) * -8.0 / operand(4, "f32")) * (operand(1, "f32") - operand(2, "f32")),
    "prefix": select(le(operand(2, "f32"), operand(1, "f32")), operand(0, "f32"), -math.inf),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("triton")


class Case:
    """Operands of one case, and what attention of them is."""

    def __init__(self, c: dict[str, Any], seed: int) -> None:
        self.c = c
        self.rng = np.random.default_rng(seed)
        self.heads = c["groups"] * c["members"]
        self.tensors = {
            "q": self._tensor(self.heads, c["length"], c["size"]),
            "k": self._tensor(c["groups"], c["keys"], c["size"]),
            "v": self._tensor(c["groups"], c["keys"], c["value_size"]),
            "y": self._tensor(self.heads, c["length"], c["value_size"]),
        }
        for name, (data, _) in self.tensors.items():  # what is between and behind the rows
            inside = self.read(name).copy()
            data[:] = 7 if name == "y" else np.nan
            self.read(name)[:] = 7 if name == "y" else inside
        self.mask = self._mask()
        self.valid = self.rng.integers(0, c["keys"] + 2, c["images"]) if c["valid"] else None

    def _tensor(self, count: int, length: int, size: int) -> tuple[Array, Access]:
        """Heads after each other, or rows of all heads; something else is between rows, and behind the last."""
        images, dtype = self.c["images"], NUMPY[self.c["dtype"]]
        row = count * size + 3 if self.c["rows"] else size
        whole = length + self.c.get("behind", 0)
        strides = (whole * row, size, row, 1) if self.c["rows"] else (count * whole * size, whole * size, size, 1)
        block = self.rng.standard_normal(images * strides[0] + 2)
        return block.astype(dtype), Access(strides, 2)

    def _mask(self) -> tuple[Array, Access] | None:
        c = self.c
        if c["mask"] is None:
            return None
        full = (c["images"], self.heads, c["length"], max(1, c["keys"] - c["cut"]))
        shape = tuple(1 if b else n for b, n in zip(c["repeats"], full, strict=True))
        values = self.rng.standard_normal(shape)
        low = self.rng.random(shape) < 0.3
        if c["mask"] == "bool":
            data = ~low
        else:
            least = c["least"] and c["mask"] == "f32"  # (float16's least number plus a score is not that number)
            low[..., 0, :] |= least  # a query that sees nothing else
            data = np.where(low, np.finfo(np.float32).min if least else -np.inf, values).astype(NUMPY[c["mask"]])
        steps = [s // data.itemsize for s in data.strides]
        return data, Access(tuple(0 if b else s for b, s in zip(c["repeats"], steps, strict=True)), 0)

    @property
    def features(self) -> Features:
        c = self.c
        mask = None if self.mask is None else Heads(c["mask"], self.mask[1])
        keys = 0 if self.mask is None else max(1, c["keys"] - c["cut"])
        return Features(
            c["scale"], c["softcap"], c["causal"], c["left"], c["right"], c["offset"], 1 if c["valid"] else None, mask,
            keys, SCORES[c["score"]],
        )  # fmt: skip

    def sizes(self) -> dict[str, int]:
        c = self.c
        names = ("images", "groups", "length", "keys", "size")
        return {n: c[n] for n in names} | {"heads": self.heads, "value.size": c["value_size"]}

    def read(self, name: str) -> Array:
        data, access = self.tensors[name]
        count, length, size = {
            "q": (self.heads, self.c["length"], self.c["size"]),
            "k": (self.c["groups"], self.c["keys"], self.c["size"]),
            "v": (self.c["groups"], self.c["keys"], self.c["value_size"]),
            "y": (self.heads, self.c["length"], self.c["value_size"]),
        }[name]
        at = np.lib.stride_tricks.as_strided
        steps = tuple(s * data.itemsize for s in access.strides)
        return at(data[access.offset :], (self.c["images"], count, length, size), steps)

    def expected(self) -> Array:
        c = self.c
        q, k, v = (self.read(n).astype(np.float64) for n in "qkv")
        k, v = (np.repeat(t, c["members"], axis=1) for t in (k, v))
        s = q @ k.swapaxes(2, 3) * c["scale"]
        if c["softcap"]:
            s = c["softcap"] * np.tanh(s / c["softcap"])
        limit = np.full(c["images"], c["keys"])
        here = np.full(c["images"], c["offset"])
        if self.valid is not None:
            limit, here = np.clip(self.valid, 0, c["keys"]), self.valid - c["length"]
        i = here[:, None, None, None] + np.arange(c["length"])[:, None]
        j = np.arange(c["keys"])[None, :]
        h = np.arange(self.heads)[None, :, None, None]
        if c["score"] == "alibi":
            s = s - 2.0 ** (-8 * (h + 1) / self.heads) * (i - j)
        if c["score"] == "prefix":
            s = np.where(j <= i, s, -np.inf)
        seen = j < limit[:, None, None, None]
        seen = seen & (j <= i) if c["causal"] else seen
        seen = seen & (i - j <= c["left"]) if c["left"] >= 0 else seen
        seen = seen & (j - i <= c["right"]) if c["right"] >= 0 else seen
        if self.mask is not None:
            full = np.broadcast_to(self.mask[0], (*s.shape[:3], self.features.mask_keys))
            wide = np.zeros(s.shape, full.dtype)
            wide[..., : full.shape[3]] = full
            seen = seen & (j < full.shape[3])
            seen, s = (seen & wide, s) if c["mask"] == "bool" else (seen, s + wide.astype(np.float64))
        s = np.where(seen, s, -np.inf)
        peak = s.max(3, initial=-np.inf, keepdims=True)
        p = np.exp(s - np.where(np.isneginf(peak), 0, peak))
        total = p.sum(3, keepdims=True)
        return p @ v / np.where(total == 0, 1, total)

    def run(self, folder, tiles: Tiles, *, fixed: bool = True) -> Array:
        """What the kernel makes of them; ``fixed``: sizes are always the same."""
        c = self.c
        heads = [Heads(c["dtype"], access) for _, access in self.tensors.values()]
        kernel, dims = attention_kernel(*heads, self.sizes(), self.features, split=c["split"])
        shape = geometry(kernel, tiles, dims, None if fixed else hints_of(dims))
        sums, stats = (np.full(n + 1, np.nan, np.float32) for n in shape.workspace)
        arrays = {n: data for n, (data, _) in self.tensors.items()} | {"sums": sums, "stats": stats}
        if self.mask is not None:
            arrays["m"] = self.mask[0]
        if self.valid is not None:
            arrays["n"] = self.valid
        values = {n: memory(a) for n, a in arrays.items()} | dict(zip(kernel.names, dims, strict=True))
        values |= shape.constants
        calls = []
        for part, grid in ((kernel, shape.grid), (JoiningKernel(kernel), (shape.joined, 1))):
            if grid[0]:
                function = function_of(folder, part.symbol, part.text())
                calls.append((function, {n: values[n] for n in function.arg_names}, (*grid, 1)))
        interpret_elsewhere(calls, list(arrays.values()), kernel.symbol)
        return self.read("y")


@st.composite
def cases(draw):
    c = {
        "images": draw(st.integers(1, 2)),
        "groups": draw(st.integers(1, 2)),
        "members": draw(st.sampled_from([1, 1, 3])),
        "length": draw(st.sampled_from([1, 2, 5, 17, 40])),
        "keys": draw(st.sampled_from([1, 3, 16, 33, 70])),
        "size": draw(st.sampled_from([4, 16, 20, 40])),
        "value_size": draw(st.sampled_from([4, 16, 20, 48])),
        "dtype": draw(st.sampled_from(["f32", "f32", "f16", "bf16"])),
        "rows": draw(st.booleans()),
        "mask": draw(st.sampled_from([None, None, "bool", "f32", "f16"])),
        "least": draw(st.booleans()),
        "repeats": draw(st.tuples(*[st.booleans()] * 4)),
        "cut": draw(st.integers(0, 3)),
        "valid": draw(st.booleans()),
        "offset": draw(st.sampled_from([0, 0, 7])),
        "causal": draw(st.booleans()),
        "left": draw(st.sampled_from([-1, -1, 0, 9, 2**40])),
        "right": draw(st.sampled_from([-1, -1, 0, 9])),
        "softcap": draw(st.sampled_from([0.0, 0.0, 3.0])),
        "scale": draw(st.sampled_from([0.3, 0.1, -0.2])),
        "score": draw(st.sampled_from(["none", "none", "alibi", "prefix"])),
        "split": draw(st.booleans()),
    }
    c["repeats"] = (*c["repeats"][:3], False) if c["cut"] else c["repeats"]
    return c


@SETTINGS
@given(c=cases(), seed=st.integers(0, 2**32 - 1), tiles=st.sampled_from([Tiles(16, 16, 4, 2), Tiles(32, 16, 4, 2)]))
def test_attention(folder, c, seed, tiles):
    case = Case(c, seed)
    before = case.tensors["y"][0].copy()
    got = case.run(folder, tiles).astype(np.float64)
    near = TOLERANCE[c["dtype"]]
    np.testing.assert_allclose(got, case.expected(), rtol=near, atol=near)
    case.read("y")[:] = 0  # nothing else was written
    after, data = case.tensors["y"][0].copy(), before
    case.tensors["y"][0][:] = data
    case.read("y")[:] = 0
    np.testing.assert_array_equal(after, case.tensors["y"][0])


TAILED = {"valid": False, "causal": False, "left": -1, "right": -1, "split": False, "behind": 40}


@SETTINGS
@given(
    c=cases().map(lambda c: c | TAILED), length=st.sampled_from([17, 33, 40, 70]),
    keys=st.one_of(st.sampled_from([32, 64, 96]), st.integers(30, 100)),
    seed=st.integers(0, 2**32 - 1), fixed=st.booleans(),
    tiles=st.builds(Tiles, st.sampled_from([16, 32]), st.sampled_from([16, 32, 64]), st.just(4), st.just(2)),
)  # fmt: skip
def test_tails(folder, c, length, keys, seed, fixed, tiles):
    """What is left of keys, in a smaller block; there are NaNs behind."""
    case = Case(c | {"length": length, "keys": keys}, seed)
    near = TOLERANCE[c["dtype"]]
    got = case.run(folder, tiles, fixed=fixed).astype(np.float64)
    np.testing.assert_allclose(got, case.expected(), rtol=near, atol=near)
    case.read("y")[:] = 7
    assert (case.tensors["y"][0] == 7).all()  # nothing else was written


@st.composite
def hopper_cases(draw):
    size = draw(st.sampled_from([64, 128]))
    return {
        "images": draw(st.integers(1, 2)),
        "groups": 1,
        "members": draw(st.sampled_from([1, 3])),
        "length": draw(st.sampled_from([1, 64, 65, 128, 200])),
        "keys": draw(st.sampled_from([1, 63, 64, 129, 400])),
        "size": size,
        "value_size": size,
        "dtype": "f16",
        "rows": False,
        "mask": None,
        "repeats": (),
        "cut": 0,
        "valid": draw(st.booleans()),
        "offset": draw(st.sampled_from([0, 0, 70, -30])),
        "causal": draw(st.booleans()),
        "left": draw(st.sampled_from([-1, -1, 0, 90])),
        "right": draw(st.sampled_from([-1, -1, 0, 9])),
        "softcap": draw(st.sampled_from([0.0, 0.0, 3.0])),
        "scale": draw(st.sampled_from([0.1, -0.2])),
        "score": draw(st.sampled_from(["none", "none", "alibi"])),
        "split": False,
    }


@settings(SETTINGS, max_examples=20)
@given(
    c=hopper_cases(), seed=st.integers(0, 2**32 - 1), processors=st.integers(1, 3),
    tiles=st.builds(HopperTiles, st.sampled_from([64, 128]), st.integers(2, 4), st.booleans(), st.booleans()),
)  # fmt: skip
def test_hoppers_protocol(c, seed, processors, tiles):
    """Its barriers and its arithmetic, in threads."""
    case = Case(c, seed)
    heads = [Heads(c["dtype"], access) for _, access in case.tensors.values()]
    kernel, dims = attention_kernel(*heads, case.sizes(), case.features)
    shape = hopper_geometry(kernel, tiles, dims, processors)
    values = {n: data for n, (data, _) in case.tensors.items()} | dict(zip(kernel.names, dims, strict=True))
    values |= shape.constants | ({} if case.valid is None else {"n": case.valid})
    hopper = HopperAttention(kernel)
    run_gluon(hopper.symbol, hopper.text(), values, shape.grid, seed)
    np.testing.assert_allclose(case.read("y").astype(np.float64), case.expected(), rtol=4e-3, atol=4e-3)


def sizes_of(length, keys, heads, groups, size):
    return {
        "images": 2,
        "heads": heads,
        "groups": groups,
        "length": length,
        "keys": keys,
        "size": size,
        "value.size": size,
    }


def plain(dtype, sizes, **features):
    """The kernel of row-major operands, with its integer parameters."""
    heads, groups, length, keys, size = (sizes[n] for n in ("heads", "groups", "length", "keys", "size"))
    split = features.pop("split", False)
    mask = features.pop("mask", None)
    if mask is not None:
        features["mask"] = Heads(mask, Access((keys, 0, 0, 1), 0))
        features["mask_keys"] = keys
    queries = Heads(dtype, Access((heads * length * size, length * size, size, 1), 0))
    pairs = Heads(dtype, Access((groups * keys * size, keys * size, size, 1), 0))
    return attention_kernel(queries, pairs, pairs, queries, sizes, Features(0.125, **features), split=split)


def values_of(*kernels, dims):
    pointers = {n: str(np.dtype(NUMPY[t])) for k in kernels for n, t in zip(k.memory, k.pointers, strict=True)}
    return pointers | dict(zip(kernels[0].names, dims, strict=True))


COMPILED = {
    "f16": ("f16", sizes_of(4096, 4096, 16, 16, 128), {}),
    "f16, tails": ("f16", sizes_of(197, 197, 192, 192, 64), {}),
    "f32, tails": ("f32", sizes_of(197, 197, 12, 12, 64), {"mask": "f32"}),
    "f16, causal": ("f16", sizes_of(4096, 4096, 16, 4, 128), {"causal": True}),
    "bf16, 64": ("bf16", sizes_of(128, 128, 12, 12, 64), {"mask": "bf16"}),
    "f16, 80": ("f16", sizes_of(1024, 77, 8, 8, 80), {"mask": "bool"}),
    "f16, 256": ("f16", sizes_of(1024, 1024, 8, 8, 256), {"softcap": 30.0}),
    "f32, 64": ("f32", sizes_of(256, 256, 8, 8, 64), {"left": 64}),
    "f32, 128": ("f32", sizes_of(256, 256, 8, 8, 128), {}),
    "bf16, few": ("bf16", sizes_of(1, 8192, 32, 8, 128), {"split": True, "valid": 1}),
    "alibi": ("f16", sizes_of(1024, 1024, 8, 8, 64), {"score": SCORES["alibi"], "causal": True}),
}


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("name", COMPILED)
def test_the_first_tiles_compile_without_spills(folder, name, architecture):
    dtype, sizes, features = COMPILED[name]
    kernel, dims = plain(dtype, sizes, **features)
    tiles = candidates(kernel, architecture, dims)[0]
    shape = geometry(kernel, tiles, dims)
    values = values_of(kernel, JoiningKernel(kernel), dims=dims) | shape.constants
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    made = [compiled(folder, kernel.symbol, kernel.text(), values, architecture, **options)]
    if shape.joined:
        second = JoiningKernel(kernel)
        made.append(compiled(folder, second.symbol, second.text(), values, architecture))
    limits = ARCHITECTURES[f"sm_{architecture}"]
    for c in made:
        assert over_limits(limits, c.resources, c.shared, c.threads)[0] == []
        assert c.resources.stack == 0


@pytest.mark.parametrize("name", [n for n in COMPILED if n in ("f16", "f16, causal", "alibi")])
def test_hoppers_kernel_compiles(folder, name):
    """What is spilled is outside of the loops: addresses of barriers. Products are not serialised."""
    dtype, sizes, features = COMPILED[name]
    kernel, dims = plain(dtype, sizes, **features)
    assert suits_hopper(kernel, dims)
    hopper = HopperAttention(kernel)
    for tiles in hopper_candidates(kernel)[:: 3 if name == "f16" else 9]:
        shape = hopper_geometry(kernel, tiles, dims, 132)
        values = values_of(kernel, JoiningKernel(kernel), dims=dims) | shape.constants
        made = compiled(folder, hopper.symbol, hopper.text(), values, 90, num_warps=shape.warps)
        assert made.threads == 384
        assert over_limits(ARCHITECTURES["sm_90"], made.resources, made.shared, made.threads)[0] == []
        assert made.resources.stack <= 256
        code = "\n".join(disassembled(made.cubin, folder))
        assert code.count("HGMMA") > 2 * code.count("WARPGROUP.DEPBAR")


def test_a_tail_costs_no_block_of_a_multiprocessor(tmp_path):
    """Products of matrices are not serialised, either: the assembler would wait for each of them."""
    dtype, sizes, features = COMPILED["f16, tails"]
    kernel, dims = plain(dtype, sizes, **features)
    launch = plain_launch(kernel, candidates(kernel, 90, dims)[0], exact_hints(dims), dims)
    assert dict(launch.constants)["TAIL"] == 16
    made = binary_of(Variant.of(kernel, launch, aligned=True), 90)
    assert made.registers <= 128
    assert 4 * (made.shared + 1024) <= 228 << 10
    code = "\n".join(disassembled(made.cubin, tmp_path))
    assert code.count("HGMMA") > 2 * code.count("WARPGROUP.DEPBAR")


def test_a_tail_is_of_what_is_always_the_same():
    """Numbers of keys that vary take no further machine code; blocks that are whole or alone are as they are."""
    kernel, dims = plain("f16", sizes_of(197, 197, 12, 12, 64))
    number = {n: i for i, n in enumerate(kernel.names)}
    every = exact_hints(dims)

    def loose(*names):
        return tuple("" if n in names else h for n, h in zip(kernel.names, every, strict=True))

    def sized(length, keys):
        return plain("f16", sizes_of(length, keys, 12, 12, 64))[1]

    def tail(dims, hints):
        return geometry(kernel, Tiles(64, 64, 4, 3), dims, hints).constants["TAIL"]

    assert dims[number["keys"]] == 197
    assert (tail(dims, every), tail(dims, loose("length")), tail(dims, loose("keys"))) == (16, 16, 64)
    assert [tail(sized(n, n), every) for n in (50, 128, 257, 1500, 190)] == [64, 0, 16, 32, 64]
    varying = loose("images", "length", "keys", *(n for n in kernel.names if n.endswith(("_b", "_h"))))
    found = {
        (*geometry(kernel, t, d, varying).constants.items(), t.warps, t.stages)
        for d in (sized(n, n) for n in (65, 128, 197, 577, 1000))
        for t in candidates(kernel, 90, d)[:1]
    }
    assert len(found) == 1
    for features in ({"causal": True}, {"left": 9}, {"right": 9}, {"valid": 1}, {"split": True}):
        other, dims = plain("f16", sizes_of(197, 197, 12, 12, 64), **features)
        assert geometry(other, Tiles(64, 64, 4, 3), dims).constants["TAIL"] == 64


def test_what_the_kernels_are_not_for():
    sizes = sizes_of(16, 16, 2, 2, 64)
    with pytest.raises(CompileError, match="not of f64"):
        plain("f64", sizes)
    apart = Heads("f16", Access((1, 1, 1, 2), 0))
    with pytest.raises(CompileError, match="follow each other"):
        attention_kernel(apart, apart, apart, apart, sizes, Features(1.0))
    near = Heads("f16", Access((4096, 2048, 128, 1), 4))  # no whole 16 bytes
    assert not suits_hopper(*attention_kernel(near, near, near, near, sizes, Features(1.0)))
    assert not suits_hopper(*plain("f16", sizes, mask="bool"))
    assert suits_hopper(*plain("bf16", sizes))


def test_scores_change_the_name():
    sizes = sizes_of(16, 16, 2, 2, 64)
    kernels = [
        plain("f16", sizes, **f)[0] for f in ({}, {"causal": True}, {"score": SCORES["alibi"]}, {"softcap": 1.0})
    ]
    assert len({k.symbol for k in kernels}) == len({HopperAttention(k).symbol for k in kernels}) == 4


def test_few_queries_split_the_keys():
    few, many = (plain("f16", sizes_of(n, 8192, 32, 8, 128))[1] for n in (1, 4096))
    assert splits(few, 16) and not splits(many, 128)
    kernel, dims = plain("f16", sizes_of(1, 8192, 32, 8, 128), split=True)
    shape = geometry(kernel, candidates(kernel, 90, dims)[0], dims)
    assert shape.grid == (16, 16)  # images and key heads: the four queries of a key head are one block
