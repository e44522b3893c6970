"""A kernel in a process of its own: whatever it does there is an outcome here, never an accident.

The parent makes the memory, looks at it after the call, keeps the time, and reads how the process ended.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from accord.contract.contract import Contract, KernelDeclaration
from accord.contract.dtypes import ONNX_TYPES
from accord.contract.registry import BUILT_IN
from accord.contract.sizes import evaluate_size
from accord.errors import AccordError, ContractError
from accord.kernels.signature import REFUSED
from accord.workbench.buffers import LANE, PAGE, Image, Layout, Section, distances, dtype_named, place
from accord.workbench.cases import Case, attributes_of, dtype_of, environment, output_shapes
from accord.workbench.nursery import BROKEN, Nursery
from accord.workbench.traps import fault_in
from accord.workbench.wire import ClosedError, receive, send

__all__ = ["CONTIGUOUS", "LEFT", "REFUSALS", "Child", "Outcome", "Subject", "Trouble", "UnusableError", "results_of"]

Array: TypeAlias = "np.ndarray[Any, Any]"

CONTIGUOUS = Layout()
#: Seconds that a call may take, and those for each element of the largest input beside.
LIMIT, _EACH = 4.0, 1e-4
#: How many times as long an interpreted kernel may take.
_INTERPRETED = 10
#: Alignment of scratch memory, as the runtime gives it.
_LINE = 64
#: How a kernel may answer a call that its contract does not accept: any status but 0 keeps harm away.
REFUSALS = ("refused", "failed")
#: Errors of a runtime that does not give a node to the kernel.
LEFT = ("FallbackError", "UnsupportedError", "BackendError")
GRAPHS = ("expression", "composition", "generated")
WRITERS = ("library", "tvm_ffi", "triton")


class UnusableError(Exception):
    """Nothing is promised for this case."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that a call did beside computing.

    Attributes:
        kind: "input" (changed), "outside" (wrote beside a tensor), "workspace" (wrote beside it), "alias", "output"
            (wrong type, dtype or shape), "overlap" (elements of an output share memory), "printed", "library".
        tensor: Concerned.
        text: For people.
    """

    kind: str
    tensor: str
    text: str


@dataclass(slots=True)
class Outcome:
    """What came of a call.

    Attributes:
        status: "ok", "refused" (a status or exception that says that the call is not accepted), "failed" (any other),
            "crashed", "hung".
        text: What the kernel or the system said.
        outputs: Row-major copies; None for one that cannot be read.
        troubles: See :class:`Trouble`.
        reply: From the process.
    """

    status: str
    text: str = ""
    outputs: list[Array | None] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """It ran to its end."""
        return self.status == "ok"


class Child:
    """A process that serves messages; made again after it died.

    Args:
        nursery: Where it comes from.
        files: Users' files that it imports first.
    """

    def __init__(self, nursery: Nursery, files: Sequence[str]) -> None:
        self._nursery = nursery
        self._files = list(files)
        self._born: Any = None
        self.contracts: list[dict[str, Any]] = []
        self.base = 0

    def ask(self, message: Mapping[str, Any], files: Sequence[int] = (), limit: float = 30.0) -> Any:
        """The reply and its files, or an :class:`Outcome` where there is none."""
        if self._born is None:
            failed = self._start()
            if failed is not None:
                return failed
        return self._exchange(message, files, limit)

    def _start(self) -> Outcome | None:
        self._born = self._nursery.born()
        found = self._exchange({"do": "load", "paths": self._files}, (), 60.0)
        if isinstance(found, Outcome):
            found.text = f"while the file was imported: {found.text}"
            return found
        reply = found[0]
        if "error" in reply:
            self.close()
            return Outcome("failed", reply["text"], reply=reply)
        self.contracts = reply["contracts"]
        return None

    def _exchange(self, message: Mapping[str, Any], files: Sequence[int], limit: float) -> Any:
        born = self._born
        born.channel.settimeout(limit)
        try:
            send(born.channel, message, files)
            reply = receive(born.channel)
            if reply[0].get("internal"):
                raise AccordError(f"the kernel's process failed: {_said(reply[0])}")
            return reply
        except TimeoutError:
            os.kill(born.pid, signal.SIGKILL)
            self.close()
            return Outcome("hung", f"it did not end within {limit:g} s")
        except ClosedError:
            return self._autopsy()

    def _autopsy(self) -> Outcome:
        born = self._born
        status = self._nursery.buried(born.pid)
        page = os.pread(born.page, PAGE, 0)
        errors = os.pread(born.errors, 1 << 16, 0).decode(errors="replace").strip().splitlines()
        self._forget()
        if status == BROKEN:
            raise AccordError(f"the process that calls kernels failed: {'; '.join(errors[-3:])}")
        fault, base = fault_in(page)
        self.base = base
        reply: dict[str, Any] = {}
        if fault is not None and status < 0:
            reply = {"address": fault.address - base, "access": fault.access, "kernel": fault.by_kernel}
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        return Outcome("crashed", f"the process ended with {how}" + (f": {errors[-1]}" if errors else ""), reply=reply)

    def printed(self) -> str:
        """What the process wrote to its standard output since this was last asked."""
        if self._born is None:
            return ""
        size = os.fstat(self._born.output).st_size
        text = os.pread(self._born.output, min(size, 1 << 12), 0).decode(errors="replace") if size else ""
        if size:
            os.ftruncate(self._born.output, 0)
            os.lseek(self._born.output, 0, os.SEEK_SET)
        return text.strip()

    def resident(self) -> int:
        """Bytes of memory that the process has."""
        if self._born is None:
            return 0
        with open(f"/proc/{self._born.pid}/statm") as f:  # noqa: PTH123
            return int(f.read().split()[1]) * PAGE

    def seconds(self) -> float:
        """Processor time that the process has used, by the system's account."""
        if self._born is None:
            return 0.0
        with open(f"/proc/{self._born.pid}/stat") as f:  # noqa: PTH123
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def libraries(self) -> set[str]:
        """Files of code that the process has mapped."""
        if self._born is None:
            return set()
        with open(f"/proc/{self._born.pid}/maps") as f:  # noqa: PTH123
            return {p[5].strip() for line in f if len(p := line.split(maxsplit=5)) == 6 and "/" in p[5]}

    def close(self) -> None:
        """End the process."""
        if self._born is not None:
            pid = self._born.pid
            self._forget()
            self._nursery.buried(pid)

    def _forget(self) -> None:
        born, self._born = self._born, None
        born.channel.close()
        for f in (born.page, born.output, born.errors):
            os.close(f)


def results_of(reply: Mapping[str, Any], files: Sequence[int]) -> list[Array | None]:
    """Arrays that a process sent; None for what is no array. The files are closed."""
    try:
        size = os.fstat(files[0]).st_size
        data = mmap.mmap(files[0], size, prot=mmap.PROT_READ) if size else b""
        return [
            None if "type" in r else np.ndarray(tuple(r["shape"]), dtype_named(r["dtype"]), data, r["offset"]).copy()
            for r in reply["results"]
        ]
    finally:
        for f in files:
            os.close(f)


class Subject:
    """One kernel of an operator (or its reference), ready to be called.

    Attributes:
        contract: Of the operator.
        kernel: The declaration; None for the reference.
        child: Its process.
        fixed: It is part of a graph whose sizes are known when the graph is loaded, and of no other.
    """

    def __init__(
        self, nursery: Nursery, files: Sequence[str], contract: Contract, kernel: KernelDeclaration | None
    ) -> None:
        self.contract = contract
        self.kernel = kernel
        self.child = Child(nursery, files)
        self.fixed = False

    @property
    def kind(self) -> str:
        """Of the kernel; "python" for a reference."""
        return "python" if self.kernel is None else self.kernel.kind

    @property
    def writes(self) -> bool:
        """It is given the memory of its outputs."""
        return self.kind in WRITERS

    @property
    def memory(self) -> Any:
        """Its memory clauses."""
        own = None if self.kernel is None else self.kernel.execution
        return own or self.contract.execution

    @property
    def scheduling(self) -> Any:
        """Its scheduling clauses."""
        own = None if self.kernel is None else self.kernel.scheduling
        return own or self.contract.scheduling

    @property
    def address(self) -> list[Any]:
        """How its process finds it."""
        s = self.contract.semantic
        return [s.domain, s.name, s.since_version, None if self.kernel is None else self.kernel.name]

    def image(self, case: Case, inputs: Sequence[Array | None], shapes: Sequence[Any] | None = None) -> Prepared:
        """Memory of a call, filled."""
        return Prepared(self, case, inputs, shapes)

    def call(
        self,
        case: Case,
        inputs: Sequence[Array | None],
        shapes: Sequence[tuple[int, ...]] | None = None,
        *,
        limit: float | None = None,
        alignment: int = 1,
        clear: str = "",
        **how: Any,
    ) -> Outcome:
        """Call the kernel once.

        Args:
            case: The case.
            inputs: Its inputs, row-major.
            shapes: Of the outputs, where the declaration leaves them open.
            limit: Seconds; None: by the size of the inputs.
            alignment: Of all tensors, where it is more than what is declared.
            clear: What is 0 before the call, whatever the case says: "workspace" or "outputs".
            how: ``shift``, ``traced``, ``hold`` (see :meth:`accord.workbench.worker._Worker.call`).
        """
        if limit is None:
            limit = LIMIT + _EACH * max((x.size for x in inputs if x is not None), default=0)
            limit *= _INTERPRETED if self.kind == "triton" else 1
        if self.kind in GRAPHS:
            return self._in_graph(case, inputs, 10 * limit)
        prepared = Prepared(self, case, inputs, shapes, alignment=alignment, clear=clear)
        try:
            message = {
                "do": "call",
                "kernel": self.address,
                "types": self.types(case),
                "spec": prepared.spec(),
                **how,
            }
            found = self.child.ask(message, [prepared.image.file], limit)
            return self._outcome(found, prepared, how.get("shift", 0))
        finally:
            prepared.image.close()

    def types(self, case: Case) -> dict[str, str]:
        """Type variable → ONNX type."""
        s = self.contract.semantic
        return {p.type: ONNX_TYPES[dtype_of(p, case)] for p in (*s.inputs, *s.outputs) if "(" not in p.type}

    def _in_graph(self, case: Case, inputs: Sequence[Array | None], limit: float) -> Outcome:
        from accord.workbench.graphs import one_node

        for fixed in (self.fixed, True):
            graph = one_node(self.contract, case, attributes_of(self.contract.semantic, case), inputs, fixed=fixed)
            outcome = self.run(graph, inputs, case, limit)
            empty = any(x is not None and x.size == 0 for x in inputs)
            fallen = outcome.reply.get("error") in LEFT
            if fallen and self.contract.semantic.domain in BUILT_IN:
                raise UnusableError(f"the backend leaves it to the reference: {outcome.text}")
            if fixed and empty and outcome.status == "refused":
                raise UnusableError(f"no model has an axis of 0 elements: {outcome.text}")
            if outcome.status != "refused" or fixed:
                self.fixed |= fixed and outcome.ok  # it is chosen, or composed, where all sizes are known
                return outcome
        raise AssertionError

    def run(
        self, graph: Mapping[str, Any], inputs: Sequence[Array | None], case: Case, limit: float = 10 * LIMIT
    ) -> Outcome:
        """Run a graph in which this kernel computes the operator."""
        given = [x for x in inputs if x is not None]
        prepared = Prepared(self, case.but(layouts={}, in_place=()), given, None, tuple(graph["inputs"]))
        try:
            message = {"do": "model", "graph": graph, "only": self.address, "spec": prepared.spec()}
            found = self.child.ask(message, [prepared.image.file], limit)
            return self._outcome(found, prepared, 0, graph=True)
        finally:
            prepared.image.close()

    def digest(self) -> str:
        """Hash of the kernel's code; "" for a reference, or where its process cannot be asked."""
        if self.kernel is None:
            return ""
        found = self.child.ask({"do": "digest", "kernel": self.address})
        return "" if isinstance(found, Outcome) else str(found[0].get("digest", ""))

    def far(self, case: Case, spec: Mapping[str, Any], file: int) -> Outcome:
        """Call with tensors of :mod:`accord.workbench.far`."""
        message = {"do": "far", "kernel": self.address, "types": self.types(case), "spec": spec}
        found = self.child.ask(message, [file], 10 * LIMIT)
        if isinstance(found, Outcome):
            return found
        reply, files = found
        if "error" in reply:
            return Outcome("failed", _said(reply), reply=reply)
        return Outcome("ok", outputs=results_of(reply, files) if files else [])

    def workspace(self, case: Case) -> int:
        """Bytes of scratch memory that are promised."""
        s, text = self.contract.semantic, self.memory.workspace
        value = evaluate_size(text, environment(s, case)) if text else 0
        if not isinstance(value, int):
            raise ContractError(f"the workspace '{text}' has no value", op=s.qualified_name)
        return max(0, value)

    def threads(self, lanes: Sequence[Sequence[Prepared]], case: Case, limit: float = 10 * LIMIT) -> Any:
        """Call from several threads at once; outcomes of all calls in order."""
        flat = [p for lane in lanes for p in lane]
        message = {
            "do": "threads",
            "kernel": self.address,
            "types": self.types(case),
            "lanes": [[p.spec() for p in lane] for lane in lanes],
        }
        found = self.child.ask(message, [p.image.file for p in flat], limit)
        if isinstance(found, Outcome) or "error" in found[0]:
            return [self._outcome(found, flat[0], 0)]
        replies, files = found
        outcomes, rest = [], list(files)
        for reply, prepared in zip(replies["replies"], flat, strict=True):
            own = [rest.pop(0)] if reply.get("results") else []
            outcomes.append(self._outcome((reply, own), prepared, 0))
        return outcomes

    def _outcome(self, found: Any, prepared: Prepared, shift: int, *, graph: bool = False) -> Outcome:
        if isinstance(found, Outcome):
            if "address" in found.reply:
                found.reply["null"] = 0 <= found.reply["address"] + self.child.base < 1 << 16
                aligned = found.reply["kernel"] and not found.reply["address"] + self.child.base
                found.reply["aligned" if aligned else "outside"] = True
                found.text += ": " + (
                    "an instruction met a pointer that is less aligned than it needs"
                    if aligned
                    else prepared.where(found.reply["address"] - shift, found.reply["access"])
                )
            return found
        reply, files = found
        if "error" in reply:
            refused = reply["status"] == REFUSED or (reply["status"] == 0 and self.kind not in ("library", "triton"))
            outcome = Outcome("refused" if refused else "failed", _said(reply), reply=reply)
            outcome.troubles += prepared.troubles()
            return outcome
        outcome = Outcome("ok", reply=reply)
        if self.writes and not graph:
            outcome.outputs = [prepared.output(k) for k in range(len(prepared.outputs))]
        else:
            outcome.outputs = results_of(reply, files)
            outcome.troubles += self._returned(reply["results"], prepared, graph=graph)
        outcome.troubles += prepared.troubles()
        text = self.child.printed()
        if text:
            outcome.troubles.append(Trouble("printed", "", f"it printed {text[:200]!r}"))
        return outcome

    def _returned(self, results: Sequence[Mapping[str, Any]], prepared: Prepared, *, graph: bool) -> list[Trouble]:
        """What is wrong with what a kernel returned, its values apart."""
        s = self.contract.semantic
        ports = s.outputs
        if graph:
            return []
        if len(results) != len(ports):
            return [Trouble("output", "", f"it returned {len(results)} results, and the operator has {len(ports)}")]
        found = []
        allowed = {tuple(pair) for pair in (*self.memory.in_place, *self.memory.views, *self.memory.state)}
        places = distances(prepared.image.sections)
        for o, (p, r) in enumerate(zip(ports, results, strict=True)):
            if "type" in r:
                found.append(Trouble("output", p.name, f"output '{p.name}' is no array but {r['type']}"))
                continue
            low, high = r["range"]
            for i, k in enumerate(prepared.inputs):
                if k is None or (o, i) in allowed:
                    continue
                section = prepared.image.sections[k]
                if low < places[k] + section.high and places[k] + section.low < high:
                    found.append(Trouble("alias", p.name, f"output '{p.name}' is memory of '{s.inputs[i].name}'"))
            for other in r["with"]:
                if other > o:
                    found.append(Trouble("alias", p.name, f"outputs '{p.name}' and '{ports[other].name}' share memory"))
            if r["shared"]:
                found.append(Trouble("overlap", p.name, f"elements of output '{p.name}' share memory (stride 0)"))
            if r["earlier"]:
                found.append(Trouble("alias", p.name, f"output '{p.name}' is memory of an earlier call's result"))
        return found


def _said(reply: Mapping[str, Any]) -> str:
    place = f" ({reply['place']})" if reply["place"] else ""
    return reply["text"] if reply["declared"] else f"{reply['error']}: {reply['text']}{place}"


class Prepared:
    """The memory of one call, and which section is what.

    Attributes:
        image: The memory.
        inputs: Sections of the inputs; None for one that is absent.
        outputs: Of the outputs, where the kernel is given their memory.
        workspace: Of the scratch memory.
    """

    def __init__(
        self,
        subject: Subject,
        case: Case,
        inputs: Sequence[Array | None],
        shapes: Sequence[Any] | None,
        graph: tuple[str, ...] = (),
        *,
        alignment: int = 1,
        clear: str = "",
    ) -> None:
        self._subject = subject
        self._case = case
        self._graph = graph
        s = subject.contract.semantic
        self._names: list[str] = []
        sections: list[Section] = []
        align = max(alignment, subject.memory.alignment)

        def add(name: str, shape: Sequence[int], dtype: str, layout: Layout, least: int = align) -> int:
            start = sum(x.pages for x in sections) * PAGE
            sections.append(place(start, shape, dtype, layout, case.side, least))
            self._names.append(name)
            return len(sections) - 1

        self.inputs = [
            None if x is None else add(name, x.shape, x.dtype.name, case.layouts.get(name, CONTIGUOUS))
            for name, x in zip(graph or [p.name for p in s.inputs], inputs, strict=True)
        ]
        self.outputs: list[int] = []
        self.workspace: int | None = None
        if subject.writes and not graph:
            known = output_shapes(s, case)
            taken = dict(case.in_place)
            for o, p in enumerate(s.outputs):
                if o in taken and (k := self.inputs[taken[o]]) is not None:
                    self.outputs.append(k)
                    continue
                shape = known[o] if shapes is None or o >= len(shapes) else shapes[o]
                if shape is None:
                    raise ContractError(
                        f"the shape of output '{p.name}' does not follow from the inputs, so a kernel that writes "
                        "cannot be given memory for it",
                        op=s.qualified_name,
                    )
                layout = case.layouts.get(p.name, CONTIGUOUS)
                self.outputs.append(add(f"{p.name}", shape, dtype_of(p, case), layout))
            count = subject.workspace(case)
            if count:
                self.workspace = add("the workspace", (count,), "uint8", CONTIGUOUS, max(_LINE, align))
        self.image = Image(sections, case.fill)
        for k, x in zip(self.inputs, inputs, strict=True):
            if k is not None:
                self.image.array(k)[...] = x
        for k in self.outputs if clear == "outputs" else [self.workspace] if clear == "workspace" else ():
            if k is not None:
                self.image.array(k)[...] = 0
        self.image.remember()

    def spec(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "sections": self.image.spec(),
            "inputs": self.inputs,
            "outputs": self.outputs,
            "workspace": self.workspace,
            "attributes": attributes_of(self._subject.contract.semantic, self._case),
        }

    def output(self, o: int) -> Array:
        """A copy of what an output holds."""
        return np.array(self.image.array(self.outputs[o]), order="C")

    def troubles(self) -> list[Trouble]:
        """What was written where it should not be."""
        found = []
        written = set(self.outputs)
        changeable = set(written)
        if not self._subject.writes and not self._graph:
            pairs = (*self._subject.memory.in_place, *self._subject.memory.state)
            changeable = {k for _, i in pairs if (k := self.inputs[i]) is not None}
        for k, name in enumerate(self._names):
            whole = k not in changeable and k != self.workspace
            damage = self.image.damage(k, whole=whole)
            if damage is None:
                continue
            first, last = damage
            size = self.image.sections[k].high - self.image.sections[k].low
            inside = 0 <= first < size
            if k in self.inputs and whole and inside:
                found.append(Trouble("input", name, f"it changed its input '{name}' (bytes {first} to {last})"))
            elif k == self.workspace:
                found.append(Trouble("workspace", name, f"it wrote bytes {first} to {last} of {size} of workspace"))
            else:
                where = "between the elements" if inside else "outside"
                found.append(
                    Trouble("outside", name, f"it wrote {where} of '{name}': bytes {first} to {last} of {size}")
                )
        return found

    def where(self, address: int, access: str) -> str:
        """What an address in the arena is near to."""
        if not 0 <= address < LANE:
            return f"{access} of memory that it was not given"
        best, gap = 0, 1 << 62
        for k, (d, s) in enumerate(zip(distances(self.image.sections), self.image.sections, strict=True)):
            far = max(d + s.low - address, address - (d + s.high), 0)
            if far < gap:
                best, gap = k, far
        d, s = distances(self.image.sections)[best], self.image.sections[best]
        at = address - (d + s.low)
        size = s.high - s.low
        name = self._names[best]
        quoted = name if name.startswith("the ") else f"'{name}'"
        return f"{access} {f'{-at} bytes before' if at < 0 else f'{at - size} bytes after the end of'} {quoted}"
