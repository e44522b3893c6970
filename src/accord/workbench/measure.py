"""``accord op bench``: an operator's kernels beside built-ins, the composition, the reference, and other runtimes.

Each candidate runs in a process of its own; this one imports no file of the user's and has the other clock. Candidates
take turns, so that what else the machine does meets all of them, and are timed only after their outputs were found
right. Times are taken twice: on the same inputs again and again ("warm"), and on so many copies in turn that each has
left all caches ("cold").
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from accord.contract.contract import Contract
from accord.contract.serial import as_contract
from accord.errors import AccordError, CompileError, ExecutionError
from accord.profile.peaks import Peaks, bound, peaks
from accord.workbench.machine import identity, versions
from accord.workbench.remote import Remote

__all__ = ["PEERS", "RUNS", "Session", "Wanted", "measure", "quantile", "summary"]

#: Called with what comes next.
Advance: TypeAlias = Callable[[str], None]

RUNS: Final = 1000
#: Other runtimes, in the order of the table.
PEERS: Final = ("onnxruntime", "torch", "openvino")
#: Seconds and least runs of a turn.
_TURN, _LEAST = 0.1, 20
#: Runs of a turn that are looked at closely.
_AUDITS = 2
#: Threads of some runtimes wait for work for a while; nobody is timed meanwhile.
_PAUSE = 0.02
#: A bandwidth above that of memory by more than this came from a cache.
_ABOVE = 1.02


def _silent(text: str) -> None:
    del text


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure.

    Attributes:
        op: ``Name`` or ``domain::Name``.
        load: Python files that declare operators.
        sizes: See :func:`accord.workbench.arguments.make_arguments`, and so are the three that follow.
        attributes: By name.
        dtype: NumPy name; None for the usual one.
        seed: Of the values.
        threads: For one run.
    """

    op: str
    load: tuple[str, ...] = ()
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    seed: int = 0
    threads: int = 1


class Session:
    """An operator with inputs and right results, in a folder that is gone afterwards; candidates are opened on it.

    Attributes:
        contract: Of the operator, without code.
        digests: Hash of the code of each kernel, by name.
        prepared: What :meth:`accord.workbench.author.Author.prepare` said.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._stack = contextlib.ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="accord-bench-")))
        self._opened = 0
        try:
            self._author = self._remote(f"the reference of {wanted.op}")
            described = self._author.call("describe", load=list(wanted.load), op=wanted.op)
            self.contract: Contract = as_contract(described["contracts"][0])
            self.digests: dict[str, str] = described["digests"][0]
            self.prepared = self._author.call(
                "prepare",
                sizes={n: list(v) for n, v in wanted.sizes.items()},
                attributes=dict(wanted.attributes),
                dtype=wanted.dtype,
                seed=wanted.seed,
            )
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    @property
    def nbytes(self) -> int:
        """Of inputs and outputs."""
        return int(self.prepared["read"] + self.prepared["written"])

    def start(self, label: str, *, steady: bool = False) -> Remote:
        """Start a process for :meth:`open`; several may start at once."""
        return self._remote(label, steady=steady)

    def open(
        self, label: str, what: str, name: str = "", model: str = "own.onnx", worker: Remote | None = None
    ) -> Opened:
        """Open a candidate and hold its first outputs against the reference.

        Args:
            label: For people.
            what: See :func:`accord.workbench.candidate.open_candidate`.
            name: Likewise.
            model: Likewise.
            worker: A process that was started; None: a new one.

        Raises:
            AccordError: it cannot be made, or fails.
            ExecutionError: its outputs are wrong.
        """
        worker = worker or self._remote(label)
        self._opened += 1
        key = f"outputs{self._opened}"
        spec = {
            "what": what,
            "name": name,
            "model": model,
            "op": self.contract.semantic.name,
            "attributes": self.prepared["attributes"],
            "types": self.prepared["types"],
            "threads": self.wanted.threads,
        }
        try:
            found = worker.call(
                "open", load=list(self.wanted.load), op=self.contract.semantic.qualified_name, spec=spec, key=key
            )
            self.judge(label, [key])
            return Opened(label, what, name, worker, found, worker.call("warm"))
        except BaseException:
            worker.close()
            raise

    def judge(self, label: str, names: Sequence[str], *, timed: bool = False) -> None:
        """Raise unless outputs that a candidate wrote are right.

        Raises:
            ExecutionError: they are wrong.
        """
        for name in names:
            wrong = self._author.call("judge", name=name)["wrong"]
            if wrong is not None and timed:
                raise ExecutionError(
                    f"{label} was right when it was called first and is wrong in a timed run: {wrong}",
                    expected="the same work whether or not somebody takes the time",
                    remedy="Look for results kept from earlier calls, and for work that is skipped or done later.",
                )
            if wrong is not None:
                raise ExecutionError(f"{label} is wrong: {wrong}", remedy="`accord op check` finds the smallest input.")

    def _remote(self, name: str, *, steady: bool = False) -> Remote:
        worker = Remote(name, self.folder, self.wanted.threads, steady=steady)
        self._stack.callback(worker.close)
        return worker


@dataclass(slots=True)
class Opened:
    """A candidate that is ready to be timed.

    Attributes:
        label: For people.
        what: "kernel", "model", "builtin", "reference" or "peer".
        name: Of the kernel or peer.
        worker: Its process.
        first: Seconds to load it, and of the first call.
        warmed: Seconds of the best call before times were taken.
        times: Seconds of each run, by mode.
    """

    label: str
    what: str
    name: str
    worker: Remote
    first: dict[str, Any]
    warmed: dict[str, Any]
    times: dict[str, list[float]] = field(default_factory=lambda: {"warm": [], "cold": []})

    def turn(self, session: Session, runs: int, mode: str) -> None:
        """Time some runs."""
        answer = self.worker.call("run", runs=runs, cold=mode == "cold", audits=_AUDITS)
        self.times[mode] += [t * 1e-9 for t in answer["times"]]
        session.judge(self.label, answer["audits"], timed=True)
        for name in answer["audits"]:
            for path in session.folder.glob(f"{name}*"):
                path.unlink()

    @property
    def runs_of_a_turn(self) -> int:
        """So many that the turn takes its time."""
        return max(_LEAST, int(_TURN / max(self.warmed["seconds"], 1e-9)))


def quantile(times: Sequence[float], part: float) -> float:
    """The least time that at least this part of all times do not exceed (nearest rank)."""
    ordered = sorted(times)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def summary(times: Sequence[float]) -> dict[str, float]:
    """Percentiles."""
    points = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {"runs": len(times), "least": min(times), **{n: quantile(times, q) for n, q in points.items()}}


def measure(
    wanted: Wanted,
    *,
    kernels: Sequence[str] = (),
    runs: int = RUNS,
    others: Sequence[str] = PEERS,
    advance: Advance = _silent,
) -> dict[str, Any]:
    """Time an operator's kernels, and what else computes it.

    Args:
        wanted: The operator and its arguments.
        kernels: Names of the kernels to time; none: all.
        runs: Of each candidate, warm and cold each.
        others: Other runtimes to compare with, where they are installed.
        advance: Called with what comes next.

    Returns:
        Figures as JSON can hold them: "candidates", "failed" (kernels that could not be timed, with the error),
        "not_measured" (what does not apply, with the reason).

    Raises:
        AccordError: the operator, its arguments or its reference are wrong.
    """
    advance("preparing")
    with Session(wanted) as session:
        for name in kernels:
            session.contract.kernel(name)
        opened: list[Opened] = []
        failed: list[dict[str, str]] = []
        skipped: list[dict[str, str]] = []
        for label, what, name, model, reason in _candidates(session, kernels, others):
            if reason is not None:
                skipped.append({"label": label, "why": reason})
                continue
            advance(label)
            try:
                opened.append(session.open(label, what, name, model))
            except AccordError as error:
                own = what in ("kernel", "model")
                (failed if own else skipped).append({"label": label, "error" if own else "why": str(error)})
        for mode in ("warm", "cold"):
            for label in _in_turns(session, opened, runs, mode, failed):
                advance(f"{label}, {mode}")
        advance("the machine")
        try:
            at = peaks(wanted.threads)
        except CompileError:
            at = None
        return _result(session, opened, failed, skipped, at, runs)


def _candidates(
    session: Session, kernels: Sequence[str], others: Sequence[str]
) -> Iterator[tuple[str, str, str, str, str | None]]:
    """Label, what, name, model, and why it is not measured."""
    prepared = session.prepared
    direct = ("python", "library", "tvm_ffi")
    for k in prepared["kernels"]:
        if kernels and k["name"] not in kernels:
            continue
        yield k["name"], "kernel", k["name"], "own.onnx", k["refused"]
        if k["kind"] in direct and k["refused"] is None:
            yield f"{k['name']}, in a model", "model", k["name"], "own.onnx", None
    found = prepared["builtin"]
    why = None if found else "there is no built-in operator of this name that computes the same"
    yield "built-in", "builtin", "", found or "", why
    yield "reference", "reference", "", "own.onnx", None
    portable = prepared["portable"]
    for name in others:
        why = None
        if importlib.util.find_spec(name) is None:
            why = "not installed"
        elif name == "torch" and found is None:
            why = "it has no operator of this name"
        elif name != "torch" and portable is None:
            why = "the operator has no composition that could be written as ONNX"
        yield name, "peer", name, portable or "", why


def _in_turns(
    session: Session, opened: list[Opened], runs: int, mode: str, failed: list[dict[str, str]]
) -> Iterator[str]:
    """Time all candidates; one that fails is left out from then on."""
    order = list(opened)
    while order:
        for o in list(order):
            yield o.label
            time.sleep(_PAUSE)
            try:
                o.turn(session, min(o.runs_of_a_turn, runs - len(o.times[mode]) + _AUDITS), mode)
            except AccordError as error:
                failed.append({"label": o.label, "error": str(error)})
                opened.remove(o)
                order.remove(o)
                continue
            if len(o.times[mode]) >= runs:
                del o.times[mode][runs:]
                order.remove(o)
        order.append(order.pop(0)) if order else None


# figures


def _result(
    session: Session,
    opened: Sequence[Opened],
    failed: Sequence[Mapping[str, str]],
    skipped: Sequence[Mapping[str, str]],
    at: Peaks | None,
    runs: int,
) -> dict[str, Any]:
    prepared = session.prepared
    operations, dtype = _work(opened)
    found = []
    for o in opened:
        figures = {
            mode: _figures(o.times[mode], mode, at, operations, dtype, prepared["read"], prepared["written"])
            for mode in ("warm", "cold")
        }
        found.append(
            {
                "label": o.label,
                "what": o.what,
                "name": o.name,
                "load": o.first["load"],
                "first": o.first["first"],
                "steps": o.first["facts"].get("steps"),
                **figures,
            }
        )
    builtin = next((c for c in found if c["what"] == "builtin"), None)
    for c in found:
        c["of_builtin"] = None if builtin is None else builtin["warm"]["p50"] / c["warm"]["p50"]
    wanted = session.wanted
    return {
        "operator": session.contract.semantic.qualified_name,
        "shapes": prepared["inputs"],
        "sizes": prepared["sizes"],
        "types": prepared["types"],
        "attributes": prepared["attributes"],
        "threads": wanted.threads,
        "runs": runs,
        "bytes": {"read": prepared["read"], "written": prepared["written"]},
        "operations": operations,
        "candidates": found,
        "failed": list(failed),
        "not_measured": list(skipped),
        "peaks": None if at is None else {"memory": at.levels[-1].read.best, "disturbed": at.disturbed},
        "machine": identity(wanted.threads),
        "versions": versions(),
    }


def _work(opened: Sequence[Opened]) -> tuple[int | None, str | None]:
    """Operations of a call, and what they compute with: as the built-in says, else the most that anybody says."""
    said = [
        (o.what == "builtin", f["operations"], f["dtype"]) for o in opened if (f := o.warmed["facts"]).get("operations")
    ]
    return max(said, default=(False, None, None))[1:]


def _figures(
    times: Sequence[float],
    mode: str,
    at: Peaks | None,
    operations: int | None,
    dtype: str | None,
    read: int,
    written: int,
) -> dict[str, Any]:
    found: dict[str, Any] = summary(times)
    found["bandwidth"] = bandwidth = (read + written) / found["p50"]
    found["operations_per_second"] = None if operations is None else operations / found["p50"]
    if at is None:
        return {**found, "source": None, "roofline": None}
    memory = at.levels[-1]
    level = at.level(read + written)
    least = bound(at if mode == "warm" else replace(at, levels=(memory,)), dtype, operations or 0, read, written)
    source = level.name if mode == "warm" else memory.name
    above = bandwidth > _ABOVE * memory.read.best
    if above and source == memory.name:
        source = "cache"
    return {**found, "source": source, "above_memory": above, "roofline": least.seconds / found["p50"]}
