"""A short campaign on every run, and tests of what finds the faults."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import onnx
import pytest

from accord.ir import dims as D
from accord.plan.types import OptionalType, SequenceType, TensorType

from . import run as command
from .mutate import BYTES, STRUCTURE, mutant
from .pool import Remote, outcomes
from .seeds import built, collect
from .trial import TooLargeError, inputs, trial

COUNT = 600
SECONDS = 45


@pytest.fixture(scope="module")
def seeds() -> list[bytes]:
    return collect(stride=3)


def test_mutants_load_and_run_or_fail_with_our_own_errors(seeds, capsys):
    until = time.monotonic() + SECONDS
    results = list(outcomes(seeds, 7, iter(range(COUNT)), 2, "run", reference=False, until=until))
    assert len(results) >= COUNT // 10
    assert sum(o.kind == "ok" for _, o in results) > len(results) // 20  # enough of them get as far as running
    assert command.report(results, 7, SECONDS) == 0, capsys.readouterr().out


def test_seeds_themselves_are_fine():
    for model in built():
        outcome = trial(model.SerializeToString())
        assert not outcome.failed, outcome
        assert outcome.stage == "run"


def test_a_mutant_is_a_function_of_its_number(seeds):
    assert mutant(seeds, 1, 5) == mutant(seeds, 1, 5)
    assert len({mutant(seeds, 1, i)[0] for i in range(40)}) > 35
    assert mutant(seeds, 1, 5) != mutant(seeds, 2, 5)


def test_every_mutation_is_used(seeds):
    used = set(itertools.chain.from_iterable(mutant(seeds, 3, i)[1] for i in range(4000)))
    assert {f.__name__ for f in (*STRUCTURE, *BYTES)} <= used


def test_most_mutants_still_parse(seeds):
    parsed = 0
    for i in range(200):
        try:
            parsed += onnx.ModelProto.FromString(mutant(seeds, 4, i)[0]).HasField("graph")
        except Exception:  # noqa: BLE001  damaged ones are wanted too
            continue
    assert 100 < parsed < 200


def test_a_killed_worker_is_a_crash(tmp_path, seeds):
    file = tmp_path / "seeds.json"
    file.write_text(json.dumps([s.hex() for s in seeds[:3]]))
    worker = Remote(file, 1, "load", False)
    try:
        assert worker.receive() is None
        worker.process.kill()
        worker.process.wait()
        outcome = worker.receive()
        assert outcome is not None
        assert (outcome.kind, outcome.what) == ("crash", "signal 9")
        assert outcome.failed
    finally:
        worker.stop()


def test_generated_inputs_fit_the_facts():
    n = D.symbol("n")
    matrix = TensorType("float", np.dtype(np.float32), (n, 3))
    first, second, text, many, flags = inputs(
        [
            matrix,
            TensorType("int64", np.dtype(np.int64), (n,)),
            TensorType("string", np.dtype(object), (2,)),
            SequenceType(matrix),
            TensorType("bool", np.dtype(np.bool_), ()),
        ],
        seed=1,
    )
    assert first.shape == (second.shape[0], 3)
    assert 1 <= first.shape[0] <= 4
    assert (first.dtype, second.dtype, flags.dtype) == (np.float32, np.int64, np.bool_)
    assert [type(s) for s in text] == [str, str]
    assert [a.shape for a in many] == [first.shape] * 2
    assert inputs([OptionalType(None)], seed=1) == [None]
    with pytest.raises(TooLargeError):
        inputs([TensorType("float", np.dtype(np.float32), (2**40,))], seed=1)
