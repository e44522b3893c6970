"""Execution providers: ONNX Runtime's names for devices, mapped to the devices that installed backends serve."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from accord.errors import BackendError, InputError

__all__ = [
    "LOGGER",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "has_device",
    "provider_device",
    "resolve_providers",
    "set_default_logger_severity",
    "stream_of",
]

LOGGER = logging.getLogger("accord")

#: ONNX Runtime's name for the option that gives the stream to run on, as a number.
STREAM_OPTION = "user_compute_stream"
#: Names under which ONNX Runtime's users know a device.
_ALIASES = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
#: The option that is the number of a device.
_DEVICE_ID = "device_id"
_SUFFIX = "ExecutionProvider"
#: Runs nothing, so nobody who takes the first available provider wants it.
_NEVER_LISTED = "null"
_SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def _devices() -> list[str]:
    """Devices that have a backend with all that it needs; the CPU last."""
    from accord.backends.discovery import available_backends

    found = {b.device for b in available_backends().values() if b.lacking() is None}
    return sorted(found, key=lambda d: (d == "cpu", d))


def has_device(device: str) -> bool:
    """True if an installed backend serves ``device``, such as "cuda" or "cuda:1"."""
    from accord.backends.discovery import backends_for, device_number

    try:
        return device_number(device)[0] in _devices() and bool(backends_for(device))
    except BackendError:
        return False


def _names(device: str) -> list[str]:
    own = f"Accord{device.upper()}{_SUFFIX}"
    return [own, _ALIASES[device]] if device in _ALIASES else [own]


def get_available_providers() -> list[str]:
    """Names of the providers that sessions can use, the fastest first: Accord's own, then ONNX Runtime's for it."""
    return [name for device in _devices() if device != _NEVER_LISTED for name in _names(device)]


def get_all_providers() -> list[str]:
    """As :func:`get_available_providers`, and those for which a backend could be installed."""
    known = dict.fromkeys([*_devices(), *_ALIASES])
    return [name for device in sorted(known, key=lambda d: (d == "cpu", d)) for name in _names(device)]


def get_device() -> str:
    """Says "GPU" if a backend for NVIDIA's devices and their driver are installed, else "CPU"."""
    return "GPU" if "cuda" in _devices() else "CPU"


def provider_device(name: str) -> str | None:
    """The device that provider ``name`` stands for; None if no backend serves it."""
    return next((device for device in _devices() if name in _names(device)), None)


def set_default_logger_severity(severity: int) -> None:
    """Choose which messages are logged.

    Args:
        severity: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.

    Raises:
        InputError: another number.
    """
    if severity not in range(len(_SEVERITIES)):
        raise InputError("unknown severity", expected="0 to 4", found=severity)
    LOGGER.setLevel(_SEVERITIES[severity])


def resolve_providers(
    providers: Sequence[Any] | None,
    options: Sequence[dict[Any, Any]] | None,
    *,
    fallback: bool = True,
) -> tuple[dict[str, dict[str, str]], str]:
    """The providers to use, and the device that they stand for.

    Args:
        providers: Names, or pairs of name and options, the most wanted first; None or empty asks for the CPU.
        options: Options by provider, where ``providers`` has names only. One has an effect: the stream.
        fallback: Whether the CPU may be used when none of the providers can be.

    Returns:
        Options by name of those providers that can be used, and the device of the first: its option "device_id" is
        the number of the device.

    Raises:
        InputError: arguments of another form.
        BackendError: none can be used, and ``fallback`` is False.
    """
    wanted = _pairs(providers, options)
    usable: dict[str, dict[str, str]] = {}
    for name, given in wanted:
        if name in usable:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=4)
        elif provider_device(name) is None:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names. "
                f"Available providers: '{', '.join(get_available_providers())}'",
                stacklevel=4,
            )
        else:
            usable[name] = given
            idle = [o for o in given if o not in (STREAM_OPTION, _DEVICE_ID) or provider_device(name) == "cpu"]
            if idle:
                warnings.warn(f"Options of provider '{name}' have no effect: {', '.join(idle)}", stacklevel=4)
    if not usable:
        names = ", ".join(name for name, _ in wanted)
        if wanted and not fallback:
            raise BackendError(
                "none of the providers is available", expected=", ".join(get_available_providers()), found=names
            )
        if wanted:
            warnings.warn(f"No backend for {names}: falling back to '{_names('cpu')[0]}'.", stacklevel=4)
        usable[_names("cpu")[0]] = {}
    name, given = next(iter(usable.items()))
    device = provider_device(name)
    if device is None:
        raise BackendError("no backend serves the CPU", remedy="Install accord again.")
    number = given.get(_DEVICE_ID, "0")
    if not (number.isascii() and number.isdigit()):
        raise InputError(f"option '{_DEVICE_ID}' of provider '{name}' is no number", found=number)
    return usable, device if int(number) == 0 else f"{device}:{int(number)}"


def stream_of(options: dict[str, str]) -> int | None:
    """The stream that a provider's options name, if they do.

    Raises:
        InputError: it is no number.
    """
    text = options.get(STREAM_OPTION)
    if text is not None and not text.isdigit():
        raise InputError(f"option '{STREAM_OPTION}'", expected="the address of a stream, as a number", found=text)
    return None if text is None else int(text)


def _pairs(providers: Any, options: Any) -> list[tuple[str, dict[str, str]]]:
    expected = "a list of names, or of (name, options) pairs"
    if providers is None:
        return []
    if isinstance(providers, str) or not isinstance(providers, Iterable):
        raise InputError("'providers' has another form", expected=expected, found=repr(providers))
    items = list(providers)
    if options is not None:
        if not isinstance(options, Sequence) or len(options) != len(items):
            raise InputError(
                "'provider_options' does not go with 'providers'", expected=f"a list of {len(items)} dictionaries"
            )
        if not all(isinstance(p, str) for p in items):
            raise InputError("options are given twice", expected="names only, beside 'provider_options'")
        items = list(zip(items, options, strict=True))
    pairs = []
    for item in items:
        name, given = (item, {}) if isinstance(item, str) else item if _is_pair(item) else (None, {})
        if not isinstance(name, str) or not isinstance(given, dict):
            raise InputError("'providers' has another form", expected=expected, found=repr(item))
        pairs.append((name, {str(k): str(v) for k, v in given.items()}))
    return pairs


def _is_pair(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2
