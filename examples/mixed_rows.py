"""The LayerNorm that mixes rows: close to right as long as rows look alike.

Run it, and check it::

    python examples/mixed_rows.py
    accord op check tales::LayerNorm --load examples/mixed_rows.py
"""

# ruff: noqa: F821, UP037, ANN001, ANN201
from __future__ import annotations

import numpy as np

import accord

Tensor = accord.Tensor
WARP = 32


@accord.operator("tales::LayerNorm")
def layer_norm(
    x: Tensor["float32", "N", "D"],
    *,
    eps: float = 1e-5,
) -> Tensor["float32", "N", "D"]:
    """Each row to mean 0 and variance 1."""
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


layer_norm.constraint("D >= 1").semantic(batch=("N",))


def normalised(x, eps, lanes):
    """Statistics of ``lanes`` elements from the start of each row on, as a reduction over whole warps takes them."""
    n, d = x.shape
    flat = np.concatenate([x.reshape(-1), np.zeros(lanes, x.dtype)]).astype(np.float64)
    rows = np.lib.stride_tricks.as_strided(flat, (n, lanes), (8 * d, 8))
    mean, variance = rows.mean(-1, keepdims=True), rows.var(-1, keepdims=True)
    return ((x - mean) / np.sqrt(variance + eps)).astype(x.dtype)


@layer_norm.python(name="whole-warps")
def whole_warps(x, *, eps):
    """Rounds a row up to whole warps; the lanes that are left over read the next row."""
    return normalised(x, eps, -(-x.shape[1] // WARP) * WARP)


@layer_norm.python(name="masked-lanes")
def masked_lanes(x, *, eps):
    """Lanes beyond the row take no part."""
    return normalised(x, eps, x.shape[1])


def main() -> None:
    """Print how wrong the first kernel is on rows of three kinds."""
    rng = np.random.default_rng(0)
    n, d = 64, 1000
    alike = rng.standard_normal((n, d))
    kinds = {
        "rows that look alike": alike,
        "rows with means of their own": alike + rng.uniform(-3, 3, (n, 1)),
        "rows of other magnitudes": alike * 10.0 ** rng.uniform(-2, 2, (n, 1)),
    }
    print(f"{n} rows of {d}, by warps of {WARP}: greatest error")
    for name, rows in kinds.items():
        x = rows.astype(np.float32)
        wanted = layer_norm(x.astype(np.float64))
        for kernel in (whole_warps, masked_lanes):
            print(f"  {name:<29} {kernel.__name__:<13} {np.abs(kernel(x, eps=1e-5) - wanted).max():.2g}")


if __name__ == "__main__":
    main()
