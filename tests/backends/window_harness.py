"""Windows over images in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from triton_harness import function_of, memory

from accord.backends.cuda.windows import WindowKernel, window_geometry
from accord.kernels.interpreter import interpret_elsewhere


def start_window(
    folder: Path, kernel: WindowKernel, dims: Sequence[int], arrays: dict[str, np.ndarray[Any, Any]]
) -> None:
    """Start a kernel; ``arrays`` by the names of pointers."""
    programs, constants = window_geometry(kernel, dims, max(a.size for a in arrays.values()))
    values = {n: memory(a) for n, a in arrays.items()} | dict(zip(kernel.names, dims, strict=True)) | constants
    function = function_of(folder, kernel.symbol, kernel.text())
    given = {n: values[n] for n in function.arg_names}
    if programs:
        interpret_elsewhere([(function, given, (programs, 1, 1))], list(arrays.values()), kernel.symbol)
