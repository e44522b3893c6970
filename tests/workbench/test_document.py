"""Documents of operators, and the records of checks that they tell of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accord.contract.registry import unregister
from accord.contract.sources import load_file
from accord.errors import InputError
from accord.workbench.author import code_digest
from accord.workbench.baseline import Baseline, Entry, key_of, write
from accord.workbench.document import BASELINE, CHECKS, document, documents, file_name, stale, write_documents
from accord.workbench.loading import find_contract
from accord.workbench.measure import Wanted
from accord.workbench.records import CheckRecord, add_records, read_records
from bench_harness import RIGHT, declare


@pytest.fixture
def contract(tmp_path):
    load_file(declare(tmp_path))
    yield find_contract("shop::Double")
    unregister("shop", "Double")


def record(contract, **facts):
    digest = code_digest(contract, contract.kernel("python"))
    usual = {
        "digest": digest,
        "calls": 812,
        "dtypes": ("float32",),
        "sizes": {"N": (0, 257)},
        "checks": {"meaning": 40},
    }
    return CheckRecord(**{**usual, **facts})


def test_it_says_what_is_declared(contract):
    text = document(contract, {}, [])
    for part in ("# shop::Double", "Twice as much.", "| `x` | input | float32 | N |", "`composition`", "not checked"):
        assert part in text
    assert file_name(contract) == "shop.Double.md"


def test_what_was_proven_is_told_as_long_as_the_code_is_the_same(contract, tmp_path):
    good = document(contract, {"python": record(contract, notes=("no GPU",))}, [])
    assert "nothing found in 812 calls" in good
    assert "N 0 to 257; float32" in good
    assert "`python`: not tried: no GPU" in good
    assert "meaning: wrong" in document(contract, {"python": record(contract, findings=("meaning: wrong",))}, [])
    assert document(contract, {"python": record(contract, digest="other")}, []) == document(contract, {}, [])


def test_stale_documents_are_named(contract, tmp_path):
    folder = tmp_path / "docs"
    made = documents([contract], folder)
    assert stale(made, folder) == {"shop.Double.md": "missing"}
    assert write_documents(made, folder) == ["shop.Double.md"]
    assert write_documents(documents([contract], folder), folder) == []
    add_records(folder / CHECKS, "shop::Double", {"python": record(contract)})
    assert stale(documents([contract], folder), folder) == {"shop.Double.md": "stale"}
    write_documents(documents([contract], folder), folder)
    wanted = Wanted("shop::Double", (), {"N": (64,)})
    seconds = {"p50": 1e-6, "p95": 2e-6, "p99": 3e-6}
    blocks = [[{"kernel": 1.0, "arithmetic": 1.0, "copy": 1.0}]] * 2
    baseline = Baseline.empty()
    digest = code_digest(contract, contract.kernel("python"))
    baseline.entries[key_of(wanted, "python")] = Entry(wanted, "python", digest, {}, blocks, seconds)
    write(folder / BASELINE, baseline)
    now = documents([contract], folder)
    assert stale(now, folder)
    assert "| `python` | N=64 | 1 | 1.0 µs | 2.0 µs | 3.0 µs |" in now["shop.Double.md"]


def test_a_digest_is_of_the_code_and_not_of_its_place(tmp_path):
    found = []
    for name, text in [("a", RIGHT), ("b", RIGHT), ("c", RIGHT.replace("2 * x", "x * 2"))]:
        folder = tmp_path / name
        folder.mkdir()
        load_file(declare(folder, text))
        contract = find_contract("shop::Double")
        found.append(code_digest(contract, contract.kernel("python")))
        unregister("shop", "Double")
    assert found[0] == found[1] != found[2]


def test_records_stay_beside_each_other(tmp_path):
    path = tmp_path / CHECKS
    assert read_records(path) == {}
    one, two = CheckRecord("d", seed=3, sizes={"N": (1, 2)}), CheckRecord("e", findings=("meaning: x",))
    add_records(path, "a::B", {"c": one})
    add_records(path, "a::B", {"d": two})
    add_records(path, "a::C", {"c": two})
    assert read_records(path) == {"a::B": {"c": one, "d": two}, "a::C": {"c": two}}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "x"}', '{"kind": "accord check records", "format": 1, "operators": {"a": 1}}']
)
def test_damaged_records_are_refused_and_stay(tmp_path, text):
    path = Path(tmp_path / CHECKS)
    path.write_text(text)
    with pytest.raises(InputError):
        add_records(path, "a::B", {})
    assert path.read_text() == text


def test_records_of_a_newer_format_are_refused(tmp_path):
    path = tmp_path / CHECKS
    path.write_text(json.dumps({"kind": "accord check records", "format": 9, "operators": {}}))
    with pytest.raises(InputError, match="format 1"):
        read_records(path)


def test_documents_of_the_repository_are_up_to_date():
    from accord import library
    from accord.demo.operators import channel_shuffle

    folder = Path(__file__).parents[2] / "docs" / "operators"
    operators = [channel_shuffle, *(o for n in library.__all__ if hasattr(o := getattr(library, n), "contract"))]
    assert len(operators) > 35
    made = documents([o.contract for o in operators], folder)
    assert stale(made, folder) == {}, "write them with `accord op docs NAME`"
    assert sorted(p.name for p in folder.glob("*.md")) == sorted(made)
