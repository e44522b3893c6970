"""Declarations: tensors, strings, signals (notation: :mod:`.schemas`)."""

from __future__ import annotations

TABLE = """
AttnLSTM(X: T, W: T, R: T, B: T?, sequence_lens: T1?, initial_h: T?, initial_c: T?, P: T?, QW: T?, MW: T?, V: T?, M:
        T?, memory_seq_lens: T1?, AW: T?) -> (Y: T?, Y_h: T?, Y_c: T?)
    @ activation_alpha: floats, activation_beta: floats, activations: strs, clip: float, direction: str = "forward",
        hidden_size: int, input_forget: int = 0
    T = float double; T1 = int32
    : LSTM with Bahdanau attention.

BifurcationDetector(src_tokens: T, cur_tokens: T, prev_suffix_match_idx: T, pred_tokens: T?) -> (tokens: T,
        suffix_match_idx: T)
    @ max_ngram_size: int = 3, min_ngram_size: int = 1
    T = int64
    : Where predicted tokens leave the source tokens, and where the output matches again.

CDist(A: T, B: T) -> (C: T)
    @ metric: str = "sqeuclidean"
    T = float double
    : Distances between the rows of A and the rows of B.

ComplexMul(A: T, B: T) -> (C: T)
    T = classic
    : A * B; the last axis holds the real and the imaginary part.

ComplexMulConj(A: T, B: T) -> (C: T)
    T = classic
    : A * conj(B); the last axis holds the real and the imaginary part.

CropAndResize(X: T1, rois: T1, batch_indices: T2, crop_size: T2) -> (Y: T1)
    @ extrapolation_value: float = 0.0, mode: str = "bilinear"
    T1 = classic; T2 = int32
    : Crops of images, resized to one size.

DynamicTimeWarping(input: F) -> (output: I)
    F = float; I = int32
    : The cheapest path through a matrix of costs.

EPContext(inputs: T**) -> (outputs: T**)
    @ embed_mode: int = 1, ep_cache_context: str, ep_sdk_version: str, hardware_architecture: str, main_context: int
        = 1, max_size: int = 0, notes: str, onnx_model_filename: str, partition_name: str, source: str
    T = numbers bool
    : A subgraph compiled by an execution provider.

ExpandDims(X: T, axis: int32) -> (Y: T)
    T = everything
    : Inserts an axis.

GatherND(data: T, indices: Tind) -> (output: T)
    T = everything; Tind = int32 int64
    : As GatherND of the ONNX domain.

GridSample(X: T1, Grid: T1) -> (Y: T2)
    @ align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
    T1 = classic int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool string complex128 complex64; T2 = classic
    : As GridSample of the ONNX domain.

Inverse(X: T) -> (Y: T)
    T = classic
    : Inverse of matrices.

Irfft(X: T) -> (Y: T)
    @ normalized: int = 0, onesided: int = 1, signal_ndim: int!
    T = classic
    : Inverse of Rfft.

IsAllFinite(input: V*) -> (output: T)
    @ isinf_only: int = 0, isnan_only: int = 0
    V = floats; T = bool
    : Whether no element of any input is infinite or NaN.

MurmurHash3(X: T1) -> (Y: T2)
    @ positive: int = 1, seed: int = 0
    T1 = float double int32 int64 uint32 uint64 string; T2 = int32 uint32
    : MurmurHash3_x86_32 of each element.

NGramHashMapping(input_ids: M, multipliers: M, vocab_sizes: M, past_ids: M?, head_offsets: M?, eos_token_id: M?,
        segment_ids: int32?) -> (hash_ids: M, present_ids: M?)
    @ max_ngram_size: int!, n_head_per_ngram: int!, pad_id: int!, reset_on_eos: int = 0
    M = int32 int64
    : Hashes of the n-grams that end at each token.

NGramRepeatBlock(input_ids: Tid, scores: T) -> (scores_out: T)
    @ ngram_size: int!
    Tid = int64; T = float
    : Scores with -inf at tokens that would repeat an n-gram.

Pad(data: T, pads: int64, value: T?) -> (output: T)
    @ mode: str = "constant"
    T = classic
    : As Pad of the ONNX domain.

Range(start: T, limit: T, delta: T?) -> (Y: T)
    T = float double int16 int32 int64
    : As Range of the ONNX domain; the step is 1 if not given.

Rfft(X: T) -> (Y: T)
    @ normalized: int = 0, onesided: int = 1, signal_ndim: int = 1
    T = classic
    : Fourier transform of real data over the last axes.

SampleOp(X: T) -> (Y: T)
    T = classic int32 int64 uint32 uint64
    : A copy of the input.

Snpe(inputs: T*) -> (outputs: T*)
    @ DLC: str!, notes: str, snpe_version: str, target_device: str
    T = float uint8 uint16
    : A graph compiled for a vendor's engine.

Tokenizer(X: T) -> (Y: T)
    @ mark: int!, mincharnum: int!, pad_value: str!, separators: strs, tokenexp: str
    T = string
    : Splits strings into tokens, by separators or by a token pattern.

TorchEmbedding(weight: T, indices: int64, padding_idx: int64?, scale_grad_by_freq: bool?) -> (Y: T)
    T = numbers
    : Rows of the weight.

Trilu(X: T, k: int64?) -> (Y: T)
    @ upper: int = 1
    T = numbers bool
    : As Trilu of the ONNX domain.

UnfoldTensor(input: T) -> (output: T)
    @ dim: int = -1, size: int!, step: int = 1
    T = everything
    : Sliding windows along one axis, as a new last axis.

Unique(x: T) -> (y: T, idx: int64, counts: int64)
    T = classic int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool string complex128 complex64
    : Distinct elements in the order of their first occurrence.

VarlenNGramHashMapping(input_ids: M, multipliers: M, vocab_sizes: M, cumulative_sequence_length: S, past_ids: M?,
        head_offsets: M?, eos_token_id: M?, segment_ids: int32?, past_segment_ids: S?, capture_count: S?) ->
        (hash_ids: M, present_ids: M?, present_segment_ids: S?, state_update: M?)
    @ max_ngram_size: int!, n_head_per_ngram: int!, pad_id: int!, reset_on_eos: int = 0, state_update_capacity: int
        = 0
    M = int32 int64; S = int32
    : As NGramHashMapping, for packed sequences.

WordConvEmbedding(Sequence: T, W: T1, B: T1, C: T1) -> (Y: T1)
    @ char_embedding_size: int, conv_window_size: int, embedding_size: int
    T = int32; T1 = float
    : Word vectors: a convolution over character embeddings, then the maximum.
"""
