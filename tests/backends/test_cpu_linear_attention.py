"""Linear attention against the reference: rules, groups, states, types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_harness import agree

from builders import model, node

SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}


@SETTINGS
@given(
    st.sampled_from(["linear", "gated", "delta", "gated_delta"]),
    st.integers(1, 2),
    st.sampled_from([1, 2, 9]),
    st.integers(1, 2),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 5, 16, 33]),
    st.sampled_from([1, 16, 20, 100]),
    st.sampled_from(["float32", "float32", "float16", "bfloat16"]),
    st.integers(0, 2**32 - 1),
)
def test_linear_attention(rule, images, steps, heads, group, size, value_size, dtype, seed):
    rng = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)

    def tensor(*shape: int, factor: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * factor).astype(kind)

    feeds = {
        "q": tensor(images, steps, heads * group * size),
        "k": tensor(images, steps, heads * size, factor=size**-0.5),
        "v": tensor(images, steps, heads * value_size),
    }
    names = ["q", "k", "v", "", "", ""]
    if rng.random() < 0.5:
        state = np.float32 if rng.random() < 0.5 else kind
        feeds["s"] = rng.standard_normal((images, heads, size, value_size)).astype(state)
        names[3] = "s"
    if "gated" in rule:
        width = heads * size if rng.random() < 0.5 else heads
        feeds["g"] = -np.abs(tensor(images, steps, width))
        names[4] = "g"
    if "delta" in rule:
        feeds["b"] = rng.uniform(0, 1, (images, steps, heads if rng.random() < 0.5 else 1)).astype(kind)
        names[5] = "b"
    while not names[-1]:
        names.pop()
    attributes = {"q_num_heads": heads * group, "kv_num_heads": heads, "update_rule": rule}
    if rng.random() < 0.5:
        attributes["scale"] = 0.25
    outputs = ["y", "n"] if rng.random() < 0.7 else ["y", ""]
    op = node("LinearAttention", names, outputs, **attributes)
    declared = {n: (a.dtype, a.shape) for n, a in feeds.items()}
    proto = model([op], declared, [o for o in outputs if o], opset=27)
    agree(proto, feeds, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
