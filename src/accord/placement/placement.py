"""Where a node runs, and why."""

from __future__ import annotations

from accord.backends.protocol import Kernel
from accord.ir.reason import Reason
from accord.record import record

__all__ = ["Placement"]


@record
class Placement:
    """Where a node runs.

    Attributes:
        node: Its name.
        op: Its operator.
        backend: Name of the backend; "runtime" for control flow, "plan" for views.
        kernel: The kernel; None for control flow.
        declined: What better backends said.
        fallback: True if a slow-but-right backend took it.
        copies: Why it copies a value into another order of axes; "" for a node of the model.
    """

    node: str
    op: str
    backend: str
    kernel: Kernel | None
    declined: tuple[tuple[str, Reason], ...] = ()
    fallback: bool = False
    copies: str = ""

    @property
    def reason(self) -> str:
        """One line for people: why it is where it is."""
        return "; ".join(f"{name}: {r}" for name, r in self.declined) or "first choice"
