"""What will be the CUDA backend: expressions and loop programs as Triton ([design](docs/cuda.md))."""
