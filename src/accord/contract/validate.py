"""Contradictions within a contract: each is an error when it is declared, not when a kernel meets it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from accord.contract.contract import KINDS, Contract, Execution, KernelDeclaration, Parameter, Scheduling, Semantic
from accord.contract.sizes import names_in
from accord.errors import ContractError

__all__ = ["validate"]

Check = Callable[..., None]

_OPTIONS = ("single", "optional", "variadic")
_LAYOUTS = frozenset({"contiguous", "strided"})
_FUSES = ("elementwise", "reduction", "contraction", "movement", "opaque")
_STREAMS = ("given", "host")
#: Kinds by the devices they run on.
_DEVICES = {"triton": ("cuda",), "cuda": ("cuda",), "library": ("cpu", "cuda"), "tvm_ffi": ("cpu", "cuda")}
_PRECISION = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}


def validate(contract: Contract) -> None:
    """Look for contradictions.

    Raises:
        ContractError: there is one; the message says which clauses do not go together.
    """
    name = contract.semantic.qualified_name

    def check(condition: bool, message: str, **facts: Any) -> None:
        if not condition:
            raise ContractError(message, op=name, **facts)

    _semantic(contract.semantic, check)
    _execution(contract, contract.execution, check, "")
    _scheduling(contract, contract.execution, contract.scheduling, check, "")
    names = [k.name for k in contract.kernels]
    check(len(set(names)) == len(names), "two kernels have the same name", found=", ".join(names))
    for kernel in contract.kernels:
        _kernel(contract, kernel, check)


def _semantic(s: Semantic, check: Check) -> None:
    check(s.name.isidentifier(), "an operator's name must be an identifier", found=repr(s.name))
    check(s.since_version >= 1, "since_version starts at 1", found=s.since_version)
    check(
        s.until_version is None or s.until_version >= s.since_version,
        "until_version is before since_version",
        expected=f"{s.since_version} or more",
        found=s.until_version,
    )
    for kind, ports in (("input", s.inputs), ("output", s.outputs)):
        names = [p.name for p in ports]
        check(len(set(names)) == len(names), f"two {kind}s have the same name", found=names)
        for i, p in enumerate(ports):
            check(
                p.option in _OPTIONS,
                f"unknown option of {kind} '{p.name}'",
                expected="single, optional or variadic",
                found=p.option,
            )
            check(p.option != "variadic" or i == len(ports) - 1, f"variadic {kind} '{p.name}' must be the last")
            check(
                "(" in p.type or p.type in s.types,
                f"{kind} '{p.name}' has the unknown type '{p.type}'",
                expected="a type variable of the contract or an ONNX type",
            )
    for variable, allowed in s.types.items():
        check(bool(allowed), f"type variable '{variable}' may stand for no type at all")
    known = _bound_names(s)
    for condition in s.constraints:
        _known(condition, known, f"the condition '{condition}'", check)
    for p in s.outputs:
        for size in p.sizes or ():
            if isinstance(size, str) and size != "..." and not size.isidentifier():
                _known(size, known, f"size '{size}' of output '{p.name}'", check)
    for p in s.inputs:
        low, high = p.values.low, p.values.high
        for bound in (low, high):
            if isinstance(bound, str):
                _known(bound, known, f"the bound '{bound}' of input '{p.name}'", check)
        numbers = isinstance(low, (int, float)) and isinstance(high, (int, float))
        check(
            not numbers or low <= high,  # type: ignore[operator]
            f"the values of input '{p.name}' have bounds in the wrong order",
            found=f"{low} to {high}",
        )
    axes = {str(size) for p in s.inputs for size in p.sizes or () if str(size).isidentifier()}
    for n in s.batch:
        check(
            n in axes, f"batch size '{n}' is no size of an input", expected=", ".join(sorted(axes)) or "none is named"
        )
        check(
            all(n in map(str, p.sizes or (n,)) for p in s.outputs),
            f"slices along '{n}' are declared independent, but an output does not have that axis",
        )
    for dtype, tolerance in s.tolerance.items():
        check(
            tolerance.rtol >= 0 and tolerance.atol >= 0,
            f"the tolerance for {dtype} is negative",
            found=f"rtol {tolerance.rtol}, atol {tolerance.atol}",
        )


def _bound_names(s: Semantic) -> set[str]:
    """Names that have a value in a call: sizes of inputs and attributes; outputs' plain names are theirs to choose."""
    named = {str(size) for p in (*s.inputs, *s.outputs) for size in p.sizes or () if str(size).isidentifier()}
    inside = {n for p in s.inputs for size in p.sizes or () if isinstance(size, str) and size != "..."
              for n in names_in(size)}  # fmt: skip
    return named | inside | set(s.attributes)


def _known(expression: str, known: Iterable[str], what: str, check: Check) -> None:
    unknown = names_in(expression) - set(known)
    check(
        not unknown,
        f"{what} uses the unknown name {', '.join(sorted(unknown))}",
        expected=", ".join(sorted(known)) or "no name is declared",
    )


def _execution(contract: Contract, e: Execution, check: Check, whose: str) -> None:
    s = contract.semantic
    check(bool(e.layouts), f"{whose}no layout is accepted", expected=", ".join(sorted(_LAYOUTS)))
    unknown = set(e.layouts) - _LAYOUTS
    check(not unknown, f"{whose}unknown layout {', '.join(sorted(unknown))}", expected=", ".join(sorted(_LAYOUTS)))
    check(
        isinstance(e.alignment, int) and e.alignment > 0 and e.alignment & (e.alignment - 1) == 0,
        f"{whose}alignment must be a power of two",
        found=e.alignment,
    )
    for clause in ("in_place", "views", "state"):
        for pair in getattr(e, clause):
            _pair(s, clause, tuple(pair), check, whose)
    for clause in ("in_place", "state"):
        taken = [o for o, _ in getattr(e, clause)]
        if clause == "state":
            check(len(set(taken)) == len(taken), f"{whose}an output is the next value of two states")
    inputs = {p.name: p for p in s.inputs}
    for n in e.nullable:
        check(n in inputs, f"{whose}nullable input '{n}' does not exist", expected=", ".join(sorted(inputs)))
        check(
            inputs[n].option != "single",
            f"{whose}input '{n}' is nullable, but a node must give it",
            expected="an optional input",
            remedy=f"Declare it as `{n}: Tensor[...] | None = None`, or take it out of `nullable`.",
        )
    for storage, sum_type in e.accumulate.items():
        check(
            storage in _PRECISION and sum_type in _PRECISION,
            f"{whose}accumulate names an unknown floating type",
            expected=", ".join(_PRECISION),
            found=f"{storage} in {sum_type}",
        )
        check(
            _PRECISION[sum_type] >= _PRECISION[storage],
            f"{whose}{storage} is accumulated in {sum_type}, which holds less than what is stored",
        )
    if e.workspace:
        _known(e.workspace, _bound_names(s), f"{whose}the workspace '{e.workspace}'", check)


def _pair(s: Semantic, clause: str, pair: tuple[int, ...], check: Check, whose: str) -> None:
    check(
        len(pair) == 2 and 0 <= pair[0] < len(s.outputs) and 0 <= pair[1] < len(s.inputs),
        f"{whose}{clause} names pairs (output, input) of existing parameters",
        expected=f"output below {len(s.outputs)}, input below {len(s.inputs)}",
        found=pair,
    )
    out, given = s.outputs[pair[0]], s.inputs[pair[1]]
    said = f"{whose}{clause} says that output '{out.name}' takes the place of input '{given.name}'"
    check(out.option != "variadic" and given.option != "variadic", f"{said}, of which there are several")
    check(
        out.type == given.type,
        f"{said}, but they have other types",
        expected=given.type,
        found=out.type,
    )
    if clause != "views" and out.sizes is not None and given.sizes is not None and s.domain:
        check(
            out.sizes == given.sizes,
            f"{said}, but they have other sizes (it is broadcast or reduced)",
            expected=_shown(given),
            found=_shown(out),
        )


def _shown(p: Parameter) -> str:
    return f"[{', '.join(map(str, p.sizes or ()))}]"


def _scheduling(contract: Contract, e: Execution, k: Scheduling, check: Check, whose: str) -> None:
    s = contract.semantic
    check(k.fuses in _FUSES, f"{whose}unknown class of fusion", expected=", ".join(_FUSES), found=repr(k.fuses))
    check(k.stream in _STREAMS, f"{whose}unknown stream clause", expected=", ".join(_STREAMS), found=repr(k.stream))
    check(
        s.deterministic or not k.deterministic,
        f"{whose}equal inputs give equal bits, but the meaning is not deterministic",
        remedy="Set deterministic=False in scheduling, or True in the meaning.",
    )
    check(
        not (k.capture_safe and k.host_sync),
        f"{whose}it waits for the device, so it cannot be captured in a graph",
        remedy="Set capture_safe=False, or host_sync=False.",
    )
    check(
        not (k.capture_safe and k.stream == "host"),
        f"{whose}it runs on the host's stream, so it cannot be captured in a graph",
        remedy="Set capture_safe=False, or stream='given'.",
    )
    check(
        k.stateless or not s.batch,
        f"{whose}slices are declared independent ({', '.join(s.batch)}), but something survives from run to run",
    )
    check(
        not (e.state and not k.stateless),
        f"{whose}its state is an explicit input and output, and yet something survives from one run to the next",
        remedy="Set stateless=True: all of the state is in the operands.",
    )
    if k.fuses == "elementwise" and s.domain:
        check(len(s.outputs) == 1, f"{whose}an elementwise operator has one output", found=len(s.outputs))
        out = s.outputs[0].sizes
        for p in s.inputs:
            if out is not None and p.sizes is not None and "..." not in out:
                check(
                    len(p.sizes) <= len(out),
                    f"{whose}it is declared elementwise, but input '{p.name}' has more axes than the output",
                    expected=_shown(s.outputs[0]),
                    found=_shown(p),
                )
                tail = out[len(out) - len(p.sizes) :]
                wrong = [a for a, b in zip(p.sizes, tail, strict=True) if a not in (b, 1)]
                check(
                    not wrong,
                    f"{whose}it is declared elementwise, but input '{p.name}' does not broadcast to the output",
                    expected=_shown(s.outputs[0]),
                    found=_shown(p),
                )


def _kernel(contract: Contract, k: KernelDeclaration, check: Check) -> None:
    s = contract.semantic
    whose = f"kernel '{k.name}': "
    check(k.kind in KINDS, f"{whose}unknown kind", expected=", ".join(KINDS), found=repr(k.kind))
    devices = _DEVICES.get(k.kind, ("cpu", "cuda"))
    check(k.device in devices, f"{whose}a {k.kind} kernel runs on {' or '.join(devices)}", found=repr(k.device))
    for variable, allowed in k.types.items():
        check(
            variable in s.types,
            f"{whose}there is no type variable '{variable}'",
            expected=", ".join(sorted(s.types)) or "none is used",
        )
        extra = allowed - s.types[variable]
        check(
            bool(allowed) and not extra,
            f"{whose}it is for types of '{variable}' that the operator does not take",
            expected=", ".join(sorted(s.types[variable])),
            found=", ".join(sorted(extra)) or "no type",
        )
    for condition in k.constraints:
        _known(condition, _bound_names(s), f"{whose}the condition '{condition}'", check)
    inputs = [p.name for p in s.inputs]
    check(set(k.constant) <= set(inputs), f"{whose}a constant input does not exist", expected=inputs, found=k.constant)
    e = k.execution or contract.execution
    if k.execution is not None:
        _execution(contract, e, check, whose)
        _weaker(contract.execution.accumulate, e.accumulate, check, whose)
    sched = k.scheduling or contract.scheduling
    if k.scheduling is not None:
        _scheduling(contract, e, sched, check, whose)
        check(
            sched.deterministic or not contract.scheduling.deterministic,
            f"{whose}it is not deterministic, but the operator promises equal bits",
        )
        check(
            sched.stateless or not contract.scheduling.stateless,
            f"{whose}something survives from run to run, but the operator is declared stateless",
        )
    if k.kind == "expression":
        check(len(s.outputs) == 1, f"{whose}an expression has one result", found=f"{len(s.outputs)} outputs")
        check(
            contract.scheduling.fuses == "elementwise",
            f"{whose}an expression computes an elementwise operator",
            expected="scheduling(fuses='elementwise')",
            found=contract.scheduling.fuses,
        )
        check(
            all(p.option != "variadic" for p in s.inputs),
            f"{whose}an expression takes a fixed number of inputs",
        )


def _weaker(wanted: Mapping[str, str], has: Mapping[str, str], check: Check, whose: str) -> None:
    for storage, sum_type in wanted.items():
        own = has.get(storage, storage)
        check(
            _PRECISION.get(own, 0) >= _PRECISION[sum_type],
            f"{whose}it accumulates {storage} in {own}, but the operator promises {sum_type}",
        )
