"""Non-maximum suppression: ranks by counting, overlaps of all pairs as bits, then one walk in the order of scores."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ranks(scores, workspace, B, BLOCK: tl.constexpr, OTHERS: tl.constexpr):
    """``order[rank] = box``: a box's rank is how many come before it; equal scores keep their order."""
    order = workspace.to(tl.pointer_type(tl.int32), bitcast=True)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(scores + i, mask=i < B, other=0)
    rank = tl.zeros([BLOCK], tl.int32)
    for start in range(0, B, OTHERS):
        j = start + tl.arange(0, OTHERS)
        other = tl.load(scores + j, mask=j < B, other=float("-inf"))
        before = (other[None, :] > mine[:, None]) | ((other[None, :] == mine[:, None]) & (j[None, :] < i[:, None]))
        rank += tl.sum((before & (j < B)[None, :]).to(tl.int32), 1)
    tl.store(order + rank, i, mask=i < B)


@triton.jit
def overlaps(boxes, workspace, B, iou, BLOCK: tl.constexpr):
    """Bit j of row i: box j (by rank) comes after box i and shares too much with it. A program makes 32-bit words."""
    order = workspace.to(tl.pointer_type(tl.int32), bitcast=True)
    words = tl.cdiv(B, 32)
    bits = order + B
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.program_id(1)
    j = word * 32 + tl.arange(0, 32)
    a = tl.load(order + i, mask=i < B, other=0)
    b = tl.load(order + j, mask=j < B, other=0)
    ax1, ay1 = tl.load(boxes + a * 4)[:, None], tl.load(boxes + a * 4 + 1)[:, None]
    ax2, ay2 = tl.load(boxes + a * 4 + 2)[:, None], tl.load(boxes + a * 4 + 3)[:, None]
    bx1, by1 = tl.load(boxes + b * 4)[None, :], tl.load(boxes + b * 4 + 1)[None, :]
    bx2, by2 = tl.load(boxes + b * 4 + 2)[None, :], tl.load(boxes + b * 4 + 3)[None, :]
    wide = tl.maximum(tl.minimum(ax2, bx2) - tl.maximum(ax1, bx1), 0.0)
    high = tl.maximum(tl.minimum(ay2, by2) - tl.maximum(ay1, by1), 0.0)
    shared = wide * high
    # the order of additions is the definition's, which decides at the border
    both = (bx2 - bx1) * (by2 - by1) + (ax2 - ax1) * (ay2 - ay1) - shared
    hit = (shared > iou * both) & (j[None, :] > i[:, None]) & (j < B)[None, :]
    row = tl.sum(hit.to(tl.int32) << tl.arange(0, 32)[None, :], 1)
    tl.store(bits + i * words + word, row, mask=i < B)


@triton.jit
def keep(scores, workspace, output, B, kept, score, WORDS: tl.constexpr):
    """One program walks the boxes by rank; what a kept box shares too much with is out."""
    order = workspace.to(tl.pointer_type(tl.int32), bitcast=True)
    words = tl.cdiv(B, 32)
    bits = order + B
    w = tl.arange(0, WORDS)
    out = tl.zeros([WORDS], tl.int32)
    count = 0
    for i in range(B):
        box = tl.load(order + i)
        gone = (tl.sum(tl.where(w == i // 32, out, 0), 0) >> (i % 32)) & 1
        stays = (gone == 0) & (tl.load(scores + box) > score)
        tl.store(output + count, box.to(tl.int64), mask=stays & (count < kept))
        row = tl.load(bits + i * words + w, mask=w < words, other=0)
        out = out | tl.where(stays, row, 0)
        count += stays.to(tl.int32)
