"""What runs in a kernel's process: loads users' files, calls kernels and references, sends back what they returned.

Nothing is judged here; the parent looks at memory itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from accord.contract.contract import Contract
from accord.contract.registry import register, user_contract, user_contracts
from accord.errors import AccordError
from accord.kernels.bound import BoundKernel, CallKernel, KernelError, WriteKernel, bind_kernel
from accord.workbench.buffers import LANE, Mapped, Pieces, Section, arena, is_float, unit
from accord.workbench.builtin import builtin_contract, is_builtin
from accord.workbench.graphs import proto_of
from accord.workbench.wire import ClosedError, receive, send

__all__ = ["work"]

#: Relative changes of the inputs by which a reference is asked how sensitive it is.
_CHANGES = 6
#: Packages whose own exceptions are no business of a kernel's author.
_PLUMBING = ("accord", "numpy")
#: Bytes of private memory for calls with huge tensors.
_LITTLE = 1 << 30


def work(channel: socket.socket) -> None:
    """Serve until the channel is closed."""
    warnings.simplefilter("ignore")  # kernels under test meet infinities and overflows on purpose
    np.seterr(all="ignore")
    worker = _Worker()
    with contextlib.suppress(ClosedError):
        while True:
            message, files = receive(channel)
            try:
                reply, results = getattr(worker, message.pop("do"))(files=files, **message)
            except _KernelError as error:
                reply, results = _failure(error.raised), []
            except BaseException as error:  # noqa: BLE001 - told to the parent, whose defect it may be
                reply, results = {**_failure(error), "internal": not isinstance(error, AccordError)}, []
            for f in files:
                os.close(f)
            sys.stdout.flush()
            send(channel, reply, [r for r in results if r >= 0])
            for r in results:
                if r >= 0:
                    os.close(r)


def _failure(error: BaseException) -> dict[str, Any]:
    status = error.status if isinstance(error, KernelError) else 0
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if f"{os.sep}accord{os.sep}" not in f.filename), None)
    return {
        "error": type(error).__name__,
        "text": str(error),
        "status": status,
        "place": f"{last.filename}:{last.lineno}" if last is not None else "",
        "declared": isinstance(error, AccordError),
    }


class _Worker:
    """One method a message; each returns a reply and files to send with it."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, ...], BoundKernel] = {}
        self._models: dict[str, Any] = {}
        self._held: list[list[Any]] = []
        self._only: dict[tuple[str, str], Contract] = {}

    def load(self, *, paths: Sequence[str], files: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """Import users' files."""
        from accord.contract.serial import as_json
        from accord.contract.sources import load_file

        del files
        for path in paths:
            load_file(path)
        return {"contracts": [as_json(c) for c in user_contracts()]}, []

    def describe(self, *, domain: str, name: str, files: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """The newest contract of a user's operator."""
        from accord.contract.registry import contract_for
        from accord.contract.serial import as_json

        del files
        made = builtin_contract(domain, name) if is_builtin(domain) else contract_for(domain, name)
        return {"contract": as_json(made)}, []

    def compile(
        self, *, kernel: Sequence[Any], architectures: Sequence[str], files: Sequence[int]
    ) -> tuple[dict[str, Any], list[int]]:
        """What a compiler says of a kernel for GPUs; no architectures: the names of those that it is for."""
        from accord.kernels.architectures import ARCHITECTURES, compile_report

        del files
        *op, name = kernel
        contract = _contract(op)
        declared = contract.kernel(name)
        if not architectures:
            return {"for": (declared.execution or contract.execution).architectures or tuple(ARCHITECTURES)}, []
        made = compile_report(contract, declared, architectures)
        return {"compilations": [dataclasses.asdict(c) for c in made]}, []

    def digest(self, *, kernel: Sequence[Any], files: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """Hash of a kernel's code."""
        from accord.workbench.author import code_digest

        del files
        *op, name = kernel
        contract = _contract(op)
        return {"digest": code_digest(contract, contract.kernel(name))}, []

    def call(
        self,
        *,
        kernel: Sequence[Any],
        types: Mapping[str, str],
        spec: Mapping[str, Any],
        files: Sequence[int],
        shift: int = 0,
        traced: bool = False,
        hold: bool = False,
    ) -> tuple[dict[str, Any], list[int]]:
        """Call a kernel once."""
        bound = self._bound(kernel, types)
        mapped = Mapped(files[0], [Section.of(s) for s in spec["sections"]], 0, shift)
        trace = _Trace(bound) if traced else None
        try:
            with trace or contextlib.nullcontext():
                returned = _called(bound, spec, mapped)
            reply: dict[str, Any] = {} if trace is None else trace.told()
            if returned is None:
                return reply, []
            results, file = _packed(returned, mapped, self._held)
            if hold:
                self._held.append(returned)
            return {**reply, "results": results}, [file]
        finally:
            mapped.close()

    def held(self, *, scribble: bool, files: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """The results that were held, as they are now; ``scribble`` then overwrites them, as their owner may."""
        del files
        arrays = [a for group in self._held for a in group if isinstance(a, np.ndarray)]
        results, file = _packed(arrays, None, [])
        if scribble:
            for a in arrays:
                if a.flags.writeable:
                    a[...] = 77
            self._held.clear()
        return {"results": results}, [file]

    def far(
        self, *, kernel: Sequence[Any], types: Mapping[str, str], spec: Mapping[str, Any], files: Sequence[int]
    ) -> tuple[dict[str, Any], list[int]]:
        """Call a kernel with tensors of :mod:`accord.workbench.far`."""
        bound = self._bound(kernel, types)
        arrays, mapped = [], []
        for lane, t in enumerate(spec["tensors"]):
            mapped.append(Pieces(files[0], lane, t["pieces"]))
            arrays.append(mapped[-1].array(t["shape"], t["strides"], t["dtype"]))
        try:
            inputs = [None if i is None else arrays[i] for i in spec["inputs"]]
            workspace = np.empty(spec["workspace"], np.uint8) if spec["workspace"] else None
            try:
                if isinstance(bound, CallKernel):
                    with _little_memory():
                        returned = list(bound(inputs, spec["attributes"]))
                    results, file = _packed(returned, None, [])
                    return {"results": results}, [file]
                assert isinstance(bound, WriteKernel)
                bound(inputs, [arrays[i] for i in spec["outputs"]], spec["attributes"], workspace)
            except Exception as error:
                raise _KernelError(error) from error
        finally:
            for m in mapped:
                m.close()
        return {}, []

    def threads(
        self, *, kernel: Sequence[Any], types: Mapping[str, str], lanes: Sequence[Any], files: Sequence[int]
    ) -> tuple[dict[str, Any], list[int]]:
        """Several threads at once, each with calls of its own one after the other; lanes are lists of specs."""
        bound = self._bound(kernel, types)
        numbers = iter(range(len(files)))
        work = [[(spec, _mapped(files, next(numbers), spec)) for spec in lane] for lane in lanes]
        start = threading.Barrier(len(lanes))
        replies: list[Any] = [None] * len(lanes)

        def run(k: int) -> None:
            made = []
            calls = [_ready(bound, spec, mapped) for spec, mapped in work[k]]
            start.wait()
            for call, (_, mapped) in zip(calls, work[k], strict=True):
                try:
                    returned = call()
                    made.append(({}, -1) if returned is None else _packed(returned, mapped, []))
                except _KernelError as error:
                    made.append((_failure(error.raised), -1))
            replies[k] = made

        threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(lanes))]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        sys.setswitchinterval(before)
        for lane in work:
            for _, mapped in lane:
                mapped.close()
        flat = [r for lane in replies for r in lane]
        return {"replies": [r if isinstance(r, dict) else {"results": r} for r, _ in flat]}, [f for _, f in flat]

    def reference(
        self, *, op: Sequence[Any], spec: Mapping[str, Any], seed: int, files: Sequence[int]
    ) -> tuple[dict[str, Any], list[int]]:
        """The reference in its own dtypes, in float64, and in float64 with its inputs slightly changed."""
        contract = _contract(op)
        function = contract.semantic.reference
        if function is None:
            raise AccordError("the operator has no reference", op=contract.semantic.qualified_name)
        mapped = Mapped(files[0], _sections(spec))
        given = [None if i is None else mapped.array(i).copy() for i in spec["inputs"]]
        mapped.close()
        attributes = spec["attributes"]

        def computed(inputs: Sequence[Any]) -> list[Any]:
            try:
                made = function(*(None if x is None else x.copy() for x in inputs), **attributes)
            except Exception as error:
                raise _KernelError(error) from error
            return [np.asarray(r) for r in (made if isinstance(made, (tuple, list)) else (made,))]

        own = computed(given)
        runs = [own]
        with contextlib.suppress(Exception):  # a reference that refuses float64 is taken in its own dtypes
            wide = computed([_wide(x) for x in given])
            if [w.shape for w in wide] == [o.shape for o in own]:
                runs.append(wide)
                rng = np.random.default_rng(seed)
                for _ in range(_CHANGES):
                    runs.append(computed([_changed(x, rng) for x in given]))
        arrays = [a for run in runs for a in run]
        results, file = _packed(arrays, None, [])
        return {"results": results, "outputs": len(own)}, [file]

    def examples(
        self, *, op: Sequence[Any], sizes: Mapping[str, int], attributes: Mapping[str, Any], seed: int, files: Any
    ) -> tuple[dict[str, Any], list[int]]:
        """Inputs that the declaration makes itself."""
        del files
        make = _contract(op).semantic.examples
        try:
            made = {} if make is None else dict(make(np.random.default_rng(seed), dict(sizes), dict(attributes)))
        except Exception as error:
            raise _KernelError(error) from error
        results, file = _packed([np.asarray(a) for a in made.values()], None, [])
        return {"names": list(made), "results": results}, [file]

    def model(
        self, *, graph: Mapping[str, Any], only: Sequence[Any] | None, spec: Mapping[str, Any], files: Sequence[int]
    ) -> tuple[dict[str, Any], list[int]]:
        """Run a graph (see :mod:`accord.workbench.graphs`) on the inputs of an image."""
        import accord

        if only is not None and not is_builtin(only[0]):
            self._restrict(only)
        mapped = Mapped(files[0], _sections(spec))
        try:
            arrays = [None if i is None else mapped.array(i) for i in spec["inputs"]]
            given = dict(zip(graph["inputs"], (a for a in arrays if a is not None), strict=True))
            constants = {n: given.pop(n).copy() for n in graph.get("constants", ())}
            key = json.dumps(graph)
            if constants or key not in self._models:
                self._models[key] = accord.load(proto_of(graph, constants), strict=graph.get("strict", True))
            results, file = _packed(list(self._models[key](given)), mapped, [])
        finally:
            mapped.close()
        return {"results": results}, [file]

    def _restrict(self, kernel: Sequence[Any]) -> None:
        """Let an operator have one of its kernels only."""
        *op, name = kernel
        full = self._only.setdefault((op[0], op[1]), _contract(op))
        wanted = dataclasses.replace(full, kernels=() if name is None else (full.kernel(name),))
        now = _contract(op)
        if now != wanted:
            register(wanted, replacing=now)

    def _bound(self, kernel: Sequence[Any], types: Mapping[str, str]) -> BoundKernel:
        key = (*map(str, kernel), *(f"{k}={v}" for k, v in sorted(types.items())))
        if key not in self._kernels:
            *op, name = kernel
            contract = _contract(op)
            if name is None:
                self._kernels[key] = _Reference(contract, None, types)  # type: ignore[arg-type]
            else:
                self._kernels[key] = bind_kernel(contract, contract.kernel(name), types)
        return self._kernels[key]


class _Reference(CallKernel):
    """An operator without kernels is computed by its reference."""

    def __call__(self, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        reference = self.contract.semantic.reference
        assert reference is not None
        result = reference(*inputs, **attributes)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)


@contextlib.contextmanager
def _little_memory() -> Iterator[None]:
    """Private memory of a process as large as tensors that are not large; what copies a huge one fails."""
    least, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (min(_LITTLE, least), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (least, most))


def _contract(op: Sequence[Any]) -> Contract:
    if is_builtin(op[0]):
        return builtin_contract(op[0], op[1])
    found = user_contract(op[0], op[1], op[2])
    if found is None:
        raise AccordError("the operator is not registered", op="::".join(map(str, op[:2])))
    return found


def _sections(spec: Mapping[str, Any]) -> list[Section]:
    return [Section.of(s) for s in spec["sections"]]


def _mapped(files: Sequence[int], n: int, spec: Mapping[str, Any]) -> Mapped:
    """One of many images, at addresses of its own."""
    parts = 16
    return Mapped(files[n], _sections(spec), n // parts, n % parts * (LANE // parts))


class _KernelError(Exception):
    """Carries what a kernel or reference raised; anything else that is raised is the harness's own."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(str(raised))
        self.raised = raised


def _called(bound: BoundKernel, spec: Mapping[str, Any], mapped: Mapped) -> list[Any] | None:
    """What a kernel returns, or None for one that writes."""
    return _ready(bound, spec, mapped)()


def _ready(bound: BoundKernel, spec: Mapping[str, Any], mapped: Mapped) -> Callable[[], list[Any] | None]:
    """A call of a kernel, ready to be made."""
    inputs = [None if i is None else mapped.array(i) for i in spec["inputs"]]
    attributes = dict(spec["attributes"])
    outputs = [mapped.array(i) for i in spec["outputs"]]
    workspace = None if spec["workspace"] is None else mapped.array(spec["workspace"])
    write = bound.prepared(inputs, outputs, attributes, workspace) if isinstance(bound, WriteKernel) else None

    def call() -> list[Any] | None:
        try:
            if isinstance(bound, CallKernel):
                return list(bound(inputs, attributes))
            assert write is not None
            write()
        except BaseException as error:  # also exits and interrupts
            raise _KernelError(error) from error
        return None

    return call


def _packed(returned: Sequence[Any], mapped: Mapped | None, earlier: Sequence[Sequence[Any]]) -> tuple[list[Any], int]:
    """Descriptions of returned arrays, and a file with their elements."""
    described: list[dict[str, Any]] = []
    file = os.memfd_create("results")
    offset = 0
    kept = [a for group in earlier for a in group if isinstance(a, np.ndarray)]
    for a in returned:
        if not isinstance(a, (np.ndarray, np.generic)):
            described.append({"type": type(a).__name__})
            continue
        array = np.asarray(a)
        if array.dtype.hasobject:
            described.append({"type": f"array of {array.dtype}"})
            continue
        data = np.ascontiguousarray(array)
        os.pwrite(file, data.reshape(-1).view(np.uint8).data if data.size else b"", offset)
        low, high = _bounds(array)
        described.append(
            {
                "dtype": array.dtype.name,
                "shape": array.shape,
                "offset": offset,
                "range": [low - arena(), high - arena()],
                "shared": _shares_elements(array) or (array is a and not array.flags.writeable and array.size > 0),
                "earlier": any(low < b and a < high for a, b in map(_bounds, kept)),
                "with": [i for i, other in enumerate(returned) if other is not a and _overlap(array, other)],
            }
        )
        offset += data.nbytes
    return described, file


def _bounds(array: Any) -> tuple[int, int]:
    address = array.__array_interface__["data"][0]
    if array.size == 0:
        return address, address
    reach = [s * (n - 1) for s, n in zip(array.strides, array.shape, strict=True)]
    return address + sum(r for r in reach if r < 0), address + sum(r for r in reach if r > 0) + array.itemsize


def _shares_elements(a: Any) -> bool:
    """Whether elements of an array are the same memory: strides of 0, and windows that overlap."""
    low, high = _bounds(a)
    return bool(high - low < a.size * a.itemsize)


def _overlap(a: Any, b: Any) -> bool:
    if not isinstance(b, np.ndarray):
        return False
    (low, high), (start, end) = _bounds(a), _bounds(b)
    return bool(low < end and start < high)


def _wide(x: Any) -> Any:
    return x.astype(np.float64) if x is not None and is_float(x.dtype) else x


def _changed(x: Any, rng: np.random.Generator) -> Any:
    """In float64, each element changed by about as much as its type rounds."""
    if x is None or not is_float(x.dtype):
        return x
    return x.astype(np.float64) * (1 + unit(x.dtype.name) * rng.standard_normal(x.shape))


class _Trace:
    """Which packages' functions a call uses.

    Attributes:
        packages: Top-level names; for Accord's own the first two.
        own: The operator's reference is among what was called.
        raised: Something that the author's own code called raised an exception.
    """

    def __init__(self, bound: BoundKernel) -> None:
        self.packages: set[str] = set()
        self.own = self.raised = False
        reference = bound.contract.semantic.reference
        self._code = getattr(reference, "__code__", None)

    def __enter__(self) -> None:
        sys.setprofile(self._seen)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {"callers": sorted(self.packages), "reference": self.own, "raised": self.raised}

    def _seen(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self.own |= frame.f_code is self._code
            self._note(frame.f_globals.get("__name__", ""))
        elif event == "c_call":
            module = getattr(argument, "__module__", None) or type(getattr(argument, "__self__", None)).__module__
            self._note(module)
        elif event == "c_exception":
            self.raised |= str(frame.f_globals.get("__name__")).partition(".")[0] not in _PLUMBING

    def _note(self, module: Any) -> None:
        first, *rest = str(module).split(".")
        # the harness is Accord's too
        self.packages.add(first if first != "accord" else ".".join((first, *rest[:1])))
