"""Operators that ONNX Runtime adds to ONNX. Importing this package registers their expansions and shape rules."""

from __future__ import annotations

from accord.ops.microsoft import activations as activations
from accord.ops.microsoft import attention as attention
from accord.ops.microsoft import blocks as blocks
from accord.ops.microsoft import experts as experts
from accord.ops.microsoft import fused as fused
from accord.ops.microsoft import grouped as grouped
from accord.ops.microsoft import layouts as layouts
from accord.ops.microsoft import normalization as normalization
from accord.ops.microsoft import padding as padding
from accord.ops.microsoft import quantized as quantized
from accord.ops.microsoft import quantized_lstm as quantized_lstm
from accord.ops.microsoft import recurrence as recurrence
from accord.ops.microsoft import rotary as rotary
from accord.ops.microsoft import rules as rules
from accord.ops.microsoft import tensors as tensors
