"""Guarded memory: where tensors lie, what is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.workbench.buffers import PAGE, Image, Layout, Mapped, distances, dtype_named, place
from accord.workbench.nursery import Nursery
from accord.workbench.subject import Child, Outcome


@st.composite
def layouts(draw, rank):
    axes = st.integers(0, rank - 1)
    return Layout(
        order=tuple(draw(st.permutations(range(rank)))) if draw(st.booleans()) else (),
        gaps=tuple(draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))) if draw(st.booleans()) else (),
        flip=tuple(draw(st.sets(axes))) if rank else (),
    )


@given(st.data())
def test_a_tensor_lies_within_its_pages_and_as_aligned_as_asked(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 40), max_size=3)))
    layout = data.draw(layouts(len(shape)))
    dtype = data.draw(st.sampled_from(["int8", "bfloat16", "float32", "float64"]))
    side = data.draw(st.sampled_from(["end", "begin", "skew"]))
    alignment = 1 << data.draw(st.integers(0, 7))
    s = place(3 * PAGE, shape, dtype, layout, side, alignment)
    assert 0 <= s.low <= s.at <= s.high <= s.pages * PAGE
    assert s.at % max(alignment, dtype_named(dtype).itemsize) == 0
    if side == "end":
        assert s.pages * PAGE - s.high < max(alignment, dtype_named(dtype).itemsize)
    image = Image([place(0, shape, dtype, layout, side, alignment)], "bits")
    image.remember()
    array = image.array(0)
    assert array.shape == shape
    array[...] = 1
    assert image.damage(0, whole=False) is None
    assert (image.damage(0, whole=True) is None) == (array.size == 0)
    image.close()


def test_a_write_beside_a_tensor_is_seen():
    image = Image([place(0, (3, 3), "float32", Layout(gaps=(1, 2)), "end", 64)], "nan")
    image.remember()
    array = image.array(0)
    np.lib.stride_tricks.as_strided(array, (18,), (4,))[1] = 0
    assert image.damage(0, whole=False) == (4, 7)
    image.close()


def test_both_processes_see_the_same_elements():
    sections = [place(0, (2, 3), "float32", Layout(flip=(1,))), place(PAGE, (5,), "int8", Layout())]
    image = Image(sections, "nan")
    image.array(0)[...] = [[1, 2, 3], [4, 5, 6]]
    mapped = Mapped(image.file, sections)
    np.testing.assert_array_equal(mapped.array(0), [[1, 2, 3], [4, 5, 6]])
    mapped.array(1)[2] = 7
    assert image.array(1)[2] == 7
    assert mapped.range(1)[0] - mapped.range(0)[0] > distances(sections)[0]
    mapped.close()
    image.close()


@pytest.fixture
def child(tmp_path):
    file = tmp_path / "touch.py"
    file.write_text(
        "import ctypes, accord\n"
        "@accord.operator('memory::Touch')\n"
        "def touch(x: accord.Tensor['float32', 'N']) -> accord.Tensor['float32', 'N']:\n    return x\n"
        "@touch.python\n"
        "def kernel(x):\n"
        "    at = x.ctypes.data\n"
        "    if len(x) == 1: return x + ctypes.c_float.from_address(at + 4).value\n"
        "    if len(x) == 2: ctypes.c_float.from_address(at - 40 * 4096).value = 1\n"
        "    return x * 1\n"
    )
    nursery = Nursery()
    made = Child(nursery, [str(file)])
    yield made
    made.close()
    nursery.close()


def call(child, n):
    sections = [place(0, (n,), "float32", Layout())]
    image = Image(sections, "nan")
    spec = {"sections": image.spec(), "inputs": [0], "outputs": [], "workspace": None, "attributes": {}}
    kernel = ["memory", "Touch", 1, "python"]
    found = child.ask({"do": "call", "kernel": kernel, "types": {}, "spec": spec}, [image.file])
    image.close()
    return found, sections[0]


def test_a_process_that_touches_a_guard_says_where(child):
    found, section = call(child, 1)
    assert isinstance(found, Outcome)
    assert found.status == "crashed"
    assert found.reply["address"] == distances([section])[0] + section.high
    found, section = call(child, 2)
    assert found.reply["address"] == distances([section])[0] + section.low - 40 * PAGE
    (reply, files), _ = call(child, 3)
    assert reply["results"][0]["shape"] == [3]
    assert len(files) == 1
