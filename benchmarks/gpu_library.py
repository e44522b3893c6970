"""Times of the library's GPU kernels beside a copy and PyTorch, on the GPU of this machine.

``python benchmarks/gpu_library.py benchmarks/results/library-h200.json``

Each time is the median over replays of a CUDA graph of 20 launches on rotating sets of inputs, which together exceed
the cache. Outputs are compared with PyTorch's before anything is timed. All that do one thing take turns, with a copy
of as many bytes where memory is the bound. Peers that are called one by one, as programs without graphs do, have the
host's time, with a wait after every 20 calls.

``--only layer_norm deform_conv2d`` measures these operators; ``--ways`` also other ways to start a kernel
(gpu_ways.py).
"""

# ruff: noqa: E731 — a peer or an input is one expression

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_timing import Captured, by_turns, graph_of
from gpu_ways import WAYS
from machine import invocation, machine

from accord import library
from accord.contract.choose import attributes_of
from accord.contract.dtypes import ONNX_TYPES
from accord.kernels.bound import bind_kernel, named_sizes, workspace_bytes
from accord.kernels.triton import varied

HALF = torch.float16
LAUNCHES, REPLAYS = 20, 15


def kernel_call(
    name: str, kernel: Any, inputs: list[Any], shapes: list[tuple[int, ...]], **attributes: Any
) -> tuple[Callable[[], None], list[torch.Tensor]]:
    """A launch on the current stream, and its outputs; ``kernel`` is a name or a declaration."""
    contract = getattr(library, name).contract
    declared = contract.kernel(kernel) if isinstance(kernel, str) else kernel
    floating = next(t for t in inputs if t.is_floating_point())
    dtype = str(floating.dtype).split(".")[-1]
    types = {v: ONNX_TYPES["int8" if v == "Q" else dtype] for v in contract.semantic.types}
    bound = bind_kernel(contract, declared, types)
    given = attributes_of(contract, attributes)
    outputs = [torch.full(s, math.nan, dtype=floating.dtype, device="cuda") for s in shapes]
    count = workspace_bytes(contract, declared, named_sizes(contract, inputs, given, outputs))
    scratch = torch.empty(count, dtype=torch.uint8, device="cuda") if count else None

    def call() -> None:
        bound(inputs, outputs, given, scratch, torch.cuda.current_stream().cuda_stream)

    return call, outputs


def randn(*shape: int, dtype: torch.dtype = HALF, scale: float = 1.0) -> torch.Tensor:
    """Random numbers on the GPU."""
    return (torch.randn(shape, device="cuda", dtype=torch.float32) * scale).to(dtype)


def called_us(calls: list[Callable[[], Any]]) -> float:
    """Microseconds of a call, the host's part included: the median of batches that are waited for."""
    times = []
    for _ in range(3 + REPLAYS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(LAUNCHES):
            calls[i % len(calls)]()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6 / LAUNCHES)
    return statistics.median(times[3:])


class Report:
    """Rows of the result file.

    Args:
        only: Operators that are measured; none for all.
        ways: Other ways of their kernels too.
    """

    def __init__(self, only: tuple[str, ...] = (), *, ways: bool = False) -> None:
        self.rows: list[dict[str, Any]] = []
        self.only, self.ways = only, ways

    def add(
        self,
        name: str,
        what: str,
        make: Callable[[], list[Any]],
        shapes: list[tuple[int, ...]],
        peers: dict[str, Callable[..., Any]],
        *,
        kernels: tuple[Any, ...] = ("triton",),
        sets: int = 3,
        moved: int = 0,
        flops: int = 0,
        close: float = 5e-3,
        one_by_one: dict[str, Callable[..., Any]] = {},  # noqa: B006 — nobody changes it
        **attributes: Any,
    ) -> None:
        """Compare and time; an error is a row too, so that one kernel does not hide the others."""
        if self.only and name not in self.only:
            return
        if self.ways:
            declared = getattr(library, name).contract.kernel("triton")
            kernels = (*kernels, *(varied(declared, f"triton: {label}", c) for label, c in WAYS.get(name, {}).items()))
        inputs = [make() for _ in range(sets)]
        row: dict[str, Any] = {"operator": name, "case": what, "us": {}}
        expected = None
        graphs: dict[str, Captured] = {}
        kept = []  # a graph does not keep what it reads and writes
        if moved:
            pairs = [(randn(moved // 4), torch.empty(moved // 4, dtype=HALF, device="cuda")) for _ in range(sets)]
            graphs["copy"] = graph_of([lambda p=p: p[1].copy_(p[0]) for p in pairs], LAUNCHES)
        for label, peer in peers.items():
            try:
                outcome = peer(*inputs[0])
                expected = outcome if expected is None else expected
                graphs[label] = graph_of([lambda i=i, p=peer: p(*i) for i in inputs], LAUNCHES)
            except Exception as error:  # noqa: BLE001
                row["us"][label] = f"{type(error).__name__}: {str(error)[:120]}"
        for label, peer in one_by_one.items():
            row["us"][label] = called_us([lambda i=i, p=peer: p(*i) for i in inputs])
        for kernel in kernels:
            label = f"accord {kernel if isinstance(kernel, str) else kernel.name}"
            try:
                prepared = [kernel_call(name, kernel, i, shapes, **attributes) for i in inputs]
                kept.append(prepared)
                prepared[0][0]()
                torch.cuda.synchronize()
                if expected is not None:
                    wanted = expected[0] if isinstance(expected, tuple) else expected
                    out = prepared[0][1][0].float()
                    gap = (out - wanted.float()).norm() / wanted.float().norm()
                    row.setdefault("relative error", {})[label] = float(gap)
                    assert gap < close, f"relative error {gap:.2e}"
                graphs[label] = graph_of([c for c, _ in prepared], LAUNCHES)
            except Exception as error:  # noqa: BLE001
                row["us"][label] = f"{type(error).__name__}: {str(error)[:300]}"
        times = by_turns(graphs, REPLAYS)
        row["us"] |= times
        if moved:
            row["of copy"] = {label: times["copy"] / us for label, us in times.items() if label != "copy"}
        if flops:
            row["TFLOP/s"] = {label: flops / us / 1e6 for label, us in times.items()}
        self.rows.append(row)
        print(json.dumps(row), flush=True)


def memory_bound(report: Report) -> None:
    """What moves its tensor once in and once out."""
    both = ("triton", "cuda")
    for n, c, h, g in ((32, 256, 64, 4), (64, 512, 64, 8), (128, 480, 28, 4), (256, 464, 14, 2)):
        shuffled = lambda x, c=c, g=g: x.view(x.shape[0], g, c // g, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
        shape = (n, c, h, h)
        moved = 4 * math.prod(shape)
        make = lambda s=shape: [randn(*s)]
        report.add(
            "channel_shuffle", f"{shape} fp16", make, [shape], {"torch": shuffled}, kernels=both, moved=moved, groups=g
        )
    for rows, d in ((32768, 768), (32768, 1024), (16384, 4096), (32768, 4096), (8192, 8192)):
        shape = (rows, d)
        moved = 4 * rows * d
        make = lambda s=shape: [randn(*s), randn(s[1]), randn(s[1])]
        peer = lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b)
        report.add("layer_norm", f"{shape} fp16", make, [shape], {"torch": peer}, kernels=both, moved=moved)
    shape = (32768, 4096)
    moved = 4 * math.prod(shape)
    make = lambda: [randn(*shape), randn(shape[1])]
    report.add(
        "rms_norm",
        f"{shape} fp16",
        make,
        [shape],
        {"torch": lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-5)},
        moved=moved,
    )
    one = lambda: [randn(*shape)]
    report.add("softmax", f"{shape} fp16", one, [shape], {"torch": lambda x: F.softmax(x, -1)}, moved=moved)
    report.add("gelu", f"{shape} fp16", one, [shape], {"torch": F.gelu}, moved=moved)
    report.add("silu", f"{shape} fp16", one, [shape], {"torch": F.silu}, moved=moved)
    image = (32, 512, 64, 64)
    make = lambda: [randn(*image), randn(512), randn(512)]
    peer = lambda x, w, b: F.group_norm(x, 32, w, b)
    report.add(
        "group_norm", f"{image} fp16, 32 groups", make, [image], {"torch": peer}, moved=4 * math.prod(image), groups=32
    )
    image, out = (16, 256, 128, 128), (16, 64, 256, 256)
    make = lambda: [randn(*image)]
    report.add(
        "pixel_shuffle",
        f"{image} fp16",
        make,
        [out],
        {"torch": lambda x: F.pixel_shuffle(x, 2)},
        moved=4 * math.prod(image),
        factor=2,
    )
    report.add(
        "pixel_unshuffle",
        f"{out} fp16",
        lambda: [randn(*out)],
        [image],
        {"torch": lambda x: F.pixel_unshuffle(x, 2)},
        moved=4 * math.prod(image),
        factor=2,
    )
    small = (16, 64, 128, 128)
    peer = lambda x: F.interpolate(x, (256, 256), mode="bilinear")
    report.add(
        "resize_bilinear",
        f"{small} to 256x256 fp16",
        lambda: [randn(*small)],
        [out],
        {"torch": peer},
        moved=10 * math.prod(small),
        height=256,
        width=256,
    )


def contractions(report: Report) -> None:
    """Attention, products, convolutions."""
    b, h, s, d = 4, 16, 4096, 128
    make = lambda: [randn(b, h, s, d) for _ in range(3)]
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def sdpa(backend: Any, causal: bool) -> Callable[..., Any]:
        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return call

    for causal in (False, True):
        peers = {
            f"torch {n}": sdpa(v, causal)
            for n, v in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION))
        }
        flops = 4 * b * h * s * s * d // (2 if causal else 1)
        report.add(
            "attention",
            f"{(b, h, s, d)} fp16{' causal' if causal else ''}",
            make,
            [(b, h, s, d)],
            peers,
            flops=flops,
            causal=causal,
        )
    for m, n, k, activation in ((4096, 4096, 4096, "none"), (4096, 3072, 768, "gelu"), (8, 4096, 4096, "none")):
        make = lambda m=m, n=n, k=k: [randn(m, k), randn(n, k, scale=k**-0.5), randn(n)]
        peer = F.linear if activation == "none" else lambda x, w, c: F.gelu(F.linear(x, w, c))
        report.add(
            "linear",
            f"{(m, n, k)} fp16 {activation}",
            make,
            [(m, n)],
            {"torch": peer},
            flops=2 * m * n * k,
            activation=activation,
        )
    b, s, m, h = 1, 128, 768, 12
    make = lambda: [randn(b, s, m), randn(3 * m, m, scale=m**-0.5), randn(3 * m)]

    def joined(x: Any, w: Any, c: Any) -> Any:
        q, k, v = F.linear(x, w, c).view(b, s, 3, h, 64).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, m)

    def unfused(x: Any, w: Any, c: Any) -> Any:
        parts = zip(w.chunk(3), c.chunk(3), strict=True)
        q, k, v = (F.linear(x, own, shift).view(b, s, h, 64).transpose(1, 2) for own, shift in parts)
        weights = torch.softmax(q @ k.transpose(-1, -2) * 64**-0.5, -1)
        return (weights @ v).transpose(1, 2).reshape(b, s, m)

    report.add(
        "qkv_attention",
        f"{(b, s, m)} fp16 12 heads",
        make,
        [(b, s, m)],
        {"joint projection + SDPA": joined, "unfused": unfused},
        one_by_one={"unfused, launched one by one": unfused},
        heads=h,
        groups=h,
    )
    for n, c, size, m in ((32, 64, 56, 64), (32, 256, 14, 256)):
        make = lambda n=n, c=c, size=size, m=m: [
            randn(n, c, size, size),
            randn(m, c, 3, 3, scale=(9 * c) ** -0.5),
            randn(m),
        ]
        peer = lambda x, w, v: F.conv2d(x, w, v, padding=1)
        report.add(
            "conv2d",
            f"{(n, c, size, size)} 3x3 to {m} fp16",
            make,
            [(n, m, size, size)],
            {"torch": peer},
            flops=18 * n * c * m * size * size,
            padding=1,
        )


def irregular(report: Report) -> None:
    """Sampling, sparsity, recurrence."""
    import torchvision

    n, c, size = 8, 256, 64
    make = lambda: [
        randn(n, c, size, size),
        randn(c, c, 3, 3, scale=(9 * c) ** -0.5),
        randn(n, 18, size, size, scale=2),
        randn(n, 9, size, size).sigmoid(),
        randn(c),
    ]
    peer = lambda x, w, o, k, v: torchvision.ops.deform_conv2d(x, o, w, v, padding=1, mask=k)
    rows = torch.arange(size, device="cuda", dtype=torch.float32)

    def composed(x: Any, w: Any, o: Any, k: Any, v: Any) -> Any:
        taps = []
        for t in range(9):
            y = rows[:, None] + (t // 3 - 1) + o[:, 2 * t].float()
            z = rows[None, :] + (t % 3 - 1) + o[:, 2 * t + 1].float()
            grid = torch.stack([z * 2 / (size - 1) - 1, y * 2 / (size - 1) - 1], -1).to(x.dtype)
            taps.append(F.grid_sample(x, grid, align_corners=True) * k[:, t : t + 1])
        return torch.einsum("nctyx,mct->nmyx", torch.stack(taps, 2), w.flatten(2)) + v[:, None, None]

    shape = (n, c, size, size)
    report.add(
        "deform_conv2d",
        f"{shape} 3x3 fp16, mask",
        make,
        [shape],
        {"torchvision": peer, "grid_sample composition": composed},
        flops=18 * n * c * c * size * size,
        close=2e-2,
        padding=1,
    )
    codes = lambda: [
        *make()[:2],
        torch.randint(-64, 64, (n, 18, size, size), device="cuda", dtype=torch.int8),
        torch.tensor(0.03125, device="cuda"),
        randn(n, 9, size, size).sigmoid(),
        randn(c),
    ]
    peer = lambda x, w, q, s, k, v: torchvision.ops.deform_conv2d(x, (q * 0.03125).half(), w, v, padding=1, mask=k)
    report.add(
        "quantized_deform_conv2d",
        f"{shape} 3x3 fp16, int8 offsets",
        codes,
        [shape],
        {"torchvision": peer},
        flops=18 * n * c * c * size * size,
        close=2e-2,
        padding=1,
    )
    for block in (32, 64):
        m, k, width = 4096, 4096, 1024
        kept = torch.rand(m // block, k // block, device="cuda") < 0.1
        dense = randn(m, k, dtype=torch.float32) * kept.repeat_interleave(block, 0).repeat_interleave(block, 1)
        bsr = dense.to_sparse_bsr((block, block))
        csr = dense.to_sparse_csr()
        right = randn(k, width, dtype=torch.float32)
        parts = lambda bsr=bsr, right=right: [bsr.values(), bsr.col_indices().long(), bsr.crow_indices().long(), right]
        peers = {"torch CSR": lambda *_, a=csr, y=right: a @ y, "torch dense": lambda *_, a=dense, y=right: a @ y}
        report.add(
            "block_sparse_matmul",
            f"{(m, k, width)} fp32, 10 % of {block}x{block}",
            parts,
            [(m, width)],
            peers,
            sets=1,
            close=2e-3,
            flops=2 * int(kept.sum()) * block * block * width,
            rows=m,
        )
        elements = lambda csr=csr, right=right: [
            csr.values(),
            csr.col_indices().long(),
            csr.crow_indices().long(),
            right,
        ]
        report.add("sparse_matmul", f"the same, {block}, as CSR", elements, [(m, width)], peers, sets=1, close=2e-3)
    x, box = (2, 256, 100, 152), 512
    corners = torch.rand(box, 2, 2, device="cuda").sort(1).values * torch.tensor([152.0, 100.0], device="cuda")
    boxes = corners.reshape(box, 4).half()
    index = torch.randint(0, 2, (box,), device="cuda")
    peer = lambda x, r, i: torchvision.ops.roi_align(
        x.float(), torch.cat([i[:, None].half(), r], 1).float(), 7, 1.0, 2, True
    )
    report.add(
        "roi_align",
        f"{x}, 512 boxes, 7x7 fp16",
        lambda: [randn(*x), boxes, index],
        [(box, 256, 7, 7)],
        {"torchvision in float32": peer},
        close=2e-2,
        height=7,
        width=7,
    )
    x = (8, 64, 128, 128)
    make = lambda: [randn(*x), torch.rand(8, 128, 128, 2, device="cuda").mul(2).sub(1).half()]
    peer = lambda x, g: F.grid_sample(x, g, align_corners=False)
    report.add("grid_sample", f"{x} fp16", make, [x], {"torch": peer}, close=5e-2)
    for rows, units in ((32, 512), (512, 1024)):
        cell = torch.nn.LSTMCell(units, units, device="cuda", dtype=HALF)
        with torch.no_grad():
            i, f, g, o = cell.weight_ih.chunk(4)
            ri, rf, rg, ro = cell.weight_hh.chunk(4)
            bi, bf, bg, bo = (cell.bias_ih + cell.bias_hh).chunk(4)
            weights = [torch.cat(v).contiguous() for v in ((i, o, f, g), (ri, ro, rf, rg), (bi, bo, bf, bg))]
        make = lambda rows=rows, units=units, w=weights: [*(randn(rows, units) for _ in range(3)), *w]
        peer = lambda x, h, c, *_, cell=cell: cell(x, (h, c))
        with torch.no_grad():
            report.add("lstm_cell", f"{rows} rows, {units} units fp16", make, [(rows, units)] * 2, {"torch": peer})


def main() -> None:
    """Run everything; write JSON to the path given."""
    parts = {f.__name__: f for f in (memory_bound, contractions, irregular)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; default: all")
    parser.add_argument("--only", nargs="+", default=(), metavar="OPERATOR")
    parser.add_argument("--ways", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    report = Report(tuple(options.only), ways=options.ways)
    for name, part in parts.items():
        if name in (options.parts or parts):
            with torch.no_grad():
                part(report)
    result = {
        "command": invocation(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": __import__("triton").__version__,
        "unit": "microseconds of one launch in a CUDA graph, median",
        "rows": report.rows,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
