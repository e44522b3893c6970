"""Small graphs around an operator, as data: they are made into models in the kernel's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accord.contract.contract import Contract
from accord.workbench.buffers import dtype_named
from accord.workbench.cases import Case, dtype_of

__all__ = ["OPSET", "node", "one_node", "ports", "proto_of"]

#: Of ONNX, in these graphs.
OPSET = 24


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any) -> dict[str, Any]:
    """One node."""
    return {
        "op": op,
        "domain": domain,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "attributes": {k: int(v) if isinstance(v, bool) else v for k, v in attributes.items()},
    }


def ports(contract: Contract, case: Case, inputs: Sequence[Any], *, fixed: bool) -> dict[str, Any]:
    """Inputs of a graph: those of the operator. Sizes are symbols unless they are ``fixed``."""
    found = {}
    for p, x in zip(contract.semantic.inputs, inputs, strict=True):
        if x is not None:
            shape = [n if fixed else f"{p.name}_{axis}" for axis, n in enumerate(x.shape)]
            if not fixed and p.sizes is not None:
                tail = [x if isinstance(x, int) or str(x).isidentifier() else None for x in p.sizes if x != "..."]
                for axis, size in enumerate(tail, len(shape) - len(tail)):
                    shape[axis] = size if size is not None else shape[axis]
            found[p.name] = [dtype_of(p, case), shape]
    return found


def one_node(
    contract: Contract, case: Case, attributes: Mapping[str, Any], inputs: Sequence[Any], *, fixed: bool
) -> dict[str, Any]:
    """A graph of the operator alone."""
    s = contract.semantic
    names = [p.name if x is not None else "" for p, x in zip(s.inputs, inputs, strict=True)]
    outputs = [f"{p.name}_out" for p in s.outputs]
    return {
        "inputs": ports(contract, case, inputs, fixed=fixed),
        "outputs": outputs,
        "nodes": [node(s.name, names, outputs, s.domain, **attributes)],
        "domains": {s.domain: s.since_version},
    }


def proto_of(graph: Mapping[str, Any], constants: Mapping[str, Any]) -> bytes:
    """The model that a graph describes."""
    import onnx
    from onnx import helper, numpy_helper

    def element(name: str) -> int:
        return int(helper.np_dtype_to_tensor_dtype(dtype_named(name)))

    made = helper.make_graph(
        [helper.make_node(n["op"], n["inputs"], n["outputs"], domain=n["domain"], **n["attributes"])
         for n in graph["nodes"]],
        "check",
        [helper.make_tensor_value_info(n, element(d), s) for n, (d, s) in graph["inputs"].items()
         if n not in constants],
        [onnx.ValueInfoProto(name=n) for n in graph["outputs"]],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    domains = {"": OPSET, **graph["domains"]}
    return bytes(
        helper.make_model(
            made, opset_imports=[helper.make_opsetid(d, v) for d, v in domains.items()], ir_version=10
        ).SerializeToString()
    )
