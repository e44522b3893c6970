#!/usr/bin/env python3
"""Several streams on a GPU: delayed producers on every edge between them, and what they gain.

    python scripts/gpu_streams.py [--milliseconds N] [--torch MODEL,...] [--output FILE] [MODEL ...]

For each model the plan gets as many streams as it can. Before the producer of each edge that crosses streams, one edge
at a time, a kernel spins for some milliseconds; outputs are compared bit for bit with those of one stream, for
runs that are started step by step and for replayed graphs. Then the same with that edge's event left out: outputs that
differ show that the comparison can fail (they need not: large copies to the device divide a run in parts, which order
more than the events do). Last come the times on one stream, with the streams that
the plan chooses by itself, and with all. ``--torch`` adds models of ``benchmarks/gpu_cases.py`` to the times.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import accord
from accord.backends.cuda import CudaBackend
from accord.backends.cuda import program as programs
from accord.backends.cuda.driver import Device, device
from accord.backends.cuda.memory import DeviceMemory
from accord.backends.cuda.parts import Copy
from accord.backends.memory import DeviceArray
from accord.backends.protocol import Concurrency
from accord.plan.plan import Plan
from accord.runtime.executor import Executor
from accord.runtime.outputs import ValueInfo

#: Everything is worth a stream.
ALL = Concurrency(streams=4, event=0.0, least=1.0, flops=1e30, bandwidth=1e30, link=1e30)
WAYS = {"one": None, "chosen": CudaBackend.concurrency, "all": ALL}

_SPIN = b"""
.version 7.8
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %limit, %start, %now;
    .reg .pred %more;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %limit;
    @%more bra again;
    ret;
}
\0"""


class _Builder:
    """A model of float16 values, node by node."""

    def __init__(self, **inputs: Sequence[int]) -> None:
        self._inputs = inputs
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node; the name of its output."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [name], name=f"{op}{len(self._nodes)}", **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """A random weight of this shape."""
        name = f"w{len(self._weights)}"
        scale = np.sqrt(2 / np.prod(shape[1:] if len(shape) > 2 else shape[:1]))
        values = (self._rng.standard_normal(shape) * scale).astype(np.float16)
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def model(self, *outputs: str) -> bytes:
        """The model."""
        half = onnx.TensorProto.FLOAT16
        graph = helper.make_graph(
            self._nodes,
            "streams",
            [helper.make_tensor_value_info(n, half, s) for n, s in self._inputs.items()],
            [helper.make_tensor_value_info(o, half, None) for o in outputs],
            self._weights,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
        return bytes(made.SerializeToString())


def _products(rows: int) -> bytes:
    """Chains of products of unequal work from one input, joined at the end; one is an output too."""
    b = _Builder(x=(rows, 1024))
    ends = []
    for length, width in ((6, 1024), (4, 768), (2, 512), (1, 2048)):
        value, size = "x", 1024
        for _ in range(length):
            value = b.add("Relu", b.add("MatMul", value, b.weight(size, width)))
            size = width
        ends.append(value)
    joined = b.add("Concat", *ends, axis=1)
    return b.model(b.add("Softmax", joined), ends[1])


def _two_inputs(rows: int) -> bytes:
    """A chain for each of two inputs that the host copies in; the first one's result is early."""
    b = _Builder(x=(rows, 1024), z=(rows, 1024))
    ends = []
    for name, length in (("x", 2), ("z", 5)):
        value = name
        for _ in range(length):
            value = b.add("Tanh", b.add("MatMul", value, b.weight(1024, 1024)))
        ends.append(value)
    return b.model(ends[0], b.add("Add", *ends))


def _inception(batch: int) -> bytes:
    """Four blocks of four branches of convolutions and a pool."""
    b = _Builder(x=(batch, 128, 28, 28))
    value, channels = "x", 128

    def conv(source: str, inner: int, outer: int, size: int) -> str:
        pads = [size // 2] * 4
        return b.add("Relu", b.add("Conv", source, b.weight(outer, inner, size, size), b.weight(outer), pads=pads))

    for _ in range(4):
        pool = b.add("MaxPool", value, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        branches = [
            conv(value, channels, 64, 1),
            conv(conv(value, channels, 96, 1), 96, 128, 3),
            conv(conv(value, channels, 32, 1), 32, 32, 5),
            conv(pool, channels, 32, 1),
        ]
        value, channels = b.add("Concat", *branches, axis=1), 256
    return b.model(b.add("GlobalAveragePool", value), value)


MODELS: dict[str, Callable[[], bytes]] = {
    "products-64": lambda: _products(64),
    "products-4096": lambda: _products(4096),
    "two-inputs-512": lambda: _two_inputs(512),
    "two-inputs-16384": lambda: _two_inputs(16384),
    "inception-b1": lambda: _inception(1),
    "inception-b32": lambda: _inception(32),
}


class Spinner:
    """Puts a spinning kernel in front of chosen phases.

    Attributes:
        phases: Numbers of phases of a program.
    """

    def __init__(self, gpu: Device, seconds: float) -> None:
        gpu.enter()
        self._gpu = gpu
        self._kernel = gpu.function(_SPIN, "spin", (1, 1, 1), 0)
        self._limit = ctypes.c_uint64(int(seconds * 1e9))
        self._address = ctypes.c_void_p(ctypes.addressof(self._limit))
        self.phases: set[int] = set()

    def spin(self, stream: int) -> None:
        """Spin on a stream."""
        self._gpu.launch(self._kernel, (1, 1, 1), ctypes.addressof(self._address), stream)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let programs that are made inside spin in front of :attr:`phases`."""
        original = programs.Entry

        def entry(number: int, item: Any, table: Any, turn: Any) -> Any:
            return original(number, _Late(item, self) if number in self.phases else item, table, turn)

        programs.Entry = entry  # type: ignore[misc, assignment]
        try:
            yield
        finally:
            programs.Entry = original  # type: ignore[misc]


def _Late(item: Any, spinner: Spinner) -> Any:  # noqa: N802  it stands for a class
    """``item``, which spins first."""
    names = ("start", "start_in_pieces") if isinstance(item, Copy) else ("start",)
    for name in names:
        start = getattr(item, name)

        def late(stream: int, start: Any = start, **how: Any) -> None:
            spinner.spin(stream)
            start(stream, **how)

        setattr(item, name, late)
    return item


def loaded(proto: bytes, way: str) -> accord.Model:
    """A model whose plan has streams in this way."""
    CudaBackend.concurrency = WAYS[way]
    model = onnx.load_from_string(proto)
    model.doc_string = way  # another file: plans may be remembered
    return accord.load(model, device="cuda")


def feeds(model: accord.Model, count: int) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Random inputs."""
    rng = np.random.default_rng(1)

    def values(info: ValueInfo) -> np.ndarray[Any, Any]:
        shape = [int(n) for n in info.shape or ()]
        return rng.integers(0, 1000, shape) if info.dtype == "int64" else rng.standard_normal(shape).astype(np.float16)

    return [{i.name: values(i) for i in model.inputs} for _ in range(count)]


def same(got: Sequence[Any], want: Sequence[Any]) -> bool:
    """Whether outputs are equal bit for bit."""
    return all(np.array_equal(a.view(np.uint16), b.view(np.uint16)) for a, b in zip(got, want, strict=True))


def delayed(proto: bytes, milliseconds: float) -> dict[str, Any]:
    """Every crossing edge with its producer delayed, with its event and without it."""
    single, model = loaded(proto, "one"), loaded(proto, "all")
    given = feeds(model, 5)
    expected = [list(single(**g)) for g in given]
    plan = model.plan
    executor = model.executor_for(given[0])[0]
    edges = [(i, w) for i, step in enumerate(plan.steps) for w in step.waits]
    spinner = Spinner(device(), milliseconds * 1e-3)
    wrong, unseen = [], []
    for i, w in edges:
        for broken in (False, True):
            steps = list(plan.steps)
            if broken:
                steps[i] = replace(steps[i], waits=tuple(k for k in steps[i].waits if k != w))
            changed = replace(plan, steps=tuple(steps))
            runs = Executor(changed, executor.backends, executor.device)
            spinner.phases = _phases(runs, changed, w, given[0])
            with spinner.installed():
                runs.trim()
                results = [same(runs.run(list(g.values())), e) for g, e in zip(given, expected, strict=True)]
            if not broken and not all(results):
                wrong.append((i, w))
            if broken and all(results):
                unseen.append((i, w))
    streams = len({s.stream for s in plan.steps})
    return {"streams": streams, "edges": len(edges), "wrong": wrong, "not seen when left out": unseen}


def _phases(executor: Executor, plan: Plan, step: int, given: Mapping[str, Any]) -> set[int]:
    """Numbers of the phases of a step in its program."""
    executor.prepare()
    frame, _ = executor.memory(executor.environment(list(given.values())))
    return {k for s in frame.segments if not isinstance(s, int) for k, i in enumerate(s[1]) if i == step}


def times(protos: Mapping[str, bytes], rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds of a run, by way: on the device alone, and from and to the host."""
    found: dict[str, dict[str, float]] = {}
    for name, proto in protos.items():
        models = {way: loaded(proto, way) for way in WAYS}
        runs = {way: _runners(m) for way, m in models.items()}
        row: dict[str, list[float]] = {}
        for _ in range(rounds):
            for way, (far, near) in runs.items():
                row.setdefault(f"{way}, device", []).append(_once(far, 20))
                row.setdefault(f"{way}, host", []).append(_once(near, 3))
        found[name] = {k: round(statistics.median(v), 1) for k, v in row.items()}
        for way, m in models.items():
            plan = m.plan
            found[name][f"{way}, streams"] = len({s.stream for s in plan.steps})
            found[name][f"{way}, events"] = sum(len(s.waits) for s in plan.steps)
            found[name][f"{way}, MB"] = round(m.memory({})["arena"] / 1e6, 2)
        print(f"{name}: {found[name]}", flush=True)
    return found


def _runners(model: accord.Model) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A run with everything on the device, and one with everything on the host."""
    (given,) = feeds(model, 1)
    memory = DeviceMemory()
    outputs = model(given)
    far = {n: DeviceArray.empty(memory, a.shape, a.dtype) for n, a in given.items()}
    for n, a in given.items():
        far[n].assign(a)
    into = {n: DeviceArray.empty(memory, a.shape, a.dtype) for n, a in outputs.items()}

    def on_device() -> None:
        model.run_into(far, into)

    def on_host() -> None:
        model(given)

    for _ in range(5):
        on_device()
        on_host()
    return on_device, on_host


def _once(run: Callable[[], Any], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - began) / repeats * 1e6


def _torch_models(names: Sequence[str]) -> dict[str, bytes]:
    if not names:
        return {}
    import torch
    from benchmarks.gpu_cases import CASES, exported

    found = {}
    for name in names:
        torch.manual_seed(0)
        make = CASES[name].make
        assert make is not None, f"{name} is no model of PyTorch"
        module, inputs = make()
        with torch.inference_mode():
            half = tuple(x.half() if x.is_floating_point() else x for x in inputs)
            found[name] = exported(module.eval().half(), half)
    return found


def main() -> int:
    """Run, print, write; 1 if an edge is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--milliseconds", type=float, default=2.0, help="how long a producer is delayed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--torch", default="", metavar="MODEL,...")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    protos = {name: MODELS[name]() for name in options.models or MODELS}
    results: dict[str, Any] = {"delayed": {}}
    for name, proto in protos.items():
        found = results["delayed"][name] = delayed(proto, options.milliseconds)
        print(f"{name}: {found}", flush=True)
    results["microseconds"] = times(protos | _torch_models([n for n in options.torch.split(",") if n]), options.rounds)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1))
    return int(any(found["wrong"] for found in results["delayed"].values()))


if __name__ == "__main__":
    sys.exit(main())
