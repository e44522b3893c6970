"""A normal form for formulas of one tensor with means and sums in them.

Exporters write one formula in many ways: ``mean((x - mean(x))**2)`` or ``mean(x**2) - mean(x)**2``, a division by
``sqrt(v)`` or a product with ``v**-0.5``, scale and shift around the difference or inside it. Brought to one form,
a sum of products, they are equal. A formula is a polynomial whose coefficients are arrays of constants and whose
atoms are the variable, its sums over axes, roots of polynomials, exponentials and logarithms. The rules that bring it
there are those of school algebra, so nothing depends on the exporter, on sizes, or on the axes' order in memory:

- sums are linear, and factors that do not vary along the axes move out of them;
- ``exp(a + b) = exp(a) exp(b)``, and ``log`` of one product is a sum;
- powers multiply where the base cannot be negative.

Values between may lack axes or have them in another order (``keepdims=0``, Unsqueeze, Transpose): each is kept with
the axis of the variable that each of its axes is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from accord.ir.dims import Shape

__all__ = [
    "Algebra",
    "Atom",
    "Base",
    "Exp",
    "Floats",
    "Layout",
    "Log",
    "Monomial",
    "Poly",
    "Reduced",
    "Size",
    "Term",
    "UnfitError",
    "Variable",
]

Floats: TypeAlias = npt.NDArray[np.float64]
#: Atom and its exponent, sorted by the atom's number.
Monomial: TypeAlias = tuple[tuple[int, float], ...]
#: Monomial → its coefficient: an array of the variable's rank, of size 1 along each axis where it does not vary.
Poly: TypeAlias = dict[Monomial, Floats]
#: For each axis of a value the axis of the variable that it is; None for one of size 1 that was put in.
Layout: TypeAlias = tuple[int | None, ...]


class UnfitError(Exception):
    """The formula has a form that the algebra does not cover; the text says which."""


@dataclass(frozen=True, slots=True)
class Variable:
    """The variable."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an axis of the variable that is only known at run time."""

    axis: int


@dataclass(frozen=True, slots=True)
class Reduced:
    """The sum ("sum") or the greatest ("max") of a product over axes of the variable."""

    kind: str
    of: Monomial
    axes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Base:
    """A polynomial of several terms that a power is taken of; ``number`` finds it in :attr:`Algebra.bases`."""

    number: int


@dataclass(frozen=True, slots=True)
class Exp:
    """``exp`` of a product."""

    of: Monomial


@dataclass(frozen=True, slots=True)
class Log:
    """``log`` of an atom."""

    of: int


Atom: TypeAlias = Variable | Size | Reduced | Base | Exp | Log


@dataclass(frozen=True, slots=True)
class Term:
    """The formula of a value, and which of the variable's axes its axes are."""

    poly: Poly
    layout: Layout


class Algebra:
    """Arithmetic with formulas of one variable.

    Args:
        shape: The variable's shape.

    Attributes:
        bases: Polynomials that powers are taken of.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rank = len(shape)
        self.bases: list[Poly] = []
        self._atoms: list[Atom] = []
        self._numbers: dict[Atom, int] = {}
        self._axes: dict[int, frozenset[int]] = {}
        self.variable = self.number(Variable())

    # atoms

    def number(self, atom: Atom) -> int:
        """The number that stands for ``atom`` in monomials."""
        if atom not in self._numbers:
            self._numbers[atom] = len(self._atoms)
            self._atoms.append(atom)
        return self._numbers[atom]

    def atom(self, number: int) -> Atom:
        """The atom with this number."""
        return self._atoms[number]

    def varies(self, number: int) -> frozenset[int]:
        """Axes along which an atom may have different values."""
        if number not in self._axes:
            self._axes[number] = self._varies(self._atoms[number])
        return self._axes[number]

    def _varies(self, atom: Atom) -> frozenset[int]:
        match atom:
            case Variable():
                return frozenset(range(self.rank))
            case Size():
                return frozenset()
            case Reduced():
                return self._monomial_varies(atom.of) - atom.axes
            case Exp():
                return self._monomial_varies(atom.of)
            case Log():
                return self.varies(atom.of)
            case Base():
                return self.poly_varies(self.bases[atom.number])

    def _monomial_varies(self, monomial: Monomial) -> frozenset[int]:
        return frozenset().union(*(self.varies(a) for a, _ in monomial))

    def poly_varies(self, poly: Poly) -> frozenset[int]:
        """Axes along which a formula may have different values."""
        out: frozenset[int] = frozenset()
        for monomial, c in poly.items():
            out |= self._monomial_varies(monomial) | {i for i, d in enumerate(c.shape) if d != 1}
        return out

    def _never_negative(self, number: int, exponent: float) -> bool:
        if not float(exponent).is_integer() or exponent % 2 == 0:
            return True  # a power that is not whole exists only where the base is not negative
        atom = self._atoms[number]
        if isinstance(atom, Reduced):
            return all(self._never_negative(a, e) for a, e in atom.of)
        return isinstance(atom, Exp | Size)

    # construction

    def constant(self, value: float | Floats) -> Poly:
        """A constant; arrays are of the variable's rank."""
        array = np.asarray(value, dtype=np.float64)
        return {(): array.reshape([1] * self.rank) if array.size == 1 else array}

    def x(self) -> Term:
        """The variable."""
        one = np.ones([1] * self.rank)
        return Term({((self.variable, 1.0),): one}, tuple(range(self.rank)))

    def align(self, array: npt.NDArray[np.generic], layout: Layout) -> Term:
        """A constant that is broadcast against a value of ``layout``.

        Where that value has an axis of size 1 that was put in, the constant's axis is taken to be the variable's at
        that place; should it be another, the value will not fit what it meets later.

        Raises:
            UnfitError: it broadcasts that value to more elements than the variable has.
        """
        if array.size == 1:
            return Term(self.constant(float(array.reshape(-1)[0])), (None,) * array.ndim)
        padded = (None,) * (array.ndim - len(layout)) + layout
        entries = list(padded[len(padded) - array.ndim :])
        shape = [1] * self.rank
        axes: list[tuple[int, int]] = []
        for position, size in enumerate(array.shape):
            if size == 1:
                continue
            entry = entries[position]
            if entry is None:
                entry = self.rank - array.ndim + position
                if entry < 0 or entry in layout or self.shape[entry] != size:
                    raise UnfitError("a constant also broadcasts the value")
                entries[position] = entry
            shape[entry] = size
            axes.append((entry, position))
        order = [p for _, p in sorted(axes)]
        rest = [p for p in range(array.ndim) if p not in order]
        data = np.asarray(array, dtype=np.float64).transpose([*rest, *order]).reshape(shape)
        return Term({(): data}, tuple(entries))

    # arithmetic

    @staticmethod
    def add(a: Poly, b: Poly) -> Poly:
        """``a + b``."""
        out = dict(a)
        for monomial, c in b.items():
            out[monomial] = out[monomial] + c if monomial in out else c
        return {m: c for m, c in out.items() if c.any()}

    def scale(self, a: Poly, factor: float) -> Poly:
        """``a * factor``."""
        return {m: np.asarray(c * factor) for m, c in a.items()}

    def multiply(self, a: Poly, b: Poly) -> Poly:
        """``a * b``."""
        out: Poly = {}
        for m1, c1 in a.items():
            for m2, c2 in b.items():
                out = self.add(out, {_merge(m1, m2): np.asarray(c1 * c2)})
        return out

    def power(self, a: Poly, exponent: float) -> Poly:
        """``a ** exponent``.

        Raises:
            UnfitError: the base may be negative and the exponent is not whole, or the base is zero.
        """
        if len(a) == 1:
            ((monomial, c),) = a.items()
            whole = float(exponent).is_integer()
            safe = whole or (bool((c > 0).all()) and all(self._never_negative(n, e) for n, e in monomial))
            if safe and bool(c.all()):
                return {tuple((n, e * exponent) for n, e in monomial): np.asarray(c**exponent)}
            if not c.all():
                raise UnfitError("a constant that is divided by is zero")
        if exponent in (1, 2, 3):
            out = a
            for _ in range(int(exponent) - 1):
                out = self.multiply(out, a)
            return out
        if not a:
            raise UnfitError("a power of zero")
        return {((self._base(a), float(exponent)),): np.ones([1] * self.rank)}

    def _base(self, poly: Poly) -> int:
        for i, known in enumerate(self.bases):
            if known.keys() == poly.keys() and all(np.array_equal(known[m], poly[m]) for m in poly):
                return self.number(Base(i))
        self.bases.append(poly)
        return self.number(Base(len(self.bases) - 1))

    # functions

    def sum(self, a: Poly, axes: frozenset[int]) -> Poly:
        """Sum over ``axes`` of the variable.

        Raises:
            UnfitError: a constant varies along the axes.
        """
        out: Poly = {}
        for monomial, c in a.items():
            if any(c.shape[i] != 1 for i in axes):
                raise UnfitError("a constant varies along the axes of a sum")
            inner = tuple((n, e) for n, e in monomial if self.varies(n) & axes)
            outer = tuple((n, e) for n, e in monomial if not self.varies(n) & axes)
            # Along these axes the factors inside are constant: as many equal terms as the axes have elements.
            along = self._monomial_varies(inner) & axes
            size, sizes = self.elements(axes - along)
            if inner:
                outer = _merge(outer, ((self._sum_atom(inner, along), 1.0),))
            out = self.add(out, {_merge(outer, sizes): np.asarray(c * size)})
        return out

    def _sum_atom(self, inner: Monomial, axes: frozenset[int]) -> int:
        if len(inner) == 1 and inner[0][1] == 1:
            atom = self._atoms[inner[0][0]]
            if isinstance(atom, Reduced) and atom.kind == "sum":  # a sum of sums
                return self.number(Reduced("sum", atom.of, atom.axes | axes))
        return self.number(Reduced("sum", inner, axes))

    def mean(self, a: Poly, axes: frozenset[int]) -> Poly:
        """Mean over ``axes`` of the variable."""
        size, sizes = self.elements(axes)
        if not size:
            raise UnfitError("the mean of nothing")
        inverse: Poly = {tuple((n, -e) for n, e in sizes): np.full([1] * self.rank, 1 / size)}
        return self.multiply(self.sum(a, axes), inverse)

    def elements(self, axes: Iterable[int]) -> tuple[int, Monomial]:
        """The number of elements along ``axes``: what is known of it, and the sizes that are not."""
        size, unknown = 1, []
        for axis in sorted(axes):
            d = self.shape[axis]
            if isinstance(d, int):
                size *= d
            else:
                unknown.append((self.number(Size(axis)), 1.0))
        return size, tuple(sorted(unknown))

    def maximum(self, a: Poly, axes: frozenset[int]) -> Poly:
        """The greatest along ``axes``.

        Raises:
            UnfitError: of something other than the variable times a positive constant.
        """
        if len(a) == 1:
            ((monomial, c),) = a.items()
            if c.size == 1 and float(c.reshape(())) > 0:
                return {((self.number(Reduced("max", monomial, axes)), 1.0),): c}
        raise UnfitError("the greatest of a sum")

    def exp(self, a: Poly) -> Poly:
        """``exp(a)``.

        Raises:
            UnfitError: a factor of the exponent is not one number.
        """
        out = self.constant(1.0)
        for monomial, c in a.items():
            if c.size != 1:
                raise UnfitError("a constant in the exponent varies")
            exponent = float(c.reshape(()))
            factor = self.constant(math.exp(exponent)) if not monomial else self._exp_atom(monomial, exponent)
            out = self.multiply(out, factor)
        return out

    def _exp_atom(self, monomial: Monomial, exponent: float) -> Poly:
        if len(monomial) == 1 and monomial[0][1] == 1 and isinstance(atom := self._atoms[monomial[0][0]], Log):
            return {((atom.of, exponent),): np.ones([1] * self.rank)}
        return {((self.number(Exp(monomial)), exponent),): np.ones([1] * self.rank)}

    def log(self, a: Poly) -> Poly:
        """``log(a)`` of a product.

        Raises:
            UnfitError: of a sum, or of something that may be negative.
        """
        if len(a) != 1:
            raise UnfitError("the logarithm of a sum")
        ((monomial, c),) = a.items()
        if not (c > 0).all() or not all(self._never_negative(n, e) for n, e in monomial):
            raise UnfitError("the logarithm of something that may be negative")
        out = {m: k for m, k in self.constant(np.log(c)).items() if k.any()}
        for number, exponent in monomial:
            atom = self._atoms[number]
            term: Monomial = atom.of if isinstance(atom, Exp) else ((self.number(Log(number)), 1.0),)
            out = self.add(out, {term: np.full([1] * self.rank, exponent)})
        return out


def _merge(a: Monomial, b: Monomial) -> Monomial:
    out = dict(a)
    for n, e in b:
        out[n] = out.get(n, 0.0) + e
    return tuple(sorted((n, e) for n, e in out.items() if e))


def uniform(value: Mapping[Monomial, Floats], monomial: Monomial) -> float | None:
    """The coefficient of ``monomial`` if it is one number (0 where it is absent), else None."""
    c = value.get(monomial)
    if c is None:
        return 0.0
    return float(c.reshape(())) if c.size == 1 else None
