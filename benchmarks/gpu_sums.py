"""What the best library kernels of a model add up to, each timed alone in a CUDA graph: nothing between them counts.

Beside that, what they take one after the other in one graph, with the clock that the device keeps up for so long.

Products are cuBLAS's (through PyTorch, with bias and GELU where it fuses them), attention is the faster of PyTorch's
flash and cuDNN backends, a normalisation counts as a copy of its tensor, convolutions are cuDNN's of channels-last
images without bias or activation. Embeddings, residuals and whatever else is elementwise count as nothing.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from gpu_cases import Block
from gpu_timing import median_us

__all__ = ["of_block", "of_convolutions"]

#: Bytes that the rotating sets of operands of one kernel take together: operands are not in the cache.
_ROTATED = 200 << 20
_MOST_SETS = 24


class Kernel(NamedTuple):
    """One kernel of a model.

    Attributes:
        name: The same for those of one size.
        make: Its operands.
        call: Starts it on them.
    """

    name: str
    make: Callable[[], tuple[torch.Tensor, ...]]
    call: Callable[..., Any]


def _summed(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Seconds of a model's kernels: the sum of the times of each alone, and all of them one after the other."""
    us = {k.name: _us(k.make, k.call) for k in dict.fromkeys(kernels)}
    counts = Counter(k.name for k in kernels)
    calls = [functools.partial(k.call, *k.make()) for k in kernels]
    return {
        "seconds": sum(us[k.name] for k in kernels) * 1e-6,
        "in a row": median_us(calls) * len(calls) * 1e-6,
        "us": {f"{counts[n]} × {n}": t for n, t in us.items()},
    }


def _us(make: Callable[[], tuple[torch.Tensor, ...]], call: Callable[..., Any]) -> float:
    first = make()
    nbytes = sum(t.numel() * t.element_size() for t in first)
    sets = [first, *(make() for _ in range(min(_MOST_SETS, -(-_ROTATED // nbytes)) - 1))]
    return median_us([lambda s=s: call(*s) for s in sets], 24, 7)


def _half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float16)


def of_block(block: Block) -> dict[str, Any]:
    """Of a transformer: what its kernels take, see :func:`_summed`."""
    rows, width = block.batch * block.tokens, block.width

    def product(name: str, m: int, n: int, k: int, call: Callable[..., Any] = F.linear) -> Kernel:
        return Kernel(name, lambda: (_half(m, k), _half(n, k), _half(n)), call)

    def gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._addmm_activation(b, x, w.t(), use_gelu=True)

    shape = (block.batch, block.heads, block.tokens, width // block.heads)
    norm = Kernel("normalisation", lambda: (_half(rows, width), _half(rows, width)), lambda x, y: y.copy_(x))
    layer = [
        product("query, key and value", rows, 3 * width, width),
        _attention(shape, block.causal),
        product("output", rows, width, width),
        norm,
        product("up, with GELU", rows, 4 * width, width, gelu),
        product("down", rows, width, 4 * width),
        norm,
    ]
    first = [] if block.extra is None else [product("embedding of patches", *block.extra)]
    return _summed([*first, *(layer * block.layers)])


def _attention(shape: tuple[int, ...], causal: bool) -> Kernel:
    """The faster of PyTorch's flash and cuDNN backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def make() -> tuple[torch.Tensor, ...]:
        return _half(*shape), _half(*shape), _half(*shape)

    found = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: SDPBackend = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        try:
            found[_us(make, call)] = call
        except RuntimeError:  # it does not take this shape
            continue
    return Kernel("attention", make, found[min(found)])


def of_convolutions(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Of the convolutions of a module in half precision: what they take, see :func:`_summed`."""
    kinds: dict[tuple[Any, ...], Kernel] = {}
    kernels = []

    def note(conv: torch.nn.Conv2d, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
        options = (conv.stride, conv.padding, conv.dilation, conv.groups)
        image, weight = tuple(inputs[0].shape), tuple(conv.weight.shape)
        key = (image, weight, *options)
        if key not in kinds:
            kinds[key] = Kernel(
                f"{list(image)} by {list(weight)}, step {conv.stride[0]}",
                lambda: tuple(_half(*s).contiguous(memory_format=torch.channels_last) for s in (image, weight)),
                lambda x, w: F.conv2d(x, w, None, *options),
            )
        kernels.append(kinds[key])

    hooks = [m.register_forward_hook(note) for m in module.modules() if isinstance(m, torch.nn.Conv2d)]
    module(*given)
    for h in hooks:
        h.remove()
    return _summed(kernels)
