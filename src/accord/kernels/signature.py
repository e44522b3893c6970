"""The C function of an operator: its parameters follow from the contract.

In this order: inputs and outputs as pointers, null where they are absent; sizes by name in order of appearance,
``int64_t``; for each tensor what its declaration leaves open (see :class:`Slot`); strides of each tensor in elements,
where "strided" is an accepted layout; attributes; the workspace and its bytes; an epilogue; the stream. It returns 0,
or a number that says what is wrong: :data:`REFUSED` for what the contract does not accept. It throws nothing and keeps
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accord.contract.dtypes import short_name
from accord.errors import ContractError
from accord.record import record

if TYPE_CHECKING:
    from accord.contract.contract import Contract, KernelDeclaration, Parameter

__all__ = ["REFUSED", "Slot", "prototype", "signature", "symbol_of"]

#: What a kernel returns for a call that its contract does not accept.
REFUSED = 1

_C_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "bool": "uint8_t",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
    **{f"{s}int{n}": f"{s}int{n}_t" for s in ("", "u") for n in (8, 16, 32, 64)},
    "int4": "uint8_t",
    "uint4": "uint8_t",
}


@record
class Slot:
    """One parameter.

    Attributes:
        kind: What it is.

            ==========  ==========================================================================================
            input       pointer to the first element of input ``index``
            output      pointer to the first element of output ``index``
            size        the size called ``name``
            lead        number of elements of the axes that "..." stands for
            rank        rank of tensor ``name``, whose sizes are not declared
            shape       pointer to its sizes
            stride      stride of axis ``index`` of tensor ``name``, in elements
            strides     pointer to all strides of tensor ``name``, whose sizes are not declared
            int         an integer attribute
            float       an attribute that is a float, as ``double``
            text        a string attribute, ending with 0
            ints        pointer to the elements of an attribute
            floats      pointer to them, as ``double``
            count       number of those elements
            workspace   pointer to the scratch memory
            bytes       its size
            epilogue    ``void (*)(const void *context, void *data, int64_t first, int64_t count)``, where the clause
                        "epilogue" is set: null, or to be called once for each element of output 0, in blocks that are
                        finished: ``data`` has the elements from ``first`` on of the row-major output
            context     its first argument
            stream      the stream, null on a CPU
            ==========  ==========================================================================================

        name: Of the parameter's tensor, size or attribute.
        index: See above.
        type: ONNX type or type variable of an input or output.
    """

    kind: str
    name: str
    index: int = 0
    type: str = ""

    @property
    def label(self) -> str:
        """Its name in C."""
        forms = {
            "lead": "lead",
            "rank": f"{self.name}_rank",
            "shape": f"{self.name}_shape",
            "stride": f"{self.name}_stride_{self.index}",
            "strides": f"{self.name}_strides",
            "count": f"{self.name}_count",
            "workspace": "workspace",
            "bytes": "workspace_bytes",
            "epilogue": "epilogue",
            "context": "epilogue_context",
            "stream": "stream",
        }
        return forms.get(self.kind, self.name)


def signature(contract: Contract, kernel: KernelDeclaration) -> tuple[Slot, ...]:
    """The parameters in order.

    Raises:
        ContractError: the declaration has something that no C parameter stands for.
    """
    s, e = contract.semantic, kernel.execution or contract.execution
    slots = [Slot("input", p.name, i, p.type) for i, p in enumerate(s.inputs)]
    slots += [Slot("output", p.name, i, p.type) for i, p in enumerate(s.outputs)]
    ports = [*s.inputs, *s.outputs]
    for p in ports:
        if p.option == "variadic":
            raise ContractError(
                f"a C function takes a fixed number of tensors, but '{p.name}' is variadic", op=s.qualified_name
            )
    sizes = [x for p in ports for x in p.sizes or () if isinstance(x, str) and x.isidentifier()]
    slots += [Slot("size", n) for n in dict.fromkeys(sizes) if n not in s.attributes]
    if any("..." in (p.sizes or ()) for p in ports):
        slots.append(Slot("lead", ""))
    for p in ports:
        if p.sizes is None:
            slots += [Slot("rank", p.name), Slot("shape", p.name)]
    if "strided" in e.layouts:
        for p in ports:
            slots += _strides(contract, p)
    for a in s.attributes.values():
        kind = {"INT": "int", "FLOAT": "float", "STRING": "text", "INTS": "ints", "FLOATS": "floats"}.get(a.kind)
        if kind is None:
            raise ContractError(f"no C parameter stands for attribute '{a.name}' ({a.kind})", op=s.qualified_name)
        slots.append(Slot(kind, a.name))
        if kind in ("ints", "floats"):
            slots.append(Slot("count", a.name))
    if e.workspace:
        slots += [Slot("workspace", ""), Slot("bytes", "")]
    if (kernel.scheduling or contract.scheduling).epilogue:
        slots += [Slot("epilogue", ""), Slot("context", "")]
    return (*slots, Slot("stream", ""))


def _strides(contract: Contract, p: Parameter) -> Sequence[Slot]:
    if p.sizes is None:
        return [Slot("strides", p.name)]
    if "..." in p.sizes:
        raise ContractError(
            f"'{p.name}' has any number of leading axes, whose strides no C parameters stand for",
            op=contract.semantic.qualified_name,
            expected="layouts=('contiguous',) for this kernel, or a fixed rank",
        )
    return [Slot("stride", p.name, axis) for axis in range(len(p.sizes))]


def symbol_of(template: str, types: Mapping[str, str]) -> str:
    """The function's name for these types: "{T}" becomes "float32"."""
    for variable, onnx_type in types.items():
        template = template.replace(f"{{{variable}}}", short_name(onnx_type))
    return template


def prototype(contract: Contract, kernel: KernelDeclaration, types: Mapping[str, str], symbol: str) -> str:
    """The C prototype.

    Args:
        contract: Of the operator.
        kernel: The declaration.
        types: ONNX type by type variable.
        symbol: Name of the function.
    """
    arguments = ",\n    ".join(_declared(slot, types) for slot in signature(contract, kernel))
    return f"int32_t {symbol}(\n    {arguments});"


def _declared(slot: Slot, types: Mapping[str, str]) -> str:
    forms: dict[str, str] = {
        "shape": "const int64_t *",
        "strides": "const int64_t *",
        "ints": "const int64_t *",
        "floats": "const double *",
        "text": "const char *",
        "float": "double ",
        "workspace": "void *",
        "context": "const void *",
        "stream": "void *",
    }
    if slot.kind in ("input", "output"):
        element = _C_TYPES[short_name(types.get(slot.type, slot.type))]
        return f"{'const ' if slot.kind == 'input' else ''}{element} *{slot.label}"
    if slot.kind == "epilogue":
        return f"void (*{slot.label})(const void *context, void *data, int64_t first, int64_t count)"
    return forms.get(slot.kind, "int64_t ") + slot.label


def values_of(slots: Sequence[Slot], call: Mapping[str, Any]) -> list[Any]:
    """For each parameter its value.

    Args:
        slots: The signature.
        call: By kind a mapping from name (or, for tensors, index) to a value: "size", "shape", "stride", "attribute".
    """
    found: list[Any] = []
    for slot in slots:
        match slot.kind:
            case "input" | "output":
                found.append(call[slot.kind][slot.index])
            case "size":
                found.append(call["size"][slot.name])
            case "rank":
                found.append(len(call["shape"][slot.name]))
            case "shape":
                found.append(tuple(call["shape"][slot.name]))
            case "stride":
                found.append(call["stride"][slot.name][slot.index])
            case "strides":
                found.append(tuple(call["stride"][slot.name]))
            case "int" | "float" | "text" | "ints" | "floats":
                found.append(call["attribute"][slot.name])
            case "count":
                found.append(len(call["attribute"][slot.name]))
            case _:
                found.append(call[slot.kind])
    return found
