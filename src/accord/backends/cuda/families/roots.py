"""What the GPU computes other operators together with: its kernels with epilogues, and declared Triton kernels."""

from __future__ import annotations

from accord.backends.cuda.families.declared import arrange_declared, select_declared, takes_epilogue
from accord.backends.cuda.families.table import TABLE
from accord.backends.fused import TableRoots

__all__ = ["ROOTS"]

ROOTS = TableRoots("cuda", TABLE, takes_epilogue, select_declared, arrange_declared)
