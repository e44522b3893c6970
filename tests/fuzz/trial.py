"""One mutant: loaded, compiled and run on generated inputs, which ends with outputs or with one of our own errors."""

from __future__ import annotations

import pickle
import traceback
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from accord.errors import AccordError
from accord.plan.types import OptionalType, SequenceType, TensorType, ValueType

STAGES = ("load", "compile", "run")
#: Elements of an input that is still generated.
MAX_ELEMENTS = 100_000
#: Behind an ExecutionError, these say that a kernel is wrong, whatever it was given.
OUR_FAULT = (NameError, AttributeError, AssertionError, RecursionError, NotImplementedError)


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        kind: "ok", "error" (one of ours), "skipped" (inputs too large to generate), "endless" (a Loop of very many
            iterations); and what must not be: "bug", "memory", "hang" or "crash".
        what: Type of the exception.
        where: Last line of our own in its traceback.
        message: Its text.
        stage: How far it came.
    """

    kind: str
    what: str = ""
    where: str = ""
    message: str = ""
    stage: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in ("bug", "memory", "hang", "crash")


class TooLargeError(Exception):
    """An input that is not worth generating."""


def execute(data: bytes, stage: str, reference: bool, reached: list[str]) -> None:
    """Load ``data``, and by ``stage`` compile and run it; each stage that is begun is added to ``reached``."""
    from accord.model.load import load_model
    from accord.runtime.model import Model
    from accord.runtime.options import Options

    reached.append("load")
    load_model(data)
    if stage == "load":
        return
    reached.append("compile")
    model = Model(data, Options(reference=reference))
    if stage == "compile":
        return
    reached.append("run")
    plan = model.compiled.plan
    model(*inputs([plan.slots[i].type for i in plan.inputs], zlib.crc32(data)))


def trial(data: bytes, stage: str = "run", *, reference: bool = False) -> Outcome:
    """What becomes of ``data``."""
    reached: list[str] = []
    try:
        execute(data, stage, reference, reached)
    except TooLargeError:
        return Outcome("skipped", stage=reached[-1])
    except AccordError as error:
        cause = error.__cause__
        if isinstance(cause, OUR_FAULT):  # the executor wraps whatever a kernel raises
            return Outcome("bug", type(cause).__name__, _place(cause), str(cause)[:300], reached[-1])
        text = str(error)
        assert error.message
        assert str(pickle.loads(pickle.dumps(error))) == text
        return Outcome("error", type(error).__name__, message=text[:300], stage=reached[-1])
    except MemoryError as error:
        return Outcome("memory", "MemoryError", _place(error), str(error)[:300], reached[-1])
    except Exception as error:  # noqa: BLE001  finding these is what this is for
        return Outcome("bug", type(error).__name__, _place(error), str(error)[:300], reached[-1])
    return Outcome("ok", stage=reached[-1])


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/accord/" in f.filename] or frames
    last = own[-1]
    return f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno} {last.name}"


def inputs(facts: list[ValueType], seed: int) -> list:
    """A value for each fact; one size for each symbol."""
    rng = np.random.default_rng(seed)
    sizes: dict[str, int] = {}
    return [_value(fact, rng, sizes) for fact in facts]


def _value(fact: ValueType, rng: np.random.Generator, sizes: dict[str, int]):
    if isinstance(fact, SequenceType):
        if fact.element is None:
            raise TooLargeError
        nested = isinstance(fact.element, SequenceType)  # which doubles the number of arrays on each level
        return [_value(fact.element, rng, sizes) for _ in range(1 if nested else 2)]
    if isinstance(fact, OptionalType):
        return None if fact.element is None or rng.random() < 0.3 else _value(fact.element, rng, sizes)
    if not isinstance(fact, TensorType):
        raise TooLargeError
    shape = []
    for d in fact.shape if fact.shape is not None else (2,) * int(rng.integers(0, 4)):
        shape.append(d if isinstance(d, int) else sizes.setdefault(str(d), int(rng.integers(1, 5))))
    count = 1
    for d in shape:
        count *= max(d, 1)
    if count > MAX_ELEMENTS:
        raise TooLargeError
    return _array(ir.DataType[(fact.name or "float").upper()], shape, rng)


def _array(dtype: ir.DataType, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    if dtype == ir.DataType.STRING:
        out = np.empty(shape, object)
        out[...] = str(rng.choice(["a", "b c", "", "ä"]))
        return out
    if dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    target = np.dtype(dtype.numpy())
    if dtype.is_integer():
        low = -3 if dtype.is_signed() and rng.random() < 0.5 else 0
        return rng.integers(low, 4, shape).astype(np.int32).astype(target)
    return rng.standard_normal(shape).astype(np.float32).astype(target)
