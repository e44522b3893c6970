#!/usr/bin/env python3
"""Everything that is to be shown on a machine with a GPU, with one dated result file.

    python scripts/gpu.py [--only PART,PART ...] [--output FILE] [--limit SECONDS] [--ort FOLDER]

Each part is a process of its own with a time limit, so that one that hangs or crashes does not end the others; what is
known so far is in the file after each part. A part whose packages or tools are missing says so. The exit code is
1 if a part failed or was over its time.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.machine import gpu, machine

ROOT = Path(__file__).resolve().parent.parent
#: Of a part's output, the end that is kept.
_TAIL = 4000
#: What stands in a command for the file that the part writes its figures to.
_OUTPUT = "{output}"
_SANITIZER = "compute-sanitizer"
#: Of these lines, and of tests that failed, as many are kept.
_NAMED = 20
#: What the sanitizer's tools say of each thing that they find.
_FOUND = re.compile(r"^=+ +(Invalid|Out-of-range|Misaligned|Uninitialized|(?:Error|Warning): Race|Barrier error)", re.M)
_TOTAL = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


@dataclass(frozen=True)
class Part:
    """Something to run.

    Attributes:
        what: For people.
        command: ``{output}`` in it is a file for figures as JSON.
        limit: Seconds.
        needs: Packages without which it cannot run.
        tool: A program likewise.
        figures: More figures, from its output.
        environment: Variables.
    """

    what: str
    command: Sequence[str]
    limit: float
    needs: Sequence[str] = ()
    tool: str | None = None
    figures: Callable[[str], dict[str, Any]] = lambda text: {}
    environment: Mapping[str, str] = field(default_factory=dict)

    def missing(self) -> str | None:
        """What it cannot run without."""
        packages = [n for n in self.needs if importlib.util.find_spec(n) is None]
        if packages:
            return f"not installed: {', '.join(packages)}"
        if self.tool is not None and tool_path(self.tool) is None:
            return f"{self.tool} is not there"
        return None


def tool_path(name: str) -> str | None:
    """Where a program of the CUDA toolkit is."""
    toolkits = sorted(Path("/usr/local").glob("cuda*/bin"), reverse=True)
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, toolkits)))


def _tests(*files: str, workers: int) -> list[str]:
    # pytest-benchmark, where it is installed, warns of workers, and warnings are errors
    given = ["-v", "-o", "addopts=", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    return [sys.executable, "-m", "pytest", *given, "-n", str(workers), "--timeout", "240", *files]


def _counts(text: str) -> dict[str, Any]:
    """Of pytest's lines: a part that was ended has no summary."""
    done = re.findall(r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|SKIPPED|ERROR) (\S+)", text, re.M)
    failed = [name for word, name in done if word in ("FAILED", "ERROR")]
    counts = {word.lower(): sum(w == word for w, _ in done) for word in ("PASSED", "FAILED", "SKIPPED", "ERROR")}
    return {w: n for w, n in counts.items() if n} | ({"which failed": failed[:_NAMED]} if failed else {})


def sanitizer_figures(text: str) -> dict[str, Any]:
    """Of the sanitizer: how many errors, also where it was ended before its summary."""
    totals = [int(a or b) for a, b in _TOTAL.findall(text)]
    found = max(sum(totals), len(_FOUND.findall(text)))
    said = [line[:200] for line in text.splitlines() if re.match(r"=+ +(?!Saved|Host Frame|COMPUTE)\w", line)]
    return _counts(text) | {"found": found, "processes": len(totals)} | ({"said": said[:_NAMED]} if found else {})


def _sanitized(tool: str, workers: int) -> Part:
    command = [
        tool_path(_SANITIZER) or _SANITIZER,
        "--tool",
        tool,
        "--target-processes",
        "all",
        "--error-exitcode",
        "9",
    ]
    # what a call of the driver answers is its caller's to judge, who may have asked whether there is something
    command += ["--print-limit", "20", *(["--report-api-errors", "no"] if tool == "memcheck" else [])]
    return Part(
        f"{tool} over the library's kernels",
        [*command, *_tests("tests/library/test_gpu_kernels.py", "-k", "agrees", workers=workers)],
        400,
        ("pytest", "xdist"),
        _SANITIZER,
        sanitizer_figures,
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )


def parts(ort: Path | None) -> dict[str, Part]:
    """All parts, in their order."""
    cores = len(os.sched_getaffinity(0))
    python = sys.executable
    given = [] if ort is None else ["--ort", str(ort)]
    on_gpu = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*on_gpu.py"))
    torch = ("torch", "triton")
    return {
        "conformance": Part(
            "ONNX's node cases", [python, "scripts/gpu_conformance.py", "--output", _OUTPUT], 400, ("onnx", "triton")
        ),
        "operators": Part(
            "the library's kernels and users' beside their definitions",
            _tests("tests/library/test_gpu_kernels.py", "tests/kernels", workers=max(1, cores // 2)),
            240,
            ("pytest", "xdist"),
            figures=_counts,
        ),
        "graphs": Part(
            "families of operators, late steps, random graphs: tests of the emulated GPU that compare values",
            _tests("tests/emulated", workers=max(1, cores - 2)),
            300,
            ("pytest", "xdist", "hypothesis"),
            figures=_counts,
            environment={"ACCORD_TEST_GPU": "1"},
        ),
        "cublas": Part(
            "cuBLASLt's products beside NumPy's",
            [python, "scripts/gpu_cublas.py", "--only", "right,unaligned,nan"],
            120,
            ("triton",),
        ),
        "streams": Part(
            "delayed producers on every edge between streams, and what streams gain",
            [python, "scripts/gpu_streams.py", "--output", _OUTPUT],
            150,
            ("onnx", "triton"),
        ),
        "runs": Part(
            "streams, memory, errors, profiles: tests that need a GPU",
            _tests(*on_gpu, workers=1),
            240,
            ("pytest", "xdist"),
            figures=_counts,
        ),
        "threads": Part(
            "four threads on one session",
            [python, "scripts/gpu_threads.py", "--seconds", "20"],
            120,
            ("onnx", "triton"),
        ),
        **{t: _sanitized(t, max(1, cores // 2)) for t in ("memcheck", "racecheck", "initcheck", "synccheck")},
        "models": Part(
            "models beside PyTorch and ONNX Runtime",
            [python, "benchmarks/gpu_models.py", "--peers", "eager,compile,ort", "--output", _OUTPUT, *given],
            560,
            (*torch, "torchvision", "transformers"),
        ),
        "autotune": Part(
            "models beside torch.compile's max-autotune, whose compiling takes longer than the rest of all",
            [
                *(python, "benchmarks/gpu_models.py", "--peers", "autotune", "--no-sums", "--no-start"),
                *("--compile-limit", "430", "--output", _OUTPUT),
            ],
            590,
            (*torch, "torchvision", "transformers"),
        ),
        "table": Part(
            "models of the table in each precision beside the CPU",
            [python, "scripts/gpu_table.py", "--output", _OUTPUT],
            300,
            ("onnx", "triton"),
        ),
        "jitter": Part(
            "times of runs after a warm-up, and memory at random shapes",
            [python, "benchmarks/gpu_jitter.py", "--output", _OUTPUT],
            400,
            ("onnx", "triton"),
        ),
        "library": Part(
            "the library beside a copy and PyTorch", [python, "benchmarks/gpu_library.py", _OUTPUT], 180, torch
        ),
        "attention": Part(
            "attention beside PyTorch's", [python, "benchmarks/gpu_attention.py", "--output", _OUTPUT], 290, torch
        ),
        "contractions": Part(
            "products and convolutions beside cuBLAS and cuDNN",
            [python, "benchmarks/gpu_contractions.py", _OUTPUT],
            200,
            torch,
        ),
    }


def main() -> int:
    """Run, print, write."""
    known = parts(None)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(known), help=f"of {', '.join(known)} (default: all)")
    today = dt.datetime.now(dt.UTC).date().isoformat()
    default = ROOT / "benchmarks" / "results" / f"gpu-{today}.json"
    parser.add_argument("--output", type=Path, default=default, help="(default: %(default)s)")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which no part begins")
    parser.add_argument("--ort", type=Path, metavar="FOLDER", help="where onnxruntime-gpu is unpacked")
    options = parser.parse_args()
    wanted = options.only.split(",")
    unknown = [n for n in wanted if n not in known]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(known)}")
    if not gpu():
        parser.error("nvidia-smi shows no GPU on this machine; without one, `pytest` covers what can be")
    chosen = {n: p for n, p in parts(options.ort).items() if n in wanted}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the part under way is ended
    command = " ".join(["python", "scripts/gpu.py", *sys.argv[1:]])
    return run(chosen, options.output, options.limit, command)


def run(chosen: Mapping[str, Part], output: Path, limit: float, command: str) -> int:
    """Run parts one after the other and write the result file."""
    end = time.monotonic() + limit
    found: dict[str, Any] = {}
    data = {
        "command": command,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine(),
        "gpu": gpu(),
        "parts": found,
    }
    for name, part in chosen.items():
        if time.monotonic() > end:
            found[name] = {"outcome": "left out", "why": f"{limit:.0f} s were over"}
        else:
            found[name] = {"what": part.what} | outcome_of(part)
        one = found[name]
        figures = {k: v for k, v in one.get("figures", {}).items() if isinstance(v, (int, float, str))}
        print(
            f"{name}: {one['outcome']} {one.get('why', '')} {one.get('seconds', '')} {json.dumps(figures)}", flush=True
        )
        unfinished = output.with_name(f".{output.name}.unfinished")
        unfinished.write_text(json.dumps(data, indent=1) + "\n")
        unfinished.replace(output)
    print(f"wrote {output}")
    return int(any(p["outcome"] in ("failed", "time limit") for p in found.values()))


def outcome_of(part: Part) -> dict[str, Any]:
    """Run one part: "passed", "failed", "time limit", or "not run" with the reason; its seconds and figures."""
    why = part.missing()
    if why is not None:
        return {"outcome": "not run", "why": why}
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "figures.json", Path(folder) / "log"
        command = [str(file) if word == _OUTPUT else word for word in part.command]
        paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), **part.environment}
        began = time.monotonic()
        with log.open("w") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            try:
                code: int | None = process.wait(part.limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        text = log.read_text(errors="replace")
        result = {
            "outcome": "time limit" if code is None else "failed" if code else "passed",
            "seconds": round(time.monotonic() - began, 1),
            "command": [Path(w).name if w == sys.executable else w for w in part.command],
            "figures": part.figures(text),
        }
        if file.exists():
            result["figures"] |= json.loads(file.read_text())
        if code != 0 or not result["figures"]:
            result["tail"] = text[-_TAIL:]
        return result


def _end(process: subprocess.Popen[Any]) -> None:
    """End what a part started and left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _commit() -> str | None:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
