"""Files with operators for the tests of measuring: right ones, and ones that try to look faster than they are."""

from __future__ import annotations

from pathlib import Path

HEAD = '''
import threading, time
import numpy as np
import accord
from accord import Tensor

@accord.operator("shop::Double")
def double(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
    """Twice as much."""
    return 2 * x
'''

#: By name: what the kernel does, and words of the error that must name it.
TRICKS = {
    "timer": (
        """
clock = time.perf_counter_ns
time.perf_counter_ns = lambda: clock() // 2

@double.python
def kernel(x):
    return 2 * x
""",
        "perf_counter_ns was replaced",
    ),
    "timer inside": (
        """
import accord.workbench.runner, sys
runner = sys.modules["__main__"]
real, skipped = time.perf_counter_ns, [0]
if hasattr(runner, "CLOCK"):
    runner.CLOCK = lambda: real() - skipped[0]

@double.python
def kernel(x):
    began = real()
    y = 2 * x
    while real() < began + 200_000:
        pass
    skipped[0] += real() - began
    return y
""",
        "is not the clock outside it",
    ),
    "lazy": (
        """
class Later(np.ndarray):
    pass

@double.python
def kernel(x):
    return (2 * x).view(Later)
""",
        "is no NumPy array",
    ),
    "late": (
        """
@double.python
def kernel(x):
    y = np.zeros_like(x)

    def work():
        time.sleep(0.005)
        np.multiply(x, 2, out=y)

    threading.Thread(target=work).start()
    if kernel.calls == 0:
        time.sleep(0.02)
    kernel.calls += 1
    return y

kernel.calls = 0
""",
        "changed after the kernel had returned",
    ),
    "kept": (
        """
@double.python
def kernel(x):
    key = x.ctypes.data
    if key not in known:
        known[key] = 2 * x
    return known[key]

known = {}
""",
        "is wrong in a timed run",
    ),
    "skipped": (
        """
@double.python
def kernel(x):
    kernel.calls += 1
    return 2 * x if kernel.calls < 4 else np.empty_like(x)

kernel.calls = 0
""",
        "is wrong in a timed run",
    ),
    "wrong": ("\ndouble.python(lambda x: 2 * x + 1, name='kernel')\n", "is wrong"),
    "crash": (
        """
import ctypes

@double.python
def kernel(x):
    ctypes.string_at(0)
""",
        "SIGSEGV",
    ),
}

RIGHT = """
@double.python
def kernel(x):
    return 2 * x

@double.composition
def composed(b, x):
    return b("Add", x, x)
"""


def declare(folder: Path, text: str = RIGHT, name: str = "ops.py") -> str:
    """A file with ``shop::Double``."""
    path = folder / name
    path.write_text(HEAD + text)
    return str(path)
