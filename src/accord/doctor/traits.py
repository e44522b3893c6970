"""What about a model decides which runtime suits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from accord.errors import AccordError, ModelFormatError, UnknownOperatorError, UnsupportedError
from accord.model.load import load_model
from accord.runtime.model import Model
from accord.runtime.options import Options

__all__ = ["AccordFit", "Traits", "fit_of", "traits_of"]

_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})
#: Operators whose outputs' sizes depend on what the inputs hold.
_DATA_DEPENDENT = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress", "StringSplit", "TfIdfVectorizer"})
_QUANTISED = frozenset({
    "QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "MatMulNBits",
    "DynamicQuantizeLinear", "QAttention", "QGemm", "DynamicQuantizeMatMul", "QLinearAdd",
})  # fmt: skip
#: Quantised operators that are not pairs of QuantizeLinear and DequantizeLinear.
_OLD_QUANTISED = _QUANTISED - {"QuantizeLinear", "DequantizeLinear", "MatMulNBits"}


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about a model.

    Attributes:
        name: Of its file.
        producer: What wrote it.
        nodes: How many, those of bodies included.
        weight_bytes: Bytes of its weights.
        free_axes: Names of inputs and of their axes whose sizes are open.
        control_flow: Operators with bodies, counted.
        data_dependent: Operators whose results' sizes depend on values, counted.
        sequences: Operators and inputs of sequences, optionals or maps, counted.
        strings: Inputs and constants of strings.
        microsoft: Operators of domain ``com.microsoft``, counted.
        trees: Operators of domain ``ai.onnx.ml``, counted.
        custom: Operators of other domains, counted.
        quantised: Quantised operators, counted.
        old_quantised: Those of them that are no Q/DQ pairs.
        doubles: Weights and inputs of float64.
    """

    name: str
    producer: str
    nodes: int
    weight_bytes: int
    free_axes: tuple[str, ...]
    control_flow: Mapping[str, int]
    data_dependent: Mapping[str, int]
    sequences: Mapping[str, int]
    strings: int
    microsoft: Mapping[str, int]
    trees: Mapping[str, int]
    custom: Mapping[str, int]
    quantised: Mapping[str, int]
    old_quantised: Mapping[str, int]
    doubles: int


@dataclass(frozen=True, slots=True)
class AccordFit:
    """What Accord itself makes of a model.

    Attributes:
        error: Why it cannot run it; "" if it can.
        undeclared: That is so because operators of the user are not declared to it.
        steps: Steps of the plan.
        fallbacks: Operators that only the slow reference backend runs, counted.
        late: Values whose sizes are known only while the model runs.
    """

    error: str = ""
    undeclared: bool = False
    steps: int = 0
    fallbacks: Mapping[str, int] | None = None
    late: int = 0


def traits_of(path: Path) -> Traits:
    """Facts about the model at ``path``; it may have operators that Accord does not know.

    Raises:
        ModelError: it is no valid model.
    """
    try:
        model = load_model(path)
    except UnsupportedError:
        try:
            model = ir.load(path)
        except Exception as error:
            raise ModelFormatError(f"'{path.name}' cannot be read: {error}") from error
    nodes = list(_all_nodes(model))
    by_domain: dict[str, Counter[str]] = {}
    own = set(model.functions)
    for node in nodes:
        if node.op_identifier() not in own:
            by_domain.setdefault(node.domain, Counter())[node.op_type] += 1
    standard = by_domain.get("", Counter()) + by_domain.get("ai.onnx", Counter())
    microsoft = by_domain.get("com.microsoft", Counter())
    every = standard + microsoft
    custom = Counter({
        f"{domain}::{op}": n
        for domain, ops in by_domain.items()
        for op, n in ops.items()
        if domain not in _KNOWN_DOMAINS and not domain.startswith("ai.onnx")
    })  # fmt: skip
    weights = list(_weights(model))
    inputs = list(model.graph.inputs)
    dtypes = [w.dtype for w in weights] + [v.dtype for v in inputs]
    typed = Counter(
        type(v.type).__name__ for v in inputs if v.type is not None and not isinstance(v.type, ir.TensorType)
    )
    return Traits(
        name=path.name,
        producer=" ".join(x for x in (model.producer_name, model.producer_version) if x),
        nodes=len(nodes),
        weight_bytes=sum(w.nbytes for w in weights),
        free_axes=tuple(_free_axes(inputs)),
        control_flow=_those(standard, _CONTROL),
        data_dependent=_those(every, _DATA_DEPENDENT),
        sequences=dict(Counter({op: n for op, n in standard.items() if "Sequence" in op or "Optional" in op}) + typed),
        strings=sum(d == ir.DataType.STRING for d in dtypes),
        microsoft=dict(microsoft),
        trees=dict(by_domain.get("ai.onnx.ml", {})),
        custom=dict(custom),
        quantised=_those(every, _QUANTISED),
        old_quantised=_those(every, _OLD_QUANTISED),
        doubles=sum(d == ir.DataType.DOUBLE for d in dtypes),
    )


def fit_of(path: Path) -> AccordFit:
    """Compile the model and see; an error is an answer."""
    from accord.plan.plan import all_plans, all_steps

    try:
        model = Model(path, Options())
    except AccordError as error:
        return AccordFit(error=str(error), undeclared=isinstance(error, UnknownOperatorError))
    steps = list(all_steps(model.plan))
    return AccordFit(
        steps=len(steps),
        fallbacks=dict(Counter(s.placement.op for s in steps if s.placement.fallback)),
        late=sum(slot.storage.value == "late" for plan in all_plans(model.plan) for slot in plan.slots),
    )


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Initialisers and constants, those of bodies included."""
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    graphs.append(attribute.as_graph())
                elif attribute.type == ir.AttributeType.GRAPHS:
                    graphs += attribute.as_graphs()
                elif attribute.type == ir.AttributeType.TENSOR and node.op_type == "Constant":
                    yield attribute.as_tensor()


def _free_axes(inputs: list[ir.Value]) -> Iterator[str]:
    for value in inputs:
        if value.shape is None:
            yield f"{value.name} (rank open)"
            continue
        for k, dim in enumerate(value.shape):
            if not isinstance(dim, int):
                yield f"{value.name}[{k}]" + (f" = {dim.value}" if dim.value else "")


def _those(counts: Counter[str], names: frozenset[str]) -> dict[str, int]:
    return {op: n for op, n in counts.items() if op in names}
