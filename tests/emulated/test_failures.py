"""Runs that fail: no memory, a device that is lost."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import gc

import numpy as np
import pytest
import triton
import triton.language as tl

import accord
from accord.backends.cuda import parts
from accord.contract.code import TritonCode
from accord.errors import DeviceLostError, ExecutionError
from builders import model, node

Tensor = accord.Tensor
F = np.float32


@triton.jit
def shop_kernel(x, output, N):
    i = tl.program_id(0)
    tl.store(output + i, tl.load(x + i) * 2)


@triton.jit
def other_kernel(x, output, N):
    i = tl.program_id(0)
    tl.store(output + i, tl.load(x + i) * 3)


def declared(name, kernel):
    @accord.operator(f"shop::{name}")
    def reference(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
        return x * 2

    return reference.triton(TritonCode(kernel, lambda k: (k["N"],)))


def two_declared():
    declared("Twice", shop_kernel)
    declared("Thrice", other_kernel)
    nodes = [
        node("Exp", ["x"], ["e"], name="first"),
        node("Twice", ["e"], ["t"], domain="shop", name="suspect"),
        node("Thrice", ["t"], ["u"], domain="shop", name="innocent"),
        node("Softmax", ["u"], ["y"], name="last"),
    ]
    return accord.load(model(nodes, {"x": (F, ["n"])}, ["y"], domains={"shop": 1}), device="cuda")


def add():
    return accord.load(model([node("Add", ["x", "x"], ["y"])], {"x": (F, ["n"])}, ["y"]), device="cuda")


def test_a_kernel_that_fails_when_it_first_runs_is_known_by_name(gpu):
    m, other = two_declared(), add()
    x = np.ones(4, F)
    assert other(x)[0].tolist() == [2] * 4
    gpu.failing.add("shop_kernel")
    with pytest.raises(DeviceLostError) as caught:
        m(x)
    text = str(caught.value)
    assert "illegal address in kernel 'shop::Twice (triton)' of node 'suspect'" in text
    assert "innocent" not in text
    for session in (other, m):
        with pytest.raises(DeviceLostError, match=r"lost to this process.*'suspect'"):
            session(x)
    with pytest.raises(DeviceLostError):
        add()(x)
    assert m.trim() >= 0


def test_later_all_that_may_have_failed_are_named_the_users_first(gpu):
    m = two_declared()
    x = np.ones(4, F)
    for _ in range(4):
        m(x)
    assert gpu.replayed
    gpu.failing.add("other_kernel")
    with pytest.raises(DeviceLostError) as caught:
        m(x)
    text = str(caught.value)
    places = [text.index(f"'{n}'") for n in ("suspect", "innocent", "first", "last")]
    assert places == sorted(places)
    assert "ACCORD_CUDA_BLOCKING" in text


def test_when_each_kernel_is_waited_for_it_is_one_that_is_named(gpu, monkeypatch):
    monkeypatch.setattr(parts, "_blocking", lambda: True)
    m = two_declared()
    x = np.ones(4, F)
    for _ in range(4):
        m(x)
    assert not gpu.replayed
    gpu.failing.add("other_kernel")
    with pytest.raises(DeviceLostError, match=r"kernel 'shop::Thrice \(triton\)' of node 'innocent'") as caught:
        m(x)
    assert "suspect" not in str(caught.value)


def large():
    """Three tensors on the way, one of which is larger than the others."""
    nodes = [
        node("Exp", ["x"], ["small"]),
        node("MatMul", ["small", "w"], ["wide"]),
        node("Softmax", ["wide"], ["p"]),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    w = np.full((4, 64), 0.1, F)
    proto = model(nodes, {"x": (F, ["n", 4])}, ["y"], {"w": w, "v": np.ascontiguousarray(w.T)})
    return accord.load(proto, device="cuda")


def test_a_run_without_enough_memory_names_the_largest_tensors_and_the_session_lives_on(gpu):
    m = large()
    m(np.ones((8, 4), F))
    used = sum(b.nbytes - 512 for b in gpu.blocks.values())
    gpu.total = used + 4096
    with pytest.raises(ExecutionError, match="not enough memory") as caught:
        m(np.ones((1000, 4), F))
    text = str(caught.value)
    assert "'wide' float32[1000, 64] of 256,000 bytes" in text
    assert "bytes of cuda:0, of whose" in text
    np.testing.assert_allclose(m(np.ones((8, 4), F))[0], np.full((8, 4), 0.1), rtol=1e-5)


def test_memory_of_other_sizes_is_given_up_for_a_run(gpu):
    m = large()
    threads_arena = m._first.executor._borrow((500,))
    m._first.executor._give_back(*threads_arena)
    first, second = (m._first.executor._borrow((n,)) for n in (500, 400))
    for pair in (first, second):
        m._first.executor._give_back(*pair)
    del first, second, threads_arena, pair
    held = sum(b.nbytes - 512 for b in gpu.blocks.values())
    gpu.total = held + 1024
    m(np.ones((600, 4), F))


def test_a_model_whose_constants_do_not_fit_is_an_error_that_names_them(gpu):
    gpu.total = 512
    with pytest.raises(ExecutionError, match=r"model's constants.*'w' float32\[4, 64\] of 1,024 bytes"):
        large()


def test_trim_gives_memory_of_the_device_back(gpu):
    m = large()
    constants = len(gpu.blocks)
    for n in (3, 50, 7):
        for _ in range(4):
            m(np.ones((n, 4), F))
    assert len(gpu.blocks) > constants
    assert m.trim() > 0
    gc.collect()
    assert len(gpu.blocks) == constants
    assert m(np.ones((3, 4), F))[0].shape == (3, 4)


def test_graphs_are_of_memory_as_it_was_allocated(gpu, monkeypatch):
    """Memory allocated anew at the same address is other memory: what was captured with the old is not used."""
    m = large()
    few, many = np.ones((3, 4), F), np.ones((50, 4), F)
    expected = m(few)[0].copy()
    wait, todo = gpu.wait, []

    def waiting(stream):  # a run that is under way while others begin and end
        if todo:
            todo.pop()()
        wait(stream)

    def during(x, action):
        todo.append(action)
        m(x)

    def repeated():
        for _ in range(4):
            np.testing.assert_array_equal(m(few)[0], expected)

    monkeypatch.setattr(gpu, "wait", waiting)
    repeated()
    during(many, repeated)  # in another arena
    replayed = gpu.replayed
    during(few, m.trim)  # which is given back, while this frame is in use
    during(many, repeated)  # at the same addresses again
    assert gpu.replayed > replayed
