"""What a call should give: the reference, in a process of its own that no kernel ever runs in.

It is evaluated in float64, and again with its inputs changed by as much as their types round: an output that then moves
cannot be expected to be any more exact, whatever computes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from accord.contract.contract import Contract, Execution
from accord.errors import ContractError
from accord.workbench.buffers import PAGE, Image, is_float, place, unit
from accord.workbench.cases import FLOATS, Case, attributes_of, make_inputs, output_shapes
from accord.workbench.nursery import Nursery
from accord.workbench.subject import CONTIGUOUS, Child, Outcome, UnusableError, results_of

__all__ = ["Expected", "Oracle"]

Array: TypeAlias = "np.ndarray[Any, Any]"

#: Roundings of the storage type, and of the accumulation per square root of the length, that a right kernel may make.
_ROUNDINGS = 4.0
_PRECISION = {"float16": 2, "bfloat16": 1, "float32": 3, "float64": 4}


@dataclass(slots=True)
class Expected:
    """What one output should be.

    Attributes:
        value: In float64 where the output is a float and the reference takes it.
        slack: How far from it rounding may lead, beyond the tolerance; None for what is no float.
        choices: For integers that follow from floats: other values that are as good.
        own: What the reference gives in its own dtypes.
    """

    value: Array
    slack: Array | None
    choices: list[Array]
    own: Array


class Oracle:
    """The reference of an operator.

    Args:
        nursery: For its process.
        files: Users' files.
        contract: Of the operator.
    """

    def __init__(self, nursery: Nursery, files: Sequence[str], contract: Contract) -> None:
        self.contract = contract
        self.child = Child(nursery, files)
        s = contract.semantic
        self._op = [s.domain, s.name, s.since_version]

    def inputs(self, case: Case) -> list[Array | None]:
        """Inputs of a case.

        Raises:
            UnusableError: the declaration's examples do not take it.
        """
        s = self.contract.semantic
        if s.examples is None:
            return make_inputs(s, case)

        def examples(sizes: Mapping[str, int]) -> dict[str, Array]:
            message = {"do": "examples", "op": self._op, "sizes": dict(sizes), "attributes": attributes_of(s, case)}
            reply, files = self._asked({**message, "seed": case.seed})
            arrays = results_of(reply, files)
            return {n: a for n, a in zip(reply["names"], arrays, strict=True) if a is not None}

        return make_inputs(s, case, examples)

    def expected(self, case: Case, inputs: Sequence[Array | None], memory: Execution) -> list[Expected]:
        """What the outputs should be.

        Raises:
            UnusableError: the reference raises.
            ContractError: the reference crashes, hangs, or gives other outputs than declared.
        """
        s = self.contract.semantic
        sections, start = [], 0
        for x in inputs:
            if x is not None:
                sections.append(place(start, x.shape, x.dtype.name, CONTIGUOUS))
                start += sections[-1].pages * PAGE
        image = Image(sections, "nan")
        numbers = iter(range(len(sections)))
        where = [None if x is None else next(numbers) for x in inputs]
        for k, x in zip(where, inputs, strict=True):
            if k is not None:
                image.array(k)[...] = x
        spec = {"sections": image.spec(), "inputs": where, "attributes": attributes_of(s, case)}
        try:
            message = {"do": "reference", "op": self._op, "spec": spec, "seed": case.seed}
            reply, files = self._asked(message, [image.file])
        finally:
            image.close()
        arrays = results_of(reply, files)
        count = reply["outputs"]
        if count != len(s.outputs) or any(a is None for a in arrays):
            raise ContractError(
                "the reference does not give the outputs that are declared",
                op=s.qualified_name,
                expected=f"{len(s.outputs)} arrays",
                found=", ".join(str(r.get("type", r.get("dtype"))) for r in reply["results"][:count]),
            )
        runs: list[list[Any]] = [arrays[i : i + count] for i in range(0, len(arrays), count)]
        self._sizes(case, runs[0])
        return [self._one([run[o] for run in runs], inputs, memory) for o in range(count)]

    def _sizes(self, case: Case, own: Sequence[Any]) -> None:
        s = self.contract.semantic
        for p, a, shape in zip(s.outputs, own, output_shapes(s, case), strict=True):
            if shape is not None and a.shape != shape:
                raise ContractError(
                    f"the reference gives output '{p.name}' another shape than the declaration",
                    op=s.qualified_name,
                    expected=list(shape),
                    found=list(a.shape),
                    remedy=f"Correct the sizes in the annotation. The case: {case.json()}",
                )

    def _one(self, runs: Sequence[Array], inputs: Sequence[Array | None], memory: Execution) -> Expected:
        own = runs[0]
        if not is_float(own.dtype):
            return Expected(own, None, [r for r in runs[1:] if r.dtype == own.dtype or is_float(r.dtype)], own)
        value = (runs[1] if len(runs) > 1 and _finer(runs[1], own) else own).astype(np.float64)
        narrow = [x.dtype.name for x in inputs if x is not None and x.dtype.name in FLOATS]
        if len(runs) < 3 or not narrow or value.size == 0:
            return Expected(value, np.zeros(value.shape), [], own)
        storage = max(narrow, key=unit)
        with np.errstate(all="ignore"):
            moves = np.stack([r.astype(np.float64) - value for r in runs[2:]])
            moved = np.array(np.sqrt(np.mean(moves**2, 0)))
        moved[~np.isfinite(moved)] = 0.0
        # by how much one rounding of every input moves each output, and how many roundings there may be
        sums = memory.accumulate.get(storage, "float32" if unit(storage) >= unit("float32") else storage)
        length = max((max(x.shape, default=1) for x in inputs if x is not None), default=1)
        roundings = _ROUNDINGS * (1 + math.sqrt(length) * unit(sums) / unit(storage))
        return Expected(value, moved * roundings, [], own)

    def _asked(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> Any:
        found = self.child.ask(message, files)
        if isinstance(found, Outcome):
            raise ContractError(
                f"the reference cannot be evaluated: {found.text}", op=self.contract.semantic.qualified_name
            )
        if "error" in found[0]:
            raise UnusableError(f"{found[0]['error']}: {found[0]['text']}")
        return found


def _finer(a: Array, b: Array) -> bool:
    return is_float(a.dtype) and a.dtype.itemsize >= b.dtype.itemsize
