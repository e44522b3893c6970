"""Convolutions as products that never gather their patches in memory: weights [M, K] times taps [K, pixels].

Pixels lie along the last axis of a tile, so that neighbouring threads read neighbouring pixels of the same channel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from accord.library.gpu.jit.activations import activated
from accord.library.gpu.jit.movement import places, turned


@triton.jit
def _channels(M, groups, BLOCK_M: tl.constexpr):
    """The group that a program is of, its channels in there, and how many a group has."""
    own = M // groups
    down = tl.cdiv(own, BLOCK_M)
    tile, group = tl.program_id(1) % down, tl.program_id(1) // down
    return group, tile * BLOCK_M + tl.arange(0, BLOCK_M), own


@triton.jit
def _pixels(N, AREA, BLOCK_P: tl.constexpr, WIDE: tl.constexpr):
    """The pixels of a program: the image of each, its place in there, and whether there is one."""
    image, place = places(tl.program_id(0), AREA, BLOCK_P, WIDE)
    return image, place, image < N


@triton.jit
def conv2d(
    x, weight, bias, output, N, C, H, W, M, OW, AREA, stride, padding, dilation, groups, epilogue: tl.constexpr, extras,
    PER: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Implicit GEMM; a program makes ``BLOCK_M`` channels of a group at ``BLOCK_P`` pixels of all images."""
    group, m, own = _channels(M, groups, BLOCK_M)
    image, place, real = _pixels(N, AREA, BLOCK_P, WIDE)
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
    total = activated(total, ACTIVATION, x.dtype.element_ty.primitive_bitwidth == 16)
    there = (m < own)[:, None] & real[None, :]
    target = (image[None, :] * M + channel[:, None]) * AREA + place[None, :]
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
    total = activated(total, ACTIVATION, x.dtype.element_ty.primitive_bitwidth == 16)
    target = plane.to(tl.int64) * OH * OW + p
    if epilogue is not None:
        total = epilogue(total, target, p < OH * OW, extras)
    tl.store(output + target, total.to(output.dtype.element_ty), mask=p < OH * OW)


@triton.jit
def _parts(workspace, element, PIXELS, C, weights):
    """Scratch memory: images with their channels last and a pixel of zeros, weights [M, taps, channels], samples."""
    images = workspace.to(tl.pointer_type(element), bitcast=True)
    weight = images + (PIXELS + 1) * C
    offset = ((PIXELS + 1) * C + weights) * (element.primitive_bitwidth // 8)
    samples = (workspace + tl.cdiv(offset, 16) * 16).to(tl.pointer_type(tl.int64), bitcast=True)
    return images, weight, samples


@triton.jit
def _images_and_weights(
    x, weight, workspace, N, C, M, PLANE, PER: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Images and weights of :func:`_parts`; a program has ``BLOCK`` channels of as many pixels."""
    channels = tl.cast(M, tl.int64) * PER
    images, target, _ = _parts(workspace, x.dtype.element_ty, tl.cast(N, tl.int64) * PLANE, C, channels * TAPS)
    turned(x, images, N, C, PLANE, BLOCK, WIDE)
    # all taps of some channels at once: what they are read of lies together
    HIGH: tl.constexpr = 1 if TAPS == 1 else 4 if TAPS <= 4 else 16
    LONG: tl.constexpr = 1024 // HIGH
    PIECES: tl.constexpr = (TAPS + HIGH - 1) // HIGH
    programs = tl.num_programs(0) * tl.num_programs(1)
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    for piece in range(program.to(tl.int64), tl.cdiv(channels, LONG) * PIECES, programs):
        tap = piece % PIECES * HIGH + tl.arange(0, HIGH)[:, None]
        channel = piece // PIECES * LONG + tl.arange(0, LONG)[None, :]
        inside = (tap < TAPS) & (channel < channels)
        w = tl.load(weight + channel * TAPS + tap, mask=inside, other=0)
        tl.store(target + (channel // PER * TAPS + tap) * PER + channel % PER, w, mask=inside)


@triton.jit
def images_and_weights(
    x, weight, workspace, N, C, M, PLANE, PER: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    """What :func:`conv2d_last` reads, into scratch memory."""
    _images_and_weights(x, weight, workspace, N, C, M, PLANE, PER, TAPS, BLOCK, WIDE)


@triton.jit
def conv2d_last(
    x, bias, output, workspace, N, C, H, W, M, OW, AREA, stride, padding, dilation, groups, epilogue: tl.constexpr,
    extras, PER: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As :func:`conv2d`, from images with their channels last, for groups of whole blocks of channels."""
    images, weight, _ = _parts(
        workspace, x.dtype.element_ty, tl.cast(N, tl.int64) * H * W, C, tl.cast(M, tl.int64) * PER * TAPS
    )
    group, m, own = _channels(M, groups, BLOCK_M)
    image, place, real = _pixels(N, AREA, BLOCK_P, WIDE)
    top, left = place // OW * stride - padding, place % OW * stride - padding
    # what differs from place to place is here, what differs from step to step is one number in the loop
    corner = images + (image * H * W + top * W + left) * C
    w_row = weight + (group * own + m % own).to(tl.int64)[None, :] * (TAPS * PER)
    c = tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_P, BLOCK_M], tl.float32)
    for step in range(PER // BLOCK_C * TAPS):
        tap, channel = step % TAPS, step // TAPS * BLOCK_C
        down, right = tap // KW * dilation, tap % KW * dilation
        y, z = top + down, left + right
        inside = (y >= 0) & (y < H) & (z >= 0) & (z < W) & real
        at = (tl.cast(down, tl.int64) * W + right) * C + group * PER + channel
        a = tl.load(corner[:, None] + (at + c)[None, :], mask=inside[:, None], other=0)
        b = tl.load(w_row + (tap * PER + channel + c)[:, None])
        total = tl.dot(a, b, total, input_precision=PRECISION)
    channel = group * own + m
    if bias is not None:
        total += tl.load(bias + channel, mask=m < own, other=0).to(tl.float32)[None, :]
    total = activated(tl.trans(total), ACTIVATION, x.dtype.element_ty.primitive_bitwidth == 16)
    there = (m < own)[:, None] & real[None, :]
    target = (image[None, :] * M + channel[:, None]) * AREA + place[None, :]
    if epilogue is not None:
        total = epilogue(total, target, there, extras)
    tl.store(output + target, total.to(output.dtype.element_ty), mask=there)


@triton.jit
def _pair(a, b):
    """Two numbers of 32 bits in one of 64: float32, or integers without sign."""
    if a.dtype == tl.float32:
        a, b = a.to(tl.int32, bitcast=True), b.to(tl.int32, bitcast=True)
    return (a.to(tl.int64) & 0xFFFFFFFF) | (b.to(tl.int64) << 32)


@triton.jit
def _pixel(y, x, first, H, W, PIXELS):
    """Number of a pixel of all images; that of the pixel of zeros for what is outside."""
    return tl.where((y >= 0) & (y < H) & (x >= 0) & (x < W), first + y * W + x, PIXELS)


@triton.jit
def _prepare(
    x, weight, offset, factor, mask, workspace, N, C, H, W, M, OH, OW, stride, padding, dilation, offset_groups, PLANE,
    PER: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """What :func:`deform_conv2d` reads, into scratch memory: see :func:`_parts`.

    A sample is where a tap is read: the numbers of four pixels in pairs, and their weights in pairs. Samples are
    [groups of offsets, taps, strips, 4, BLOCK_P]: a strip is BLOCK_P pixels of the result; what fills up the last one
    is of weight 0.
    """
    _images_and_weights(x, weight, workspace, N, C, M, PLANE, PER, TAPS, BLOCK, WIDE)
    pixels = tl.cast(N, tl.int64) * PLANE
    _, _, samples = _parts(workspace, x.dtype.element_ty, pixels, C, tl.cast(M, tl.int64) * PER * TAPS)
    programs = tl.num_programs(0) * tl.num_programs(1)
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    area = OH * OW
    strips = tl.cdiv(tl.cast(N, tl.int64) * area, BLOCK_P)
    for strip in range(program.to(tl.int64), strips * offset_groups * TAPS, programs):
        block, tap = strip // strips // TAPS, (strip // strips % TAPS).to(tl.int32)
        number, q = places(strip % strips, area, BLOCK_P, WIDE)
        real = number < N
        here = ((number * offset_groups + block) * TAPS + tap) * area + q
        dy = tl.load(offset + (here * 2 - q), mask=real, other=0).to(tl.float32) * factor
        dx = tl.load(offset + (here * 2 - q) + area, mask=real, other=0).to(tl.float32) * factor
        # the whole pixels of an offset apart from the rest: float32 has the fraction to the last bit
        fy, fx = tl.floor(dy), tl.floor(dx)
        wy, wx = dy - fy, dx - fx
        # an offset may be larger than integers are; a million pixels outside is outside enough
        y = q // OW * stride - padding + tap // KW * dilation + tl.clamp(fy, -1.0e6, 1.0e6).to(tl.int32)
        z = q % OW * stride - padding + tap % KW * dilation + tl.clamp(fx, -1.0e6, 1.0e6).to(tl.int32)
        y = tl.where(real, y, -2)
        strength = tl.where(real, 1.0, 0.0)
        if mask is not None:
            strength = tl.load(mask + here, mask=real, other=0).to(tl.float32)
        first = number * PLANE
        top, bottom = strength * (1.0 - wy), strength * wy
        sample = samples + strip * (4 * BLOCK_P) + tl.arange(0, BLOCK_P)
        tl.store(sample, _pair(_pixel(y, z, first, H, W, pixels), _pixel(y, z + 1, first, H, W, pixels)))
        y += 1
        tl.store(sample + BLOCK_P, _pair(_pixel(y, z, first, H, W, pixels), _pixel(y, z + 1, first, H, W, pixels)))
        tl.store(sample + 2 * BLOCK_P, _pair(top * (1.0 - wx), top * wx))
        tl.store(sample + 3 * BLOCK_P, _pair(bottom * (1.0 - wx), bottom * wx))


@triton.jit
def deform_samples(
    x, weight, offset, mask, workspace, N, C, H, W, M, OH, OW, stride, padding, dilation, offset_groups, PLANE,
    PER: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Of offsets that are numbers."""
    _prepare(
        x, weight, offset, 1.0, mask, workspace, N, C, H, W, M, OH, OW, stride, padding, dilation, offset_groups, PLANE,
        PER, KW, TAPS, BLOCK, WIDE, BLOCK_P,
    )  # fmt: skip


@triton.jit
def deform_samples_of_codes(
    x, weight, codes, scale, mask, workspace, N, C, H, W, M, OH, OW, stride, padding, dilation, offset_groups, PLANE,
    PER: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Of offsets that are codes times a number."""
    _prepare(
        x, weight, codes, tl.load(scale), mask, workspace, N, C, H, W, M, OH, OW, stride, padding, dilation,
        offset_groups, PLANE, PER, KW, TAPS, BLOCK, WIDE, BLOCK_P,
    )  # fmt: skip


@triton.jit
def _load(at, inside, EVEN: tl.constexpr):
    """Elements, of which none is outside if ``EVEN``."""
    return tl.load(at) if EVEN else tl.load(at, mask=inside, other=0)


@triton.jit
def _two(images, pair, weights, C, channel, high, EVEN: tl.constexpr):
    """The sum of two pixels' channels by their weights: [places, channels], float32."""
    a, b = (pair & 0xFFFFFFFF) * C, ((pair >> 32) & 0xFFFFFFFF) * C
    v, w = weights.to(tl.int32).to(tl.float32, bitcast=True), (weights >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    left = _load(images + (a[:, None] + channel[None, :]), (channel < high)[None, :], EVEN).to(tl.float32)
    right = _load(images + (b[:, None] + channel[None, :]), (channel < high)[None, :], EVEN).to(tl.float32)
    return left * v[:, None] + right * w[:, None]


@triton.jit
def deform_conv2d(
    bias, output, workspace, N, C, H, W, M, AREA, groups, offset_groups, PER: tl.constexpr, TAPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Deformable convolution: every tap is interpolated as the product needs it.

    Channels are the outer loop: the few that are at work for all taps of neighbouring pixels stay in the first cache.
    """
    images, weight, samples = _parts(
        workspace, output.dtype.element_ty, N * H * W, C, tl.cast(M, tl.int64) * PER * TAPS
    )
    group, m, own = _channels(M, groups, BLOCK_M)
    image, place, real = _pixels(N, AREA, BLOCK_P, WIDE)
    share = C // offset_groups
    samples += tl.program_id(0).to(tl.int64) * (4 * BLOCK_P) + tl.arange(0, BLOCK_P)
    row = tl.num_programs(0).to(tl.int64) * (4 * BLOCK_P)
    w_row = weight + (group * own + m % own).to(tl.int64)[None, :] * (TAPS * PER)
    total = tl.zeros([BLOCK_P, BLOCK_M], tl.float32)
    for g in range(group * PER // share, ((group + 1) * PER - 1) // share + 1):
        low = tl.maximum(group * PER, g * share)
        high = tl.minimum((group + 1) * PER, (g + 1) * share)
        if EVEN:
            low = tl.multiple_of(low, BLOCK_C)
        for step in range(tl.cdiv(high - low, BLOCK_C) * TAPS):
            tap = step % TAPS
            channel = low + step // TAPS * BLOCK_C + tl.arange(0, BLOCK_C)
            sample = samples + (g * TAPS + tap) * row
            a = _two(images, tl.load(sample), tl.load(sample + 2 * BLOCK_P), C, channel, high, EVEN)
            a += _two(images, tl.load(sample + BLOCK_P), tl.load(sample + 3 * BLOCK_P), C, channel, high, EVEN)
            b = _load(w_row + tap * PER + (channel - group * PER)[:, None], (channel < high)[:, None], EVEN)
            total = tl.dot(a.to(b.dtype), b, total, input_precision=PRECISION)
    channel = group * own + m
    if bias is not None:
        total += tl.load(bias + channel, mask=m < own, other=0).to(tl.float32)[None, :]
    target = output + (image[None, :] * M + channel[:, None]) * AREA + place[None, :]
    tl.store(target, tl.trans(total).to(output.dtype.element_ty), mask=(m < own)[:, None] & real[None, :])
