"""Declarations: attention, position embeddings, recurrent token mixing, generation (notation: :mod:`.schemas`)."""

from __future__ import annotations

TABLE = """
Attention(input: T, weights: T, bias: T?, mask_index: M?, past: T?, attention_bias: T?, past_sequence_length: M?) ->
        (output: T, present: T?)
    @ do_rotary: int, mask_filter_value: float, num_heads: int!, past_present_share_buffer: int, qkv_hidden_sizes:
        ints, rotary_embedding_dim: int, scale: float, unidirectional: int = 0
    T = halves; M = int32
    : Multi-head self-attention with the input projection inside.

BeamSearch(input_ids: F, max_length: I, min_length: I?, num_beams: I, num_return_sequences: I, length_penalty: T?,
        repetition_penalty: T?, vocab_mask: M?, prefix_vocab_mask: M?, attention_mask: I?, decoder_input_ids: I?,
        logits_processor: I?) -> (sequences: I, sequences_scores: T?, scores: T?)
    @ decoder: graph!, decoder_start_token_id: int = -1, early_stopping: int = 0, encoder: graph, eos_token_id:
        int!, init_decoder: graph, model_type: int = 0, no_repeat_ngram_size: int = 0, pad_token_id: int!,
        vocab_size: int = -1
    T = float float16; F = float float16 int32; I = int32; M = int32
    : Text generation by beam search on decoder graphs.

CausalConvWithState(input: T, weight: T, bias: T?, past_state: T?) -> (output: T, present_state: T, state_update:
        T?)
    @ activation: str = "none", channels_last: int = 0, dilation: int = 1, input_channel_offset: int = 0,
        input_channels: int = 0, ndim: int = 1, state_channels_last: int = -1, state_length: int = 0,
        state_update_capacity: int = 0, state_window: int = 0
    T = halves
    : Causal depthwise convolution that carries its last inputs along.

ConvStateReplay(source_backing: T, capture_backing: T, destination_backing: T, metadata: TI) -> (destination_out: T)
    T = float float16; TI = int64
    : Rebuilds the state of a causal convolution.

DecoderAttention(query: T, key: T, q_weight: T, kv_weight: T, bias: T, key_padding_mask: B?, key_cache: T?,
        value_cache: T?, static_kv: B, use_past: B, has_layer_state: B, has_key_padding_mask: B) -> (output: T,
        new_key_cache: T?, new_value_cache: T?)
    @ mask_filter_value: float, num_heads: int!
    T = float float16; B = bool
    : Self- or cross-attention of a decoder; caches are switched by flags at run time.

DecoderMaskedMultiHeadAttention(query: T, key: T?, value: T?, mask_index: M?, attention_bias: T?, past_key: T?,
        past_value: T?, past_sequence_length: M?, beam_width: M?, cache_indirection: M?, bias: T?) -> (output: T,
        present_key: T?, present_value: T?, qk: QK?)
    @ mask_filter_value: float, num_heads: int!, output_qk: int, past_present_share_buffer: int, scale: float
    T = float float16; QK = float float16; M = int32
    : Multi-head attention of one new token on a cache, with beam search's indirection.

DecoderMaskedSelfAttention(input: T, weights: T, bias: T, mask_index: M?, past: T, attention_bias: T?,
        past_sequence_length: M, beam_width: M?, cache_indirection: M?) -> (output: T, present: T)
    @ do_rotary: int, mask_filter_value: float, num_heads: int!, past_present_share_buffer: int, scale: float
    T = float float16; M = int32
    : As DecoderMaskedMultiHeadAttention, with the input projection inside.

DynamicSparseAttention(query: TQuery, key: TQuery?, value: TValue?, past_key: TCache?, past_value: TCache?,
        auxiliary_key: T?, auxiliary_value: T?, selected_indices: M, selected_counts: M, seqlens_k: M,
        total_sequence_length: M, cos_cache: T?, sin_cache: T?, position_ids: int64?, q_norm_weight: T?,
        k_norm_weight: T?, head_sink: T?, committed_length: M?, key_scale: S?, value_scale: S?) -> (output: T,
        present_key: TCache?, present_value: TCache?, validation_status: M?)
    @ attention_mode: str = "selected_only", auxiliary_kv_shared: int = 0, do_rotary: int = 0, is_causal: int = 1,
        kv_num_heads: int!, local_window_size: int = -1, num_heads: int!, output_bf16: int = 0, qk_norm_epsilon:
        float = 1e-6, rotary_interleaved: int = 0, rotary_offset: int = 0, scale: float, selected_kv_source: str =
        "main", smooth_softmax: int = 0
    T = halves; TQuery = halves; TValue = halves; TCache = halves int8; S = float; M = int32
    : Grouped-query attention on selected entries of the cache.

GatedDeltaNet(query: T, key: T?, value: T?, cu_seqlens: TI?, decay: TG?, beta: TG?, initial_state: TS?, a_log: TS?,
        dt_bias: TS?, capture_count: TI?, state_update_active: TI?) -> (output: T, final_state: TS?, state_update:
        TS?)
    @ beta_activation: str = "none", chunk_size: int = 64, gate_activation: str = "none", gate_lower_bound: float =
        -5.0, qk_l2_norm: int = 0, scale: float = 0.0, state_update_capacity: int = 0, update_rule: str =
        "gated_delta"
    T = halves; TS = float; TG = halves; TI = int32
    : Linear attention with a gated delta rule, on packed tokens.

GatedDeltaNetStateReplay(source_backing: T, capsule_backing: T, destination_backing: T, metadata: TI) ->
        (destination_out: T)
    T = float; TI = int64
    : Rebuilds the state of GatedDeltaNet.

GatedRelativePositionBias(query_layer: T, query_bias: T, rel_pos: T, weight: T, bias: T, eco_a: T, token_offset: M?)
        -> (output: T)
    @ num_heads: int!
    T = float float16; M = int32
    : Relative position bias scaled by a gate computed from the query.

GemmaRotaryEmbedding(emb: U, q: T, q_rot: T, k: T, k_rot: T) -> (output1: T, output2: T)
    T = float16; U = float
    : Rotary embedding of query and key from angles.

GreedySearch(input_ids: I, max_length: I, min_length: I?, repetition_penalty: T?, vocab_mask: I?, prefix_vocab_mask:
        I?, attention_mask: I?) -> (sequences: I)
    @ decoder: graph!, decoder_start_token_id: int = -1, encoder: graph, eos_token_id: int!, init_decoder: graph,
        model_type: int = 0, no_repeat_ngram_size: int = 0, pad_token_id: int!, vocab_size: int = -1
    T = float; I = int32
    : Text generation by greedy search on decoder graphs.

GroupQueryAttention(query: T, key: T?, value: T?, past_key: T_CACHE?, past_value: T_CACHE?, seqlens_k: M,
        total_sequence_length: M, cos_cache: T?, sin_cache: T?, position_ids: int64?, attention_bias: T?, head_sink:
        T?, k_scale: T_KV_SCALE?, v_scale: T_KV_SCALE?, q_norm_weight: T?, k_norm_weight: T?, query_seqlens: M?) ->
        (output: T, present_key: T_CACHE?, present_value: T_CACHE?, output_qk: T?)
    @ causal: int = 1, do_rotary: int, k_norm_epsilon: float, k_quant_type: str = "NONE", kv_cache_bit_width: int,
        kv_num_heads: int!, local_window_size: int = -1, num_heads: int!, q_norm_epsilon: float, qk_norm_epsilon:
        float = 1e-6, qk_output: int = 0, rotary_interleaved: int, scale: float, sliding_window_cache: int = 0,
        smooth_softmax: int = -1, softcap: float, v_quant_type: str = "NONE"
    T = halves; T_CACHE = halves int8 uint8 float8e4m3fn; T_KV_SCALE = float; M = int32
    : Causal grouped-query attention on a cache that is extended in place.

LinearAttention(query: T, key: T, value: T, past_state: S?, decay: T?, beta: T?) -> (output: T, present_state: S)
    @ chunk_size: int = 64, kv_num_heads: int!, q_num_heads: int!, scale: float = 0.0, state_window: int = 0,
        update_rule: str = "gated_delta"
    T = halves; S = halves
    : Attention as a linear recurrence over tokens.

LinearAttentionGate(a: T, dt_bias: TF, decay_scale: TF, b: T?) -> (decay: T, beta: T?)
    T = halves; TF = float
    : The decay and the update rate that LinearAttention reads.

LongformerAttention(input: T, weight: T, bias: T, mask: T, global_weight: T, global_bias: T, global: G) -> (output:
        T)
    @ num_heads: int!, window: int!
    T = float float16; G = int32
    : A sliding window of local attention and some tokens that see everything.

MRotaryEmbedding(input: T, position_ids: M, cos_cache: T, sin_cache: T) -> (output: T)
    @ interleaved: int, is_packed_batching: int, mrope_layout: int, mrope_section: ints!, num_heads: int,
        rotary_embedding_dim: int, scale: float
    T = halves; M = int64
    : Rotary embedding whose angles come from three positions a token.

Mamba2Verify(projection: T, conv_state: T, ssm_state: F, conv_weight: T, conv_bias: T, dt_bias: F, A_negative: F, D:
        F, norm_weight: F, state_row: I) -> (Y: T, conv_snapshots: T, ssm_snapshots: F, xbc: T?, readout: F?)
    @ d_state: int = 128, epsilon: float = 1e-5, head_dim: int = 64, heads: int!, n_groups: int!, time_step_min:
        float = 0.001
    T = bfloat16; F = float; I = int32
    : Convolution, selective state-space recurrence and gated normalisation.

MultiHeadAttention(query: T, key: T?, value: T?, bias: T?, key_padding_mask: M?, attention_bias: T?, past_key: T?,
        past_value: T?, past_sequence_length: M?, cache_indirection: M?) -> (output: T, present_key: T?,
        present_value: T?, qk: QK?)
    @ mask_filter_value: float, num_heads: int!, scale: float, unidirectional: int = 0
    T = halves; QK = halves; M = int32
    : Self- or cross-attention on projected query, key and value.

PackedAttention(input: T, weights: T, bias: T, token_offset: M, cumulative_sequence_length: M, attention_bias: T?)
        -> (output: T)
    @ num_heads: int!, qkv_hidden_sizes: ints, scale: float
    T = float float16; M = int32
    : Attention on tokens without padding.

PackedMultiHeadAttention(query: T, key: T?, value: T?, bias: T?, token_offset: M, cumulative_sequence_length: M,
        attention_bias: T?) -> (output: T)
    @ mask_filter_value: float, num_heads: int!, scale: float
    T = float float16; M = int32
    : MultiHeadAttention on tokens without padding.

PackedSparseAttentionIndexer(query: T, key: T?, query_norm_weight: T, key_norm_weight: T, cos_cache: T, sin_cache:
        T, cumulative_sequence_lengths: M, past_sequence_lengths: M, gate: T?, position_bias: T?, head_weights: T?,
        position_ids: I?, past_key_state: T_KEY, past_kv_buffer: T, past_gate_buffer: T?, past_state_lengths: M,
        state_update_capture_count: M?, state_update_active: M?, indexshare_mode: M?, merged_indices: M?,
        merged_counts: M?, merged_status: M?) -> (selected_indices: M, selected_counts: M, present_key_state: T_KEY,
        present_kv_buffer: T, present_gate_buffer: T?, present_state_lengths: M, state_update: T?,
        indexshare_status: M?, state_status: M?)
    @ compress_ratio: int!, epsilon: float = 1e-6, head_weight_scale: float, index_topk: int,
        indexshare_state_policy: str = "default", max_output_entries: int = 0, policy_mode: str!, scale: float,
        state_capacity: int!, state_update_capacity: int = 0, token_budget: int
    T = halves; T_KEY = halves; I = int64; M = int32
    : As SparseAttentionIndexer, for packed tokens.

PackedSparseAttentionIndexerMerge(base_indices: T, base_counts: T, base_row_indices: T, range_starts: T?,
        range_ends: T?, additional_indices: T?, additional_counts: T?) -> (selected_indices: T, selected_counts: T,
        status: T)
    @ max_output_entries: int!, policy_mode: str!
    T = int32
    : Union of two selections.

PagedAttention(query: T, key: T?, value: T?, key_cache: T_CACHE, value_cache: T_CACHE?, cumulative_sequence_length:
        S, past_seqlens: S, block_table: S, cos_cache: T?, sin_cache: T?, slot_mapping: S?, head_sink: T?,
        q_norm_weight: T?, k_norm_weight: T?, k_scale: T_KV_SCALE?, v_scale: T_KV_SCALE?, attention_metadata: S?) ->
        (output: T, key_cache_out: T_CACHE?, value_cache_out: T_CACHE?)
    @ do_rotary: int, is_causal: int = 1, k_cache_dtype: str = "", k_quant_type: str = "NONE", kv_cache_layout: str
        = "SEPARATE", kv_num_heads: int!, local_window_size: int = -1, num_heads: int!, qk_norm_epsilon: float,
        rotary_interleaved: int, rotary_offset: int, scale: float, softcap: float, v_cache_dtype: str = "",
        v_head_size: int, v_quant_type: str = "NONE"
    T = float16 bfloat16; T_CACHE = bytes float16 bfloat16 float8e4m3fn; T_KV_SCALE = float; S = int32
    : Attention on a cache of blocks.

RelativePositionBias(bias_table: T, query_length: U, key_length: U) -> (output: T)
    @ is_bidirectional: int = 0, max_distance: int!
    T = float float16; U = int64
    : A bias by the bucketed distance of query and key.

RemovePadding(input: T, sequence_token_count: M) -> (output: T, token_offset: M, cumulated_seq_len: M, max_seq_len:
        M)
    T = float float16; M = int32
    : Drops the padding of a batch of sequences.

RestorePadding(input: T, token_offset: M) -> (output: T)
    T = float float16; M = int32
    : Puts padding back, filled with zeros.

RotaryEmbedding(input: T, position_ids: M, cos_cache: T, sin_cache: T) -> (output: T)
    @ interleaved: int, is_packed_batching: int, num_heads: int, rotary_embedding_dim: int, scale: float
    T = halves; M = int64
    : Rotary position embedding.

Sampling(input_ids: I, max_length: I, min_length: I?, repetition_penalty: T?, vocab_mask: I?, prefix_vocab_mask: I?,
        attention_mask: I?, presence_mask: I?, seed: I?) -> (sequences: I, filtered_logits: T?)
    @ custom: int = 0, decoder: graph!, decoder_start_token_id: int = -1, encoder: graph, eos_token_id: int!,
        filter_value: float = -1e+20, init_decoder: graph, min_tokens_to_keep: int = 0, model_type: int = 0,
        no_repeat_ngram_size: int = 0, pad_token_id: int!, presence_penalty: float = 0.0, temperature: float = 1.0,
        top_p: float = 0.0, vocab_size: int = -1
    T = float; I = int32
    : Text generation by sampling on decoder graphs.

SparseAttention(query: T, key: T?, value: T?, past_key: T, past_value: T, block_row_indices: M, block_col_indices:
        M, total_sequence_length: M, key_total_sequence_lengths: M, cos_cache: T?, sin_cache: T?) -> (output: T,
        present_key: T, present_value: T)
    @ do_rotary: int, kv_num_heads: int!, num_heads: int!, rotary_interleaved: int, scale: float, sparse_block_size:
        int!
    T = halves; M = int32
    : Causal attention with a block-sparse layout.

SparseAttentionIndexer(query: T, key: T?, query_norm_weight: T, key_norm_weight: T, cos_cache: T, sin_cache: T,
        mask: TB?, past_key: T, gate: T?, position_bias: T?, head_weights: T?, position_ids: I?,
        past_sequence_length: M?, past_proj_buffer: T?) -> (selected_indices: M, present_key: T,
        present_proj_buffer: T?)
    @ compress_ratio: int!, epsilon: float = 1e-6, head_weight_scale: float, index_topk: int, policy_mode: str!,
        scale: float, token_budget: int
    T = halves; TB = int64; I = int64; M = int32
    : Selects the cache entries that a sparse attention reads.

SparsePagedAttention(query: T, key: T?, value: T?, key_cache: T_CACHE, value_cache: T_CACHE,
        cumulative_sequence_length: S, past_seqlens: S, block_table: S, slot_mapping: S?, selected_indices: S,
        selected_counts: S, auxiliary_key: T?, auxiliary_value: T?, auxiliary_lengths: S?, cos_cache: T?, sin_cache:
        T?, head_sink: T?, q_norm_weight: T?, k_norm_weight: T?, k_scale: T_KV_SCALE?, v_scale: T_KV_SCALE?,
        attention_metadata: S?) -> (output: T, key_cache_out: T_CACHE?, value_cache_out: T_CACHE?)
    @ attention_mode: str = "selected_only", auxiliary_cache_layout: str = "contiguous", auxiliary_kv_shared: int =
        0, do_rotary: int = 0, is_causal: int = 1, k_quant_type: str = "NONE", kv_num_heads: int!,
        local_window_size: int = -1, num_heads: int!, qk_norm_epsilon: float = 1e-6, rotary_interleaved: int = 0,
        rotary_offset: int = 0, scale: float, selected_kv_source: str = "main", softcap: float, v_quant_type: str =
        "NONE"
    T = float16 bfloat16; T_CACHE = float16 bfloat16 int8; T_KV_SCALE = float; S = int32
    : Attention on selected entries of a cache of blocks.

SpeculativePrefixCommit(next_tokens: I64, input_ids: I64, status: I32, ctl: I64, ctx_commit: I64, prefixes: I64,
        ptrs: I64) -> (head_c: I32, updated_ctl: I64, updated_ctx_commit: I64)
    @ head_rows: int = 8
    I64 = int64; I32 = int32
    : Accepts the prefix of a speculative step.

VarlenCausalConvWithState(input: T, weight: T, cumulative_sequence_length: M, bias: T?, initial_state: T,
        capture_count: M?, kernel_delta: T?, previous_mask: T?) -> (output: T, final_state: T, state_update: T?)
    @ activation: str = "none", delta_offset: int = 0, dilation: int = 1, group_size: int = 1,
        state_update_capacity: int = 0
    T = halves; M = int32
    : As CausalConvWithState, for packed sequences.

WhisperBeamSearch(input_ids: F, max_length: I, min_length: I?, num_beams: I, num_return_sequences: I,
        length_penalty: T?, repetition_penalty: T?, vocab_mask: M?, prefix_vocab_mask: M?, attention_mask: I?,
        decoder_input_ids: I?, logits_processor: I?, cross_qk_layer_head: I?, extra_decoding_ids: I?, temperature:
        T?) -> (sequences: I, sequences_scores: T?, scores: T?, cross_qk: V?, non_speech_probs: T?)
    @ beginning_timestamp_token_id: int, decoder: graph!, decoder_output_cross_qk: int, decoder_start_token_id: int
        = -1, early_stopping: int = 0, encoder: graph, eos_token_id: int!, init_decoder: graph, model_type: int = 2,
        no_repeat_ngram_size: int = 0, no_speech_token_id: int, no_timestamps_token_id: int, pad_token_id: int!,
        start_of_lm_token_id: int, transcribe_token_id: int, translate_token_id: int, vocab_size: int = -1
    T = float float16; F = float float16 int32; I = int32; M = int32; V = float
    : Beam search for speech recognition.
"""
