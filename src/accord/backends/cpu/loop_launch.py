"""How a loop program is started for given sizes. Stored plans need this and nothing else of the generator."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accord.backends.protocol import Launch

__all__ = ["launch_loops"]

#: Elements of a task: few enough that there are tasks for all threads, as many as make its start cheap. Those of
#: expensive expressions count more.
TASK_ELEMENTS = 65536
_LEAST_ELEMENTS = 8192
_TASKS = 16


def launch_loops(form: tuple[int, int, bool, bool, int, int, float], sizes: Sequence[int]) -> Launch:
    """Blocks of two kept axes make a task: enough elements for a thread, and of about equal size.

    They are the innermost two, without the one that is woven.
    """
    kept, reduced, across, staged, woven, lanes, weight = form
    extents = sizes[:kept]
    row = max(1, math.prod(sizes[kept : kept + reduced]))
    elements = min(TASK_ELEMENTS, max(_LEAST_ELEMENTS, math.prod(extents) * row // _TASKS))
    wanted = max(1, int(elements / (1 + weight / 8)) // row)
    unit = lanes if staged else 1
    wanted //= woven or 1
    outer = extents[: max(0, kept - 1 - (not across) - bool(woven))]
    if across:
        inner_block, inner_blocks, mid = 1, 1, extents[-1]
    else:
        inner_block, inner_blocks = _blocks(extents[-1], wanted, lanes)
        mid = extents[len(outer)] if kept > 1 + bool(woven) else 1
    mid_block, mid_blocks = _blocks(mid, wanted // inner_block, unit)
    tasks = mid_blocks * inner_blocks * math.prod(outer)
    blocks = (mid_block, mid_blocks, inner_block, inner_blocks)
    return Launch((*sizes[: kept + reduced], *blocks, *sizes[kept + reduced :]), tasks)


def _blocks(extent: int, wanted: int, unit: int) -> tuple[int, int]:
    """Size and number of blocks of about ``wanted`` elements, a multiple of ``unit`` unless there is one."""
    count = max(1, extent // max(1, wanted))
    size = -(-extent // count)
    if count > 1:
        size = -(-size // unit) * unit
    return max(1, size), -(-extent // max(1, size))
