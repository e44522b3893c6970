"""Where users' operators come from: Python files, and installed packages.

A package names its operators' modules in the entry-point group ``accord.operators``, by domain; such a module is
imported when an operator of that domain is asked for and not known.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import threading
from pathlib import Path

from accord.contract.registry import user_operators
from accord.errors import ContractError

__all__ = ["GROUP", "load_domain", "load_file"]

#: Of entry points.
GROUP = "accord.operators"
_TRIED: set[str] = set()
_LOCK = threading.Lock()


def load_file(path: str | Path) -> None:
    """Import a file that declares operators; one that was loaded before is not loaded again.

    Raises:
        ContractError: it is not there, or raises.
    """
    file = Path(path).resolve()
    name = f"accord_operators_{file.stem}_{abs(hash(str(file))):x}"
    if name in sys.modules:
        return
    if not file.is_file():
        raise ContractError(f"there is no file {path}", remedy="Correct the path that is given to --load.")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ContractError(f"{path} is no Python file", expected="a file that ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # what dataclasses and pickles look for
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ContractError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}",
            found=_line(error, file),
            remedy="Correct the file; `python FILE` shows the whole traceback.",
        ) from error
    finally:
        sys.path.remove(str(file.parent))


def _line(error: BaseException, file: Path) -> str | None:
    """The line of the file that raised."""
    trace, found = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            found = trace.tb_lineno
        trace = trace.tb_next
    return None if found is None else f"line {found}"


def load_domain(domain: str) -> bool:
    """Import what installed packages offer for a domain.

    Returns:
        True if the domain now has operators.

    Raises:
        ContractError: a package offers it, but cannot be imported.
    """
    with _LOCK:
        if domain not in _TRIED:
            _TRIED.add(domain)
            for entry in importlib.metadata.entry_points(group=GROUP, name=domain):
                try:
                    entry.load()
                except Exception as error:
                    raise ContractError(
                        f"the operators of domain '{domain}' cannot be imported from {entry.value}: "
                        f"{type(error).__name__}: {error}",
                        remedy="Repair or remove the package that offers them.",
                    ) from error
    return any(d == domain for d, _ in user_operators())
