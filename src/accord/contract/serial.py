"""Contracts as JSON and back.

What is code (the reference, kernels) is written as where it is to be found, "module:qualified.name" or a path, and is
not brought back: reading a file runs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from accord.contract.contract import (
    Attribute,
    Contract,
    Execution,
    KernelDeclaration,
    NanPolicy,
    Parameter,
    Scheduling,
    Semantic,
    Tolerance,
    Values,
)
from accord.errors import ContractError

__all__ = ["FORMAT", "as_contract", "as_json", "where"]

#: Of the data; raised when old readers would misread it.
FORMAT = 1


def as_json(contract: Contract) -> dict[str, Any]:
    """``contract`` as data that ``json`` writes."""
    s = contract.semantic
    semantic = {
        f.name: _plain(getattr(s, f.name)) for f in dataclasses.fields(s) if f.name not in ("reference", "examples")
    }
    semantic["reference"], semantic["examples"] = where(s.reference), where(s.examples)
    return {
        "format": FORMAT,
        "semantic": semantic,
        "execution": _plain(contract.execution),
        "scheduling": _plain(contract.scheduling),
        "kernels": [
            {
                **{f.name: _plain(getattr(k, f.name)) for f in dataclasses.fields(k) if f.name != "code"},
                "code": where(k.code),
            }
            for k in contract.kernels
        ],
    }


def as_contract(data: Mapping[str, Any]) -> Contract:
    """The contract that :func:`as_json` wrote, without its code.

    Raises:
        ContractError: the data is no contract, of another format, or contradicts itself.
    """
    try:
        if data["format"] != FORMAT:
            raise ContractError("the contract is written in another format", expected=FORMAT, found=data["format"])
        s = dict(data["semantic"])
        s["inputs"], s["outputs"] = (tuple(map(_parameter, s[k])) for k in ("inputs", "outputs"))
        s["types"] = _sets(s["types"])
        s["attributes"] = {n: Attribute(**{k: _tuple(v) for k, v in a.items()}) for n, a in s["attributes"].items()}
        s["tolerance"] = {n: Tolerance(**t) for n, t in s["tolerance"].items()}
        s["nan"] = NanPolicy(s["nan"])
        s["constraints"], s["batch"] = tuple(s["constraints"]), tuple(s["batch"])
        s["reference"] = s["examples"] = None
        return Contract(
            Semantic(**s),
            _execution(data["execution"]),
            Scheduling(**data["scheduling"]),
            tuple(map(_kernel, data["kernels"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ContractError(f"this is no contract: {type(error).__name__}: {error}") from error


def where(code: Any) -> Any:
    """Where code is to be found; None for none."""
    if code is None:
        return None
    if isinstance(code, tuple):
        return [where(c) for c in code]
    if dataclasses.is_dataclass(code) and not isinstance(code, type):
        return {f.name: _plain_code(getattr(code, f.name)) for f in dataclasses.fields(code)}
    function = getattr(code, "fn", code)  # of what triton.jit made
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(code).__name__)}"


def _plain_code(value: Any) -> Any:
    return where(value) if callable(value) or hasattr(value, "fn") else _plain(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, NanPolicy):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value))
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return str(value)


def _parameter(data: Mapping[str, Any]) -> Parameter:
    return Parameter(**{**data, "sizes": _tuple(data["sizes"]), "values": Values(**data["values"])})


def _execution(data: Mapping[str, Any]) -> Execution:
    fields: dict[str, Any] = {k: tuple(map(_tuple, v)) if isinstance(v, list) else v for k, v in data.items()}
    return Execution(**fields)


def _kernel(data: Mapping[str, Any]) -> KernelDeclaration:
    e, k = data["execution"], data["scheduling"]
    return KernelDeclaration(
        **{
            **data,
            "types": _sets(data["types"]),
            "constraints": tuple(data["constraints"]),
            "constant": tuple(data["constant"]),
            "execution": None if e is None else _execution(e),
            "scheduling": None if k is None else Scheduling(**k),
        }
    )


def _sets(data: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    return {n: frozenset(v) for n, v in data.items()}


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
