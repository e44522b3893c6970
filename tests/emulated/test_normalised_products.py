"""Normalisations that become a factor of each row of the products that read them."""

from __future__ import annotations

from math import erf

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import accord
from builders import model, node

F16, BF16 = np.float16, ml_dtypes.bfloat16
FEW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
#: Of whole networks, which the interpreter takes seconds for.
FEWER = settings(FEW, max_examples=6)


def network(rng, dtype, shape, columns, *, op, bias, after, products, view=None, axis=-1):
    """Products of normalised rows of ``x + x``, each with what follows it."""
    width = shape[-1]
    weights = {"scale": (1 + 0.3 * rng.standard_normal(width)).astype(dtype)}
    inputs = ["s", "scale"]
    if op == "LayerNormalization" and bias:
        weights["shift"] = rng.standard_normal(width).astype(dtype)
        inputs.append("shift")
    nodes = [node("Add", ["x", "x"], ["s"]), node(op, inputs, ["n"], axis=axis, epsilon=1e-5)]
    rows = "n"
    if view is not None:
        weights["to"] = np.array(view, np.int64)
        nodes.append(node("Reshape", ["n", "to"], ["v"]))
        rows = "v"
    for k in range(products):
        weights[f"w{k}"] = (rng.standard_normal((width, columns)) / np.sqrt(width)).astype(dtype)
        nodes.append(node("MatMul", [rows, f"w{k}"], [f"p{k}"]))
        last = f"p{k}"
        if after:
            weights[f"b{k}"] = rng.standard_normal(columns).astype(dtype)
            nodes += [node("Add", [last, f"b{k}"], [f"a{k}"]), node("Gelu", [f"a{k}"], [f"y{k}"])]
            last = f"y{k}"
        nodes[-1].output[0] = f"y{k}"
    return model(nodes, {"x": (dtype, list(shape))}, [f"y{k}" for k in range(products)], weights, opset=23)


def expected(proto, x):
    """In float64, of the model's own numbers."""
    known = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}
    known["x"] = x.astype(np.float64)
    for n in proto.graph.node:
        a = [known[i] for i in n.input]
        if n.op_type == "Add":
            out = a[0] + a[1]
        elif n.op_type == "Relu":
            out = np.maximum(a[0], 0)
        elif n.op_type == "Reshape":
            out = a[0].reshape(a[1].astype(int))
        elif n.op_type == "MatMul":
            out = a[0] @ a[1]
        elif n.op_type == "Gelu":
            out = a[0] * 0.5 * (1 + np.vectorize(erf)(a[0] / np.sqrt(2)))
        else:
            centre = a[0].mean(-1, keepdims=True) if n.op_type == "LayerNormalization" else 0.0
            out = (a[0] - centre) / np.sqrt(((a[0] - centre) ** 2).mean(-1, keepdims=True) + 1e-5) * a[1]
            out = out + a[2] if len(a) > 2 else out
        known[n.output[0]] = out
    return [known[o.name] for o in proto.graph.output]


def check(proto, x):
    """Folded, and not much further from the exact result than what is not."""
    content = proto.SerializeToString()
    plain, folded = (accord.load(content, device="cuda", disabled_rules=d) for d in (["fold-normalisation"], []))
    assert ["Normalization" in "".join(s.placement.op for s in m.plan.steps) for m in (plain, folded)] == [True, False]
    for got, usual, exact in zip(folded(x), plain(x), expected(proto, x), strict=True):
        error, before = (np.abs(y.astype(np.float64) - exact).max() for y in (got, usual))
        unit = float(ml_dtypes.finfo(got.dtype).eps) * np.abs(exact).max()
        assert error <= 2 * before + 2 * unit, (error, before, unit)


@FEW
@given(
    dtype=st.sampled_from([F16, BF16]), rows=st.sampled_from([(1,), (5,), (2, 7), (40,)]),
    width=st.sampled_from([8, 24, 64, 129]), columns=st.sampled_from([8, 40, 65]), bias=st.booleans(),
    op=st.sampled_from(["LayerNormalization", "RMSNormalization"]), after=st.booleans(), products=st.integers(1, 2),
    centre=st.sampled_from([0.0, 0.5, 8.0]),
)  # fmt: skip
def test_rows_are_scaled_behind_the_product(gpu, dtype, rows, width, columns, bias, op, after, products, centre):
    rng = np.random.default_rng(width * columns)
    proto = network(rng, dtype, (*rows, width), columns, op=op, bias=bias, after=after, products=products)
    check(proto, (rng.standard_normal((*rows, width)) + centre).astype(dtype))


def test_through_another_form_of_the_rows(gpu):
    rng = np.random.default_rng(0)
    given = {"op": "LayerNormalization", "bias": True, "after": True, "products": 1}
    proto = network(rng, F16, (2, 3, 16), 8, view=[3, 2, 16], **given)
    x = rng.standard_normal((2, 3, 16)).astype(F16)
    check(proto, x)
    proto = network(rng, F16, (2, 6, 16), 8, view=[2, 3, 32], **{**given, "products": 0})
    proto.graph.output.append(onnx.ValueInfoProto(name="v"))
    m = accord.load(proto.SerializeToString(), device="cuda")  # other rows
    assert any("Normalization" in s.placement.op for s in m.plan.steps)


@pytest.mark.parametrize("kind", ["float32", "read twice", "not the last axis", "level 1", "switched off"])
def test_what_stays(gpu, kind):
    rng = np.random.default_rng(0)
    dtype = np.float32 if kind == "float32" else F16
    given = {"op": "LayerNormalization", "bias": True, "after": False, "products": 1}
    proto = network(rng, dtype, (4, 16), 8, axis=0 if kind == "not the last axis" else -1, **given)
    if kind == "not the last axis":
        for t in proto.graph.initializer:
            if t.name in ("scale", "shift"):
                t.CopyFrom(numpy_helper.from_array(np.ones((4, 16), dtype), t.name))
    if kind == "read twice":
        proto.graph.node.append(node("Neg", ["n"], ["z"]))
        proto.graph.output.append(onnx.ValueInfoProto(name="z"))
    options = {"level": 1} if kind == "level 1" else {"disabled_rules": ["fold-normalisation"]}
    m = accord.load(
        proto.SerializeToString(), device="cuda", **(options if kind in ("level 1", "switched off") else {})
    )
    assert any("Normalization" in s.placement.op for s in m.plan.steps)


def check_layers(network, dtype, rows, width, inner, *, op, deviations, loops):
    """So many kernels of each kind; right, and the same in every run."""
    rng = np.random.default_rng(width * inner)
    proto = network(rng, dtype, rows, width, inner, op=op)
    x = rng.standard_normal((*rows, width)).astype(dtype)
    m = accord.load(proto.SerializeToString(), device="cuda")
    kernels = [s.placement.kernel.name for s in m.plan.steps if s.placement.backend == "cuda"]
    assert sum("deviations" in k for k in kernels) == deviations, kernels
    assert sum(k.startswith("loops") for k in kernels) == loops, kernels
    check(proto, x)
    first = np.asarray(m(x)[0])
    for _ in range(4):  # also as a graph, which leaves what it counts with as it found it
        np.testing.assert_array_equal(m(x)[0], first)


def stream(rng, dtype, rows, width, inner, *, op, layers=2):
    """Layers of ``x + f(norm(x))``, as a transformer has them."""
    weights, nodes, last = {}, [node("Relu", ["x"], ["r0"])], "r0"
    for k in range(layers):
        weights |= {
            f"s{k}": (1 + 0.3 * rng.standard_normal(width)).astype(dtype),
            f"u{k}": (rng.standard_normal((width, inner)) / np.sqrt(width)).astype(dtype),
            f"d{k}": (rng.standard_normal((inner, width)) / np.sqrt(inner)).astype(dtype),
            f"b{k}": rng.standard_normal(width).astype(dtype),
        }
        nodes += [
            node(op, [last, f"s{k}"], [f"n{k}"], axis=-1, epsilon=1e-5),
            node("MatMul", [f"n{k}", f"u{k}"], [f"h{k}"]),
            node("Relu", [f"h{k}"], [f"g{k}"]),
            node("MatMul", [f"g{k}", f"d{k}"], [f"o{k}"]),
            node("Add", [f"o{k}", f"b{k}"], [f"p{k}"]),
            node("Add", [f"p{k}", last], [f"r{k + 1}"]),
        ]
        last = f"r{k + 1}"
    weights["w"] = (rng.standard_normal((width, 8)) / np.sqrt(width)).astype(dtype)
    weights["s"] = np.ones(width, dtype)
    nodes += [node(op, [last, "s"], ["n"], axis=-1, epsilon=1e-5), node("MatMul", ["n", "w"], ["y"])]
    return model(nodes, {"x": (dtype, [*rows, width])}, ["y"], weights, opset=23)


@FEWER
@given(
    dtype=st.sampled_from([F16, BF16]), rows=st.sampled_from([(1,), (7,), (2, 9), (40,), (130,)]),
    width=st.sampled_from([8, 40, 72, 129, 260]), inner=st.sampled_from([16, 40]),
    op=st.sampled_from(["LayerNormalization", "RMSNormalization"]),
)  # fmt: skip
def test_products_make_the_deviations_of_their_rows(gpu, dtype, rows, width, inner, op):
    # the loops are those of what no product makes
    check_layers(stream, dtype, rows, width, inner, op=op, deviations=2, loops=1)


def post_norm(rng, dtype, rows, width, inner, *, op, layers=3):
    """Layers of ``norm(x + f(x))``, as BERT has them: normalised rows are read by a product, and added to another."""
    weights, nodes, last = {}, [node("Relu", ["x"], ["r"])], "r"
    for k in range(layers):
        weights |= {
            f"s{k}": (1 + 0.3 * rng.standard_normal(width)).astype(dtype),
            f"t{k}": rng.standard_normal(width).astype(dtype),
            f"u{k}": (rng.standard_normal((width, inner)) / np.sqrt(width)).astype(dtype),
            f"d{k}": (rng.standard_normal((inner, width)) / np.sqrt(inner)).astype(dtype),
            f"b{k}": rng.standard_normal(width).astype(dtype),
        }
        norm = [f"a{k}", f"s{k}", *([f"t{k}"] if op == "LayerNormalization" else [])]
        nodes += [
            node("MatMul", [last, f"u{k}"], [f"h{k}"]),
            node("Relu", [f"h{k}"], [f"g{k}"]),
            node("MatMul", [f"g{k}", f"d{k}"], [f"o{k}"]),
            node("Add", [f"o{k}", f"b{k}"], [f"p{k}"]),
            node("Add", [last, f"p{k}"] if k % 2 else [f"p{k}", last], [f"a{k}"]),
            node(op, norm, [f"n{k}"], axis=-1, epsilon=1e-5),
        ]
        last = f"n{k}"
    used = {i for n in nodes for i in n.input}
    weights["w"] = (rng.standard_normal((width, 8)) / np.sqrt(width)).astype(dtype)
    nodes.append(node("MatMul", [last, "w"], ["y"]))
    weights = {n: v for n, v in weights.items() if n in used or n == "w"}
    return model(nodes, {"x": (dtype, [*rows, width])}, ["y"], weights, opset=23)


@FEWER
@given(
    dtype=st.sampled_from([F16, BF16]), rows=st.sampled_from([(1,), (7,), (2, 9), (40,)]),
    width=st.sampled_from([8, 40, 129]), inner=st.sampled_from([16, 40]),
    op=st.sampled_from(["LayerNormalization", "RMSNormalization"]),
)  # fmt: skip
def test_rows_that_are_a_residual_too_are_made_again(gpu, dtype, rows, width, inner, op):
    check_layers(post_norm, dtype, rows, width, inner, op=op, deviations=3, loops=0)


def test_rows_with_other_readers_are_made(gpu):
    """Two residuals, or a residual of what no product makes."""
    rng = np.random.default_rng(0)
    proto = post_norm(rng, F16, (5,), 16, 16, op="LayerNormalization", layers=2)
    proto.graph.node.append(node("Add", ["n0", "n0"], ["z"]))
    proto.graph.output.append(onnx.ValueInfoProto(name="z"))
    m = accord.load(proto.SerializeToString(), device="cuda")
    assert sum("Normalization" in s.placement.op for s in m.plan.steps) == 1
    x = rng.standard_normal((5, 16)).astype(F16)
    for got, exact in zip(m(x), expected(proto, x), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2e-2, atol=2e-2)


def test_a_stored_plan_makes_deviations(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))
    rng = np.random.default_rng(0)
    path = tmp_path / "model.onnx"
    path.write_bytes(post_norm(rng, F16, (9,), 24, 16, op="LayerNormalization").SerializeToString())
    x = rng.standard_normal((9, 24)).astype(F16)
    first = np.asarray(accord.load(path, device="cuda")(x)[0])
    again = accord.load(path, device="cuda")
    assert again._compiled is None, "it was compiled again"
    np.testing.assert_array_equal(again(x)[0], first)
