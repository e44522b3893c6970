"""The declarations, against the schemas that the installed ONNX Runtime has."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import accord
import accord.backends.reference.microsoft
from accord.backends.reference.registry import find
from accord.contract.contract import Contract
from accord.errors import UnsupportedError
from accord.ir.expand import expansion_for
from accord.ops.microsoft.schemas import DOMAIN, NCHWC_DOMAIN, NHWC_DOMAIN, parse, schemas
from accord.ops.microsoft.unsupported import UNSUPPORTED

DOMAINS = (DOMAIN, NCHWC_DOMAIN, NHWC_DOMAIN)


def installed():
    """The newest schema of each operator; of the ONNX domain only what ONNX Runtime adds as version 1."""
    found = {}
    for schema in get_all_operator_schema():
        added = schema.domain == "" and schema.since_version == 1 and ("", schema.name) in schemas()
        if schema.domain in DOMAINS or added:
            key = schema.domain, schema.name
            if key not in found or found[key].since_version < schema.since_version:
                found[key] = schema
    return found


def test_every_operator_of_the_domains_is_declared():
    assert set(installed()) == set(schemas())


@pytest.mark.parametrize("key", sorted(schemas()))
def test_declaration_is_what_the_runtime_has(key):
    declared, schema = schemas()[key], installed()[key]
    for ours, theirs in ((declared.inputs, schema.inputs), (declared.outputs, schema.outputs)):
        assert [p.name for p in ours] == [p.name for p in theirs]
        assert [p.option for p in ours] == [str(p.option).rpartition(".")[2].lower() for p in theirs]
        for p, q in zip(ours, theirs, strict=True):
            allowed = declared.types.get(p.type, {p.type})
            # Kernels take more types than some schemas say.
            assert set(q.types) <= set(allowed), p.name
            assert p.homogeneous == q.isHomogeneous or p.option != "variadic"
    assert set(declared.attributes) == set(schema.attributes)
    for name, attribute in schema.attributes.items():
        ours = declared.attributes[name]
        assert ours.kind == attribute.type.name and ours.required == attribute.required, name
        default = onnx.AttributeProto.FromString(attribute._default_value) if attribute._default_value else None
        value = None if default is None or not default.type else onnx.helper.get_attribute_value(default)
        if isinstance(value, float):
            assert np.float32(ours.default) == np.float32(value), name
        else:
            assert ours.default == (value.decode() if isinstance(value, bytes) else value), name


def test_declarations_make_contracts():
    for semantic in schemas().values():
        Contract(semantic)


def test_every_operator_is_computed_or_has_a_reason():
    for key in schemas():
        if key == ("", "LayerNormalization"):
            continue  # the ONNX domain's own, which the reference has
        computed = expansion_for(*key, 1) is not None or find(*key, 1) is not None
        assert computed != (key in UNSUPPORTED), key


def test_notation():
    entry = """ai.onnx::Thing(x: T, rest: U**) -> (y: T?, z: int64)
    @ size: int!, names: strs, mode: str = "a, b", low: float = -1.5
    T = halves double; U = bytes
    since 3
    : What it does."""
    semantic = parse(entry)
    assert (semantic.domain, semantic.name, semantic.since_version) == ("", "Thing", 3)
    assert [(p.name, p.type, p.option, p.homogeneous) for p in semantic.inputs] == [
        ("x", "T", "single", True),
        ("rest", "U", "variadic", False),
    ]
    assert [(p.type, p.option) for p in semantic.outputs] == [("T", "optional"), ("tensor(int64)", "single")]
    assert semantic.types["T"] == {f"tensor({t})" for t in ("float", "float16", "bfloat16", "double")}
    assert semantic.attributes["size"].required and semantic.attributes["mode"].default == "a, b"
    assert semantic.attributes["low"].default == -1.5 and semantic.attributes["names"].kind == "STRINGS"
    assert semantic.doc == "What it does."
    with pytest.raises(ValueError, match="not a declaration"):
        parse("Thing x")


def test_an_operator_that_is_left_out_says_why():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])
    node = helper.make_node("QOrderedGelu", ["x", "s", "s"], ["y"], domain=DOMAIN, order_X=1, order_Y=1)
    scale = helper.make_tensor_value_info("s", TensorProto.FLOAT, [])
    x.type.tensor_type.elem_type = TensorProto.INT8
    graph = helper.make_graph([node], "g", [x, scale], [helper.make_empty_tensor_value_info("y")])
    imports = [helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, 1)]
    with pytest.raises(UnsupportedError, match="only GPU kernels define it"):
        accord.load(helper.make_model(graph, opset_imports=imports, ir_version=10))
