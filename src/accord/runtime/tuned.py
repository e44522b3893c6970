"""What ``accord tune`` has found, on disk: by node, the alternative that its kernel takes instead of the one by rule.

An entry belongs to one model file, one set of options, one machine and one state of Accord's own code: its name is the
:func:`~accord.runtime.stored.model_key`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from accord.backends.protocol import NativeKernel
from accord.errors import AccordError
from accord.plan.plan import Plan, all_steps
from accord.runtime.options import Options
from accord.storage import Storage

__all__ = ["Choices", "as_choices", "check_choices", "key_with", "read_choices", "tuned", "write_choices"]

#: Pairs of a node and an alternative, in order of nodes.
Choices: TypeAlias = tuple[tuple[str, str], ...]
_KIND = "tuning"


def as_choices(choices: Mapping[str, str]) -> Choices:
    """The same as pairs."""
    return tuple(sorted(choices.items()))


def read_choices(key: str) -> Choices:
    """The choices of entry ``key``; none if there is no sound entry."""
    payload = Storage(_KIND).read(key)
    if payload is None:
        return ()
    import json  # a process that runs stored plans seldom has choices to read

    try:
        found = json.loads(bytes(payload))
    except ValueError:
        return ()
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        return ()
    return as_choices(found)


def tuned(options: Options, key: str | None) -> Options:
    """``options`` with what was found for the model whose key is ``key``, unless they have choices of their own."""
    if options.choices is not None:
        return options
    return replace(options, choices=() if key is None else read_choices(key))


def write_choices(key: str, choices: Choices) -> bool:
    """Keep ``choices`` as entry ``key``, in place of what it held; False if they cannot be kept."""
    import json

    return Storage(_KIND).write(key, [json.dumps(dict(choices)).encode()])


def key_with(key: str, choices: tuple[tuple[str, str], ...]) -> str:
    """The name of the entry of a plan that was made with ``choices``, or for what conditions on sizes came to."""
    return hashlib.sha256(repr((key, choices)).encode()).hexdigest() if choices else key


def check_choices(plan: Plan, choices: Choices) -> None:
    """Look for choices that no kernel of ``plan`` offers.

    Raises:
        AccordError: no step has this name, or its kernel has no such alternative.
    """
    if not choices:
        return
    offered: dict[str, dict[str, None]] = {}
    for step in all_steps(plan):
        alternatives = step.kernel.alternatives if isinstance(step.kernel, NativeKernel) else ()
        offered.setdefault(step.placement.node, {}).update(dict.fromkeys(alternatives))
    for node, alternative in choices:
        if node not in offered:
            import difflib

            near = difflib.get_close_matches(node, offered, n=3)
            raise AccordError(
                "an alternative is chosen for a node that the plan does not have",
                node=node,
                expected=f"a node such as {', '.join(near)}" if near else "a node as accord profile names it",
            )
        if alternative not in offered[node]:
            raise AccordError(
                "the kernel of a node has no such alternative",
                node=node,
                expected=" or ".join(offered[node]) or "none: there is one way to compute it",
                found=alternative,
            )
