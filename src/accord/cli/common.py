"""What all verbs share: options, tables, progress, and errors as one readable block.

Only click is imported here, so that ``accord --help`` is quick.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from accord.errors import AccordError, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from accord.cli.feeds import Feed
    from accord.runtime.model import Model
    from accord.runtime.options import Options

__all__ = [
    "Choices",
    "Given",
    "Screen",
    "Verb",
    "WithExamples",
    "check_rule",
    "closest",
    "compile_options",
    "feed_options",
    "model_argument",
    "plural",
    "seconds_text",
    "size_text",
    "warmup_option",
    "wrong_use",
]

F = TypeVar("F", bound=Callable[..., Any])

FAILED, WRONG_USE = 1, 2
#: Columns of a table that goes to a file or a pipe.
_PIPE_WIDTH = 160


def wrong_use(message: str) -> click.UsageError:
    """An error of the command line; exit code 2."""
    return click.UsageError(message, click.get_current_context(silent=True))


def closest(name: str, known: Sequence[str]) -> str:
    """' Did you mean ...?' for a misspelt name, else the known names."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" There are: {', '.join(known)}." if known else " There is none."


class Screen:
    """Where a verb writes: tables on stdout, or JSON and nothing else; progress on stderr.

    Attributes:
        json: True if JSON was asked for.
    """

    def __init__(self, *, json: bool) -> None:
        self.json = json

    def show(self, data: Mapping[str, Any], draw: Callable[[Console], None]) -> None:
        """Write the result: ``data`` as JSON, or what ``draw`` prints."""
        if self.json:
            click.echo(json.dumps(data, indent=1, default=_plain))
            return
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        draw(console)

    def note(self, text: str) -> None:
        """A remark on stderr."""
        click.echo(text, err=True)

    @contextlib.contextmanager
    def progress(self, label: str, total: int | None = None) -> Iterator[Callable[[str], None]]:
        """A progress bar, on a terminal only.

        Yields:
            A function to call after each step with the name of what comes next, or "".
        """
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)

            def advance(text: str) -> None:
                bar.update(task, advance=1, description=f"{label}: {escape(text)}" if text else label)

            yield advance


def table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; a column whose name starts with ">" is set to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        right = name.startswith(">")
        drawn.add_column(name.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(str(cell)) for cell in row))
    if title:  # rich would wrap it to the table's width
        line(console, title, style="bold")
    console.print(drawn)


def line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: no markup, no wrapping inside names."""
    console.print(text, markup=False, style=style, soft_wrap=True)


def _plain(value: Any) -> Any:
    """What JSON cannot write: NumPy's numbers, paths, sets."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


class WithExamples(click.Command):
    """A command whose help ends with example calls, one a line."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 120})
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are."""
        del ctx
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class Verb(WithExamples):
    """A command with ``--json`` and ``--traceback``, whose errors are one block; its function is given a Screen."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="Write JSON on stdout and nothing else."),
            click.Option(["--traceback"], is_flag=True, help="Show where in Accord an error arose."),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; an error ends the process with code 1, or 2 where the user's input is wrong."""
        as_json, traceback = ctx.params.pop("as_json"), ctx.params.pop("traceback")
        ctx.obj = Screen(json=as_json)
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except AccordError as error:
            if traceback:
                raise
            _print_error(error, as_json)
            ctx.exit(WRONG_USE if isinstance(error, InputError) else FAILED)
        except Exception as error:
            if traceback:
                raise
            failure = AccordError(
                f"{type(error).__name__}: {error}",
                remedy="This is a defect of Accord or of an installed backend; --traceback shows where it arose.",
            )
            _print_error(failure, as_json)
            ctx.exit(FAILED)


_FACTS = ("node", "op", "value", "expected", "found", "remedy")


def _print_error(error: AccordError, as_json: bool) -> None:
    facts = {name: str(value) for name in _FACTS if (value := getattr(error, name)) is not None}
    if as_json:
        click.echo(json.dumps({"error": {"type": type(error).__name__, "message": error.message, **facts}}, indent=1))
    click.echo(click.style("error: ", fg="red", bold=True) + error.message, err=True)
    for name, value in facts.items():
        click.echo(click.style(f"  {name:<9}", bold=True) + value, err=True)


# options


@dataclass(frozen=True, slots=True)
class Choices:
    """How the user wants models compiled."""

    device: str
    level: int
    strict: bool
    threads: int | None
    disabled_rules: tuple[str, ...]
    precision: str
    tuning: str | None = None

    def options(self, **changes: Any) -> Options:
        """As options of the pipeline.

        Raises:
            click.UsageError: an unknown rule.
        """
        from accord.runtime.options import Options

        for rule in self.disabled_rules:
            check_rule("--disable-rule", rule)
        chosen = {
            "device": self.device,
            "level": self.level,
            "strict": self.strict,
            "threads": self.threads,
            "disabled_rules": self.disabled_rules,
            "precision": self.precision,
            "tuning": self.tuning,
        }
        return Options(**{**chosen, **changes})

    def compile(self, source: Any, screen: Screen, *, warmup: Sequence[str] = (), **hooks: Any) -> Model:
        """The compiled model, with progress by stage.

        Args:
            source: Path or bytes.
            screen: For progress.
            warmup: What ``--warmup`` was given.
            hooks: ``on_stage``: called after each stage. Without it, the model is what :func:`accord.load` gives: found
                on disk where it was compiled before, and compiled for sizes that are likely.
        """
        from accord.runtime.model import Model
        from accord.runtime.pipeline import STAGES

        on_stage = hooks.get("on_stage")
        name = Path(source).name if isinstance(source, (str, Path)) else "model"
        if on_stage is None:
            with screen.progress(f"compiling {name}"):
                model = Model(source, self.options())
            if warmup:
                from accord.cli.feeds import make_feed

                with screen.progress(f"warming {name} up"):
                    model.warm_up([make_feed(model, (), text.split(","), option="--warmup") for text in warmup])
            return model
        with screen.progress(f"compiling {name}", len(STAGES) + 1) as advance:

            def done(stage: str, model: Any, analyzer: Any) -> None:
                on_stage(stage, model, analyzer)
                advance(stage)

            # who looks at stages runs nothing, and has nothing measured
            return Model(source, self.options(tuning=self.tuning or "off"), on_stage=done)


def check_rule(option: str, rule: str) -> None:
    """Raise unless ``rule`` is a rewrite rule.

    Raises:
        click.UsageError: it is none.
    """
    from accord.passes.phases import rule_names

    if rule not in rule_names():
        raise wrong_use(f"{option} {rule}: there is no such rule.{closest(rule, rule_names())}")


def compile_options(function: F) -> F:
    """Add the options of :class:`Choices`; the function is given them as ``choices``."""

    @functools.wraps(function)
    def collected(
        *args: Any,
        device: str,
        level: int,
        strict: bool,
        threads: int | None,
        disable_rule: tuple[str, ...],
        precision: str,
        tuning: str | None,
        **rest: Any,
    ) -> Any:
        choices = Choices(device, level, strict, threads, disable_rule, precision, tuning)
        return function(*args, choices=choices, **rest)

    options = (
        click.option("--device", default="cpu", show_default=True, help="Device to run on."),
        click.option("--level", type=click.IntRange(0, 3), default=3, show_default=True, help="Optimisation level."),
        click.option("--strict", is_flag=True, help="A node that only the reference backend can run is an error."),
        click.option("--threads", type=click.IntRange(1), help="Threads for one run. [default: all allowed]"),
        click.option(
            "--precision",
            type=click.Choice(["float32", "tf32", "bfloat16", "float16"]),
            default="float32",
            show_default=True,
            help="What a float32 model may be computed in; sums of products stay float32.",
        ),
        click.option(
            "--tuning",
            type=click.Choice(["off", "background", "full"]),
            help="On a GPU, measure the ways to start kernels: not at all, beside runs, or before the first run. "
            "[default: $ACCORD_TUNING, or background]",
        ),
        click.option("--disable-rule", multiple=True, metavar="RULE", help="Switch a rewrite rule off; repeatable."),
    )
    for option in reversed(options):
        collected = option(collected)
    return collected  # type: ignore[return-value]


def warmup_option(function: F) -> F:
    """Add ``--warmup``; the function is given ``warmup``, for :meth:`Choices.compile`."""
    return click.option(
        "--warmup",
        multiple=True,
        metavar="NAME=SIZES,...",
        help="Sizes as for --shape, with commas between, for which plans, kernels and graphs are made ready before the "
        "first run; repeatable.",
    )(function)


@dataclass(frozen=True, slots=True)
class Given:
    """What the user gave of a model's inputs: arrays, shapes, and the seed for the rest."""

    inputs: tuple[str, ...]
    shapes: tuple[str, ...]
    seed: int

    def feed(self, model: Model, screen: Screen) -> Feed:
        """All inputs; the screen is told which sizes were assumed.

        Raises:
            click.UsageError: what was given does not fit the model.
        """
        from accord.cli.feeds import make_feed

        made = make_feed(model, self.inputs, self.shapes, self.seed)
        for name, size in made.assumed.items():
            screen.note(f"size '{name}' is not given: {size} taken; --shape {name}=... sets it")
        return made


def feed_options(function: F) -> F:
    """Add ``--input``, ``--shape`` and ``--seed``; the function is given them as ``given``, a :class:`Given`."""

    @functools.wraps(function)
    def collected(*args: Any, inputs: tuple[str, ...], shape: tuple[str, ...], seed: int, **rest: Any) -> Any:
        return function(*args, given=Given(inputs, shape, seed), **rest)

    return click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=FILE.npy",
        help="An input from a NumPy file, or a number or list as JSON; repeatable. Others are random.",
    )(shape_options(collected))  # type: ignore[return-value]


def shape_options(function: F) -> F:
    """Add ``--shape`` and ``--seed``; the function is given ``shape`` (texts) and ``seed``."""
    shape = click.option(
        "--shape",
        multiple=True,
        metavar="NAME=SIZES",
        help="Shape of an input, x=1x3x224x224, or a symbolic size, batch=8; repeatable. Sizes left open are 1, and "
        "224 on the spatial axes of images.",
    )
    seed = click.option("--seed", default=0, show_default=True, help="For random inputs.")
    return shape(seed(function))


def model_argument(function: F) -> F:
    """Add the argument MODEL, a file that exists."""
    return click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))(function)


# words


def plural(count: int, noun: str, many: str | None = None) -> str:
    """'1 node', '2 nodes'; '2 patches' where the plural is given."""
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def size_text(nbytes: float) -> str:
    """Bytes for people: '12.5 MiB'."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def seconds_text(seconds: float) -> str:
    """A duration for people: '3.10 ms'."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds:.2f} s"
