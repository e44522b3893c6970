"""Workers: child processes with limits on time and memory, replaced when a mutant takes one down."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from .mutate import mutant
from .trial import Outcome, trial

MEMORY = 4 << 30
SECONDS = 5.0
#: Time that a new worker may take to import everything.
START_SECONDS = 120.0


class Remote:
    """One child process.

    Args:
        seeds: File with the seeds.
        seed: Number of the campaign.
        stage: How far mutants are taken.
        reference: Use the reference backend only.
    """

    def __init__(self, seeds: Path, seed: int, stage: str, reference: bool) -> None:
        self.trace = tempfile.NamedTemporaryFile(prefix="fuzz-trace-", delete=False)  # noqa: SIM115  closed by stop()
        own, theirs = os.pipe()
        root = Path(__file__).parents[2]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "tests.fuzz.pool", str(seeds), str(seed), stage, str(int(reference))]
        self.process = subprocess.Popen(
            [*command, str(theirs), self.trace.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.trace,  # where the C library says why it aborts
            pass_fds=(theirs,),
            env=environment,
            cwd=root,
        )
        os.close(theirs)
        self.answers = os.fdopen(own, "rb", buffering=0)
        self.index: int | None = None
        self.deadline = time.monotonic() + START_SECONDS
        self.ready = False

    def send(self, index: int) -> None:
        self.index = index
        assert self.process.stdin is not None
        self.process.stdin.write(f"{index}\n".encode())
        self.process.stdin.flush()
        self.deadline = time.monotonic() + SECONDS

    def outcome(self) -> Outcome | None:
        """As :meth:`receive`; where there is no answer, a hang, or a loop that the model itself asks for."""
        if select.select([self.answers], [], [], 0)[0]:
            return self.receive()
        self.process.send_signal(signal.SIGUSR1)  # it writes where it is
        time.sleep(0.2)
        loops = "runtime/control.py" in Path(self.trace.name).read_text(errors="replace")
        return Outcome("endless" if loops else "hang", f"over {SECONDS:g} s", self.where())

    def receive(self) -> Outcome | None:
        """The answer, or what the end of the process means; None where it only says that it is ready."""
        line = self.answers.readline()
        if not line:
            code = self.process.wait()
            return Outcome("crash", f"signal {-code}" if code < 0 else f"exit {code}", self.where())
        if not self.ready:
            self.ready = True
            return None
        return Outcome(**json.loads(line))

    def where(self) -> str:
        """What the process said last, and the innermost line of ours in the trace that it left."""
        lines = Path(self.trace.name).read_text(errors="replace").replace("\0", "").splitlines()
        own = next((line.strip().split("accord/", 1)[-1] for line in lines if "accord/" in line), "")
        said = next((line.strip() for line in lines if line.strip() and not line.lstrip().startswith("File ")), "")
        return f"{own} {said[:120]}".strip()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.answers.close()
        self.trace.close()
        Path(self.trace.name).unlink(missing_ok=True)


def outcomes(
    seeds: list[bytes], seed: int, indices: Iterator[int], jobs: int, stage: str, *, reference: bool, until: float
) -> Iterator[tuple[int, Outcome]]:
    """Run mutants until ``indices`` end or the clock reaches ``until``; the order is that of completion."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seeds.json"
        file.write_text(json.dumps([s.hex() for s in seeds]))
        workers: list[Remote] = [Remote(file, seed, stage, reference) for _ in range(jobs)]
        try:
            while workers:
                for worker in _due(workers):
                    outcome = worker.outcome()
                    if outcome is not None:
                        if worker.index is None:
                            raise RuntimeError(f"a worker did not start: {outcome}")
                        yield worker.index, outcome
                    if outcome is not None and outcome.kind in ("crash", "hang", "endless"):
                        worker.stop()
                        workers[workers.index(worker)] = Remote(file, seed, stage, reference)
                        continue
                    index = next(indices, None) if time.monotonic() < until else None
                    if index is None:
                        worker.stop()
                        workers.remove(worker)
                    else:
                        worker.send(index)
        finally:
            for worker in workers:
                worker.stop()


def _due(workers: list[Remote]) -> list[Remote]:
    """Workers that have answered or are out of time."""
    waiting = min(w.deadline for w in workers) - time.monotonic()
    readable, _, _ = select.select([w.answers for w in workers], [], [], max(waiting, 0))
    return [w for w in workers if w.answers in readable or time.monotonic() > w.deadline]


def serve(seeds_file: str, seed: str, stage: str, reference: str, answers: str, trace: str) -> None:
    """The child: reads indices from standard input and answers each with an outcome."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seeds = [bytes.fromhex(s) for s in json.loads(Path(seeds_file).read_text())]
    import accord.runtime.model  # noqa: F401  imported before the clock of the first mutant starts

    trial(seeds[0], stage, reference=reference == "1")
    with os.fdopen(int(answers), "wb", buffering=0) as out, Path(trace).open("w+") as log:
        faulthandler.enable(log)
        faulthandler.register(signal.SIGUSR1, log)
        out.write(b"ready\n")
        for line in sys.stdin:
            log.seek(0)
            log.truncate()
            data, _ = mutant(seeds, int(seed), int(line))
            outcome = trial(data, stage, reference=reference == "1")
            out.write(json.dumps(asdict(outcome)).encode() + b"\n")


if __name__ == "__main__":
    serve(*sys.argv[1:])
