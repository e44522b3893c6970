"""The library's operators as nodes of models on a GPU that is there, beside their definitions."""

from __future__ import annotations

import pytest

import accord
from accord import library
from accord.errors import AccordError
from accord.kernels.device import visible
from library_cases_on_gpu import CALLS, CLOSE, agree, calls, of_one, steps, wanted

pytestmark = pytest.mark.skipif(not visible(), reason="there is no GPU")
#: The size of whose output depends on data: its composition takes its place.
COMPOSED = "non_max_suppression"


@pytest.mark.parametrize(
    ("name", "kernel"), [*((n, "triton") for n in CALLS), ("channel_shuffle", "cuda"), ("layer_norm", "cuda")]
)
def test_an_operator_runs_its_kernel_in_a_model(name, kernel):
    operator = getattr(library, name)
    op = operator.contract.semantic.name
    ran = 0
    for dtype in CALLS[name][0][:2]:
        for k, (inputs, attributes) in enumerate(calls(name, dtype)):
            expected = wanted(operator, inputs, attributes)
            proto, feed = of_one(operator.contract, inputs, attributes, symbolic=bool(k % 2), count=len(expected))
            try:
                m = accord.load(proto, device="cuda", choices={"one": kernel} if kernel != "triton" else None)
            except AccordError as error:
                if "no such alternative" not in str(error):
                    raise
                continue  # that kernel is not for this call
            if name != COMPOSED:
                assert steps(m) == [("cuda", f"accord::{op} ({kernel})")]
            for _ in range(3):
                for got, exact in zip(m(feed), expected, strict=True):
                    agree(got, exact, CLOSE[dtype], f"{name} {attributes}")
            ran += 1
            if ran % 4 == 0:
                break
    assert ran
