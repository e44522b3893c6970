"""What compilers say of kernels for GPUs, where there is none: asked in a process of its own."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from accord.contract.contract import Contract, KernelDeclaration
from accord.errors import AccordError
from accord.workbench.findings import Finding
from accord.workbench.lab import now
from accord.workbench.nursery import Nursery
from accord.workbench.subject import Outcome, Subject

__all__ = ["compiled", "lacking"]

#: Least version of Triton whose interpreter needs no PyTorch.
_TRITON = (3, 9)
#: Seconds for the first architecture, which is always tried.
_FIRST = 300.0
#: Faults of machine code that an architecture cannot run.
_FAULTS = (21,)


def lacking() -> str | None:
    """What is missing to run Triton kernels without a GPU; None for nothing."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "the package triton is not installed"
    numbers = tuple(int(n) for n in version.split(".")[:2] if n.isdigit())
    return None if numbers >= _TRITON else f"triton {version} is older than {'.'.join(map(str, _TRITON))}"


def compiled(
    nursery: Nursery, files: Sequence[str], contract: Contract, kernel: KernelDeclaration, seconds: float
) -> tuple[list[Finding], list[str]]:
    """Findings of compiling a kernel for its architectures one by one, as far as time suffices, and notes.

    Args:
        nursery: Where the process comes from.
        files: Users' files.
        contract: Of the operator.
        kernel: Of kind "triton" or "cuda".
        seconds: After these no other architecture is begun.
    """
    subject = Subject(nursery, files, contract, kernel)
    try:
        found = _asked(subject, ())
        if isinstance(found, str):
            return [], [f"compiling: {found}"]
        until = now() + seconds
        findings: list[Finding] = []
        notes: list[str] = []
        names = list(found["for"])
        for done, name in enumerate(names):
            if done and now() > until:
                notes.append(f"compiling for {', '.join(names[done:])}: there was no time left")
                break
            found = _asked(subject, (name,))
            if isinstance(found, str):
                notes.append(f"compiling for {name}: {found}")
                break
            for c in found["compilations"]:
                if c["faults"] and not findings:
                    findings.append(_finding(kernel, c))
        return findings, notes
    finally:
        subject.child.close()


def _asked(subject: Subject, names: Sequence[str]) -> Any:
    message = {"do": "compile", "kernel": subject.address, "architectures": names}
    try:
        found = subject.child.ask(message, limit=_FIRST)
    except AccordError as error:  # a package that compiles is not there, or fails
        return error.message
    if isinstance(found, Outcome):
        return found.text
    return found[0]["text"] if "error" in found[0] else found[0]


def _types(c: Mapping[str, Any]) -> str:
    return ", ".join(c["types"].values())


def _finding(kernel: KernelDeclaration, c: Mapping[str, Any]) -> Finding:
    sizes = ", ".join(f"{n}={v}" for n, v in c["sizes"].items())
    return Finding(
        "execution.architectures", kernel.name, f"{c['entry'] or kernel.name} cannot run on {c['architecture']}",
        faults=_FAULTS, expected=f"machine code within the limits of {c['architecture']}",
        found=f"{'; '.join(c['faults'])} ({_types(c)}; {sizes})",
        remedy="Take less of what is short, or name the architectures that it is for in `architectures`.",
    )  # fmt: skip
