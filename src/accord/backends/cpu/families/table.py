"""The table from operators to the functions that make their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from accord.backends.loops.table import LOOPS, Table
from accord.backends.protocol import Kernel
from accord.backends.view import NodeView
from accord.contract.choose import Choice
from accord.ir.reason import Reason

__all__ = ["GENERATORS", "TABLE", "Generator", "arranges", "generates", "selects"]

TABLE = Table(LOOPS)
selects, arranges = TABLE.selects, TABLE.arranges

Generator: TypeAlias = Callable[[NodeView, Choice], "Kernel | Reason"]
#: By the class of what a declared kernel of kind "generated" has as its code.
GENERATORS: dict[type, Generator] = {}


def generates(code: type) -> Callable[[Generator], Generator]:
    """Register the decorated function for operators that declare a generated kernel whose code is a ``code``."""

    def register(function: Generator) -> Generator:
        GENERATORS[code] = function
        return function

    return register
