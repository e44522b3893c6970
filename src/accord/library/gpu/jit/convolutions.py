"""Convolutions as products that never gather their patches in memory: weights [M, K] times taps [K, pixels].

Pixels lie along the last axis of a tile, so that neighbouring threads read neighbouring pixels of the same channel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from accord.library.gpu.jit.activations import activated


@triton.jit
def _channels(M, groups, BLOCK_M: tl.constexpr):
    """The group that a program is of, its channels in there, and how many a group has."""
    own = M // groups
    down = tl.cdiv(own, BLOCK_M)
    tile, group = tl.program_id(1) % down, tl.program_id(1) // down
    return group, tile * BLOCK_M + tl.arange(0, BLOCK_M), own


@triton.jit
def _pixels(N, OH, OW, BLOCK_P: tl.constexpr):
    """The pixels of a program: the image of each, its place in there, and whether there is one."""
    p = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
    return p // (OH * OW), (p % (OH * OW)).to(tl.int32), p < tl.cast(N, tl.int64) * OH * OW


@triton.jit
def conv2d(
    x, weight, bias, output, N, C, H, W, M, OH, OW, stride, padding, dilation, groups, epilogue: tl.constexpr, extras,
    PER: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Implicit GEMM; a program makes ``BLOCK_M`` channels of a group at ``BLOCK_P`` pixels of all images."""
    group, m, own = _channels(M, groups, BLOCK_M)
    image, place, real = _pixels(N, OH, OW, BLOCK_P)
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
    there = (m < own)[:, None] & real[None, :]
    target = image[None, :] * M * OH * OW + channel[:, None].to(tl.int64) * OH * OW + place[None, :]
    if epilogue is not None:
        total = epilogue(total, target, there, extras)
    tl.store(output + target, total.to(output.dtype.element_ty), mask=there)


@triton.jit
def depthwise_conv2d(
    x, weight, bias, output, H, W, M, OH, OW, stride, padding, dilation, epilogue: tl.constexpr, extras,
    MULTIPLE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
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
    target = plane.to(tl.int64) * OH * OW + p
    if epilogue is not None:
        total = epilogue(total, target, p < OH * OW, extras)
    tl.store(output + target, total.to(output.dtype.element_ty), mask=p < OH * OW)


@triton.jit
def channels_last(x, weight, workspace, N, C, H, W, M, PER: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """Images with their channels last, behind them weights [M, taps, channels], into scratch memory.

    Then a pixel's channels are read at once, wherever an offset points.
    """
    target = workspace.to(tl.pointer_type(x.dtype.element_ty), bitcast=True)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pixels = tl.cast(N, tl.int64) * H * W
    image, pixel = place // (H * W), place % (H * W)
    inside = (c < C)[:, None] & (place < pixels)[None, :]
    v = tl.load(x + (image[None, :] * C + c[:, None]) * (H * W) + pixel[None, :], mask=inside, other=0)
    tl.store(target + place[:, None] * C + c[None, :], tl.trans(v), mask=tl.trans(inside))
    step = tl.num_programs(0) * tl.num_programs(1)
    first = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
    for start in range(first * BLOCK, tl.cast(M, tl.int64) * PER * TAPS, step * BLOCK):
        at = start + tl.arange(0, BLOCK)
        there = at < tl.cast(M, tl.int64) * PER * TAPS
        tap, channel = at // PER % TAPS, at % PER
        w = tl.load(weight + at // (PER * TAPS) * (PER * TAPS) + channel * TAPS + tap, mask=there, other=0)
        tl.store(target + pixels * C + at, w, mask=there)


@triton.jit
def _corner(pixels, y, x, H, W, C, channel, high, weight, real, EVEN: tl.constexpr):
    """``weight`` times channels of the pixels (y, x); zero outside. [places, channels], float32."""
    inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & real
    at = pixels + tl.where(inside, y * W + x, 0).to(tl.int64) * C
    mask = inside[:, None] if EVEN else inside[:, None] & (channel < high)[None, :]
    v = tl.load(at[:, None] + channel[None, :], mask=mask, other=0)
    return tl.where(inside, weight, 0.0)[:, None] * v.to(tl.float32)


@triton.jit
def _deform_conv2d(
    offset, mask, bias, output, workspace, factor, N, C, H, W, M, OH, OW, stride, padding, dilation, groups,
    offset_groups, PER: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    x = workspace.to(tl.pointer_type(output.dtype.element_ty), bitcast=True)
    weight = x + tl.cast(N, tl.int64) * H * W * C
    group, m, own = _channels(M, groups, BLOCK_M)
    image, place, real = _pixels(N, OH, OW, BLOCK_P)
    top, left = place // OW * stride - padding, place % OW * stride - padding
    pixels = x + image * H * W * C
    share = C // offset_groups
    c = tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_P, BLOCK_M], tl.float32)
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
            # an offset may be larger than integers are; a million pixels outside is outside enough
            y = top + tap // KW * dilation + tl.minimum(tl.maximum(fy, -1.0e6), 1.0e6).to(tl.int32)
            z = left + tap % KW * dilation + tl.minimum(tl.maximum(fx, -1.0e6), 1.0e6).to(tl.int32)
            strength = tl.full([BLOCK_P], 1.0, tl.float32)
            if mask is not None:
                mask_at = mask + ((image * offset_groups + g) * TAPS + tap) * OH * OW + place
                strength = tl.load(mask_at, mask=real, other=0).to(tl.float32)
            for start in range(low, high, BLOCK_C):
                if EVEN:
                    start = tl.multiple_of(start, BLOCK_C)  # noqa: PLW2901
                channel = start + c
                a = _corner(pixels, y, z, H, W, C, channel, high, strength * (1.0 - wy) * (1.0 - wx), real, EVEN)
                a += _corner(pixels, y, z + 1, H, W, C, channel, high, strength * (1.0 - wy) * wx, real, EVEN)
                a += _corner(pixels, y + 1, z, H, W, C, channel, high, strength * wy * (1.0 - wx), real, EVEN)
                a += _corner(pixels, y + 1, z + 1, H, W, C, channel, high, strength * wy * wx, real, EVEN)
                w_at = weight + ((group * own + m).to(tl.int64)[None, :] * TAPS + tap) * PER
                w_mask = (m < own)[None, :] if EVEN else (m < own)[None, :] & (channel < high)[:, None]
                b = tl.load(w_at + (channel - group * PER)[:, None], mask=w_mask, other=0)
                total = tl.dot(a.to(b.dtype), b, total, input_precision=PRECISION)
    channel = group * own + m
    if bias is not None:
        total += tl.load(bias + channel, mask=m < own, other=0).to(tl.float32)[None, :]
    target = output + image[None, :] * M * OH * OW + channel[:, None].to(tl.int64) * OH * OW + place[None, :]
    tl.store(target, tl.trans(total).to(output.dtype.element_ty), mask=(m < own)[:, None] & real[None, :])


@triton.jit
def deform_conv2d(
    offset, mask, bias, output, workspace, N, C, H, W, M, OH, OW, stride, padding, dilation, groups, offset_groups,
    PER: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Deformable convolution: every tap is interpolated as the product needs it."""
    _deform_conv2d(
        offset, mask, bias, output, workspace, 1.0, N, C, H, W, M, OH, OW, stride, padding, dilation, groups,
        offset_groups, PER, KW, TAPS, BLOCK_M, BLOCK_P, BLOCK_C, EVEN, PRECISION,
    )  # fmt: skip


@triton.jit
def quantized_deform_conv2d(
    codes, scale, mask, bias, output, workspace, N, C, H, W, M, OH, OW, stride, padding, dilation, groups,
    offset_groups, PER: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same with offsets that are codes times a number."""
    _deform_conv2d(
        codes, mask, bias, output, workspace, tl.load(scale), N, C, H, W, M, OH, OW, stride, padding, dilation, groups,
        offset_groups, PER, KW, TAPS, BLOCK_M, BLOCK_P, BLOCK_C, EVEN, PRECISION,
    )  # fmt: skip
