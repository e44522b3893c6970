"""``--load``: where users' operators come from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["files_option", "load_option"]

F = TypeVar("F", bound=Callable[..., Any])


def files_option(function: F) -> F:
    """Add ``--load``; the function is given ``files``, paths, and imports nothing itself."""
    return click.option(
        "--load",
        "files",
        multiple=True,
        metavar="FILE",
        help="A Python file that declares operators; repeatable. Those of packages are found by their domain.",
    )(function)


def load_option(function: F) -> F:
    """Add ``--load``; the files are imported before the function is called."""

    @functools.wraps(function)
    def loaded(*args: Any, files: tuple[str, ...], **rest: Any) -> Any:
        if files:
            from accord.contract.sources import load_file

            for path in files:
                load_file(path)
        return function(*args, **rest)

    return files_option(loaded)  # type: ignore[return-value]
