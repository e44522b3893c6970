"""Users' operators from files and from installed packages."""

from __future__ import annotations

import importlib.metadata
import uuid

import pytest

from accord.contract.registry import contract_for, unregister
from accord.contract.sources import GROUP, load_file
from accord.errors import ContractError, UnknownOperatorError

TEXT = """
import accord
@accord.operator("{domain}::Same")
def same(x: accord.Tensor["float32", "N"]) -> accord.Tensor["float32", "N"]:
    return x
"""


@pytest.fixture
def domain():
    name = f"d{uuid.uuid4().hex}"
    yield name
    unregister(name, "Same")


def test_a_file_is_loaded_once(tmp_path, domain):
    path = tmp_path / "same.py"
    path.write_text(TEXT.format(domain=domain))
    load_file(path)
    load_file(str(path))
    assert contract_for(domain, "Same", 1).semantic.name == "Same"


def test_a_file_that_fails_can_be_corrected_and_loaded(tmp_path, domain):
    path = tmp_path / "same.py"
    path.write_text(TEXT.format(domain=domain) + "\n1 / 0\n")
    with pytest.raises(ContractError, match=r"ZeroDivisionError.*line 7"):
        load_file(path)
    unregister(domain, "Same")
    path.write_text(TEXT.format(domain=domain))
    load_file(path)
    with pytest.raises(ContractError, match="no Python file"):
        load_file(__file__.replace("test_sources.py", "../workbench/planted.c"))


def test_a_package_offers_the_operators_of_a_domain(tmp_path, domain, monkeypatch):
    (tmp_path / f"{domain}_package.py").write_text(TEXT.format(domain=domain))
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = importlib.metadata.EntryPoint(domain, f"{domain}_package", GROUP)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group, name: [entry] if (group, name) == (GROUP, domain) else []
    )
    assert contract_for(domain, "Same", 1).semantic.domain == domain
    with pytest.raises(UnknownOperatorError):
        contract_for(f"{domain}x", "Same", 1)


def test_a_package_that_cannot_be_imported_is_named(domain, monkeypatch):
    entry = importlib.metadata.EntryPoint(domain, "package_that_is_not_there", GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group, name: [entry])
    with pytest.raises(ContractError, match=r"package_that_is_not_there.*ModuleNotFoundError"):
        contract_for(domain, "Same", 1)
