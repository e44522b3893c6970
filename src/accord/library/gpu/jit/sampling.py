"""Pixels between pixels: resizing, sampling by a grid, regions of interest."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _position(i, source, target, ALIGNED: tl.constexpr):
    """First pixel and weight of the second for output ``i``: in integers, so that no size rounds."""
    if ALIGNED:
        over = i * (source - 1)
        per = tl.maximum(target - 1, 1)
    else:
        over = tl.maximum((2 * i + 1) * source - target, 0)
        per = 2 * target
        over = tl.minimum(over, (source - 1) * per)
    low = over // per
    return low, (over - low * per).to(tl.float32) / per.to(tl.float32)


@triton.jit
def resize_bilinear(
    x, output, H, W, height, width, ALIGNED: tl.constexpr, WIDE: tl.constexpr, TIMES: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A program makes ``BLOCK`` pixels of each of ``ROWS`` rows of a plane, ``TIMES`` times: columns are found once."""
    strips = tl.cdiv(height, TIMES * ROWS)
    plane, strip = tl.program_id(0) // strips, tl.program_id(0) % strips
    source = x + plane.to(tl.int64) * H * W
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        c0, c = _position(column.to(tl.int64), W.to(tl.int64), width.to(tl.int64), ALIGNED)
    else:
        c0, c = _position(column, W + column * 0, width + column * 0, ALIGNED)
    c0 = tl.minimum(c0, W - 1)
    c1 = tl.minimum(c0 + 1, W - 1)
    for k in range(TIMES):
        rows = (strip * TIMES + k) * ROWS + tl.arange(0, ROWS)
        inside = (rows < height)[:, None] & (column < width)[None, :]
        if WIDE:
            r0, r = _position(rows.to(tl.int64), H.to(tl.int64), height.to(tl.int64), ALIGNED)
        else:
            r0, r = _position(rows, H + rows * 0, height + rows * 0, ALIGNED)
        r0 = tl.minimum(r0, H - 1)
        top, bottom = source + r0[:, None] * W, source + tl.minimum(r0 + 1, H - 1)[:, None] * W
        a = tl.load(top + c0[None, :], mask=inside, other=0).to(tl.float32)
        b = tl.load(bottom + c0[None, :], mask=inside, other=0).to(tl.float32)
        left = a * (1.0 - r)[:, None] + b * r[:, None]
        a = tl.load(top + c1[None, :], mask=inside, other=0).to(tl.float32)
        b = tl.load(bottom + c1[None, :], mask=inside, other=0).to(tl.float32)
        right = a * (1.0 - r)[:, None] + b * r[:, None]
        z = left * (1.0 - c)[None, :] + right * c[None, :]
        target = output + (plane.to(tl.int64) * height + rows[:, None]) * width + column[None, :]
        tl.store(target, z.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _corner(source, c, y, x, H, W, weight, real):
    inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & real
    at = tl.where(inside, y * W + x, 0)
    v = tl.load(source + c[:, None].to(tl.int64) * (H * W) + at[None, :], mask=inside[None, :], other=0)
    return tl.where(inside, weight, 0.0)[None, :] * v.to(tl.float32)


@triton.jit
def _places(grid, at, real, H, W, ALIGNED: tl.constexpr):
    """For places of a grid the first of four pixels (row, column), and the weights of the second ones."""
    gx, gy = tl.load(grid + at, mask=real, other=0).to(tl.float32), tl.load(grid + at + 1, mask=real, other=0)
    gy = gy.to(tl.float32)
    if ALIGNED:
        px, py = (gx + 1.0) * 0.5 * (W - 1), (gy + 1.0) * 0.5 * (H - 1)
    else:
        px, py = ((gx + 1.0) * W - 1.0) * 0.5, ((gy + 1.0) * H - 1.0) * 0.5
    px, py = tl.minimum(tl.maximum(px, -2.0), W + 1.0), tl.minimum(tl.maximum(py, -2.0), H + 1.0)
    fx, fy = tl.floor(px), tl.floor(py)
    return fy.to(tl.int32), fx.to(tl.int32), py - fy, px - fx


@triton.jit
def grid_sample(x, grid, output, C, H, W, OH, OW, ALIGNED: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr):
    """A program samples ``BLOCK_C`` channels of an image at ``BLOCK`` places; pixels outside count as zero."""
    blocks = tl.cdiv(OH * OW, BLOCK)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    p = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    real = p < OH * OW
    iy, ix, wy, wx = _places(grid, (image * OH * OW + p) * 2, real, H, W, ALIGNED)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    source = x + image * C * H * W
    safe = tl.minimum(c, C - 1)
    z = _corner(source, safe, iy, ix, H, W, (1.0 - wy) * (1.0 - wx), real)
    z += _corner(source, safe, iy, ix + 1, H, W, (1.0 - wy) * wx, real)
    z += _corner(source, safe, iy + 1, ix, H, W, wy * (1.0 - wx), real)
    z += _corner(source, safe, iy + 1, ix + 1, H, W, wy * wx, real)
    target = output + (image * C + c[:, None]) * (OH * OW) + p[None, :]
    tl.store(target, z.to(output.dtype.element_ty), mask=(c < C)[:, None] & real[None, :])


@triton.jit
def _pixel(y, x, first, H, W, outside):
    """Number of a pixel of all images; ``outside`` for what is none."""
    return tl.where((y >= 0) & (y < H) & (x >= 0) & (x < W), first + y * W + x, outside)


@triton.jit
def _channels(images, pixel, weight, c, C):
    """``weight`` times channels of pixels: [places, channels], float32; images have their channels last."""
    v = tl.load(images + pixel[:, None] * C + c[None, :], mask=(c < C)[None, :], other=0)
    return weight[:, None] * v.to(tl.float32)


@triton.jit
def grid_sample_last(
    grid, output, workspace, N, C, H, W, AREA, ALIGNED: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr
):
    """As :func:`grid_sample`, from images with their channels last; a program has all channels of its places."""
    images = workspace.to(tl.pointer_type(output.dtype.element_ty), bitcast=True)
    blocks = tl.cdiv(AREA, BLOCK)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    p = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    real = p < AREA
    iy, ix, wy, wx = _places(grid, (image * AREA + p) * 2, real, H, W, ALIGNED)
    outside = tl.cast(N, tl.int64) * H * W
    first = image * H * W
    p00, p01 = _pixel(iy, ix, first, H, W, outside), _pixel(iy, ix + 1, first, H, W, outside)
    p10, p11 = _pixel(iy + 1, ix, first, H, W, outside), _pixel(iy + 1, ix + 1, first, H, W, outside)
    for start in range(0, C, BLOCK_C):
        c = start + tl.arange(0, BLOCK_C)
        z = _channels(images, p00, (1.0 - wy) * (1.0 - wx), c, C)
        z += _channels(images, p01, (1.0 - wy) * wx, c, C)
        z += _channels(images, p10, wy * (1.0 - wx), c, C)
        z += _channels(images, p11, wy * wx, c, C)
        target = output + (image * C + c[:, None]) * AREA + p[None, :]
        tl.store(target, tl.trans(z.to(output.dtype.element_ty)), mask=(c < C)[:, None] & real[None, :])


@triton.jit
def _bordered(y, x, H, W, real):
    """Rows, columns and the weights of the second ones, and whether there is anything.

    Up to one pixel outside counts as on the border, more as zero.
    """
    inside = (y > -1.0) & (y < H) & (x > -1.0) & (x < W) & real
    y = tl.minimum(tl.maximum(y, 0.0), H - 1.0)
    x = tl.minimum(tl.maximum(x, 0.0), W - 1.0)
    r0, c0 = y.to(tl.int32), x.to(tl.int32)
    return r0, tl.minimum(r0 + 1, H - 1), c0, tl.minimum(c0 + 1, W - 1), y - r0, x - c0, inside


@triton.jit
def _box(rois, box, spatial_scale):
    """Corners of a box, in pixels."""
    x1 = tl.load(rois + box * 4).to(tl.float32) * spatial_scale - 0.5
    y1 = tl.load(rois + box * 4 + 1).to(tl.float32) * spatial_scale - 0.5
    x2 = tl.load(rois + box * 4 + 2).to(tl.float32) * spatial_scale - 0.5
    y2 = tl.load(rois + box * 4 + 3).to(tl.float32) * spatial_scale - 0.5
    return x1, y1, x2, y2


@triton.jit
def _bins(rois, height, width, spatial_scale, SAMPLES: tl.constexpr, BLOCK: tl.constexpr):
    """A program's box and bins in it, where the box begins, and the way from sample to sample, down and across."""
    blocks = tl.cdiv(height * width, BLOCK)
    box = (tl.program_id(0) // blocks).to(tl.int64)
    x1, y1, x2, y2 = _box(rois, box, spatial_scale)
    p = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    return box, p, x1, y1, (y2 - y1) / (height * SAMPLES), (x2 - x1) / (width * SAMPLES)


@triton.jit
def roi_align(
    x,
    rois,
    images,
    output,
    C,
    H,
    W,
    height,
    width,
    spatial_scale,
    SAMPLES: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program makes ``BLOCK`` bins of a box for ``BLOCK_C`` channels."""
    box, p, x1, y1, dy, dx = _bins(rois, height, width, spatial_scale, SAMPLES, BLOCK)
    real = p < height * width
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    source = x + tl.load(images + box) * C * H * W
    safe = tl.minimum(c, C - 1)
    z = tl.zeros([BLOCK_C, BLOCK], tl.float32)
    for i in range(SAMPLES):
        for j in range(SAMPLES):
            y = y1 + ((p // width * SAMPLES + i).to(tl.float32) + 0.5) * dy
            a = x1 + ((p % width * SAMPLES + j).to(tl.float32) + 0.5) * dx
            r0, r1, c0, c1, wy, wx, inside = _bordered(y, a, H, W, real)
            z += _corner(source, safe, r0, c0, H, W, (1.0 - wy) * (1.0 - wx), inside)
            z += _corner(source, safe, r0, c1, H, W, (1.0 - wy) * wx, inside)
            z += _corner(source, safe, r1, c0, H, W, wy * (1.0 - wx), inside)
            z += _corner(source, safe, r1, c1, H, W, wy * wx, inside)
    target = output + (box * C + c[:, None]) * (height * width) + p[None, :]
    z = z * (1.0 / (SAMPLES * SAMPLES))
    tl.store(target, z.to(output.dtype.element_ty), mask=(c < C)[:, None] & real[None, :])


@triton.jit
def roi_align_last(
    rois, images, output, workspace, N, C, H, W, height, width, spatial_scale, SAMPLES: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As :func:`roi_align`, from images with their channels last."""
    source = workspace.to(tl.pointer_type(output.dtype.element_ty), bitcast=True)
    box, p, x1, y1, dy, dx = _bins(rois, height, width, spatial_scale, SAMPLES, BLOCK)
    real = p < height * width
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.load(images + box) * H * W
    outside = tl.cast(N, tl.int64) * H * W
    z = tl.zeros([BLOCK, BLOCK_C], tl.float32)
    for i in range(SAMPLES):
        for j in range(SAMPLES):
            y = y1 + ((p // width * SAMPLES + i).to(tl.float32) + 0.5) * dy
            a = x1 + ((p % width * SAMPLES + j).to(tl.float32) + 0.5) * dx
            r0, r1, c0, c1, wy, wx, inside = _bordered(y, a, H, W, real)
            z += _channels(source, tl.where(inside, first + r0 * W + c0, outside), (1.0 - wy) * (1.0 - wx), c, C)
            z += _channels(source, tl.where(inside, first + r0 * W + c1, outside), (1.0 - wy) * wx, c, C)
            z += _channels(source, tl.where(inside, first + r1 * W + c0, outside), wy * (1.0 - wx), c, C)
            z += _channels(source, tl.where(inside, first + r1 * W + c1, outside), wy * wx, c, C)
    target = output + (box * C + c[:, None]) * (height * width) + p[None, :]
    z = tl.trans(z * (1.0 / (SAMPLES * SAMPLES)))
    tl.store(target, z.to(output.dtype.element_ty), mask=(c < C)[:, None] & real[None, :])
