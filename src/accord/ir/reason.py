"""Reason: why something was left alone, as data; and the domain of fused operators."""

from __future__ import annotations

from accord.record import record

__all__ = ["FUSED_DOMAIN", "Reason"]

#: Domain of the model-local functions that fusion makes; their bodies are the unfused subgraphs.
FUSED_DOMAIN = "accord.fused"


@record
class Reason:
    """Why a rule looked at a node and left it alone.

    Attributes:
        text: One sentence that names the obstacle: "running_var is a graph input".
        remedy: What would let it fire, if anything would.
    """

    text: str
    remedy: str | None = None

    def __str__(self) -> str:
        return self.text if self.remedy is None else f"{self.text} ({self.remedy})"
