"""The FP16 accumulator: right at length 100, and off by more with every thousand.

Run it, and check it::

    python examples/half_accumulator.py
    accord op check tales::RowSum --load examples/half_accumulator.py
"""

# ruff: noqa: F821, UP037, ANN001, ANN201
from __future__ import annotations

import numpy as np

import accord

Tensor = accord.Tensor
LENGTHS = (100, 1_000, 3_000, 10_000, 30_000, 100_000)


@accord.operator("tales::RowSum")
def row_sum(x: Tensor["float16", "N", "D"]) -> Tensor["float16", "N"]:
    """The sum of each row."""
    return x.sum(-1)


row_sum.execution(accumulate={"float16": "float32"})


@row_sum.python(name="half-accumulator")
def half_accumulator(x):
    """One FP16 accumulator for each row."""
    return np.cumsum(x, -1, dtype=np.float16)[:, -1] if x.shape[1] else np.zeros(len(x), x.dtype)


@row_sum.python(name="half-partial-sums")
def half_partial_sums(x):
    """Blocks of 16 in FP32, as a tensor core adds them; what they give is added in FP16."""
    blocks = [x[:, d : d + 16].sum(-1, dtype=np.float32).astype(np.float16) for d in range(0, x.shape[1], 16)]
    return half_accumulator(np.stack(blocks, -1)) if blocks else np.zeros(len(x), x.dtype)


@row_sum.python(name="single-accumulator")
def single_accumulator(x):
    """As declared."""
    return x.sum(-1, dtype=np.float32).astype(x.dtype)


def main() -> None:
    """Print the error by length, for numbers between 0 and 1/8."""
    kernels = (half_accumulator, half_partial_sums, single_accumulator)
    print("relative error  " + "".join(f"{k.__name__:>20}" for k in kernels))
    for length in LENGTHS:
        x = np.random.default_rng(length).uniform(0, 0.125, (8, length)).astype(np.float16)
        wanted = row_sum(x.astype(np.float64))
        errors = [np.abs(k(x) / wanted - 1).max() for k in kernels]
        print(f"length {length:>7,}  " + "".join(f"{e:>20.2%}" for e in errors))


if __name__ == "__main__":
    main()
