"""Finding operators by name, and those that files declare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import accord.ops.catalog  # noqa: F401  makes the operators of com.microsoft known
from accord.contract.contract import Contract
from accord.contract.registry import NEWEST, contract_for, user_contracts
from accord.contract.sources import load_file
from accord.errors import UnknownOperatorError

__all__ = ["find_contract", "load_files"]


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
    files = {str(Path(p).resolve()) for p in paths}
    return [c for c in user_contracts() if id(c) not in before or _file(c) in files]


def _file(contract: Contract) -> str | None:
    """Where an operator's reference is written; a file that was loaded before declares nothing anew."""
    code = getattr(contract.semantic.reference, "__code__", None)
    return None if code is None else str(code.co_filename)


def find_contract(name: str, version: int = NEWEST) -> Contract:
    """The contract of ``Name`` or ``domain::Name`` as of ``version`` of its domain.

    A plain name is ONNX's; a user's operator goes by it where ONNX has none of that name, and no other domain either.

    Raises:
        UnknownOperatorError: there is none.
    """
    domain, _, plain = name.rpartition("::")
    try:
        return contract_for(domain, plain, version)
    except UnknownOperatorError:
        own = {c.semantic.domain for c in user_contracts() if c.semantic.name == plain}
        if domain or len(own) != 1:
            raise
        return contract_for(own.pop(), plain, version)
