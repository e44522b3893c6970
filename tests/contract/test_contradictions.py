"""Contracts that contradict themselves are refused when they are declared; sound ones survive JSON."""

# ruff: noqa: F821, UP037
from __future__ import annotations

import json

import pytest

import accord
from accord.contract.contract import Values
from accord.contract.registry import all_contracts, unregister
from accord.contract.serial import as_contract, as_json
from accord.errors import ContractError

Tensor = accord.Tensor


@pytest.fixture(autouse=True)
def _forget():
    yield
    for name in ("Add", "Norm", "Cell"):
        unregister("shop", name)


def add():
    @accord.operator("shop::Add")
    def f(x: Tensor["T", "N", "D"], b: Tensor["T", "D"] | None = None, *, k: int = 1) -> Tensor["T", "N", "D"]:
        return x

    return f


def cell():
    @accord.operator("shop::Cell")
    def f(x: Tensor["T", "N"], h: Tensor["T", "N"]) -> tuple[Tensor["T", "N"], Tensor["T", "N"], Tensor["int64", "N"]]:
        return x, h, h

    return f


CASES = {
    r"in_place.*input 'b'.*broadcast": lambda: add().execution(in_place=((0, 1),)),
    r"in_place.*other types": lambda: cell().execution(in_place=((2, 0),)),
    r"in_place names pairs": lambda: add().execution(in_place=((0, 2),)),
    r"next value of two states": lambda: cell().execution(state=((0, 0), (0, 1))),
    r"unknown layout blocked": lambda: add().execution(layouts=("blocked",)),
    r"no layout": lambda: add().execution(layouts=()),
    r"alignment must be a power": lambda: add().execution(alignment=24),
    r"'x' is nullable, but a node must give it": lambda: add().execution(nullable=("x",)),
    r"nullable input 'z' does not exist": lambda: add().execution(nullable=("z",)),
    r"float32 is accumulated in float16": lambda: add().execution(accumulate={"float32": "float16"}),
    r"unknown floating type": lambda: add().execution(accumulate={"int8": "int32"}),
    r"workspace.*unknown name Q": lambda: add().execution(workspace="4 * Q"),
    r"condition.*unknown name Z": lambda: add().constraint("Z > 1"),
    r"no size expression": lambda: add().constraint("N >"),
    r"bound.*unknown name M": lambda: add().values(x=(0, "M - 1")),
    r"bounds in the wrong order": lambda: add().values(x=(2, 1)),
    r"no input 'q'": lambda: add().values(q=(0, 1)),
    r"unknown class of fusion": lambda: add().scheduling(fuses="everything"),
    r"cannot be captured": lambda: add().scheduling(host_sync=True),
    r"host's stream": lambda: add().scheduling(stream="host"),
    r"not deterministic": lambda: add().semantic(deterministic=False),
    r"elementwise operator has one output": lambda: cell().scheduling(fuses="elementwise"),
    r"batch size 'k' is no size": lambda: add().semantic(batch=("k",)),
    r"survives from run to run|survives": lambda: add().semantic(batch=("N",)).scheduling(stateless=False),
    r"state is an explicit input": lambda: cell().execution(state=((0, 1),)).scheduling(stateless=False),
    r"tolerance for float32 is negative": lambda: add().tolerance("float32", rtol=-1, atol=0),
    r"may stand for no type": lambda: add().types(T=[]),
    r"unknown promise speed": lambda: add().execution(speed=3),
    r"before since_version": lambda: add().semantic(until_version=0),
    r"two kernels have the same name": lambda: add().kernel("a", "python", abs).kernel("a", "python", abs),
    r"unknown kind": lambda: add().kernel("a", "fortran", abs),
    r"triton kernel runs on cuda": lambda: add().kernel("a", "triton", abs),
    r"types of 'T' that the operator does not take": lambda: (
        add().types(T=["float32"]).kernel("a", "python", abs, types={"T": ["float64"]})
    ),
    r"expression computes an elementwise operator": lambda: add().kernel("a", "expression", abs),
    r"accumulates float16 in float16.*promises float32": lambda: (
        add().execution(accumulate={"float16": "float32"}).kernel("a", "python", abs, execution={"accumulate": {}})
    ),
    r"not deterministic, but the operator promises": lambda: add().kernel(
        "a", "python", abs, scheduling={"deterministic": False}
    ),
    r"the operator is declared stateless": lambda: add().kernel("a", "python", abs, scheduling={"stateless": False}),
}


@pytest.mark.parametrize("message", CASES)
def test_a_contradiction_is_an_error(message):
    with pytest.raises(ContractError, match=message):
        CASES[message]()


def test_an_elementwise_operator_does_not_reduce():
    with pytest.raises(ContractError, match="more axes than the output"):

        @accord.operator("shop::Norm")
        def f(x: Tensor["T", "N", "D"]) -> Tensor["T", "N"]:
            return x

        f.scheduling(fuses="elementwise")


def test_independent_slices_have_an_axis_in_every_output():
    with pytest.raises(ContractError, match=r"slices.*'D'.*does not have that axis"):

        @accord.operator("shop::Norm")
        def f(x: Tensor["T", "N", "D"]) -> Tensor["T", "N"]:
            return x

        f.semantic(batch=("D",))


@pytest.mark.parametrize("hint", ["annotation", "default"])
def test_an_optional_input_says_so_twice(hint):
    with pytest.raises(ContractError, match=f"optional in its {hint} only"):
        if hint == "annotation":

            @accord.operator("shop::Norm")
            def f(x: Tensor["T", "N"], b: Tensor["T", "N"] | None) -> Tensor["T", "N"]:
                return x
        else:

            @accord.operator("shop::Norm")
            def g(x: Tensor["T", "N"], b: Tensor["T", "N"] = None) -> Tensor["T", "N"]:
                return x


def test_json_and_back():
    f = add().types(T=["float32", "float16"]).constraint("D % k == 0").values(x=Values(-1.0, 1.0), b=(0, "D - 1"))
    f.execution(
        layouts=("contiguous", "strided"), in_place=((0, 0),), workspace="4 * D", accumulate={"float16": "float32"}
    )
    f.semantic(batch=("N",)).kernel("c", "library", None, types={"T": ["float32"]}, execution={"alignment": 32})
    data = json.loads(json.dumps(as_json(f.contract)))
    again = as_contract(data)
    assert as_json(again)["semantic"] | {"reference": ""} == data["semantic"] | {"reference": ""}
    for part in ("execution", "scheduling", "kernels"):
        assert as_json(again)[part] == data[part]
    assert again.execution == f.contract.execution and again.kernels[0].execution.alignment == 32


def test_every_known_contract_survives_json():
    contracts = all_contracts()
    assert len(contracts) > 200
    for c in contracts:
        again = as_contract(json.loads(json.dumps(as_json(c))))
        assert again.semantic.qualified_name == c.semantic.qualified_name
        assert (again.execution, again.scheduling) == (c.execution, c.scheduling)
        assert again.semantic.types == c.semantic.types and again.semantic.outputs == c.semantic.outputs


@pytest.mark.parametrize("data", [{}, {"format": 2}, {"format": 1, "semantic": 3}, [], {"format": 1, "semantic": {}}])
def test_what_is_no_contract_is_refused(data):
    with pytest.raises(ContractError):
        as_contract(data)
