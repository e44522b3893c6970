"""Many threads run one session at the same time: every output is right, and memory does not grow."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from models_harness import ALL, content, make_feed, marked, peer

import accord

THREADS = 8
WARM_UP = 10
#: For what the allocator of each thread keeps; 8,000 runs that lose two kilobytes each lose as much.
ALLOWED_GROWTH = 16 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        marked(name, runs, quick=quick)
        for name in ("pp-ocr-cls", "silero-vad")
        for runs, quick in ((50, True), (1000, False))
    ],
)
def test_threads_share_a_session(name, runs):
    entry = ALL[name]
    session = accord.InferenceSession(content(name))
    theirs = peer(content(name))
    # inputs of every thread differ, and so do the shapes of neighbouring threads
    feeds = [make_feed(entry, i % len(entry.shapes), seed=i) for i in range(THREADS)]
    wanted = [theirs(feed) for feed in feeds]

    def work(i: int, count: int) -> None:
        for _ in range(count):
            for got, want in zip(session.run(None, feeds[i]), wanted[i], strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS), [WARM_UP] * THREADS))
        before = resident()
        list(pool.map(work, range(THREADS), [runs] * THREADS))
        assert resident() - before < ALLOWED_GROWTH
