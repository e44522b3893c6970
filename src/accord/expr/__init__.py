"""The scalar-expression language: what one element of a fused kernel computes, independent of any device.

It is printed to LLVM vector code by the CPU backend and to Triton by the CUDA backend.
"""
