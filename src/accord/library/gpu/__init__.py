"""Kernels of the library for GPUs: how they are launched, and CUDA C++; the Triton functions are in ``jit/``.

Nothing here imports Triton: launches name their functions. A file exports ``TRITON`` and, where there is CUDA C++,
``CUDA``: the launches of a kernel. ``CLAUSES`` are those in which such kernels differ from their operators.
"""
