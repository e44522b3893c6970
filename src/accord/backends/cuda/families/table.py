"""The table from operators to the functions that make their kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable

from accord.backends.loops.group import Member
from accord.backends.loops.groups import select_alone
from accord.backends.loops.table import LOOPS, Table
from accord.backends.protocol import Arrangement
from accord.backends.view import NodeView

__all__ = ["TABLE", "any_strides", "arranges", "looped", "selects"]

TABLE = Table(LOOPS)
selects, arranges = TABLE.selects, TABLE.arranges


def any_strides(view: NodeView) -> Arrangement:
    """Operands are walked as they lie."""
    del view
    return Arrangement(strided=True)


def looped(*names: str, domain: str = "") -> Callable[[Member], Member]:
    """Register the decorated function as what makes a loop program, with places that are looked up, of a node alone."""

    def register(rule: Member) -> Member:
        for name in names:
            TABLE.selectors[domain, name] = functools.partial(select_alone, rule=rule)
            TABLE.arrangers[domain, name] = any_strides
        return rule

    return register
