"""Convolutions as products that never gather their patches in memory: weights [M, K] times taps [K, pixels].

Pixels lie along the last axis of a tile, so that neighbouring threads read neighbouring pixels of the same channel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from accord.library.gpu.jit.activations import activated


@triton.jit
def conv2d(
    x,
    weight,
    bias,
    output,
    N,
    C,
    H,
    W,
    M,
    OH,
    OW,
    stride,
    padding,
    dilation,
    groups,
    PER: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Implicit GEMM; a program makes ``BLOCK_M`` channels of a group at ``BLOCK_P`` pixels of all images."""
    own = M // groups
    down = tl.cdiv(own, BLOCK_M)
    tile, group = tl.program_id(1) % down, tl.program_id(1) // down
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    p = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
    real = p < N * OH.to(tl.int64) * OW
    image, place = p // (OH * OW), (p % (OH * OW)).to(tl.int32)
    top, left = place // OW * stride - padding, place % OW * stride - padding
    source = x + (image * C + group * PER) * H * W
    K: tl.constexpr = PER * KH * KW
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_P], tl.float32)
    w_at = weight + (group * own + m).to(tl.int64)[:, None] * K + k[None, :]
    for start in range(0, K, BLOCK_K):
        at = start + k
        c, tap = at // (KH * KW), at % (KH * KW)
        y = top[None, :] + (tap // KW * dilation)[:, None]
        z = left[None, :] + (tap % KW * dilation)[:, None]
        inside = (y >= 0) & (y < H) & (z >= 0) & (z < W) & (at < K)[:, None] & real[None, :]
        b = tl.load(source[None, :] + (c[:, None] * H + y) * W + z, mask=inside, other=0)
        a = tl.load(w_at, mask=(m < own)[:, None] & (at < K)[None, :], other=0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        w_at += BLOCK_K
    channel = group * own + m
    if bias is not None:
        total += tl.load(bias + channel, mask=m < own, other=0).to(tl.float32)[:, None]
    total = activated(total, ACTIVATION)
    target = output + image[None, :] * M * OH * OW + channel[:, None].to(tl.int64) * OH * OW + place[None, :]
    tl.store(target, total.to(output.dtype.element_ty), mask=(m < own)[:, None] & real[None, :])


@triton.jit
def depthwise_conv2d(
    x,
    weight,
    bias,
    output,
    H,
    W,
    M,
    OH,
    OW,
    stride,
    padding,
    dilation,
    MULTIPLE: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Groups of one channel: a program makes ``BLOCK_P`` pixels of one channel of an image."""
    plane = tl.program_id(0)  # of the result
    channel = plane % M
    source = x + (plane // MULTIPLE).to(tl.int64) * H * W
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    top, left = p // OW * stride - padding, p % OW * stride - padding
    total = tl.zeros([BLOCK_P], tl.float32)
    for tap in tl.static_range(KH * KW):
        y, z = top + tap // KW * dilation, left + tap % KW * dilation
        inside = (y >= 0) & (y < H) & (z >= 0) & (z < W) & (p < OH * OW)
        w = tl.load(weight + channel * (KH * KW) + tap).to(tl.float32)
        total += w * tl.load(source + y * W + z, mask=inside, other=0).to(tl.float32)
    if bias is not None:
        total += tl.load(bias + channel).to(tl.float32)
    total = activated(total, ACTIVATION)
    target = output + plane.to(tl.int64) * OH * OW + p
    tl.store(target, total.to(output.dtype.element_ty), mask=p < OH * OW)


@triton.jit
def corner(source, c, y, x, H, W, weight, real):
    """``weight`` times the pixels (y, x) of channels ``c``; zero outside. [channels, places], float32."""
    inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & real
    at = tl.where(inside, y * W + x, 0)
    v = tl.load(source[None, :] + c[:, None] * (H * W) + at[None, :], mask=inside[None, :], other=0)
    return tl.where(inside, weight, 0.0)[None, :] * v.to(tl.float32)


@triton.jit
def _deform_conv2d(
    x,
    weight,
    offset,
    mask,
    bias,
    output,
    factor,
    N,
    C,
    H,
    W,
    M,
    OH,
    OW,
    stride,
    padding,
    dilation,
    groups,
    offset_groups,
    PER: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    own = M // groups
    down = tl.cdiv(own, BLOCK_M)
    tile, group = tl.program_id(1) % down, tl.program_id(1) // down
    m = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    p = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
    real = p < N * OH.to(tl.int64) * OW
    image, place = p // (OH * OW), (p % (OH * OW)).to(tl.int32)
    top, left = place // OW * stride - padding, place % OW * stride - padding
    share = C // offset_groups
    TAPS: tl.constexpr = KH * KW
    c = tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_M, BLOCK_P], tl.float32)
    for g in range(group * PER // share, ((group + 1) * PER - 1) // share + 1):
        low = tl.maximum(group * PER, g * share)
        high = tl.minimum((group + 1) * PER, (g + 1) * share)
        for tap in range(TAPS):
            at = offset + ((image * offset_groups + g) * TAPS + tap) * 2 * OH * OW + place
            dy = tl.load(at, mask=real, other=0).to(tl.float32) * factor
            dx = tl.load(at + OH * OW, mask=real, other=0).to(tl.float32) * factor
            # the whole pixels of an offset apart from the rest: float32 has the fraction to the last bit
            fy, fx = tl.floor(dy), tl.floor(dx)
            wy, wx = dy - fy, dx - fx
            # an offset may be larger than integers are; two pixels outside is outside enough
            y = top + tap // KW * dilation + tl.minimum(tl.maximum(fy, -1.0e6), 1.0e6).to(tl.int32)
            z = left + tap % KW * dilation + tl.minimum(tl.maximum(fx, -1.0e6), 1.0e6).to(tl.int32)
            strength = tl.full([BLOCK_P], 1.0, tl.float32)
            if mask is not None:
                mask_at = mask + ((image * offset_groups + g) * TAPS + tap) * OH * OW + place
                strength = tl.load(mask_at, mask=real, other=0).to(tl.float32)
            for start in range(low, high, BLOCK_C):
                channel = start + c
                present = channel < high
                source = x + image * C * H * W
                safe = tl.minimum(channel, C - 1)
                b = corner(source, safe, y, z, H, W, strength * (1.0 - wy) * (1.0 - wx), real)
                b += corner(source, safe, y, z + 1, H, W, strength * (1.0 - wy) * wx, real)
                b += corner(source, safe, y + 1, z, H, W, strength * wy * (1.0 - wx), real)
                b += corner(source, safe, y + 1, z + 1, H, W, strength * wy * wx, real)
                w_at = weight + ((group * own + m)[:, None] * PER + (channel - group * PER)[None, :]) * TAPS + tap
                a = tl.load(w_at, mask=(m < own)[:, None] & present[None, :], other=0)
                b = tl.where(present[:, None], b, 0.0)
                total = tl.dot(a, b.to(a.dtype), total, input_precision=PRECISION)
    channel = group * own + m
    if bias is not None:
        total += tl.load(bias + channel, mask=m < own, other=0).to(tl.float32)[:, None]
    target = output + image[None, :] * M * OH * OW + channel[:, None].to(tl.int64) * OH * OW + place[None, :]
    tl.store(target, total.to(output.dtype.element_ty), mask=(m < own)[:, None] & real[None, :])


@triton.jit
def deform_conv2d(
    x, weight, offset, mask, bias, output, N, C, H, W, M, OH, OW, stride, padding, dilation, groups, offset_groups,
    PER: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Deformable convolution: every tap is interpolated as the product needs it."""
    _deform_conv2d(
        x, weight, offset, mask, bias, output, 1.0, N, C, H, W, M, OH, OW, stride, padding, dilation, groups,
        offset_groups, PER, KH, KW, BLOCK_M, BLOCK_P, BLOCK_C, PRECISION,
    )  # fmt: skip


@triton.jit
def quantized_deform_conv2d(
    x, weight, codes, scale, mask, bias, output, N, C, H, W, M, OH, OW, stride, padding, dilation, groups,
    offset_groups, PER: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same with offsets that are codes times a number."""
    _deform_conv2d(
        x, weight, codes, mask, bias, output, tl.load(scale), N, C, H, W, M, OH, OW, stride, padding, dilation, groups,
        offset_groups, PER, KH, KW, BLOCK_M, BLOCK_P, BLOCK_C, PRECISION,
    )  # fmt: skip
