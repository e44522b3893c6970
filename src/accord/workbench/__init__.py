"""Proving kernels against their contracts, and measuring, guarding and documenting them."""
