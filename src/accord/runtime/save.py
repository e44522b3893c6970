"""Writing a stage of compilation as an ONNX file that other tools can open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from accord.errors import AccordError
from accord.ir.facts import Fact, FactTable, TensorFact
from accord.ir.infer import Analyzer

__all__ = ["annotated", "save_stage"]

#: Protobuf messages end at 2 GiB; larger weights go to a file beside the model.
_MAX_EMBEDDED = (1 << 31) - (1 << 26)
#: Weights of at most this many bytes stay in the model even then.
_SMALL = 256


def annotated(model: ir.Model, analyzer: Analyzer | None) -> ir.Model:
    """A copy of ``model`` whose values carry their facts as ONNX types and shapes; weights are shared.

    Args:
        model: The model after a stage; it is not changed.
        analyzer: Facts; None gives a plain copy.
    """
    copy = model.clone()
    if analyzer is None:
        return copy
    facts = FactTable()
    for old, new in zip(_values(model.graph), _values(copy.graph), strict=True):
        facts[new] = analyzer.facts.get(old)
    # what a file states for inputs and outputs stays as it is, unless an exporter stated what cannot be
    stated = {v for g in _graphs(copy.graph) for v in (*g.inputs, *g.outputs) if _may_have(facts.get(v), v.shape)}
    facts.write_back(v for v in _values(copy.graph) if v not in stated)
    return copy


def save_stage(model: ir.Model, analyzer: Analyzer | None, path: str | os.PathLike[str]) -> None:
    """Write ``model`` with its facts to ``path``; the file is complete or absent.

    Args:
        model: The model after a stage.
        analyzer: Facts.
        path: Where; a file of this name is replaced.

    Raises:
        AccordError: it cannot be written.
    """
    target = Path(path)
    copy = annotated(model, analyzer)
    weights = [v.const_value for g in copy.graphs() for v in g.initializers.values() if v.const_value is not None]
    external = f"{target.name}.data" if sum(w.nbytes for w in weights) > _MAX_EMBEDDED else None
    for graph in copy.graphs() if external is None else ():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):  # its file lies beside the original model
                value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        ir.save(copy, unfinished, format="protobuf", external_data=external, size_threshold_bytes=_SMALL)
        unfinished.replace(target)
    except OSError as error:
        raise AccordError(
            f"cannot write '{target}': {error.strerror or error}", remedy="Choose a folder that exists."
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _may_have(fact: Fact, shape: ir.Shape | None) -> bool:
    """True if a shape is stated and no size in it contradicts the fact."""
    if shape is None or not isinstance(fact, TensorFact) or fact.shape is None:
        return shape is not None
    sizes = zip(fact.shape, shape, strict=False)
    return len(fact.shape) == len(shape) and not any(
        isinstance(known, int) and isinstance(size, int) and known != size for known, size in sizes
    )


def _graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    yield graph
    yield from graph.subgraphs()


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """All values in an order that a clone shares."""
    for g in _graphs(graph):
        yield from g.inputs
        yield from (v for v in g.initializers.values() if not v.is_graph_input())
        for node in g:
            yield from node.outputs
