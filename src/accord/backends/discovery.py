"""Finding backends: every installed package that names one in the entry point group ``accord.backends``."""

from __future__ import annotations

import functools
import importlib

from accord.backends.protocol import Backend
from accord.errors import BackendError

__all__ = ["GROUP", "available_backends", "backend_named", "backends_for", "device_number", "import_modules"]

GROUP = "accord.backends"
_OWN = frozenset({"cpu", "cuda", "reference", "null"})


@functools.cache
def import_modules(*packages: str) -> None:
    """Import all modules of packages: a family of kernels registers its operators."""
    import pkgutil

    for package in packages:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")


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


def device_number(device: str) -> tuple[str, int]:
    """The kind and the number of a device: of "cuda:1" they are "cuda" and 1.

    Raises:
        BackendError: what follows the colon is no number.
    """
    kind, colon, number = device.partition(":")
    if colon and not (number.isascii() and number.isdigit()):
        raise BackendError(f"'{device}' names no device", expected=f"'{kind}', or '{kind}:1' for the second one")
    return kind, int(number or 0)


def backend_named(name: str) -> Backend:
    """The backend ``name``; Accord's own are found without looking through all installed packages.

    Args:
        name: Its name; ":1" behind it asks for the one of the second device.

    Raises:
        BackendError: there is none.
    """
    kind, number = device_number(name)
    if kind in _OWN:
        backend = importlib.import_module(f"accord.backends.{kind}").backend
        assert isinstance(backend, Backend)
        return backend.numbered(number)
    known = available_backends()
    if name not in known:
        raise BackendError(f"no backend '{name}'", expected=f"one of {', '.join(known)}")
    return known[name]


def backends_for(device: str, *, reference_only: bool = False) -> list[Backend]:
    """The backends that serve ``device``, best first; the reference backend comes last for the CPU.

    Args:
        device: Its kind, "cuda", or one of several, "cuda:1".
        reference_only: Only those that are right but slow.

    Raises:
        BackendError: no backend serves the device; the message lists those that exist.
    """
    known = available_backends()
    kind, number = device_number(device)
    own = sorted((b for b in known.values() if b.device == kind), key=lambda b: -b.priority)
    chosen = [b.numbered(number) for b in own]
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
