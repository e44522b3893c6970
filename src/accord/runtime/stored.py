"""Stored plans: a model that was compiled before loads without being compiled, or even parsed.

An entry holds the plan (kernels as references to machine code by content) and the weights as kernels want them, which
are mapped into memory, so sessions and processes share them. Its name is the hash of the model's content, of the
options, of Accord's own code and of the machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pickle
import stat
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from accord.backends.discovery import own_backend
from accord.backends.protocol import FixedLaunch, Kernel, NativeKernel, Phase
from accord.ir.dims import Dim
from accord.plan.plan import Plan
from accord.record import record
from accord.runtime.interface import Interface
from accord.runtime.options import Options
from accord.storage import PAYLOAD, Storage, code_digest, digest_of, digest_of_file

__all__ = ["StoredModel", "model_key", "read_plan", "write_plan"]

#: Arrays of at least this many bytes are kept beside the plan.
_ASIDE = 256
#: Where they begin in the file; devices want more than processors, and copy all of them at once.
_ALIGNMENT = 256
#: What a plan is made of, beside byte code that computes sizes; nothing else is made when an entry is read.
_MODULES = ("accord.", "numpy", "ml_dtypes")
_BUILTINS = frozenset({"frozenset", "set", "complex", "slice", "range"})
_CLASSES = frozenset(
    {
        ("functools", "partial"),
        ("_functools", "partial"),
        ("collections", "OrderedDict"),
        ("fractions", "Fraction"),
    }
)


@record
class StoredModel:
    """What an entry holds.

    Attributes:
        plan: What runs.
        interface: What the file says of itself.
        outputs: Names of the outputs.
        device: Name of the backend that makes output arrays.
        backends: Names of all backends that the plan needs.
        external: Path, size and time of change of each file with external data.
        decisions: What the plan takes to be so of sizes: expressions and their values.
        operators: Domain and name of each operator of the model.
    """

    plan: Plan
    interface: Interface
    outputs: tuple[str, ...]
    device: str
    backends: tuple[str, ...]
    external: tuple[tuple[str, int, int], ...] = ()
    decisions: tuple[tuple[Dim, int], ...] = ()
    operators: frozenset[tuple[str, str]] = frozenset()

    def is_current(self) -> bool:
        """Whether the files with external data are what they were, and no operator is the user's."""
        if not self.operators.isdisjoint(_users()):
            return False
        return all(_state(path) == (size, changed) for path, size, changed in self.external)


def _users() -> frozenset[tuple[str, str]]:
    """Operators that the user has declared in this process."""
    registry = sys.modules.get("accord.contract.registry")
    found: frozenset[tuple[str, str]] = frozenset() if registry is None else registry.user_operators()
    return found


def _state(path: str) -> tuple[int, int] | None:
    try:
        info = Path(path).stat()
    except OSError:
        return None
    return info.st_size, info.st_mtime_ns


def model_key(source: Any, options: Options) -> str | None:
    """The name of the entry of a model, a path or bytes.

    None for other sources, for devices whose plans are not kept, and if the user redefines ONNX's operators.
    """
    device = _device_of(options)
    if device is None or any(domain in ("", "ai.onnx") for domain, _ in _users()):
        return None
    digest = hashlib.sha256()
    if isinstance(source, (bytes, bytearray, memoryview)):
        digest.update(digest_of(memoryview(source).cast("B")))
        place = ""
    elif isinstance(source, (str, os.PathLike)):
        found = _digest_of_file(source)
        if found is None:
            return None  # loading says what is wrong
        digest.update(found)
        # files with external data are looked for beside the model
        place = str(Path(source).absolute().parent)
    else:
        return None
    from accord.backends.cpu.machine import machine

    folder = place if options.base_dir is None else str(Path(options.base_dir).absolute())
    settings = (folder, *(str(getattr(options, name)) for name in _OPTIONS), code_digest(), machine().key, device)
    digest.update("\0".join(settings).encode())
    return digest.hexdigest()


def _device_of(options: Options) -> str | None:
    """What a plan depends on of the device; None if plans for it are not kept."""
    if options.device == "cpu":
        return ""  # the processor is part of every key
    own = own_backend(options.device)
    return None if own is None or options.reference else own.identity


def _digest_of_file(path: str | os.PathLike[str]) -> bytes | None:
    try:
        # without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return digest_of_file(file.fileno())
    except (OSError, ValueError):
        return None


_OPTIONS = ("device", "level", "disabled_rules", "strict", "threads", "stop_after", "reference", "limits", "precision")


def write_plan(key: str, stored: StoredModel) -> bool:
    """Keep ``stored`` as entry ``key``; False if it cannot be kept (the user's operators, no folder)."""
    if _has_python_kernels(stored.plan) or not stored.operators.isdisjoint(_users()):
        return False
    text = io.BytesIO()
    pickler = _Pickler(text)
    try:
        pickler.dump(stored)
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    body = text.getvalue()
    table = pickle.dumps([(a.dtype, a.shape) for a in pickler.arrays])
    head = len(body).to_bytes(8, "little") + len(table).to_bytes(8, "little")
    parts: list[bytes | memoryview] = [head, body, table]
    at = sum(len(p) for p in parts)
    for array in pickler.arrays:
        parts.append(bytes(_padding(at)))
        data = array.reshape(-1).view(np.uint8).data
        parts.append(data)
        at += len(parts[-2]) + len(data)
    return Storage("plans").write(key, parts)


def read_plan(key: str) -> StoredModel | None:
    """The entry ``key``; None if there is none that can be used."""
    payload = Storage("plans").read(key)
    if payload is None:
        return None
    try:
        body, table = (int.from_bytes(payload[i : i + 8], "little") for i in (0, 8))
        shapes = _Unpickler(io.BytesIO(payload[16 + body : 16 + body + table]), []).load()
        arrays, at = [], 16 + body + table
        memory = np.frombuffer(payload, np.uint8)
        for dtype, shape in shapes:
            at += _padding(at)
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            arrays.append(memory[at : at + size].view(dtype).reshape(shape))
            at += size
        stored = _Unpickler(io.BytesIO(payload[16 : 16 + body]), arrays).load()
    except (pickle.UnpicklingError, ValueError, TypeError, AttributeError, ImportError, EOFError, IndexError, KeyError):
        return None
    return stored if isinstance(stored, StoredModel) and stored.is_current() else None


def _padding(at: int) -> int:
    """Bytes between place ``at`` of a payload and the next array."""
    return -(PAYLOAD + at) % _ALIGNMENT


def _has_python_kernels(plan: Plan) -> bool:
    def portable(kernel: Kernel | None) -> bool:
        return kernel is None or not hasattr(kernel, "run") or getattr(kernel, "portable", False)

    return any(not portable(s.kernel) or any(_has_python_kernels(b.plan) for b in s.bodies) for s in plan.steps)


class _Pickler(pickle.Pickler):
    """Puts large arrays aside."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.arrays: list[np.ndarray[Any, Any]] = []
        self._known: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, np.ndarray) or obj.nbytes < _ASIDE or obj.dtype.hasobject:
            return None
        if id(obj) not in self._known:
            self._known[id(obj)] = len(self.arrays)
            self.arrays.append(np.ascontiguousarray(obj))
        return self._known[id(obj)]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.MethodType):  # as pickle has it, any attribute of any object could be had
            return _bound, (obj.__self__, obj.__name__)
        if isinstance(obj, Phase) and hasattr(
            obj.code, "as_stored"
        ):  # launches may need all of it, machine code does not
            return Phase, (obj.code.as_stored(), obj.operands, obj.dims, obj.launch)
        if isinstance(obj, FixedLaunch):
            params = tuple(p.as_stored() if hasattr(p, "as_stored") else p for p in obj.launch.params)
            return FixedLaunch, (dataclasses.replace(obj.launch, params=params),)
        if isinstance(obj, NativeKernel) and obj.constants:  # the plan has them as constants of its own
            return _without_constants, (_fields(obj),)
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type) and hasattr(obj, "__slots__"):
            # made by its class, in a third of the time that the standard library's way of setting slots takes
            return type(obj), tuple(getattr(obj, f.name) for f in dataclasses.fields(obj))
        return NotImplemented


def _fields(kernel: NativeKernel) -> dict[str, Any]:
    fields = {name: getattr(kernel, name) for name in NativeKernel.__dataclass_fields__}
    return {**fields, "constants": {}}


def _without_constants(fields: Mapping[str, Any]) -> NativeKernel:
    return NativeKernel(**fields)


def _bound(owner: Any, name: str) -> Callable[..., Any]:
    method = getattr(type(owner), name)
    if not type(owner).__module__.startswith("accord.") or not isinstance(method, types.FunctionType):
        raise pickle.UnpicklingError(f"{type(owner).__name__}.{name} is no part of a plan")
    return types.MethodType(method, owner)


class _Unpickler(pickle.Unpickler):
    """Makes nothing but parts of plans."""

    def __init__(self, file: io.BytesIO, arrays: list[np.ndarray[Any, Any]]) -> None:
        super().__init__(file)
        self._arrays = arrays

    def persistent_load(self, pid: Any) -> Any:
        return self._arrays[pid]

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(_MODULES) or (module == "builtins" and name in _BUILTINS):
            return super().find_class(module, name)
        if (module, name) in _CLASSES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a plan")
