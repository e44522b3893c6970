"""Options of sessions and runs, with the names and defaults of ONNX Runtime's Python interface.

What an option does here is said at its class; one that cannot apply to Accord's plans is stored and has no effect.
"""

from __future__ import annotations

import enum
import operator
import os
from dataclasses import MISSING, dataclass, field
from typing import Any

from accord.errors import InputError, UnsupportedError

__all__ = ["ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions"]

_MAX_KEY = 1024


class GraphOptimizationLevel(enum.IntEnum):
    """How much the graph is rewritten; :attr:`level` is the number that :func:`accord.load` takes."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99

    @property
    def level(self) -> int:
        """Accord's level, 0 to 3."""
        return min(int(self), 3)


class ExecutionMode(enum.IntEnum):
    """Stored only: a plan runs its steps in order and each step on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Stored only: a plan has one order."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Options:
    """Base of the option classes: a field keeps the type of its default; a misspelt field is an AttributeError."""

    __slots__ = ()
    entries: dict[str, str]

    def __setattr__(self, name: str, value: Any) -> None:
        known = getattr(type(self), "__dataclass_fields__", {}).get(name)
        if known is not None and known.default is not MISSING:
            value = _converted(f"{type(self).__name__}.{name}", known.default, value)
        object.__setattr__(self, name, value)

    def _add(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise InputError("configuration entries are text", found=f"{key!r}: {value!r}")
        if not 0 < len(key) <= _MAX_KEY:
            raise InputError("bad configuration key", expected=f"1 to {_MAX_KEY} characters", found=len(key))
        self.entries[key] = value

    def _get(self, key: str) -> str:
        if key not in self.entries:
            raise InputError(
                f"no configuration entry '{key}'", expected=", ".join(sorted(self.entries)) or "none was added"
            )
        return self.entries[key]


def _converted(field_name: str, default: Any, value: Any) -> Any:
    if isinstance(default, (bool, enum.Enum)):
        if isinstance(value, type(default)):
            return value
    elif isinstance(default, int):
        if hasattr(value, "__index__") and not isinstance(value, (bool, enum.Enum)):
            return operator.index(value)
    elif isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    raise InputError(
        f"wrong type for {field_name}",
        expected=type(default).__name__,
        found=f"{value!r} ({type(value).__name__})",
    )


@dataclass(slots=True, eq=False)
class RunOptions(_Options):
    """Options of one run.

    Attributes:
        terminate: True makes runs that start with these options raise ``ExecutionError``.
        only_execute_path_to_fetches: Stored only; all outputs are computed.
        log_severity_level: Stored only.
        log_verbosity_level: Stored only.
        logid: Stored only.
        entries: Configuration entries.
    """

    terminate: bool = False
    only_execute_path_to_fetches: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    entries: dict[str, str] = field(default_factory=dict, repr=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store a configuration entry; none has an effect.

        Raises:
            InputError: no text, or a key that is empty or too long.
        """
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """A stored entry.

        Raises:
            InputError: there is none.
        """
        return self._get(key)


@dataclass(slots=True, eq=False)
class SessionOptions(_Options):
    """Options of a session.

    Attributes:
        intra_op_num_threads: Threads for one run; 0 means as many as the process may use.
        inter_op_num_threads: Stored only; steps run one after the other.
        graph_optimization_level: See :class:`GraphOptimizationLevel`.
        optimized_model_filepath: Where the optimised graph is written as an ONNX file; "" writes none.
        enable_profiling: Record a Chrome trace; ``end_profiling`` writes it.
        profile_file_prefix: Start of the trace's file name.
        log_severity_level: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal; -1 takes the default. Nodes that fall back
            to the reference backend are logged as a warning.
        logid: Put before this session's log messages.
        use_deterministic_compute: Stored only; equal inputs give equal bits in any case.
        enable_mem_pattern: Stored only; memory is always planned.
        enable_mem_reuse: Stored only; memory is always reused.
        enable_cpu_mem_arena: Stored only; the arena is always used.
        execution_mode: Stored only.
        execution_order: Stored only.
        use_per_session_threads: Stored only.
        log_verbosity_level: Stored only.
        entries: Configuration entries.
        dimensions: Sizes given to symbolic dimensions: ("name" or "denotation", text) → size.
        initializers: Contents given to initializers by name.
        precision: "float32", "tf32", "bfloat16" or "float16": see :func:`accord.load`. Not an option of ONNX Runtime.
        providers: Providers given here instead of to the session, with their options.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    optimized_model_filepath: str = ""
    enable_profiling: bool = False
    profile_file_prefix: str = "accord_profile_"
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    use_deterministic_compute: bool = False
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_cpu_mem_arena: bool = True
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    use_per_session_threads: bool = True
    entries: dict[str, str] = field(default_factory=dict, repr=False)
    dimensions: dict[tuple[str, str], int] = field(default_factory=dict, repr=False)
    initializers: dict[str, Any] = field(default_factory=dict, repr=False)
    precision: str = "float32"
    providers: list[tuple[str, dict[str, str]]] = field(default_factory=list, repr=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store a configuration entry.

        ``session.disable_cpu_ep_fallback`` = "1" makes a node that only the reference backend can run an error;
        no other entry has an effect.

        Raises:
            InputError: no text, or a key that is empty or too long.
        """
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """A stored entry.

        Raises:
            InputError: there is none.
        """
        return self._get(key)

    @property
    def strict(self) -> bool:
        """True if falling back to the reference backend was forbidden."""
        return self.entries.get("session.disable_cpu_ep_fallback") == "1"

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Give the symbolic size ``name`` of the model's inputs a value; the first value given stays.

        Raises:
            InputError: the size is no integer of at least 0.
        """
        self._override("name", name, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Give the sizes of the model's inputs that have this denotation a value.

        Raises:
            InputError: the size is no integer of at least 0.
        """
        self._override("denotation", denotation, size)

    def _override(self, kind: str, text: str, size: int) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InputError(f"bad size for '{text}'", expected="an integer of at least 0", found=repr(size))
        self.dimensions.setdefault((kind, text), size)

    def add_initializer(self, name: str, ort_value: Any) -> None:
        """Use ``ort_value`` as the content of the model's initializer ``name``."""
        self.initializers[name] = ort_value

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        """As :meth:`add_initializer`, for several.

        Raises:
            InputError: the lists differ in length.
        """
        if len(names) != len(values):
            raise InputError(
                "names and values differ in number", expected=f"{len(names)} values", found=f"{len(values)}"
            )
        self.initializers.update(zip(names, values, strict=True))

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        """Ask for a provider here instead of in the session's ``providers``."""
        self.providers.append((name, dict(options)))

    def has_providers(self) -> bool:
        """True if :meth:`add_provider` was called."""
        return bool(self.providers)

    def register_custom_ops_library(self, path: str) -> None:
        """Not possible: such a library holds kernels for ONNX Runtime's own C interface.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "libraries of custom operators built for ONNX Runtime cannot be loaded",
            found=path,
            remedy="Declare the operator with a Python or C kernel (accord.operator) before the session is made.",
        )
