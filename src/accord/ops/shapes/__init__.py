"""Shape rules: for each ONNX operator the facts of its outputs from the facts of its inputs, on symbolic sizes.

Importing this package registers every rule with :func:`accord.ir.infer.rule`. Rules describe the operators as of
opset 24 to 28 and accept attributes of older versions where only their place differs. A malformed node raises
:class:`~accord.errors.ModelTypeError`; a size that is a symbol is never an error.
"""

from accord.ops.shapes import (
    attention,
    contraction,
    control,
    einsum,
    elementwise,
    generate,
    indexing,
    ml,
    movement,
    quantize,
    random,
    recurrent,
    reduction,
    sequence,
    signal,
    windows,
)

__all__ = [
    "attention",
    "contraction",
    "control",
    "einsum",
    "elementwise",
    "generate",
    "indexing",
    "ml",
    "movement",
    "quantize",
    "random",
    "recurrent",
    "reduction",
    "sequence",
    "signal",
    "windows",
]
