"""Operators of the ONNX standard that are compositions of others. Importing this package registers their expansions."""

from __future__ import annotations

from accord.ops.standard import attention as attention
from accord.ops.standard import classic as classic
from accord.ops.standard import contraction as contraction
from accord.ops.standard import equivalents as equivalents
from accord.ops.standard import losses as losses
from accord.ops.standard import optimizers as optimizers
from accord.ops.standard import tensors as tensors
