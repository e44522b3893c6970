"""Old versions of ONNX operators, written in today's form.

Each module registers expansions for one family of operators; importing this package registers all of them. An
expansion is registered only where attributes, inputs or the meaning changed between versions. Versions that only
added dtypes, or only worded the same thing better, need none: their nodes are today's nodes.

Texts that were corrected without a new version, or that contradict themselves, are read as corrected: the odd
element of padding of ``ConvTranspose`` before 11, ``R`` against ``R^T`` in the equations of recurrent operators before
7, windows of ``MaxPool`` and ``AveragePool`` before 22 that start in the right padding and so hold no element, the row
for infinities in the table of FNUZ casts before 24 (the cases of all versions saturate).

From 24 to 28 nothing changed its meaning: ``Attention``, ``SpaceToDepth`` and ``Range`` gained attributes whose
defaults are the old behaviour, ``BitShift`` and ``Mod`` defined what was undefined, the rest added dtypes.
"""

from accord.model.upgrade import (
    arithmetic,
    experimental,
    loops,
    normalization,
    pooling,
    recurrent,
    reductions,
    resampling,
    resizing,
    shapes,
    softmax,
    tensors,
)

__all__ = [
    "arithmetic",
    "experimental",
    "loops",
    "normalization",
    "pooling",
    "recurrent",
    "reductions",
    "resampling",
    "resizing",
    "shapes",
    "softmax",
    "tensors",
]
