"""Operators from Python files: ``--load FILE``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from accord.contract.contract import Contract
from accord.contract.registry import contract_for, user_contracts
from accord.errors import ContractError

__all__ = ["find_contract", "load_files", "newest"]


def load_files(paths: Sequence[str | Path]) -> list[Contract]:
    """Run Python files that declare operators.

    Args:
        paths: Of the files; each is imported as a module of its own, with its folder on the path.

    Returns:
        The contracts that they declare.

    Raises:
        ContractError: a file is not there, or raises.
    """
    before = {id(c) for c in user_contracts()}
    for given in paths:
        path = Path(given).resolve()
        if not path.is_file():
            raise ContractError(f"there is no file '{given}'", remedy="Correct the path.")
        name = f"accord_loaded_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ContractError(f"'{given}' is no Python file", expected="a file that ends with .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(path.parent))
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise ContractError(
                f"'{given}' cannot be loaded: {type(error).__name__}: {error}",
                remedy=f"Run `python {given}` to see where.",
            ) from error
        finally:
            sys.path.remove(str(path.parent))
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
