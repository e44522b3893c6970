"""The arena's order is right for any sizes: blocks that live at the same time never overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from accord.plan.arena import ALIGNMENT, Block, align, arrange

_BLOCKS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=14).map(
    lambda spans: [Block(i, first, first + length) for i, (first, length) in enumerate(spans)]
)
_SIZE = st.integers(0, 5000)


@given(_BLOCKS, st.data())
def test_no_overlap_whatever_the_sizes(blocks, data):
    first = {b.key: data.draw(_SIZE) for b in blocks}
    other = {b.key: data.draw(_SIZE) for b in blocks}
    order = arrange(blocks, first)
    for sizes in (first, other):
        offsets, total = order.offsets(sizes)
        for b in blocks:
            assert offsets[b.key] % ALIGNMENT == 0
            assert offsets[b.key] + sizes[b.key] <= total
            for c in blocks:
                if b.key < c.key and b.first <= c.last and c.first <= b.last:
                    ends_before = offsets[b.key] + sizes[b.key] <= offsets[c.key]
                    starts_after = offsets[c.key] + sizes[c.key] <= offsets[b.key]
                    assert ends_before or starts_after


def test_blocks_that_never_meet_share_memory():
    blocks = [Block(i, 2 * i, 2 * i + 1) for i in range(10)]
    _, total = arrange(blocks, dict.fromkeys(range(10), 1000)).offsets(dict.fromkeys(range(10), 1000))
    assert total == align(1000)


@given(_BLOCKS)
def test_the_arena_is_never_larger_than_all_blocks_together(blocks):
    sizes = {b.key: 100 * (b.key + 1) for b in blocks}
    _, total = arrange(blocks, sizes).offsets(sizes)
    assert total <= sum(align(s) for s in sizes.values())
