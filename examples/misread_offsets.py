"""The misread offsets: a deformable convolution that is right for all offsets of its first test.

Run it, and check it::

    python examples/misread_offsets.py
    accord op check tales::DeformSample --load examples/misread_offsets.py
"""

# ruff: noqa: F821, UP037, ANN001, ANN201, ANN202
from __future__ import annotations

import numpy as np

import accord
from accord.contract.contract import Values

Tensor = accord.Tensor


def sampled(x, rows, columns):
    """Values of images [N, H, W] at fractional places [N, K, H, W], linear between pixels, 0 outside."""
    n, h, w = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    top, left = np.floor(rows), np.floor(columns)
    total = np.zeros(rows.shape)
    for dy in (0, 1):
        for dx in (0, 1):
            weight = (1 - abs(rows - top - dy)) * (1 - abs(columns - left - dx))
            y = np.clip(top + dy + 1, 0, h + 1).astype(int)
            z = np.clip(left + dx + 1, 0, w + 1).astype(int)
            total += weight * padded[np.arange(n)[:, None, None, None], y, z]
    return total


def deformed(x, dy, dx, weight):
    """3 × 3 convolution whose taps are moved by ``dy`` rows and ``dx`` columns, each [N, 9, H, W]."""
    _, h, w = x.shape
    taps = np.arange(9).reshape(9, 1, 1)
    rows = np.arange(h).reshape(1, h, 1) + taps // 3 - 1 + dy
    columns = np.arange(w).reshape(1, 1, w) + taps % 3 - 1 + dx
    return (sampled(x.astype(np.float64), rows, columns) * weight.reshape(9, 1, 1)).sum(1)


@accord.operator("tales::DeformSample")
def deform(
    x: Tensor["float32", "N", "H", "W"],
    offset: Tensor["float32", "N", 18, "H", "W"],
    weight: Tensor["float32", 9],
) -> Tensor["float32", "N", "H", "W"]:
    """Deformable convolution of one channel. ``offset``: for each tap in turn its rows, then its columns, in pixels."""
    return deformed(x, offset[:, 0::2].astype(np.float64), offset[:, 1::2].astype(np.float64), weight)


deform.values(offset=Values(spread=1.5))


def kernel(name, read):
    """Declare a kernel that reads the offsets in its own way."""

    @deform.python(name=name)
    def compute(x, offset, weight):
        dy, dx = read(offset.astype(np.float64))
        return deformed(x, dy, dx, weight.astype(np.float64)).astype(x.dtype)

    return compute


KERNELS = {
    "columns-first": kernel("columns-first", lambda o: (o[:, 1::2], o[:, 0::2])),
    "two-halves": kernel("two-halves", lambda o: (o[:, :9], o[:, 9:])),
    "fractions-of-size": kernel(
        "fractions-of-size", lambda o: (o[:, 0::2] * o.shape[2] / 8, o[:, 1::2] * o.shape[3] / 8)
    ),
    "as-declared": kernel("as-declared", lambda o: (o[:, 0::2], o[:, 1::2])),
}


def main() -> None:
    """Print the greatest error of each kernel for offsets as first tests have them, and as models have them."""
    rng = np.random.default_rng(0)
    tests = {
        "no offset, 8 × 8": (8, 8, np.zeros),
        "one offset for all, 8 × 8": (8, 8, lambda shape: np.full(shape, 0.5)),
        "offsets of a model, 8 × 8": (8, 8, lambda shape: rng.normal(0, 1.5, shape)),
        "offsets of a model, 12 × 20": (12, 20, lambda shape: rng.normal(0, 1.5, shape)),
    }
    print(f"{'greatest error':<28}" + "".join(f"{k:>19}" for k in KERNELS))
    for name, (h, w, offsets) in tests.items():
        x = rng.standard_normal((2, h, w)).astype(np.float32)
        offset = offsets((2, 18, h, w)).astype(np.float32)
        weight = rng.standard_normal(9).astype(np.float32)
        wanted = deform(x, offset, weight)
        print(
            f"{name:<28}" + "".join(f"{np.abs(k(x, offset, weight) - wanted).max():>19.1g}" for k in KERNELS.values())
        )


if __name__ == "__main__":
    main()
