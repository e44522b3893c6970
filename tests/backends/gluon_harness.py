"""Runs the text of a Gluon kernel on NumPy: partitions are threads, barriers have phases, what is asynchronous is late.

Products are computed when they are waited for, copies by the bulk copy engine after a while in another thread, copies
by threads and stores of tiles when they are waited for: whoever releases memory too early, or reads it too soon, gets
wrong numbers, and a barrier that nobody reaches is an error.
"""

from __future__ import annotations

import random
import threading
import time
import types
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
_LAYOUTS = (
    "NVMMADistributedLayout", "SliceLayout", "DotOperandLayout", "BlockedLayout", "SwizzledSharedLayout"
)  # fmt: skip
#: Seconds after which a barrier is taken to be never reached.
_LATE = 20.0


class Value(np.ndarray):  # type: ignore[type-arg]
    """A tensor or number of a kernel; nothing changes one."""

    def __iadd__(self, other: Any) -> Value:
        return self + other

    def __imul__(self, other: Any) -> Value:
        return self * other

    def to(self, dtype: Any, bitcast: bool = False) -> Value:
        x = np.asarray(self)
        return value(x.view(dtype) if bitcast else x.astype(dtype))


def value(x: Any) -> Value:
    return np.asarray(x).view(Value)


class Pointer:
    def __init__(self, data: Array, offset: int = 0) -> None:
        self.data, self.offset = data, offset
        self.dtype = types.SimpleNamespace(element_ty=data.dtype)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.data, self.offset + np.asarray(offset, np.int64))

    def to(self, dtype: Any, bitcast: bool = True) -> Pointer:
        """A pointer to other elements in the same memory."""
        rest = self.data.view(np.uint8)[int(self.offset) * self.data.itemsize :]
        size = np.dtype(dtype).itemsize
        return Pointer(rest[: len(rest) // size * size].view(dtype))

    def load(self, mask: Any = True, other: Any = 0) -> Value:
        there = np.broadcast_to(mask, np.broadcast_shapes(np.shape(self.offset), np.shape(mask)))
        at = np.broadcast_to(self.offset, there.shape)
        assert ((at >= 0) & (at < self.data.size))[there].all(), "a load outside of the memory"
        found = np.full(there.shape, other, self.data.dtype)
        found[there] = self.data[at[there]]
        return value(found)

    def store(self, x: Any, mask: Any = True) -> None:
        at, there, x = np.broadcast_arrays(self.offset, mask, x)
        assert ((at >= 0) & (at < self.data.size))[there].all(), "a store outside of the memory"
        self.data[at[there]] = x[there]


class Shared:
    """Shared memory; every part of it sees the same numbers."""

    def __init__(self, data: Array, layout: Any = None) -> None:
        self.data, self.layout = data, layout
        self.shape, self.dtype = data.shape, data.dtype

    def index(self, i: Any) -> Shared:
        return Shared(self.data[int(i)], self.layout)

    def reshape(self, shape: Any) -> Shared:
        return Shared(self.data.reshape(shape), self.layout)

    def permute(self, order: Any) -> Shared:
        return Shared(self.data.transpose(order), self.layout)

    def slice(self, start: int, length: int) -> Shared:
        return Shared(self.data[start : start + length], self.layout)

    def store(self, x: Array) -> None:
        self.data[...] = x

    def load(self, layout: Any) -> Value:
        return value(self.data.copy())


class Barrier:
    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.phase = self.count = self.pending = self.bytes = 0

    def change(self, arrivals: int, count: int) -> None:
        with self.condition:
            self.pending -= arrivals
            self.bytes += count
            assert self.pending >= 0, "more arrive than were announced"
            if self.pending == 0 and self.bytes == 0:
                self.phase, self.pending = self.phase + 1, self.count
                self.condition.notify_all()

    def wait(self, parity: int) -> None:
        with self.condition:
            passed = self.condition.wait_for(lambda: self.phase & 1 != parity, _LATE)
            assert passed, "a barrier is never reached"


class Barriers:
    def __init__(self, shape: list[int]) -> None:
        self.items = [Barrier() for _ in range(shape[0])]

    def index(self, i: Any) -> Barrier:
        return self.items[int(i)]


class Descriptor:
    def __init__(
        self, base: Pointer, shape: Any, strides: Any, block: Any, layout: Any = None, steps: Any = ()
    ) -> None:
        self.steps = steps or (1,) * len(block)
        self.shape, self.block, self.layout = [int(s) for s in shape], block, layout
        self.dtype = base.data.dtype
        item = base.data.itemsize
        at = np.lib.stride_tricks.as_strided
        self.view = at(base.data[int(base.offset) :], self.shape, [int(s) * item for s in strides])

    def part(self, place: Any) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Of the tensor, and of the block."""
        found = []
        for start, size, whole, step in zip(map(int, place), self.block, self.shape, self.steps, strict=True):
            inside = [i for i in range(size) if 0 <= start + i * step < whole]
            low, high = (inside[0], inside[-1] + 1) if inside else (0, 0)
            ends = (start + low * step, start + (high - 1) * step + 1) if inside else (0, 0)
            found.append((slice(*ends, step), slice(low, high)))
        a, b = zip(*found, strict=True)
        return a, b


class Product:
    """A product that runs; ``acc`` may be one that does."""

    def __init__(self, a: Any, b: Shared, acc: Any, use: bool) -> None:
        self.a, self.b, self.acc, self.use = a, b, acc, use
        self.found: Value | None = None

    def finish(self) -> None:
        if self.found is not None:
            return
        time.sleep(1e-4)
        a = self.a.data if isinstance(self.a, Shared) else np.asarray(self.a)
        with np.errstate(all="ignore"):  # infinite values are a case too
            self.found = value(a.astype(np.float32) @ self.b.data.astype(np.float32))
            if self.use:
                self.found = self.found + (self.acc.found if isinstance(self.acc, Product) else self.acc)


class Machine:
    """What a text knows of the language."""

    def __init__(self, seed: int) -> None:
        self.program: tuple[int, ...] = ()
        self.programs: tuple[int, ...] = ()
        self.own = threading.local()
        self.random = random.Random(seed)
        self.failures: list[BaseException] = []

    def names(self) -> dict[str, Any]:
        """The globals of a module."""
        jit = types.SimpleNamespace(jit=lambda f: f)
        hopper = {
            "fence_async_shared": lambda: None,
            "mbarrier": types.SimpleNamespace(
                MBarrierLayout=lambda: Barriers,
                init=self._init,
                wait=lambda b, phase: self._one(b).wait(int(phase)),
                arrive=lambda b, count, pred=True: self._one(b).change(count, 0) if pred else None,
                expect=lambda b, count: self._one(b).change(1, int(count)),
            ),
            "tma": types.SimpleNamespace(make_tensor_descriptor=Descriptor, store_wait=self._store_wait),
            "load_tile": self._load,
            "store_tile": self._store,
            "copy_tile": self._copy,
            "async_copy": types.SimpleNamespace(commit_group=self._commit, wait_group=self._copied),
            "warpgroup_mma": self._multiply,
            "warpgroup_mma_wait": self._multiplied,
        }
        # numbers of a loop are values too
        return {
            "gluon": jit,
            "tl": self._language(),
            "triton_language": types.SimpleNamespace(PropagateNan=types.SimpleNamespace(ALL="all")),
            "range": lambda *ends: map(value, range(*map(int, ends))),
            **hopper,
        }

    @staticmethod
    def _one(b: Any) -> Barrier:
        return b.items[0] if isinstance(b, Barriers) else b

    def _init(self, b: Any, count: int) -> None:
        one = self._one(b)
        one.count = one.pending = count

    def _load(self, d: Descriptor, place: Any, b: Any, target: Shared) -> None:
        source, inside = d.part(place)
        delay = self.random.random() * 3e-4
        target.data[...] = np.nan

        def copy() -> None:
            time.sleep(delay)
            target.data[...] = 0
            target.data[inside] = d.view[source]
            self._one(b).change(0, -target.data.nbytes)

        threading.Thread(target=copy).start()

    def _pending(self, kind: str) -> list[Any]:
        """What a thread has started."""
        found: list[Any] = self.own.__dict__.setdefault(kind, [])
        return found

    def _store(self, d: Descriptor, place: Any, tile: Shared) -> None:
        self._pending("stores").append((d, place, tile))

    def _store_wait(self, count: int) -> None:
        stores = self._pending("stores")
        while len(stores) > count:
            d, place, tile = stores.pop(0)
            target, inside = d.part(place)
            d.view[target] = tile.data[inside]

    def _copy(self, target: Shared, source: Pointer) -> None:
        target.data[...] = np.iinfo(target.dtype).max if target.dtype.kind == "i" else np.nan
        self._pending("copies").append((target, source))

    def _commit(self) -> None:
        self._pending("groups").append(self._pending("copies").copy())
        self._pending("copies").clear()

    def _copied(self, count: int) -> None:
        groups = self._pending("groups")
        while len(groups) > count:
            for target, source in groups.pop(0):
                target.data[...] = source.load()

    def _multiply(self, a: Any, b: Shared, acc: Any, use_acc: Any = True, is_async: bool = False) -> Product:
        made = Product(a, b, acc, bool(use_acc))
        self._pending("products").append(made)
        return made

    def _multiplied(self, count: int, deps: list[Any]) -> Any:
        products = self._pending("products")
        while len(products) > count:
            products.pop(0).finish()
        found = [d.found if isinstance(d, Product) and d.found is not None else d for d in deps]
        return found[0] if len(found) == 1 else found

    def _specialise(self, parts: Any, warps: Any, registers: Any) -> None:
        del warps, registers

        def run(function: Any, arguments: Any) -> None:
            try:
                function(*arguments)
                assert not self._pending("stores"), "a store is not waited for"
            except BaseException as error:  # noqa: BLE001 — the caller raises it
                self.failures.append(error)

        threads = [threading.Thread(target=run, args=p) for p in parts]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    @staticmethod
    def _function(f: Any) -> Any:
        return lambda x: value(f(np.asarray(x)))

    def _language(self) -> Any:
        layouts = {n: lambda *_: None for n in _LAYOUTS}
        shared = types.SimpleNamespace(get_default_for=lambda *_: None)

        def allocate(dtype: Any, shape: Any, layout: Any) -> Any:
            if layout is Barriers:
                return Barriers(shape)
            return Shared(np.full(shape, np.nan, dtype), layout)

        return types.SimpleNamespace(
            **layouts,
            NVMMASharedLayout=shared,
            constexpr=lambda x: x,
            allocate_shared_memory=allocate,
            static_range=range,
            warp_specialize=self._specialise,
            program_id=lambda axis: value(self.program[axis]),
            num_programs=lambda axis: value(self.programs[axis]),
            pointer_type=lambda dtype: dtype,
            cdiv=lambda a, b: -(-a // b),
            arange=lambda a, b, layout=None: value(np.arange(a, b, dtype=np.int32)),
            full=lambda shape, x, dtype, layout=None: value(np.full(shape, x, dtype)),
            zeros=lambda shape, dtype, layout=None: value(np.zeros(shape, dtype)),
            convert_layout=lambda x, layout: x,
            where=lambda c, a, b: value(np.where(c, a, b)),
            maximum=lambda a, b, propagate_nan="": value((np.maximum if propagate_nan else np.fmax)(a, b)),
            minimum=lambda a, b, propagate_nan="": value((np.minimum if propagate_nan else np.fmin)(a, b)),
            max=lambda x, axis: value(np.max(np.asarray(x), axis)),
            sum=lambda x, axis: value(np.sum(np.asarray(x), axis)),
            load=lambda p, mask=True, other=0: p.load(mask, other),
            store=lambda p, x, mask=True: p.store(x, mask),
            cast=lambda x, dtype: value(np.asarray(x).astype(dtype)),
            reshape=lambda x, shape: value(np.reshape(x, shape)),
            permute=lambda x, order: value(np.transpose(x, order)),
            split=lambda x: (x[..., 0], x[..., 1]),
            **{n: self._function(getattr(np, n)) for n in ("exp", "exp2", "abs", "floor", "ceil", "sqrt")},
            rsqrt=self._function(lambda x: 1 / np.sqrt(x)),
            div_rn=lambda a, b: value(a / b),
            fma=lambda a, b, c: value(a * b + c),
            int1=np.bool_,
            bfloat16=ml_dtypes.bfloat16,
            **{n: getattr(np, n) for n in ("int8", "int32", "int64", "uint32", "float16", "float32")},
        )  # fmt: skip


def run_gluon(name: str, text: str, arguments: dict[str, Any], grid: int | tuple[int, ...], seed: int) -> None:
    """Run a kernel; arrays in ``arguments`` are its memory.

    Args:
        name: Of the function.
        text: The module.
        arguments: By name.
        grid: Blocks, by axis.
        seed: Of how long copies take.
    """
    machine = Machine(seed)
    names = machine.names()
    exec(compile(text[text.index("@gluon.jit") :], name, "exec"), names)
    given = {n: Pointer(a) if isinstance(a, np.ndarray) else a for n, a in arguments.items()}
    machine.programs = grid if isinstance(grid, tuple) else (grid,)
    with np.errstate(all="ignore"):
        for place in np.ndindex(machine.programs):
            machine.program = place
            names[name](**given)
            if machine.failures:
                raise machine.failures[0]
