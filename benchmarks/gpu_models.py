#!/usr/bin/env python3
"""Whole models on one GPU: Accord beside PyTorch and ONNX Runtime, all in one run.

    python benchmarks/gpu_models.py [--ort FOLDER] [--rounds N] [--output FILE] [MODEL ...]

Models of PyTorch have random weights and run in float16; files (PP-OCR: ``scripts/fetch_models`` gets them) run as they
are, in float32. Inputs and outputs stay on the GPU, sizes are fixed. Needs PyTorch, torchvision, transformers.

Each model has a process of its own, in which everything is compiled first, all models side by side, though only one at
a time measures what it chooses among; what torch.compile keeps is for a later call if TORCHINDUCTOR_CACHE_DIR is set.
Then one model after the other is timed, while the others wait: each runtime's output is compared with PyTorch's in
float32 (a file's with ONNX Runtime's on the CPU), then a round times every runtime by turns, each run with a wait at
its end; the figure is the median over all rounds. What the device itself needs is recorded afterwards, by CUPTI.

Peers: ``eager``, ``compile`` (torch.compile, mode reduce-overhead: CUDA graphs), ``autotune`` (mode max-autotune, with
CUDA graphs), ``ort`` (ONNX Runtime's CUDA provider with a CUDA graph and bound inputs and outputs, in a process of its
own). Of models made of convolutions each is timed with channels last too, and the better counts. "sum" is what
the library kernels of the model add up to (``benchmarks/gpu_sums.py``), and "in a row" what they take one after the
other, measured in the same process.
"""

from __future__ import annotations

import argparse
import copy
import datetime as dt
import fcntl
import json
import math
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from gpu_cases import CASES, Case, exported, of_fixed_sizes
from gpu_ort import Peer
from gpu_timing import device_seconds
from machine import gpu, invocation, machine

import accord

PEERS = ("eager", "compile", "autotune", "ort")
MODES = {"compile": "reduce-overhead", "autotune": "max-autotune"}
#: Runs of one runtime in a round, and runs that are recorded.
RUNS, RECORDED = 5, 8
#: Seconds for a model's turn: loads of Accord and ONNX Runtime, sums, rounds, records.
TURN = 90.0
#: An output that is further from the exact one than the peers' by this factor is wrong.
WRONG = 8.0


def main() -> int:
    """Run, print, write; 1 if a model of Accord's is missing or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--ort", type=Path, metavar="FOLDER", help="where onnxruntime-gpu is unpacked, if not installed"
    )
    parser.add_argument("--compile-limit", type=float, default=200, help="seconds in which peers may compile")
    parser.add_argument("--limit", type=float, default=480, help="seconds after which no model's turn begins")
    parser.add_argument("--no-start", action="store_true", help="leave out the times of cold and cached starts")
    parser.add_argument("--no-sums", action="store_true", help="leave out the sums of library kernels")
    parser.add_argument("--steps", action="store_true", help="the time of each of Accord's steps, too")
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try this script without a GPU"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--first-run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_run is not None:
        print(json.dumps(_first_run(options)))
        return 0
    if options.part is not None:
        _Part(options.part, options).serve()
        return 0
    return _all(options)


# all models


class _Process:
    """The process of one model."""

    def __init__(self, name: str, options: argparse.Namespace, work: Path, deadline: float) -> None:
        self.name = name
        self._log = work / f"{name}.log"
        arguments = [sys.executable, __file__, *sys.argv[1:], "--part", name, "--work", str(work)]
        arguments += ["--deadline", str(deadline)]
        environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(work / "inductor")),
            "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, (os.cpu_count() or 1) // 6)),
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._ended = False
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def reply(self, until: float) -> dict[str, Any]:
        """The next one; what went wrong if there is none in time."""
        try:
            line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return {"error": "it took too long"}
        if line is None:
            return {"error": f"its process ended: {self._log.read_text(errors='replace')[-600:]}"}
        return dict(json.loads(line))

    def go(self) -> None:
        """Its turn has come."""
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except OSError:  # it has ended; its reply says so
            return

    def end(self) -> None:
        """End it with all that it started, once."""
        if self._ended:
            return
        self._ended = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _all(options: argparse.Namespace) -> int:
    names = options.models or list(CASES)
    began = time.monotonic()
    results: dict[str, Any] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes are ended
    with tempfile.TemporaryDirectory() as folder:
        ready_by = began + options.compile_limit
        running = [_Process(n, options, Path(folder), time.time() + options.compile_limit) for n in names]
        try:
            prepared = {p.name: p.reply(ready_by + 30) for p in running}
            seconds = time.monotonic() - began
            print(f"compiled in {seconds:.0f} s: {json.dumps(prepared)}", file=sys.stderr, flush=True)
            print(_HEAD, flush=True)
            for process in running:
                found = prepared[process.name]
                if "error" not in found:
                    if time.monotonic() - began > options.limit:
                        found = {"error": f"left out: {options.limit:.0f} s were over"}
                    else:
                        process.go()
                        found = process.reply(time.monotonic() + TURN)
                process.end()
                results[process.name] = found | {"sizes": CASES[process.name].sizes, "prepared": prepared[process.name]}
                print(_row(process.name, found), flush=True)
                _write(options, results)
        finally:
            for process in running:
                process.end()
    mean, ratios = _mean(results)
    if ratios:
        print(f"best peer ÷ Accord: geometric mean {mean:.3f} over {len(ratios)}, least {min(ratios):.3f}")
    return int(any("error" in r or r["wrong"] for r in results.values()))


def _mean(results: dict[str, Any]) -> tuple[float | None, list[float]]:
    """Geometric mean of the ratios that are known, and these."""
    ratios = [r["best / accord"] for r in results.values() if r.get("best / accord")]
    return (math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None), ratios


def _write(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """What is known so far."""
    if options.output is None:
        return
    mean, ratios = _mean(results)
    data = {
        "command": invocation(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "gpu": gpu(),
        "unit": "seconds of one run, median over rounds in which all runtimes take turns",
        "geometric mean": mean,
        "least": min(ratios, default=None),
        "models": results,
    }
    options.output.write_text(json.dumps(data, indent=1) + "\n")


_HEAD = (
    "| model | Accord | eager | compile | autotune | ONNX Runtime | best ÷ Accord | device | sum | in a row "
    "| error (peers) | start |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def _row(name: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"| {name} | {found['error'][:500]} |"

    def ms(seconds: float | None) -> str:
        return "–" if seconds is None else f"{seconds * 1e3:.3f}"

    best = found["best"]
    peers = " | ".join(ms(best.get(p)) for p in PEERS)
    ratio = "–" if found["best / accord"] is None else f"{found['best / accord']:.2f}"
    device = found["device"].get("accord", {}).get("span")
    error = max((e for n, e in found["errors"].items() if n != "accord"), default=math.nan)
    starts = {k: found["start"][k]["load and first run"] for k in ("cold", "cached") if k in found["start"]}
    start = ", ".join(f"{k} {seconds:.2f} s" for k, seconds in starts.items())
    last = f"{found['errors']['accord']:.1e} ({error:.1e}){' WRONG' if found['wrong'] else ''} | {start}"
    total = found["sum"].get("seconds")
    notes = "".join(f" {n}: {why[:160]};" for n, why in found["left out"].items())
    elsewhere = f" elsewhere: {', '.join(found['elsewhere'])}" if found["elsewhere"] else ""
    row = found["sum"].get("in a row")
    times = f"{ms(found['seconds']['accord'])} | {peers} | {ratio} | {ms(device)} | {ms(total)} | {ms(row)}"
    return f"| {name} | {times} | {last} |{notes}{elsewhere}"


# one model


class _TooLong(BaseException):
    """A peer's compilation is over its time; nothing on the way catches it."""


class _Part:
    """One model, in a process of its own."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.case: Case = CASES[name]
        self.name = name
        self.options = options
        self.file = options.work / f"{name}.onnx"
        self.feed_file = options.work / f"{name}.npz"
        self.runs: dict[str, Callable[[], Any]] = {}
        self.sessions: dict[str, dict[str, str]] = {}
        self.errors: dict[str, float] = {}
        self.left_out: dict[str, str] = {}
        self.took: dict[str, float] = {}
        self.reference: np.ndarray[Any, Any] | None = None
        self.ort: Peer | None = None
        self._is_alone = False
        self.asked = [p for p in options.peers.split(",") if p]

    def serve(self) -> None:
        """Prepare, say so, wait for the turn, measure, say what was found."""
        out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print is no reply

        def say(reply: dict[str, Any]) -> None:
            print(json.dumps(reply), file=out, flush=True)

        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        with torch.inference_mode():
            try:
                self._prepare()
                say({"seconds": self.took, "left out": self.left_out})
                if sys.stdin.readline():
                    say(self._measured())
            except Exception as error:  # noqa: BLE001  the other models are measured all the same
                import traceback

                traceback.print_exc()
                say({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:800]}"})

    # before the turn

    def _prepare(self) -> None:
        with self._timed("model"):
            if self.case.make is not None:
                self._prepare_module()
            else:
                model, self.feed = of_fixed_sizes(self.case)
                self.file.write_bytes(model)
                self.reference = self._on_the_host()
            np.savez(self.feed_file, **self.feed)
        if "ort" in self.asked:
            try:
                self.ort = Peer(self.options.ort, self.options.device, self.options.work / f"{self.name}-ort.log")
            except OSError as error:
                self.left_out["ort"] = str(error)
            self._list_sessions()
        if self.case.make is None:
            self.left_out |= {p: "n/a: the model is a file" for p in ("eager", *MODES) if p in self.asked}
            return
        for peer in self.asked:
            if peer == "eager":
                with self._timed(peer), self._alone():
                    self._add_module(peer, lambda module: module)
            elif peer in MODES:
                with self._timed(peer):
                    self._compile(peer)

    def _prepare_module(self) -> None:
        import torch

        torch.manual_seed(0)
        module, inputs = self.case.make()
        device = self.options.device
        module, inputs = module.eval().to(device), tuple(x.to(device) for x in inputs)
        with self._alone():
            self.reference = module(*inputs).float().cpu().numpy()
        wanted = torch.float16 if device == "cuda" else torch.float32
        self.module = module.to(wanted)
        self.given = tuple(x.to(wanted) if x.is_floating_point() else x for x in inputs)
        proto = exported(self.module, self.given)
        self.file.write_bytes(proto)
        import onnx

        names = [i.name for i in onnx.load_from_string(proto).graph.input]
        self.feed = {n: x.cpu().numpy() for n, x in zip(names, self.given, strict=True)}

    def _on_the_host(self) -> np.ndarray[Any, Any] | None:
        """What ONNX Runtime's CPU provider makes of the file; None if it is not installed here."""
        try:
            import onnxruntime
        except ImportError:
            return None
        session = onnxruntime.InferenceSession(str(self.file), providers=["CPUExecutionProvider"])
        return session.run(None, self.feed)[0]

    def _list_sessions(self) -> None:
        layouts = {"": "0", " channels last": "1"} if self.case.images else {"": "0"}
        for layout, flag in layouts.items():
            self.sessions[f"ort{layout}"] = {"prefer_nhwc": flag, "use_tf32": "0"}
            if self.case.make is None:
                self.sessions[f"ort{layout}, TF32"] = {"prefer_nhwc": flag, "use_tf32": "1"}

    def _add_module(self, peer: str, wrap: Callable[[Any], Callable[..., Any]]) -> None:
        """A peer of PyTorch, with images' channels first and last."""
        import torch

        # what is mostly better comes first: time may not do for the other
        for layout in (" channels last", "") if self.case.images else ("",):
            module, given = self.module, self.given
            if layout:
                module = copy.deepcopy(module).to(memory_format=torch.channels_last)
                given = tuple(x.contiguous(memory_format=torch.channels_last) for x in given)
            function = wrap(module)
            for _ in range(4):
                result = function(*given)
            self.errors[peer + layout] = self._error(result.float().cpu().numpy())
            self.runs[peer + layout] = lambda f=function, g=given: (f(*g), self._settle())

    def _compile(self, peer: str) -> None:
        """A peer that compiles, if it does so in time."""
        import torch

        _tune_alone(self._alone)

        def over(*_: Any) -> None:
            raise _TooLong

        signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, max(1.0, self.options.deadline - time.time()))
        try:
            self._add_module(peer, lambda module: torch.compile(module, mode=MODES[peer]))
        except _TooLong:
            self.left_out[peer] = f"it was not compiled within {self.options.compile_limit:.0f} s"
        except Exception as error:  # noqa: BLE001  a peer that fails is left out, with its reason
            self.left_out[peer] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other model's process measures on the GPU within."""
        if self._is_alone:
            yield
            return
        with (self.options.work / "gpu.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._is_alone = True
            try:
                yield
            finally:
                self._is_alone = False
                fcntl.flock(file, fcntl.LOCK_UN)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.took[what] = round(time.perf_counter() - began, 1)

    # the turn

    def _measured(self) -> dict[str, Any]:
        start = {} if self.options.no_start else self._starts()
        if self.ort is not None:
            self._open_sessions()
        elsewhere = self._load()
        total: dict[str, Any] = {}
        if not self.options.no_sums and self.options.device == "cuda" and self.case.make is not None:
            total = self._sum()
        seconds = self._rounds()
        best = self._best(seconds)
        least = min((t for p, t in best.items() if p in PEERS), default=None)
        device = {n: device_seconds(run, RECORDED) for n, run in self.runs.items()} if self._on_gpu() else {}
        if self.ort is not None and self._on_gpu():
            device |= {n: self.ort.device_seconds(n, RECORDED) for n in self.sessions}
        others = max((e for n, e in self.errors.items() if n != "accord" and "TF32" not in n), default=0.0)
        return {
            "seconds": seconds,
            "best": best,
            "best / accord": None if least is None else least / seconds["accord"],
            "sum": total,
            "sum / accord": total["seconds"] / seconds["accord"] if "seconds" in total else None,
            "device": device,
            "errors": self.errors,
            "wrong": not self.errors["accord"] <= WRONG * max(others, 1e-5),
            "start": start,
            "left out": self.left_out,
            "elsewhere": elsewhere,
            "ONNX Runtime": None if self.ort is None else self.ort.version,
        }

    def _on_gpu(self) -> bool:
        return bool(self.options.device == "cuda")

    def _best(self, seconds: dict[str, float]) -> dict[str, float]:
        """Of each peer the best layout; products in TF32 are not asked for, so they do not count, nor wrong results."""
        found: dict[str, float] = {}
        for name, s in seconds.items():
            if "TF32" not in name and math.isfinite(self.errors[name]):
                peer = name.removesuffix(" channels last")
                found[peer] = min(s, found.get(peer, math.inf))
        return found

    def _starts(self) -> dict[str, dict[str, float]]:
        """What the first result takes in a new process, with nothing kept and with what that one kept.

        Python's byte code is there, as after an installation.
        """
        found = {}
        work = self.options.work
        cache, bytecode = work / f"{self.name}-cache", work / "bytecode"
        command = [sys.executable, __file__, "--first-run", str(self.file), "--work", str(self.feed_file)]
        command += ["--device", self.options.device]
        environment = os.environ | {"PYTHONPYCACHEPREFIX": str(bytecode), "TRITON_CACHE_DIR": str(cache / "triton")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for kind in (*([] if bytecode.exists() else ["without byte code"]), "cold", "cached"):
            kept = work / "other-cache" if kind == "without byte code" else cache
            environment["ACCORD_CACHE"] = str(kept)
            done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=TURN)
            if done.returncode:
                self.left_out[f"{kind} start"] = " ".join(done.stderr.split())[-300:]
                break
            found[kind] = json.loads(done.stdout.splitlines()[-1])
        os.environ["ACCORD_CACHE"] = str(cache)
        return found

    def _open_sessions(self) -> None:
        output = self.options.work / f"{self.name}.npy"
        for name, given in list(self.sessions.items()):
            try:
                without = self.ort.open(name, self.file, self.feed_file, output, given)
            except OSError as error:
                self.left_out[name] = str(error)
                del self.sessions[name]
                continue
            if without:
                self.left_out[f"{name}, graph"] = without
            result = np.load(output).astype(np.float32)
            if self.reference is None:
                self.reference = result
            self.errors[name] = self._error(result)

    def _load(self) -> list[str]:
        """Accord's run; operators that it has elsewhere."""
        import torch

        device = self.options.device
        model = accord.load(self.file, device=device, tuning="full")
        feed = {n: torch.from_numpy(x).to(device) for n, x in self.feed.items()}
        if not self._on_gpu():
            feed = {n: x.numpy() for n, x in feed.items()}
        result = model(self.feed)[0]
        into = {model.outputs[0].name: torch.from_numpy(np.full_like(result, np.nan)).to(device)}
        if not self._on_gpu():
            into = {n: x.numpy() for n, x in into.items()}
        self.runs = {"accord": lambda: model.run_into(feed, into)} | self.runs
        for _ in range(6):
            self.runs["accord"]()
        self._settle()
        (found,) = into.values()
        found = found if isinstance(found, np.ndarray) else found.float().cpu().numpy()
        self.reference = found if self.reference is None else self.reference
        self.errors["accord"] = self._error(found)
        if self.options.steps:
            from accord.profile.profile import profile

            measured = profile(model, feed, runs=5)
            for s in sorted(measured.steps, key=lambda s: -s.median)[:40]:
                print(f"{s.median * 1e6:8.1f} us {s.kernel[:60]:60} {s.node}", file=sys.stderr)
        places = [s.placement for s in model.plan.steps]
        return sorted({p.op for p in places if p.backend not in (device, "plan")})

    def _sum(self) -> dict[str, Any]:
        import gpu_sums

        try:
            if self.case.block is not None:
                return gpu_sums.of_block(self.case.block)
            return gpu_sums.of_convolutions(self.module, self.given)
        except Exception as error:  # noqa: BLE001  the model is timed all the same
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}

    def _rounds(self) -> dict[str, float]:
        for name in set(self.runs) - {"accord"}:  # what was interrupted while it compiled may be in any state
            try:
                self.runs[name]()
            except Exception as error:  # noqa: BLE001  a peer that fails is left out, with its reason
                self.left_out[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                del self.runs[name]
        times: dict[str, list[float]] = {n: [] for n in (*self.runs, *self.sessions)}
        for _ in range(self.options.rounds):
            for name, run in self.runs.items():
                run()
                for _ in range(RUNS):
                    began = time.perf_counter()
                    run()
                    times[name].append(time.perf_counter() - began)
            for name in self.sessions:
                times[name] += self.ort.times(name, RUNS + 1)[1:]
        return {n: statistics.median(t) for n, t in times.items()}

    def _settle(self) -> None:
        if self._on_gpu():
            import torch

            torch.cuda.synchronize()

    def _error(self, found: np.ndarray[Any, Any]) -> float:
        """Relative to the reference; not a number if it has what is none."""
        exact = self.reference.astype(np.float64)
        if not np.isfinite(found).all():
            return math.nan
        return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))


def _tune_alone(alone: Callable[[], Any]) -> None:
    """Let torch.compile measure what it chooses among while no other process does."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    for owner, name in (
        (AlgorithmSelectorCache, "benchmark_in_current_process"),
        (CachingAutotuner, "benchmark_all_configs"),
    ):
        known = owner.__dict__.get(name)
        function = getattr(known, "__func__", known)
        if function is None or hasattr(function, "_alone"):
            continue

        def measured(*args: Any, _function: Callable[..., Any] = function, **named: Any) -> Any:
            with alone():
                return _function(*args, **named)

        measured._alone = True
        setattr(owner, name, classmethod(measured) if isinstance(known, classmethod) else measured)


def _first_run(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a load and of the first result from the host's memory, imports apart."""
    with np.load(options.work) as stored:
        feed = dict(stored)
    began = time.perf_counter()
    model = accord.load(options.first_run, device=options.device)
    loaded = time.perf_counter()
    model(feed)
    return {"load": loaded - began, "load and first run": time.perf_counter() - began}


if __name__ == "__main__":
    sys.exit(main())
