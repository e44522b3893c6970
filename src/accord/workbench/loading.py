"""Finding operators by name, and those that files declare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accord.contract.contract import Contract
from accord.contract.registry import contract_for, user_contracts
from accord.contract.sources import load_file

__all__ = ["find_contract", "load_files", "newest"]


def load_files(paths: Sequence[str | Path]) -> list[Contract]:
    """The contracts that Python files declare.

    Args:
        paths: Of the files; each is imported.

    Raises:
        ContractError: a file is not there, or raises.
    """
    before = {id(c) for c in user_contracts()}
    for path in paths:
        load_file(path)
    return [c for c in user_contracts() if id(c) not in before]


def newest(domain: str) -> int:
    """The newest version of a domain that ONNX knows; for other domains, one past every version."""
    import onnx.defs

    versions = onnx.defs.C.schema_version_map()
    return int(versions[domain][1]) if domain in versions else 1 << 30


def find_contract(name: str) -> Contract:
    """The newest contract of ``Name`` or ``domain::Name``; the domain may be left out where only one has the name.

    Raises:
        UnknownOperatorError: there is none.
    """
    domain, _, plain = name.rpartition("::")
    if not domain:
        own = [c for c in user_contracts() if c.semantic.name == plain]
        if len({c.semantic.domain for c in own}) == 1:
            return own[-1]
    return contract_for(domain, plain, newest(domain))
