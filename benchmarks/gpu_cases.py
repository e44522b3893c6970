"""The models that are compared on a GPU: PyTorch's with random weights in float16, and files in float32."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.models import TABLE, make_feed, source

if TYPE_CHECKING:
    import torch

__all__ = ["CASES", "Block", "Case", "exported", "of_fixed_sizes"]


@dataclass(frozen=True)
class Block:
    """A transformer's sizes, for the sum of library kernels that it is made of.

    Attributes:
        batch: Sequences.
        tokens: Of each.
        width: Of the model.
        heads: Of the attention.
        layers: How many.
        causal: A token sees those before it.
        extra: Rows, columns and depth of a further product, such as the head's.
    """

    batch: int
    tokens: int
    width: int = 768
    heads: int = 12
    layers: int = 12
    causal: bool = False
    extra: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Case:
    """A model to compare.

    Attributes:
        sizes: Of its input, for people.
        make: The module and its inputs on the CPU in float32; None of a file.
        entry: Name in the table of ``benchmarks/models.py``, of a file.
        block: Of a transformer.
        images: It is made of convolutions: peers may like another layout.
    """

    sizes: str
    make: Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]] | None = None
    entry: str = ""
    block: Block | None = None
    images: bool = False


def _first_result(model: torch.nn.Module) -> torch.nn.Module:
    """A model of transformers that takes token ids and returns its last hidden state."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, ids: torch.Tensor) -> Any:
            return self.inner(ids, return_dict=False)[0]

    return First()


def _resnet(batch: int) -> Any:
    import torch
    import torchvision

    return torchvision.models.resnet50(), (torch.randn(batch, 3, 224, 224),)


def _vit(batch: int) -> Any:
    import torch
    import torchvision

    model = torchvision.models.vit_b_16()
    torch.nn.init.normal_(model.heads.head.weight, std=0.02)  # zero as it comes: all results would be equal
    return model, (torch.randn(batch, 3, 224, 224),)


def _bert(batch: int) -> Any:
    import torch
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(attn_implementation="sdpa"), add_pooling_layer=False)
    return _first_result(model), (torch.randint(0, 30000, (batch, 128)),)


def _gpt2(batch: int) -> Any:
    import torch
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(attn_implementation="sdpa", use_cache=False))
    return _first_result(model), (torch.randint(0, 50000, (batch, 1024)),)


CASES: dict[str, Case] = {}
for _n in (1, 32):
    CASES[f"resnet50-b{_n}"] = Case(f"{_n}×3×224×224", lambda n=_n: _resnet(n), images=True)
    _head = Block(_n, 197, extra=(_n * 196, 768, 768))
    CASES[f"vit-b{_n}"] = Case(f"{_n}×3×224×224", lambda n=_n: _vit(n), block=_head)
    CASES[f"bert-b{_n}"] = Case(f"{_n}×128 tokens", lambda n=_n: _bert(n), block=Block(_n, 128))
CASES["gpt2-b1"] = Case("1×1024 tokens, prefill", lambda: _gpt2(1), block=Block(1, 1024, causal=True))
for _name in ("pp-ocr-det", "pp-ocr-rec"):
    _shape = next(iter(TABLE[_name].shapes[0].values()))
    CASES[_name] = Case("×".join(map(str, _shape)), entry=_name, images=True)


def exported(module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> bytes:
    """A module as an ONNX file."""
    import torch

    buffer = io.BytesIO()
    torch.onnx.export(module, given, dynamo=True, verbose=False).save(buffer)
    return buffer.getvalue()


def of_fixed_sizes(case: Case) -> tuple[bytes, dict[str, np.ndarray[Any, Any]]]:
    """The file of a case with the sizes of its inputs fixed, and inputs.

    Raises:
        OSError: the file was not fetched.
    """
    entry = TABLE[case.entry]
    where = source(entry)
    model = onnx.load(where) if isinstance(where, (str, Path)) else where
    feed = make_feed(entry, 0)
    for value in model.graph.input:
        if value.name in feed:
            for dim, size in zip(value.type.tensor_type.shape.dim, feed[value.name].shape, strict=True):
                dim.dim_value = size
    for value in model.graph.output:  # what was known of them had free sizes
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model.SerializeToString(), feed
