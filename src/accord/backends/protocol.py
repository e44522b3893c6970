"""The interface between the core and a backend.

A backend is one object with a name, a device, and :meth:`Backend.select`, which answers for one node: a kernel, or the
reason why it has none. Three kinds of kernel exist:

``ViewKernel``
    The output is the input's memory under another shape; nothing runs.
``HostKernel``
    A Python callable on arrays and other values. Shapes may depend on data.
``NativeKernel``
    Machine code. Its parameters are symbolic sizes, so a new input shape evaluates integers and compiles nothing.

A third party adds a backend as a package with an entry point in the group ``accord.backends`` that names such an
object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from accord.backends.memory import HOST, Memory
from accord.errors import BackendError, CompileError
from accord.ir.dims import DimLike
from accord.ir.reason import Reason
from accord.ir.strides import Access, Order
from accord.record import record

if TYPE_CHECKING:
    from accord.backends.view import NodeView

__all__ = [
    "Alias",
    "Arrangement",
    "Backend",
    "Caller",
    "ChosenLaunch",
    "Concurrency",
    "Constant",
    "FixedLaunch",
    "HostKernel",
    "Kernel",
    "Launch",
    "Launches",
    "NativeKernel",
    "Pending",
    "Phase",
    "Program",
    "StoredCodeError",
    "Turn",
    "Turns",
    "ViewKernel",
]

Array: TypeAlias = "np.ndarray[Any, Any]"
#: An array, or what makes it when the plan is built: packing weights takes time, and kernels are chosen more than once.
Constant: TypeAlias = "Array | Callable[[], Array]"


@record
class Alias:
    """An output that is the memory of an input, walked in another way; nothing runs for it.

    Attributes:
        input: Number of the input.
        access: How the output lies, relative to where the input's address points.
        whole: The output has each element of the input exactly once.
    """

    input: int
    access: Access
    whole: bool = True


@record
class Arrangement:
    """How a node wants its operands to lie in memory.

    Attributes:
        inputs: The order of axes that an input must have, without gaps; None where anything will do that ``strided``
            allows. Missing ones at the end are None.
        outputs: The order of axes of an output, or the input that it aliases; None is row-major. Gaps that
            the plan leaves are never along the innermost axis of more than one element. Missing ones at the end are
            None.
        strided: Inputs may have any strides and outputs may have gaps. If not, all inputs are brought into row-major
            order and no output gets gaps.
        joins: Output 0 is the inputs one after the other along this axis. An input that is made for this alone may be
            written to its place at once; the kernel then finds it in :attr:`accord.backends.view.NodeView.placed`.
    """

    inputs: tuple[Order | None, ...] = ()
    outputs: tuple[Order | Alias | None, ...] = ()
    strided: bool = False
    joins: int | None = None


@record
class ViewKernel:
    """Output 0 is input 0's memory. ``reads`` is always input 0 alone."""

    name: str = "view"
    reads: tuple[int, ...] = (0,)


class HostKernel(ABC):
    """A kernel in Python.

    Attributes:
        name: For people.
        reads: Indices of the inputs that :meth:`run` looks at; None means all. Others are given as None.
        declared: A user's contract says what it takes, so the plan sees to it that the sizes are as it says.
        space: The memory in which it finds its operands and leaves its results; in another one than the host's they
            are :class:`~accord.backends.memory.DeviceArray`.
        hosted: Inputs that it finds in the host's memory all the same, because they decide how it computes.
        untouched: Inputs of which it looks at the shape only, in whatever memory they are.
        returns: The memory of its results where that is another one than ``space``; "" for ``space``.
    """

    name: str = "host"
    reads: tuple[int, ...] | None = None
    declared: bool = False
    space: str = HOST
    hosted: tuple[int, ...] = ()
    untouched: tuple[int, ...] = ()
    returns: str = ""

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Outputs for ``inputs``: arrays, lists for sequences, None for an absent optional.

        Called from several threads at once; it keeps no state.
        """

    def finds(self, index: int) -> str:
        """The memory in which it finds an input."""
        return HOST if index in self.hosted else self.space

    def prepare(self) -> None:
        """Have all machine code that :meth:`run` needs; does nothing by default."""
        return


@record
class Launch:
    """How one phase of a native kernel is started for given sizes.

    Attributes:
        params: What the machine code reads: integers, and code as in :attr:`Phase.code`, which stands for the address
            of its machine code.
        tasks: Independent pieces of work, numbered from 0; any thread may take any of them.
    """

    params: tuple[Hashable, ...]
    tasks: int


def default_launch(sizes: Sequence[int]) -> Launch:
    """The last size is the number of tasks; all sizes are parameters."""
    return Launch(tuple(sizes), sizes[-1])


@record
class FixedLaunch:
    """The launch of a phase whose sizes are all known; a stored plan needs no more of it than these numbers."""

    launch: Launch

    def __call__(self, sizes: Sequence[int]) -> Launch:
        """The launch; there are no sizes."""
        del sizes
        return self.launch


class ChosenLaunch(ABC):
    """The launch of a phase that can be started in several ways, of which all are right.

    What measuring finds counts from the next frame on, so each frame asks for it, and a stored plan keeps it as it is.
    """

    @abstractmethod
    def __call__(self, sizes: Sequence[int]) -> Launch:
        """The launch for these sizes; none where they were :meth:`bound`."""

    def facts(self) -> dict[str, Any] | None:
        """For people: "way" and "rule", "seconds" by way and why a way was "refused"; None if sizes are not known."""
        return None

    @abstractmethod
    def bound(self, sizes: Sequence[int]) -> Callable[[Sequence[int]], Launch]:
        """The same for these sizes; another launch where they leave no choice."""


@record
class Phase:
    """One function of machine code within a kernel; a phase starts when the one before is done.

    Its signature is ``void phase(int64_t *params, void **operands, int64_t first, int64_t last, int64_t thread)``;
    it does the tasks in ``[first, last)``.

    Attributes:
        code: What the backend needs to make the machine code (hashable; equal codes are compiled once).
        operands: Which of the kernel's operands it gets, in its own order.
        dims: Symbolic sizes; evaluated when shapes are known and given to ``launch``.
        launch: From the evaluated sizes to parameters and tasks.
    """

    code: Hashable
    operands: tuple[int, ...]
    dims: tuple[DimLike, ...]
    launch: Callable[[Sequence[int]], Launch] = default_launch

    def fixed(self) -> Phase:
        """The same with its launch computed now, where all sizes are known."""
        known = [d for d in self.dims if isinstance(d, int)]
        if len(known) < len(self.dims) or isinstance(self.launch, FixedLaunch):
            return self
        if isinstance(self.launch, ChosenLaunch):
            return replace(self, dims=(), launch=self.launch.bound(known)) if self.dims else self
        return replace(self, dims=(), launch=FixedLaunch(self.launch(known)))


@record
class NativeKernel:
    """A kernel in machine code.

    Its operands are the inputs in ``reads`` in order, then the outputs that the node names, then the workspace if
    there is one.

    Attributes:
        name: For people: "pointwise add f32".
        phases: In order.
        reads: Indices of the inputs whose data is read.
        constants: Input index → array to pass instead of the model's constant (packed weights).
        in_place: Pairs (output, input): the output may take the input's memory if nothing else needs it.
        workspace: Bytes of scratch memory for each thread, symbolic.
        flops: Arithmetic operations, symbolic, for the roofline.
        note: Why it computes in the way it does, for people.
        precision: What operands are rounded to because that was asked for; "" for nothing.
        alternatives: Names of the ways to compute it, where there are several; the first is the one by rule.
        alternative: Which of them this is; "" where there is one.
        foreign: It calls a function that is not Accord's: a number that it refuses with is that function's status.
        staged: It has one operand more: memory of the host as large as its output, which is this kernel's for a whole
            run and which the device reads and writes by itself.
        alignment: Bytes that its operands' addresses must be multiples of, the caller's too; a plan's are of 64.
    """

    name: str
    phases: tuple[Phase, ...]
    reads: tuple[int, ...]
    constants: Mapping[int, Constant] = field(default_factory=dict)
    in_place: tuple[tuple[int, int], ...] = ()
    workspace: DimLike = 0
    flops: DimLike = 0
    note: str = ""
    precision: str = ""
    alternatives: tuple[str, ...] = ()
    alternative: str = ""
    foreign: bool = False
    staged: bool = False
    alignment: int = 1

    @property
    def dims(self) -> tuple[DimLike, ...]:
        """All symbolic sizes: of each phase in order, then the workspace."""
        return (*(d for p in self.phases for d in p.dims), self.workspace)

    def launches(self, sizes: Sequence[int]) -> list[Launch]:
        """One launch for each phase, from the values of :attr:`dims`."""
        launches, start = [], 0
        for p in self.phases:
            end = start + len(p.dims)
            launches.append(p.launch(sizes[start:end]))
            start = end
        return launches


Kernel: TypeAlias = ViewKernel | HostKernel | NativeKernel


@record
class Turn:
    """When a phase of a program may start, where a program has several streams.

    Attributes:
        stream: What is on one stream runs in order.
        after: Numbers of earlier phases on other streams that must have ended.
    """

    stream: int = 0
    after: tuple[int, ...] = ()


@record
class Concurrency:
    """What a device can do at the same time, for dividing the steps of a plan among streams; times are rough.

    Attributes:
        streams: Streams for kernels; large copies get two more, one for each direction.
        event: Seconds that a stream loses by waiting for another one.
        least: Seconds that the smallest kernel takes.
        flops: Arithmetic operations a second.
        bandwidth: Bytes a second in its memory.
        link: Bytes a second to and from the host's.
    """

    streams: int
    event: float
    least: float
    flops: float
    bandwidth: float
    link: float


#: Phases and how they start.
Launches: TypeAlias = Sequence[tuple[Phase, Launch]]
Turns: TypeAlias = Sequence[Turn]


class Pending(ABC):
    """Work of a device that may not have ended."""

    @abstractmethod
    def wait(self) -> None:
        """Until it has."""


@dataclass(slots=True)
class Caller:
    """What a run has to do with streams that are not its own, on a device that has some.

    Attributes:
        stream: The caller's: the run comes after what is on it and before what is put there later, and may have
            returned before it is over. None: a run is over when it returns.
        arrivals: Streams on which its inputs are made, or its outputs' memory is still used.
        before: What uses its memory until it is over, if anything does.
        pending: What the run has not waited for.
    """

    stream: int | None = None
    arrivals: tuple[int, ...] = ()
    before: Pending | None = None
    pending: Pending | None = None


class StoredCodeError(CompileError):
    """Machine code that a stored plan counts on is gone; the model has to be compiled again. Never seen by users."""


#: Copies of bytes: target, source, how many, and what is added to target and source afterwards.
Copies: TypeAlias = Sequence[tuple[int, int, int, int, int]]


@dataclass(slots=True)
class Rounds:
    """A program's rounds: what is done between one run of it and the next. All is given by address.

    Attributes:
        table: All operands of the program.
        words: What it holds by turns, first in the next round.
        counters: Words of 64 bits, what they hold in the next round, and what is added for each one after it.
        before: Copies before a run.
        after: Copies after a run, by turns.
        collected: Copies after each run.
        condition: A byte that is zero if there is no further round; 0: none.
    """

    table: Array
    words: tuple[Array, Array]
    counters: Sequence[tuple[int, int, int]]
    before: Copies
    after: tuple[Copies, Copies]
    collected: Copies
    condition: int


class Program(ABC):
    """A run of consecutive native steps, ready to be started with one call.

    Attributes:
        refusal: The number with which the last phase that refused its data did so.
        name_of: By number of a phase its kernel and node, for people.
        memory: Which blocks its arena has: another number when one of them was allocated anew, maybe at the same
            address. What was prepared for other blocks is not used for these.
    """

    refusal: int = 0
    memory: int = 0
    name_of: Callable[[int], str] = str

    @abstractmethod
    def run(self) -> int:
        """Execute all phases; operand addresses are read from the arrays given to :meth:`Backend.program`.

        Returns:
            -1, or the number of the first phase that met a value it must refuse (an index outside its axis).
        """

    def run_for(self, caller: Caller) -> int:
        """As :meth:`run`, in the order that a caller's streams ask for."""
        del caller
        return self.run()

    @property
    def repeats(self) -> bool:
        """Whether :meth:`repeat` does anything now."""
        return False

    def repeat(self, rounds: Rounds, count: int) -> tuple[int, int]:
        """Run up to ``count`` rounds with one call.

        Returns:
            How many there were: fewer if the condition was false, or a phase refused its data; and as :meth:`run`.
        """
        del rounds, count
        return 0, -1

    def run_timed(self, seconds: Array) -> int:
        """As :meth:`run`, and measures each phase.

        Args:
            seconds: Receives one float64 for each phase: how long it took. NaN where the backend cannot tell.
        """
        seconds.fill(np.nan)
        return self.run()


class Backend(ABC):
    """Where kernels come from.

    Attributes:
        name: Unique: "cpu", "reference".
        device: What the user asks for: ``load(..., device=...)``. Several backends may serve one device.
        priority: Among the backends of a device the highest is asked first.
        fallback: True for a backend that is right but slow; strict mode refuses it.
        memory: Where operands of its native kernels are; None: in the host's memory. Kernels in Python always find
            theirs there.
        hosts: Names of backends of other devices that take what this one has no kernel for, best first.
        stores_halves: Values of 16 bits take half the time of those of 32: a model whose precision is to be bfloat16 is
            stored so; elsewhere only operands of products are rounded.
        zeros: Returned arrays are zero before a run, since its kernels may compute nothing.
        concurrency: What its programs run at the same time; None: a program's phases run in order.
        generation: Grows when a :class:`ChosenLaunch` may give another launch than before.
    """

    name: str
    device: str
    priority: int = 0
    fallback: bool = False
    memory: Memory | None = None
    hosts: tuple[str, ...] = ()
    stores_halves: bool = False
    zeros: bool = False
    concurrency: Concurrency | None = None
    generation: int = 0

    @property
    def identity(self) -> str | None:
        """What kernels and the choice of them depend on, beside Accord's code and this machine's processor.

        It is part of the key of stored plans. None: plans with such kernels are not kept.
        """
        return None

    @property
    def space(self) -> str:
        """The space of native kernels' operands."""
        return HOST if self.memory is None else self.memory.space

    def numbered(self, number: int) -> Backend:
        """The same for the device of this number among those of its kind.

        Raises:
            BackendError: it serves one device only.
        """
        if number:
            raise BackendError(
                f"there is no device '{self.device}:{number}'",
                expected=f"'{self.device}', of which there is one",
                remedy=f"Ask for device='{self.device}'.",
            )
        return self

    def memory_at(self, address: int) -> Memory | None:
        """The memory of a device of this kind in which an address is."""
        del address
        return self.memory

    def active(self) -> AbstractContextManager[None]:
        """What is compiled and laid out inside is for this backend's device."""
        return nullcontext()

    def lacking(self) -> str | None:
        """What this machine lacks to run its kernels; None: nothing. It is asked often, and nothing is started."""
        return None

    def require(self) -> None:
        """Start what its kernels run on.

        Raises:
            BackendError: that is not there.
        """
        return

    @abstractmethod
    def select(self, view: NodeView) -> Kernel | Reason:
        """The kernel for a node, or why there is none."""

    def select_late(self, view: NodeView) -> Kernel | Reason:
        """A kernel for a node for which :meth:`select` gave one whose sizes are only known after other steps ran.

        It is a :class:`HostKernel`; by default there is none.
        """
        del view
        return Reason("sizes depend on data")

    def arrange(self, view: NodeView) -> Arrangement:
        """How the operands of a node should lie; row-major by default. ``view`` tells how its inputs lie.

        :meth:`select` is asked afterwards, with the layouts that the plan has settled on.
        """
        del view
        return Arrangement()

    def transfer(self, nbytes: DimLike, source: str, target: str) -> NativeKernel:
        """A kernel that copies ``nbytes`` bytes from its one input to its one output.

        Args:
            nbytes: How many.
            source: The input's space.
            target: The output's; one of the two is the host's, the other is this backend's.
        """
        raise TypeError(f"backend '{self.name}' copies nothing from {source} to {target}")

    def fuses(self, root: NodeView) -> Reason | None:
        """None if the backend computes elementwise operators together with ``root``, on its results; or why not.

        They then reach :meth:`select` as one call of a model-local function in domain
        :data:`~accord.ir.reason.FUSED_DOMAIN`, the root first in its body.
        """
        return Reason(f"{self.name} computes nothing together with {root.node.op_type}")

    def joins(self, nodes: Sequence[NodeView]) -> Reason | None:
        """None if the backend makes one kernel of connected ``nodes``, which are in graph order; or why not.

        They then reach :meth:`select` as one call, as for :meth:`fuses`.
        """
        del nodes
        return Reason(f"{self.name} joins no operators")

    def compiling(self) -> AbstractContextManager[object]:
        """Entered before a model is compiled, left when its kernels are prepared: help that starts meanwhile."""
        return nullcontext()

    def tune(self, launches: Sequence[ChosenLaunch], *, wait: bool) -> None:
        """Measure the ways to start these, whose sizes are known, and use the best from then on.

        Args:
            launches: What to measure; what was measured before is left out.
            wait: Return when that is done. If not, it is done beside runs, by what they leave of the machine.
        """
        del launches, wait

    def program(self, launches: Launches, operands: Sequence[Array], threads: int = 1, turns: Turns = ()) -> Program:
        """Prepare consecutive phases.

        Args:
            launches: Phase and start parameters, in order.
            operands: For each phase an int64 array with the addresses of its operands, all of them parts of one, in
                order; the caller changes the addresses between runs.
            threads: Most threads that may work on one phase; each gets a number below it, for its scratch memory.
            turns: When each phase may start, from a backend with :attr:`concurrency`; empty: one after the other.
        """
        raise TypeError(f"backend '{self.name}' has no native kernels")

    def prepare(self, kernels: Sequence[NativeKernel]) -> None:
        """Compile what ``kernels`` need, ahead of the first run; does nothing by default.

        Raises:
            CompileError: machine code could not be generated.
        """
        del kernels
