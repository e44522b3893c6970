"""Inputs for a model on the command line: arrays from files, literals, and random ones that fit the declaration."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from accord.cli.common import closest, wrong_use
from accord.ir import dims as D
from accord.plan.plan import Plan
from accord.plan.types import OptionalType, SequenceType, TensorType, ValueType
from accord.runtime.model import Model

__all__ = ["Feed", "make_feed", "sizable"]

#: Axes of a tensor of this rank from this one on are taken for an image's height and width.
_IMAGE_RANK, _IMAGE_AXIS, _IMAGE_SIZE = 4, 2, 224
#: What else is tried where a model does not take that size, and how many choices of several such sizes.
_IMAGE_SIZES = (224, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 299, 320, 384, 416, 448, 512, 640)
_TRIALS = 2000
#: The first bytes of NumPy's file format.
_NPY = b"\x93NUMPY"
#: Elements of a random sequence, and texts of a random tensor of strings.
_SEQUENCE_LENGTH = 2
_TEXTS = ("a", "b", "c")


class Feed(dict[str, Any]):
    """Inputs by name.

    Attributes:
        assumed: Symbolic sizes that nobody gave, with the value taken.
        sources: By input: the file's name, "literal" or "random".
    """

    def __init__(self) -> None:
        super().__init__()
        self.assumed: dict[str, int] = {}
        self.sources: dict[str, str] = {}


def make_feed(
    model: Model, given: Sequence[str] = (), shapes: Sequence[str] = (), seed: int = 0, *, option: str = "--shape"
) -> Feed:
    """Inputs for a run.

    Args:
        model: The model.
        given: ``NAME=FILE.npy`` or ``NAME=JSON``.
        shapes: ``NAME=1x3x224x224`` for an input, ``NAME=8`` also for a symbolic size.
        seed: For random numbers.
        option: Where ``shapes`` come from, for messages.

    Raises:
        click.UsageError: a text of another form, an unknown name, a missing or damaged file, a shape that does not fit.
    """
    plan = model.plan
    types = {info.name: plan.slots[i].type for info, i in zip(model.inputs, plan.inputs, strict=True)}
    optional = {plan.slots[i].name for i in plan.defaults}
    feed = Feed()
    for text in given:
        name, value = _split(text, "--input", "FILE.npy")
        if name not in types:
            raise wrong_use(f"the model has no input '{name}'.{closest(name, list(types))}")
        feed[name], feed.sources[name] = _read(name, value, types[name])
    env: dict[str, int] = {}
    wanted = _parse_shapes(shapes, types, env, option)
    for name, value in feed.items():
        if isinstance(value, np.ndarray):
            _bind(types[name], value.shape, env)
    for name, shape in wanted.items():
        _bind(types[name], shape, env)
    for name, kind in types.items():
        if name not in feed and name not in optional and name not in wanted and isinstance(kind, TensorType):
            _concrete(name, kind.shape, env, feed.assumed, option)
    _settle(plan, env, feed.assumed)
    rng = np.random.default_rng(seed)
    for name, kind in types.items():
        if name not in feed and (name not in optional or name in wanted):
            feed[name] = _random(name, kind, wanted.get(name), env, feed.assumed, rng)
            feed.sources[name] = "random"
    return feed


def sizable(model: Model) -> list[str]:
    """What ``--shape`` can name in ``model``: inputs and symbolic sizes."""
    plan = model.plan
    return [info.name for info in model.inputs] + _symbols(plan.slots[i].type for i in plan.inputs)


def _symbols(types: Iterable[ValueType]) -> list[str]:
    return sorted({s for f in types for d in _shape(f) or () for s in D.symbols_of(d)})


def _split(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise wrong_use(f"{option} {text}: write NAME={form}.")
    return name, value


# files and literals


def _read(name: str, text: str, kind: ValueType) -> tuple[Any, str]:
    path = Path(text)
    if path.is_dir():
        raise wrong_use(f"--input {name}={text}: this is a folder; a .npy file is needed.")
    if path.exists():
        return _load(path, f"--input {name}={text}"), path.name
    try:
        literal = json.loads(text)
    except ValueError:
        raise wrong_use(f"--input {name}={text}: there is no such file.") from None
    dtype = kind.dtype if isinstance(kind, TensorType) else None
    try:
        return np.asarray(literal, dtype), "literal"
    except (ValueError, TypeError, OverflowError) as error:
        raise wrong_use(f"--input {name}={text}: {error}") from error


def _load(path: Path, option: str) -> np.ndarray[Any, Any]:
    try:
        with path.open("rb") as file:
            if file.read(len(_NPY)) != _NPY:
                raise wrong_use(f"{option}: this is not a .npy file; numpy.save writes one.")
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise wrong_use(f"{option}: {error}") from error
    return array


# shapes


def _parse_shapes(
    texts: Sequence[str], types: Mapping[str, ValueType], env: dict[str, int], option: str
) -> dict[str, tuple[int, ...]]:
    """Shapes by input; symbolic sizes that were given go to ``env``."""
    symbols = _symbols(types.values())
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, value = _split(text, option, "1x3x224x224")
        try:
            sizes = tuple(int(part) for part in value.lower().replace("×", "x").replace(",", "x").split("x"))
        except ValueError:
            raise wrong_use(f"{option} {text}: sizes are integers with x between, as in 1x3x224x224.") from None
        if any(n < 0 for n in sizes):
            raise wrong_use(f"{option} {text}: a size is negative.")
        if name in types:
            shapes[name] = _checked(name, types[name], sizes, option)
        elif name in symbols and len(sizes) == 1:
            env[name] = sizes[0]
        else:
            raise wrong_use(f"{option} {text}: no input or size '{name}'.{closest(name, [*types, *symbols])}")
    return shapes


def _shape(kind: ValueType) -> D.Shape | None:
    return kind.shape if isinstance(kind, TensorType) else None


def _checked(name: str, kind: ValueType, sizes: tuple[int, ...], option: str) -> tuple[int, ...]:
    declared = _shape(kind)
    if declared is None:
        return sizes
    fits = len(declared) == len(sizes) and all(
        not isinstance(d, int) or d == n for d, n in zip(declared, sizes, strict=False)
    )
    if not fits:
        written = " × ".join(str(d) for d in declared) or "scalar"
        raise wrong_use(f"{option} {name}={'x'.join(map(str, sizes))} does not fit the input's shape {written}.")
    return sizes


def _bind(kind: ValueType, sizes: Sequence[int], env: dict[str, int]) -> None:
    for d, n in zip(_shape(kind) or (), sizes, strict=False):
        if not isinstance(d, int):
            env.setdefault(str(d), n)


def _concrete(
    name: str, shape: D.Shape | None, env: dict[str, int], assumed: dict[str, int], option: str = "--shape"
) -> tuple[int, ...]:
    """``shape`` with a value for each size; sizes that nobody gave are noted in ``assumed``."""
    if shape is None:
        raise wrong_use(f"the model does not say how many axes input '{name}' has: give {option} {name}=...")
    sizes = []
    for axis, d in enumerate(shape):
        if isinstance(d, int):
            sizes.append(d)
            continue
        if str(d) not in env and not D.symbols_of(d) <= env.keys():
            value = _IMAGE_SIZE if len(shape) == _IMAGE_RANK and axis >= _IMAGE_AXIS else 1
            env[str(d)] = assumed[str(d)] = value
        sizes.append(env[str(d)] if str(d) in env else D.evaluate(d, env))
    return tuple(sizes)


def _settle(plan: Plan, env: dict[str, int], assumed: dict[str, int]) -> None:
    """Choose other sizes than those assumed if the model says that these do not fit each other."""
    agreements = [a for step in plan.steps for a in step.agreements]

    def fit(sizes: Mapping[str, int]) -> bool:
        known = [a for a in agreements if D.symbols_of(a.size) | D.symbols_of(a.other) <= sizes.keys()]
        return all(a.holds(D.evaluate(a.size, sizes), D.evaluate(a.other, sizes)) for a in known)

    free = [name for name, size in assumed.items() if size == _IMAGE_SIZE]
    if not free or fit(env):
        return
    equal = [(size,) * len(free) for size in _IMAGE_SIZES]
    for sizes in itertools.islice(itertools.chain(equal, itertools.product(_IMAGE_SIZES, repeat=len(free))), _TRIALS):
        chosen = dict(zip(free, sizes, strict=True))
        if fit({**env, **chosen}):
            env.update(chosen)
            assumed.update(chosen)
            return


# random values


def _random(
    name: str,
    kind: ValueType,
    wanted: tuple[int, ...] | None,
    env: dict[str, int],
    assumed: dict[str, int],
    rng: np.random.Generator,
) -> Any:
    if isinstance(kind, OptionalType) and kind.element is not None:
        return _random(name, kind.element, wanted, env, assumed, rng)
    if isinstance(kind, SequenceType) and kind.element is not None:
        return [_random(name, kind.element, wanted, env, assumed, rng) for _ in range(_SEQUENCE_LENGTH)]
    if not isinstance(kind, TensorType) or kind.name is None:
        raise wrong_use(f"input '{name}' is {kind}: it cannot be made up; run the model from Python.")
    shape = wanted if wanted is not None else _concrete(name, kind.shape, env, assumed)
    return _values(ir.DataType[kind.name.upper()], shape, rng)


def _values(dtype: ir.DataType, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random elements: real numbers in [0, 1); 8 bits and fewer over their whole range; wider integers 0 or 1.

    Wider integers are mostly indices, masks and counts, for which 0 and 1 are valid.
    """
    if dtype == ir.DataType.STRING:
        out = np.empty(shape, object)
        out[...] = rng.choice(_TEXTS, shape)
        return out
    element = np.dtype(dtype.numpy())
    if dtype == ir.DataType.BOOL or (dtype.is_integer() and dtype.bitwidth > 8):
        return rng.integers(0, 2, shape).astype(element)
    if dtype.is_integer():
        low = -(1 << (dtype.bitwidth - 1)) if dtype.is_signed() else 0
        return rng.integers(low, low + (1 << dtype.bitwidth), shape).astype(element)
    return np.asarray(rng.random(shape)).astype(element)
