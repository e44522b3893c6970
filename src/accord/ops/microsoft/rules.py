"""Shape rules of operators that are no compositions, and of those that an expansion left alone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from accord.ir.facts import UNKNOWN, Fact, TensorFact, fact_of_type
from accord.ir.infer import Inference, rule
from accord.ops.microsoft.schemas import DOMAIN, schemas

__all__: list[str] = []

INT32, INT64, UINT32 = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32


def _declared(n: Inference) -> Sequence[Fact]:
    """What the model declares of the outputs; else the dtype, where it is that of an input by the contract."""
    semantic = schemas()[n.node.domain, n.node.op_type]
    bound = {p.type: n.tensor(i).dtype for i, p in reversed(tuple(enumerate(semantic.inputs))) if n.has(i)}
    facts: list[Fact] = []
    for i, value in enumerate(n.node.outputs):
        if value.type is not None:
            facts.append(fact_of_type(value.type, value.shape, value.name or "v"))
            continue
        dtype = bound.get(semantic.outputs[i].type) if i < len(semantic.outputs) else None
        facts.append(UNKNOWN if dtype is None else TensorFact(dtype, None))
    return facts


for _domain, _name in schemas():
    if _domain:
        rule(_name, domain=_domain)(_declared)


# Rules of their own take the place of the general one -----------------------------------------------------------------


@rule("Inverse", domain=DOMAIN)
def inverse(n: Inference) -> Sequence[Fact]:
    """The input's fact; the last two sizes must be equal."""
    x = n.tensor(0)
    if x.shape is not None:
        n.require(len(x.shape) >= 2, "a matrix is needed", expected="rank 2 or more", found=len(x.shape), value=0)
        rows, columns = x.shape[-2:]
        square = not (isinstance(rows, int) and isinstance(columns, int)) or rows == columns
        n.require(square, "the matrices are not square", expected="equal sizes", found=f"{rows} and {columns}", value=0)
    return [x.with_shape(x.shape)]


@rule("DynamicTimeWarping", domain=DOMAIN)
def dynamic_time_warping(n: Inference) -> Sequence[Fact]:
    """``[2, steps]``."""
    return [TensorFact(INT32, (2, n.fresh(lower=1)))]


@rule("Tokenizer", domain=DOMAIN)
def tokenizer(n: Inference) -> Sequence[Fact]:
    """A new last axis of as many tokens as the longest string has."""
    x = n.tensor(0)
    return [TensorFact(ir.DataType.STRING, None if x.shape is None else (*x.shape, n.fresh()))]


@rule("MurmurHash3", domain=DOMAIN)
def murmur_hash_3(n: Inference) -> Sequence[Fact]:
    """The input's shape."""
    return [TensorFact(UINT32 if n.attr("positive", 1) else INT32, n.tensor(0).shape)]


@rule("BifurcationDetector", domain=DOMAIN)
def bifurcation_detector(n: Inference) -> Sequence[Fact]:
    """The current tokens and some predicted ones; an index in the shape of the previous one."""
    tokens = (n.fresh(),) if n.has(3) else n.tensor(1).shape
    return [TensorFact(INT64, tokens), TensorFact(INT64, n.tensor(2).shape)]


def _columns(n: Inference) -> int:
    order, heads = n.attr("max_ngram_size"), n.attr("n_head_per_ngram")
    n.require(isinstance(order, int) and isinstance(heads, int), "attributes max_ngram_size and n_head_per_ngram")
    return int((order - 1) * heads)


@rule("NGramHashMapping", domain=DOMAIN)
def n_gram_hash_mapping(n: Inference) -> Sequence[Fact]:
    """``[B, T, columns]`` and ``[B, largest order - 1]``."""
    ids, columns = n.tensor(0), _columns(n)
    batch, length = ids.shape if ids.shape is not None and len(ids.shape) == 2 else n.fresh_shape(2)
    return [
        TensorFact(ids.dtype, (batch, length, columns)),
        TensorFact(ids.dtype, (batch, n.attr("max_ngram_size") - 1)),
    ]


@rule("VarlenNGramHashMapping", domain=DOMAIN)
def varlen_n_gram_hash_mapping(n: Inference) -> Sequence[Fact]:
    """``[tokens, columns]``, then what each sequence hands on."""
    ids, sums, columns = n.tensor(0), n.tensor(3).shape, _columns(n)
    (tokens,) = ids.shape if ids.shape is not None and len(ids.shape) == 1 else n.fresh_shape(1)
    batch = n.fresh() if sums is None else sums[0] - 1
    before = n.attr("max_ngram_size") - 1
    return [
        TensorFact(ids.dtype, (tokens, columns)),
        TensorFact(ids.dtype, (batch, before)),
        TensorFact(INT32, (batch, before)),
        TensorFact(ids.dtype, (batch, n.attr("state_update_capacity", 0), before)),
    ]
