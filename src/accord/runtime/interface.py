"""What a model file says of its inputs, outputs and origin, as ONNX Runtime's sessions tell it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Interface", "ModelMetadata", "NodeArg"]


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output.

    Attributes:
        name: Its name.
        type: "tensor(float)", "seq(tensor(int64))" and so on.
        shape: One entry an axis: an integer, the name of a symbolic size, or None. Empty also where the rank is not
            known.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What the model file says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class Interface:
    """The model's interface as its file declares it, completed by what the compiler inferred.

    Attributes:
        inputs: What a run needs.
        optional: Inputs that have a default.
        outputs: In the model's order.
        metadata: Of the file.
        rankless: Names of outputs whose rank the file does not declare.
    """

    inputs: tuple[NodeArg, ...]
    optional: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    metadata: ModelMetadata
    rankless: frozenset[str] = frozenset()
