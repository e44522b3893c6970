"""Model: a compiled model that is called with arrays and returns arrays."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.backends.discovery import backend_named, backends_for, own_backend
from accord.backends.memory import DeviceArray, Memory
from accord.backends.protocol import StoredCodeError, ViewKernel
from accord.errors import InputError, ModelError
from accord.ir import dims as D
from accord.ir.compute import content_symbol, representative
from accord.ir.dims import Dim, DimLike
from accord.model.limits import Limits
from accord.plan.plan import Plan
from accord.plan.types import TensorType, ValueType
from accord.runtime.binding import Binding
from accord.runtime.executor import Executor
from accord.runtime.inputs import Matcher, device_array, place_of
from accord.runtime.interface import Interface
from accord.runtime.options import Options, disabled_tuple, tuning_of
from accord.runtime.outputs import Outputs, ValueInfo
from accord.runtime.stored import StoredModel, model_key, read_plan, write_plan
from accord.runtime.tuned import as_choices, check_choices, key_with, tuned
from accord.runtime.warm import example, run_warm, tune
from accord.runtime.watch import WATCH

if TYPE_CHECKING:
    from accord.runtime.pipeline import Compiled, StageHook

__all__ = ["Model", "load"]


#: Sets of input shapes (and contents, where they decide) for which the choice of a variant is remembered.
MAX_CHOICES = 256
#: Plans with more bytes of weights than this are written to disk after the model is ready.
_WRITTEN_LATER = 256 << 20
#: Places of inputs and outputs that are remembered.
MAX_BINDINGS = 64
#: Variants of a plan that are kept.
MAX_VARIANTS = 8


def guess(condition: Dim) -> bool:
    """What a condition on sizes is taken to be before any input is seen: batches of one, other sizes large.

    A comparison of an input's content with a constant is taken to hold.
    """
    contents = [s for s in D.symbols_of(condition) if s.startswith(content_symbol(""))]
    sizes = {s: representative(s) for s in D.symbols_of(condition)}
    candidates = [int(n) for n in re.findall(r"\d+", str(condition))] if contents else []
    return any(D.evaluate(condition, {**sizes, **dict.fromkeys(contents, value)}) for value in (*candidates, 0))


@dataclass(frozen=True)
class _Variant:
    """A plan that is ready to run, and what must be so of sizes."""

    executor: Executor
    decisions: tuple[tuple[Dim, int], ...]

    @staticmethod
    def of(stored: StoredModel) -> _Variant | None:
        """None if machine code that a stored plan counts on is gone."""
        backends = {name: backend_named(name) for name in stored.backends}
        executor = Executor(stored.plan, backends, backends[stored.device])
        try:
            executor.prepare()
        except StoredCodeError:
            return None
        return _Variant(executor, stored.decisions)

    def holds(self, env: Mapping[str, int]) -> bool:
        """Whether the decisions are right for these sizes."""
        return all(int(bool(D.evaluate(d, env))) == truth for d, truth in self.decisions)


def _decisive(value: Any) -> Any:
    """Of an input what can decide: its shape, or its content where that is one integer."""
    if not isinstance(value, np.ndarray):
        return None
    return value.shape if value.size != 1 or value.dtype.kind not in "iub" else (value.shape, int(value.reshape(())))


class Model:
    """A compiled model. Call it with arrays, by position or by name; several threads may do so at once.

    Made by :func:`accord.load`.

    Attributes:
        inputs: What it takes.
        outputs: What it returns.
        plan: What a run does.
        options: How it was compiled; ``choices`` has what ``accord tune`` had found.
        interface: What the file says of inputs, outputs and origin.
        seconds: Time for each stage of compilation; only "stored" if the plan was found on disk.
    """

    def __init__(
        self,
        source: Any,
        options: Options,
        *,
        on_stage: StageHook | None = None,
        warmup: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._source = source
        self._compiled: Compiled | None = None
        self._lock = threading.Lock()
        own = None if options.device == "cpu" or options.reference else own_backend(options.device)
        if own is not None:
            own.require()
        start = time.perf_counter()
        key = model_key(source, options)
        self.options = tuned(options, key)
        # whoever wants to see the stages needs them to happen
        key = self._key = None if key is None or on_stage is not None else key_with(key, self.options.choices or ())
        stored = None if key is None else read_plan(key)
        first = None if stored is None else _Variant.of(stored)
        if first is None:
            compiled, stored, first = self._ready(lambda: self._first_compiled(on_stage))
            check_choices(compiled.plan, options.choices or ())
            self.seconds = compiled.seconds
            nbytes = sum(a.nbytes for a in stored.plan.constants.values())
            if key is not None and (options.device != "cpu" or nbytes > _WRITTEN_LATER):
                # the interpreter waits for it before it ends; who is killed meanwhile leaves no entry
                threading.Thread(target=write_plan, args=(key, stored), name="accord-store").start()
            elif key is not None and write_plan(key, stored):
                again = read_plan(key)
                shared = None if again is None else _Variant.of(again)
                if again is not None and shared is not None:
                    # the weights of the entry are shared with other processes; these can go
                    stored, first, self._compiled = again, shared, None
        else:
            self.seconds = {"stored": time.perf_counter() - start}
        assert stored is not None
        self._first = first
        self._variants = [first]
        self._chosen: dict[Any, _Variant] = {}
        self.plan: Plan = stored.plan
        self.interface: Interface = stored.interface
        plan = self.plan
        self._match = Matcher(plan, len(plan.inputs))
        self.inputs = tuple(_info(plan.slots[i].name, plan.slots[i].type) for i in plan.inputs)
        self.outputs = tuple(_info(n, plan.slots[i].type) for n, i in zip(stored.outputs, plan.outputs, strict=True))
        self._names = stored.outputs
        self._taken = tuple(v.name for v in self.inputs)
        #: By the places of inputs and outputs, what runs there; None where there was one run.
        self._bound: dict[tuple[Hashable, ...], tuple[Executor, Binding] | None] = {}
        self._tuning = "off" if options.device == "cpu" else tuning_of(options)
        if self._tuning != "off":
            tune(first.executor, wait=self._tuning == "full")
        if warmup:
            self.warm_up(warmup)

    def warm_up(self, shapes: Sequence[Mapping[str, Any]]) -> None:
        """Have all that runs with inputs of some shapes need, and what tuning finds; runs a few times with each.

        Args:
            shapes: For each kind of run, by name of the input its shape, or an array; inputs whose shape the model
                says need neither.

        Raises:
            InputError: as for a call, or a shape is missing.
            ExecutionError: the model cannot run with zeros; give arrays.
        """
        by_executor: dict[int, tuple[Executor, list[list[Any]]]] = {}
        for given in shapes:
            values = self._match((), example(self.plan, given))
            executor = self._executor_for(values)
            by_executor.setdefault(id(executor), (executor, []))[1].append(values)
        for executor, feeds in by_executor.values():
            run_warm(executor, feeds, measure=self._tuning != "off")

    def _ready(self, compiled: Callable[[], Compiled]) -> tuple[Compiled, StoredModel, _Variant]:
        """What ``compiled`` makes, as it is stored, and ready to run."""
        own = own_backend(self.options.device)
        with nullcontext() if own is None else own.compiling():
            made = compiled()
            stored = _stored(made)
            variant = _Variant.of(stored)
        assert variant is not None  # only machine code that others have compiled can be gone
        return made, stored, variant

    def _first_compiled(self, on_stage: StageHook | None) -> Compiled:
        """Compiled for the sizes that are likely; for any, if a wrong guess leads to a contradiction."""
        if self.options.device != "cpu":
            for backend in backends_for(self.options.device, reference_only=self.options.reference):
                backend.require()
        if on_stage is None:
            try:
                compiled = self._compile(None, guess)
            except ModelError:
                return self._compile(None, None)
            if compiled.decisions:
                from accord.runtime.pipeline import check_model

                check_model(self._source, self.options)  # what is wrong in the branches that were not taken
            return compiled
        return self._compile(on_stage, None)

    def _executor_for(self, values: Sequence[Any]) -> Executor:
        """What runs for these inputs: the plan, or one for which what they decide is so."""
        if not self._first.decisions:
            return self._first.executor
        key = tuple(_decisive(v) for v in values)
        known = self._chosen.get(key)
        if known is None:
            known = self._variant_for(values)
            if len(self._chosen) >= MAX_CHOICES:
                self._chosen.clear()
            self._chosen[key] = known
        return known.executor

    def _variant_for(self, values: Sequence[Any]) -> _Variant:
        env = self._first.executor.environment(values)
        with self._lock:
            for variant in self._variants:
                if variant.holds(env):
                    return variant
            decided = tuple((str(d), str(bool(D.evaluate(d, env)))) for d, _ in self._first.decisions)
            key = None if self._key is None else key_with(self._key, decided)
            stored = None if key is None else read_plan(key)
            made = None if stored is None else _Variant.of(stored)
            if made is None or not made.holds(env):  # its own decisions can be others than the first plan's
                _, stored, made = self._ready(
                    lambda: self._compile(None, lambda condition: bool(D.evaluate(condition, env)), keep=False)
                )
                if key is not None and self._is_unchanged():
                    write_plan(key, stored)
            self._variants = [made, *self._variants[: MAX_VARIANTS - 1]]
            return made

    def _is_unchanged(self) -> bool:
        """Whether the file is still the one that was loaded: what is compiled from it now is kept under its name."""
        key = model_key(self._source, self.options)
        return key is not None and key_with(key, self.options.choices or ()) == self._key

    @property
    def executor(self) -> Executor:
        """What runs the plan; for tools."""
        return self._first.executor

    def executor_for(self, inputs: Mapping[str, Any]) -> tuple[Executor, list[Any]]:
        """What runs for these inputs, and the inputs as it takes them; for tools that watch runs.

        Raises:
            InputError: as for a call.
        """
        values = self._match((), inputs)
        return self._executor_for(values), values

    @property
    def compiled(self) -> Compiled:
        """Graph, plan, patches and reasons, for ``explain``; compiled now if the plan was found on disk."""
        return self._first_compiled(None) if self._compiled is None else self._compiled

    def _compile(
        self, on_stage: StageHook | None, decide: Callable[[Dim], bool | None] | None, *, keep: bool = True
    ) -> Compiled:
        from accord.runtime.pipeline import compile_model

        compiled = compile_model(self._source, self.options, on_stage=on_stage, decide=decide)
        if keep:
            self._compiled = compiled
        return compiled

    def __call__(self, *args: Any, **named: Any) -> Outputs:
        """Run the model.

        Args:
            args: Inputs by position: NumPy arrays, or anything with DLPack or the buffer protocol. A single dictionary
                gives them by name (for names that are no Python identifiers).
            named: Inputs by name.

        Returns:
            The outputs, NumPy arrays of the model's dtypes that belong to the caller.

        Raises:
            InputError: an input is missing, unknown, or of the wrong dtype, rank or size.
            ExecutionError: a kernel failed.
        """
        if len(args) == 1 and isinstance(args[0], Mapping) and not named:
            named, args = args[0], ()  # type: ignore[assignment]
        if len(args) == 2 and isinstance(args[1], Mapping):
            raise InputError(
                "names of outputs and a dictionary of inputs were given",
                expected="inputs: model(x=...) or model({'x': ...})",
                remedy="Use accord.InferenceSession, whose run takes both.",
            )
        values = self._match(args, named)
        return Outputs(self._executor_for(values).run(values), self._names)

    run = __call__

    def run_into(self, named: Mapping[str, Any], into: Mapping[str, Any], *, stream: int | None = None) -> Outputs:
        """Run the model with outputs in the caller's memory, without a copy where the plan allows it.

        Args:
            named: Inputs by name.
            into: By name of the output, the array that shall hold it: NumPy's, or one in a device's memory
                (:class:`~accord.backends.memory.DeviceArray`, anything with ``__cuda_array_interface__``); or the
                :class:`~accord.backends.memory.Memory` in which a new one shall be made.
            stream: A stream of the device, as its address (``torch.cuda.current_stream().cuda_stream``). The run comes
                after what is on it and before what is put on it later. Where all outputs are in the device's memory the
                call may return before the run is over. Devices without streams take no notice.

        Returns:
            All outputs; those in ``into`` are the arrays given.

        Raises:
            InputError: no such output, or an array of another dtype or shape; or as for a call.
        """
        places = self._places(named, into) if self.plan.lent else None
        bound = None if places is None else self._bound.get(places)
        if bound is not None and WATCH.get() is None:
            executor, binding = bound
            left = executor.run_bound(binding, stream)
            given = [into[n] for n in self._names]
            found = [
                g if isinstance(g, DeviceArray) else a.kept_by(g) for g, a in zip(given, binding.outputs, strict=True)
            ]
            for array in found:
                array.stream = left
            return Outputs(found, self._names)
        values = self._match((), named)
        unknown = [n for n in into if n not in self._names]
        if unknown:
            raise InputError(f"the model has no output '{unknown[0]}'", expected=", ".join(self._names))
        targets = {self._names.index(n): _target(n, array) for n, array in into.items()}
        arrays = [v for v in values if isinstance(v, (np.ndarray, DeviceArray))]
        direct = {k: a for k, a in targets.items() if self._is_direct(k, a, arrays)}
        executor = self._executor_for(values)
        results = executor.run(values, into=direct, stream=stream)
        if places is not None:
            self._remember(places, executor, values, {k: a for k, a in direct.items() if results[k] is a})
        for k, target in targets.items():
            produced = results[k]
            if isinstance(target, Memory):
                if isinstance(produced, np.ndarray):
                    results[k] = DeviceArray.empty(target, produced.shape, produced.dtype)
                    results[k].assign(np.ascontiguousarray(produced))
                continue
            if produced is target:
                continue
            if not isinstance(produced, np.ndarray) or (produced.shape, produced.dtype) != (target.shape, target.dtype):
                raise InputError(
                    "the array given for an output does not fit it",
                    value=self._names[k],
                    expected=_describe(produced),
                    found=_describe(target),
                )
            if isinstance(target, DeviceArray):
                target.assign(np.ascontiguousarray(produced))
            elif produced.ctypes.data != target.ctypes.data:
                np.copyto(target, produced)
            results[k] = target
        return Outputs(results, self._names)

    def _places(self, named: Mapping[str, Any], into: Mapping[str, Any]) -> tuple[Hashable, ...] | None:
        """Where all inputs and outputs are on a device; None if they are not."""
        if len(named) != len(self.inputs) or len(into) != len(self._names):
            return None
        places = []
        for names, arrays in ((self._taken, named), (self._names, into)):
            for name in names:
                place = place_of(arrays.get(name))
                if place is None:
                    return None
                places.append(place)
        return tuple(places)

    def _remember(
        self, places: tuple[Hashable, ...], executor: Executor, inputs: Sequence[Any], outputs: Mapping[int, Any]
    ) -> None:
        """Have the next run on the same memory find what this one found, if it is not the first there."""
        if places not in self._bound:
            if len(self._bound) >= MAX_BINDINGS:
                self._bound.clear()
            self._bound[places] = None
            return
        binding = executor.binding(inputs, outputs)
        if binding is not None:
            self._bound[places] = executor, binding

    def _is_direct(self, k: int, array: Any, inputs: Sequence[Any]) -> bool:
        """True if a run may write output ``k`` to ``array`` at once: nothing that it still reads is there."""
        if isinstance(array, Memory):
            return True
        if isinstance(array, DeviceArray):
            first, last = array.address, array.address + array.nbytes
            far = [v for v in inputs if isinstance(v, DeviceArray)]
            apart = all(last <= v.address or v.address + v.nbytes <= first for v in far)
            return apart and array.dtype == self.plan.slots[self.plan.outputs[k]].dtype
        return (
            array.dtype == self.plan.slots[self.plan.outputs[k]].dtype
            and array.flags.c_contiguous
            and array.flags.aligned
            and array.flags.writeable
            and not any(np.may_share_memory(array, other) for other in inputs if isinstance(other, np.ndarray))
        )

    def trim(self) -> int:
        """Give memory that no run uses back to the system; returns the number of bytes."""
        self._bound.clear()
        return sum(v.executor.trim() for v in self._variants)

    def held(self) -> dict[str, int]:
        """What is kept between runs: "plans", and "bytes" of memory for intermediate values."""
        return {"plans": len(self._variants), "bytes": sum(v.executor.held() for v in self._variants)}

    def environment(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Values of the plan's symbols for inputs of these shapes.

        Raises:
            InputError: a size stays unknown.
        """
        probes = []
        for i in self.plan.inputs:
            slot = self.plan.slots[i]
            declared = slot.shape or ()
            shape = shapes.get(slot.name, [d for d in declared if isinstance(d, int)])
            if len(shape) != len(declared):
                raise InputError("its shape is needed", value=slot.name, expected=f"{len(declared)} sizes")
            probes.append(np.broadcast_to(np.zeros((), slot.dtype), tuple(shape)))
        return self._first.executor.environment(probes)

    def memory(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Memory that a run with inputs of these shapes needs, without running.

        Args:
            shapes: By input name; only inputs with symbolic sizes need one.

        Returns:
            Bytes: "arena" (the planned peak of intermediate values, in all memories), "staging" (the host's, for values
            on their way between memories), "unshared" (one buffer for each value), "constants".

        Raises:
            InputError: a size stays unknown.
        """
        plan = self.plan
        frame, arena = self._first.executor.memory(self.environment(shapes))
        unshared = 0
        for i, s in enumerate(plan.slots):
            if i in frame.sizes.shapes and s.first >= 0 and s.dtype is not None:
                unshared += int(np.prod(frame.sizes.shapes[i], dtype=np.int64)) * s.dtype.itemsize
        return {
            "arena": arena,
            "staging": sum(frame.staging_bytes.values()),
            "unshared": unshared,
            "constants": sum(a.nbytes for a in plan.constants.values()),
        }


def _target(name: str, array: Any) -> Any:
    """What an output is to be put into."""
    if isinstance(array, (np.ndarray, Memory)):
        return array
    far = device_array(name, array)
    return array if far is None else far


def _stored(compiled: Compiled) -> StoredModel:
    names = tuple(v.name or f"output{k}" for k, v in enumerate(compiled.model.graph.outputs))
    used = {compiled.device.name, *_backends_of(compiled.plan)}
    return StoredModel(
        compiled.plan,
        compiled.interface,
        names,
        compiled.device.name,
        tuple(sorted(used)),
        compiled.external,
        compiled.decisions,
        compiled.operators,
    )


def _backends_of(plan: Plan) -> set[str]:
    found = {s.placement.backend for s in plan.steps if s.kernel is not None and not isinstance(s.kernel, ViewKernel)}
    return found.union(*(_backends_of(b.plan) for s in plan.steps for b in s.bodies))


def _info(name: str, kind: ValueType) -> ValueInfo:
    if isinstance(kind, TensorType):
        shape = None if kind.shape is None else tuple(_size(d) for d in kind.shape)
        return ValueInfo(name, kind.name or "unknown", shape)
    return ValueInfo(name, str(kind), None)


def _describe(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__


def _size(d: DimLike) -> int | str:
    return d if isinstance(d, int) else str(d)


def load(
    model: Any,
    *,
    device: str = "cpu",
    level: int = 3,
    disabled_rules: Collection[str] | str = (),
    strict: bool = False,
    threads: int | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
    precision: str = "float32",
    choices: Mapping[str, str] | None = None,
    tuning: str | None = None,
    warmup: Sequence[Mapping[str, Any]] = (),
) -> Model:
    """Compile a model for running.

    Args:
        model: Path of an ONNX file, its bytes, a ``ModelProto``, an ``onnx_ir.Model`` or a binary file object.
        device: "cpu", "cuda" ("cuda:1" for the second GPU), "null" (plans, runs nothing), or what an installed backend
            serves.
        level: 0 rewrites nothing, 1 removes what is redundant, 2 fuses, 3 also chooses layouts.
        disabled_rules: Names of rewrite rules that must not run.
        strict: A node that only the reference backend can run is an error.
        threads: Threads for one run; None: as many as the process may use.
        base_dir: Folder of external data; by default the folder of the model's path.
        limits: How large the model may be (:class:`accord.model.limits.Limits`).
        precision: What a float32 model may be computed in. "float16": products take operands of float16 and add in
            float32, and what computes with their results is stored in float16 too where the operators' contracts allow
            it; inputs and outputs stay float32, and ``accord explain`` says what else does, and why
            (:func:`accord.profile.overflow.first_overflow` names the first operator whose values leave the range).
            "bfloat16": the same on a GPU; on a CPU the operands of MatMul, Gemm and Conv are rounded to it (to nearest,
            ties to even) and nothing else, which is faster where the machine multiplies bfloat16, and right elsewhere.
            "tf32": a GPU multiplies float32 as TF32 (10 bits of mantissa); others ignore it.
        choices: By name of a node, which of its kernel's alternatives to take; others follow the rule, with ``{}`` all
            do. None: what ``accord tune`` has found for this model, if it has.
        tuning: For GPUs, whether the ways to start kernels are measured: "off", "background" (beside runs, which take
            what is faster from then on) or "full" (before this returns). What was found is remembered on disk; results
            differ by rounding at most. None: the environment's ``ACCORD_TUNING``, else "background".
        warmup: Shapes for which all is ready when this returns, see :meth:`Model.warm_up`.

    Raises:
        ModelError: the file or the graph is wrong.
        UnsupportedError: nothing can run it.
        BackendError: no backend serves the device.
        CompileError: machine code could not be generated.
        AccordError: an option has a value that it cannot have.
    """
    options = Options(
        device,
        level,
        disabled_tuple(disabled_rules),
        strict,
        threads,
        base_dir=base_dir,
        limits=limits,
        precision=precision,
        choices=None if choices is None else as_choices(choices),
        tuning=tuning,
    )
    return Model(model, options, warmup=warmup)
