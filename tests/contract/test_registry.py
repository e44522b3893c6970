"""Contracts: derived for every ONNX operator, checked when declared, found by version, suggested when missing."""

from __future__ import annotations

import dataclasses

import onnx.defs
import pytest

import accord.ops.catalog  # noqa: F401  provides the contracts of com.microsoft
from accord.contract.contract import Contract, Execution, Parameter, Semantic
from accord.contract.registry import NEWEST, all_contracts, contract_for
from accord.errors import ContractError, UnknownOperatorError


def test_every_onnx_operator_of_every_version_has_a_contract():
    missing = []
    for s in onnx.defs.get_all_schemas_with_history():
        if s.deprecated:
            continue
        found = contract_for(s.domain, s.name, s.since_version).semantic
        same = (
            found.since_version == s.since_version
            and [p.name for p in found.inputs] == [p.name for p in s.inputs]
            and (found.min_inputs, found.min_outputs) == (s.min_input, s.min_output)
            and set(found.attributes) == set(s.attributes)
        )
        if not same:
            missing.append((s.domain, s.name, s.since_version))
    assert not missing
    assert len(all_contracts()) > 300


def test_contracts_say_what_the_plan_reads():
    assert contract_for("", "Reshape", 24).execution.views == ((0, 0),)
    assert contract_for("", "Add", 24).execution.in_place
    assert contract_for("", "MatMul", 24).execution.accumulate["float16"] == "float32"
    assert contract_for("", "Conv", 24).scheduling.epilogue
    assert not contract_for("", "RandomNormal", 24).semantic.deterministic
    assert contract_for("", "Clip", 24).execution.nullable == ("min", "max")
    assert contract_for("com.microsoft", "Gelu", 1).semantic.name == "Gelu"


@pytest.mark.parametrize(
    ("domain", "name", "version", "message"),
    [
        ("", "Cnov", 24, r"Did you mean Conv \(since 1\)"),
        ("", "Gelu", 12, "exists from version 20"),
        ("", "Upsample", 24, "removed in version 10"),
        ("", "QuickGelu", 24, "exists in domain com.microsoft"),
        ("com.microsoft", "Gellu", 1, r"version 1 of domain com\.microsoft.*Did you mean com\.microsoft::Gelu"),
        ("", "Qwertzuiop", 24, r"version 24 of domain ai\.onnx.*accord\.operator"),
        ("shop", "Nothing", 1, r"version 1 of domain shop.*Nothing is known of domain shop.*--load FILE"),
        ("shop", "Nothing", NEWEST, r"no operator shop::Nothing is known\. "),
    ],
)
def test_unknown_operators_are_explained(domain, name, version, message):
    with pytest.raises(UnknownOperatorError, match=message):
        contract_for(domain, name, version)


def semantic(**changes) -> Semantic:
    plain = Semantic(
        "shop", "Op", 1, (Parameter("x", "T"), Parameter("b", "T", "optional")), (Parameter("y", "T"),),
        {"T": frozenset({"tensor(float)"})},
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Contract(semantic(name="not a name")), "identifier"),
        (lambda: Contract(semantic(since_version=0)), "starts at 1"),
        (lambda: Contract(semantic(inputs=(Parameter("x", "T"), Parameter("x", "T")))), "same name"),
        (lambda: Contract(semantic(inputs=(Parameter("x", "U"),))), "unknown type 'U'"),
        (lambda: Contract(semantic(inputs=(Parameter("x", "T", "maybe"),))), "unknown option"),
        (lambda: Contract(semantic(inputs=(Parameter("v", "T", "variadic"), Parameter("x", "T")))), "must be the last"),
        (lambda: Contract(semantic(), Execution(in_place=((1, 0),))), "pairs"),
        (lambda: Contract(semantic(), Execution(nullable=("z",))), "does not exist"),
        (lambda: Contract(semantic(), Execution(alignment=12)), "power of two"),
    ],
)
def test_a_contract_that_contradicts_itself_is_an_error(make, message):
    with pytest.raises(ContractError, match=message):
        make()
