"""InferenceSession: ONNX Runtime's Python interface on an Accord model, so that existing code changes one import.

Differences are on the strict side: what ONNX Runtime ignores or finds only while running (unknown names in a binding,
a size on which two inputs do not agree) is an error here, of the types in :mod:`accord.errors`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from accord.errors import AccordError, ExecutionError, InputError
from accord.placement.placement import Placement
from accord.plan.plan import Plan
from accord.runtime.interface import ModelMetadata, NodeArg
from accord.runtime.io_binding import IOBinding
from accord.runtime.model import Model
from accord.runtime.options import Options
from accord.runtime.ort_value import OrtValue
from accord.runtime.providers import LOGGER, resolve_providers, stream_of
from accord.runtime.session_options import RunOptions, SessionOptions
from accord.runtime.session_profile import SessionProfile

if TYPE_CHECKING:
    import onnx_ir as ir

    from accord.ir.infer import Analyzer

__all__ = ["InferenceSession", "ModelMetadata", "NodeArg"]

#: ONNX Runtime's number of a warning; messages below a session's severity level are not logged.
_WARNING = 2


class InferenceSession:
    """A model ready to run. Several threads may run one session at the same time.

    Args:
        path_or_bytes: Path of an ONNX file, its bytes, or what else :func:`accord.load` takes.
        sess_options: Options; None for the defaults.
        providers: Where to run, the most wanted first: names or (name, options) pairs. What no backend serves is
            skipped with a warning.
        provider_options: Options by provider, where ``providers`` has names only.
        **kwargs: ``disabled_optimizers`` (names of rewrite rules that must not run), ``enable_fallback`` (False: no
            CPU instead of missing providers).

    Raises:
        ModelError: the model is wrong.
        UnsupportedError: nothing can run it.
        InputError: wrong options.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise InputError("wrong 'sess_options'", expected="SessionOptions", found=type(sess_options).__name__)
        self._source = path_or_bytes
        self._options = sess_options if sess_options is not None else SessionOptions()
        self._disabled = _known_rules(kwargs.pop("disabled_optimizers", None) or ())
        self._fallback = bool(kwargs.pop("enable_fallback", True))
        kwargs.pop("read_config_from_model", None)
        if kwargs:
            warnings.warn(f"InferenceSession ignores {', '.join(sorted(kwargs))}", stacklevel=2)
        self._pool: ThreadPoolExecutor | None = None
        self._profile = SessionProfile() if self._options.enable_profiling else None
        if providers is None and self._options.has_providers():
            providers = list(self._options.providers)
        self._compile(providers, provider_options)

    def _compile(self, providers: Any, provider_options: Any) -> None:
        """Compile for the providers; where that fails, what was there before stays in use."""
        options = self._options
        chosen, device = resolve_providers(providers, provider_options, fallback=self._fallback)
        source = self._source
        if options.dimensions or options.initializers:
            from accord.runtime.overrides import with_overrides

            source = with_overrides(source, options)
        on_stage = None
        if options.optimized_model_filepath:
            from accord.runtime.pipeline import STAGES
            from accord.runtime.save import save_stage

            path = options.optimized_model_filepath

            def on_stage(stage: str, model: ir.Model, analyzer: Analyzer | None) -> None:
                if stage == STAGES[-1]:
                    save_stage(model, analyzer, path)

        pipeline = Options(
            device=device,
            level=options.graph_optimization_level.level,
            disabled_rules=self._disabled,
            strict=options.strict,
            threads=options.intra_op_num_threads or None,
            precision=options.precision,
        )
        with self._profile.timed("session_initialization") if self._profile is not None else nullcontext():
            model = Model(source, pipeline, on_stage=on_stage)
        self._providers, self._interface, self._model = chosen, model.interface, model
        self._stream = stream_of(next(iter(chosen.values())))
        self._positions = {a.name: i for i, a in enumerate(model.interface.outputs)}
        self._report_fallbacks()

    def _report_fallbacks(self) -> None:
        placements = [p for p in _placements(self._model.plan) if p.fallback]
        if placements and self._options.log_severity_level <= _WARNING:
            counts = Counter(p.op for p in placements).most_common()
            LOGGER.warning(
                "%s%d nodes run on the slow backend '%s': %s",
                f"[{self._options.logid}] " if self._options.logid else "",
                len(placements),
                placements[0].backend,
                ", ".join(f"{op} ×{n}" for op, n in counts),
            )

    # what the model takes and says

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that a run needs."""
        return list(self._interface.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the model's order."""
        return list(self._interface.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have a default."""
        return list(self._interface.optional)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model file says of itself."""
        return self._interface.metadata

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._options

    # providers

    def get_providers(self) -> list[str]:
        """The providers in use."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options given for each provider in use."""
        return {name: dict(options) for name, options in self._providers.items()}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[dict[Any, Any]] | None = None
    ) -> None:
        """Compile the model again for other providers.

        Raises:
            InputError: arguments of another form.
            BackendError: none is available and falling back is disabled.
        """
        self._compile(providers, provider_options)

    def disable_fallback(self) -> None:
        """Make it an error when :meth:`set_providers` finds none of the providers."""
        self._fallback = False

    def enable_fallback(self) -> None:
        """Let :meth:`set_providers` use the CPU when it finds none of the providers."""
        self._fallback = True

    # running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: The outputs to return, in this order; None or empty for all.
            input_feed: Inputs by name: arrays, numbers in lists, :class:`OrtValue`; lists for sequences.
            run_options: Options of this run.

        Returns:
            Arrays; lists for sequences and dictionaries for maps.

        Raises:
            InputError: an input is missing, unknown, or of the wrong dtype, rank or size; or no such output.
            ExecutionError: a kernel failed, or the options ask to terminate.
        """
        positions = self._chosen(output_names)
        outputs = self._run(_feed(input_feed), run_options)
        return [outputs[i] for i in positions]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As :meth:`run`, from values to values."""
        return [OrtValue(v) for v in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Start a run in another thread and return at once.

        Args:
            output_names: As in :meth:`run`.
            input_feed: As in :meth:`run`; not changed by the caller until ``callback`` was called.
            callback: Called in that thread with the outputs, ``user_data`` and "", or with an empty list,
                ``user_data`` and the error's text.
            user_data: Anything.
            run_options: As in :meth:`run`.

        Raises:
            InputError: an input is missing, or no such output.
        """
        positions = self._chosen(output_names)
        feed = _feed(input_feed)
        missing = [a.name for a in self._interface.inputs if a.name not in feed and not a.type.startswith("optional")]
        if missing:
            raise InputError(f"missing input {', '.join(map(repr, missing))}", found=", ".join(feed) or "no inputs")

        def work() -> None:
            try:
                outputs = self._run(feed, run_options)
            except AccordError as error:
                callback([], user_data, str(error))
            else:
                callback([outputs[i] for i in positions], user_data, "")

        if self._pool is None:
            self._pool = ThreadPoolExecutor(thread_name_prefix="accord-session")
        self._pool.submit(work).add_done_callback(_log_failure)

    def io_binding(self) -> IOBinding:
        """A new binding of inputs and outputs to memory."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run with bound inputs and outputs; the results are then in the bound memory and in ``iobinding``.

        Raises:
            InputError: no output is bound, an input is not bound, or memory of the wrong dtype or shape.
            ExecutionError: a kernel failed, or the options ask to terminate.
        """
        wanted = iobinding.outputs
        if not wanted:
            raise InputError("no output is bound", remedy="Call bind_output for at least one output.")
        into = {name: array for name, array in wanted.items() if array is not None}
        outputs = self._run(iobinding.inputs, run_options, into)
        iobinding.set_results([outputs[self._positions[name]] for name in wanted])

    def _chosen(self, names: Sequence[str] | None) -> list[int]:
        """Numbers of the outputs called ``names``."""
        if names is None or (not isinstance(names, str) and len(names) == 0):
            return list(range(len(self._positions)))
        if isinstance(names, str):
            raise InputError("output names are given as a list", found=repr(names), remedy=f"Write [{names!r}].")
        unknown = [n for n in names if n not in self._positions]
        if unknown:
            raise InputError(f"the model has no output '{unknown[0]}'", expected=", ".join(self._positions))
        return [self._positions[n] for n in names]

    def _run(
        self,
        feed: Mapping[str, Any],
        run_options: RunOptions | None,
        into: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> Sequence[Any]:
        if run_options is not None and run_options.terminate:
            raise ExecutionError("the run was terminated", remedy="Set RunOptions.terminate to False.")
        profile = self._profile
        if profile is None:
            return self._model.run_into(feed, into, stream=self._stream) if into else self._model(feed)
        with profile.timed("model_run"), profile.nodes(next(iter(self._providers))):
            return self._model.run_into(feed, into, stream=self._stream) if into else self._model(feed)

    # profiling

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, in nanoseconds since 1970; 0 if it is off."""
        return 0 if self._profile is None else self._profile.start

    def end_profiling(self) -> str:
        """Stop profiling and write the events as a Chrome trace.

        Returns:
            The file's name; "" if profiling was off.

        Raises:
            AccordError: the file cannot be written.
        """
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.write(self._options.profile_file_prefix, self._model.seconds)


def _feed(feed: Any) -> dict[str, Any]:
    if not isinstance(feed, Mapping):
        raise InputError("inputs are given by name", expected="a dictionary", found=type(feed).__name__)
    return {name: value.value if isinstance(value, OrtValue) else value for name, value in feed.items()}


def _log_failure(future: Any) -> None:
    error = future.exception()
    if error is not None:  # raised by the caller's callback, which nobody else would hear of
        LOGGER.error("the callback of run_async failed", exc_info=error)


def _known_rules(names: Collection[str] | str) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names)
    if not given:
        return ()
    from accord.passes.phases import rule_names

    known = set(rule_names())
    unknown = [n for n in given if n not in known]
    if unknown:
        warnings.warn(
            f"disabled_optimizers: Accord has no rule {', '.join(unknown)}; there are {', '.join(sorted(known))}",
            stacklevel=3,
        )
    return tuple(n for n in given if n in known)


def _placements(plan: Plan) -> Iterator[Placement]:
    for step in plan.steps:
        yield step.placement
        for body in step.bodies:
            yield from _placements(body.plan)
