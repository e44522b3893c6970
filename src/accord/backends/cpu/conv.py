"""Convolution as matrix product: weights [M, K] times patches [K, pixels], for one to three spatial axes.

A task is one panel of output pixels of one image and one group. Its patches are gathered into scratch memory once (the
"im2col" of one panel; Chellapilla et al., 2006), and all output channels are computed from them. A 1x1 convolution with
stride 1 and no padding reads the image itself.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from accord.backends.cpu.jit import machine
from accord.backends.cpu.llvm import Builder, scalar, vector
from accord.backends.cpu.matmul import panel_bytes
from accord.backends.cpu.printer import Printer
from accord.backends.cpu.program import KernelCode
from accord.backends.cpu.tile import VECTORS, Epilogue, emit_rows, tile_functions
from accord.backends.protocol import Launch, Phase
from accord.expr.lang import bits
from accord.ir import dims as D
from accord.ir.dims import DimLike, Shape

__all__ = ["ConvCode", "conv_phase"]


@dataclass(frozen=True)
class ConvCode(KernelCode):
    """Parameters: images, groups, input and output channels of a group, K, pixels of the output and of the input,
    panels, scratch bytes; then for each spatial axis its input size, output size, kernel, stride, padding in front and
    dilation. Operands: image, weights, the extras, output, scratch.
    """

    dtype: str
    rank: int
    direct: bool
    epilogue: Epilogue

    @property
    def symbol(self) -> str:
        """Name by content."""
        text = f"{self.dtype};{self.rank};{self.direct};{self.epilogue.key}"
        return "conv_" + hashlib.sha256(text.encode()).hexdigest()[:24]

    def module(self, name: str) -> str:
        """LLVM text."""
        b = Builder(name)
        dtype, extras = self.dtype, self.epilogue.extras
        width = machine().width(bits(dtype))
        wide = VECTORS[0] * width
        (_, groups, c_in, c_out, k, pixels, in_pixels, panels, scratch_size) = (b.param(i) for i in range(9))
        image, weights = b.operand(0), b.operand(1)
        extra_at = [b.operand(2 + i) for i in range(len(extras))]
        out, scratch = b.operand(2 + len(extras)), b.operand(3 + len(extras))
        panel = b.op(f"getelementptr i8, ptr {scratch}, i64 {b.mul('%thread', scratch_size)}")
        with b.loop("%first", "%last") as task:
            rest, position = b.divmod(task, panels)
            n, g = b.divmod(rest, groups)
            column = b.mul(position, wide)
            columns = b.min(b.sub(pixels, column), wide)
            plane = b.mul(b.add(b.mul(n, groups), g), c_in)
            source = b.address(image, dtype, b.mul(plane, in_pixels))
            row = b.mul(g, c_out)
            target_plane = b.add(b.mul(n, b.mul(groups, c_out)), row)
            origin = b.add(b.mul(target_plane, pixels), column)
            placed = [
                (b.address(at, e.dtype, row if e.kind == "row" else origin), pixels)
                for at, e in zip(extra_at, extras, strict=True)
            ]
            if self.direct:
                right, right_row = b.address(source, dtype, column), in_pixels
            else:
                self._patches(b, width, source, column, columns, c_in, in_pixels, panel)
                right, right_row = panel, str(wide)
            emit_rows(
                b,
                dtype,
                width,
                self.epilogue,
                rows=c_out,
                columns=columns,
                a=b.address(weights, dtype, b.mul(row, k)),
                a_row=k,
                a_col=1,
                right=right,
                right_row=right_row,
                k=k,
                c=b.address(out, dtype, origin),
                c_row=pixels,
                extras=placed,
            )
        return b.module(*tile_functions(dtype, width, self.epilogue))

    def _patches(
        self, b: Builder, width: int, source: str, column: str, columns: str, c_in: str, in_pixels: str, panel: str
    ) -> None:
        """Gather the panel's patches: line (channel, tap) has one element for each pixel."""
        dtype = self.dtype
        axes = [tuple(b.param(9 + 6 * a + i) for i in range(6)) for a in range(self.rank)]
        taps = functools.reduce(b.mul, (a[2] for a in axes))
        wide = VECTORS[0] * width
        ints = f"<{width} x i64>"
        flags = f"<{width} x i1>"
        lanes = "<" + ", ".join(f"i64 {i}" for i in range(width)) + ">"
        gathered = vector(dtype, width)
        suffix = f"v{width}{dtype}.v{width}p0"
        b.declare(f"declare {gathered} @llvm.masked.gather.{suffix}(<{width} x ptr>, i32, {flags}, {gathered})")
        with b.loop(0, columns, width) as j:
            pixel = b.op(f"add {ints} {_spread(b, b.add(column, j), width)}, {lanes}")
            inside = b.op(f"icmp slt {ints} {pixel}, {_spread(b, b.add(column, columns), width)}")
            # coordinates of the first tap of each pixel, innermost axis first
            corners: list[str] = []
            rest = pixel
            for _, size, _, stride, pad, _ in reversed(axes):
                extent = _spread(b, size, width)
                coordinate = b.op(f"urem {ints} {rest}, {extent}")
                rest = b.op(f"udiv {ints} {rest}, {extent}")
                scaled = b.op(f"mul {ints} {coordinate}, {_spread(b, stride, width)}")
                corners.append(b.op(f"sub {ints} {scaled}, {_spread(b, pad, width)}"))
            corners.reverse()
            with b.loop(0, taps) as tap:
                left = tap
                offsets: list[str] = []
                for _, _, size, _, _, dilation in reversed(axes):
                    left, index = b.divmod(left, size)
                    offsets.append(b.mul(index, dilation))
                offsets.reverse()
                valid, place = inside, "zeroinitializer"
                for (extent, *_), corner, offset in zip(axes, corners, offsets, strict=True):
                    at = b.op(f"add {ints} {corner}, {_spread(b, offset, width)}")
                    limit = _spread(b, extent, width)
                    # as unsigned, a negative coordinate is too large as well
                    valid = b.op(f"and {flags} {valid}, {b.op(f'icmp ult {ints} {at}, {limit}')}")
                    place = b.op(f"add {ints} {b.op(f'mul {ints} {place}, {limit}')}, {at}")
                with b.loop(0, c_in) as channel:
                    base = b.address(source, dtype, b.mul(channel, in_pixels))
                    addresses = b.op(f"getelementptr {scalar(dtype)}, ptr {base}, {ints} {place}")
                    values = b.op(
                        f"call {gathered} @llvm.masked.gather.{suffix}"
                        f"(<{width} x ptr> {addresses}, i32 {bits(dtype) // 8}, {flags} {valid}, "
                        f"{gathered} zeroinitializer)"
                    )
                    line = b.add(b.mul(channel, taps), tap)
                    Printer(b, width).store(dtype, values, b.address(panel, dtype, b.add(b.mul(line, wide), j)))


def _spread(b: Builder, value: str, width: int) -> str:
    """An i64 in every lane."""
    type_ = f"<{width} x i64>"
    first = b.op(f"insertelement {type_} poison, i64 {value}, i64 0")
    return b.op(f"shufflevector {type_} {first}, {type_} poison, <{width} x i32> zeroinitializer")


def conv_phase(
    dtype: str,
    images: DimLike,
    groups: int,
    channels: tuple[DimLike, int],
    in_sizes: Shape,
    out_sizes: Shape,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[DimLike],
    dilations: Sequence[int],
    epilogue: Epilogue,
    operands: tuple[int, ...],
) -> tuple[Phase, DimLike]:
    """A phase for a convolution of one to three spatial axes, and the scratch bytes that a thread needs.

    Args:
        dtype: "f32" or "f64".
        images: Batch size.
        groups: Number of groups.
        channels: Input and output channels of one group.
        in_sizes: Spatial sizes of the input.
        out_sizes: Spatial sizes of the output.
        kernel: Taps along each axis.
        strides: Along each axis.
        pads: In front of each axis.
        dilations: Along each axis.
        epilogue: What is stored; "row" extras have one element for each output channel of all groups.
        operands: Image, weights [M, C / groups, kernel], extras, output, scratch.
    """
    direct = (
        all(k == 1 for k in kernel)
        and all(s == 1 for s in strides)
        and all(p == 0 for p in pads)
        and in_sizes == out_sizes
    )
    c_in, c_out = channels
    k = D.product((c_in, *kernel))
    scratch: DimLike = 0 if direct else panel_bytes(k, dtype)
    dims: list[DimLike] = [images, groups, c_in, c_out, k, D.product(out_sizes), D.product(in_sizes), scratch]
    for axis in zip(in_sizes, out_sizes, kernel, strides, pads, dilations, strict=True):
        dims += axis
    wide = VECTORS[0] * machine().width(bits(dtype))
    code = ConvCode(dtype, len(kernel), direct, epilogue)
    return Phase(code, operands, tuple(dims), functools.partial(_launch, wide)), scratch


def _launch(wide: int, sizes: Sequence[int]) -> Launch:
    images, groups, c_in, c_out, k, pixels, in_pixels, scratch, *axes = sizes
    panels = -(-pixels // wide)
    params = (images, groups, c_in, c_out, k, pixels, in_pixels, panels, scratch, *axes)
    return Launch(params, images * groups * panels)
