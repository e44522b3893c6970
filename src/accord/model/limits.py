"""Limits: how large a model may claim to be before loading refuses it."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, fields

from accord.container import limits
from accord.errors import LimitError

__all__ = ["DEFAULT_LIMITS", "Limits", "physical_memory"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model file may ask for. The defaults let every real model pass.

    Attributes:
        max_file_bytes: Size of the model file without external data; protobuf itself cannot hold more than 2 GiB.
        max_tensor_bytes: Size of one tensor, stored or declared.
        max_rank: Axes of one tensor; NumPy 1 has no more than 32.
        max_nesting: Graphs within graphs (bodies of If, Loop, Scan, SequenceMap).
        max_nodes: Nodes of the whole model, counted as if every call of a model-local function were inlined.
        max_name_bytes: Length of the name of a value, node, operator, domain or attribute.
    """

    max_file_bytes: int = 2**31 - 1
    max_tensor_bytes: int = 2**40
    max_rank: int = 32
    max_nesting: int = 24
    max_nodes: int = 500_000
    max_name_bytes: int = 65_536

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not isinstance(value, int) or value < 1:
                raise LimitError(f"{f.name} must be a positive integer", found=repr(value))


DEFAULT_LIMITS = Limits()


@functools.cache
@functools.cache
def physical_memory() -> int:
    """Bytes of memory that this process can ever have: the machine's, or less where its container says so."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, *limits("memory", "memory.max", "memory.limit_in_bytes"), total)
