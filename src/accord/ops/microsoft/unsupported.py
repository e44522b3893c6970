"""Operators that are declared and not computed, with the reason, for messages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from accord.ops.microsoft.schemas import DOMAIN, NHWC_DOMAIN

__all__ = ["UNSUPPORTED"]

_SEARCH = "it runs a whole generation loop on graphs inside the node; export the decoder and loop outside"
_GPU = "only GPU kernels define it"
_COMPILED = "its content is compiled for another runtime"
_PACKED = "its weights are in a format that is private to the kernels that read it"

_REASONS = {
    DOMAIN: {
        "AttnLSTM": "superseded; export LSTM and attention apart",
        "BeamSearch": _SEARCH,
        "ConvStateReplay": _GPU,
        "DecoderMaskedSelfAttention": _GPU,
        "DequantizeBFP": _GPU,
        "DequantizeWithOrder": _GPU,
        "DynamicSparseAttention": _GPU,
        "EPContext": _COMPILED,
        "GatedDeltaNetStateReplay": _GPU,
        "GatherPacked": _PACKED,
        "GemmFloat8": _GPU,
        "GreedySearch": _SEARCH,
        "Mamba2Verify": _GPU,
        "MatMulBlockQuantizedFp4Weight": _GPU,
        "MatMulBlockQuantizedFp8Weight": _GPU,
        "MatMulFpQ4": _PACKED,
        "MatMulPacked": _PACKED,
        "MoEPacked": _PACKED,
        "PackedSparseAttentionIndexer": _GPU,
        "PackedSparseAttentionIndexerMerge": _GPU,
        "PagedAttention": _GPU,
        "QOrderedAttention": _GPU,
        "QOrderedGelu": _GPU,
        "QOrderedLayerNormalization": _GPU,
        "QOrderedLongformerAttention": _GPU,
        "QOrderedMatMul": _GPU,
        "QuantizeBFP": _GPU,
        "QuantizeWithOrder": _GPU,
        "RMSNormRotary": _GPU,
        "Sampling": _SEARCH,
        "Snpe": _COMPILED,
        "SparseAttentionIndexer": _GPU,
        "SparsePagedAttention": _GPU,
        "SpeculativePrefixCommit": _GPU,
        "WhisperBeamSearch": _SEARCH,
    },
    NHWC_DOMAIN: {
        "MaxUnpool": "its indices depend on the layout that an execution provider chose",
        "QLinearConvTranspose": _GPU,
        "Resize": "the order of its sizes depends on the execution provider that wrote it",
    },
}

#: By domain and name: why nothing here computes the operator.
UNSUPPORTED: Mapping[tuple[str, str], str] = MappingProxyType(
    {(domain, name): reason for domain, names in _REASONS.items() for name, reason in names.items()}
)
