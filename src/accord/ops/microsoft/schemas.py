"""Contracts of the operators that ONNX Runtime adds to ONNX: ``com.microsoft`` and its two layout domains.

The declarations are text tables in this notation::

    domain::Name(input: T, optional: T?, rest: T*) -> (output: T, second: U?)
        @ required: int!, optional: float, with_default: str = "none"
        T = halves double; U = int64
        since 7
        : One line for people.

The domain is ``com.microsoft`` where none is written, and ``ai.onnx::`` stands for the ONNX domain, into which ONNX
Runtime writes two operators of its own. ``*`` takes all the rest, all of one type; ``**`` of any mix of the types. A
type is a variable, a set of :data:`TYPE_SETS`, or the element type of a tensor.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from types import MappingProxyType
from typing import Any

from accord.contract.contract import Attribute, Parameter, Semantic

__all__ = ["DOMAIN", "NCHWC_DOMAIN", "NHWC_DOMAIN", "TYPE_SETS", "parse", "schemas"]

DOMAIN = "com.microsoft"
#: Channels in blocks; written when a model is saved after optimisation for the CPU of the machine.
NCHWC_DOMAIN = "com.microsoft.nchwc"
#: Channels last; written for execution providers that prefer it.
NHWC_DOMAIN = "com.ms.internal.nhwc"

TYPE_SETS = {
    "bytes": "int8 uint8",
    "halves": "float float16 bfloat16",
    "classic": "float float16 double",
    "floats": "float float16 bfloat16 double",
    "numbers": "float float16 bfloat16 double int8 int16 int32 int64 uint8 uint16 uint32 uint64",
    "everything": (
        "float float16 bfloat16 double int8 int16 int32 int64 uint8 uint16 uint32 uint64"
        " bool string complex64 complex128"
    ),
}

_KINDS = {
    "int": "INT",
    "float": "FLOAT",
    "str": "STRING",
    "ints": "INTS",
    "floats": "FLOATS",
    "strs": "STRINGS",
    "graph": "GRAPH",
}
_OPTIONS = {"": "single", "?": "optional", "*": "variadic", "**": "variadic"}
_HEAD = re.compile(r"(?:(?P<domain>[\w.]+)::)?(?P<name>\w+)\((?P<inputs>.*?)\) -> \((?P<outputs>.*?)\)")
_PORT = re.compile(r"(?P<name>\w+): (?P<type>\w+)(?P<option>\?|\*\*|\*|)")
_ATTRIBUTE = re.compile(r'(?P<name>\w+): (?P<kind>\w+)(?P<required>!?)(?: = (?P<default>"[^"]*"|[^,]+))?')


@cache
def schemas() -> dict[tuple[str, str], Semantic]:
    """The declarations by domain and name. Parsed at the first call."""
    from accord.ops.microsoft import table_attention, table_layouts, table_networks, table_quantized, table_tensors

    found: dict[tuple[str, str], Semantic] = {}
    for table in (table_attention, table_layouts, table_networks, table_quantized, table_tensors):
        for entry in table.TABLE.strip().split("\n\n"):
            semantic = parse(entry)
            found[semantic.domain, semantic.name] = semantic
    return found


def parse(entry: str) -> Semantic:
    """Read one declaration; see the module's text for the notation.

    Raises:
        ValueError: the text does not follow the notation.
    """
    sections = _sections(entry)
    head = _HEAD.fullmatch(sections["head"])
    if head is None:
        raise ValueError(f"not a declaration: {sections['head']!r}")
    domain = {None: DOMAIN, "ai.onnx": ""}.get(head["domain"], head["domain"])
    types = {}
    for clause in filter(None, sections.get("types", "").split("; ")):
        variable, _, names = clause.partition(" = ")
        types[variable] = _type_set(names)
    attributes = {m["name"]: _attribute(m) for m in _ATTRIBUTE.finditer(sections.get("@", ""))}
    return Semantic(
        domain=domain,
        name=head["name"],
        since_version=int(sections.get("since", "1")),
        inputs=_ports(head["inputs"]),
        outputs=_ports(head["outputs"]),
        types=MappingProxyType(types),
        attributes=MappingProxyType(attributes),
        doc=sections.get(":", ""),
    )


def _sections(entry: str) -> dict[str, str]:
    """The parts of a declaration; deeper indentation continues the part above."""
    sections: dict[str, str] = {}
    current = "head"
    for line in entry.splitlines():
        text = line.strip()
        if line.startswith("    ") and not line.startswith("     "):
            marker, _, rest = text.partition(" ")
            current = marker if marker in ("@", ":", "since") else "types"
            sections[current] = rest if current == marker else text
        elif current in sections:
            sections[current] += " " + text
        else:
            sections[current] = text
    return sections


def _type_set(names: str) -> frozenset[str]:
    elements = (t for name in names.split() for t in TYPE_SETS.get(name, name).split())
    return frozenset(_onnx_type(t) for t in elements)


def _onnx_type(element: str) -> str:
    kind, _, name = element.rpartition("_")
    return f"{kind}_tensor({name})" if kind == "sparse" else f"tensor({element})"


def _ports(text: str) -> tuple[Parameter, ...]:
    ports = []
    for m in _PORT.finditer(text):
        # Variables begin with a capital, element types do not.
        type_ = m["type"] if m["type"][0].isupper() else _onnx_type(m["type"])
        ports.append(Parameter(m["name"], type_, _OPTIONS[m["option"]], homogeneous=m["option"] != "**"))
    return tuple(ports)


def _attribute(m: re.Match[str]) -> Attribute:
    default: Any = None if m["default"] is None else ast.literal_eval(m["default"].strip())
    return Attribute(m["name"], _KINDS[m["kind"]], required=bool(m["required"]), default=default)
