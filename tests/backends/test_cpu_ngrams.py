"""Counts of n-grams against the reference."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import agree, strided_model

from builders import node

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(
    st.sampled_from(["TF", "IDF", "TFIDF"]),
    st.integers(0, 12),
    st.sampled_from([None, 1, 3]),
    st.integers(0, 3),
    st.sampled_from(["int32", "int64"]),
    st.integers(0, 2**32 - 1),
)
def test_tf_idf(mode, length, rows, skip, dtype, seed):
    rng = np.random.default_rng(seed)
    pool, starts, grams = [], [], 0
    for size in range(1, int(rng.integers(1, 4)) + 1):
        starts.append(len(pool))
        count = int(rng.integers(0 if size > 1 else 1, 6))
        grams += count
        pool += rng.integers(-3, 4, count * size).tolist()
    attributes = {
        "mode": mode,
        "pool_int64s": pool,
        "ngram_counts": starts,
        "ngram_indexes": rng.integers(0, grams, grams).tolist(),
        "min_gram_length": int(rng.integers(1, len(starts) + 1)),
        "max_gram_length": len(starts),
        "max_skip_count": skip,
    }
    if rng.random() < 0.5:
        attributes["weights"] = rng.uniform(0.1, 2, grams).tolist()
    x = rng.integers(-3, 4, (length,) if rows is None else (rows, length)).astype(dtype)
    proto, feeds = strided_model(node("TfIdfVectorizer", ["x"], ["y"], **attributes), {"x": x}, seed=seed)
    agree(proto, feeds, rtol=1e-6, atol=1e-6)
