"""Registers everything in ``accord.ops``: shape rules, expansions, and the contracts of ``com.microsoft``."""

from __future__ import annotations

import accord.ops.standard  # noqa: F401  registers the expansions
from accord.contract.registry import provide
from accord.ops.microsoft.schemas import schemas

provide(schemas)
