"""``accord gate``: kernels against a baseline; a loss fails that is over the limit and over the noise.

A time from yesterday is not comparable with one of today: the machine may be slower today. So every block of runs of
a kernel is followed by as many runs of two calibration kernels, arithmetic in registers and a copy of as many bytes,
which take about as long (:mod:`accord.workbench.calibration`), and what is compared is the kernel's 95th percentile
relative to theirs. What they lost on average is taken for the machine's loss; the rest is the kernel's. Where they
changed by different amounts the machine is another one rather than a slower one, and the difference counts as noise.

Blocks are measured in several fresh processes by turns, because where memory happens to lie differs between
processes (Mytkowicz et al., "Producing wrong data without doing anything obviously wrong!", ASPLOS 2009), and the
processes, not the runs, are what is independent (Kalibera and Jones, "Rigorous benchmarking in reasonable time",
ISMM 2013). Blocks are short, and of each process the fastest tenth counts: whatever else runs can only make a block
slower (Chen and Revels, "Robust benchmarking in noisy environments", 2016). Then comes the median over processes.

The noise is what the kernel differs from itself by (A/A): over the ways to split the processes into two halves, the
largest loss that one half shows against the other, which is the extreme of a randomisation test (Edgington and
Onghena, "Randomization Tests").
It is taken from the processes of now and from those of the baseline, and doubled: two sessions differ by more than
shows within one (Kalibera and Jones; Maricq et al., "Taming performance variability", OSDI 2018). A suspicion is
measured again in further processes before it becomes a verdict.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from accord.errors import AccordError
from accord.workbench.baseline import KINDS, Baseline, BaselineError, Entry, Samples, key_of, read, write
from accord.workbench.calibration import code_hash
from accord.workbench.machine import versions
from accord.workbench.measure import Advance, Opened, Session, Wanted, quantile, summary

__all__ = ["LIMIT", "Judged", "gate", "judge", "markdown", "sample", "save"]

#: A loss of the 95th percentile that is not accepted.
LIMIT: Final = 0.05
#: A loss from which on more is measured before it is judged.
_SUSPECT: Final = 0.035
#: Processes for a baseline, for one comparison, and how often a suspicion is measured.
_BASELINE_PROCESSES, _PROCESSES, _ROUNDS = 12, 6, 3
#: Seconds of runs for one comparison; runs and blocks follow from how long one takes.
_SECONDS = 2.5
_BLOCK_SECONDS = 0.001
_RUNS, _BLOCKS = (20, 100), (4, 60)
#: Splits into halves that are tried at most.
_SPLITS = 1000
#: The noise between two sessions against that within one: what differs from hour to hour does not show within minutes.
_SESSIONS = 2.0
#: Part of the blocks, the fastest, that are taken for undisturbed: whatever else runs can only make one slower.
_QUIET = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernel as it is now.

    Attributes:
        samples: By process and block.
        calibration: Sizes of the calibration kernels.
        digest: Hash of the kernel's code.
        seconds: Percentiles over all runs.
    """

    samples: Samples
    calibration: dict[str, Any]
    digest: str
    seconds: dict[str, float]

    def joined(self, other: Measured) -> Measured:
        """Both; percentiles are those of the median process-wise."""
        seconds = {n: (v + other.seconds[n]) / 2 for n, v in self.seconds.items()}
        return replace(self, samples=self.samples + other.samples, seconds=seconds)


def sample(
    wanted: Wanted,
    kernel: str,
    *,
    processes: int | None = None,
    calibration: dict[str, Any] | None = None,
    advance: Advance = lambda text: None,
) -> Measured:
    """Measure a kernel in fresh processes that take turns.

    Args:
        wanted: The operator and its arguments.
        kernel: Name of the kernel.
        processes: How many; None: as many as a comparison takes.
        calibration: Sizes of the calibration kernels; None: what fits the kernel.
        advance: Called with what comes next.

    Raises:
        AccordError: the kernel cannot be measured, or is wrong.
    """
    with Session(wanted) as session:
        session.contract.kernel(kernel)
        refused = next(k["refused"] for k in session.prepared["kernels"] if k["name"] == kernel)
        if refused is not None:
            raise AccordError(f"kernel '{kernel}' cannot be measured here: {refused}", op=wanted.op)
        opened: list[Opened] = []
        label, processes = f"kernel '{kernel}'", processes or _PROCESSES
        started = [session.start(label, steady=True) for _ in range(processes)]
        for worker in started:
            advance(f"{wanted.op}/{kernel}: process {len(opened) + 1} of {processes}")
            opened.append(session.open(label, "kernel", kernel, worker=worker))
            calibration = _calibrated(opened[-1], session, wanted.threads, calibration)
        took = statistics.median(o.warmed["seconds"] for o in opened)
        runs = max(_RUNS[0], min(_RUNS[1], int(_BLOCK_SECONDS / took)))
        blocks = max(_BLOCKS[0], min(_BLOCKS[1], int(_SECONDS / (3 * runs * took * processes))))
        samples: Samples = [[] for _ in opened]
        times: list[float] = []
        for block in range(blocks):
            advance(f"{wanted.op}/{kernel}: block {block + 1} of {blocks}")
            for found, o in zip(samples, opened, strict=True):
                answer = o.worker.call(
                    "run", runs=runs, cold=False, audits=2 if block in (0, blocks - 1) else 0, calibrate=True
                )
                session.judge(o.label, answer["audits"], timed=True)
                kinds = {"kernel": answer["times"], "arithmetic": answer["arithmetic"], "copy": answer["copy"]}
                found.append({n: quantile(t, 0.95) * 1e-9 for n, t in kinds.items()})
                times += [t * 1e-9 for t in answer["times"]]
        return Measured(samples, calibration or {}, session.digests[kernel], summary(times))


def _calibrated(o: Opened, session: Session, threads: int, size: dict[str, Any] | None) -> dict[str, Any]:
    seconds = o.warmed["seconds"]
    answer = o.worker.call("calibrate", nbytes=session.nbytes, seconds=seconds, threads=threads, size=size)
    return dict(answer["size"])


# judging


@dataclass(frozen=True, slots=True)
class _Process:
    """Logarithms of 95th percentiles in blocks of one process that little else disturbed."""

    kernel: float
    arithmetic: float
    copy: float


def _undisturbed(samples: Samples) -> list[_Process]:
    return [_Process(*(math.log(quantile([b[k] for b in blocks], _QUIET)) for k in KINDS)) for blocks in samples]


def _loss(before: Sequence[_Process], now: Sequence[_Process]) -> float:
    """The logarithm of what the kernel lost, beyond what the calibration kernels lost on average."""

    def relative(processes: Sequence[_Process]) -> float:
        return statistics.median(p.kernel - (p.arithmetic + p.copy) / 2 for p in processes)

    return relative(now) - relative(before)


def _slower(before: Sequence[_Process], now: Sequence[_Process]) -> tuple[float, float]:
    """Logarithms of how much longer the calibration kernels take than they took."""
    return (
        statistics.median(p.arithmetic for p in now) - statistics.median(p.arithmetic for p in before),
        statistics.median(p.copy for p in now) - statistics.median(p.copy for p in before),
    )


def _noise(processes: Sequence[_Process]) -> float:
    """The logarithm of the noise: from the largest loss that one half of the processes shows against the other."""
    count, worst = len(processes), 0.0
    for half in _halves(count):
        a, b = [processes[i] for i in half], [processes[i] for i in range(count) if i not in half]
        worst = max(worst, _loss(a, b), _loss(b, a))
    return _SESSIONS * worst


def _halves(count: int) -> Iterable[Sequence[int]]:
    """All ways to choose half of ``count``, or some that are drawn, always the same, where they are too many."""
    if math.comb(count, count // 2) <= _SPLITS:
        return itertools.combinations(range(count), count // 2)
    rng = random.Random(count)
    return (rng.sample(range(count), count // 2) for _ in range(_SPLITS))


@dataclass(frozen=True, slots=True)
class Judged:
    """A comparison.

    Attributes:
        verdict: "pass", "fail" or "faster".
        loss: Part by which the 95th percentile is longer than in the baseline, without what the machine lost.
        noise: The largest of the three that follow.
        noise_now: What the kernel differed from itself by now.
        noise_then: The same in the baseline.
        discord: What the changes of the calibration kernels differ by: the machine is not just slower, but another.
        machine: By calibration kernel, the part by which it takes longer now.
    """

    verdict: str
    loss: float
    noise: float
    noise_now: float
    noise_then: float
    discord: float
    machine: dict[str, float]


def judge(before: Samples, now: Samples) -> Judged:
    """Compare."""
    a, b = _undisturbed(before), _undisturbed(now)
    loss, gain = math.expm1(_loss(a, b)), -math.expm1(-_loss(b, a))
    speeds = _slower(a, b)
    then, here, discord = (math.expm1(v) for v in (_noise(a), _noise(b), max(speeds) - min(speeds)))
    noise = max(then, here, discord)
    verdict = "fail" if loss > max(LIMIT, noise) else "faster" if gain > max(LIMIT, noise) else "pass"
    machine = {kind: math.expm1(v) for kind, v in zip(KINDS[1:], speeds, strict=True)}
    return Judged(verdict, loss, noise, here, then, discord, machine)


def compare(entry: Entry, *, advance: Advance = lambda text: None) -> dict[str, Any]:
    """Measure a kernel and hold it against its entry; a suspicion is measured again.

    Raises:
        AccordError: it cannot be measured, or cannot be compared.
    """
    if entry.calibration.get("code") != code_hash():
        raise BaselineError(
            "the calibration kernels are not those of the baseline: they were changed with Accord",
            remedy="Measure the baseline again with --update.",
        )
    measured, rounds = sample(entry.wanted, entry.kernel, calibration=entry.calibration, advance=advance), 1
    judged = judge(entry.samples, measured.samples)
    while judged.loss > _SUSPECT and rounds < _ROUNDS:
        more = sample(entry.wanted, entry.kernel, calibration=entry.calibration, advance=advance)
        measured, rounds = measured.joined(more), rounds + 1
        judged = judge(entry.samples, measured.samples)
    return {
        "verdict": judged.verdict,
        "loss": judged.loss,
        "noise": judged.noise,
        "noise_now": judged.noise_now,
        "noise_baseline": judged.noise_then,
        "discord": judged.discord,
        "machine": judged.machine,
        "rounds": rounds,
        "processes": len(measured.samples),
        "seconds": {"baseline": entry.seconds, "now": measured.seconds},
        "code_changed": measured.digest != entry.digest,
    }


# the gate


def save(path: Path, chosen: Iterable[tuple[Wanted, str]], *, advance: Advance = lambda text: None) -> dict[str, Any]:
    """Measure kernels and write them to a baseline, beside what it has.

    Args:
        path: Of the baseline; it may be new.
        chosen: Operators with arguments, and kernels.
        advance: Called with what comes next.

    Raises:
        BaselineError: there is a file that is no baseline of this machine; it stays as it is.
        AccordError: a kernel cannot be measured; nothing is written.
    """
    baseline = Baseline.empty()
    if path.exists():
        baseline = read(path)
        baseline.check_machine(path)
        baseline.versions = versions()
    for wanted, kernel in chosen:
        absolute = replace(wanted, load=tuple(str(Path(p).resolve()) for p in wanted.load))
        m = sample(absolute, kernel, processes=_BASELINE_PROCESSES, advance=advance)
        baseline.entries[key_of(wanted, kernel)] = Entry(
            absolute, kernel, m.digest, m.calibration, m.samples, m.seconds
        )
    write(path, baseline)
    return {"path": str(path), "entries": sorted(baseline.entries)}


def declared(files: Sequence[str]) -> list[tuple[Wanted, str]]:
    """All kernels for the CPU of the operators that files declare, with sizes of their own."""
    import tempfile

    from accord.contract.serial import as_contract
    from accord.workbench.remote import Remote

    with tempfile.TemporaryDirectory(prefix="accord-gate-") as folder:
        worker = Remote("the file", Path(folder))
        try:
            contracts = [as_contract(c) for c in worker.call("describe", load=list(files), op=None)["contracts"]]
        finally:
            worker.close()
    return [
        (Wanted(c.semantic.qualified_name, tuple(files)), k.name)
        for c in contracts
        for k in c.kernels
        if k.device == "cpu"
    ]


def gate(
    path: Path,
    files: Sequence[str] = (),
    *,
    keys: Sequence[str] = (),
    advance: Advance = lambda text: None,
    done: Callable[[str], None] = lambda key: None,
) -> dict[str, Any]:
    """Compare all kernels of a baseline.

    Args:
        path: Of the baseline.
        files: Python files to find the operators in; none: where they were.
        keys: Entries to compare; none: all, or those of the operators in ``files``.
        advance: Called with what comes next.
        done: Called after each comparison with its name.

    Returns:
        The report as JSON can hold it.

    Raises:
        BaselineError: the baseline cannot be used.
    """
    baseline = read(path)
    baseline.check_machine(path)
    if not baseline.entries:
        raise BaselineError(f"the baseline '{path}' is empty", remedy="accord gate FILE --baseline B --update.")
    wanted = [k for k in keys if k not in baseline.entries]
    if wanted:
        raise BaselineError(
            f"the baseline '{path}' has no entry '{wanted[0]}'", expected=", ".join(sorted(baseline.entries))
        )
    load = tuple(str(Path(f).resolve()) for f in files)
    found = []
    for key, entry in baseline.entries.items():
        if keys and key not in keys:
            continue
        moved = replace(entry, wanted=replace(entry.wanted, load=load or entry.wanted.load))
        try:
            result = compare(moved, advance=advance)
        except BaselineError:
            raise
        except AccordError as error:
            result = {"verdict": "error", "error": str(error)}
        found.append({"benchmark": key, **result})
        done(key)
    now = versions()
    notes = [
        f"{n} was {baseline.versions.get(n)} when the baseline was measured and is {v} now"
        for n, v in now.items()
        if baseline.versions.get(n) != v
    ]
    bad = any(r["verdict"] in ("fail", "error") for r in found)
    return {
        "verdict": "fail" if bad else "pass",
        "baseline": str(path),
        "limit": LIMIT,
        "benchmarks": found,
        "machine": baseline.machine,
        "notes": notes,
    }


def sentence(r: dict[str, Any]) -> str:
    """What a comparison found, for people."""
    if r["verdict"] == "error":
        return str(r["error"])
    noise_text = f"noise {r['noise']:.1%}"
    code = "; the kernel's code has changed" if r["code_changed"] else "; the kernel's own code has not changed"
    if r["verdict"] == "fail":
        return f"p95 lost {r['loss']:.1%}, more than {LIMIT:.0%} and than the {noise_text}{code}"
    if r["verdict"] == "faster":
        return f"p95 gained {-r['loss']:.1%} ({noise_text}): take it as the new baseline with --update"
    if r["noise"] > LIMIT:
        return f"{noise_text}: a loss below that could not be seen; measure on a quiet machine"
    return f"p95 {r['loss']:+.1%}, {noise_text}"


def markdown(report: dict[str, Any]) -> str:
    """The report for a summary page of a CI system."""
    lines = [
        f"# Gate: {report['verdict']}",
        "",
        f"Baseline `{Path(report['baseline']).name}`, measured on {report['machine']['processor']}, "
        f"{report['machine']['cores']} cores. A loss of p95 over {report['limit']:.0%} and over the noise fails.",
        "",
        "| benchmark | verdict | p95 then | p95 now | loss | noise | machine | |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for r in report["benchmarks"]:
        if r["verdict"] == "error":
            lines.append(f"| {r['benchmark']} | error | | | | | | {_cell(r['error'])} |")
            continue
        then, now = (r["seconds"][k]["p95"] * 1e6 for k in ("baseline", "now"))
        drift = max(r["machine"].values())
        lines.append(
            f"| {r['benchmark']} | {r['verdict']} | {then:.1f} µs | {now:.1f} µs | {r['loss']:+.1%} | {r['noise']:.1%} "
            f"| {drift:+.1%} | {_cell(sentence(r))} |"
        )
    lines += ["", *(f"- {n}" for n in report["notes"])]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
