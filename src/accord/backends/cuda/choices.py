"""Choices between ways to start a kernel: the one by rule until another was measured to be faster.

What was found is kept on disk under the kernel's text, the sizes, the kind of GPU and the versions of Accord and
Triton, so that later processes neither measure nor compile what lost.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from accord.backends.cuda.code import CudaLaunch, KernelText, WrittenText, compiler_version
from accord.backends.protocol import ChosenLaunch, FixedLaunch, Launch
from accord.record import record
from accord.storage import Storage, code_digest

if TYPE_CHECKING:
    from accord.backends.cuda.library_product import ProductLaunch

__all__ = ["BoundLaunch", "Choice", "Chosen", "Operand", "Outcome", "Started", "name_of", "outcome_of", "remember"]

_KIND: Final = "tiles"
_NOTHING: Final = CudaLaunch((), 0)
#: Outcomes that are kept in memory; those used longest ago go first, and are on disk still.
_MOST: Final = 8192


@record
class Started:
    """A kernel and how it is started; nothing where there are no tasks.

    Attributes:
        kernel: Its text; None if a library has it.
        launch: How.
    """

    kernel: KernelText | None
    launch: CudaLaunch | ProductLaunch


@record
class Operand:
    """Memory for a kernel's pointer.

    Attributes:
        dtype: Element type.
        count: Elements that it has at least.
        cold: It is a weight: between two runs, others take its place in the cache.
        written: It is a result.
        nan: Its last element is none of the numbers: ways have to agree on what becomes of that.
    """

    dtype: str
    count: int
    cold: bool = False
    written: bool = False
    nan: bool = False


class Choice(ABC):
    """A problem of known sizes that can be solved in several ways, all of which are right. A record.

    Attributes:
        kinds: Classes of ways: dataclasses of numbers, truths and texts.
        rule: The way that is taken unmeasured.
    """

    kinds: ClassVar[tuple[type, ...]]
    rule: Any

    @property
    @abstractmethod
    def content(self) -> str:
        """What is computed, by content."""

    @abstractmethod
    def ways(self) -> Sequence[Any]:
        """The ways worth a measurement."""

    @abstractmethod
    def started(self, way: Any) -> tuple[Started, ...]:
        """What runs, one after the other.

        Raises:
            CompileError: this is no way for the problem.
        """

    @abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """Memory for the pointers of what is started, which all of it has in this order."""

    def has(self, way: Any) -> bool:
        """Whether a way that was measured is still there."""
        del way
        return True

    def lacking(self) -> str:
        """What would give further ways, for people; "" if nothing does."""
        return ""

    def found(self) -> Outcome | None:
        """What was measured, if the way that it led to is there."""
        outcome = outcome_of(self)
        return outcome if outcome is not None and self.has(outcome.way) else None

    def launch(self, number: int) -> CudaLaunch | ProductLaunch:
        """The launch of a phase, in the way that is the best as far as is known."""
        outcome = self.found()
        started = self.started(self.rule if outcome is None else outcome.way)
        if number >= len(started):
            return _NOTHING
        launch = started[number].launch
        text = None if outcome is None else outcome.texts.get(number)
        return dataclasses.replace(launch, text=text) if text and isinstance(launch, CudaLaunch) else launch

    @functools.cached_property
    def key(self) -> str:
        """The name of its outcome, for this GPU."""
        from accord.backends.cuda.driver import device

        gpu = device()
        kind = f"{gpu.name} sm_{gpu.architecture} {gpu.processors} {gpu.shared}"
        text = "\0".join((self.content, kind, compiler_version(), code_digest()))
        return hashlib.sha256(text.encode()).hexdigest()


@record
class Outcome:
    """What measuring a choice has found.

    Attributes:
        way: The fastest way.
        seconds: The middle time of each way, by its name; of those that are far behind, what the first turns took.
        refused: Why a way was not measured, by its name.
        texts: What is started by number of the phase, where it is not what the way by rule starts.
    """

    way: Any
    seconds: Mapping[str, float]
    refused: Mapping[str, str]
    texts: Mapping[int, WrittenText]


_LOCK = threading.Lock()
_OUTCOMES: OrderedDict[str, Outcome | None] = OrderedDict()


def outcome_of(choice: Choice) -> Outcome | None:
    """What was found, in this process or in another; None if nothing was."""
    key = choice.key
    with _LOCK:
        if key in _OUTCOMES:
            _OUTCOMES.move_to_end(key)
            return _OUTCOMES[key]
    found = _read(choice)
    _keep(key, found)
    return found


def remember(choice: Choice, outcome: Outcome) -> None:
    """Keep what was found, in memory and on disk."""
    _keep(choice.key, outcome)
    way = outcome.way
    data = {
        "kind": type(way).__name__,
        "way": {f.name: getattr(way, f.name) for f in dataclasses.fields(way)},
        "seconds": dict(outcome.seconds),
        "refused": dict(outcome.refused),
        "texts": {n: [t.name, t.types, t.refusing, t.written] for n, t in outcome.texts.items()},
    }
    Storage(_KIND).write(choice.key, [json.dumps(data).encode()])


def _keep(key: str, outcome: Outcome | None) -> None:
    with _LOCK:
        _OUTCOMES[key] = outcome
        while len(_OUTCOMES) > _MOST:
            _OUTCOMES.popitem(last=False)


def _read(choice: Choice) -> Outcome | None:
    payload = Storage(_KIND).read(choice.key)
    if payload is None:
        return None
    try:
        data = json.loads(bytes(payload))
        kind = next(k for k in choice.kinds if k.__name__ == data["kind"])
        texts = {int(n): WrittenText(name, tuple(types), *rest) for n, (name, types, *rest) in data["texts"].items()}
        return Outcome(kind(**data["way"]), data["seconds"], data["refused"], texts)
    except (ValueError, KeyError, TypeError, StopIteration):
        return None


def name_of(way: Any) -> str:
    """A way for people: its name if it has one, or what it has of other than the usual values."""
    if hasattr(way, "name"):
        return str(way.name)
    parts = []
    for f in dataclasses.fields(way):
        value = getattr(way, f.name)
        if f.default is dataclasses.MISSING or value != f.default:
            parts.append(f.name if value is True else f"{f.name}={value}")
    return " ".join(parts)


@record
class Chosen(ChosenLaunch):
    """The launch of one phase of a problem.

    Attributes:
        problem: From the sizes to the choice; None if there is nothing to compute.
        number: Of the phase among those that are started.
    """

    problem: Callable[[Sequence[int]], Choice | None]
    number: int

    def __call__(self, sizes: Sequence[int]) -> CudaLaunch | ProductLaunch:
        """See :class:`~accord.backends.protocol.ChosenLaunch`."""
        choice = self.problem(sizes)
        return _NOTHING if choice is None else choice.launch(self.number)

    def bound(self, sizes: Sequence[int]) -> Callable[[Sequence[int]], Launch]:
        """See :class:`~accord.backends.protocol.ChosenLaunch`."""
        choice = self.problem(sizes)
        return FixedLaunch(_NOTHING) if choice is None else BoundLaunch(choice, self.number)


@record
class BoundLaunch(ChosenLaunch):
    """The same for known sizes."""

    choice: Choice
    number: int

    def __call__(self, sizes: Sequence[int]) -> CudaLaunch | ProductLaunch:
        """See :class:`~accord.backends.protocol.ChosenLaunch`."""
        del sizes
        return self.choice.launch(self.number)

    def facts(self) -> dict[str, Any] | None:
        """See :class:`~accord.backends.protocol.ChosenLaunch`; told by the first phase of a choice."""
        if self.number:
            return None
        outcome = self.choice.found()
        rule = name_of(self.choice.rule)
        return {
            "way": rule if outcome is None else name_of(outcome.way),
            "rule": rule,
            "seconds": {} if outcome is None else dict(outcome.seconds),
            "refused": {} if outcome is None else dict(outcome.refused),
            "lacking": self.choice.lacking(),
        }

    def bound(self, sizes: Sequence[int]) -> BoundLaunch:
        """Itself."""
        del sizes
        return self
