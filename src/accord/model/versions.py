"""Versions: the form that a model is written in, and the operator sets that it imports."""

from __future__ import annotations

from collections.abc import Iterable

from accord.errors import GraphError, ModelFormatError, UnsupportedError

__all__ = ["VERSIONED_DOMAINS", "check_ir_version", "check_opsets"]

#: Domains whose version decides what a node means; a model has to import them. Others have only ever had version 1.
VERSIONED_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "ai.onnx.preview")

_DAMAGED = "The file is damaged or was written wrongly: export the model again."
#: No version of ONNX will have such a number; it comes from a damaged file.
_ABSURD = 1000
#: ONNX counts the versions of operators in 32 bits.
_MAX_VERSION = 2**31


def check_ir_version(version: int | None) -> None:
    """Check the version of the file format.

    Raises:
        ModelFormatError: it is missing, absurd, or newer than the installed ``onnx`` reads.
    """
    import onnx

    if version is not None and 1 <= version <= onnx.IR_VERSION:
        return
    if version is not None and onnx.IR_VERSION < version < _ABSURD:
        raise ModelFormatError(
            "the model is written in a newer form than the installed onnx reads",
            expected=f"IR version 1 to {onnx.IR_VERSION}",
            found=version,
            remedy="Update the package onnx, or export the model for an older version.",
        )
    raise ModelFormatError(
        "the model states no sensible IR version",
        expected=f"1 to {onnx.IR_VERSION}",
        found="none" if version is None else version,
        remedy=_DAMAGED,
    )


def check_opsets(imports: Iterable[tuple[str, int]], where: str | None = None) -> None:
    """Check imports of operator sets, each a domain and its version.

    Args:
        imports: The imports; ONNX's own domain is "".
        where: The function that imports them; None for the model.

    Raises:
        ModelFormatError: the model imports none, or a version is not positive.
        GraphError: two versions of one domain.
        UnsupportedError: newer than the installed ``onnx`` defines.
    """
    import onnx

    _, _, *versions = onnx.helper.VERSION_TABLE[-1]
    newest = dict(zip(("", "ai.onnx.ml", "ai.onnx.training"), versions, strict=False))
    seen: dict[str, int] = {}
    for domain, version in imports:
        shown = domain or "ai.onnx"
        if not 1 <= version < _MAX_VERSION:
            raise ModelFormatError(
                f"domain '{shown}' is no sensible version",
                value=where,
                expected="at least 1",
                found=version,
            )
        if seen.setdefault(domain, version) != version:
            raise GraphError(
                f"domain '{shown}' is imported in two versions", value=where, found=f"{seen[domain]} and {version}"
            )
        if version > newest.get(domain, version):
            raise UnsupportedError(
                f"the model needs a newer version of domain '{shown}' than the installed onnx defines",
                value=where,
                expected=f"at most {newest[domain]}",
                found=version,
                remedy="Update the package onnx, or export the model for an older opset.",
            )
    if not seen and where is None:
        raise ModelFormatError(
            "the model imports no operator set", expected="at least one opset_import", remedy=_DAMAGED
        )
