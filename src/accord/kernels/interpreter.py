"""Triton's interpreter on arrays of NumPy: kernels run on the CPU, without PyTorch.

The interpreter reads and writes memory at the addresses that it is given, so guarded memory finds what a kernel reads
or writes outside its buffers. It asks arguments for a few methods of a tensor; :class:`_Pointer` has them.

Triton decides when a kernel is defined whether it is compiled or interpreted. A process that compiles has kernels
interpreted by a helper process, which is started once; memory is sent to it and back.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.util
import io
import os
import pickle
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accord.errors import ContractError
from accord.kernels.bound import KernelError
from accord.kernels.device import bytes_at, spans
from accord.kernels.launch import Memory

__all__ = ["ARCHITECTURE", "interpret", "interpret_elsewhere"]

#: What ``meta`` is told about where the kernel runs.
ARCHITECTURE = 80
#: Seconds that a helper process has for one kernel.
LIMIT = 600.0


class _Pointer:
    """What the interpreter asks of a tensor: where it is and what it holds. Nothing is copied to "its CPU" and back."""

    def __init__(self, memory: Memory) -> None:
        self.dtype = memory.dtype
        self._address = memory.address

    def data_ptr(self) -> int:
        return self._address

    def untyped_storage(self) -> _Pointer:
        return self

    def cpu(self) -> _Pointer:
        return self

    def new_empty(self, *_: Any, **__: Any) -> _Pointer:
        return self

    def set_(self, *_: Any) -> None:
        pass

    def copy_(self, *_: Any) -> None:
        pass

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return ()

    def stride(self) -> tuple[int, ...]:
        return ()


def interpret(function: Any, arguments: Mapping[str, Any], grid: tuple[int, int, int], op: str) -> None:
    """Run a kernel of this process.

    Args:
        function: What ``triton.jit`` made in a process with ``TRITON_INTERPRET=1``.
        arguments: By name.
        grid: Programs.
        op: Name of the operator, for errors.

    Raises:
        KernelError: the kernel fails.
    """
    _repair()
    values = [arguments[n] for n in function.arg_names]
    try:
        with np.errstate(all="ignore"):
            function[grid](*map(_given, values))
    except Exception as error:  # whatever the author's code or the interpreter throws
        raise KernelError(
            f"the Triton kernel '{function.fn.__name__}' fails in the interpreter: {_reason(error)}",
            op=op,
            found=_place(function, error),
        ) from error


def _given(value: Any) -> Any:
    """A value as the interpreter takes it; a parameter may be a tuple."""
    if isinstance(value, tuple):
        return tuple(map(_given, value))
    return _Pointer(value) if isinstance(value, Memory) else value


@functools.cache
def _repair() -> None:
    """Let the interpreter multiply bfloat16: it keeps such elements as the integers that stand for them."""
    language = importlib.import_module("triton.language")
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    original = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = [self.cast_impl(h, language.float32) if h.dtype.scalar == language.bfloat16 else h for h in (a, b)]
        return original(self, *wide, *rest)

    builder.create_dot = create_dot


def _reason(error: BaseException) -> str:
    inner = error.__cause__
    return f"{type(inner).__name__}: {inner}" if inner is not None else f"{type(error).__name__}: {error}"


def _place(function: Any, error: BaseException) -> str | None:
    """File and line of the author's text that was running."""
    file = function.fn.__code__.co_filename
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    frames = [f for e in chain for f in traceback.extract_tb(e.__traceback__) if f.filename == file]
    return f"{file}:{frames[-1].lineno}" if frames else None


# in a process of its own


def interpret_elsewhere(
    calls: Sequence[tuple[Any, Mapping[str, Any], tuple[int, int, int]]],
    arrays: Sequence[np.ndarray[Any, Any] | None],
    op: str,
) -> None:
    """Run kernels of a process that compiles, in one that interprets.

    Args:
        calls: Kernel, arguments by name, grid.
        arrays: All memory that the arguments point into.
        op: Name of the operator, for errors.

    Raises:
        KernelError: a kernel fails, or the process that runs it ends.
    """
    ranges = spans(arrays)
    request = {
        "path": sys.path,
        "calls": [
            (_where(f), {n: _packed(v, ranges) for n, v in arguments.items()}, grid) for f, arguments, grid in calls
        ],
        "memory": [(low, bytes_at(low, high).tobytes()) for low, high in ranges],
        "op": op,
    }
    kind, result = _helper.ask(request)
    if kind == "error":
        raise pickle.loads(result)
    for (low, high), data in zip(ranges, result, strict=True):
        before, after = bytes_at(low, high), np.frombuffer(data, np.uint8)
        changed = np.flatnonzero(before != after)  # memory that it only read may be read-only here
        before[changed] = after[changed]


def _where(function: Any) -> tuple[str, str, str]:
    """Module, file and name of a function that was decorated."""
    f = function.fn
    if "<locals>" in f.__qualname__:
        raise ContractError(
            f"the Triton kernel '{f.__name__}' is defined inside a function, where no other process finds it",
            remedy="Define it at the top of its file.",
        )
    return f.__module__, f.__code__.co_filename, f.__qualname__


def _packed(value: Any, ranges: Sequence[tuple[int, int]]) -> tuple[str, Any]:
    if isinstance(value, Memory):
        for k, (low, high) in enumerate(ranges):
            if low <= value.address < high:
                return "memory", (k, value.address - low, value)
        return "memory", (-1, 0, value)  # it is empty
    if hasattr(value, "fn"):
        return "function", _where(value)
    if type(value).__module__.startswith("triton"):
        return "dtype", str(value)
    return "value", value


def _unpacked(item: tuple[str, Any], places: Sequence[int]) -> Any:
    kind, value = item
    if kind == "memory":
        k, offset, m = value
        return Memory(places[k] + offset if k >= 0 else 0, m.shape, m.strides, m.dtype)
    if kind == "function":
        return _found(*value)
    if kind == "dtype":
        return importlib.import_module("triton.language").dtype(value)
    return value


def _found(module: str, file: str, name: str) -> Any:
    """The function, interpreted: its module is imported by name if that leads to the file, else from the file."""
    loaded = sys.modules.get(module) if module != "__main__" else None
    if loaded is None and module != "__main__":
        with contextlib.suppress(ImportError):
            loaded = importlib.import_module(module)
    if loaded is None or Path(getattr(loaded, "__file__", None) or "").resolve() != Path(file).resolve():
        alias = f"_accord_interpreted_{abs(hash(file))}"
        if alias not in sys.modules:
            spec = importlib.util.spec_from_file_location(alias, file)
            if spec is None or spec.loader is None:
                raise ContractError(f"{file} cannot be imported")
            sys.path.append(str(Path(file).parent))  # where its neighbours are
            sys.modules[alias] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[alias])
        loaded = sys.modules[alias]
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part)
    return found


class _Helper:
    """The process that interprets; requests and answers are pickles, each after its length."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Any) -> tuple[str, Any]:
        with self._lock:
            process = self._started()
            timer = threading.Timer(LIMIT, process.kill)
            timer.start()
            try:
                assert process.stdin is not None and process.stdout is not None
                _write(process.stdin, request)
                answer = _read(process.stdout)
            except (OSError, EOFError) as error:
                code = process.wait()
                self._process = None
                raise KernelError(
                    f"the process that interprets the kernel ended with code {code}",
                    op=request["op"],
                    remedy="A read or write outside of every buffer does that; a hang is ended after ten minutes.",
                ) from error
            finally:
                timer.cancel()
            return answer  # type: ignore[no-any-return]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "accord.kernels.interpreter"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
            atexit.register(self._process.kill)
        return self._process


_helper = _Helper()


def _write(stream: Any, content: Any) -> None:
    data = pickle.dumps(content)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _read(stream: Any) -> Any:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", head)[0]))


def _answer(request: Any) -> tuple[str, Any]:
    sys.path[:] = request["path"]
    buffers, places = [], []
    for low, data in request["memory"]:
        buffer = np.empty(len(data) + 512, np.uint8)
        start = (low - buffer.ctypes.data) % 256  # as aligned as the original
        buffer[start : start + len(data)] = np.frombuffer(data, np.uint8)
        buffers.append(buffer[start : start + len(data)])
        places.append(buffer.ctypes.data + start)
    try:
        for where, arguments, grid in request["calls"]:
            given = {n: _unpacked(v, places) for n, v in arguments.items()}
            interpret(_found(*where), given, grid, request["op"])
    except Exception as error:  # noqa: BLE001 — it is handed to whoever asked
        kept = error if isinstance(error, KernelError) else KernelError(_reason(error), op=request["op"])
        return "error", pickle.dumps(kept)
    return "memory", [b.tobytes() for b in buffers]


def _serve() -> None:
    """Answer requests until there are no more; what kernels print goes to stderr."""
    out = io.open(os.dup(1), "wb")  # noqa: UP020, SIM115
    os.dup2(2, 1)
    while True:
        try:
            request = _read(sys.stdin.buffer)
        except EOFError:
            return
        _write(out, _answer(request))


if __name__ == "__main__":
    _serve()
