"""Which cases are tried: sizes from the contract's names and conditions, dtypes, attributes, absent inputs."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from accord.contract.contract import Attribute, Contract, KernelDeclaration, Semantic
from accord.contract.dtypes import ONNX_TYPES, short_name
from accord.contract.registry import BUILT_IN
from accord.contract.sizes import names_in, parse
from accord.workbench.cases import FLOATS, Case, accepts, dtype_of, holds, input_shapes, size_names

__all__ = ["EDGES", "Explorer", "elements"]

#: Sizes around those for which kernels have blocks, vectors and tails.
EDGES = (1, 2, 3, 0, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 6, 10, 12, 13,
         24, 48, 96, 97, 100, 192, 384, 509, 511, 512, 513, 768, 1000, 1023, 1024, 1025, 1536, 4099)  # fmt: skip
_SMALL = (1, 2, 3, 4, 5, 6, 8, 12)
_LEADS = ((), (1,), (5,), (2, 3), (0,), (3, 1, 2), (17,))
_SHAPES = ((3, 5), (7,), (), (2, 3, 4), (1, 1), (0, 3), (17,), (2, 3, 4, 5), (33, 9), (257,), (4, 1025))
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
#: Types that cases can be made for, the most telling first.
_TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int8", "int64", "uint8", "int16", "uint16", "uint32",
          "uint64", "bool", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")  # fmt: skip
#: Where a contract names no types, as many as any kernel may be given.
_USUAL = ("float32", "float64", "float16")
_TRIES = 200


def elements(s: Semantic, case: Case) -> int:
    """Number of elements of the largest input."""
    return max((math.prod(x) for x in input_shapes(s, case) if x is not None), default=0)


class Explorer:
    """Cases for one kernel.

    Args:
        contract: Of the operator.
        kernel: Its kernel; None for the reference.
        seed: Everything follows from it.
        most: Elements of the largest input.
    """

    def __init__(self, contract: Contract, kernel: KernelDeclaration | None, seed: int, most: int = 200_000) -> None:
        self.contract = contract
        self.kernel = kernel
        self.most = most
        self._s = contract.semantic
        self._rng = np.random.default_rng(seed)
        self.names = size_names(self._s)
        self.conditions = (*self._s.constraints, *(kernel.constraints if kernel is not None else ()))
        self._mentioned = {n for c in self.conditions for n in names_in(c)} | {
            n for p in (*self._s.inputs, *self._s.outputs) for x in p.sizes or () if isinstance(x, str) and x != "..."
            for n in names_in(x)
        }  # fmt: skip
        # sizes that the conditions speak of
        self._told = sorted({n * k for c in self.conditions for n in _numbers_in(c) for k in (1, 2, 3) if 1 < n < 8192})
        self.open = any("..." in (p.sizes or ()) for p in self._s.inputs)
        self.unsized = [p.name for p in self._s.inputs if p.sizes is None]
        #: What is always left out: of ONNX's operators, whose schemas name no sizes, the inputs that need not be.
        self.absent = tuple(p.name for p in self._s.inputs if p.option == "optional" and self._s.domain in BUILT_IN)

    # dtypes

    def types(self) -> list[dict[str, str]]:
        """Assignments of dtypes to type variables, the most usual first."""
        allowed = {v: self._allowed(v) for v in self._s.types if any(p.type == v for p in self._s.inputs)}
        found: list[dict[str, str]] = []
        for i in range(max((len(a) for a in allowed.values()), default=1)):
            found.append({v: a[i % len(a)] for v, a in allowed.items() if a})
        return found

    def _allowed(self, variable: str) -> list[str]:
        own = None if self.kernel is None else self.kernel.types.get(variable)
        all_types = own if own is not None else self._s.types[variable]
        names = {short_name(t) for t in all_types}
        if names >= set(ONNX_TYPES):
            return list(_USUAL)
        found = [t for t in _TYPES if t in names]
        # a reference is written to be read, and evaluated in float64: how exact it is in small types is not promised
        wide = [t for t in found if t not in ("float16", "bfloat16")]
        return wide if self.kernel is None and wide else found

    # attributes

    def attributes(self) -> list[dict[str, Any]]:
        """Attributes to try: the defaults, then each one changed."""
        base = {a.name: _required(a) for a in self._s.attributes.values() if a.required}
        found = [base]
        for a in self._s.attributes.values():
            if a.name not in self._mentioned:
                found += [{**base, a.name: v} for v in _others(a)]
        return found

    # sizes

    def case(self, *, plain: bool = True, **fixed: Any) -> Case | None:
        """A case with small sizes in which those in ``fixed`` are as given; None if there is none.

        Args:
            plain: Attributes that sizes depend on have their defaults where that can be; else they have other values.
            fixed: ``sizes``, ``lead``, ``attributes`` and other fields of a case.
        """
        if not self.open:
            fixed.pop("lead", None)
        return self._search(dict(fixed.pop("sizes", {})), fixed, plain=plain)

    def _search(self, sizes: Mapping[str, int], fixed: Mapping[str, Any], *, plain: bool) -> Case | None:
        attributes = dict(fixed.get("attributes", self.attributes()[0]))
        free = [n for n in self.names if n not in sizes]
        numbers = [
            a.name
            for a in self._s.attributes.values()
            if a.kind == "INT" and a.name in self._mentioned and a.name not in fixed.get("attributes", {})
        ]
        rest = {k: v for k, v in fixed.items() if k != "attributes"}
        if self.open and "lead" not in rest:
            rest["lead"] = _LEADS[int(self._rng.integers(1, 4))]
        if self.unsized and "shapes" not in rest:
            rest["shapes"] = dict.fromkeys(self.unsized, _SHAPES[0])
        if self.absent:
            rest.setdefault("nulls", self.absent)
        usual = {n: self._s.attributes[n].default for n in numbers}
        for attempt in range(_TRIES):
            pool = _SMALL if attempt < _TRIES // 4 else (*_SMALL, *EDGES[2:20], *self._told, *self._told)
            drawn = {n: int(self._rng.choice(pool)) for n in free}
            chosen = {n: int(self._rng.choice(self._numbers(n, {**drawn, **sizes}))) for n in numbers}
            if (attempt % 2 == 0) == plain:
                chosen |= {n: v for n, v in usual.items() if v is not None}
            changed = {n: v for n, v in chosen.items() if v != usual[n]}
            case = Case(sizes={**drawn, **sizes}, attributes={**attributes, **changed}, **rest)
            if self.fits(case):
                return case
        return None

    def _numbers(self, name: str, sizes: Mapping[str, int]) -> Sequence[int]:
        """Values of an attribute that sizes depend on, beside its default: 1 and the sizes as often as what divides."""
        default, choices = self._s.attributes[name].default, self._s.attributes[name].choices
        if choices:
            return [c for c in choices if c != default] or list(choices)
        if isinstance(default, bool):
            return [int(not default)]
        known = {n for n in sizes.values() if n > 0}
        if self._rng.random() < 0.5:
            return sorted({1, *known} - {default}) or [1]
        return sorted({1, 2, 3, 4, 8, *(d for n in known for d in range(1, min(n, 64) + 1) if n % d == 0)} - {default})

    def fits(self, case: Case) -> bool:
        """Whether the contract and the kernel take a case, and it is not too large."""
        if not accepts(self.contract, case) or not holds(self.contract, self.conditions, case):
            return False
        return all(math.prod(x) <= self.most for x in input_shapes(self._s, case) if x is not None)

    def __iter__(self) -> Iterator[Case]:
        """Endlessly many cases: each size in turn at each edge, then anything.

        Types, kinds of attributes, sides of memory and patterns take turns, so that each meets each.
        """
        types, attributes = self.types(), self.attributes()
        turn = 0
        rounds: list[dict[str, Any]] = [{}]
        for edge in (*EDGES, *(n + d for n in self._told for d in (0, -1, 1))):
            rounds += [{"sizes": {n: edge}} for n in self.names]
        rounds += [{"lead": lead} for lead in _LEADS if self.open]
        rounds += [{"shapes": dict.fromkeys(self.unsized, shape)} for shape in _SHAPES if self.unsized]
        while True:
            for fixed in rounds:
                given = attributes[turn % len(attributes)] if turn % 2 else attributes[0]
                case = self.case(**fixed, attributes=given, plain=turn % 4 < 2)
                turn += 1
                if case is not None:
                    yield case.but(
                        types=types[turn % len(types)] if turn > 3 else types[0],
                        side=("end", "begin", "skew")[turn % 3],
                        fill=("nan", "bits")[turn % 2],
                        seed=turn,
                    )
            if turn == 0:
                return
            rounds = [{"sizes": {n: int(self._rng.choice(EDGES)) for n in self.names}} for _ in range(50)]
            for r in rounds:
                if self.open:
                    r["lead"] = _LEADS[int(self._rng.integers(len(_LEADS)))]
                if self.unsized:
                    r["shapes"] = dict.fromkeys(self.unsized, _SHAPES[int(self._rng.integers(len(_SHAPES)))])

    def typical(self, **fixed: Any) -> Case | None:
        """A case of middling size, whose sizes differ from each other where they can."""
        for pool in ((5, 12, 6, 16, 7), (6, 4, 8, 12, 10), (4, 8, 16, 8, 4)):
            sizes = {n: pool[i % len(pool)] for i, n in enumerate(self.names)}
            case = self.case(**{"sizes": sizes, "lead": (3,) if self.open else (), **fixed})
            if case is not None:
                return case
        return self.case(**fixed)

    def long(self, name: str, length: int, **fixed: Any) -> Case | None:
        """A case in which one size is ``length`` (or a little more, where conditions ask for it)."""
        for n in range(length, length + 17):
            case = self.case(**fixed, sizes={name: n})
            if case is not None:
                return case
        return None

    def floats(self, case: Case) -> list[str]:
        """Names of the inputs that are floats in a case."""
        return [p.name for p in self._s.inputs if p.name not in case.nulls and dtype_of(p, case) in FLOATS]


def _numbers_in(condition: str) -> list[int]:
    return [n.value for n in ast.walk(parse(condition)) if isinstance(n, ast.Constant) and isinstance(n.value, int)]


def _required(a: Attribute) -> Any:
    if a.choices:
        return a.choices[0]
    return {"INT": 1, "FLOAT": 0.5, "STRING": "", "INTS": [1], "FLOATS": [0.5], "STRINGS": [""]}.get(a.kind, 0)


def _others(a: Attribute) -> list[Any]:
    """Values beside the default that an attribute probably takes."""
    d = a.default
    if a.choices:
        return [c for c in a.choices if c != d]
    if a.kind == "FLOAT":
        return [0.25, 1.5] if d in (None, 0.0) else [d * 8, d / 2]
    if a.kind == "INT":
        return [not d] if isinstance(d, bool) else [0, 1, 2, 3]
    if a.kind == "INTS" and d:
        return [[*d[:-1], d[-1] + 1]]
    if a.kind == "FLOATS" and d:
        return [[v * 2 for v in d]]
    return []
