"""Finding backends: every installed package that names one in the entry point group ``accord.backends``."""

from __future__ import annotations

import functools
import importlib

from accord.backends.protocol import Backend
from accord.errors import BackendError

__all__ = ["GROUP", "available_backends", "backend_named", "backends_for", "own_backend"]

GROUP = "accord.backends"
_OWN = frozenset({"cpu", "cuda", "reference", "null"})


@functools.cache
def available_backends() -> dict[str, Backend]:
    """All backends by name. A package whose entry point fails to load is an error that names it.

    Raises:
        BackendError: an entry point cannot be loaded or is no backend, or two have one name.
    """
    from importlib.metadata import entry_points  # takes longer to import than the rest of this package

    found: dict[str, Backend] = {}
    for point in entry_points(group=GROUP):
        try:
            backend = point.load()
        except Exception as error:
            raise BackendError(
                f"backend '{point.name}' ({point.value}) could not be loaded: {error}",
                remedy="Update or uninstall the package that provides it.",
            ) from error
        if not isinstance(backend, Backend):
            raise BackendError(
                f"backend '{point.name}' ({point.value}) is no accord.backends.protocol.Backend",
                found=type(backend).__name__,
            )
        if backend.name in found and found[backend.name] is not backend:
            raise BackendError(f"two packages provide a backend '{backend.name}'", remedy="Uninstall one of them.")
        found[backend.name] = backend
    return found


def backend_named(name: str) -> Backend:
    """The backend ``name``; Accord's own are found without looking through all installed packages.

    Raises:
        BackendError: there is none.
    """
    if name in _OWN:
        backend = importlib.import_module(f"accord.backends.{name}").backend
        assert isinstance(backend, Backend)
        return backend
    known = available_backends()
    if name not in known:
        raise BackendError(f"no backend '{name}'", expected=f"one of {', '.join(known)}")
    return known[name]


def own_backend(device: str) -> Backend | None:
    """Accord's own backend for ``device``, if there is one, without a look at installed packages."""
    return backend_named(device) if device in _OWN else None


def backends_for(device: str, *, reference_only: bool = False) -> list[Backend]:
    """The backends that serve ``device``, best first; the reference backend comes last for the CPU.

    Raises:
        BackendError: no backend serves the device; the message lists those that exist.
    """
    known = available_backends()
    chosen = sorted((b for b in known.values() if b.device == device), key=lambda b: -b.priority)
    chosen += [backend_named(n) for n in dict.fromkeys(h for b in chosen for h in b.hosts)]
    if reference_only:
        chosen = [b for b in chosen if b.fallback]
    if not chosen:
        devices = sorted({b.device for b in known.values()})
        raise BackendError(
            f"no backend serves device '{device}'",
            expected=f"one of {', '.join(devices)}",
            remedy="Install the package that provides it (accord[cuda] for 'cuda'), or choose another device.",
        )
    return chosen
