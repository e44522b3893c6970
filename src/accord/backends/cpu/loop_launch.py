"""How a loop program is started for given sizes. Stored plans need this and nothing else of the generator."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accord.backends.protocol import Launch

__all__ = ["launch_loops"]

#: Elements that one task should have at least: work enough to be worth handing to a thread. Those of expensive
#: expressions count more.
TASK_ELEMENTS = 16384


def launch_loops(form: tuple[int, int, bool, bool, int, float], sizes: Sequence[int]) -> Launch:
    """Blocks of the innermost two kept axes make a task: enough elements for a thread, and of about equal size."""
    kept, reduced, across, staged, lanes, weight = form
    extents = sizes[:kept]
    row = max(1, math.prod(sizes[kept : kept + reduced]))
    wanted = max(1, int(TASK_ELEMENTS / (1 + weight / 8)) // row)
    unit = lanes if staged else 1
    if across:
        inner_block, inner_blocks, mid = 1, 1, extents[-1]
    else:
        inner_block, inner_blocks = _blocks(extents[-1], wanted, lanes)
        mid = extents[-2] if kept > 1 else 1
    mid_block, mid_blocks = _blocks(mid, wanted // inner_block, unit)
    tasks = mid_blocks * inner_blocks * math.prod(extents[: -1 if across else -2])
    blocks = (mid_block, mid_blocks, inner_block, inner_blocks)
    return Launch((*sizes[: kept + reduced], *blocks, *sizes[kept + reduced :]), tasks)


def _blocks(extent: int, wanted: int, unit: int) -> tuple[int, int]:
    """Size and number of blocks of about ``wanted`` elements, a multiple of ``unit`` unless there is one."""
    count = max(1, extent // max(1, wanted))
    size = -(-extent // count)
    if count > 1:
        size = -(-size // unit) * unit
    return max(1, size), -(-extent // max(1, size))
