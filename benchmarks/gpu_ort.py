"""ONNX Runtime in a process of its own, so that its libraries and PyTorch's do not meet.

``Peer`` starts it and talks to it; alone it reads commands, a line of JSON each, from its standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Peer"]


class Peer:
    """The process.

    Args:
        folder: Where ``onnxruntime`` is unpacked; None: where Python finds it.
        device: "cuda" or "cpu".
        log: File of what it says.

    Raises:
        OSError: ONNX Runtime cannot be imported, or has no CUDA.
    """

    def __init__(self, folder: Path | None, device: str, log: Path) -> None:
        paths = _libraries() if device == "cuda" else []
        paths += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
        environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(paths)}
        if folder is not None:
            found = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(found)
        self._process = subprocess.Popen(
            [sys.executable, __file__, device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            env=environment,
        )
        self.version = self._reply()["version"]

    def open(self, name: str, model: Path, feed: Path, output: Path, options: dict[str, str]) -> str:
        """Make a session and run it; its first output goes to a file.

        Args:
            name: Of the session, for the other calls.
            model: The ONNX file.
            feed: Its inputs, as NumPy's ``.npz``.
            output: NumPy's ``.npy``.
            options: Of the CUDA provider.

        Returns:
            Why it runs without a CUDA graph; "" if with one.
        """
        given = {"open": name, "model": str(model), "feed": str(feed), "output": str(output), "options": options}
        return str(self._asked(given)["without_graph"])

    def times(self, name: str, runs: int) -> list[float]:
        """Seconds of runs, each waited for."""
        return list(self._asked({"run": name, "runs": runs})["seconds"])

    def device_seconds(self, name: str, runs: int) -> dict[str, Any]:
        """See :func:`gpu_timing.device_seconds`."""
        return dict(self._asked({"trace": name, "runs": runs})["device"])

    def _asked(self, command: dict[str, Any]) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"ONNX Runtime's process ended with {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise OSError(reply["error"])
        return reply


def _libraries() -> list[str]:
    """Folders of the CUDA libraries that PyTorch brings."""
    import importlib.util

    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return [str(f) for place in places or () for f in sorted(Path(place).glob("*/lib"))]


# the process


class _Session:
    """A model with inputs and outputs in the device's memory."""

    def __init__(self, command: dict[str, Any], device: str) -> None:
        import onnxruntime

        self._runtime = onnxruntime
        self._device = device
        self.without_graph = "on the CPU" if device == "cpu" else ""
        try:
            self._make(command, graph=device == "cuda")
        except Exception as error:
            if device == "cpu":
                raise
            self.without_graph = f"{type(error).__name__}: {str(error)[:300]}"
            self._make(command, graph=False)

    def _make(self, command: dict[str, Any], *, graph: bool) -> None:
        options = self._runtime.SessionOptions()
        options.log_severity_level = 3
        given = dict(command["options"]) | ({"enable_cuda_graph": "1"} if graph else {})
        providers: list[Any] = ["CPUExecutionProvider"]
        if self._device == "cuda":
            providers.insert(0, ("CUDAExecutionProvider", given))
        self._session = self._runtime.InferenceSession(command["model"], options, providers=providers)
        if self._device == "cuda" and self._session.get_providers()[0] != "CUDAExecutionProvider":
            raise OSError(f"ONNX Runtime did not load its CUDA provider: {self._session.get_providers()}")
        self._binding = self._session.io_binding()
        self._kept = []
        with np.load(command["feed"]) as feed:
            for name in feed.files:
                value = self._runtime.OrtValue.ortvalue_from_numpy(feed[name], self._device, 0)
                self._kept.append(value)
                self._binding.bind_ortvalue_input(name, value)
        # a graph writes where the first run did, so outputs have places of their own
        outputs = self._session.get_outputs()
        for o in outputs:
            self._binding.bind_output(o.name, self._device)
        plain = self._runtime.RunOptions()
        if graph:
            plain.add_run_config_entry("gpu_graph_id", "-1")  # do not capture this one
        self._session.run_with_iobinding(self._binding, plain)
        for o, value in zip(outputs, self._binding.get_outputs(), strict=True):
            array = value.numpy()
            made = self._runtime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, self._device, 0)
            self._kept.append(made)
            self._binding.bind_ortvalue_output(o.name, made)
        for _ in range(4):
            self.run()
        np.save(command["output"], self._kept[-len(outputs)].numpy())

    def run(self) -> None:
        """One run, waited for."""
        self._session.run_with_iobinding(self._binding)


def _answer(command: dict[str, Any], sessions: dict[str, _Session], device: str) -> dict[str, Any]:
    if "open" in command:
        sessions[command["open"]] = made = _Session(command, device)
        return {"without_graph": made.without_graph}
    if "trace" in command:
        from gpu_timing import device_seconds

        return {"device": device_seconds(sessions[command["trace"]].run, command["runs"])}
    session, seconds = sessions[command["run"]], []
    for _ in range(command["runs"]):
        began = time.perf_counter()
        session.run()
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds}


def _serve(device: str) -> None:
    try:
        import onnxruntime

        if device == "cuda" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise ImportError(f"onnxruntime {onnxruntime.__version__} was built without CUDA")
        hello = {"version": onnxruntime.__version__}
    except ImportError as error:
        hello = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(hello), flush=True)
    sessions: dict[str, _Session] = {}
    for line in sys.stdin:
        try:
            reply = _answer(json.loads(line), sessions, device)
        except Exception as error:  # noqa: BLE001  the asker says what went wrong
            reply = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
