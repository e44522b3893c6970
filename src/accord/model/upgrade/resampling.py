"""GridSample and DFT."""

from __future__ import annotations

import numpy as np

from accord.ir.build import Builder
from accord.ir.expand import expands, given, required
from accord.ir.infer import Inference
from accord.model.upgrade.common import Outputs, rebuild

__all__: list[str] = []

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@expands("GridSample", before=20)
def grid_sample(b: Builder, n: Inference) -> Outputs:
    """Modes were named for two spatial axes."""
    mode = n.attr("mode", "bilinear")
    return rebuild(b, n, mode=_MODES.get(mode, mode))


@expands("DFT", before=20)
def dft(b: Builder, n: Inference) -> Outputs:
    """``axis`` was an attribute with the default 1."""
    axis = b.const(np.array(n.attr("axis", 1), dtype=np.int64))
    return rebuild(b, n, required(n, 0), given(n, 1), axis, drop=("axis",))
