"""Memory of returned arrays comes back when the last array in it goes, and not before."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import onnx
import pytest

import accord
from accord.runtime.returned import ReturnedMemory

F = np.dtype(np.float32)
MIB = 1 << 20


def lender(limit: int = 8 * MIB) -> ReturnedMemory:
    made = ReturnedMemory()
    made.limit = limit
    return made


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def double() -> Any:
    text = """<ir_version: 8, opset_import: ["":17]> g (float[N] x) => (float[N] y) { y = Add(x, x) }"""
    return accord.load(onnx.parser.parse_model(text), threads=1)


def test_memory_is_used_again() -> None:
    memory = lender()
    first = memory.array((MIB,), F)
    at = address(first)
    assert memory.held() == 0
    assert at % 64 == 0
    del first
    assert memory.held() == 4 * MIB
    assert address(memory.array((512, 2048), F)) == at
    assert address(memory.array((MIB - 1000,), F)) == at


@pytest.mark.parametrize("part", [lambda a: a[5:7], lambda a: a.reshape(4, -1).T, memoryview])
def test_a_part_keeps_all_of_it(part: Any) -> None:
    memory = lender()
    whole = memory.array((MIB,), F)
    whole[:] = np.arange(MIB)
    kept = part(whole)
    before = np.array(kept)
    del whole
    assert memory.held() == 0
    memory.array((MIB,), F)[:] = -1
    np.testing.assert_array_equal(np.array(kept), before)
    del kept
    assert memory.held() == 8 * MIB


def test_what_is_of_another_size_is_left_alone() -> None:
    memory = lender()
    at = address(memory.array((MIB,), F))
    smaller = memory.array((MIB // 2,), F)
    larger = memory.array((MIB + 1,), F)
    assert at not in (address(smaller), address(larger))


def test_no_more_than_the_limit_is_kept() -> None:
    memory = lender()
    arrays = [memory.array((MIB,), F) for _ in range(10)]
    last = address(arrays[9])
    while arrays:
        del arrays[0]
    assert memory.held() == 8 * MIB
    assert address(memory.array((MIB,), F)) == last
    assert memory.trim() == 8 * MIB
    assert memory.held() == 0


def test_small_arrays_are_numpy_s() -> None:
    memory = lender()
    assert memory.array((7, 3), F).base is None
    assert memory.array((0, 3), F).shape == (0, 3)


def test_memory_that_does_not_exist() -> None:
    with pytest.raises(MemoryError, match="for an output"):
        lender().array((1 << 44,), F)


def test_garbage_gives_back_too() -> None:
    memory = lender()
    circle: list[Any] = [memory.array((MIB,), F)]
    circle.append(circle)
    del circle
    gc.collect()
    assert memory.held() == 4 * MIB


def test_results_stay_what_they_are() -> None:
    model = double()
    inputs = [np.full(MIB, k, np.float32) for k in range(6)]
    results = [model(x)[0] for x in inputs]
    del results[1], results[3]
    results += [model(x)[0] for x in inputs]
    for found, k in zip(results, [0, 2, 3, 5, *range(6)], strict=True):
        assert (found == 2 * k).all()


def test_runs_keep_one_result_s_memory() -> None:
    model = double()
    x = np.ones(4 * MIB, np.float32)
    seen = set()
    for _ in range(20):
        y = model(x)
        seen.add(address(y[0]))
    assert len(seen) == 2  # the last one is still there while the next is made
    kept = [model(x) for _ in range(5)]
    before = model.held()["bytes"]
    del kept, y
    assert model.held()["bytes"] - before <= 16 * MIB
    assert model.trim() >= 16 * MIB
    assert model.held()["bytes"] == 0


def test_threads_never_share_memory() -> None:
    model = double()
    wrong: list[int] = []

    def runs(k: int) -> None:
        x = np.full(MIB // 2, k, np.float32)
        for i in range(30):
            y = model(x)[0]
            x[:] = k + i
            if not (y == 2 * (k + max(i - 1, 0))).all():
                wrong.append(k)

    threads = [threading.Thread(target=runs, args=(100 * k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
