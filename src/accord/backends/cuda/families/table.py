"""The table from operators to the functions that make their kernels."""

from __future__ import annotations

from accord.backends.loops.table import LOOPS, Table

__all__ = ["TABLE", "arranges", "selects"]

TABLE = Table(LOOPS)
selects, arranges = TABLE.selects, TABLE.arranges
