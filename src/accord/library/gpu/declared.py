"""Which operators of the library have kernels for a GPU; importing this declares them."""

from __future__ import annotations

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
from accord.library.ctc import ctc_forward, ctc_greedy_decode, ctc_loss
from accord.library.deform_conv2d import deform_conv2d, quantized_deform_conv2d
from accord.library.gpu import activations as elements
from accord.library.gpu import attention as heads
from accord.library.gpu import channel_shuffle as channels
from accord.library.gpu import convolutions, detection, norms, sequences
from accord.library.gpu import linear as products
from accord.library.gpu import pixel_shuffle as pixels
from accord.library.gpu import sparse_matmul as sparse
from accord.library.gpu.launching import CLAUSES, MOVES, WITH_EPILOGUE
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

__all__: list[str] = []

channel_shuffle.triton(*channels.TRITON, **MOVES).cuda(*channels.CUDA, **MOVES)
pixel_shuffle.triton(*pixels.SHUFFLE, **MOVES)
pixel_unshuffle.triton(*pixels.UNSHUFFLE, **MOVES)

layer_norm.triton(*norms.LAYER_NORM, **WITH_EPILOGUE).cuda(*norms.LAYER_NORM_CUDA, **norms.CUDA_CLAUSES)
rms_norm.triton(*norms.RMS_NORM, **WITH_EPILOGUE)
group_norm.triton(*norms.GROUP_NORM, **WITH_EPILOGUE)
softmax.triton(*norms.SOFTMAX, **WITH_EPILOGUE)

gelu.triton(*elements.GELU, **CLAUSES)
silu.triton(*elements.SILU, **CLAUSES)
mish.triton(*elements.MISH, **CLAUSES)
hard_sigmoid.triton(*elements.HARD_SIGMOID, **CLAUSES)
hard_swish.triton(*elements.HARD_SWISH, **CLAUSES)

linear.triton(*products.TRITON, **WITH_EPILOGUE)
attention.triton(*heads.ATTENTION, **CLAUSES)
qkv_attention.triton(*heads.QKV, **heads.QKV_CLAUSES)
alibi_attention.triton(*heads.ALIBI, **CLAUSES)
soft_cap_attention.triton(*heads.SOFT_CAP, **CLAUSES)
sliding_window_attention.triton(*heads.SLIDING_WINDOW, **CLAUSES)
prefix_attention.triton(*heads.PREFIX, **CLAUSES)

conv2d.triton(*convolutions.CONV, **convolutions.CONV_CLAUSES)
deform_conv2d.triton(*convolutions.DEFORM, **convolutions.DEFORM_CLAUSES)
quantized_deform_conv2d.triton(*convolutions.DEFORM_CODES, **convolutions.QUANTIZED)

resize_bilinear.triton(*detection.RESIZE, **CLAUSES)
grid_sample.triton(*detection.GRID_SAMPLE, **detection.GRID_CLAUSES)
roi_align.triton(*detection.ROI_ALIGN, **detection.ROI_CLAUSES)
non_max_suppression.triton(*detection.NMS, **detection.NMS_CLAUSES)

sparse_matmul.triton(*sparse.ROWS, **sparse.CLAUSES)
block_sparse_matmul.triton(*sparse.BLOCKS, **sparse.CLAUSES)

lstm_cell.triton(*sequences.LSTM_CELL, **CLAUSES)
lstm.triton(*sequences.LSTM, **sequences.LSTM_CLAUSES)
gru_cell.triton(*sequences.GRU_CELL, **CLAUSES)
ctc_forward.triton(*sequences.CTC_FORWARD, **CLAUSES)
ctc_loss.triton(*sequences.CTC_LOSS, **CLAUSES)
ctc_greedy_decode.triton(*sequences.CTC_GREEDY, **sequences.CTC_GREEDY_CLAUSES)
