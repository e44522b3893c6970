"""Sizes compiled to Python byte code: they are computed again for each new input shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accord.ir.dims import Dim, DimLike, render

__all__ = ["compile_dims", "content_symbol"]


def content_symbol(name: str) -> str:
    """Name of the symbol that stands for the content of an input of one integer."""
    return f"the value of {name}"


def compile_dims(dims: Sequence[DimLike], symbols: Sequence[str]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """A function from the values of ``symbols`` (in order) to the values of ``dims``.

    Sizes are computed again for each new input shape, so they are compiled once to Python byte code.

    Raises:
        KeyError: a dimension uses a symbol that is not listed.
    """
    index = {name: i for i, name in enumerate(symbols)}
    unique = {d: f"v{i}" for i, d in enumerate(dict.fromkeys(d for d in dims if isinstance(d, Dim)))}
    lines = ["def sizes(s):"]
    lines += [f"    {var} = {render(d, lambda name: f's[{index[name]}]')}" for d, var in unique.items()]
    items = ", ".join(unique[d] if isinstance(d, Dim) else str(d) for d in dims)
    lines.append(f"    return ({items}{',' if len(dims) == 1 else ''})")
    scope: dict[str, object] = {"broadcast": _broadcast_int, "min": min, "max": max}
    exec("\n".join(lines), scope)
    return scope["sizes"]  # type: ignore[return-value]


def _broadcast_int(*sizes: int) -> int:
    return next((s for s in sizes if s != 1), 1)
