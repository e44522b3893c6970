"""The text of what a contraction does to know the deviations of the rows that it stores.

Each tile leaves the mean of its columns, and the sum of squared deviations from it, for each of its rows. Who comes
last to a row, which programs find by counting, puts these together, always in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accord.backends.cuda.contraction_writer import Writer

__all__ = ["settle", "spread"]


def spread(w: Writer, value: str) -> None:
    """Add columns of a tile to ``mean`` and ``away``, the sum of squared deviations from it, of those ``before``.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    assert w.k.deviation is not None
    w.emit("width = tl.minimum(tl.maximum(N - column, 0), n.shape[0]).to(tl.float32)")
    w.emit(f"x = tl.where(n_in[None, :], {value}.to(tl.float32), 0.0)")
    if not w.k.deviation.centred:
        w.emit("away += tl.sum(x * x, 1)")
        return
    w.emit("own = tl.sum(x, 1) / tl.maximum(width, 1.0)")
    w.emit("x = tl.where(n_in[None, :], x - own[:, None], 0.0)")
    _join(w, "own", "tl.sum(x * x, 1)", "before")


def _join(w: Writer, mean: str, away: str, before: str) -> None:
    """Add ``width`` numbers with this mean and these squares to the ``before`` that there are."""
    w.emit(f"share = width / tl.maximum(width + {before}, 1.0)")
    w.emit(f"gap = {mean} - mean")
    w.emit(f"away += {away} + gap * gap * share * {before}")
    w.emit("mean += gap * share")


def settle(w: Writer, height: str, meet: str) -> None:
    """Leave what is known of a tile's rows; who comes last to these rows makes their deviations.

    Args:
        w: Of the function.
        height: Rows that are counted together.
        meet: The line after which all warps have written.
    """
    deviation = w.k.deviation
    assert deviation is not None
    w.emit("parts += m.to(tl.int64) * across * 2")
    w.emit("tl.store(parts + column // BN * 2, mean, mask=m_in)")
    w.emit("tl.store(parts + column // BN * 2 + 1, away, mask=m_in)")
    w.emit(meet)
    w.emit(f"place = count + row // {height}")
    with w.indented("if tl.atomic_add(place, 1) == across - 1:"):
        w.emit("mean = mean * 0.0")
        w.emit("away = away * 0.0")
        with w.indented("for t in range(across):"):  # what others wrote is in the second cache
            for name, at in (("own", "t * 2"), ("left", "t * 2 + 1")):
                w.emit(f'{name} = tl.load(parts + {at}, mask=m_in, other=0.0, cache_modifier=".cg")')
            if deviation.centred:
                w.emit("front = tl.cast(t * BN, tl.float32)")
                w.emit("width = tl.minimum(tl.cast(N, tl.float32) - front, tl.cast(BN, tl.float32))")
                _join(w, "own", "left", "front")
            else:
                w.emit("away += left")
        w.emit(f"root = tl.sqrt_rn(away / tl.cast(N, tl.float32) + {deviation.epsilon})")
        w.emit("tl.store(inverse + m, 1.0 / root, mask=m_in)")
        if deviation.mean:
            w.emit("tl.store(average + m, mean, mask=m_in)")
        w.emit("tl.store(place, 0)")
