"""Proving kernels against their contracts: cases, guarded memory, processes of their own, checks, findings."""
