"""Plans for a GPU that were stored: found again, shared with nothing that they are not for."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import accord
from accord.backends.cuda import code
from accord.backends.cuda.memory import DeviceMemory
from builders import model, node

F = np.float32
RNG = np.random.default_rng(5)
WEIGHTS = {f"w{k}": (RNG.standard_normal((48, 48)) / 7).astype(F) for k in range(3)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))


def chain(batch):
    nodes = [
        node("MatMul", ["x", "w0"], ["a"]),
        node("Softmax", ["a"], ["b"]),
        node("MatMul", ["b", "w1"], ["c"]),
        node("Gather", ["c", "i"], ["d"], axis=1),
        node("MatMul", ["d", "w2"], ["y"]),
    ]
    inputs = {"x": (F, [batch, 48]), "i": (np.int64, [48])}
    return model(nodes, inputs, ["y"], WEIGHTS).SerializeToString()


def loaded(proto):
    """A model, and whether its plan was stored; what is written beside it is there afterwards."""
    m = accord.load(proto, device="cuda")
    for thread in threading.enumerate():
        if thread.name == "accord-store":
            thread.join()
    return m, list(m.seconds) == ["stored"]


@pytest.mark.parametrize("batch", [3, "n"])
def test_a_stored_plan_gives_what_the_first_one_gave(gpu, batch):
    first, stored = loaded(chain(batch))
    assert not stored
    again, stored = loaded(chain(batch))
    assert stored
    for n in [3] if batch == 3 else [3, 1, 7]:
        x, i = RNG.standard_normal((n, 48)).astype(F), RNG.integers(0, 48, 48)
        for _ in range(4):  # the last of them is a graph
            np.testing.assert_array_equal(again(x, i)[0], first(x, i)[0])


def test_text_is_written_without_what_it_was_made_from(gpu):
    loaded(chain(3))
    again, _ = loaded(chain(3))
    codes = [p.code for s in again.plan.steps for p in getattr(s.kernel, "phases", ())]
    texts = [c for c in codes if isinstance(c, code.KernelText)]
    assert texts and all(isinstance(c, code.WrittenText) and f"def {c.symbol}(" in c.text() for c in texts)


@pytest.mark.parametrize("change", ["architecture", "processors", "name", "compiler"])
def test_a_plan_for_something_else_is_not_used(gpu, change, monkeypatch):
    loaded(chain(3))
    if change == "compiler":
        monkeypatch.setattr(code, "compiler_version", lambda: "2.0")
    else:
        monkeypatch.setattr(gpu, change, {"architecture": 90, "processors": 8, "name": "another"}[change])
    assert not loaded(chain(3))[1]


def test_weights_of_a_stored_plan_are_one_copy(gpu, monkeypatch):
    loaded(chain(3))
    copies = []
    copy = gpu.to_device
    monkeypatch.setattr(gpu, "to_device", lambda *a: copies.append(a[2]) or copy(*a))
    m, stored = loaded(chain(3))
    nbytes = sum(w.nbytes for w in WEIGHTS.values())
    assert stored and len(copies) == 1 and nbytes <= copies[0] < nbytes + 4096
    del m


def test_arrays_that_are_apart_are_copied_one_by_one(gpu):
    memory = DeviceMemory()
    whole = np.arange(4096, dtype=np.int32)
    arrays = [whole[:64], np.arange(5.0), whole[64:128], np.zeros(0, F), whole[100:101], whole[::1][2048:], whole[:64]]
    blocks = memory.upload_all(arrays)
    for a, block in zip(arrays, blocks, strict=True):
        got = np.empty_like(a)
        if a.nbytes:
            memory.read(block.address, got)
        np.testing.assert_array_equal(got, a)
        assert block.address % 4 == 0
    assert blocks[0].address % 256 == blocks[2].address % 256 == 0
    count = len(gpu.blocks)
    del blocks, block
    assert len(gpu.blocks) == count - 1
