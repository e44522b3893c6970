"""Other runtimes, as peers to measure against; each is imported only when asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from accord.errors import BackendError

__all__ = ["PEERS", "Runner", "one_line", "peer", "require_installed"]

_MAX_TEXT = 300
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
