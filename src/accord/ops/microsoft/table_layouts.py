"""Declarations: operators on blocked and on channels-last data (notation: :mod:`.schemas`)."""

from __future__ import annotations

TABLE = """
com.ms.internal.nhwc::AveragePool(X: T) -> (Y: T)
    @ activation: str, activation_params: floats, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad:
        int = 0, dilations: ints, kernel_shape: ints!, pads: ints, strides: ints
    T = classic
    since 7

com.ms.internal.nhwc::BatchNormalization(X: T, scale: T1, B: T1, input_mean: T2, input_var: T2) -> (Y: T,
        running_mean: T2?, running_var: T2?)
    @ activation: str, activation_params: floats, epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int =
        0
    T = floats; T1 = floats; T2 = floats
    since 7

com.ms.internal.nhwc::Conv(X: T, W: T, B: T?) -> (Y: T)
    @ activation: str, activation_params: floats, auto_pad: str = "NOTSET", dilations: ints, group: int = 1,
        kernel_shape: ints, pads: ints, strides: ints
    T = classic
    since 1

com.ms.internal.nhwc::ConvTranspose(X: T, W: T, B: T?) -> (Y: T)
    @ activation: str, activation_params: floats, auto_pad: str = "NOTSET", dilations: ints, group: int = 1,
        kernel_shape: ints, output_padding: ints, output_shape: ints, pads: ints, strides: ints
    T = classic
    since 1

com.ms.internal.nhwc::DepthToSpace(input: T) -> (output: T)
    @ blocksize: int!, mode: str = "DCR"
    T = everything
    since 1

com.ms.internal.nhwc::GlobalAveragePool(X: T) -> (Y: T)
    T = classic
    since 1

com.ms.internal.nhwc::GlobalLpPool(X: T) -> (Y: T)
    @ p: int = 2
    T = classic
    since 2

com.ms.internal.nhwc::GlobalMaxPool(X: T) -> (Y: T)
    T = classic
    since 1

com.ms.internal.nhwc::GridSample(X: T1, grid: T2) -> (Y: T1)
    @ align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
    T1 = classic int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool string complex128 complex64; T2 = classic
    since 16

com.ms.internal.nhwc::InstanceNormalization(input: T, scale: T, B: T) -> (output: T)
    @ activation: str, activation_params: floats, epsilon: float = 1e-5
    T = classic
    since 6

com.ms.internal.nhwc::LRN(X: T) -> (Y: T)
    @ alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int!
    T = floats
    since 1

com.ms.internal.nhwc::LpPool(X: T) -> (Y: T)
    @ auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: ints, kernel_shape: ints!, p: int = 2, pads: ints,
        strides: ints
    T = classic
    since 11

com.ms.internal.nhwc::MaxPool(X: T) -> (Y: T, Indices: I?)
    @ activation: str, activation_params: floats, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: ints,
        kernel_shape: ints!, pads: ints, storage_order: int = 0, strides: ints
    T = classic int8 uint8; I = int64
    since 1

com.ms.internal.nhwc::MaxUnpool(X: T1, I: T2, output_shape: T2?) -> (output: T1)
    @ activation: str, activation_params: floats, kernel_shape: ints!, pads: ints, strides: ints
    T1 = classic; T2 = int64
    since 9

com.ms.internal.nhwc::QLinearAveragePool(X: T, x_scale: float, x_zero_point: T?, y_scale: float, y_zero_point: T?)
        -> (Y: T)
    @ auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
        kernel_shape: ints!, pads: ints, strides: ints
    T = bytes
    since 1

com.ms.internal.nhwc::QLinearConv(x: T1, x_scale: float, x_zero_point: T1, w: T2, w_scale: float, w_zero_point: T2,
        y_scale: float, y_zero_point: T3, B: T4?) -> (y: T3)
    @ auto_pad: str = "NOTSET", dilations: ints, group: int = 1, kernel_shape: ints, pads: ints, strides: ints
    T1 = bytes; T2 = bytes; T3 = bytes; T4 = int32
    since 10

com.ms.internal.nhwc::QLinearConvTranspose(x: T1, x_scale: float, x_zero_point: T1, w: T2, w_scale: float,
        w_zero_point: T2, y_scale: float, y_zero_point: T3, B: T4?) -> (y: T3)
    @ auto_pad: str = "NOTSET", dilations: ints, group: int = 1, kernel_shape: ints, output_padding: ints,
        output_shape: ints, pads: ints, strides: ints
    T1 = bytes; T2 = bytes; T3 = bytes; T4 = int32
    since 1

com.ms.internal.nhwc::Resize(X: T1, roi: T2?, scales: float?, sizes: int64?) -> (Y: T1)
    @ antialias: int = 0, axes: ints, coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float =
        -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0, keep_aspect_ratio_policy: str =
        "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor"
    T1 = everything; T2 = classic
    since 11

com.ms.internal.nhwc::SpaceToDepth(input: T) -> (output: T)
    @ blocksize: int!, mode: str = "DCR"
    T = everything
    since 1

com.microsoft.nchwc::AveragePool(X: T) -> (Y: T)
    @ auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, dilations: ints, kernel_shape:
        ints!, pads: ints, strides: ints
    T = float

com.microsoft.nchwc::Conv(X: T, W: T, B: T?, Sum: T?) -> (Y: T)
    @ activation: str, activation_params: floats, auto_pad: str = "NOTSET", dilations: ints, group: int = 1,
        kernel_shape: ints, pads: ints, strides: ints
    T = float

com.microsoft.nchwc::GlobalAveragePool(X: T) -> (Y: T)
    T = float

com.microsoft.nchwc::GlobalMaxPool(X: T) -> (Y: T)
    T = float

com.microsoft.nchwc::MaxPool(X: T) -> (Y: T)
    @ auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: ints, kernel_shape: ints!, pads: ints, storage_order:
        int = 0, strides: ints
    T = float

com.microsoft.nchwc::ReorderInput(X: T) -> (Y: T)
    @ channels_last: int = 0
    T = float

com.microsoft.nchwc::ReorderOutput(X: T) -> (Y: T)
    @ channels: int = 0, channels_last: int = 0
    T = float

com.microsoft.nchwc::Upsample(X: T) -> (Y: T)
    @ coordinate_transformation_mode: str = "asymmetric", mode: str = "nearest", scales: ints
    T = float
"""
