"""Cases: as text and back, sizes that conditions allow, values of each kind."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from accord.contract.contract import Attribute, Contract, Parameter, Semantic, Tolerance, Values
from accord.errors import InputError
from accord.workbench.buffers import Layout
from accord.workbench.cases import KINDS, Case, holds, make_inputs
from accord.workbench.compare import compare
from accord.workbench.elf import needs_of
from accord.workbench.explore import EDGES, Explorer
from accord.workbench.oracle import Expected

T = frozenset({"tensor(float)", "tensor(float16)"})


def contract(inputs, outputs=(("y", ("N", "C")),), constraints=(), **more):
    return Contract(
        Semantic(
            "cases", "Op", 1,
            tuple(Parameter(n, "T", sizes=s, values=v) for n, s, v in inputs),
            tuple(Parameter(n, "T", sizes=s) for n, s in outputs),
            types={"T": T},
            attributes={"groups": Attribute("groups", "INT", default=2)},
            constraints=constraints,
            **more,
        )
    )  # fmt: skip


GROUPED = contract([("x", ("N", "C"), Values()), ("w", ("C // groups",), Values())], constraints=("C % groups == 0",))


def test_a_case_is_json_and_back():
    case = Case(
        sizes={"N": 3, "C": 4}, types={"T": "float16"}, attributes={"groups": 4}, values="rows", nulls=("w",),
        layouts={"x": Layout(order=(1, 0), flip=(1,))}, side="skew", fill="bits", in_place=((0, 0),), seed=9,
    )  # fmt: skip
    assert Case.of(case.json(), GROUPED) == case
    assert Case.of('{"sizes": {"N": 1, "C": 2}}', GROUPED).json() == '{"sizes": {"N": 1, "C": 2}}'
    for wrong in (
        '{"sizes": {"N": 1}}',
        '{"nulls": ["z"], "sizes": {"N": 1, "C": 2}}',
        "[]",
        '{"types": {"U": "int8"}}',
    ):
        with pytest.raises(InputError):
            Case.of(wrong, GROUPED)


def test_sizes_meet_the_conditions_and_every_edge_that_can_be():
    cases = list(itertools.islice(Explorer(GROUPED, None, 0), 200))
    assert all(holds(GROUPED, GROUPED.semantic.constraints, c) for c in cases)
    assert {c.sizes["N"] for c in cases} >= set(EDGES)
    assert {c.sizes["C"] for c in cases} >= {n for n in EDGES if n % 2 == 0}
    assert {c.attributes.get("groups", 2) for c in cases} > {1, 2}
    again = list(itertools.islice(Explorer(GROUPED, None, 0), 200))
    assert cases == again


def test_conditions_that_nothing_meets_give_no_case():
    impossible = contract([("x", ("N", "C"), Values())], constraints=("C % 2 == 0", "C % 2 == 1"))
    assert Explorer(impossible, None, 0).case() is None


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_of_their_kind(kind):
    case = Case(sizes={"N": 20, "C": 10}, values=kind, types={"T": "float32"})
    x, w = make_inputs(GROUPED.semantic, case)
    again, _ = make_inputs(GROUPED.semantic, case)
    np.testing.assert_array_equal(x, again)
    assert x.dtype == np.float32
    assert (x.shape, w.shape) == ((20, 10), (5,))
    finite = x[np.isfinite(x)]
    spread = finite.std()
    rows = np.ptp(np.where(np.isfinite(x), x, 0), 1)
    expected = {
        "normal": 0.5 < spread < 2, "offset": finite.mean() > 500, "rows": rows.max() > 30 * rows.min(),
        "large": spread > 50, "tiny": spread < 0.01, "equal": (x == x[0, 0]).all(), "nan": np.isnan(x).any(),
        "inf": np.isinf(x).any(), "masked": (x == -np.inf).all(1).any(),
    }  # fmt: skip
    assert expected[kind]


def test_values_keep_to_their_bounds():
    s = contract(
        [("x", ("N", "C"), Values(low=-1, high=2)), ("i", ("N",), Values(0, "C - 1", increasing=True))]
    ).semantic
    x, i = make_inputs(s, Case(sizes={"N": 50, "C": 7}, values="large", types={"T": "float32"}))
    assert x.min() >= -1
    assert x.max() <= 2
    assert i.min() >= 0
    assert i.max() <= 6
    assert (np.diff(i) >= 0).all()


def test_comparing():
    c = contract([("x", ("N", "C"), Values())], tolerance={"float32": Tolerance(1e-3, 1e-5)})
    case = Case(types={"T": "float32"})
    value = np.array([[1.0, 100.0], [np.nan, 1e300]])
    with np.errstate(over="ignore"):
        own = value.astype(np.float32)

    def wrong(actual, slack=0.0, **changes):
        e = Expected(value, np.full(value.shape, slack), [], own)
        found = compare(c, dataclasses.replace(case, **changes), [np.array(actual, np.float32)], [e])
        return found[0].kind if found else None

    inf = np.inf
    assert wrong([[1.0, 100.05], [np.nan, inf]]) is None
    assert wrong([[1.0, 100.2], [np.nan, inf]]) == "value"
    assert wrong([[1.0, 100.2], [np.nan, inf]], slack=0.2) is None
    assert wrong([[1.0, 100.0], [0.0, inf]]) == "nan"
    poison = np.frombuffer(b"\xff" * 4, np.float32)[0]
    assert wrong([[poison, 100.0], [np.nan, inf]]) == "unwritten"
    assert wrong([[poison, 100.0], [np.nan, inf]], fill="bits") == "nan"
    assert wrong([[1.0, 100.0], [np.nan, 1.0]]) == "value"


def test_what_a_library_needs_is_read_from_its_file(build):
    path = build("needs", "double cos(double); double cblas_ddot(int, double*, int, double*, int);"
                 "double f(double x) { return cos(x) + cblas_ddot(1, &x, 1, &x, 1); }")  # fmt: skip
    needs = needs_of(path)
    assert "libm.so.6" in needs.libraries
    assert {"cos", "cblas_ddot"} <= set(needs.functions)
    assert "f" not in needs.functions
