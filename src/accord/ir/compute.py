"""Sizes compiled to Python byte code: they are computed again for each new input shape."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import Final

from accord.ir.dims import Dim, DimLike
from accord.ir.written import broadcast_sizes, statements

__all__ = ["SizeFunction", "compile_dims", "content_symbol", "representative"]

#: What a size is taken to be before any input is seen.
_LARGE: Final = 512
#: Names of the sizes of batches.
_BATCH: Final = frozenset({"n", "b", "batch", "batch_size", "batchsize"})


class SizeFunction:
    """From the values of symbols to sizes. It can be pickled, for the version of Python that made it.

    Args:
        code: Byte code of a function of one argument, the sequence of values.
    """

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._function = FunctionType(code, {"broadcast": broadcast_sizes, "min": min, "max": max})

    def __call__(self, values: Sequence[int]) -> tuple[int, ...]:
        """The sizes, in order."""
        found: tuple[int, ...] = self._function(values)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return _revived, (marshal.dumps(self._code),)


def _revived(code: bytes) -> SizeFunction:
    return SizeFunction(marshal.loads(code))


def content_symbol(name: str) -> str:
    """Name of the symbol that stands for the content of an input of one integer."""
    return f"the value of {name}"


def representative(symbol: str) -> int:
    """What a symbol is taken to be before any input is seen: batches of one, other sizes large."""
    return 1 if symbol.endswith(".0") or symbol.lower() in _BATCH else _LARGE


def compile_dims(dims: Sequence[DimLike], symbols: Sequence[str]) -> SizeFunction:
    """A function from the values of ``symbols`` (in order) to the values of ``dims``.

    Sizes are computed again for each new input shape, so they are compiled once to Python byte code.

    Raises:
        KeyError: a dimension uses a symbol that is not listed.
    """
    index = {name: i for i, name in enumerate(symbols)}
    unique = {d: f"v{i}" for i, d in enumerate(dict.fromkeys(d for d in dims if isinstance(d, Dim)))}
    made, texts = statements(unique, lambda name: f"s[{index[name]}]")
    body = [*made, *(f"{v} = {t}" for v, t in zip(unique.values(), texts, strict=True))]
    body.append(f"return ({''.join(f'{unique[d] if isinstance(d, Dim) else d}, ' for d in dims)})")
    lines = ["def sizes(s):", *(f"    {line}" for line in body)]
    (code,) = (c for c in compile("\n".join(lines), "<sizes>", "exec").co_consts if isinstance(c, CodeType))
    return SizeFunction(code)
