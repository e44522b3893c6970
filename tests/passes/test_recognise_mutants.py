"""Graphs that are nearly what an exporter writes compute the same with and without recognition, whatever fires."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
import test_recognise_activations as act
import test_recognise_attention as att
import test_recognise_cells as cel
import test_recognise_normalisation as nor
import test_recognise_rotary as rot
from onnx import numpy_helper
from recognise_harness import RULES, G, compiled

from accord.errors import AccordError

SIZES = {"b": 2, "s": 5, "n": 3}


def graphs():
    """What to change: one of each meaning, always the same."""
    for module in (act, att, cel, nor, rot):
        module.RNG = np.random.default_rng(1)
    for form in nor.EXPORTERS:
        g = G(18)
        y = form(g, "x", nor.rand(8), nor.rand(8))
        yield g.model({"x": ["n", 5, 8]}, y)
    for form in (nor.t5, nor.llama):
        g = G(18)
        y = form(g, "x", nor.rand(8))
        yield g.model({"x": ["n", 5, 8]}, y)
    for form in (nor.stable, nor.plain):
        g = G(18)
        y = form(g, "x", 1)
        yield g.model({"x": ["n", 5, 8]}, y)
    for form in (*act.ERF[:2], act.tanh_pow, act.swish_div, lambda g, x: act.H_SWISH[0](g, x, act.relu6)):
        g = G(18)
        y = form(g, "x")
        yield g.model({"x": ["n", 5]}, y)
    for kind in ("added", "infinite", "capped"):
        g = G(18)
        y = att.simple(g, att.MASKS[kind])
        mask = {"k": (np.bool_, ["b", 1, "s", "s"])} if kind == "infinite" else {"a": ["b", 1, "s", "s"]}
        yield g.model({"x": ["b", "s", att.E], **mask}, y)
    for rotate in (rot.rotate_half, rot.rotate_split):
        g = G(18)
        y = rot.turned(g, "x", *rot.tables(g), rotate)
        yield g.model({"x": ["b", rot.H, "s", rot.D], "p": (np.int64, ["b", "s"])}, y)
    for form in (cel.torch_lstm, cel.tf_lstm):
        g = G(18)
        h, c = form(g)
        yield g.model(cel.LSTM_INPUTS, h, c)
    g = G(18)
    y = cel.torch_gru(g, cel.plain)
    yield g.model(cel.GRU_INPUTS, y)


def perturb(proto, rng):
    """One element of one constant."""
    tensor = rng.choice([t for t in proto.graph.initializer if np.prod(t.dims) > 0])
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    i = rng.randrange(flat.size)
    old = flat[i]
    with np.errstate(over="ignore"):  # the end of a slice may be the greatest number there is
        whole = array.dtype.kind in "iu"
        choices = [old + 1, old - 1, 0, 1] if whole else [old * 1.01, old * 2, -old, 0.0, 1.0, old + 0.1]
    flat[i] = rng.choice(choices)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def swap(proto, rng):
    """The first two inputs of a node."""
    node = rng.choice([n for n in proto.graph.node if len(n.input) > 1])
    node.input[0], node.input[1] = node.input[1], node.input[0]


def rewire(proto, rng):
    """An input of a node, to another value."""
    node = rng.choice(list(proto.graph.node))
    names = [o for n in proto.graph.node for o in n.output] + [i.name for i in proto.graph.input]
    node.input[rng.randrange(len(node.input))] = rng.choice(names)


def replace(proto, rng):
    """An operator, by another of as many inputs."""
    pairs = [
        ("Add", "Sub"),
        ("Mul", "Div"),
        ("Add", "Mul"),
        ("Sigmoid", "Tanh"),
        ("ReduceMean", "ReduceSum"),
        ("Cos", "Sin"),
    ]
    a, b = rng.choice(pairs)
    nodes = [n for n in proto.graph.node if n.op_type in (a, b)]
    if nodes:
        node = rng.choice(nodes)
        node.op_type = b if node.op_type == a else a


def publish(proto, rng):
    """A value between becomes an output."""
    name = rng.choice([o for n in proto.graph.node for o in n.output])
    if name not in [o.name for o in proto.graph.output]:
        proto.graph.output.append(onnx.ValueInfoProto(name=name))


def feeds(proto, seed):
    generator = np.random.default_rng(seed)
    found = {}
    for i in proto.graph.input:
        t = i.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else SIZES.get(d.dim_param, 4) for d in t.shape.dim]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(t.elem_type))
        if dtype == np.bool_:
            found[i.name] = generator.random(shape) > 0.3
        else:
            found[i.name] = (2 * generator.standard_normal(shape)).astype(dtype)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_mutants_compute_the_same(seed):
    rng = random.Random(seed)
    fired = 0
    for proto in graphs():
        for _ in range(3):
            mutant = onnx.ModelProto()
            mutant.CopyFrom(proto)
            rng.choice([perturb, perturb, swap, rewire, replace, publish])(mutant, rng)
            try:
                plain = compiled(mutant, disabled_rules=RULES)
                given = feeds(mutant, rng.randrange(1 << 30))
                want = plain(given)
            except AccordError:
                continue  # no model any more
            m = compiled(mutant)
            fired += any(p.rule in RULES for p in m.compiled.log.patches)
            for a, b in zip(m(given), want, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                # where a row has no key, or an intermediate overflows, the operator gives a number
                finite = np.isfinite(b)
                scale = float(np.abs(b[finite]).max(initial=1e-3))
                np.testing.assert_allclose(a[finite], b[finite], rtol=2e-3, atol=2e-4 * scale)
    assert fired > 10
