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
    x, output, H, W, height, width, ALIGNED: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """A program makes ``BLOCK`` pixels of each of ``ROWS`` rows of a plane."""
    strips = tl.cdiv(height, ROWS)
    plane, strip = tl.program_id(0) // strips, tl.program_id(0) % strips
    source = x + plane.to(tl.int64) * H * W
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = strip * ROWS + tl.arange(0, ROWS)
    inside = (rows < height)[:, None] & (column < width)[None, :]
    if WIDE:
        r0, r = _position(rows.to(tl.int64), H.to(tl.int64), height.to(tl.int64), ALIGNED)
        c0, c = _position(column.to(tl.int64), W.to(tl.int64), width.to(tl.int64), ALIGNED)
    else:
        r0, r = _position(rows, H + rows * 0, height + rows * 0, ALIGNED)
        c0, c = _position(column, W + column * 0, width + column * 0, ALIGNED)
    r0, c0 = tl.minimum(r0, H - 1), tl.minimum(c0, W - 1)
    r1, c1 = tl.minimum(r0 + 1, H - 1), tl.minimum(c0 + 1, W - 1)
    top, bottom = source + r0[:, None] * W, source + r1[:, None] * W
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
def grid_sample(x, grid, output, C, H, W, OH, OW, ALIGNED: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr):
    """A program samples ``BLOCK_C`` channels of an image at ``BLOCK`` places; pixels outside count as zero."""
    blocks = tl.cdiv(OH * OW, BLOCK)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    p = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    real = p < OH * OW
    at = grid + (image * OH * OW + p) * 2
    gx, gy = tl.load(at, mask=real, other=0).to(tl.float32), tl.load(at + 1, mask=real, other=0).to(tl.float32)
    if ALIGNED:
        px, py = (gx + 1.0) * 0.5 * (W - 1), (gy + 1.0) * 0.5 * (H - 1)
    else:
        px, py = ((gx + 1.0) * W - 1.0) * 0.5, ((gy + 1.0) * H - 1.0) * 0.5
    px, py = tl.minimum(tl.maximum(px, -2.0), W + 1.0), tl.minimum(tl.maximum(py, -2.0), H + 1.0)
    fx, fy = tl.floor(px), tl.floor(py)
    wx, wy = px - fx, py - fy
    ix, iy = fx.to(tl.int32), fy.to(tl.int32)
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
def _bordered(source, c, y, x, H, W, real):
    """Bilinear values at (y, x): up to one pixel outside counts as on the border, more as zero."""
    inside = (y > -1.0) & (y < H) & (x > -1.0) & (x < W) & real
    y = tl.minimum(tl.maximum(y, 0.0), H - 1.0)
    x = tl.minimum(tl.maximum(x, 0.0), W - 1.0)
    r0, c0 = y.to(tl.int32), x.to(tl.int32)
    wy, wx = y - r0, x - c0
    r1, c1 = tl.minimum(r0 + 1, H - 1), tl.minimum(c0 + 1, W - 1)
    z = _corner(source, c, r0, c0, H, W, (1.0 - wy) * (1.0 - wx), inside)
    z += _corner(source, c, r0, c1, H, W, (1.0 - wy) * wx, inside)
    z += _corner(source, c, r1, c0, H, W, wy * (1.0 - wx), inside)
    return z + _corner(source, c, r1, c1, H, W, wy * wx, inside)


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
    blocks = tl.cdiv(height * width, BLOCK)
    box = (tl.program_id(0) // blocks).to(tl.int64)
    p = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    real = p < height * width
    x1 = tl.load(rois + box * 4).to(tl.float32) * spatial_scale - 0.5
    y1 = tl.load(rois + box * 4 + 1).to(tl.float32) * spatial_scale - 0.5
    x2 = tl.load(rois + box * 4 + 2).to(tl.float32) * spatial_scale - 0.5
    y2 = tl.load(rois + box * 4 + 3).to(tl.float32) * spatial_scale - 0.5
    dy, dx = (y2 - y1) / (height * SAMPLES), (x2 - x1) / (width * SAMPLES)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    source = x + tl.load(images + box) * C * H * W
    safe = tl.minimum(c, C - 1)
    z = tl.zeros([BLOCK_C, BLOCK], tl.float32)
    for i in range(SAMPLES):
        for j in range(SAMPLES):
            y = y1 + ((p // width * SAMPLES + i).to(tl.float32) + 0.5) * dy
            a = x1 + ((p % width * SAMPLES + j).to(tl.float32) + 0.5) * dx
            z += _bordered(source, safe, y, a, H, W, real)
    target = output + (box * C + c[:, None]) * (height * width) + p[None, :]
    z = z * (1.0 / (SAMPLES * SAMPLES))
    tl.store(target, z.to(output.dtype.element_ty), mask=(c < C)[:, None] & real[None, :])
