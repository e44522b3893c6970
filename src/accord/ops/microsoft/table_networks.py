"""Declarations: activations, convolutions, matrix products, normalisation, experts (notation: :mod:`.schemas`)."""

from __future__ import annotations

TABLE = """
BiasAdd(X: T, bias: T, skip: T) -> (Y: T)
    T = float float16
    : X + bias + skip.

BiasDropout(data: T, bias: T, residual: T?, ratio: T1?, training_mode: T2?) -> (output: T, mask: T2?)
    @ seed: int
    T = floats; T1 = floats; T2 = bool
    : Dropout(data + bias) + residual; at inference no element is dropped.

BiasGelu(A: T, B: T) -> (C: T)
    T = floats
    : Gelu(A + B), the exact form.

BiasSoftmax(data: T, bias: T) -> (output: T)
    @ axis: int = 1, is_inner_broadcast: int!
    T = classic
    : Softmax(data + bias) over the axes from `axis` on, taken together.

BiasSplitGelu(X: T, bias: T) -> (Y: T)
    T = float float16
    : Halves of X + bias along the last axis: left * Gelu(right).

BitmaskBiasDropout(data: T, bias: T, residual: T?, ratio: T1?, training_mode: T2?) -> (output: T, mask: T3?)
    @ seed: int
    T = floats; T1 = floats; T2 = bool; T3 = uint32
    : As BiasDropout, with the mask packed into the bits of uint32.

BitmaskDropout(data: T, ratio: T1?, training_mode: T2?) -> (output: T, mask: T3?)
    @ seed: int
    T = floats; T1 = floats; T2 = bool; T3 = uint32
    : As Dropout, with the mask packed into the bits of uint32.

BranchwiseRMSNorm(X: T, scale: M?) -> (Y: T)
    @ epsilon: float = 1e-5, num_branches: int = 0
    T = halves; M = halves
    : RMS normalisation of each branch of the last axis.

ConvTransposeWithDynamicPads(X: T, W: T, Pads: int64?, B: T?) -> (Y: T)
    @ auto_pad: str = "NOTSET", dilations: ints, group: int = 1, kernel_shape: ints, output_padding: ints, strides:
        ints
    T = classic
    : ConvTranspose whose pads are an input.

EmbedLayerNormalization(input_ids: T1, segment_ids: T1?, word_embedding: T, position_embedding: T,
        segment_embedding: T?, gamma: T, beta: T, mask: T1?, position_ids: T1?) -> (output: T, mask_index: T1?,
        embedding_sum: T?)
    @ epsilon: float = 1e-12, mask_index_type: int
    T1 = int32; T = float float16
    : LayerNormalization of the sum of word, position and segment embeddings.

EngramGate(key: T, query: T, value: T, key_norm_scale: T, query_norm_scale: T, conv_norm_scale: T?) -> (output: T,
        gated_value_normed: T?)
    @ epsilon: float = 1e-5
    T = halves
    : A gate from the similarity of normalised keys and queries, applied to the value.

FastGelu(X: T, bias: T?) -> (Y: T)
    T = floats
    : Gelu(X + bias), the tanh approximation.

FusedConv(X: T, W: T, B: T?, Z: T?) -> (Y: T)
    @ activation: str, activation_params: floats, auto_pad: str = "NOTSET", dilations: ints, group: int = 1,
        kernel_shape: ints, pads: ints, strides: ints
    T = classic
    : activation(Conv(X, W, B) + Z).

FusedGemm(A: T, B: T, C: T?) -> (Y: T)
    @ activation: str, activation_alpha: float, activation_beta: float, activation_gamma: float, alpha: float = 1.0,
        beta: float = 1.0, transA: int = 0, transB: int = 0
    T = classic int32 int64 uint32 uint64
    : activation(Gemm(A, B, C)).

FusedMatMul(A: T, B: T) -> (Y: T)
    @ alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0
    T = floats
    : alpha * op(A) @ op(B); op transposes the matrix axes, the batch axes, or both.

FusedMatMulActivation(A: T, B: T) -> (Y: T)
    @ activation: str!, activation_alpha: float, activation_axis: int, activation_beta: float, activation_gamma:
        float, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0
    T = floats
    : activation(FusedMatMul(A, B)).

GatedAdd(X: T, Y: T, gate: T, gate_weight: T?) -> (output: T)
    T = halves
    : X + Y * gate, one gate a row.

GatedRMSNorm(X: T, scale: T, gate: T) -> (Y: T)
    @ activation: str = "silu", epsilon: float = 1e-5
    T = halves
    : RMSNormalization(X) * activation(gate), computed in float32.

Gelu(X: T) -> (Y: T)
    T = floats
    : The Gaussian error linear unit, the exact form.

GemmFastGelu(X: T, W: T, bias: T?) -> (Y: T)
    T = halves
    : FastGelu(X @ W, bias).

GemmFloat8(A: TA, B: TB, C: TC?, scaleA: TS?, scaleB: TS?, scaleY: TS?) -> (Y: TR)
    @ activation: str, alpha: float = 1.0, beta: float = 0.0, dtype: int = 1, transA: int = 0, transB: int = 0
    TA = halves float8e4m3fn float8e5m2; TB = halves float8e4m3fn float8e5m2; TC = halves; TR = halves float8e4m3fn
        float8e5m2; TS = float
    : Gemm of 8-bit floats with a scale for each operand.

GroupNorm(X: T, gamma: M, beta: M) -> (Y: T)
    @ activation: int!, channels_last: int = 1, epsilon: float = 1e-5, groups: int!
    T = float float16; M = float float16
    : Group normalisation, channels last by default, with an optional Swish.

HyperConnectionLowRankMix(streams: T, norm_scale: T, down_weight: T, up_weight: T, inject_weight: T,
        prev_block_output: T?, prev_post_gate: T?) -> (pre_output: T, post_gate: T, streams_out: T?)
    @ epsilon: float = 1e-5, gate_div: float = 1.0, gate_mul: float = 1.0, num_branches: int!, reduction_scale:
        float = 1.0, silu_alpha: float = 1.0
    T = halves
    : One hyper-connection block with a low-rank gate network.

HyperConnectionPostMix(streams: T, block_output: T, post_mix: M, stream_mix: M?) -> (output: T)
    @ num_branches: int = 0
    T = halves; M = halves
    : Mixes streams and injects the output of a block.

HyperConnectionPreMix(streams: T, pre_mix: M) -> (output: T)
    @ num_branches: int = 0, reduction_scale: float = 1.0
    T = halves; M = halves
    : Reduces streams to one tensor by weights.

ai.onnx::LayerNormalization(X: T, Scale: V, B: V?) -> (Y: V, Mean: U?, InvStdDev: U?)
    @ axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    T = floats; U = float double; V = floats
    : Layer normalisation as it was written before version 17 of the ONNX domain.

MaxpoolWithMask(X: T, M: int32) -> (Y: T)
    @ auto_pad: str = "NOTSET", kernel_shape: ints, pads: ints, storage_order: int = 0, strides: ints
    T = float
    : MaxPool of X where the mask is not 0; elements masked out count as the lowest value.

MoE(input: T, router_probs: T, fc1_experts_weights: T, fc1_experts_bias: T?, fc2_experts_weights: T,
        fc2_experts_bias: T?, fc3_experts_weights: T?, fc3_experts_bias: T?) -> (output: T)
    @ activation_alpha: float = 1.0, activation_beta: float = 0.0, activation_type: str = "relu", k: int = 1,
        normalize_routing_weights: int = 0, swiglu_fusion: int = 0, swiglu_limit: float,
        swiglu_limit_after_activation: int = 0, use_sparse_mixer: int = 0
    T = halves
    : Mixture of experts: each token passes through the k experts that the router favours.

MoEGroupRouter(logits: T, expert_bias: TF, projection_weight: T?) -> (router_probs: T?, selection_scores: TF?,
        router_weights: TF?)
    @ group_topk: int = 2, n_group: int = 1, router_sentinel: float = -10000.0, top_k: int!, topk_group: int = 1
    T = halves; TF = float
    : Sigmoid router with group-limited selection of experts.

MoEPacked(input: T, router_probs: TR, gate_experts_weights: T2, up_experts_weights: T2?, down_experts_weights: T2,
        router_weights: TR?) -> (output: T)
    @ activation_type: str = "swiglu", down_type: int!, gate_type: int!, k: int = 1, normalize_routing_weights: int
        = 1, routed_scaling_factor: float = 1.0, routing_epsilon: float = 0.0, up_type: int = -1
    T = float16 bfloat16; T2 = uint8; TR = halves
    : Mixture of experts on block-packed weights.

NhwcConv(X: T, W: T, B: T?) -> (Y: T)
    @ auto_pad: str = "NOTSET", dilations: ints, group: int = 1, kernel_shape: ints, pads: ints, strides: ints
    T = classic
    : Conv on channels-last data; the weight keeps the layout of Conv.

NhwcFusedConv(X: T, W: T, B: T?, Z: T?) -> (Y: T)
    @ activation: str, activation_params: floats, auto_pad: str = "NOTSET", dilations: ints, group: int = 1,
        kernel_shape: ints, pads: ints, strides: ints
    T = float float16
    : FusedConv on channels-last data.

NhwcMaxPool(x: T) -> (y: T)
    @ auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: ints, kernel_shape: ints!, pads: ints, strides: ints
    T = bytes
    : MaxPool on channels-last data.

QuickGelu(X: T) -> (Y: T)
    @ alpha: float = 1.702
    T = floats
    : X * Sigmoid(alpha * X).

RMSNormRotary(X: T, scale: F, position_ids: I, cosine: TCos, sine: TCos, prefill_numerics: TI?) -> (Y: TOut,
        normalized_fp32: F?)
    @ epsilon: float = 1e-6, flatten_batch: int = 0, input_start: int = 0, input_width: int = 0, output_fp16: int =
        0, rotary_embedding_dim: int!, use_fp32_arithmetic: int = 1
    T = float16 bfloat16; TCos = float bfloat16; TOut = float16 bfloat16; F = float; I = int64; TI = int32
    : RMS normalisation of a slice, then rotary embedding.

RouterGateUpProj(X: T, W: T) -> (router: T, activated: T)
    @ activation: str = "swiglu", activation_alpha: float = 1.0, activation_beta: float = 0.0, limit: float = 0.0,
        router_size: int!
    T = float16 bfloat16
    : One projection that is split into router logits and a gated activation.

ScaledSiLU(X: T, scale: M?) -> (Y: T)
    @ alpha: float = 1.0
    T = halves; M = halves
    : Z * Sigmoid(Z) for Z = scale * X, rounded to T at each step.

ai.onnx::SimplifiedLayerNormalization(X: T, scale: V) -> (Y: V, inv_std_var: U?)
    @ axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
    T = floats; U = float double; V = floats
    : RMS normalisation.

SkipGroupNorm(X: T, gamma: M, beta: M, skip: T, bias: T?) -> (Y: T, S: T?)
    @ activation: int!, channels_last: int = 1, epsilon: float = 1e-5, groups: int!
    T = float float16; M = float float16
    : GroupNorm(X + skip + bias); the sum is an output.

SkipLayerNormalization(input: T, skip: T, gamma: T, beta: T?, bias: T?) -> (output: T, mean: U?, inv_std_var: U?,
        input_skip_bias_sum: T?)
    @ epsilon: float = 1e-12
    T = floats; U = float
    : LayerNormalization(input + skip + bias); the sum is an output.

SkipSimplifiedLayerNormalization(input: T, skip: T, gamma: T, bias: T?) -> (output: T, mean: U?, inv_std_var: U?,
        input_skip_bias_sum: T?)
    @ epsilon: float = 1e-12
    T = floats; U = float
    : RMSNormalization(input + skip + bias); the sum is an output.

SparseToDenseMatMul(A: T, B: T1) -> (Y: T1)
    @ alpha: float = 1.0, transA: int = 0, transB: int = 0
    T = sparse_double sparse_float sparse_int32 sparse_int64 sparse_uint32 sparse_uint64; T1 = float double int32
        int64 uint32 uint64
    : alpha * op(A) @ op(B) for a sparse A.

SwiGLU(gate: T, up: T?) -> (output: T)
    @ activation_alpha: float = 1.0, activation_beta: float = 0.0, limit: float = 0.0, round_activation: int = 0
    T = halves
    : G * Sigmoid(activation_alpha * G) * (L + activation_beta) for the clamped gate G and the clamped linear half
        L.

TransposeMatMul(A: T, B: T) -> (Y: T)
    @ alpha: float = 1.0, transA: int = 0, transB: int = 0
    T = floats
    : The former name of FusedMatMul.
"""
