"""What a model tells of its inputs and outputs, and what a run returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Outputs", "ValueInfo"]


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output of a model.

    Attributes:
        name: Its name.
        dtype: ONNX name of the element type in lower case ("float", "int64", "string" ...), or what it is instead.
        shape: One entry an axis, an integer or the text of a symbolic size; None if the rank is unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None

    def __str__(self) -> str:
        shape = "?" if self.shape is None else "×".join(str(d) for d in self.shape)
        return f"{self.name}: {self.dtype}[{shape}]"


class Outputs(tuple[Any, ...]):
    """The outputs of a run, in the model's order; ``outputs["name"]`` finds one by name."""

    names: tuple[str, ...]

    def __new__(cls, values: Sequence[Any], names: tuple[str, ...]) -> Outputs:
        """Outputs ``values`` called ``names``."""
        made = super().__new__(cls, values)
        made.names = names
        return made

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self.names:
                raise KeyError(f"no output '{key}'; there are {', '.join(self.names)}")
            return super().__getitem__(self.names.index(key))
        return super().__getitem__(key)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Pairs of name and value."""
        return zip(self.names, self, strict=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Outputs, (tuple(self), self.names))
