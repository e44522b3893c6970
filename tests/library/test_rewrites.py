"""What happens to library operators at load: found by domain, replaced where a device lacks them, put into blocks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accord
from accord.backends import discovery
from accord.backends.cpu import CpuBackend
from accord.errors import ExecutionError, UnsupportedError
from accord.ir.reason import Reason
from accord.library import block_sparse_matmul, pixel_shuffle, sparse_matmul
from accord.passes.rules.block_sparse import choose_blocks, to_blocks
from builders import model, node

F = np.float32


def patches(m):
    return {p.rule: p.note for p in m.compiled.log.patches}


def test_a_domain_is_loaded_when_a_model_names_it(tmp_path):
    proto = model([node("SiLU", ["x"], ["y"], domain="accord")], {"x": (F, ["n"])}, ["y"], domains={"accord": 1})
    path = tmp_path / "silu.onnx"
    path.write_bytes(proto.SerializeToString())
    code = (
        "import sys, accord; assert 'accord.library' not in sys.modules; import numpy as np;"
        f"m = accord.load({str(path)!r}, strict=True); print(m(np.zeros(3, np.float32))[0].tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == "[0.0, 0.0, 0.0]".split()


class Lacking(CpuBackend):
    """A device without pixel shuffles and deformable convolutions of any name."""

    name = device = "lacking"

    def select(self, view):
        if view.node.op_type in ("PixelShuffle", "DepthToSpace", "SpaceToDepth", "DeformConv", "DeformConv2d"):
            return Reason("there is no such kernel")
        return super().select(view)


@pytest.fixture
def lacking(monkeypatch):
    known = dict(discovery.available_backends())
    found = {**known, "lacking": Lacking()}
    monkeypatch.setattr(discovery, "available_backends", lambda: found)


@pytest.mark.parametrize("sizes", [(2, 12, 3, 5), ("n", 12, "h", "w")])
@pytest.mark.parametrize(
    ("domain", "op", "attributes"),
    [
        ("accord", "PixelShuffle", {"factor": 2}),
        ("", "DepthToSpace", {"blocksize": 2, "mode": "CRD"}),
        ("", "DepthToSpace", {"blocksize": 2, "mode": "DCR"}),
        ("", "SpaceToDepth", {"blocksize": 3}),
    ],
)
def test_a_composition_takes_the_place_of_an_operator_that_a_device_lacks(lacking, domain, op, attributes, sizes):
    proto = model(
        [node(op, ["x"], ["y"], domain=domain, **attributes)], {"x": (F, sizes)}, ["y"], domains={"accord": 1}
    )
    before = proto.SerializeToString()
    x = np.random.default_rng(0).standard_normal((2, 12, 3, 6)).astype(F)
    if isinstance(sizes[3], int):
        proto.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 6
        before = proto.SerializeToString()
    m = accord.load(proto, device="lacking")
    np.testing.assert_array_equal(m(x)[0], accord.load(proto)(x)[0])
    assert "compose-operators" in patches(m)
    assert {p.backend for p in (s.placement for s in m.plan.steps)} <= {"lacking", "plan"}
    assert proto.SerializeToString() == before
    if op == "PixelShuffle":
        np.testing.assert_array_equal(m(x)[0], pixel_shuffle(x, factor=2))


def test_operators_that_are_made_of_each_other_are_left_alone_where_a_device_has_neither(lacking):
    shapes = {"x": (F, [1, 2, 4, 4]), "w": (F, [3, 2, 3, 3]), "o": (F, [1, 18, 2, 2])}
    proto = model([node("DeformConv", list(shapes), ["y"])], shapes, ["y"])
    with pytest.raises(UnsupportedError, match="no backend can run it"):
        accord.load(proto, device="lacking")


def test_a_device_that_has_the_operator_keeps_it():
    proto = model(
        [node("PixelShuffle", ["x"], ["y"], domain="accord", factor=2)], {"x": (F, [1, 4, 2, 2])}, ["y"],
        domains={"accord": 1},
    )  # fmt: skip
    assert "compose-operators" not in patches(accord.load(proto, device="null"))


# sparse


@st.composite
def matrices(draw):
    rows, width = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    high, across = draw(st.sampled_from([(1, 1), (4, 4), (8, 8), (16, 1)]))
    mask = np.kron(rng.random((-(-rows // high), -(-width // across))) < 0.3, np.ones((high, across), bool))
    return np.where(mask[:rows, :width], rng.standard_normal((rows, width)), 0).astype(F)


def csr(dense):
    mask = dense != 0
    starts = np.concatenate([[0], np.cumsum(mask.sum(1))])
    return dense[mask], np.nonzero(mask)[1].astype(np.int64), starts.astype(np.int64)


@settings(deadline=None, max_examples=60)
@given(matrices(), st.sampled_from([1, 3, 4, 8, 16]), st.sampled_from([1, 2, 4, 16]))
def test_blocks_are_the_same_matrix(dense, high, across):
    blocks, columns, starts = to_blocks(*csr(dense), dense.shape[1], high, across)
    one = np.eye(dense.shape[1], dtype=F)
    np.testing.assert_array_equal(block_sparse_matmul(blocks, columns, starts, one, rows=len(dense)), dense)


@pytest.mark.parametrize(("high", "across"), [(4, 4), (8, 8), (16, 1)])
def test_constant_rows_become_blocks(high, across):
    rng = np.random.default_rng(1)
    mask = np.kron(rng.random((64 // high, 64 // across)) < 0.1, np.ones((high, across), bool))
    dense = np.where(mask, rng.standard_normal((64, 64)), 0).astype(F)
    values, columns, starts = csr(dense)
    chosen = choose_blocks(starts, columns, 64)
    assert chosen[0] == high and chosen[2] == 1.0
    proto = model(
        [node("SparseMatMul", ["v", "c", "s", "b"], ["y"], domain="accord")], {"b": (F, [64, "n"])}, ["y"],
        {"v": values, "c": columns, "s": starts}, domains={"accord": 1},
    )  # fmt: skip
    m = accord.load(proto)
    assert f"blocks of {high} x" in patches(m)["block-sparse"]
    assert "1.00 stored for each" in patches(m)["block-sparse"]
    b = rng.standard_normal((64, 50)).astype(F)
    np.testing.assert_allclose(m(b)[0], sparse_matmul(values, columns, starts, b), rtol=1e-4, atol=1e-5)


def test_scattered_elements_stay_rows():
    rng = np.random.default_rng(1)
    _, columns, starts = csr(np.where(rng.random((64, 64)) < 0.02, 1, 0).astype(F))
    assert choose_blocks(starts, columns, 64)[:2] == (1, 1)


@pytest.mark.parametrize(("name", "wrong"), [("c", 64), ("c", -1), ("s", 9999), ("s", -5)])
def test_places_outside_the_matrix_are_refused(name, wrong):
    values, columns, starts = csr(np.eye(64, dtype=F))
    feed = {"v": values, "c": columns, "s": starts, "b": np.ones((64, 17), F)}
    proto = model(
        [node("SparseMatMul", [*feed], ["y"], domain="accord")],
        {n: (v.dtype, [f"{n}{i}" for i in range(v.ndim)]) for n, v in feed.items()}, ["y"], domains={"accord": 1},
    )  # fmt: skip
    m = accord.load(proto)
    np.testing.assert_array_equal(m(**feed)[0], np.ones((64, 17), F))
    feed[name] = feed[name].copy()
    feed[name][3] = wrong
    with pytest.raises(ExecutionError, match="SparseMatMul"):
        m(**feed)
