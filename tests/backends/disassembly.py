"""Machine code for people."""

from __future__ import annotations

import subprocess
from pathlib import Path


def disassembled(cubin: bytes, folder: Path) -> list[str]:
    """The lines of a cubin; ``folder`` is for a file."""
    import triton

    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return subprocess.run([tool, "-c", file], check=True, capture_output=True, text=True).stdout.splitlines()
