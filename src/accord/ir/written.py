"""Sizes as Python text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accord.ir.dims import DimLike

__all__ = ["broadcast_sizes", "render", "statements"]


def broadcast_sizes(*sizes: int) -> int:
    """What the text calls ``broadcast``: the one of ``sizes`` that is not 1, if any."""
    return next((s for s in sizes if s != 1), 1)


def render(d: DimLike, name_of: Callable[[str], str]) -> str:
    """Text of ``d`` with each symbol written as ``name_of`` says."""

    def text(atom: Any) -> str:
        return name_of(atom.name) if _is_symbol(atom) else _called(atom, [render(a, name_of) for a in atom.args])

    return _written(d, text)


def statements(dims: Iterable[DimLike], name_of: Callable[[str], str]) -> tuple[list[str], list[str]]:
    """Statements that compute each operation once, and the texts of ``dims`` in terms of their variables.

    Nested sizes share most of what they are made of: written out, they can be longer by orders of magnitude.
    """
    lines: list[str] = []
    made: dict[Any, str] = {}

    def text(atom: Any) -> str:
        if _is_symbol(atom):
            return name_of(atom.name)
        if atom not in made:
            call = _called(atom, [_written(a, text) for a in atom.args])
            made[atom] = f"t{len(made)}"
            lines.append(f"{made[atom]} = {call}")
        return made[atom]

    return lines, [_written(d, text) for d in dims]


def _is_symbol(atom: Any) -> bool:
    return hasattr(atom, "name")


def _called(atom: Any, args: Sequence[str]) -> str:
    return f"(({args[0]})//({args[1]}))" if atom.function == "floordiv" else f"{atom.function}({', '.join(args)})"


def _written(d: DimLike, text: Callable[[Any], str]) -> str:
    if isinstance(d, int):
        return str(d)
    parts = []
    for monomial, coefficient in d.terms:
        factors = [text(atom) for atom in monomial]
        if not factors:
            parts.append(str(coefficient))
        elif coefficient == 1:
            parts.append("*".join(factors))
        elif coefficient == -1:
            parts.append("-" + "*".join(factors))
        else:
            parts.append(f"{coefficient}*" + "*".join(factors))
    return " + ".join(parts).replace("+ -", "- ")
