"""Symbolic integers for tensor shapes: polynomials over symbols, floor division, minimum, maximum.

A dimension is an ``int`` or a :class:`Dim`. Every operation returns an ``int`` when the result is known, so code
that works on shapes needs no case distinction. Expressions are kept in one canonical form (expanded polynomial with
sorted terms): equal expressions compare equal and hash alike, and ``(a*b*c) // (a*b)`` is ``c``.

Symbols stand for sizes and are therefore assumed to be at least their ``lower`` bound (0 unless said otherwise).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeGuard, Union

from accord.ir.written import broadcast_sizes, render
from accord.record import record

__all__ = [
    "Dim",
    "DimLike",
    "Shape",
    "broadcast",
    "ceildiv",
    "evaluate",
    "floordiv",
    "is_known",
    "known_product",
    "lower_bound",
    "maximum",
    "minimum",
    "modulo",
    "product",
    "proves_le",
    "render",
    "substitute",
    "symbol",
    "symbols_of",
    "upper_bound",
]


@record
class _Symbol:
    name: str
    lower: int

    def key(self) -> str:
        return f"s:{self.name}"


@record
class _Call:
    """An operation that is not a polynomial: ``floordiv``, ``min``, ``max``, ``broadcast``."""

    function: str
    args: tuple[DimLike, ...]

    def key(self) -> str:
        return f"t:{self.function}({','.join(_sort_key(a) for a in self.args)})"


_Atom: TypeAlias = _Symbol | _Call
_Monomial: TypeAlias = tuple[_Atom, ...]
DimLike: TypeAlias = Union[int, "Dim"]
Shape: TypeAlias = tuple[DimLike, ...]


def _sort_key(d: DimLike) -> str:
    return str(d)


class Dim:
    """An integer expression that is not known yet. Immutable and hashable; see the module's text.

    Built by :func:`symbol` and arithmetic, never directly.
    """

    __slots__ = ("_hash", "_high", "_low", "_symbols", "_text", "_weight", "terms")

    def __init__(self, terms: tuple[tuple[_Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None
        self._symbols: frozenset[str] | None = None
        self._weight = 0
        # Bounds that were asked for: () while unknown, else the answer in a tuple. Atoms are shared between
        # expressions, so that nested ones would otherwise be walked again and again.
        self._low: tuple[int | None, ...] = ()
        self._high: tuple[int | None, ...] = ()

    @property
    def weight(self) -> int:
        """How many symbols, operations and coefficients the expression has when it is written out."""
        if not self._weight:
            self._weight = sum(1 + sum(_atom_weight(a) for a in monomial) for monomial, _ in self.terms)
        return self._weight

    # arithmetic

    def __add__(self, other: DimLike) -> DimLike:
        return _from_terms(_sum(_terms(self), _terms(other)))

    __radd__ = __add__

    def __neg__(self) -> DimLike:
        return self * -1

    def __sub__(self, other: DimLike) -> DimLike:
        return self + (other * -1)

    def __rsub__(self, other: DimLike) -> DimLike:
        return other + (self * -1)

    def __mul__(self, other: DimLike) -> DimLike:
        if isinstance(other, int):
            return _from_terms({m: c * other for m, c in self.terms})
        out: dict[_Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                m = tuple(sorted(m1 + m2, key=_atom_key))
                out[m] = out.get(m, 0) + c1 * c2
        return _from_terms(out)

    __rmul__ = __mul__

    def __floordiv__(self, other: DimLike) -> DimLike:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> DimLike:
        return floordiv(other, self)

    def __mod__(self, other: DimLike) -> DimLike:
        return modulo(self, other)

    # comparison

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self._hash == other._hash and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        raise TypeError(f"the size {self} is not known yet, so it has no truth value")

    def __str__(self) -> str:
        if self._text is None:
            self._text = render(self, lambda name: name)
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __reduce__(self) -> tuple[type[Dim], tuple[tuple[tuple[_Monomial, int], ...]]]:
        return (Dim, (self.terms,))


def _atom_key(atom: _Atom) -> str:
    return atom.key()


def _atom_weight(atom: _Atom) -> int:
    if isinstance(atom, _Symbol):
        return 1
    return 1 + sum(a.weight if isinstance(a, Dim) else 1 for a in atom.args)


def _terms(d: DimLike) -> dict[_Monomial, int]:
    if isinstance(d, Dim):
        return dict(d.terms)
    return {(): int(d)} if d else {}


def _sum(a: dict[_Monomial, int], b: dict[_Monomial, int]) -> dict[_Monomial, int]:
    out = dict(a)
    for m, c in b.items():
        out[m] = out.get(m, 0) + c
    return out


def _monomial_key(m: _Monomial) -> tuple[int, tuple[str, ...]]:
    return (-len(m), tuple(a.key() for a in m))


def _from_terms(terms: Mapping[_Monomial, int]) -> DimLike:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(tuple(sorted(kept.items(), key=lambda t: _monomial_key(t[0]))))


def _atom(atom: _Atom) -> Dim:
    return Dim((((atom,), 1),))


def symbol(name: str, lower: int = 0) -> Dim:
    """A new unknown size called ``name``, at least ``lower``."""
    return _atom(_Symbol(name, lower))


def product(dims: Iterable[DimLike]) -> DimLike:
    """The product of ``dims``; 1 for none."""
    out: DimLike = 1
    for d in dims:
        out = out * d
    return out


def floordiv(a: DimLike, b: DimLike) -> DimLike:
    """``floor(a / b)``; simplified where the division is exact or the remainder is bounded.

    Raises:
        ZeroDivisionError: ``b`` is the integer 0.
    """
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError("division of a size by zero")
        if isinstance(a, int):
            return a // b
        if b < 0:
            return floordiv(a * -1, -b)
        if b == 1:
            return a
        whole: dict[_Monomial, int] = {}
        rest: dict[_Monomial, int] = {}
        for m, c in a.terms:
            q, r = divmod(c, b)
            if m == () or r == 0:
                whole[m] = q
                rest[m] = r
            else:
                rest[m] = c
        remainder = _from_terms(rest)
        quotient = _from_terms(whole)
        if isinstance(remainder, int):
            return quotient + remainder // b
        low, high = lower_bound(remainder), upper_bound(remainder)
        if low is not None and high is not None and low // b == high // b:
            return quotient + low // b
        offset = remainder.terms[-1][1] if remainder.terms[-1][0] == () else 0
        inner = _single_call(remainder - offset, "floordiv")
        if inner is not None and isinstance(inner.args[1], int):
            # floor((floor(y / c) + k) / b) = floor((y + k c) / (b c))
            return quotient + floordiv(inner.args[0] + offset * inner.args[1], inner.args[1] * b)
        shared = math.gcd(b, *(c for m, c in remainder.terms if m))
        if shared > 1:
            # floor((g x + k) / (g b)) = floor((x + floor(k / g)) / b)
            reduced = _from_terms({m: c // shared for m, c in remainder.terms})
            return quotient + floordiv(reduced, b // shared)
        return quotient + _atom(_Call("floordiv", (remainder, b)))
    if a == b:
        return 1
    if isinstance(a, int):
        if a == 0:
            return 0
        low = lower_bound(b)
        if a >= 0 and low is not None and low > a:
            return 0
        return _atom(_Call("floordiv", (a, b)))
    exact = _exact_quotient(a, b)
    if exact is not None:
        return exact
    reduced_a, reduced_b = _without_common_factor(a, b)
    if reduced_b is not b:
        return floordiv(reduced_a, reduced_b)
    return _atom(_Call("floordiv", (a, b)))


def _without_common_factor(a: Dim, b: Dim) -> tuple[DimLike, DimLike]:
    """``a`` and ``b`` divided by the integer and the symbols that all of their terms share; themselves if none."""
    terms = (*a.terms, *b.terms)
    divisor = math.gcd(*(c for _, c in terms))
    shared = list(terms[0][0])
    for monomial, _ in terms[1:]:
        left = list(monomial)
        for atom in tuple(shared):
            if atom in left:
                left.remove(atom)
            else:
                shared.remove(atom)
    if divisor == 1 and not shared:
        return a, b
    part = tuple(shared)
    reduced = [_from_terms({_remove(m, part) or (): c // divisor for m, c in d.terms}) for d in (a, b)]
    return reduced[0], reduced[1]


def _single_call(d: DimLike, function: str) -> _Call | None:
    if isinstance(d, Dim) and len(d.terms) == 1:
        (monomial, coefficient) = d.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            atom = monomial[0]
            if isinstance(atom, _Call) and atom.function == function:
                return atom
    return None


def _exact_quotient(a: Dim, b: Dim) -> DimLike | None:
    """Polynomial division by leading terms; None unless it leaves no remainder."""
    quotient: DimLike = 0
    rest: DimLike = a
    lead_m, lead_c = b.terms[0]
    for _ in range(64):
        if rest == 0:
            return quotient
        if isinstance(rest, int):
            return None
        for m, c in rest.terms:
            reduced = _remove(m, lead_m)
            if reduced is not None and c % lead_c == 0:
                step = _from_terms({reduced: c // lead_c})
                break
        else:
            return None
        quotient = quotient + step
        rest = rest - step * b
    return None


def _remove(m: _Monomial, part: _Monomial) -> _Monomial | None:
    left = list(m)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def ceildiv(a: DimLike, b: DimLike) -> DimLike:
    """``ceil(a / b)``; for a positive integer ``b`` in the form that a convolution's output size has, too."""
    if isinstance(b, int) and b > 0:
        return floordiv(a + (b - 1), b)
    return floordiv(a * -1, b) * -1


def modulo(a: DimLike, b: DimLike) -> DimLike:
    """``a - b * floor(a / b)``, Python's sign."""
    return a - b * floordiv(a, b)


def minimum(*args: DimLike) -> DimLike:
    """The least of ``args``."""
    return _extreme("min", args, min, proves_le)


def maximum(*args: DimLike) -> DimLike:
    """The greatest of ``args``."""
    return _extreme("max", args, max, lambda x, y: proves_le(y, x))


def _extreme(
    function: str,
    args: Sequence[DimLike],
    pick: Callable[[Iterable[int]], int],
    dominates: Callable[[DimLike, DimLike], bool],
) -> DimLike:
    flat: list[DimLike] = []
    for a in args:
        inner = _single_call(a, function)
        flat.extend(inner.args if inner is not None else (a,))
    ints = [a for a in flat if isinstance(a, int)]
    items: list[DimLike] = list(dict.fromkeys(a for a in flat if not isinstance(a, int)))
    if ints:
        items.append(pick(ints))
    kept: list[DimLike] = []
    for i, a in enumerate(items):
        beaten = any(j != i and dominates(b, a) and not (dominates(a, b) and i < j) for j, b in enumerate(items))
        if not beaten:
            kept.append(a)
    if len(kept) == 1:
        return kept[0]
    return _atom(_Call(function, tuple(sorted(kept, key=_sort_key))))


def broadcast(*args: DimLike) -> DimLike:
    """The size that ``args`` broadcast to, assuming that they can: the one that is not 1, if any."""
    items: dict[DimLike, None] = {}
    for a in args:
        if isinstance(a, int):
            if a != 1:
                return a
            continue
        inner = _single_call(a, "broadcast")
        items.update(dict.fromkeys(inner.args if inner is not None else (a,)))
    for a in tuple(items):
        c = upper_bound(a)
        if c is not None and c >= 2 and any(b != a and minimum(c, b) == a for b in items):
            del items[a]  # min(c, b) is b, or a size that cannot be broadcast to b
    if len(items) <= 1:
        return next(iter(items), 1)
    return _atom(_Call("broadcast", tuple(sorted(items, key=_sort_key))))


# bounds


def lower_bound(d: DimLike) -> int | None:
    """A proven lower bound, or None."""
    if isinstance(d, int):
        return d
    if not d._low:
        d._low = (_bound(d, low=True, depth=_RELAXATIONS),)
    return d._low[0]


def upper_bound(d: DimLike) -> int | None:
    """A proven upper bound, or None."""
    if isinstance(d, int):
        return d
    if not d._high:
        d._high = (_bound(d, low=False, depth=_RELAXATIONS),)
    return d._high[0]


def _atom_bounds(atom: _Atom) -> tuple[int | None, int | None]:
    if isinstance(atom, _Symbol):
        return atom.lower, None
    lows = [lower_bound(a) for a in atom.args]
    highs = [upper_bound(a) for a in atom.args]
    known_lows = [x for x in lows if x is not None]
    known_highs = [x for x in highs if x is not None]
    if atom.function == "min":
        low = min(known_lows) if len(known_lows) == len(lows) else None
        return low, min(known_highs, default=None)
    if atom.function == "max":
        high = max(known_highs) if len(known_highs) == len(highs) else None
        return max(known_lows, default=None), high
    if atom.function == "broadcast":
        return (min(known_lows) if len(known_lows) == len(lows) else None), None
    a_low, a_high = lows[0], highs[0]
    b_low, b_high = lows[1], highs[1]
    if b_low is not None and b_low > 0 and b_low == b_high:
        return (None if a_low is None else a_low // b_low), (None if a_high is None else a_high // b_low)
    if a_low is not None and a_low >= 0 and b_low is not None and b_low >= 0:
        return 0, a_high
    return None, None


#: How many operations of an expression are replaced by a bound of theirs, one inside the other.
_RELAXATIONS = 2


def _bound(d: DimLike, *, low: bool, depth: int) -> int | None:
    if isinstance(d, int):
        return d
    direct = _bound_by_terms(d, low=low)
    if depth == 0 or len(d.terms) == 1:
        return direct
    # Terms that grow may cancel once a minimum, a maximum or a division is replaced by a bound of it:
    # max(x, 10) - x >= x - x, and 2 * ((x + 1) // 2) - x >= x + 1 - 1 - x.
    found = [] if direct is None else [direct]
    for monomial, coefficient in d.terms:
        if len(monomial) != 1 or not isinstance(monomial[0], _Call):
            continue
        call = monomial[0]
        rest = d - _from_terms({monomial: coefficient})
        below = (coefficient > 0) == low
        divisor = call.args[1] if call.function == "floordiv" else 1
        candidates: list[DimLike] = []
        if call.function == ("max" if below else "min"):
            candidates = [rest + a * coefficient for a in call.args]
        elif call.function == "floordiv" and isinstance(divisor, int):
            a = call.args[0]
            candidates = [rest * divisor + (a - (divisor - 1) if below else a) * coefficient]
        for candidate in candidates:
            bound = _bound(candidate, low=low, depth=depth - 1)
            if bound is not None and isinstance(divisor, int):
                found.append(-(-bound // divisor) if low else bound // divisor)
    return (max if low else min)(found, default=None)


def _bound_by_terms(d: Dim, *, low: bool) -> int | None:
    total = 0
    for monomial, coefficient in d.terms:
        lo, hi = 1, 1
        unbounded = False
        for atom in monomial:
            a_lo, a_hi = _atom_bounds(atom)
            if a_lo is None or a_lo < 0:
                if len(monomial) > 1:
                    return None
                if (a_lo is None) if (coefficient > 0) == low else (a_hi is None):
                    return None
            lo *= a_lo if a_lo is not None else 0
            if a_hi is None:
                unbounded = True
            else:
                hi *= a_hi
        if (coefficient > 0) == low:
            total += coefficient * lo
        elif unbounded:
            return None
        else:
            total += coefficient * hi
    return total


def proves_le(a: DimLike, b: DimLike) -> bool:
    """True if ``a <= b`` for every value of the symbols; False means *not proven*."""
    gap = lower_bound(b - a)
    return gap is not None and gap >= 0


# evaluation


def symbols_of(d: DimLike) -> frozenset[str]:
    """Names of the symbols in ``d``."""
    if isinstance(d, int):
        return frozenset()
    if d._symbols is None:
        names: set[str] = set()
        for monomial, _ in d.terms:
            for atom in monomial:
                if isinstance(atom, _Symbol):
                    names.add(atom.name)
                else:
                    names.update(*map(symbols_of, atom.args))
        d._symbols = frozenset(names)
    return d._symbols


def substitute(d: DimLike, env: Mapping[str, DimLike]) -> DimLike:
    """``d`` with each symbol named in ``env`` replaced."""
    if isinstance(d, int) or not (symbols_of(d) & env.keys()):
        return d
    total: DimLike = 0
    for monomial, coefficient in d.terms:
        term: DimLike = coefficient
        for atom in monomial:
            if isinstance(atom, _Symbol):
                term = term * env.get(atom.name, _atom(atom))
            else:
                term = term * _FUNCTIONS[atom.function](*(substitute(a, env) for a in atom.args))
        total = total + term
    return total


_FUNCTIONS: dict[str, Callable[..., DimLike]] = {
    "floordiv": floordiv,
    "min": minimum,
    "max": maximum,
    "broadcast": broadcast,
}


def evaluate(d: DimLike, env: Mapping[str, int]) -> int:
    """The value of ``d`` for the symbols' values in ``env``.

    Raises:
        KeyError: a symbol of ``d`` is not in ``env``.
        ZeroDivisionError: a division by a size that is zero.
    """
    if isinstance(d, int):
        return d
    missing = symbols_of(d) - env.keys()
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    return _value(d, env)


def _value(d: DimLike, env: Mapping[str, int]) -> int:
    if isinstance(d, int):
        return d
    total = 0
    for monomial, coefficient in d.terms:
        term = coefficient
        for atom in monomial:
            if isinstance(atom, _Symbol):
                term *= env[atom.name]
            else:
                term *= _OF_INTEGERS[atom.function](*[_value(a, env) for a in atom.args])
        total += term
    return total


_OF_INTEGERS: dict[str, Callable[..., int]] = {
    "floordiv": operator.floordiv,
    "min": min,
    "max": max,
    "broadcast": broadcast_sizes,
}


def is_known(dims: Sequence[DimLike]) -> TypeGuard[Sequence[int]]:
    """True if every one of ``dims`` is an integer."""
    return all(isinstance(d, int) for d in dims)


def known_product(dims: Sequence[DimLike]) -> int | None:
    """Product of ``dims`` if all are integers, else None."""
    return math.prod(dims) if is_known(dims) else None
