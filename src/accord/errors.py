"""The error tree: every error that Accord raises on purpose.

::

    AccordError
    ├── ModelError             the model cannot be used; raised by load, before anything runs
    │   ├── ModelFormatError       not an ONNX file: empty, truncated, damaged, wrong kind
    │   ├── GraphError             the graph is not well formed: cycle, dangling edge, duplicate, arity
    │   ├── ModelTypeError         dtype or shape of a value contradicts its operator
    │   ├── ExternalDataError      weights outside the model's folder, missing, or past the file's end
    │   └── LimitError             a size in the model exceeds what the caller allows
    ├── UnsupportedError       the model is well formed, but nothing here can run it
    │   ├── UnknownOperatorError   no such operator in this domain and opset
    │   └── FallbackError          strict mode: a node would run on the reference backend
    ├── InputError             the caller's arrays do not fit the model; the session lives on
    ├── ExecutionError         a kernel failed during a run; the session lives on
    │   └── DeviceLostError        a kernel failed, and with it all that the process has on its device
    ├── ContractError          an operator's contract contradicts itself or is broken
    ├── BackendError           a backend or device is missing or failed
    ├── CompileError           machine code could not be generated
    └── VerifyError            a rewrite rule broke the graph (a bug in the rule)

A warning that is no error: :class:`FallbackWarning`.

Each message says where (node, operator, input), what was expected, what was found, and what to do. The
same facts are attributes, so that tools need not parse text.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AccordError",
    "BackendError",
    "CompileError",
    "ContractError",
    "DeviceLostError",
    "ExecutionError",
    "ExternalDataError",
    "FallbackError",
    "FallbackWarning",
    "GraphError",
    "InputError",
    "LimitError",
    "ModelError",
    "ModelFormatError",
    "ModelTypeError",
    "UnknownOperatorError",
    "UnsupportedError",
    "VerifyError",
]


class AccordError(Exception):
    """Root of the tree.

    Args:
        message: What went wrong, in one sentence.
        node: Name of the node concerned.
        op: Operator of that node, ``domain::Name`` or ``Name`` for the ONNX domain.
        value: Name of the input, output or value concerned.
        expected: What the contract or the model promised.
        found: What was there instead.
        remedy: What the reader can do.
    """

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        op: str | None = None,
        value: str | None = None,
        expected: Any = None,
        found: Any = None,
        remedy: str | None = None,
    ) -> None:
        self.message = message
        self.node = node
        self.op = op
        self.value = value
        self.expected = expected
        self.found = found
        self.remedy = remedy
        super().__init__(message)

    def __str__(self) -> str:
        where = []
        if self.node is not None:
            where.append(f"node '{self.node}'" + (f" ({self.op})" if self.op else ""))
        elif self.op is not None:
            where.append(f"operator {self.op}")
        if self.value is not None:
            where.append(f"value '{self.value}'")
        text = (", ".join(where) + ": " if where else "") + self.message
        if not text.endswith((".", "!", "?", ":")):
            text += "."
        if self.expected is not None:
            text += f" Expected: {self.expected}."
        if self.found is not None:
            text += f" Found: {self.found}."
        if self.remedy:
            text += f" {self.remedy}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(cls: type[AccordError], state: dict[str, Any]) -> AccordError:
    error = cls.__new__(cls)
    Exception.__init__(error, state["message"])
    error.__dict__.update(state)
    return error


class ModelError(AccordError):
    """The model cannot be used; raised while loading."""


class ModelFormatError(ModelError):
    """The bytes are not an ONNX model: empty, truncated, damaged or of another kind."""


class GraphError(ModelError):
    """The graph is not well formed: a cycle, a dangling edge, a duplicate name, a wrong arity."""


class ModelTypeError(ModelError):
    """The dtype or shape of a value contradicts what its operator accepts."""


class ExternalDataError(ModelError):
    """External weights lie outside the model's folder, are missing, or end too early."""


class LimitError(ModelError):
    """A size that the model claims exceeds what the caller allows."""


class UnsupportedError(AccordError):
    """The model is well formed, but nothing installed can run it."""


class UnknownOperatorError(UnsupportedError):
    """No operator of this name, domain and opset is known."""


class FallbackError(UnsupportedError):
    """Strict mode: a node would have to run on the reference backend."""


class FallbackWarning(RuntimeWarning):
    """A node for which a kernel was expected ran on the reference backend: its inputs turned out to have none."""


class InputError(AccordError):
    """The arrays given to a run do not fit the model's inputs."""


class ExecutionError(AccordError):
    """A kernel failed while the model ran."""


class DeviceLostError(ExecutionError):
    """A kernel failed, and with it all that the process has on its device; nothing runs there any more."""


class ContractError(AccordError):
    """An operator's contract contradicts itself, or a kernel breaks it."""


class BackendError(AccordError):
    """A backend or device is missing, or failed."""


class CompileError(AccordError):
    """Machine code for a kernel could not be generated."""


class VerifyError(AccordError):
    """A rewrite rule left the graph in a wrong state."""
