"""What the best library kernels of a model add up to, each timed alone in a CUDA graph: nothing between them counts.

Products are cuBLAS's (through PyTorch, with bias and GELU where it fuses them), attention is the faster of PyTorch's
flash and cuDNN backends, a normalisation counts as a copy of its tensor, convolutions are cuDNN's of channels-last
images without bias or activation. Embeddings, residuals and whatever else is elementwise count as nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from gpu_cases import Block
from gpu_timing import median_us

__all__ = ["of_block", "of_convolutions"]

#: Bytes that the rotating sets of operands of one kernel take together: operands are not in the cache.
_ROTATED = 200 << 20
_MOST_SETS = 24


def _us(make: Callable[[], tuple[torch.Tensor, ...]], call: Callable[..., Any]) -> float:
    first = make()
    nbytes = sum(t.numel() * t.element_size() for t in first)
    sets = [first, *(make() for _ in range(min(_MOST_SETS, -(-_ROTATED // nbytes)) - 1))]
    return median_us([lambda s=s: call(*s) for s in sets], 24, 7)


def _half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float16)


def of_block(block: Block) -> dict[str, Any]:
    """Of a transformer: microseconds of each kernel, and their sum in seconds."""
    rows, width = block.batch * block.tokens, block.width

    def product(m: int, n: int, k: int) -> float:
        return _us(lambda: (_half(m, k), _half(n, k), _half(n)), F.linear)

    def gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._addmm_activation(b, x, w.t(), use_gelu=True)

    shape = (block.batch, block.heads, block.tokens, width // block.heads)
    found = {
        "query, key and value": product(rows, 3 * width, width),
        "attention": min(_attention(shape, block.causal).values()),
        "output": product(rows, width, width),
        "up, with GELU": _us(lambda: (_half(rows, width), _half(4 * width, width), _half(4 * width)), gelu),
        "down": product(rows, width, 4 * width),
        "normalisation": _us(lambda: (_half(rows, width), _half(rows, width)), lambda x, y: y.copy_(x)),
    }
    total = block.layers * (sum(found.values()) + found["normalisation"])
    if block.extra is not None:
        found["embedding of patches"] = product(*block.extra)
        total += found["embedding of patches"]
    return {"seconds": total * 1e-6, "us": found, "layers": block.layers}


def _attention(shape: tuple[int, ...], causal: bool) -> dict[str, float]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: SDPBackend = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        try:
            found[backend.name] = _us(lambda: (_half(*shape), _half(*shape), _half(*shape)), call)
        except RuntimeError:  # it does not take this shape
            continue
    return found


def of_convolutions(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Of the convolutions of a module in half precision: microseconds of each kind, and their sum in seconds."""
    seen: dict[tuple[Any, ...], int] = {}

    def note(conv: torch.nn.Conv2d, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
        options = (conv.stride, conv.padding, conv.dilation, conv.groups)
        key = (tuple(inputs[0].shape), tuple(conv.weight.shape), *options)
        seen[key] = seen.get(key, 0) + 1

    hooks = [m.register_forward_hook(note) for m in module.modules() if isinstance(m, torch.nn.Conv2d)]
    module(*given)
    for h in hooks:
        h.remove()
    us = {}
    for (image, weight, *options), count in seen.items():

        def make(image: Any = image, weight: Any = weight) -> tuple[torch.Tensor, ...]:
            return tuple(_half(*s).contiguous(memory_format=torch.channels_last) for s in (image, weight))

        one = _us(make, lambda x, w, o=options: F.conv2d(x, w, None, *o))
        us[f"{count} × {list(image)} by {list(weight)}, step {options[0][0]}"] = count * one
    return {"seconds": sum(us.values()) * 1e-6, "us": us}
