"""Other runtimes, as peers to measure against; each is imported only when asked for."""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from accord.errors import BackendError

__all__ = ["PEERS", "Runner", "one_line", "peer", "require_installed", "take_turns"]

_MAX_TEXT = 300
#: Threads that wait for work spin for some milliseconds after a run; nobody is timed while another's do.
_PAUSE = 0.03
#: A turn is as many runs as fit into this, at least :data:`_LEAST_RUNS`.
_TURN = 0.1
_LEAST_RUNS = 3
#: Runs a model once: inputs by name to outputs in order.
Runner: TypeAlias = Callable[[Mapping[str, Any]], Sequence[Any]]


def _onnxruntime(path: Path, threads: int) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, dict(feed))


def _openvino(path: Path, threads: int) -> Runner:
    import openvino

    # Equal conditions: one stream, and no silent change to a narrower type.
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(str(path)), "CPU", settings)
    request = compiled.create_infer_request()

    def run(feed: Mapping[str, Any]) -> list[Any]:
        results = request.infer(dict(feed), share_inputs=True)
        return [results[port] for port in compiled.outputs]

    return run


#: By name: what makes a runner from a model file and a number of threads.
PEERS: dict[str, Callable[[Path, int], Runner]] = {"onnxruntime": _onnxruntime, "openvino": _openvino}


def require_installed(name: str) -> None:
    """Raise unless peer ``name`` can be imported.

    Raises:
        BackendError: it is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise BackendError(f"peer '{name}' is not installed", remedy="Install accord[bench], or leave the peer out.")


def peer(name: str, path: Path, threads: int) -> Runner:
    """A runner of peer ``name`` for the model at ``path``.

    Raises:
        BackendError: the peer cannot run the model.
    """
    try:
        return PEERS[name](path, threads)
    except Exception as error:
        raise BackendError(f"{name} cannot run '{path.name}': {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """The text of an error on one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."


def take_turns(runners: Mapping[str, Runner], feed: Mapping[str, Any], runs: int) -> Iterator[dict[str, list[float]]]:
    """Time ``runs`` runs of each runner in turns, so that what else the machine does meets all of them.

    A turn begins with a pause and a run that is not timed: the first one finds the caches full of another's data.
    Each round begins with another runner. Yields the seconds of each run so far, once a round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    turns: dict[str, int] = {}
    for name, runner in runners.items():
        runner(feed)
        began = time.perf_counter()
        runner(feed)
        turns[name] = min(max(_LEAST_RUNS, int(_TURN / (time.perf_counter() - began))), runs)
    order = list(runners.items())
    collecting = gc.isenabled()
    gc.disable()
    try:
        while any(len(times) < runs for times in seconds.values()):
            for name, runner in order:
                times = seconds[name]
                time.sleep(_PAUSE)
                runner(feed)
                for _ in range(min(turns[name], runs - len(times))):
                    began_ns = time.perf_counter_ns()
                    runner(feed)
                    times.append((time.perf_counter_ns() - began_ns) / 1e9)
            order.append(order.pop(0))
            yield seconds
    finally:
        if collecting:
            gc.enable()
