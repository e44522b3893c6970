"""Other ways to start the library's GPU kernels, which ``gpu_library.py --ways`` measures beside the ones they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A program has rows in turn, the next three on their way to shared memory.
_IN_TURN = {"WALK": 32, "STAGES": 4, "AGAIN": False}

#: By operator, what a label changes: compile-time parameters of launches that have them, or of one ("function.NAME"),
#: and what launches are told of the device.
WAYS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "layer_norm": {
        "read once, 4 warps": {"AGAIN": False, "num_warps": 4, "maxnreg": 128},
        "read once, 8 warps, 64 registers": {"AGAIN": False, "num_warps": 8, "maxnreg": 64},
        "read twice, 4 warps, 96 registers": {"AGAIN": True, "num_warps": 4, "maxnreg": 96},
        "read twice, 16 warps, 32 registers": {"AGAIN": True, "num_warps": 16, "maxnreg": 32},
        "read twice, 8 warps, 32 registers": {"AGAIN": True, "num_warps": 8, "maxnreg": 32},
        "in turn, 8 warps": {**_IN_TURN, "num_warps": 8, "maxnreg": 128},
        "in turn, 16 warps": {**_IN_TURN, "num_warps": 16, "maxnreg": 64},
        "kept in the cache": {"STREAM": False},
    },
    "group_norm": {
        "8192 elements": {"HIGH": 2},
        "16384 elements, 32 warps": {"HIGH": 4, "num_warps": 32},
        "streamed": {"STREAM": True},
        "streamed, 32 warps": {"STREAM": True, "HIGH": 4, "num_warps": 32},
    },
    "linear": {
        "128x256, 3 stages": {"BLOCK_N": 256, "num_stages": 3},
        "128x256, 4 stages": {"BLOCK_N": 256, "num_stages": 4},
        "256x128, 3 stages": {"BLOCK_M": 256, "num_stages": 3},
        "128x128, 4 stages": {"num_stages": 4},
    },
    "conv2d": {
        "4 stages": {"conv2d_last.num_stages": 4},
        "64 pixels": {"conv2d_last.BLOCK_P": 64, "conv2d_last.num_warps": 4},
        "64 pixels, 128 registers": {
            "conv2d_last.BLOCK_P": 64,
            "conv2d_last.num_warps": 4,
            "conv2d_last.maxnreg": 128,
        },
        "64 channels, 80 registers": {
            "conv2d_last.BLOCK_P": 128,
            "conv2d_last.BLOCK_M": 64,
            "conv2d_last.num_warps": 8,
            "conv2d_last.maxnreg": 80,
        },
        "64 pixels by 64 channels": {
            "conv2d_last.BLOCK_P": 64,
            "conv2d_last.BLOCK_M": 64,
            "conv2d_last.num_warps": 4,
        },
        "128 pixels": {"conv2d_last.BLOCK_P": 128, "conv2d_last.num_warps": 8},
    },
    "qkv_attention": {
        **{
            f"projection {m}x{n}x{k}, {stages} stages": {
                "projection.BLOCK_M": m,
                "projection.BLOCK_N": n,
                "projection.BLOCK_K": k,
                "projection.num_stages": stages,
                "projection.num_warps": 4,
            }
            for m, n, k, stages in ((64, 64, 128, 6), (64, 64, 64, 8), (64, 64, 32, 8))
        },
        **{f"{q} queries": {"attention_of_rows.BLOCK_Q": q} for q in (16, 32, 64)},
        "16 queries, 2 warps": {"attention_of_rows.BLOCK_Q": 16, "attention_of_rows.num_warps": 2},
    },
    "deform_conv2d": {
        "64 pixels": {"BLOCK_P": 64, "WARPS": 4, "num_warps": 4},
        "128 channels": {"BLOCK_M": 128},
        "interpolated in halves": {"HALVES": True},
        **{f"Triton, {n} stages": {"architecture": 80, "BLOCK_M": 256, "deform_conv2d.num_stages": n} for n in (2, 3)},
        "Triton, 128 channels": {"architecture": 80},
    },
}
