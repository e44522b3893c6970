"""What the CPU computes other operators together with: its own kernels with epilogues, and declared C functions."""

from __future__ import annotations

from accord.backends.cpu.families.coded import PREPARES
from accord.backends.cpu.families.declared import arrange_declared, select_declared, takes_epilogue
from accord.backends.cpu.families.table import TABLE
from accord.backends.fused import TableRoots

__all__ = ["ROOTS"]

ROOTS = TableRoots("cpu", TABLE, takes_epilogue, select_declared, arrange_declared, PREPARES)
