#!/usr/bin/env python3
"""How far the outputs of the table's models are from those computed in float64, beside ONNX Runtime.

    python benchmarks/accuracy.py [--seeds N] [--threads N] [--output FILE] [MODEL ...]

The model is rewritten to compute in float64 (:func:`in_double`) and run by the reference backend. An error is the
largest difference, or the root of the mean square of the differences, against the largest value of the output, worst
over the outputs; that of a model is the largest, or the root of the mean square, over all shapes and inputs.

Fails if Accord's error is above twice that of ONNX Runtime, or if the reference backend in float32 differs from
float64 by more than rounding explains: then the judge is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import invocation, machine
from benchmarks.models import ALL, TABLE, make_feed, source

Run: TypeAlias = Callable[[Mapping[str, Any]], Sequence[Any]]

#: By how much Accord's error may be above that of ONNX Runtime.
_FACTOR = 2.0
#: Errors below this are a unit or two in the last place of float32: there a factor means nothing.
_FLOOR = 2.0**-22
#: Elements of each output that are compared, at least: of a few, chance decides whose error is larger.
_ELEMENTS = 64
#: More than this is no rounding of float32.
_ROUNDING = 1e-3


def main() -> int:
    """Measure, print, write; 1 if an error is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names in the table (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="inputs for each shape (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="file for all errors, as JSON")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in set(arguments.models) - set(ALL):
        parser.error(f"no model '{name}'; there are {', '.join(ALL)}")
    if arguments.one:
        print(json.dumps(measure(arguments.models[0], arguments.seeds, arguments.threads)))
        return 0
    rows = []
    print("| model | cases | Accord max | ONNX Runtime max | Accord RMS | ONNX Runtime RMS | reference max | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.models or TABLE:
        command = [sys.executable, __file__, "--one", name, "--seeds", str(arguments.seeds)]
        done = subprocess.run(
            [*command, "--threads", str(arguments.threads)], stdout=subprocess.PIPE, text=True, check=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(_drawn(rows[-1]), flush=True)
    if arguments.output is not None:
        data = {"command": invocation(), "machine": machine(), "models": rows}
        arguments.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return int(any(r["ratio"] > _FACTOR or r["errors"]["reference"]["max"] > _ROUNDING for r in rows))


def measure(name: str, seeds: int, threads: int) -> dict[str, Any]:
    """The errors of all runtimes on one model, joined and in each case."""
    import onnxruntime

    import accord
    from accord.backends.reference.evaluator import evaluate

    entry = ALL[name]
    content = source(entry)
    proto = onnx.load_from_string(content) if isinstance(content, bytes) else onnx.load(content)
    double = in_double(proto)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        content if isinstance(content, bytes) else str(content), options, providers=["CPUExecutionProvider"]
    )
    model = accord.load(content, threads=threads)
    runs: dict[str, Run] = {
        "accord": model,
        "onnxruntime": lambda feed: session.run(None, dict(feed)),
        "reference": lambda feed: evaluate(proto, feed),
    }
    cases = []
    for case, shapes in enumerate(entry.shapes):
        few = min((o.size for o in model(make_feed(entry, case)) if o.size), default=_ELEMENTS)
        for seed in range(max(seeds, math.ceil(_ELEMENTS / few))):
            feed = make_feed(entry, case, seed)
            exact = evaluate(double, {n: widened(a) for n, a in feed.items()})
            errors = {r: error_of(run(feed), exact) for r, run in runs.items()}
            cases.append({"shapes": {n: list(s) for n, s in shapes.items()}, "seed": seed, "errors": errors})
    worst = {r: _joined([c["errors"][r] for c in cases]) for r in runs}
    ratio = max(worst["accord"][m] / max(worst["onnxruntime"][m], _FLOOR) for m in ("max", "rms"))
    return {"model": name, "errors": worst, "ratio": round(ratio, 3), "cases": cases}


def _joined(errors: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The error of a model from those of its cases."""
    return {
        "max": max(e["max"] for e in errors),
        "rms": math.sqrt(sum(e["rms"] ** 2 for e in errors) / len(errors)),
    }


def error_of(outputs: Sequence[Any], exact: Sequence[Any]) -> dict[str, float]:
    """Largest and root mean square difference against the largest value; the worst of all outputs.

    Raises:
        ValueError: a shape differs, or an element that is no float.
    """
    found = {"max": 0.0, "rms": 0.0}
    for got, want in zip(outputs, exact, strict=True):
        if got.shape != want.shape or (got.dtype.kind != "f" and not np.array_equal(got, want)):
            raise ValueError(f"an output is another one: {got.dtype}{got.shape}, {want.dtype}{want.shape}")
        if not got.size or got.dtype.kind != "f":
            continue
        largest = float(np.abs(want).max()) or 1.0
        off = np.abs(got.astype(np.float64) - want) / largest
        found["max"] = max(found["max"], float(off.max()))
        found["rms"] = max(found["rms"], float(np.sqrt(np.mean(off**2))))
    return found


def _drawn(row: dict[str, Any]) -> str:
    e = row["errors"]
    cells = [e["accord"]["max"], e["onnxruntime"]["max"], e["accord"]["rms"], e["onnxruntime"]["rms"]]
    cells.append(e["reference"]["max"])
    return f"| {row['model']} | {len(row['cases'])} | {' | '.join(f'{c:.2g}' for c in cells)} | {row['ratio']:.2f} |"


# computing in float64


def widened(value: Any) -> Any:
    """Floating-point arrays as float64, all else as it is."""
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model that computes in float64 what ``model`` computes in shorter types: weights, casts and declared types.

    An operator that takes or gives float32 alone (the scales of a Resize) gets a Cast before or behind.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    versions = {o.domain: o.version for o in model.opset_import}
    _widen_graph(result.graph, versions)
    for function in result.functions:
        own = {o.domain: o.version for o in function.opset_import}
        _widen_nodes(function.node, own)
    return result


_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _widen_graph(graph: onnx.GraphProto, versions: Mapping[str, int]) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del graph.value_info[:]
    _widen_nodes(graph.node, versions)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _widen_nodes(nodes: Any, versions: Mapping[str, int]) -> None:
    made: list[onnx.NodeProto] = []
    for node in nodes:
        for attribute in node.attribute:
            _widen_attribute(node, attribute, versions)
        narrow, narrowed = _float_only(node, versions)
        for i in narrow:
            cast = f"{node.input[i]}.float.{len(made)}"
            made.append(helper.make_node("Cast", [node.input[i]], [cast], to=TensorProto.FLOAT))
            node.input[i] = cast
        made.append(node)
        for i in narrowed:
            name, node.output[i] = node.output[i], f"{node.output[i]}.float"
            made.append(helper.make_node("Cast", [node.output[i]], [name], to=TensorProto.DOUBLE))
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in made]
    del nodes[:]
    nodes.extend(copies)


def _widen_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto, versions: Mapping[str, int]) -> None:
    if attribute.HasField("g"):
        _widen_graph(attribute.g, versions)
    elif attribute.HasField("t"):
        _widen_tensor(attribute.t)
    elif attribute.name in ("to", "dtype") and attribute.i in _FLOATS:
        attribute.i = TensorProto.DOUBLE
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        number = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        tensor = numpy_helper.from_array(np.array(number, np.float64))
        attribute.CopyFrom(helper.make_attribute("value", tensor))


def _float_only(node: onnx.NodeProto, versions: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Numbers of the inputs and of the outputs that may be float32, but not float64."""
    domain = node.domain
    if not onnx.defs.has(node.op_type, domain) or domain not in versions:
        return [], []
    schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}

    def only(names: Sequence[str], formals: Sequence[Any]) -> list[int]:
        found = []
        for i, name in enumerate(names):
            text = formals[min(i, len(formals) - 1)].type_str
            types = allowed.get(text, {text})
            if name and "tensor(float)" in types and "tensor(double)" not in types:
                found.append(i)
        return found

    return only(node.input, schema.inputs), only(node.output, schema.outputs)


if __name__ == "__main__":
    sys.exit(main())
