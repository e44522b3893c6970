"""External data: read from the model's folder only, mapped, and checked against the tensors."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_builders import FLOAT, add_w, external, graph, model, tensor, value
from onnx import TensorProto, helper

from accord.errors import ExternalDataError, ModelFormatError
from accord.model.load import load_model

W = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "w.bin").write_bytes(bytes(8) + W.tobytes())
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    return made


def saved(folder: Path, source: onnx.ModelProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(source.SerializeToString())
    return path


def weight(folder: Path, shape=(2, 3), dtype=FLOAT, **entries: str) -> onnx.ModelProto:
    return add_w(external("w", shape, dtype, **entries))


def loaded_w(model_: ir.Model) -> np.ndarray:
    return model_.graph.initializers["w"].const_value.numpy()


def refused(path, *texts, kind=ExternalDataError, **options):
    with pytest.raises(kind) as caught:
        load_model(path, **options)
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    assert caught.value.value is not None
    return caught.value


@pytest.mark.parametrize("length", [None, "24"])
def test_read_from_the_folder(folder, length):
    entries = {"location": "w.bin", "offset": "8"} | ({"length": length} if length else {})
    assert np.array_equal(loaded_w(load_model(saved(folder, weight(folder, **entries)))), W)


def test_other_spellings_of_a_path_inside(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "v.bin").write_bytes(W.tobytes())
    for location in ("./sub/v.bin", "sub//v.bin", "sub/./v.bin"):
        assert np.array_equal(loaded_w(load_model(saved(folder, weight(folder, location=location)))), W)


def test_relative_model_path(folder, monkeypatch):
    saved(folder, weight(folder, location="w.bin", offset="8"))
    monkeypatch.chdir(folder)
    assert np.array_equal(loaded_w(load_model("m.onnx")), W)


def test_written_by_onnx(tmp_path):
    source = add_w(tensor("w", np.arange(6000, dtype=np.float32).reshape(2, 3000)))
    source.graph.input[0].CopyFrom(value("x", (2, 3000)))
    onnx.save(source, tmp_path / "m.onnx", save_as_external_data=True, location="all.bin", size_threshold=10)
    assert loaded_w(load_model(tmp_path / "m.onnx"))[1, 2999] == 5999


def test_data_is_mapped_not_read(folder):
    array = loaded_w(load_model(saved(folder, weight(folder, location="w.bin", offset="8"))))
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_two_tensors_share_one_mapping(folder):
    nodes = [helper.make_node("Add", ["v", "w"], ["y"])]
    tensors = [external("v", (2,), location="w.bin", offset="8"), external("w", (2,), location="w.bin", offset="16")]
    made = load_model(saved(folder, model(nodes, [], [value("y", (2,))], tensors)))
    first, second = (made.graph.initializers[n].const_value.numpy() for n in "vw")
    assert second.ctypes.data - first.ctypes.data == 8


def test_unaligned_data_is_aligned(folder):
    (folder / "odd.bin").write_bytes(b"x" + W.tobytes())
    array = loaded_w(load_model(saved(folder, weight(folder, location="odd.bin", offset="1"))))
    assert array.flags.aligned
    assert np.array_equal(array, W)


def test_packed_elements(folder):
    (folder / "p.bin").write_bytes(bytes([0x21, 0x03]))
    node = helper.make_node("Identity", ["w"], ["y"])
    source = model([node], [], [value("y", (3,), TensorProto.INT4)], [], opsets={"": 25})
    source.graph.initializer.append(external("w", (3,), TensorProto.INT4, location="p.bin", length="2"))
    assert loaded_w(load_model(saved(folder, source))).astype(int).tolist() == [1, 2, 3]


def test_empty_tensor_in_an_empty_file(folder):
    (folder / "e.bin").touch()
    source = weight(folder, (0, 3), location="e.bin", length="0")
    assert loaded_w(load_model(saved(folder, source))).shape == (0, 3)


# paths that lead elsewhere


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("/etc/passwd", "an absolute path"),
        ("//etc/passwd", "an absolute path"),
        ("C:\\data\\w.bin", "an absolute path"),
        ("\\\\server\\w.bin", "an absolute path"),
        ("https://example.com/w.bin", "an absolute path"),
        ("file:///etc/passwd", "an absolute path"),
        ("../secret.bin", "'..' in the path"),
        ("sub/../../secret.bin", "'..' in the path"),
        ("sub/../w.bin", "'..' in the path"),
        ("..\\secret.bin", "'..' in the path"),
        ("..", "'..' in the path"),
        ("", "no location"),
        (".", "is a folder"),
        ("w.bin\0.txt", "no path"),
        ("x" * 5000, "no path"),
    ],
)
def test_location_outside(folder, location, text):
    refused(saved(folder, weight(folder, location=location)), text)


def test_absolute_path_into_the_folder_is_refused_too(folder):
    refused(saved(folder, weight(folder, location=str(folder / "w.bin"))), "an absolute path")


def test_link_that_leads_outside(folder):
    (folder / "l.bin").symlink_to("../secret.bin")
    refused(saved(folder, weight(folder, location="l.bin")), "leads outside the model's folder")


def test_link_within_the_folder(folder):
    (folder / "l.bin").symlink_to("w.bin")
    assert np.array_equal(loaded_w(load_model(saved(folder, weight(folder, location="l.bin", offset="8")))), W)


def test_linked_folder(folder):
    (folder / "real").mkdir()
    (folder / "real" / "v.bin").write_bytes(W.tobytes())
    (folder / "linked").symlink_to("real")
    refused(saved(folder, weight(folder, location="linked/v.bin")), "the folder 'linked' is a link")


def test_linked_folder_outside(folder):
    (folder / "up").symlink_to("..")
    refused(saved(folder, weight(folder, location="up/secret.bin")), "the folder 'up' is a link")


def test_link_through_a_linked_folder(folder):
    (folder / "up").symlink_to("..")
    (folder / "l.bin").symlink_to("up/secret.bin")
    refused(saved(folder, weight(folder, location="l.bin")), "leads outside")


def test_link_in_a_ring(folder):
    (folder / "l.bin").symlink_to("l.bin")
    refused(saved(folder, weight(folder, location="l.bin")), "l.bin")


def test_the_models_own_folder_may_be_reached_by_a_link(folder):
    saved(folder, weight(folder, location="w.bin", offset="8"))
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert np.array_equal(loaded_w(load_model(link / "m.onnx")), W)


def test_folder_device_and_pipe(folder):
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    refused(saved(folder, weight(folder, location="sub")), "is a folder")
    refused(saved(folder, weight(folder, location="pipe")), "device or pipe")


def test_file_used_as_a_folder(folder):
    refused(saved(folder, weight(folder, location="w.bin/v.bin")), "cannot be opened")


def test_missing_file(folder):
    error = refused(saved(folder, weight(folder, location="gone.bin")), "'gone.bin' is missing", "Copy it")
    assert error.value == "w"


def test_checked_file_is_the_one_that_is_read(folder):
    """Whoever swaps the file after loading changes nothing."""
    made = load_model(saved(folder, weight(folder, location="w.bin", offset="8")))
    (folder / "w.bin").unlink()
    (folder / "w.bin").symlink_to("../secret.bin")
    assert np.array_equal(loaded_w(made), W)


# positions


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"offset": "12"}, "ends too early"),
        ({"offset": "999999999999999999"}, "ends too early"),
        ({"offset": "-8"}, "the offset is no number"),
        ({"offset": "8.0"}, "the offset is no number"),
        ({"offset": "9" * 5000}, "the offset is no number"),
        ({"offset": "０"}, "the offset is no number"),
        ({"length": "20"}, "does not fit dtype and shape"),
        ({"length": "32"}, "does not fit dtype and shape"),
        ({"length": "-1"}, "the length is no number"),
        ({"length": "0x18"}, "the length is no number"),
    ],
)
def test_positions(folder, entries, text):
    error = refused(saved(folder, weight(folder, location="w.bin", **entries)), text)
    assert len(str(error)) < 600


def test_entry_given_twice(folder):
    source = weight(folder, location="w.bin")
    source.graph.initializer[0].external_data.add(key="location", value="v.bin")
    refused(saved(folder, source), "'location' is given twice")


def test_unknown_entries_are_ignored(folder):
    source = weight(folder, location="w.bin", offset="8", checksum="abc", other="x")
    assert np.array_equal(loaded_w(load_model(saved(folder, source))), W)


def test_strings_cannot_be_external(folder):
    source = weight(folder, dtype=TensorProto.STRING, location="w.bin")
    refused(saved(folder, source), "strings cannot be external", kind=ModelFormatError)


def test_external_and_stored(folder):
    source = weight(folder, location="w.bin", offset="8")
    source.graph.initializer[0].raw_data = W.tobytes()
    refused(saved(folder, source), "external data and data in the file", kind=ModelFormatError)


# models that came without a folder


@pytest.mark.parametrize("kind", ["bytes", "proto", "stream", "ir"])
def test_source_without_a_folder(folder, kind):
    path = saved(folder, weight(folder, location="w.bin", offset="8"))
    proto = onnx.load(path, load_external_data=False)

    makers = {
        "bytes": path.read_bytes,
        "proto": lambda: proto,
        "stream": lambda: io.BytesIO(path.read_bytes()),
        "ir": lambda: ir.from_proto(proto),
    }
    refused(makers[kind](), "came without a folder", "base_dir=")
    assert np.array_equal(loaded_w(load_model(makers[kind](), base_dir=folder)), W)


def test_ir_model_brings_its_own_folder(folder):
    path = saved(folder, weight(folder, location="w.bin", offset="8"))
    assert np.array_equal(loaded_w(load_model(ir.load(path))), W)
    path = saved(folder, weight(folder, location="../secret.bin"))
    refused(ir.load(path), "'..' in the path")


def test_base_dir_before_the_models_folder(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = saved(elsewhere, weight(folder, location="w.bin", offset="8"))
    refused(path, "missing")
    assert np.array_equal(loaded_w(load_model(path, base_dir=folder)), W)


# wherever a tensor can be


def constant(proto: onnx.TensorProto, out: str = "t") -> onnx.NodeProto:
    return helper.make_node("Constant", [], [out], name="k", value=proto)


def places(w: onnx.TensorProto) -> dict[str, onnx.ModelProto]:
    body = graph([constant(w)], outputs=[value("t")])
    stored = graph([helper.make_node("Identity", ["w"], ["t"])], outputs=[value("t")], initializers=[w])
    condition = [value("c", (), TensorProto.BOOL)]
    function = helper.make_function("local", "F", [], ["t"], [constant(w)], [helper.make_opsetid("", 20)])
    call = helper.make_node("F", [], ["y"], domain="local")
    sparse = model([helper.make_node("Add", ["x", "s"], ["y"])])
    values = external("s", (6,), location=w.external_data[0].value, offset="8")
    indices = tensor("", np.arange(6))
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    return {
        "attribute": model([constant(w, "y")], []),
        "body": model([helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)], condition),
        "body's initializer": model(
            [helper.make_node("If", ["c"], ["y"], then_branch=stored, else_branch=stored)], condition
        ),
        "function": model([call], [], functions=[function], opsets={"": 20, "local": 1}),
        "sparse": sparse,
    }


@pytest.mark.parametrize("place", ["attribute", "body", "body's initializer", "function", "sparse"])
def test_every_place_of_a_tensor(folder, place):
    inside = places(external("w", (2, 3), location="w.bin", offset="8"))[place]
    load_model(saved(folder, inside))
    outside = places(external("w", (2, 3), location="../secret.bin"))[place]
    refused(saved(folder, outside), "'..' in the path")


def test_tensor_of_an_attribute_is_read(folder):
    source = places(external("w", (2, 3), location="w.bin", offset="8"))["attribute"]
    made = load_model(saved(folder, source))
    assert np.array_equal(made.graph[0].attributes["value"].value.numpy(), W)
