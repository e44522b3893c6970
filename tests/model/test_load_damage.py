"""Damaged files and models that parse but make no sense."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from model_builders import add_w, linear, model, tensor, value
from onnx import TensorProto, helper

from accord.errors import AccordError, GraphError, ModelFormatError, ModelTypeError, UnsupportedError
from accord.model.load import load_model
from accord.model.wire import scan


def fails(source, kind, *texts, **options):
    with pytest.raises(kind) as caught:
        load_model(source, **options)
    assert type(caught.value) is kind
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    return caught.value


# encodings


def test_truncated_says_how_much_is_missing():
    data = linear().SerializeToString()
    end = data.index(b"\x42\x04\x0a\x00\x10\x14")  # opset_import follows the graph
    fails(
        data[: end - 40],
        ModelFormatError,
        "truncated",
        "graph needs 40 bytes",
        f"at least {end} bytes",
        "download it again",
    )


def test_every_truncation_is_an_error():
    data = linear().SerializeToString()
    for end in range(len(data)):
        with pytest.raises(AccordError):
            load_model(data[:end])


def test_damage_inside_names_the_place():
    data = bytearray(linear().SerializeToString())
    at = data.index(b"MatMul") - 1
    data[at] = 0x7F  # the length of op_type
    fails(bytes(data), ModelFormatError, "damaged", "graph.node.op_type")


def test_every_flipped_bit_is_a_model_or_an_error():
    data = linear().SerializeToString()
    outcomes = set()
    for bit in range(0, len(data) * 8, 3):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            load_model(bytes(flipped))
            outcomes.add("loaded")
        except AccordError as error:
            outcomes.add(type(error).__name__)
    assert {"loaded", "ModelFormatError", "GraphError"} <= outcomes


def test_scan_accepts_what_protobuf_accepts():
    assert scan(linear().SerializeToString(), max_messages=1000) is None


def test_scan_reports_offset_and_path():
    data = linear().SerializeToString()
    damage = scan(data[:-1], max_messages=1000)
    assert damage is not None
    assert damage.missing > 0
    assert damage.path


def test_names_that_are_not_utf8():
    data = linear().SerializeToString().replace(b"matmul", b"\xff\xfe\xfd\xfc\xfb\xfa")
    fails(data, ModelFormatError, "not UTF-8")


# heads


def test_no_graph():
    fails(b"\x08\x0a\x12\x04test", ModelFormatError, "no graph")
    fails(onnx.ModelProto(ir_version=10), ModelFormatError, "no graph")


def test_no_opset_import():
    source = linear()
    del source.opset_import[:]
    fails(source, ModelFormatError, "imports no operator set")


def test_before_ir_version_3_there_was_one_opset():
    source = linear()
    source.ir_version = 2
    del source.opset_import[:]
    source.graph.node.pop(1)
    source.graph.node[0].output[0] = "s"
    assert load_model(source).opset_imports == {"": 1}


@pytest.mark.parametrize("version", [0, -1, 2**40, 1_000_000])
def test_absurd_ir_version(version):
    source = linear()
    source.ir_version = version
    fails(source, ModelFormatError, "no sensible IR version")


def test_missing_ir_version():
    source = linear()
    source.ClearField("ir_version")
    fails(source, ModelFormatError, "no sensible IR version", "none")


def test_newer_ir_version():
    source = linear()
    source.ir_version = onnx.IR_VERSION + 1
    fails(source, ModelFormatError, "newer form", "Update the package onnx")


def test_newer_opset():
    source = linear()
    source.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    fails(source, UnsupportedError, "newer version of domain 'ai.onnx'", "Update the package onnx")


@pytest.mark.parametrize("version", [0, -3, 2**62])
@pytest.mark.parametrize("domain", ["", "com.example"])
def test_absurd_opset(version, domain):
    source = linear()
    del source.opset_import[:]
    source.opset_import.add(domain=domain, version=version)
    fails(source, ModelFormatError, "no sensible version")


def test_one_domain_in_two_versions():
    source = linear()
    source.opset_import.add(domain="ai.onnx", version=11)
    fails(source, GraphError, "two versions", "20 and 11")


def test_the_other_spelling_of_the_onnx_domain():
    source = linear()
    source.opset_import[0].domain = "ai.onnx"
    source.graph.node[0].domain = "ai.onnx"
    assert load_model(source).opset_imports == {"": 20}


# tensors


def bad_weight(change):
    w = tensor("w", np.ones((2, 3), np.float32))
    change(w)
    return add_w(w)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda w: setattr(w, "raw_data", b"1234"), ModelFormatError, "24 bytes"),
        (lambda w: setattr(w, "raw_data", bytes(25)), ModelFormatError, "25 bytes"),
        (lambda w: w.ClearField("raw_data"), ModelFormatError, "6 entries of float_data"),
        (lambda w: setattr(w, "data_type", 0), ModelTypeError, "none"),
        (lambda w: setattr(w, "data_type", 77), ModelTypeError, "the number 77"),
        (lambda w: setattr(w, "data_type", -5), ModelTypeError, "the number -5"),
        (lambda w: setattr(w, "data_type", TensorProto.STRING), ModelFormatError, "strings stored as raw_data"),
        (lambda w: setattr(w, "data_type", TensorProto.INT64), ModelFormatError, "48 bytes"),
        (lambda w: w.float_data.append(1.0), ModelFormatError, "more than once"),
        (lambda w: w.dims.__setitem__(0, -2), ModelFormatError, "negative size"),
        (lambda w: setattr(w.segment, "begin", 1), ModelFormatError, "segments"),
    ],
)
def test_tensor_that_does_not_fit(change, kind, text):
    error = fails(bad_weight(change), kind, text)
    assert error.value == "w"


def test_typed_data():
    w = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3], float_data=[1, 2, 3, 4, 5])
    fails(add_w(w), ModelFormatError, "6 entries of float_data", "Found: 5")
    w.float_data.append(6)
    assert load_model(add_w(w)).graph.initializers["w"].const_value.numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
    w.data_type = TensorProto.DOUBLE
    fails(add_w(w), ModelFormatError, "wrong field", "double_data")


@pytest.mark.parametrize(
    ("dtype", "field", "entries"),
    [
        (TensorProto.INT4, "int32_data", 2),
        (TensorProto.UINT2, "int32_data", 1),
        (TensorProto.BFLOAT16, "int32_data", 3),
        (TensorProto.COMPLEX64, "float_data", 6),
        (TensorProto.COMPLEX128, "double_data", 6),
        (TensorProto.UINT32, "uint64_data", 3),
        (TensorProto.FLOAT8E5M2, "int32_data", 3),
    ],
)
def test_entries_of_each_dtype(dtype, field, entries):
    def built(n):
        w = onnx.TensorProto(name="w", data_type=dtype, dims=[3])
        getattr(w, field).extend([1] * n)
        return model([helper.make_node("Identity", ["w"], ["y"])], [], [value("y", (3,), dtype)], [w], opsets={"": 25})

    assert load_model(built(entries)).graph.initializers["w"].const_value.numpy().shape == (3,)
    for wrong in (entries - 1, entries + 1):
        fails(built(wrong), ModelFormatError, f"{entries} entries of {field}")


def test_bool_bytes_are_made_true_or_false():
    w = onnx.TensorProto(name="w", data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x00\x01\x7f")
    source = model([helper.make_node("Not", ["w"], ["y"])], [], [value("y", (3,), TensorProto.BOOL)], [w])
    array = load_model(source).graph.initializers["w"].const_value.numpy()
    assert array.view(np.uint8).tolist() == [0, 1, 1]


def test_strings_keep_their_ends():
    w = onnx.TensorProto(name="w", data_type=TensorProto.STRING, dims=[2], string_data=[b"a\0", "ä".encode() * 1000])
    source = model([helper.make_node("Identity", ["w"], ["y"])], [], [value("y", (2,), TensorProto.STRING)], [w])
    array = load_model(source).graph.initializers["w"].const_value.numpy()
    assert array.tolist() == [b"a\0", "ä".encode() * 1000]


def test_string_that_is_not_utf8():
    w = onnx.TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"])
    source = model([helper.make_node("Identity", ["w"], ["y"])], [], [value("y", (1,), TensorProto.STRING)], [w])
    fails(source, ModelFormatError, "not UTF-8")


def test_tensor_in_an_attribute_of_a_body_and_of_a_function():
    broken = onnx.TensorProto(name="", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"123")
    constant = helper.make_node("Constant", [], ["t"], name="k", value=broken)
    body = helper.make_graph([constant], "body", [], [value("t", (4,))])
    choose = helper.make_node("If", ["c"], ["y"], name="choose", then_branch=body, else_branch=body)
    error = fails(model([choose], inputs=[value("c", (), TensorProto.BOOL)]), ModelFormatError, "16 bytes")
    assert error.value in ("choose → then_branch → k → value", "choose → else_branch → k → value")
    function = helper.make_function("local", "F", [], ["t"], [constant], [helper.make_opsetid("", 20)])
    call = helper.make_node("F", [], ["y"], domain="local")
    source = model([call], inputs=[], functions=[function], opsets={"": 20, "local": 1})
    assert "function local::F" in fails(source, ModelFormatError, "16 bytes").value


# sparse tensors


def sparse(indices, shape=(2, 3), name="w"):
    indices = np.array(indices, np.int64)
    return helper.make_sparse_tensor(
        tensor(name, np.arange(1, len(indices) + 1, dtype=np.float32)), tensor("", indices), list(shape)
    )


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_initializer_becomes_dense(indices):
    source = model([helper.make_node("Add", ["x", "w"], ["y"])])
    source.graph.sparse_initializer.append(sparse(indices))
    assert load_model(source).graph.initializers["w"].const_value.numpy().tolist() == [[0, 1, 0], [0, 0, 2]]
    assert len(source.graph.sparse_initializer) == 1


def test_sparse_constant_becomes_dense():
    node = helper.make_node("Constant", [], ["y"], sparse_value=sparse([0]))
    loaded = load_model(model([node], inputs=[]))
    assert loaded.graph[0].attributes["value"].value.numpy().tolist() == [[1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([6], "outside its shape"),
        ([-1], "outside its shape"),
        ([[0, 3]], "outside its shape"),
        ([[0], [1]], "do not fit"),
    ],
)
def test_sparse_index_outside(indices, text):
    source = model([helper.make_node("Add", ["x", "w"], ["y"])])
    source.graph.sparse_initializer.append(sparse(indices))
    fails(source, ModelFormatError, text)


# attributes and types


def test_attribute_without_a_type_takes_that_of_its_content():
    source = model([helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5)])
    source.graph.node[0].attribute[0].ClearField("type")
    assert load_model(source).graph[0].attributes["alpha"].value == 0.5
    source.graph.node[0].attribute[0].ClearField("f")
    fails(source, ModelFormatError, "states no type", "no content")


def test_undefined_input_type():
    fails(model([helper.make_node("Relu", ["x"], ["y"])], [value("x", (1,), 0)]), ModelTypeError, "undefined")
    bare = onnx.ValueInfoProto(name="x")
    fails(model([helper.make_node("Relu", ["x"], ["y"])], [bare]), ModelTypeError, "has no type")


def test_undefined_types_elsewhere_are_left_to_inference():
    source = model([helper.make_node("Relu", ["x"], ["y"])], outputs=[value("y", (1,), 0)])
    assert load_model(source).graph.outputs[0].type is None


def test_unknown_type():
    fails(model([helper.make_node("Relu", ["x"], ["y"])], [value("x", (1,), 99)]), ModelTypeError, "the number 99")


def test_negative_sizes():
    source = model([helper.make_node("Relu", ["x"], ["y"])], [value("x", (-1, 3))])
    load_model(source)  # exporters write -1 where they mean any size
    source.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -7
    fails(source, ModelTypeError, "negative size", "-7")


def test_map_types_are_kept_as_text():
    from accord.model.own import TYPE_KEY

    source = model(
        [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[1, 2, 3])],
        opsets={"": 20, "ai.onnx.ml": 3},
    )
    info = source.graph.output[0]
    info.ClearField("type")
    mapped = info.type.sequence_type.elem_type.map_type
    mapped.key_type = TensorProto.INT64
    mapped.value_type.tensor_type.elem_type = TensorProto.FLOAT
    output = load_model(source).graph.outputs[0]
    assert output.type is None
    assert output.meta[TYPE_KEY].startswith("seq(map(int64")


@pytest.mark.parametrize(
    ("shape", "dtype", "fits"),
    [
        ((2, 3), TensorProto.FLOAT, True),
        (("n", -1), TensorProto.FLOAT, True),
        (None, TensorProto.FLOAT, True),
        ((2, 4), TensorProto.FLOAT, False),
        ((2, 3, 1), TensorProto.FLOAT, False),
        ((2, 3), TensorProto.DOUBLE, False),
    ],
)
def test_default_of_an_input_is_what_the_input_declares(shape, dtype, fits):
    w = tensor("w", np.ones((2, 3), np.float32))
    source = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x"), value("w", shape, dtype)], None, [w])
    if fits:
        load_model(source)
    else:
        fails(source, ModelTypeError, "not what the graph declares", "float[2, 3]")


def test_declared_type_of_an_initializer():
    source = linear()
    source.graph.value_info.append(value("w", (1, 1), TensorProto.FLOAT))
    assert tuple(load_model(source).graph.initializers["w"].shape) == (3, 4)
    source.graph.value_info[0].CopyFrom(value("w", (3, 4), TensorProto.INT8))
    fails(source, ModelTypeError, "not what the graph declares")
