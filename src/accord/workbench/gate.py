"""``accord gate``: kernels against a baseline; a loss fails that is over the limit and over the noise.

A time from yesterday is not comparable with one of today: the machine may be slower today. So every block of runs of
a kernel is followed by as many runs of two calibration kernels, arithmetic in registers and a copy of as many bytes,
which take about as long (:mod:`accord.workbench.calibration`), and what is compared is the kernel's 95th percentile
relative to theirs. What the slower of both lost is taken for the machine's loss; the rest is the kernel's.

Blocks are measured in several fresh processes by turns, because where memory happens to lie differs between
processes (Mytkowicz et al., "Producing wrong data without doing anything obviously wrong!", ASPLOS 2009), and the
processes, not the runs, are what is independent (Kalibera and Jones, "Rigorous benchmarking in reasonable time",
ISMM 2013). Medians over blocks, then over processes, are what an interruption cannot move.

The noise is what the kernel differs from itself by (A/A): over all ways to split the processes into two halves, the
largest loss that one half shows against the other, which is the extreme of a randomisation test (Edgington and
Onghena, "Randomization Tests"). It is taken from the processes of now and from those of the baseline, and each half
has fewer processes than the comparison has, so that it is rather too large. A suspicion is measured again in further
processes before it becomes a verdict.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from accord.errors import AccordError
from accord.workbench.baseline import Baseline, BaselineError, Entry, Samples, key_of, read, write
from accord.workbench.calibration import code_hash
from accord.workbench.machine import versions
from accord.workbench.measure import Advance, Opened, Session, Wanted, quantile, summary

__all__ = ["LIMIT", "Judged", "gate", "judge", "losses", "markdown", "noise", "sample", "save"]

#: A loss of the 95th percentile that is not accepted.
LIMIT: Final = 0.05
#: A loss from which on more is measured before it is judged.
_SUSPECT: Final = 0.035
#: Processes for a baseline, for one comparison, and how often a suspicion is measured.
_BASELINE_PROCESSES, _PROCESSES, _ROUNDS = 12, 8, 3
#: Seconds of runs for one comparison; runs and blocks follow from how long one takes.
_SECONDS = 2.5
_BLOCK_SECONDS = 0.001
_RUNS, _BLOCKS = (20, 100), (4, 60)
#: Splits into halves that are tried at most.
_SPLITS = 1000
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
    processes: int = _PROCESSES,
    calibration: dict[str, Any] | None = None,
    advance: Advance = lambda text: None,
) -> Measured:
    """Measure a kernel in fresh processes that take turns.

    Args:
        wanted: The operator and its arguments.
        kernel: Name of the kernel.
        processes: How many.
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
        label = f"kernel '{kernel}'"
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


def losses(before: Samples, now: Samples) -> dict[str, float]:
    """Logarithms of what changed between two sets of processes.

    Returns:
        "arithmetic" and "copy": the kernel's change relative to that calibration kernel; "loss": the lesser of them.
    """
    found = {kind: _relative(now, kind) - _relative(before, kind) for kind in ("arithmetic", "copy")}
    return {**found, "loss": min(found.values())}


def _relative(processes: Samples, kind: str) -> float:
    """The logarithm of the kernel's time relative to a calibration kernel's; the median over processes."""
    return statistics.median(_undisturbed(p, "kernel") - _undisturbed(p, kind) for p in processes)


def _undisturbed(process: Sequence[Mapping[str, float]], kind: str) -> float:
    """The logarithm of the 95th percentile in blocks that little else disturbed."""
    return math.log(quantile([b[kind] for b in process], _QUIET))


def _speed(before: Samples, now: Samples, kind: str) -> float:
    """The logarithm of how much longer a calibration kernel takes than it took."""

    def middle(processes: Samples) -> float:
        return statistics.median(_undisturbed(p, kind) for p in processes)

    return middle(now) - middle(before)


def noise(processes: Samples) -> float:
    """The largest loss that one half of the processes shows against the other, over all splits."""
    count = len(processes)
    chosen = itertools.islice(itertools.combinations(range(count), count // 2), _SPLITS)
    worst = 0.0
    for half in chosen:
        a = [processes[i] for i in half]
        b = [processes[i] for i in range(count) if i not in half]
        worst = max(worst, losses(a, b)["loss"], losses(b, a)["loss"])
    return math.expm1(worst)


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
    loss = math.expm1(losses(before, now)["loss"])
    speeds = {kind: _speed(before, now, kind) for kind in ("arithmetic", "copy")}
    discord = math.expm1(max(speeds.values()) - min(speeds.values()))
    then, here = noise(before), noise(now)
    most = max(then, here, discord)
    limit = max(LIMIT, most)
    gain = math.expm1(-losses(now, before)["loss"])
    verdict = "fail" if loss > limit else "faster" if gain < -limit else "pass"
    machine = {kind: math.expm1(v) for kind, v in speeds.items()}
    return Judged(verdict, loss, most, here, then, discord, machine)


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
