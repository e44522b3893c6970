"""What a model can be loaded from, and that the loaded graph is independent of it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_builders import linear, model, tensor, value
from onnx import helper

from accord.errors import LimitError, ModelFormatError
from accord.model.load import Limits, load_model


def weights(loaded: ir.Model) -> dict[str, np.ndarray]:
    return {n: v.const_value.numpy() for n, v in loaded.graph.initializers.items()}


def operators(loaded: ir.Model) -> list[str]:
    return [n.op_type for n in loaded.graph]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "linear.onnx"
    file.write_bytes(linear().SerializeToString())
    return file


def sources(path: Path):
    data = path.read_bytes()
    stream = io.BytesIO(b"header" + data)
    stream.seek(6)
    return {
        "str": str(path),
        "path": path,
        "bytes path": os.fsencode(path),
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "strided view": memoryview(bytes(b for x in data for b in (x, 0)))[::2],
        "proto": onnx.load(path),
        "ir": ir.load(path),
        "stream": stream,
    }


@pytest.mark.parametrize(
    "kind", ["str", "path", "bytes", "bytearray", "memoryview", "strided view", "proto", "ir", "stream"]
)
def test_every_source(path, kind):
    loaded = load_model(sources(path)[kind])
    assert operators(loaded) == ["MatMul", "Add", "Relu"]
    assert np.array_equal(weights(loaded)["w"], np.arange(12, dtype=np.float32).reshape(3, 4))
    assert [v.name for v in loaded.graph.outputs] == ["y"]


def test_open_file_is_read_from_its_position(path):
    with path.open("rb") as file:
        assert operators(load_model(file)) == ["MatMul", "Add", "Relu"]
        with pytest.raises(ModelFormatError, match="empty"):
            load_model(file)


def test_text_mode_file(path):
    with path.open("r", encoding="latin-1") as file, pytest.raises(ModelFormatError, match="binary mode") as caught:
        load_model(file)
    assert "'rb'" in str(caught.value)


def test_closed_file(path):
    with path.open("rb") as file:
        pass
    with pytest.raises(ModelFormatError, match="closed file"):
        load_model(file)


@pytest.mark.parametrize("source", [None, 3, [1, 2], object()])
def test_nothing_to_load_from(source):
    with pytest.raises(ModelFormatError, match="nothing that a model can be loaded from") as caught:
        load_model(source)
    assert type(source).__name__ in str(caught.value)


def test_proto_is_not_changed_and_may_change_afterwards():
    source = linear()
    source.graph.node[0].domain = "ai.onnx"
    before = source.SerializeToString(deterministic=True)
    loaded = load_model(source)
    assert source.SerializeToString(deterministic=True) == before
    source.graph.initializer[0].raw_data = b"\xff" * 48
    source.graph.initializer[1].name = "other"
    source.graph.node[2].op_type = "Abs"
    assert operators(loaded) == ["MatMul", "Add", "Relu"]
    assert np.array_equal(weights(loaded)["w"].reshape(-1), np.arange(12))
    assert set(weights(loaded)) == {"w", "b"}


def test_proto_string_tensors_and_attributes_are_taken_out():
    source = model(
        [helper.make_node("Constant", [], ["k"], value=tensor("k", np.array(["a", "b"], object)))],
        inputs=[],
        outputs=[value("k", (2,), onnx.TensorProto.STRING)],
    )
    loaded = load_model(source)
    source.graph.node[0].attribute[0].t.string_data[0] = b"changed"
    assert loaded.graph[0].attributes["value"].value.numpy().tolist() == [b"a", b"b"]


def test_ir_model_is_not_changed_and_may_change_afterwards():
    source = ir.from_proto(linear())
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    source.graph.initializers["w"].const_value = ir.Tensor(array, name="w")
    loaded = load_model(source)
    array[:] = -1
    source.graph[2].op_type = "Abs"
    source.graph.initializers["b"].const_value = None
    assert operators(loaded) == ["MatMul", "Add", "Relu"]
    assert weights(loaded)["w"][0, 1] == 1
    assert weights(loaded)["b"].tolist() == [1, 1, 1, 1]
    assert source.graph[2].graph is source.graph


def test_ir_model_read_only_view_of_a_writeable_array_is_copied():
    source = ir.from_proto(linear())
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = array.view()
    view.flags.writeable = False
    source.graph.initializers["w"].const_value = ir.Tensor(view, name="w")
    loaded = load_model(source)
    array[:] = -1
    assert weights(loaded)["w"][0, 1] == 1


def test_unsorted_ir_model_is_copied_in_order_and_stays_as_it_is():
    proto = linear()
    nodes = list(reversed(proto.graph.node))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    source = ir.from_proto(proto)
    assert operators(load_model(source)) == ["MatMul", "Add", "Relu"]
    assert operators(source) == ["Relu", "Add", "MatMul"]


def test_annotations_of_a_callers_graph_are_not_believed():
    source = ir.from_proto(linear())
    source.graph[0].outputs[0].const_value = ir.tensor(np.zeros((2, 4), np.float32))
    assert load_model(source).graph[0].outputs[0].const_value is None


def test_ir_model_with_an_initializer_without_content():
    source = ir.from_proto(linear())
    source.graph.initializers["b"].const_value = None
    with pytest.raises(ModelFormatError, match="initializer without content"):
        load_model(source)


def test_tensors_do_not_keep_the_message_alive():
    loaded = load_model(linear().SerializeToString())
    assert not any(isinstance(v.const_value, ir.serde.TensorProtoTensor) for v in loaded.graph.initializers.values())


# paths


def test_missing_path_offers_the_nearest(path):
    with pytest.raises(ModelFormatError, match="no such file") as caught:
        load_model(path.with_name("liner.onnx"))
    assert "Did you mean" in str(caught.value)
    assert "linear.onnx" in str(caught.value)


def test_missing_folder(tmp_path):
    with pytest.raises(ModelFormatError, match="no such file") as caught:
        load_model(tmp_path / "no" / "m.onnx")
    assert "does not exist either" in str(caught.value)


def test_url():
    with pytest.raises(ModelFormatError, match="Download it first"):
        load_model("https://example.com/model.onnx")


def test_folder_names_the_model_in_it(path):
    with pytest.raises(ModelFormatError, match="not a file but a folder") as caught:
        load_model(path.parent)
    assert "linear.onnx" in caught.value.remedy


def test_folder_without_a_model(tmp_path):
    with pytest.raises(ModelFormatError, match=r"there is none in it"):
        load_model(tmp_path)


def test_saved_model_folder(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    with pytest.raises(ModelFormatError, match="TensorFlow SavedModel"):
        load_model(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(path):
    path.chmod(0)
    with pytest.raises(ModelFormatError, match="no permission"):
        load_model(path)


def test_no_permission_message():
    from accord.model.load import _unreadable

    error = _unreadable(Path("m.onnx"), PermissionError(13, "Permission denied"))
    assert "no permission" in str(error)


def test_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match="pipe or device"):
        load_model(tmp_path / "pipe")


def test_device():
    with pytest.raises(ModelFormatError, match="pipe or device"):
        load_model("/dev/zero")


def test_impossible_paths(tmp_path):
    with pytest.raises(ModelFormatError, match="null"):
        load_model("a\0b")
    with pytest.raises(ModelFormatError, match="cannot be read"):
        load_model("x" * 5000)
    loop = tmp_path / "loop.onnx"
    loop.symlink_to(loop)
    with pytest.raises(ModelFormatError, match="cannot be read"):
        load_model(loop)


def test_file_size_limit(path):
    small = Limits(max_file_bytes=100)
    for source in (path, path.read_bytes(), io.BytesIO(path.read_bytes())):
        with pytest.raises(LimitError, match="too large"):
            load_model(source, limits=small)


def test_error_names_the_file(tmp_path):
    file = tmp_path / "empty.onnx"
    file.touch()
    with pytest.raises(ModelFormatError) as caught:
        load_model(file)
    assert caught.value.value == str(file)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2"])
def test_limits_are_positive_integers(bad):
    with pytest.raises(LimitError, match="positive integer"):
        Limits(max_nodes=bad)
