#!/usr/bin/env python3
"""Whole models on one GPU: Accord beside PyTorch, in half precision with random weights.

    python benchmarks/gpu_models.py [--peers eager,compile,autotune] [--rounds N] [--output FILE] [MODEL ...]

Needs PyTorch, torchvision and transformers, which also write the ONNX files. Inputs and outputs stay on the GPU. Each
runtime's output is compared with PyTorch's in float32 before anything is timed; a round times every runtime once, for
some runs with one wait at the end of each; the figure is the median over rounds. Peers: ``eager``; ``compile``
(torch.compile, mode reduce-overhead: CUDA graphs); ``autotune`` (mode max-autotune).
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import accord

_MODES = {"compile": "reduce-overhead", "autotune": "max-autotune-no-cudagraphs"}
Case = tuple["torch.nn.Module", tuple["torch.Tensor", ...]]


class _First(torch.nn.Module):
    """A model of transformers that takes token ids and returns its last hidden state."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The last hidden state."""
        return self.inner(ids, return_dict=False)[0]


def _images(make: Callable[[], torch.nn.Module], batch: int) -> Case:
    return make(), (torch.randn(batch, 3, 224, 224),)


def _resnet(batch: int) -> Case:
    import torchvision

    return _images(torchvision.models.resnet50, batch)


def _vit(batch: int) -> Case:
    import torchvision

    def made() -> torch.nn.Module:
        model = torchvision.models.vit_b_16()
        torch.nn.init.normal_(model.heads.head.weight, std=0.02)  # zero as it comes: all results would be equal
        return model

    return _images(made, batch)


def _bert(batch: int) -> Case:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(attn_implementation="sdpa"), add_pooling_layer=False)
    return _First(model), (torch.randint(0, 30000, (batch, 128)),)


def _gpt2(batch: int) -> Case:
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(attn_implementation="sdpa", use_cache=False))
    return _First(model), (torch.randint(0, 50000, (batch, 1024)),)


CASES: dict[str, Callable[[], Case]] = {
    "resnet50-b1": lambda: _resnet(1),
    "resnet50-b32": lambda: _resnet(32),
    "vit-b1": lambda: _vit(1),
    "vit-b32": lambda: _vit(32),
    "bert-b1": lambda: _bert(1),
    "bert-b32": lambda: _bert(32),
    "gpt2-b1": lambda: _gpt2(1),
}


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--peers", default="eager,compile")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", action="store_true", help="the time of each step of Accord's")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    results = {}
    print("| model | " + " | ".join(["accord", *options.peers.split(",")]) + " | best ÷ accord | error | start |")
    for name in options.models or CASES:
        try:
            results[name] = _measured(name, options)
        except Exception as error:  # noqa: BLE001  the others are measured all the same
            print(f"| {name} | {type(error).__name__}: {str(error)[:600]} |", flush=True)
            results[name] = {"error": f"{type(error).__name__}: {error}"}
    if options.output:
        options.output.write_text(json.dumps(results, indent=1))
    return 0


def _measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    module, inputs = CASES[name]()
    module = module.eval().cuda()
    inputs = tuple(x.cuda() for x in inputs)
    with torch.inference_mode():
        reference = module(*inputs).float().cpu().numpy()
        half = module.half()
        given = tuple(x.half() if x.is_floating_point() else x for x in inputs)
        runs: dict[str, Callable[[], Any]] = {}
        proto = _exported(half, given)
        began = time.perf_counter()
        model = accord.load(proto, device="cuda")
        names = [i.name for i in model.inputs]
        out = torch.empty(reference.shape, dtype=torch.float16, device="cuda")
        (output,) = (o.name for o in model.outputs)
        feed, into = dict(zip(names, given, strict=True)), {output: out}
        model.run_into(feed, into)
        start = time.perf_counter() - began
        runs["accord"] = lambda: model.run_into(feed, into)
        for _ in range(4):
            runs["accord"]()
        torch.cuda.synchronize()
        errors = {"accord": _error(out.float().cpu().numpy(), reference)}
        if options.steps:
            _print_steps(model, feed)
        for peer in filter(None, options.peers.split(",")):
            function = half if peer == "eager" else torch.compile(half, mode=_MODES[peer])
            for _ in range(4):
                result = function(*given)
            errors[peer] = _error(result.float().cpu().numpy(), reference)
            runs[peer] = lambda function=function: function(*given)
        times = _timed(runs, options.rounds)
    elsewhere = sorted({s.placement.op for s in model.plan.steps if s.placement.backend not in ("cuda", "plan")})
    best = min((t for n, t in times.items() if n != "accord"), default=float("nan"))
    row = " | ".join(f"{times[n] * 1e3:.3f}" for n in times)
    print(
        f"| {name} | {row} | {best / times['accord']:.2f} | {errors['accord']:.1e} "
        f"(peers {max((e for n, e in errors.items() if n != 'accord'), default=0):.1e}) | {start:.1f} s | {elsewhere}",
        flush=True,
    )
    return {"seconds": times, "errors": errors, "start": start, "elsewhere": elsewhere, "steps": len(model.plan.steps)}


def _exported(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> bytes:
    buffer = io.BytesIO()
    program = torch.onnx.export(module, given, dynamo=True, verbose=False)
    program.save(buffer)
    return buffer.getvalue()


def _error(found: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    if not np.isfinite(found).all():
        return float("nan")
    return float(np.linalg.norm(found.astype(np.float64) - reference) / np.linalg.norm(reference.astype(np.float64)))


def _print_steps(model: Any, feed: dict[str, Any]) -> None:
    """The time of each step, the longest first."""
    executor, values = model.executor_for({n: x.cpu().numpy() for n, x in feed.items()})
    found: dict[int, list[float]] = {}
    frame, arena = executor._borrow(executor._sizes(values, None)[0])
    arrays = dict(zip(executor.plan.inputs, values, strict=True))
    for _, i, root, dtype in executor._owned:
        arrays[root] = np.empty(frame.returned[i], dtype)
    frame.bind_caller(arrays, arena)
    for _ in range(12):
        for segment in frame.segments:
            if not isinstance(segment, int):
                program, steps = segment
                seconds = np.zeros(len(steps))
                program.run_timed(seconds)
                for index, t in zip(steps, seconds, strict=True):
                    found.setdefault(index, []).append(float(t))
    executor._give_back(frame, arena)
    rows = sorted(((statistics.median(t), i) for i, t in found.items()), reverse=True)
    print(f"{len(rows)} native steps, {sum(t for t, _ in rows) * 1e3:.3f} ms")
    for t, i in rows[:40]:
        step = executor.plan.steps[i]
        shapes = [list(frame.sizes.shapes.get(o, ())) for o in step.outputs if o >= 0]
        print(f"{t * 1e6:8.1f} us {getattr(step.kernel, 'name', '?')[:60]:60} {shapes}")


def _timed(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {n: [] for n in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run()
            torch.cuda.synchronize()
            for _ in range(5):
                began = time.perf_counter()
                run()
                torch.cuda.synchronize()
                times[name].append(time.perf_counter() - began)
    return {n: statistics.median(t) for n, t in times.items()}


if __name__ == "__main__":
    sys.exit(main())
