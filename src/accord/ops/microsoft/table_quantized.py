"""Declarations: quantized arithmetic (notation: :mod:`.schemas`)."""

from __future__ import annotations

TABLE = """
DequantizeBFP(x: T1, shape: T2, strides: T2) -> (y: T3)
    @ bfp_type: int!, block_dim: int = -1, dtype: int = 1
    T1 = uint8; T2 = int64; T3 = halves
    : From block floating point.

DequantizeLinear(x: T1, x_scale: T2, x_zero_point: T1?) -> (y: T2)
    @ axis: int
    T1 = bytes int16 int32 int4 uint16 uint4; T2 = float float16
    : (x - x_zero_point) * x_scale.

DequantizeWithOrder(input: Q, scale_input: S) -> (output: F)
    @ order_input: int!, order_output: int!, to: int!
    Q = int8; F = float float16; S = float
    : Dequantizes a matrix in a GPU library's layout.

DynamicQuantizeLSTM(X: T, W: T2, R: T2, B: T?, sequence_lens: T1?, initial_h: T?, initial_c: T?, P: T?, W_scale: T,
        W_zero_point: T2, R_scale: T, R_zero_point: T2) -> (Y: T?, Y_h: T?, Y_c: T?)
    @ activation_alpha: floats, activation_beta: floats, activations: strs, clip: float, direction: str = "forward",
        hidden_size: int, input_forget: int = 0
    T = float; T1 = int32; T2 = bytes
    : LSTM with 8-bit weights; its inputs are quantized at run time.

DynamicQuantizeMatMul(A: T1, B: T2, b_scale: T1, b_zero_point: T2?, bias: T1?) -> (Y: T1)
    T1 = float; T2 = bytes
    : Quantizes A at run time and multiplies it by an 8-bit B.

GatherBlockQuantized(data: T1, indices: Tind, scales: T2, zero_points: T1?) -> (output: T2)
    @ bits: int = 4, block_size: int = 128, gather_axis: int = 0, quantize_axis: int = 1
    T1 = int4 uint8 uint4 float4e2m1 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz; T2 = halves; Tind =
        int32 int64
    : Gather of data that is quantized in blocks.

GatherPacked(data: T1, indices: Tind) -> (output: T2)
    @ K: int!, output_dtype: int = 16, packed_type: int!
    T1 = uint8; T2 = halves; Tind = int32 int64
    : Gather of rows of a packed table.

MatMulBlockQuantizedFp4Weight(A: T, B: T1, weight_scale: T2, weight_scale_2: T3, input_scale: T3?, bias: T?) -> (Y:
        T)
    @ block_size: int = 16
    T = float16 bfloat16; T1 = uint8; T2 = uint8; T3 = float
    : MatMul by a weight of 4-bit floats.

MatMulBlockQuantizedFp8Weight(A: T, B: T1, b_scale: T2, a_scale: T2?, bias: T?) -> (Y: T)
    @ block_size: int = 128
    T = float16 bfloat16; T1 = float8e4m3fn; T2 = float
    : MatMul by a weight of 8-bit floats.

MatMulBnb4(A: T1, B: T2, absmax: T1) -> (Y: T1)
    @ K: int!, N: int!, block_size: int!, quant_type: int!, training_mode: int = 0, transB: int = 1
    T1 = halves; T2 = uint8
    : MatMul by a weight of 4-bit codes from a table of 16 values.

MatMulFpQ4(A: T1, B: T2, B_shape: T3) -> (Y: T1)
    @ blk_quant_type: int = 1
    T1 = float; T2 = uint8; T3 = int64
    : MatMul by a packed 4-bit weight.

MatMulInteger16(A: T1, B: T2) -> (Y: T3)
    T1 = int16 uint16; T2 = int16 uint16; T3 = int32 uint32
    : MatMul of 16-bit integers.

MatMulIntegerToFloat(A: T1, B: T2, a_scale: T3, b_scale: T3, a_zero_point: T1?, b_zero_point: T2?, bias: T3?) -> (Y:
        T3)
    T1 = bytes; T2 = bytes; T3 = float float16
    : MatMulInteger, scaled, with bias.

MatMulNBits(A: T1, B: T2, scales: T1, zero_points: T3?, g_idx: T4?, bias: T1?) -> (Y: T1)
    @ K: int!, N: int!, accuracy_level: int = 0, bits: int = 4, block_size: int!, weight_prepacked: int = 0
    T1 = halves; T2 = uint8; T3 = halves uint8; T4 = int32
    : MatMul by a weight of 2 to 8 bits, quantized in blocks along K.

MatMulNBitsMlp(A: T1, skip: T1?, norm_scale: T1?, gate_B: T2, gate_scales: T1, gate_bias: T1?, up_B: T2, up_scales:
        T1, up_bias: T1?) -> (Y: T1, input_skip_bias_sum: T1?)
    @ K: int!, N: int!, accuracy_level: int = 0, activation: str!, bits: int = 4, block_size: int!, epsilon: float =
        1e-5
    T1 = halves; T2 = uint8
    : activation(A @ gate) * (A @ up), with an optional normalisation before.

MatMulNBitsQLoRA(X: T, W: TQ, scales: T, lora_A: TQ, lora_A_scales: T, lora_B: TQ, lora_B_scales: T) -> (Y: T)
    @ K: int!, N: int!, accuracy_level: int = 0, bits: int = 4, block_size: int = 32, lora_bits: int = 8,
        lora_block_size: int = 32
    T = float float16; TQ = uint8
    : MatMulNBits plus a low-rank adapter.

MatMulNBitsQkv(A: T1, skip: T1?, norm_scale: T1, q_B: T2, q_scales: T1, q_bias: T1?, k_B: T2, k_scales: T1, k_bias:
        T1?, v_B: T2, v_scales: T1, v_bias: T1?) -> (Q: T1, K: T1, V: T1, input_skip_bias_sum: T1?)
    @ K: int!, Nkv: int!, Nq: int!, accuracy_level: int = 0, bits: int = 4, block_size: int!, epsilon: float = 1e-6
    T1 = halves; T2 = uint8
    : Normalisation, then three MatMulNBits.

MatMulPacked(A: T1, B: T2, global_scale: Tscale?) -> (Y: T1)
    @ K: int!, N: int!, activation_type: str = "none", packed_type: int!
    T1 = float16 bfloat16; T2 = uint8; Tscale = float
    : MatMul by a packed weight.

MulInteger(A: T, A_zero_point: T?, B: T, B_zero_point: T?) -> (C: T1)
    T = bytes; T1 = int32
    : (A - A_zero_point) * (B - B_zero_point) in int32.

QAttention(input: T1, weight: T2, bias: T3, input_scale: T3, weight_scale: T3, mask_index: T4?, input_zero_point:
        T1?, weight_zero_point: T2?, past: T3?) -> (output: T3, present: T3?)
    @ do_rotary: int, mask_filter_value: float, num_heads: int!, past_present_share_buffer: int, scale: float,
        unidirectional: int = 0
    T1 = bytes; T2 = bytes; T3 = float float16; T4 = int32
    : Attention with an 8-bit input projection.

QEmbedLayerNormalization(input_ids: T1, segment_ids: T1?, word_embedding_quant: T2, position_embedding_quant: T2,
        segment_embedding: T2?, gamma_quant: T2, beta_quant: T2, mask: T1?, word_embedding_scale: T,
        position_embedding_scale: T, segment_embedding_scale: T?, gamma_scale: T, beta_scale: T,
        word_embedding_zero_point: T2, position_embedding_zero_point: T2, segment_embedding_zero_point: T2?,
        gamma_zero_point: T2, beta_zero_point: T2) -> (layernorm_out: T, mask_index_out: T1)
    @ epsilon: float = 1e-12
    T1 = int32; T2 = bytes; T = float
    : EmbedLayerNormalization with 8-bit tables.

QGemm(A: TA, a_scale: T, a_zero_point: TA, B: TB, b_scale: T, b_zero_point: TB, C: TC?, y_scale: T?, y_zero_point:
        TYZ?) -> (Y: TY)
    @ alpha: float = 1.0, transA: int = 0, transB: int = 0
    T = float; TA = bytes; TB = bytes; TC = int32; TYZ = bytes; TY = bytes float
    : Gemm of 8-bit integers.

QLinearAdd(A: T, A_scale: float, A_zero_point: T?, B: T, B_scale: float, B_zero_point: T?, C_scale: float,
        C_zero_point: T?) -> (C: T)
    T = bytes
    : Add of 8-bit integers.

QLinearAveragePool(X: T, x_scale: float, x_zero_point: T?, y_scale: float, y_zero_point: T?) -> (Y: T)
    @ auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
        kernel_shape: ints!, pads: ints, strides: ints
    T = bytes
    : AveragePool of 8-bit integers.

QLinearConcat(Y_scale: TF, Y_zero_point: T8, inputs: TV**) -> (Y: T8)
    @ axis: int!
    T8 = bytes; TF = float; TV = bytes float
    : Concat of 8-bit integers, brought to one scale.

QLinearConv(x: T1, x_scale: float, x_zero_point: T1, w: T2, w_scale: float, w_zero_point: T2, y_scale: float,
        y_zero_point: T3, B: T4?) -> (y: T3)
    @ auto_pad: str = "NOTSET", channels_last: int = 0, dilations: ints, group: int = 1, kernel_shape: ints, pads:
        ints, strides: ints
    T1 = bytes; T2 = bytes; T3 = bytes; T4 = int32
    : QLinearConv with a choice of layout.

QLinearGlobalAveragePool(X: T, x_scale: float, x_zero_point: T, y_scale: float, y_zero_point: T) -> (Y: T)
    @ channels_last: int = 0
    T = bytes
    : GlobalAveragePool of 8-bit integers.

QLinearLeakyRelu(X: T, X_scale: float, X_zero_point: T?, Y_scale: float, Y_zero_point: T?) -> (Y: T)
    @ alpha: float = 0.01
    T = bytes
    : LeakyRelu of 8-bit integers.

QLinearMul(A: T, A_scale: float, A_zero_point: T?, B: T, B_scale: float, B_zero_point: T?, C_scale: float,
        C_zero_point: T?) -> (C: T)
    T = bytes
    : Mul of 8-bit integers.

QLinearReduceMean(data: T, data_scale: float, data_zero_point: T?, reduced_scale: float, reduced_zero_point: T?) ->
        (reduced: T)
    @ axes: ints!, keepdims: int!
    T = bytes
    : ReduceMean of 8-bit integers.

QLinearSigmoid(X: T, X_scale: float, X_zero_point: T?, Y_scale: float, Y_zero_point: T?) -> (Y: T)
    T = bytes
    : Sigmoid of 8-bit integers.

QLinearSoftmax(X: T, X_scale: float, x_zero_point: T?, y_scale: float, y_zero_point: T) -> (Y: T)
    @ axis: int = -1, opset: int!
    T = bytes
    : Softmax of 8-bit integers.

QLinearWhere(condition: B, X: T, x_scale: TF, x_zero_point: T, Y: T, y_scale: TF, y_zero_point: T, z_scale: TF,
        z_zero_point: T) -> (Z: T)
    B = bool; TF = float; T = bytes
    : Where of 8-bit integers, brought to one scale.

QMoE(input: T, router_probs: T, fc1_experts_weights: T1, fc1_scales: T2?, fc1_experts_bias: T?, fc2_experts_weights:
        T1, fc2_scales: T2?, fc2_experts_bias: T?, fc3_experts_weights: T1?, fc3_scales: T2?, fc3_experts_bias: T?,
        fc1_zero_points: T1?, fc2_zero_points: T1?, fc3_zero_points: T1?, router_weights: T?, fc1_global_scale: T4?,
        fc2_global_scale: T4?, fc1_act_scale: T4?, fc2_act_scale: T4?, fc1_act_block_scale: T2?,
        fc2_act_block_scale: T2?) -> (output: T)
    @ accuracy_level: int = 0, activation_alpha: float = 1.0, activation_beta: float = 0.0, activation_type: str =
        "relu", block_size: int, expert_weight_bits: int = 4, fc1_expert_weight_bits: int, fc2_expert_weight_bits:
        int, fc3_expert_weight_bits: int, k: int = 1, normalize_routing_weights: int = 0, quant_type: str = "int",
        swiglu_fusion: int = 0, swiglu_limit: float, swiglu_limit_after_activation: int = 0, use_sparse_mixer: int =
        0, weights_prepacked: int = -1
    T = halves; T1 = uint8 float8e4m3fn; T2 = halves float8e4m3fn float8e8m0; T4 = float
    : MoE with quantized weights.

QOrderedAttention(input: Q, scale_input: S, scale_Q_gemm: S, scale_K_gemm: S, scale_V_gemm: S, Q_weight: Q,
        K_weight: Q, V_weight: Q, scale_Q_weight: S, scale_K_weight: S, scale_V_weight: S, Q_bias: S, K_bias: S,
        V_bias: S, scale_QKT_gemm: S?, scale_QKT_softmax: S?, scale_values_gemm: S, mask_index: G?, past: Q?,
        attention_bias: S?) -> (output: Q)
    @ num_heads: int!, order_input: int!, order_output: int!, order_weight: int!, qkv_hidden_sizes: ints,
        unidirectional: int = 0
    Q = int8; S = float; G = int32
    : Attention in a GPU library's layout.

QOrderedGelu(X: Q, scale_X: S, scale_Y: S) -> (Y: Q)
    @ order_X: int, order_Y: int
    Q = int8; S = float
    : Gelu in a GPU library's layout.

QOrderedLayerNormalization(X: Q, scale_X: S, scale: F, B: F?, scale_Y: S) -> (Y: Q)
    @ axis: int = -1, epsilon: float = 1e-5, order_X: int = 1, order_Y: int = 1
    F = float float16; S = float; Q = int8
    : LayerNormalization in a GPU library's layout.

QOrderedLongformerAttention(input: Q, scale_input: S, weight: Q, scale_weight: S, bias: S, scale_bias: S,
        scale_qkv_gemm: S, mask: F, global_weight: Q, scale_global_weight: S, global_bias: S, scale_global_gemm: S,
        global: G, scale_output: S) -> (output: Q)
    @ num_heads: int!, order_global_weight: int!, order_input: int!, order_output: int!, order_weight: int!, window:
        int!
    Q = int8; S = float; G = int32; F = float16
    : LongformerAttention in a GPU library's layout.

QOrderedMatMul(A: Q, scale_A: S, B: Q, scale_B: S, scale_Y: S, bias: S?, C: Q?, scale_C: S?) -> (Y: Q)
    @ order_A: int!, order_B: int!, order_Y: int!
    Q = int8; S = float
    : MatMul in a GPU library's layout.

QuantizeBFP(x: T1) -> (y: T2, shape: T3, strides: T3)
    @ bfp_type: int!, block_dim: int = -1
    T1 = halves; T2 = uint8; T3 = int64
    : To block floating point.

QuantizeLinear(x: T1, y_scale: T1, y_zero_point: T2?) -> (y: T2)
    @ axis: int
    T1 = float float16; T2 = bytes int16 int4 uint16 uint4
    : saturate(round(x / y_scale) + y_zero_point).

QuantizeWithOrder(input: F, scale_input: S) -> (output: Q)
    @ order_input: int!, order_output: int!
    Q = int8; F = float float16; S = float
    : Quantizes a matrix into a GPU library's layout.

ReduceSumInteger(data: T1) -> (reduced: T2)
    @ axes: ints!, keepdims: int!
    T1 = bytes; T2 = int32 uint32
    : ReduceSum of 8-bit integers in 32 bits.
"""
