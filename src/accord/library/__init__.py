"""The operators of domain ``accord``: what each promises, its definition in NumPy, and its kernels.

A model or a command that names the domain finds them; nothing has to be imported.
"""

from __future__ import annotations

import accord.library.gpu.declared  # noqa: F401 — GPU kernels of the operators above and below
from accord.library.activations import gelu, hard_sigmoid, hard_swish, mish, silu
from accord.library.attention import attention, qkv_attention
from accord.library.attention_variants import (
    alibi_attention,
    prefix_attention,
    sliding_window_attention,
    soft_cap_attention,
)
from accord.library.channel_shuffle import channel_shuffle
from accord.library.conv2d import conv2d
from accord.library.ctc import ctc_beam_decode, ctc_forward, ctc_greedy_decode, ctc_loss
from accord.library.deform_conv2d import deform_conv2d, quantized_deform_conv2d
from accord.library.grid_sample import grid_sample
from accord.library.group_norm import group_norm
from accord.library.layer_norm import layer_norm
from accord.library.linear import linear
from accord.library.non_max_suppression import non_max_suppression
from accord.library.pixel_shuffle import pixel_shuffle, pixel_unshuffle
from accord.library.recurrent import gru_cell, lstm, lstm_cell
from accord.library.resize_bilinear import resize_bilinear
from accord.library.rms_norm import rms_norm
from accord.library.roi_align import roi_align
from accord.library.softmax import softmax
from accord.library.sparse_matmul import block_sparse_matmul, sparse_matmul

__all__ = [
    "alibi_attention",
    "attention",
    "block_sparse_matmul",
    "channel_shuffle",
    "conv2d",
    "ctc_beam_decode",
    "ctc_forward",
    "ctc_greedy_decode",
    "ctc_loss",
    "deform_conv2d",
    "gelu",
    "grid_sample",
    "group_norm",
    "gru_cell",
    "hard_sigmoid",
    "hard_swish",
    "layer_norm",
    "linear",
    "lstm",
    "lstm_cell",
    "mish",
    "non_max_suppression",
    "pixel_shuffle",
    "pixel_unshuffle",
    "prefix_attention",
    "qkv_attention",
    "quantized_deform_conv2d",
    "resize_bilinear",
    "rms_norm",
    "roi_align",
    "silu",
    "sliding_window_attention",
    "soft_cap_attention",
    "softmax",
    "sparse_matmul",
]
